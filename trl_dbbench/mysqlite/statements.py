"""Statements before they run: read, checked and translated, with caches, as episodes run much the same."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from sqlglot import exp

from trl_dbbench.mysqlite.checks import (
    check_contexts,
    check_distinct,
    check_groups,
    check_letters,
    check_limits,
    check_missing,
    check_size,
    check_target,
    check_windows,
)
from trl_dbbench.mysqlite.coercions import check_charsets
from trl_dbbench.mysqlite.errors import StatementError, syntax_error, unsupported
from trl_dbbench.mysqlite.grammar import check_grammar
from trl_dbbench.mysqlite.kinds import Kind, TableColumns, annotate, kind_of
from trl_dbbench.mysqlite.names import (
    check_aliases,
    check_columns,
    check_derived,
    check_joins,
    check_words,
    needed_tables,
)
from trl_dbbench.mysqlite.parse import parse, text_of, tokenize
from trl_dbbench.mysqlite.rules import write
from trl_dbbench.mysqlite.storage import check_recursion
from trl_dbbench.mysqlite.tables import CATALOG, create

MAX_CACHED_CHARACTERS = 1_000
"""Characters of a statement that is cached. The caches hold thousands of them."""


@dataclass(frozen=True)
class Statement:
    """A statement that was read and not refused so far.

    Attributes:
        certain: MySQL's grammar has it, without doubt.
        tree: must not be changed if the statement is short enough for the cache.
        tables: the names that must be those of tables or views, in the order of the tree.
        catalog: the information_schema tables that it reads.
    """

    sql: str
    certain: bool
    tree: exp.Expr
    tables: tuple[str, ...]
    catalog: frozenset[str]

    def not_executed(self) -> StatementError:
        """Return the error for a text that is not a statement, or not one that is known here."""
        return unsupported("a statement of this form") if self.certain else syntax_error(self.sql.strip())


class Translation(NamedTuple):
    """A statement for SQLite, the kinds of a query's columns, and the constants that MySQL reads before any
    row."""

    sql: str
    kinds: tuple[Kind, ...]
    constants: tuple[str, ...]


def look(sql: str) -> Statement:
    """Read a statement; raise StatementError if MySQL refuses it whatever its tables are."""
    return _looks.look(sql) if len(sql) <= MAX_CACHED_CHARACTERS else _look(sql)


def translation(statement: Statement, tables: tuple[TableColumns, ...]) -> Translation:
    """Return the statement for SQLite; of one that is too long for the cache, the tree is changed."""
    if len(statement.sql) <= MAX_CACHED_CHARACTERS:
        return _cached_translation(statement.sql, tables)
    return _translation(statement.tree, tables)


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
    for check in (check_missing, check_letters, check_charsets, check_words, check_derived, check_limits):
        check(tree)
    check_size(tree, {})
    catalog = {
        table.name.lower() for table in tree.find_all(exp.Table) if table.db.lower() == "information_schema"
    }
    if unknown := sorted(catalog - set(CATALOG)):
        raise StatementError(1109, f"Unknown table '{unknown[0].upper()}' in information_schema")
    for check in _CHECKS if isinstance(tree, exp.Query | exp.Insert | exp.Update | exp.Delete) else ():
        check(tree)
    return Statement(sql, certain, tree, needed_tables(tree), frozenset(catalog))


_CHECKS = (check_aliases, check_joins, check_contexts, check_windows, check_distinct, check_recursion)


def _tidy(tree: exp.Expr) -> None:
    """Remove what has no meaning here: hints, N before a text, and brackets around the place of a column."""
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
    """The statements that each thread has read: no two threads share a tree."""

    def __init__(self) -> None:
        self.look = lru_cache(maxsize=256)(_look)


_looks = _Looks()


@lru_cache(maxsize=4096)
def _cached_translation(sql: str, tables: tuple[TableColumns, ...]) -> Translation:
    return _translation(look(sql).tree.copy(), tables)


def _translation(tree: exp.Expr, tables: tuple[TableColumns, ...]) -> Translation:
    check_target(tree)
    check_groups(tree, tables)
    check_columns(tree, tables)
    return Translation(*write(tree, tables))


def definition(tree: exp.Create, tables: tuple[TableColumns, ...]) -> exp.Create:
    """Return a copy of CREATE; raise StatementError if it computes with FLOAT: SQLite makes it DOUBLE."""
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
    """Return whether a statement changes tables themselves, which in MySQL ends an open transaction first."""
    if isinstance(tree, exp.Create | exp.Drop):
        return not (tree.args.get("temporary") or tree.find(exp.TemporaryProperty))
    return isinstance(tree, exp.Alter | exp.TruncateTable)


def autocommit_of(tree: exp.Set) -> bool | None:
    """Return the value that SET gives to autocommit, `None` if none."""
    for item in tree.expressions:
        if isinstance(item.this, exp.EQ) and isinstance(item.this.this, exp.Column | exp.SessionParameter):
            value = item.this.expression
            if item.this.this.name.lower() == "autocommit":
                return (value.name or text_of(value)).upper() not in ("0", "OFF", "FALSE")
    return None


@lru_cache(maxsize=1024)
def creation(sql: str) -> str:
    """Return the CREATE TABLE of a table, for SQLite."""
    return create(parse(sql, *tokenize(sql)))
