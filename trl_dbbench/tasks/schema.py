"""Tables as a prompt shows them in full: how they were made, with keys, and some of their rows."""

from __future__ import annotations

from trl_dbbench.tasks.source import Source
from trl_dbbench.tasks.sources.base import with_rows
from trl_dbbench.tasks.table import Table
from trl_dbbench.utils.sql import quote


def described(tables: tuple[Table, ...], source: Source | None, dialect: str) -> str:
    """CREATE TABLE of each, and its first rows in a comment.

    Raises:
        TaskError: the source cannot be read.
    """
    if source is not None:
        return source.described(dialect)
    return "\n".join(
        with_rows(f"CREATE TABLE {quote(table.name)} (\n{_columns(table)}\n)", table.name, table.rows)
        for table in tables
    )


def _columns(table: Table) -> str:
    return ",\n".join(f"  {quote(column.name)} {column.type}" for column in table.columns)
