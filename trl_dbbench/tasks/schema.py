"""Tables as a prompt shows them in full: how they were made, with keys, and some of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from trl_dbbench.tasks.source import Source
from trl_dbbench.tasks.table import Table

EXAMPLE_ROWS = 3
EXAMPLE_CHARACTERS = 60
"""To which a cell of those is cut."""


@lru_cache(maxsize=1024)
def described(tables: tuple[Table, ...], source: Source | None) -> str:
    """CREATE TABLE of each, and its first rows in a comment.

    Raises:
        TaskError: the source cannot be read.
    """
    if source is None:
        return "\n".join(
            _described(f"CREATE TABLE {_quoted(table.name)} (\n{_columns(table)}\n)", table, table.rows)
            for table in tables
        )
    with source.connect() as connection:
        made = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view')"))
        return "\n".join(
            _described(
                made[table.name],
                table,
                connection.execute(f"SELECT * FROM {_quoted(table.name)} LIMIT {EXAMPLE_ROWS}").fetchall(),
            )
            for table in tables
        )


def _columns(table: Table) -> str:
    return ",\n".join(f"  {_quoted(column.name)} {column.type}" for column in table.columns)


def _quoted(name: str) -> str:
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


def _described(made: str, table: Table, rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return f"{made.strip()};\n/* {table.name} has no rows. */"
    shown = "\n".join(", ".join(map(_cell, row)) for row in rows[:EXAMPLE_ROWS])
    return f"{made.strip()};\n/* The first rows of {table.name}:\n{shown} */"


def _cell(cell: Any) -> str:
    text = "NULL" if cell is None else repr(cell) if isinstance(cell, str | bytes) else str(cell)
    return text if len(text) <= EXAMPLE_CHARACTERS else text[:EXAMPLE_CHARACTERS] + "..."
