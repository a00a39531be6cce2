"""What is found out about a statement before it runs, cached, as a group's episodes run much the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import SqlglotError

from trl_dbbench.mysqlite.annotation import annotate
from trl_dbbench.mysqlite.charsets import check_charsets
from trl_dbbench.mysqlite.checks import (
    check_contexts,
    check_letters,
    check_limits,
    check_missing,
    check_size,
    check_target,
    check_windows,
    until,
    until_misplaced,
)
from trl_dbbench.mysqlite.grammar import check_brackets, check_grammar
from trl_dbbench.mysqlite.groups import check_distinct, check_groups
from trl_dbbench.mysqlite.kinds import Kind, TableColumns, kind_of, words
from trl_dbbench.mysqlite.names import (
    check_aliases,
    check_derived,
    check_joins,
    check_spaces,
    check_words,
    needed_tables,
)
from trl_dbbench.mysqlite.output_names import check_columns
from trl_dbbench.mysqlite.parse import parse, syntax_error, text_of, unsupported
from trl_dbbench.mysqlite.recursion import check_recursion
from trl_dbbench.mysqlite.tables import CATALOG, create
from trl_dbbench.mysqlite.translation import write
from trl_dbbench.mysqlite.values import StatementError
from trl_dbbench.utils.sql import MAX_CACHED_CHARACTERS, cached

COMMANDS = words("CALL PREPARE EXECUTE GRANT REVOKE ANALYZE OPTIMIZE CHECK HANDLER LOAD")
"""Statements of MySQL's that the embedded database does not have, by their first word."""

NO_DATE = 1525
"""MySQL's error for a constant beside a date that is none."""

WRONG_TARGET = 1093
"""MySQL's error for a statement that reads what it changes."""

CONSTANT_MISTAKES = frozenset({NO_DATE, 1292})
"""That, and the one for a constant beside a number that is none."""


@dataclass(frozen=True)
class Statement:
    """What is known of a statement before it runs.

    `tables` are the names that must be those of tables or views, in the order of the tree, `catalog` the
    information_schema tables that it reads. `misnamed` and `misplaced` are
    the errors (number, text) that it causes if its tables exist.
    The tree must not be changed if the statement is short enough for the cache.
    """

    tree: exp.Expr
    tables: tuple[str, ...]
    catalog: frozenset[str]
    misnamed: tuple[int, str] | None
    misplaced: tuple[int, str] | None


def look(sql: str) -> Statement:
    """Parses a statement.

    Raises:
        StatementError: it cannot be parsed, or is too large.
    """
    return _looks.look(sql) if len(sql) <= MAX_CACHED_CHARACTERS else _look(sql)


@dataclass(frozen=True)
class Translation:
    """A statement for SQLite.

    Its text, the kinds of a query's columns, the constants that MySQL evaluates before it looks at any row,
    and the error (number, text) that its GROUP BY or its target causes in MySQL if all its columns exist.
    """

    sql: str
    kinds: tuple[Kind, ...]
    constants: tuple[str, ...]
    misgrouped: tuple[int, str] | None


def translation(sql: str, statement: Statement, tables: tuple[TableColumns, ...]) -> Translation:
    """The statement for SQLite; of one that is misplaced, what MySQL reads until it finds that out.

    Args:
        statement: what `look` found; its tree is changed if the statement is too long for the cache.
        tables: the tables and views that it names.

    Raises:
        StatementError: MySQL would refuse it, or there is no counterpart.
    """
    if len(sql) <= MAX_CACHED_CHARACTERS:
        return _cached_translation(sql, tables)
    return _translation(statement.tree, statement.misplaced, tables)


def _look(sql: str) -> Statement:
    try:
        tree = parse(sql)
    except StatementError as error:
        if error.code == 1436:
            check_brackets(MySQL().tokenize(sql))  # one that is missing is the graver mistake
        if error.code == 1064 and _is_grammatical(sql):
            raise unsupported("a statement of this form") from None
        raise
    _tidy(tree)
    check_spaces(sql)
    check_missing(tree)
    check_letters(tree)
    check_charsets(tree)
    check_grammar(sql)
    check_words(tree)
    check_derived(tree)
    check_size(tree, {})
    check_limits(tree)
    catalog = {
        table.name.lower() for table in tree.find_all(exp.Table) if table.db.lower() == "information_schema"
    }
    if unknown := sorted(catalog - set(CATALOG)):
        raise StatementError(1109, f"Unknown table '{unknown[0].upper()}' in information_schema")
    misnamed = _mistake(tree, check_aliases, check_joins)
    misplaced = _mistake(tree, check_contexts, check_windows, check_distinct, check_recursion)
    return Statement(tree, needed_tables(tree), frozenset(catalog), misnamed, misplaced)


def _tidy(tree: exp.Expr) -> None:
    """What says nothing here goes: hints to MySQL's optimizer, that a text is of national characters, and
    brackets around the place of a column that rows are sorted or grouped by."""
    for hint in list(tree.find_all(exp.Hint)):
        hint.pop()
    for text in list(tree.find_all(exp.National)):
        text.replace(exp.Literal.string(text.name))
    for node in list(tree.find_all(exp.Ordered, exp.Group, exp.Window)):
        keys = (
            (node.args.get("partition_by") or []) if isinstance(node, exp.Window) else node.iter_expressions()
        )
        for key in list(keys):
            if isinstance(key, exp.Paren) and isinstance(key.unnest(), exp.Literal):
                key.replace(key.unnest())


