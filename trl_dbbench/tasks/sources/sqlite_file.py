"""A SQLite file as the database of tasks: of SQLite's dialect as it is, of MySQL's converted."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote as url_quote

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.column_types import Declared
from trl_dbbench.tasks.sources.base import (
    DESCRIPTIONS_FOLDER,
    EXAMPLE_ROWS,
    Sample,
    Step,
    comment_on,
    descriptions,
    file_digest,
    view_steps,
    with_rows,
)
from trl_dbbench.tasks.sources.conversion import (
    Definition,
    check_finite,
    definitions,
    rows_of,
    translated_view,
)
from trl_dbbench.tasks.sources.declaration import declaration
from trl_dbbench.tasks.sources.dump_text import words_of
from trl_dbbench.tasks.table import Column, Table
from trl_dbbench.utils.sql import quote

MAX_CELL_BYTES = 1_000_000
"""Larger cells are not read for a prompt."""


class SQLiteFile:
    """The database in a SQLite file, read when it is asked for.

    What reads it raises TaskError if it cannot be read.
    """

    dialects: tuple[str, ...] = ("sqlite", "mysql")
    """Dialects of the tasks that it can serve; tasks that name none have the first."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self.digest = digest

    @staticmethod
    def digest_of(path: Path) -> str:
        """See `file_digest`; TaskError if a program still writes to the file."""
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
        """A connection that can only read; TaskError if it is not an SQLite database."""
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
        """Its tables and views without their rows, for tasks of this dialect, or of the first."""
        if dialect != "mysql":
            return self._tables
        lost = {name for name, step in self._views.items() if not isinstance(step, Step)}
        return tuple(table for table in self._tables if table.name not in lost)

    @cached_property
    def _tables(self) -> tuple[Table, ...]:
        with self.connect() as connection:
            tables = []
            for name in self._made:
                try:
                    columns = connection.execute(
                        "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> 1", (name,)
                    ).fetchall()
                except sqlite3.OperationalError:  # a view of something that is not there
                    continue
                tables.append(Table(name, tuple(Column(column, type) for column, type in columns)))
        if not tables:
            raise TaskError(f"the database '{self.path}' has no tables.")
        return tuple(tables)

    def described(self, dialect: str) -> str:
        """Return how its tables were made, in this dialect, and their first rows."""
        with self.connect() as connection:
            made = self._made
            if dialect == "mysql":
                made = {each.name: ("table", each.create(whole=True)) for each in self.definitions}
                steps = self._views.items()
                made |= {name: ("view", step.sql) for name, step in steps if isinstance(step, Step)}
            parts, told = [], descriptions(self.path.parent / DESCRIPTIONS_FOLDER)
            for table in self.tables(dialect):
                if table.name not in made:  # a view that no server can have
                    continue
                type, sql = made[table.name]
                # a view may compute for ever
                rows = _first_rows(connection, table.name) if type == "table" else None
                parts += [*comment_on(table, told), with_rows(sql, table.name, rows)]
            return "\n".join(parts)

    def steps(self) -> Iterator[Step | str]:
        """Return what makes the database on a server, in the order in which it is to be executed.

        A text among the steps says what of the database has no counterpart there.
        """
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
        yield from self._views.values()

    @cached_property
    def definitions(self) -> list[Definition]:
        """Its tables as MySQL is to make them; TaskError if it holds what no server could."""
        with self.connect(None) as connection:
            made = definitions(connection, self.names("table"))
            check_finite(made)
            return made

    def names(self, kind: str) -> list[str]:
        """The names of what is a `table`, or a `view`."""
        return [name for name, (type, _) in self._made.items() if type == kind]

    @cached_property
    def _made(self) -> dict[str, tuple[str, str]]:
        """Tables and views in the order in which they were made: which of the two, and the SQL, by name."""
        with self.connect() as connection:
            # of a text index, which itself shows as a table
            shadows = connection.execute("SELECT name FROM pragma_table_list WHERE type = 'shadow'")
            inner = {name for (name,) in shadows}
            found = connection.execute(
                "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid"
            )
            return {
                name: (type, sql)
                for name, type, sql in found
                if not name.startswith("sqlite_") and name not in inner
            }

    @cached_property
    def _views(self) -> dict[str, Step | str]:
        """By its name what makes each view on a server, or why nothing can."""
        there = {table.name for table in self.tables()}
        made = {
            name: translated_view(name, self._made[name][1]) for name in self.names("view") if name in there
        }
        views = {name: sql for name, sql in made.items() if sql is not None}
        lost = {name: f"the view {name}, which cannot be translated" for name in made if name not in views}
        return {**lost, **view_steps(views, there - made.keys())}


