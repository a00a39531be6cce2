"""A SQLite file as the database of tasks: of SQLite's dialect as it is, of MySQL's converted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote as url_quote

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.sources.base import EXAMPLE_ROWS, Step, file_digest, in_order, with_rows
from trl_dbbench.tasks.sources.conversion import Definition, definitions, rows_of, view_step
from trl_dbbench.tasks.sources.descriptions import FOLDER, comment_on, descriptions
from trl_dbbench.tasks.table import Column, Table
from trl_dbbench.utils.sql import quote

MAX_CELL_BYTES = 1_000_000
"""Larger cells are not read for a prompt."""


class SQLiteFile:
    """The database in a SQLite file; see `Kind`."""

    dialects = ("sqlite", "mysql")

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self.digest = digest

    @staticmethod
    def digest_of(path: Path) -> str:
        """
        Raises:
            OSError: there is no such file.
            TaskError: a program still writes to it.
        """
        found = file_digest(path)
        if _has_log(path):
            raise TaskError(
                f"the database '{path}' has changes that are not in it yet: its '-wal' or '-journal' file "
                "lies beside it. Close the program that writes to it, or open and close it with sqlite3."
            )
        return found

    @property
    def uri(self) -> str:
        """For `sqlite3`: read only, and nobody else changes it."""
        return f"file:{url_quote(str(self.path))}?mode=ro&immutable=1"

    @contextmanager
    def connect(self, max_cell_bytes: int | None = MAX_CELL_BYTES) -> Iterator[sqlite3.Connection]:
        """A connection that can only read.

        Raises:
            TaskError: it is no SQLite database.
        """
        try:
            with closing(sqlite3.connect(self.uri, uri=True)) as connection:
                connection.text_factory = lambda text: text.decode(errors="replace")
                connection.execute("PRAGMA trusted_schema = OFF")
                if max_cell_bytes is not None:
                    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_cell_bytes)
                yield connection
        except sqlite3.DatabaseError as error:
            raise TaskError(f"the database '{self.path}' cannot be read: {error}") from None

    def tables(self, dialect: str | None = None) -> tuple[Table, ...]:
        if dialect != "mysql":
            return self._tables
        lost = {name for name, step in self._views() if not isinstance(step, Step)}
        return tuple(table for table in self._tables if table.name not in lost)

    @cached_property
    def _tables(self) -> tuple[Table, ...]:
        with self.connect() as connection:
            tables = []
            for name, _ in _names(connection):
                try:
                    columns = connection.execute(
                        "SELECT name, type FROM pragma_table_info(?)", (name,)
                    ).fetchall()
                except sqlite3.OperationalError:  # a view of something that is not there
                    continue
                tables.append(Table(name, tuple(Column(column, type) for column, type in columns)))
        if not tables:
            raise TaskError(f"the database '{self.path}' has no tables.")
        return tuple(tables)

    def described(self, dialect: str) -> str:
        with self.connect() as connection:
            made = {name: (type, sql) for type, name, sql in connection.execute(_MADE)}
            if dialect == "mysql":
                made = {each.name: ("table", each.create(whole=True)) for each in self.definitions}
                made |= {name: ("view", step.sql) for name, step in self._views() if isinstance(step, Step)}
            parts, told = [], descriptions(self.path.parent / FOLDER)
            for table in self.tables(dialect):
                if table.name not in made:  # a view that no server can have
                    continue
                type, sql = made[table.name]
                # a view may compute for ever
                rows = _first_rows(connection, table.name) if type == "table" else None
                parts += [*comment_on(table, told), with_rows(sql, table.name, rows)]
            return "\n".join(parts)

    def steps(self) -> Iterator[Step | str]:
        made = self.definitions
        for each in made:
            yield from each.notes
            yield Step(each.create())
        with self.connect(None) as connection:
            for each in made:
                for rows in rows_of(connection, each):
                    yield Step(each.insert(), rows)
        for each in made:
            yield from each.keys()
        for each in made:  # when all that they refer to is there
            yield from each.references()
        for _, step in self._views():
            yield step

    @cached_property
    def definitions(self) -> list[Definition]:
        """Its tables as MySQL is to make them.

        Raises:
            TaskError: it cannot be read, or holds what no server could.
        """
        with self.connect(None) as connection:
            return definitions(connection, self.table_names())

    def table_names(self) -> list[str]:
        """The names of its tables, views not."""
        with self.connect() as connection:
            return [name for name, type in _names(connection) if type == "table"]

    def views(self) -> list[str]:
        """The names of its views."""
        with self.connect() as connection:
            return [name for name, type in _names(connection) if type == "view"]

    def _views(self) -> list[tuple[str, Step | str]]:
        with self.connect() as connection:
            made = connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'view' ORDER BY rowid"
            )
            views = dict(made.fetchall())
        there = {table.name for table in self.tables()}
        views = {name: sql for name, sql in views.items() if name in there}
        known, steps = there - views.keys(), []
        for name in in_order(views):
            steps.append((name, step := view_step(name, views[name], known)))
            if isinstance(step, Step):
                known.add(name)
        return steps


_MADE = "SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'view')"


def _names(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """The names of tables and views, in the order in which they were made, and which of the two each is."""
    # of a text index, which shows as a table itself
    shadows = connection.execute("SELECT name FROM pragma_table_list WHERE type = 'shadow'")
    inner = {name for (name,) in shadows}
    found = connection.execute(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid"
    )
    return [(name, type) for name, type in found if not name.startswith("sqlite_") and name not in inner]


def _first_rows(connection: sqlite3.Connection, name: str) -> list[Any] | None:
    try:
        return connection.execute(f"SELECT * FROM {quote(name)} LIMIT {EXAMPLE_ROWS}").fetchall()
    except sqlite3.Error:  # of a module that is not here, or a cell beyond all bounds
        return None


_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""With which SQLite's journal begins as long as it counts."""


def _has_log(path: Path) -> bool:
    """Whether a program writes to the database, or was killed while it did."""
    log, journal = Path(f"{path}-wal"), Path(f"{path}-journal")
    if log.exists() and log.stat().st_size:
        return True
    if not journal.exists():
        return False
    with journal.open("rb") as file:
        return file.read(len(_JOURNAL)) == _JOURNAL