def _is_grammatical(sql: str) -> bool:
    """Whether MySQL's grammar has a statement that the parser does not."""
    try:
        return check_grammar(sql)
    except StatementError as error:
        return error.code == unsupported("").code
    except (SqlglotError, RecursionError):
        return False


def _mistake(tree: exp.Expr, *checks: Callable[[exp.Expr], None]) -> tuple[int, str] | None:
    try:
        for check in checks:
            check(tree)
    except StatementError as error:
        return error.code, error.text
    return None


class _Looks(threading.local):
    """What each thread has looked at: no two threads share a tree."""

    def __init__(self) -> None:
        self.look = lru_cache(maxsize=256)(_look)


_looks = _Looks()


@lru_cache(maxsize=4096)
def _cached_translation(sql: str, tables: tuple[TableColumns, ...]) -> Translation:
    statement = look(sql)
    try:
        return _translation(statement.tree.copy(), statement.misplaced, tables)
    except StatementError as error:
        if error.code != NO_DATE:
            raise
        return until_date(statement.tree.copy(), error, tables)


def _translation(
    tree: exp.Expr, misplaced: tuple[int, str] | None, tables: tuple[TableColumns, ...]
) -> Translation:
    misgrouped = _mistake(
        tree, check_target, lambda tree: check_groups(tree, tables), lambda tree: check_columns(tree, tables)
    )
    if misgrouped is not None and misgrouped[0] == WRONG_TARGET:  # MySQL has not looked at this part yet
        tree.set("order", None)
    written, kinds, constants = write(until_misplaced(tree) if misplaced else tree, tables)
    return Translation(written, kinds, constants, misgrouped)


def until_constant(
    statement: Statement, translated: Translation, error: StatementError, tables: tuple[TableColumns, ...]
) -> Translation:
    """What MySQL has read of a statement when it meets this mistake in a constant; a number is read last."""
    if error.code == NO_DATE:
        return until_date(statement.tree.copy(), error, tables)
    graver = translated.misgrouped or statement.misplaced
    return replace(translated, misgrouped=graver or (error.code, error.text))


def until_date(tree: exp.Expr, error: StatementError, tables: tuple[TableColumns, ...]) -> Translation:
    """What MySQL has read of a statement when it meets a text that is no date: a name before may be wrong."""
    wrong = (each for each in tree.find_all(exp.Literal) if each.is_string and f"'{each.name}'" in error.text)
    literal = next(wrong, None)
    if isinstance(tree, exp.Update):
        raise error
    where = tree.args.get("where")
    if literal is not None:
        tree = until(tree, literal, exp.Literal.string("2000-01-01"))
    elif where is not None:  # it is computed, and most likely there
        tree = until(tree, where.this, where.this.copy())
    written, _, _ = write(tree, tables)
    return Translation(written, (), (), (error.code, error.text))


def definition(tree: exp.Create, tables: tuple[TableColumns, ...]) -> exp.Create:
    """A copy of CREATE that may be changed, while the tree itself may be cached.

    Raises:
        StatementError: it makes a table or a view of a query with FLOAT columns: SQLite makes them DOUBLE.
            A view may have them as they are, in comparisons, and in what gives a DOUBLE.
    """
    if isinstance(tree.expression, exp.Query):
        _check_floats(tree, tables)
    return tree.copy()


def _check_floats(tree: exp.Create, tables: tuple[TableColumns, ...]) -> None:
    query = tree.expression.copy()
    shown = annotate(query, tables)
    if tree.kind == "TABLE" and any(kind.is_single or kind.name == "fixed" for kind in shown):
        raise unsupported("CREATE TABLE of a query with FLOAT")
    for column in query.find_all(exp.Column) if tree.kind == "VIEW" else ():
        above = column.parent.parent if isinstance(column.parent, exp.Alias) else column.parent
        if kind_of(column).is_single and not isinstance(above, _AS_THEY_ARE):
            raise unsupported("a view that computes with FLOAT")


_AS_THEY_ARE = (exp.Select, exp.Predicate, exp.Ordered, exp.Group, exp.Sum, exp.Avg, exp.Count)


def commits(tree: exp.Expr) -> bool:
    """Whether a statement changes tables themselves, which in MySQL ends an open transaction first."""
    if isinstance(tree, exp.Create | exp.Drop):
        return not (tree.args.get("temporary") or tree.find(exp.TemporaryProperty))
    return isinstance(tree, exp.Alter | exp.TruncateTable)


def autocommit_of(tree: exp.Set) -> bool | None:
    """What SET makes of autocommit, `None` if nothing."""
    for item in tree.expressions:
        if isinstance(item.this, exp.EQ) and isinstance(item.this.this, exp.Column | exp.SessionParameter):
            value = item.this.expression
            if item.this.this.name.lower() == "autocommit":
                return (value.name or text_of(value)).upper() not in ("0", "OFF", "FALSE")
    return None


@lru_cache(maxsize=4096)
def not_executed(sql: str) -> StatementError:
    """Of a statement that is none, or none that the emulation knows."""
    return unsupported("a statement of this form") if _is_grammatical(sql) else syntax_error(sql.strip())


@cached
def creation(sql: str) -> str:
    """The CREATE TABLE of a task's table, for SQLite."""
    return create(parse(sql))