def _first_rows(connection: sqlite3.Connection, name: str) -> list[Any] | None:
    try:
        return connection.execute(f"SELECT * FROM {quote(name)} LIMIT {EXAMPLE_ROWS}").fetchall()
    except sqlite3.Error:  # of a module that is not here, or a cell beyond all bounds
        return None


_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""With which SQLite's journal begins as long as it counts."""


def _has_log(path: Path) -> bool:
    """Return whether a program writes to the database, or was killed while it did."""
    log, journal = Path(f"{path}-wal"), Path(f"{path}-journal")
    if log.exists() and log.stat().st_size:
        return True
    if not journal.exists():
        return False
    with journal.open("rb") as file:
        return file.read(len(_JOURNAL)) == _JOURNAL


def sqlite_tables(
    file: SQLiteFile, sample: int, seed: int, only: Collection[str] | None = None
) -> tuple[list[Table], list[str]]:
    """The tables of a SQLite file as MySQL has them, and what they do not hold.

    Args:
        sample: most rows of a table, drawn at random.
        only: the names of tables; all if left out.
    """
    tables, notes = [], list[str]()
    with file.connect(None) as connection:
        triggers = connection.execute(
            "SELECT tbl_name, name FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN "
            "(SELECT name FROM sqlite_master WHERE type = 'table') ORDER BY rowid"
        ).fetchall()
        names = list(_readable(file.names("table"), connection, notes))
        defined = definitions(connection, names)
        connection.text_factory = bytes
        for made in defined:
            if only is not None and made.name not in only:
                continue
            notes += [note if _says_all(note) else f"{note}, not held" for note in made.notes]
            drawn = Sample(sample, random.Random(f"{seed}-{made.name}"))
            for rows in rows_of(connection, made):
                for row in rows:
                    drawn.add(row)
            declared = declaration(words_of(made.create(whole=True)))
            table = declared.task_table(made.name, drawn, partial(_cells, made, drawn.in_order()), notes)
            if table is not None:
                tables.append(table)
    notes += [
        f"{table}: its trigger {name} is not held"
        for table, name in triggers
        if only is None or table in only
    ]
    if views := file.names("view"):
        notes.append(f"its views are left out: {', '.join(views)}")
    return tables, notes


def _readable(names: Iterable[str], connection: sqlite3.Connection, notes: list[str]) -> Iterator[str]:
    for name in names:
        try:
            connection.execute(f"SELECT * FROM {quote(name)} LIMIT 1").fetchall()
        except sqlite3.Error as error:  # such as of a module that is not here
            notes.append(f"{name}: left out, it cannot be read ({error})")
        else:
            yield name


def _says_all(note: str) -> bool:
    """Return whether a note is of a column that is there, in another form than was declared."""
    return " by its values" in note or "of plain values" in note


def _cells(made: Definition, rows: Iterable[Sequence[Any]], declared: Declared) -> list[Any]:
    """The cells of a column, whose texts are bytes; TaskError for those that no task has."""
    place = [column.name for column in made.columns].index(declared.name)
    if made.columns[place].values.infinite:
        raise TaskError("it holds an infinite number")
    try:
        return [row[place].decode() if isinstance(row[place], bytes) else row[place] for row in rows]
    except UnicodeDecodeError:
        raise TaskError("its texts are no UTF-8") from None
