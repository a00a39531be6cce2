"""Reading, checking and translating of statements, with caches: episodes often repeat the same ones."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from trl_dbbench.mysqlite import checks, names
from trl_dbbench.mysqlite.errors import StatementError, refuse_if, syntax_error, unsupported
from trl_dbbench.mysqlite.grammar import check_grammar, shown_names
from trl_dbbench.mysqlite.kinds import TableColumns
from trl_dbbench.mysqlite.names import check_aliases, check_columns, check_derived, check_joins, check_words
from trl_dbbench.mysqlite.parse import parse, tokenize
from trl_dbbench.mysqlite.rules import Translation, write
from trl_dbbench.mysqlite.storage import check_recursion
from trl_dbbench.mysqlite.tables import CATALOG, create

MAX_CACHED_CHARACTERS = 1_000
"""Longest statement that is cached, in characters. The caches hold thousands of statements."""


@dataclass(frozen=True)
class Statement:
    """A statement that has been read and not been refused so far.

    Attributes:
        certain: True if it certainly is in MySQL's grammar.
        tree: its syntax tree, which must not be changed if the statement is short enough for the cache.
        tables: names of the tables and views that must exist, in tree order.
        catalog: names of the information_schema tables that it reads.
        shown: names of a query's columns, see `grammar.shown_names`.
    """

    sql: str
    certain: bool
    tree: exp.Expr
    tables: tuple[str, ...]
    catalog: frozenset[str]
    shown: tuple[str, ...]

    def not_executed(self) -> StatementError:
        """Return the error for a text that is not a statement, or for an unsupported statement."""
        return unsupported("a statement of this form") if self.certain else syntax_error(self.sql.strip())


def look(sql: str) -> Statement:
    """Read a statement; raise StatementError if MySQL would refuse it whatever the tables."""
    return _looks.look(sql) if len(sql) <= MAX_CACHED_CHARACTERS else _look(sql)


def translation(statement: Statement, tables: tuple[TableColumns, ...]) -> Translation:
    """Return the statement translated for SQLite. Changes the tree if it is too long for the cache."""
    if len(statement.sql) <= MAX_CACHED_CHARACTERS:
        return _cached_translation(statement.sql, tables)
    return translated(statement.tree, tables)


def _look(sql: str) -> Statement:
    text, tokens = tokenize(sql)
    certain = check_grammar(text, tokens)
    try:
        tree = parse(sql, text, tokens)
    except StatementError as error:
        if error.code == 1064 and certain:
            raise unsupported("a statement of this form") from None
        raise
    _tidy(tree)
    of_tables = not isinstance(tree, exp.Create) or tree.kind in ("TABLE", "INDEX", "VIEW")
    refuse_if(not of_tables, f"CREATE {tree.text('kind')}")
    for check in (
        checks.check_missing,
        checks.check_letters,
        check_words,
        check_derived,
        checks.check_limits,
    ):
        check(tree)
    checks.check_size(tree, {})
    catalog = {
        table.name.lower() for table in tree.find_all(exp.Table) if table.db.lower() == "information_schema"
    }
    first = tree.find(exp.Table)  # the table that a statement changes
    changed = (
        not isinstance(tree, exp.Query) and first is not None and first.db.lower() == "information_schema"
    )
    refuse_if(changed or catalog - set(CATALOG), "this table of information_schema")
    of_query = isinstance(tree.args.get("expression"), exp.Query)
    of_rows = isinstance(tree, exp.Query | exp.Insert | exp.Update | exp.Delete)
    for check in _CHECKS if of_query or of_rows else ():
        check(tree)
    shown = shown_names(tree, text, tokens)
    return Statement(sql, certain, tree, names.needed_tables(tree), frozenset(catalog), shown)


_CHECKS = (
    check_aliases,
    check_joins,
    checks.check_contexts,
    checks.check_windows,
    checks.check_distinct,
    check_recursion,
)


def _tidy(tree: exp.Expr) -> None:
    """Remove what has no effect here: hints, the N of N'text', and brackets around a column's position."""
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


class _Looks(threading.local):
    """Cache of the statements that each thread has read: no two threads share a tree."""

    def __init__(self) -> None:
        self.look = lru_cache(maxsize=256)(_look)


_looks = _Looks()


@lru_cache(maxsize=4096)
def _cached_translation(sql: str, tables: tuple[TableColumns, ...]) -> Translation:
    return translated(look(sql).tree.copy(), tables)


def translated(tree: exp.Expr, tables: tuple[TableColumns, ...]) -> Translation:
    """Return a statement translated for SQLite. Changes the tree."""
    checks.check_target(tree)
    checks.check_groups(tree, tables)
    check_columns(tree, tables)
    return write(tree, tables)


def commits(tree: exp.Expr) -> bool:
    """Return whether a statement changes the schema, before which MySQL commits an open transaction."""
    if isinstance(tree, exp.Create | exp.Drop):
        return not (tree.args.get("temporary") or tree.find(exp.TemporaryProperty))
    return isinstance(tree, exp.Alter | exp.TruncateTable)


@lru_cache(maxsize=1024)
def creation(sql: str) -> str:
    """Return the CREATE TABLE of an initial table, translated for SQLite."""
    return create(parse(sql, *tokenize(sql)), given=True)
