"""SQLite files as databases of tasks: unchanged for SQLite's dialect, converted for MySQL's."""

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
"""Most bytes of a cell that is read for a prompt."""


class SQLiteFile:
    """The database in a SQLite file, which is read lazily.

    Methods that read it raise TaskError if it cannot be read.
    """

    dialects: tuple[str, ...] = ("sqlite", "mysql")
    """SQL dialects of tasks on this database. The first is the default."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self.digest = digest

    @staticmethod
    def digest_of(path: Path) -> str:
        """Return `file_digest`; raise TaskError if a program still writes to the file."""
        found = file_digest(path)
        if _has_log(path):
            raise TaskError(
                f"the database '{path}' has changes that are not in it yet: its '-wal' or '-journal' file "
                "lies beside it. Close the program that writes to it, or open and close it with sqlite3."
            )
        return found

    @property
    def uri(self) -> str:
        """URI for `sqlite3` that opens the file read-only, on the assumption that nothing changes it."""
        return f"file:{url_quote(str(self.path))}?mode=ro&immutable=1"

    @contextmanager
    def connect(self, max_cell_bytes: int | None = MAX_CELL_BYTES) -> Iterator[sqlite3.Connection]:
        """Open a read-only connection; raise TaskError if the file is not a SQLite database."""
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
        """Return its tables and views without rows, for tasks of this dialect (default: the first)."""
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
                except sqlite3.OperationalError:  # a view of a table that does not exist
                    continue
                tables.append(Table(name, tuple(Column(column, type) for column, type in columns)))
        if not tables:
            raise TaskError(f"the database '{self.path}' has no tables.")
        return tuple(tables)

    def described(self, dialect: str) -> str:
        """Return the CREATE statements of its tables in this dialect, with their first rows."""
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
                # a view may compute forever
                rows = _first_rows(connection, table.name) if type == "table" else None
                parts += [*comment_on(table, told), with_rows(sql, table.name, rows)]
            return "\n".join(parts)

    def steps(self) -> Iterator[Step | str]:
        """Yield the steps that make the database on a server, in order.

        A text among them says what the server's database lacks.
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
        for each in made:  # last, as they refer to other tables
            yield from each.references()
        yield from self._views.values()

    @cached_property
    def definitions(self) -> list[Definition]:
        """Its tables as MySQL is to make them; raises TaskError for infinite numbers."""
        with self.connect(None) as connection:
            made = definitions(connection, self.names("table"))
            check_finite(made)
            return made

    def names(self, kind: str) -> list[str]:
        """Return the names of all tables (`"table"`) or views (`"view"`)."""
        return [name for name, (type, _) in self._made.items() if type == kind]

    @cached_property
    def _made(self) -> dict[str, tuple[str, str]]:
        """Kind (`"table"` or `"view"`) and SQL of each table and view by name, in order of creation."""
        with self.connect() as connection:
            # inner tables of a full-text index, which itself is listed as a table
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
        """The step that makes each view on a server, or the reason why none can, by name."""
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
    except sqlite3.Error:  # a table of a module that is not installed, or a cell that is too large
        return None


_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""First bytes of a SQLite journal that is still valid."""


def _has_log(path: Path) -> bool:
    """Return whether a program is writing to the database, or was killed while it did."""
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
    """Return the tables of a SQLite file as MySQL has them, and notes on what they lose.

    Args:
        sample: most rows of a table, drawn at random.
        only: names of tables. Default: all.
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
        except sqlite3.Error as error:  # such as a table of a module that is not installed
            notes.append(f"{name}: left out, it cannot be read ({error})")
        else:
            yield name


def _says_all(note: str) -> bool:
    """Return whether a note is complete: it is about a column that is kept in another form."""
    return " by its values" in note or "of plain values" in note


def _cells(made: Definition, rows: Iterable[Sequence[Any]], declared: Declared) -> list[Any]:
    """Return the cells of a column, whose texts are bytes; raise TaskError if no task can have them."""
    place = [column.name for column in made.columns].index(declared.name)
    if made.columns[place].values.infinite:
        raise TaskError("it holds an infinite number")
    try:
        return [row[place].decode() if isinstance(row[place], bytes) else row[place] for row in rows]
    except UnicodeDecodeError:
        raise TaskError("its texts are no UTF-8") from None
