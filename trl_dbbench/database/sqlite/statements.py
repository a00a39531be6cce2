"""What is found out about a statement before it runs, cached, as a group's episodes run much the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from trl_dbbench.database.sqlite.checks import check_groups, check_size
from trl_dbbench.database.sqlite.parse import parse
from trl_dbbench.database.sqlite.tables import CATALOG, create
from trl_dbbench.database.sqlite.translation import write
from trl_dbbench.database.sqlite.values import StatementError
from trl_dbbench.sql import MAX_CACHED_CHARACTERS


@dataclass(frozen=True)
class Statement:
    """What is known of a statement before it runs.

    `catalog` are the information_schema tables that it reads; `misgrouped` is the error (number, text) that
    it causes on tables without keys. The tree must not be changed if the statement is short enough for the
    cache.
    """

    tree: exp.Expr
    catalog: frozenset[str]
    misgrouped: tuple[int, str] | None


def look(sql: str) -> Statement:
    """Parses a statement.

    Raises:
        StatementError: it cannot be parsed, or is too large.
    """
    return _cached_look(sql) if len(sql) <= MAX_CACHED_CHARACTERS else _look(sql)


def translation(sql: str, tree: exp.Expr) -> str:
    """The statement for SQLite.

    Args:
        tree: what `look` found; changed if the statement is too long for the cache.

    Raises:
        StatementError: MySQL would refuse it, or there is no counterpart.
    """
    return _cached_translation(sql) if len(sql) <= MAX_CACHED_CHARACTERS else write(tree)


def _look(sql: str) -> Statement:
    tree = parse(sql)
    check_size(tree, {})
    catalog = {
        table.name.lower() for table in tree.find_all(exp.Table) if table.db.lower() == "information_schema"
    }
    misgrouped = None
    try:
        check_groups(tree)
    except StatementError as error:
        misgrouped = error.code, error.text
    return Statement(tree, frozenset(catalog & set(CATALOG)), misgrouped)


_cached_look = lru_cache(maxsize=512)(_look)


@lru_cache(maxsize=4096)
def _cached_translation(sql: str) -> str:
    return write(look(sql).tree.copy())


@lru_cache(maxsize=4096)
def creation(sql: str) -> str:
    """The CREATE TABLE of a task's table, for SQLite."""
    return create(parse(sql))
