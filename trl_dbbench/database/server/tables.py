"""Tables of a server that is there already, as the tables of tasks.

They are only read: `information_schema` says what their columns are, and a sample of their rows is taken. A
task's table has columns with a type, and rows. What else a table has (foreign keys, keys of several columns,
triggers, columns of bytes) it cannot hold; each such thing is a line of `notes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from trl_dbbench.database.server.catalog import Catalog, Key, ReadAs, declared_column, read_as
from trl_dbbench.database.server.connections import (
    ADMIN_SECONDS,
    connect_advice,
    error_text,
    make_engine,
    parse_url,
    redacted,
    shown,
)
from trl_dbbench.errors import ConfigError, DatabaseError
from trl_dbbench.tasks import Cell, Column, Table
from trl_dbbench.tasks.declared import task_column
from trl_dbbench.utils.lookup import unknown
from trl_dbbench.utils.sql import quote

DEFAULT_SAMPLE = 50
"""Rows of a table. Every task holds the rows of its table, and every episode that changes them makes them."""

_OWN = ("information_schema", "mysql", "performance_schema", "sys")


@dataclass
class ServerTables:
    """Tables, the foreign keys between them, and what of the originals they do not hold."""

    tables: list[Table]
    references: list[Reference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """A foreign key: these columns of `table` name rows of `target`."""

    table: str
    columns: tuple[str, ...]
    target: str
    target_columns: tuple[str, ...]


def read_tables(
    url: str,
    database: str | None = None,
    names: Sequence[str] | None = None,
    sample: int = DEFAULT_SAMPLE,
    seed: int = 0,
) -> ServerTables:
    """Reads tables of a MySQL or MariaDB server.

    Args:
        url: `mysql+pymysql://user:password@host:port/`, which may name the database.
        database: where the tables are, if the URL does not say it.
        names: only these tables; all of the database if left out, views not.
        sample: so many rows of a table at most, drawn at random, and beside them those that they refer to by
            foreign keys.
        seed: of the draw.

    Raises:
        ConfigError: if a name is not there, or `sample` is below 1.
        DatabaseError: if the server cannot be reached or refuses to be read. No text holds the password.
    """
    if sample < 1:
        raise ConfigError(f"the sample is {sample} rows; it must be at least 1.")
    parsed = parse_url(_without_database(url))
    engine = make_engine(parsed, ADMIN_SECONDS)
    try:
        with engine.connect() as connection:
            place = _database(connection, database or make_url(url).database or None)
            return _Reader(connection, place, sample, seed).read(names)
    except DBAPIError as error:
        reason = connect_advice(error) if error.connection_invalidated or error.statement is None else None
        raise DatabaseError(f"{shown(parsed)}: {reason or error_text(error)}") from None
    except SQLAlchemyError as error:
        raise DatabaseError(f"{shown(parsed)}: {error_text(error)}") from None
    finally:
        engine.dispose()


def _without_database(url: str) -> str:
    try:
        parsed = make_url(url)
    except Exception:  # parse_url says what is wrong with it
        return url
    if not parsed.drivername.startswith(("mysql", "mariadb")):
        raise DatabaseError(
            f"{redacted(url)!r} is no MySQL or MariaDB server. Write mysql+pymysql://user:password@host:port/."
        )
    return parsed.set(database=None).render_as_string(hide_password=False)


def _database(connection: Connection, name: str | None) -> str:
    found = [row[0] for row in connection.exec_driver_sql("SHOW DATABASES") if row[0].lower() not in _OWN]
    if name is None:
        raise ConfigError(f"say which database to read, with --database; there are: {', '.join(found)}.")
    if name not in found:
        raise ConfigError(f"{unknown('database', name, found)}.")
    return name


class _Reader:
    """Reads one database. Every query of the catalog is about the whole of it."""

    def __init__(self, connection: Connection, database: str, sample: int, seed: int):
        self._connection = connection
        self._catalog = Catalog(connection, database)
        self._keys: dict[str, list[Key]] = {}
        self._read_as: dict[tuple[str, str], ReadAs] = {}
        self._database = database
        self._sample = sample
        self._seed = seed
        self.notes: list[str] = []

    def read(self, names: Sequence[str] | None) -> ServerTables:
        there = self._catalog.tables()
        for name in names or ():
            if name not in there:
                raise ConfigError(f"{unknown(f'table of {self._database}', name, there)}.")
        chosen = list(dict.fromkeys(names or there))
        if not chosen:
            raise ConfigError(f"the database {self._database} has no tables, only views or nothing.")
        self._keys = self._catalog.keys()
        columns = {name: self._columns(name) for name in chosen}
        for name in [name for name in chosen if not columns[name]]:
            self.notes.append(f"{name}: left out, none of its columns can be held")
        chosen = [name for name in chosen if columns[name]]
        references = list(self._references(columns))
        rows: dict[str, list[dict[str, Cell]]] = {}
        for name in _referring_first(chosen, references):
            try:
                rows[name] = self._rows(name, columns[name], references, rows)
            except (DBAPIError, UnicodeDecodeError) as error:
                if isinstance(error, DBAPIError) and error.connection_invalidated:
                    raise
                reason = error_text(error) if isinstance(error, DBAPIError) else "its texts are no UTF-8"
                self.notes.append(f"{name}: left out, it cannot be read ({reason})")
        chosen = [name for name in chosen if name in rows]
        references = [each for each in references if each.table in rows and each.target in rows]
        self._note_dangling(references, rows)
        self.notes += self._catalog.not_held(chosen, whole=names is None)
        tables = [
            Table(name, tuple(columns[name]), tuple(tuple(row.values()) for row in rows[name]))
            for name in chosen
        ]
        return ServerTables(tables, references, self.notes)

    # --- columns and keys -------------------------------------------------------------------------

    def _columns(self, table: str) -> list[Column]:
        keys = self._keys.get(table, ())
        alone = {key.columns[0]: key.word for key in reversed(keys) if key.is_of_one_column}
        kept = []
        for row in self._catalog.rows("COLUMNS", "*", "TABLE_NAME = %s", "ORDINAL_POSITION", table):
            declared = declared_column(row, alone)
            column, notes = task_column(declared)
            self.notes += [f"{table}.{declared.name}: {note}" for note in notes]
            if column is not None:
                kept.append(column)
                self._read_as[table, column.name] = read_as(declared)
        self.notes += [f"{table}: its {key} is not held" for key in keys if not key.is_of_one_column]
        return kept

    def _references(self, columns: Mapping[str, Sequence[Column]]) -> Iterator[Reference]:
        """The foreign keys between the tables that are read, whose columns are all held."""
        rows = self._catalog.rows(
            "KEY_COLUMN_USAGE",
            "TABLE_NAME AS t, CONSTRAINT_NAME AS k, COLUMN_NAME AS c, REFERENCED_TABLE_NAME AS u, "
            "REFERENCED_COLUMN_NAME AS d",
            "REFERENCED_TABLE_NAME IS NOT NULL AND REFERENCED_TABLE_SCHEMA = TABLE_SCHEMA",
            "t, k, ORDINAL_POSITION",
        )
        for (table, _), group in groupby(rows, key=lambda row: (row["t"], row["k"])):
            if table not in columns:
                continue
            parts = list(group)
            here, there = tuple(part["c"] for part in parts), tuple(part["d"] for part in parts)
            target = parts[0]["u"]
            said = f"{', '.join(here)}: the foreign key to {target} is not held"
            held = (
                {column.name for column in columns[table]},
                {column.name for column in columns.get(target, ())},
            )
            if target in columns and held[0] >= set(here) and held[1] >= set(there):
                said += ", but the rows that it names are there"
                yield Reference(table, here, target, there)
            self.notes.append(f"{table}.{said}")

    # --- rows -------------------------------------------------------------------------------------

    def _rows(
        self,
        table: str,
        columns: Sequence[Column],
        references: Sequence[Reference],
        taken: Mapping[str, Sequence[Mapping[str, Cell]]],
    ) -> list[dict[str, Cell]]:
        """Those that rows taken before refer to, then others at random, in the order of the key."""
        names = [column.name for column in columns]
        key = next((each.columns for each in self._keys.get(table, ()) if each.name == "PRIMARY"), ())
        key = tuple(name for name in key if name in names)
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
        """The rows in which these columns have one of these values; by their cells, which then occur once."""
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
        """The rows with the least checksums: a sample that depends on nothing but the rows and the seed."""
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
        return f"SELECT {', '.join(selected)} FROM {quote(self._database)}.{quote(table)}"

    def _note_dangling(
        self, references: Sequence[Reference], rows: Mapping[str, Sequence[Mapping[str, Cell]]]
    ) -> None:
        for reference in references:
            there = {tuple(row[name] for name in reference.target_columns) for row in rows[reference.target]}
            here = {tuple(row[name] for name in reference.columns) for row in rows[reference.table]}
            if missing := [each for each in here if None not in each and each not in there]:
                self.notes.append(
                    f"{reference.table}.{', '.join(reference.columns)}: {len(missing)} of its values name "
                    f"rows of {reference.target} that are not in the sample"
                )


def _referring_first(names: Sequence[str], references: Sequence[Reference]) -> list[str]:
    """The tables in an order in which those that refer to a table stand before it; circles stay."""
    left, order = list(names), []
    while left:
        free = [
            name
            for name in left
            if not any(
                each.target == name and each.table in left and each.table != name for each in references
            )
        ]
        order += free or left[:1]
        left = [name for name in left if name not in order]
    return order


def _sortable(cell: Cell) -> tuple:
    return (cell is not None, not isinstance(cell, str), cell if cell is not None else 0)
