"""Tables as a prompt shows them in full: how they were made, with keys, and some of their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from trl_dbbench.sql import quote
from trl_dbbench.tasks.source import Source
from trl_dbbench.tasks.table import Table

EXAMPLE_ROWS = 3
EXAMPLE_CHARACTERS = 60
"""To which a cell of those is cut."""


def described(tables: tuple[Table, ...], source: Source | None) -> str:
    """CREATE TABLE of each, and its first rows in a comment.

    Raises:
        TaskError: the source cannot be read.
    """
    return _of_tables(tables) if source is None else _of_source(source)


def _of_tables(tables: tuple[Table, ...]) -> str:
    return "\n".join(
        _described(f"CREATE TABLE {quote(table.name)} (\n{_columns(table)}\n)", table, table.rows)
        for table in tables
    )


@lru_cache(maxsize=1024)
def _of_source(source: Source) -> str:
    with source.connect() as connection:
        made = {name: (type, sql) for type, name, sql in connection.execute(_MADE)}
        parts = []
        for table in source.tables():
            type, sql = made[table.name]
            # a view may compute for ever
            rows = _first_rows(connection, table.name) if type == "table" else None
            parts.append(_described(sql, table, rows))
        return "\n".join(parts)


_MADE = "SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'view')"


def _first_rows(connection: sqlite3.Connection, name: str) -> list[Any] | None:
    try:
        return connection.execute(f"SELECT * FROM {quote(name)} LIMIT {EXAMPLE_ROWS}").fetchall()
    except sqlite3.Error:  # of a module that is not here, or a cell beyond all bounds
        return None


def _columns(table: Table) -> str:
    return ",\n".join(f"  {quote(column.name)} {column.type}" for column in table.columns)


def _described(made: str, table: Table, rows: Sequence[Sequence[Any]] | None) -> str:
    if rows is None:
        return f"{made.strip()};"
    if not rows:
        return f"{made.strip()};\n/* {table.name} has no rows. */"
    shown = "\n".join(", ".join(map(_cell, row)) for row in rows[:EXAMPLE_ROWS])
    return f"{made.strip()};\n/* The first rows of {table.name}:\n{shown} */"


def _cell(cell: Any) -> str:
    text = "NULL" if cell is None else repr(cell) if isinstance(cell, str | bytes) else str(cell)
    return text if len(text) <= EXAMPLE_CHARACTERS else text[:EXAMPLE_CHARACTERS] + "..."
