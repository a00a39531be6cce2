"""Tables of an existing server, read as the tables of tasks.

The server is only read: SHOW CREATE TABLE describes the columns, and a sample of the rows is taken. A task's
table holds typed columns and rows, but nothing else (foreign keys, keys of several columns, triggers, columns
of bytes); everything left out gets a line in `notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from trl_dbbench.database.error_numbers import TOO_LARGE
from trl_dbbench.database.server.connections import (
    MAX_ROW_BYTES,
    connect_advice,
    error_code,
    error_text,
    make_engine,
    parse_url,
    shown,
    text_of,
)
from trl_dbbench.errors import ConfigError, DatabaseError
from trl_dbbench.tasks import Cell, Column, Table
from trl_dbbench.tasks.column_types import Declared, shortest_float
from trl_dbbench.tasks.sources.base import SYSTEM
from trl_dbbench.tasks.sources.declaration import Declaration, Reference, declaration
from trl_dbbench.tasks.sources.dump_text import words_of
from trl_dbbench.utils.lookup import unknown
from trl_dbbench.utils.sql import quote


class ReadAs(NamedTuple):
    """Lossless way to read a column: SQL with `{}` for its name, and a function from its value to a cell."""

    sql: str
    cell: Callable[[Any], Cell]


def read_as(declared: Declared) -> ReadAs:
    """Return how to read a column of this type: dates and times as text, FLOAT with all of its 32 bits."""
    if declared.word == "float":
        return ReadAs("({} + 0e0)", lambda value: None if value is None else shortest_float(value))
    if declared.kind in ("date", "time") or declared.word in ("uuid", "inet4", "inet6"):
        return ReadAs("CAST({} AS CHAR)", _cell)
    return ReadAs("{}", _cell)


def _cell(value: Any) -> Cell:
    """Return a cell as tasks hold it: values without a JSON type become text that MySQL can read."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.decode() if isinstance(value, bytes) else value


DEFAULT_SAMPLE = 50
"""Most rows sampled per table. Every task stores its table's rows, and every episode that changes them
inserts them again."""

READ_SECONDS = 600
"""Seconds that reading one table may take; its sample is drawn from all of its rows."""


@dataclass
class ServerTables:
    """Tables, with notes on what they do not hold of the originals."""

    tables: list[Table]
    notes: list[str]


@dataclass(frozen=True)
class _Reference(Reference):
    """Foreign key, with the table that has it."""

    table: str = ""


def read_tables(
    url: str,
    database: str | None = None,
    names: Sequence[str] | None = None,
    sample: int = DEFAULT_SAMPLE,
    seed: int = 0,
) -> ServerTables:
    """Read tables of a MySQL or MariaDB server.

    Args:
        url: `mysql+pymysql://user:password@host:port/`, which may name the database.
        database: database of the tables, if the URL does not name it.
        names: tables to read; by default all tables of the database, without views.
        sample: most rows of a table, drawn at random; rows that other sampled rows refer to by foreign keys
            are always included.
        seed: seed of the random draw.

    Raises:
        ConfigError: if a name does not exist, or `sample` is below 1.
        DatabaseError: if the server cannot be reached or refuses to be read. Messages omit the password.
    """
    if sample < 1:
        raise ConfigError(f"the sample is {sample} rows; it must be at least 1.")
    parsed = parse_url(url)
    engine = make_engine(parsed, READ_SECONDS)
    try:
        with engine.connect() as connection:
            place = _database(connection, database or make_url(url).database or None)
            return _Reader(connection, place, sample, seed).read(names)
    except SQLAlchemyError as error:
        lost = isinstance(error, DBAPIError) and (error.connection_invalidated or error.statement is None)
        reason = connect_advice(error) if lost else error_text(error)
        raise DatabaseError(f"{shown(parsed)}: {reason}") from None
    finally:
        engine.dispose()


def _database(connection: Connection, name: str | None) -> str:
    found = [row[0] for row in connection.exec_driver_sql("SHOW DATABASES") if row[0].lower() not in SYSTEM]
    if name is None:
        raise ConfigError(f"say which database to read, with --database; there are: {', '.join(found)}.")
    if name not in found:
        raise ConfigError(f"{unknown('database', name, found)}.")
    return name


class _Reader:
    """Reader of one database."""

    def __init__(self, connection: Connection, database: str, sample: int, seed: int):
        self._connection = connection
        self._made: dict[str, Declaration] = {}
        self._read_as: dict[tuple[str, str], ReadAs] = {}
        self._database = database
        self._sample = sample
        self._seed = seed
        self.notes: list[str] = []

    def read(self, names: Sequence[str] | None) -> ServerTables:
        found = self._connection.exec_driver_sql(f"SHOW FULL TABLES FROM {quote(self._database)}")
        kinds = {text_of(name): text_of(kind) for name, kind in found}
        there = [name for name, kind in kinds.items() if kind in ("BASE TABLE", "SYSTEM VERSIONED")]
        for name in names or ():
            if name not in there:
                raise ConfigError(f"{unknown(f'table of {self._database}', name, there)}.")
        chosen = list(dict.fromkeys(names or there))
        if not chosen:
            raise ConfigError(f"the database {self._database} has no tables, only views or nothing.")
        columns = {name: held for name in chosen if (held := self._columns(name))}
        references = list(self._references(columns))
        rows: dict[str, list[dict[str, Cell]]] = {}
        for name in _referring_first(list(columns), references):
            try:
                rows[name] = self._rows(name, columns[name], references, rows)
            except (DBAPIError, UnicodeDecodeError) as error:
                if isinstance(error, DBAPIError) and error.connection_invalidated:
                    if "timed out" in str(error.orig):
                        raise DatabaseError(
                            f"{name}: its rows were not read within {READ_SECONDS} s. Leave the table out: "
                            "name the others by --tables."
                        ) from None
                    raise
                reason = error_text(error) if isinstance(error, DBAPIError) else "its texts are no UTF-8"
                if isinstance(error, DBAPIError) and error_code(error) == TOO_LARGE:
                    reason = f"it has rows of more than {MAX_ROW_BYTES:,} bytes"
                    self._connection.invalidate()  # it has hung up; the next statement reconnects
                    self._connection.rollback()
                self.notes.append(f"{name}: left out, it cannot be read ({reason})")
        chosen = [name for name in chosen if name in rows]
        self._note_dangling([each for each in references if each.table in rows and each.target in rows], rows)
        self.notes += self._not_held(chosen, kinds if names is None else None)
        tables = [
            Table(name, tuple(columns[name]), tuple(tuple(row.values()) for row in rows[name]))
            for name in chosen
        ]
        return ServerTables(tables, self.notes)

    def _columns(self, table: str) -> list[Column]:
        try:
            made = self._connection.exec_driver_sql(f"SHOW CREATE TABLE {self._place(table)}").one()
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            self.notes.append(f"{table}: left out, it cannot be read ({error_text(error)})")
            return []
        self._made[table] = declaration(words_of(text_of(made[1])))
        held = self._made[table].task_columns(table, self.notes)
        self._read_as |= {(table, column.name): read_as(declared) for declared, column in held}
        return [column for _, column in held]

    def _references(self, columns: Mapping[str, Sequence[Column]]) -> Iterator[_Reference]:
        """Yield the foreign keys between tables being read of which all columns are held."""
        names = {table: {column.name for column in held} for table, held in columns.items()}
        for table in columns:
            for each in self._made[table].references:
                said = f"{table}.{', '.join(each.columns)}: the foreign key to {each.target} is not held"
                target = names.get(each.target, set())
                if names[table].issuperset(each.columns) and target.issuperset(each.target_columns):
                    said += ", but the rows that it names are there"
                    yield _Reference(**vars(each), table=table)
                self.notes.append(said)

    def _not_held(self, tables: Sequence[str], kinds: Mapping[str, str] | None) -> Iterator[str]:
        """Yield notes on triggers, views and other objects that tasks cannot hold.

        Args:
            kinds: the kind of each table, view or sequence by name; `None` if only some were requested.
        """
        for table, name in self._catalog("EVENT_OBJECT_TABLE, TRIGGER_NAME", "TRIGGER"):
            if table in tables:
                yield f"{table}: its trigger {name} is not held"
        if kinds is None:
            return
        left_out = {
            "views": [name for name, kind in kinds.items() if kind.endswith("VIEW")],
            "sequences": [name for name, kind in kinds.items() if kind == "SEQUENCE"],
            "routines": [name for (name,) in self._catalog("ROUTINE_NAME", "ROUTINE")],
            "events": [name for (name,) in self._catalog("EVENT_NAME", "EVENT")],
        }
        for what, found in left_out.items():
            if found:
                yield f"{self._database}: its {what} are left out: {', '.join(found)}"

    def _catalog(self, what: str, of: str) -> list[tuple[str, ...]]:
        query = f"SELECT {what} FROM information_schema.{of}S WHERE {of}_SCHEMA = %s ORDER BY {of}_NAME"
        found = self._connection.exec_driver_sql(query, (self._database,))
        return [tuple(map(text_of, row)) for row in found]

    # --- rows -------------------------------------------------------------------------------------

    def _rows(
        self,
        table: str,
        columns: Sequence[Column],
        references: Sequence[_Reference],
        taken: Mapping[str, Sequence[Mapping[str, Cell]]],
    ) -> list[dict[str, Cell]]:
        """Return the rows that rows in `taken` refer to, and rows drawn at random, in primary-key order."""
        names = [column.name for column in columns]
        key = tuple(name for name in self._made[table].primary if name in names)
        named: dict[Any, dict[str, Cell]] = {}
        for reference in references:
            if reference.target == table and reference.table in taken:
                here = {tuple(row[name] for name in reference.columns) for row in taken[reference.table]}
                wanted = sorted((each for each in here if None not in each), key=repr)
                named |= self._named_by(table, names, reference.target_columns, wanted)
        drawn = self._drawn(table, names, key, self._sample + len(named))
        others = [row for row in drawn if tuple(row.values()) not in named]
        rows = [*named.values(), *others[: max(self._sample - len(named), 0)]]
        return sorted(rows, key=lambda row: [_sortable(row[name]) for name in key or names])

    def _named_by(
        self, table: str, names: Sequence[str], columns: Sequence[str], values: Sequence[tuple]
    ) -> dict[Any, dict[str, Cell]]:
        """Return the distinct rows in which these columns have one of these values, keyed by their cells."""
        if not values:
            return {}
        places = ", ".join(f"({', '.join(['%s'] * len(columns))})" for _ in values)
        left = f"({', '.join(map(quote, columns))})".replace("%", "%%")
        select = self._select(table, names).replace("%", "%%")
        flat = tuple(cell for value in values for cell in value)
        rows = self._connection.exec_driver_sql(f"{select} WHERE {left} IN ({places})", flat)
        found = (self._cells(table, names, row) for row in rows)
        return {tuple(row.values()): row for row in found}

    def _drawn(
        self, table: str, names: Sequence[str], key: Sequence[str], number: int
    ) -> list[dict[str, Cell]]:
        """Return the rows with the smallest hashes: a sample that depends only on the rows and the seed."""
        chosen = ", ".join(map(quote, key or names))
        order = f"SHA2(CONCAT_WS(',', {self._seed}, {chosen}), 256), {chosen}"
        rows = self._connection.exec_driver_sql(
            f"{self._select(table, names)} ORDER BY {order} LIMIT {number}"
        )
        return [self._cells(table, names, row) for row in rows]

    def _cells(self, table: str, names: Sequence[str], row: Sequence[Any]) -> dict[str, Cell]:
        read = [self._read_as[table, name].cell for name in names]
        return {name: each(cell) for name, each, cell in zip(names, read, row, strict=True)}

    def _select(self, table: str, names: Sequence[str]) -> str:
        selected = [self._read_as[table, name].sql.format(quote(name)) for name in names]
        return f"SELECT {', '.join(selected)} FROM {self._place(table)}"

    def _place(self, table: str) -> str:
        return f"{quote(self._database)}.{quote(table)}"

    def _note_dangling(
        self, references: Sequence[_Reference], rows: Mapping[str, Sequence[Mapping[str, Cell]]]
    ) -> None:
        for reference in references:
            there = {tuple(row[name] for name in reference.target_columns) for row in rows[reference.target]}
            here = {tuple(row[name] for name in reference.columns) for row in rows[reference.table]}
            if missing := [each for each in here if None not in each and each not in there]:
                self.notes.append(
                    f"{reference.table}.{', '.join(reference.columns)}: {len(missing)} of its values name "
                    f"rows of {reference.target} that are not in the sample"
                )


def _referring_first(names: Sequence[str], references: Sequence[_Reference]) -> list[str]:
    """Return the tables ordered so that a table comes after those that refer to it, except in cycles."""
    order: list[str] = []
    while left := [name for name in names if name not in order]:
        held = {each.target for each in references if each.table in left and each.table != each.target}
        order += [name for name in left if name not in held] or left[:1]
    return order


def _sortable(cell: Cell) -> tuple:
    return (cell is not None, not isinstance(cell, str), cell if cell is not None else 0)
