"""Tables of a server that is there already, as the tables of tasks.

They are only read: `information_schema` says what their columns are, and a sample of their rows is taken. A
task's table has columns with a type, and rows. What else a table has (foreign keys, keys of several columns,
triggers, columns of bytes) it cannot hold; each such thing is a line of `notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
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
    redacted,
    shown,
    text_of,
)
from trl_dbbench.errors import ConfigError, DatabaseError
from trl_dbbench.tasks import Cell, Column, Table
from trl_dbbench.tasks.column_types import Declared, shortest_float, task_column
from trl_dbbench.utils.lookup import unknown
from trl_dbbench.utils.sql import quote

_IN_CODE = "TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"


@dataclass(frozen=True)
class Key:
    """A primary or unique key. A `part` of a text's beginning or an expression makes it no key of columns."""

    name: str
    columns: tuple[str, ...]
    part: bool

    @property
    def is_of_one_column(self) -> bool:
        return len(self.columns) == 1 and not self.part

    @property
    def word(self) -> str:
        return "PRIMARY KEY" if self.name == "PRIMARY" else "UNIQUE"

    def __str__(self) -> str:
        kind = "primary key" if self.name == "PRIMARY" else f"unique key {self.name}"
        of = "of several columns" if len(self.columns) > 1 else "of a part or an expression"
        return f"{kind} {of} ({', '.join(self.columns)})"


class ReadAs(NamedTuple):
    """A lossless way to read a column: SQL for `{}`, its name, and a function from the value to a cell."""

    sql: str
    cell: Callable[[Any], Cell]


class Catalog:
    """Asks about one database; every query is about the whole of it."""

    def __init__(self, connection: Connection, database: str) -> None:
        self._connection = connection
        self._database = database

    def rows(self, table: str, what: str, condition: str, order: str, *values: str) -> list[dict[str, Any]]:
        """Rows of a table of information_schema, of this database."""
        schema = {"TRIGGERS": "TRIGGER_SCHEMA", "ROUTINES": "ROUTINE_SCHEMA", "EVENTS": "EVENT_SCHEMA"}
        schema["CHECK_CONSTRAINTS"] = "CONSTRAINT_SCHEMA"
        found = self._connection.exec_driver_sql(
            f"SELECT {what} FROM information_schema.{table} WHERE {schema.get(table, 'TABLE_SCHEMA')} = %s "
            f"AND {condition} ORDER BY {order}",
            (self._database, *values),
        )
        return [dict(row) for row in found.mappings()]

    def tables(self) -> list[str]:
        """The names of all tables; of views, not."""
        return [row["name"] for row in self.rows("TABLES", "TABLE_NAME AS name", _IN_CODE, "name")]

    def keys(self) -> dict[str, list[Key]]:
        """The primary and unique keys of each table, in the order of their names."""
        rows = self.rows(
            "STATISTICS",
            "TABLE_NAME AS t, INDEX_NAME AS k, COLUMN_NAME AS c, SUB_PART AS s",
            "NON_UNIQUE = 0",
            "t, k, SEQ_IN_INDEX",
        )
        keys: dict[str, list[Key]] = {}
        for (table, name), group in groupby(rows, key=lambda row: (row["t"], row["k"])):
            parts = list(group)
            columns = tuple(row["c"] or "an expression" for row in parts)
            part = any(row["c"] is None or row["s"] is not None for row in parts)
            keys.setdefault(table, []).append(Key(name, columns, part))
        return keys

    def not_held(self, tables: Collection[str], whole: bool) -> Iterator[str]:
        """Return what tasks do not hold of these tables, and of the database if they are all that it has."""
        names = "TABLE_NAME AS t, INDEX_NAME AS k, INDEX_TYPE AS what"
        special = "INDEX_TYPE IN ('FULLTEXT', 'SPATIAL') AND SEQ_IN_INDEX = 1"
        for row in self.rows("STATISTICS", names, special, "t, k"):
            if row["t"] in tables:
                yield f"{row['t']}: its {row['what']} key {row['k']} is not held"
        for table, name, check in self._checks():
            if table in tables:
                yield f"{table}: its CHECK {name} ({check}) is not held"
        for row in self.rows("TRIGGERS", "EVENT_OBJECT_TABLE AS t, TRIGGER_NAME AS k", "TRUE", "t, k"):
            if row["t"] in tables:
                yield f"{row['t']}: its trigger {row['k']} is not held"
        versioned = self.rows("TABLES", "TABLE_NAME AS t", "TABLE_TYPE = 'SYSTEM VERSIONED'", "t")
        for row in versioned:
            if row["t"] in tables:
                yield f"{row['t']}: its system versioning is not held, its rows are those of now"
        parted = self.rows("PARTITIONS", "DISTINCT TABLE_NAME AS t", "PARTITION_NAME IS NOT NULL", "t")
        for row in parted:
            if row["t"] in tables:
                yield f"{row['t']}: its partitions are not held"
        if not whole:
            return
        for table, what, of, condition in (
            ("TABLES", "TABLE_NAME", "views", "TABLE_TYPE LIKE '%%VIEW'"),
            ("TABLES", "TABLE_NAME", "sequences", "TABLE_TYPE = 'SEQUENCE'"),
            ("ROUTINES", "ROUTINE_NAME", "routines", "TRUE"),
            ("EVENTS", "EVENT_NAME", "events", "TRUE"),
        ):
            if found := [row["k"] for row in self.rows(table, f"{what} AS k", condition, "k")]:
                yield f"{self._database}: its {of} are left out: {', '.join(found)}"

    def _checks(self) -> Iterator[tuple[str, str, str]]:
        """The table, name and condition of each CHECK; those are left out by which MariaDB knows a JSON."""
        rows: list[dict[str, Any]] = []
        if "TABLE_NAME" in (known := self._columns_of("CHECK_CONSTRAINTS")):  # MariaDB
            what = "TABLE_NAME AS t, CONSTRAINT_NAME AS k, CHECK_CLAUSE AS c"
            rows = self.rows("CHECK_CONSTRAINTS", what, "TRUE", "t, k")
        elif known:  # MySQL, from 8.0.16 on
            rows = self.rows(
                "TABLE_CONSTRAINTS",
                "TABLE_NAME AS t, CONSTRAINT_NAME AS k, (SELECT CHECK_CLAUSE FROM "
                "information_schema.CHECK_CONSTRAINTS AS c WHERE c.CONSTRAINT_SCHEMA = TABLE_SCHEMA AND "
                "c.CONSTRAINT_NAME = TABLE_CONSTRAINTS.CONSTRAINT_NAME) AS c",
                "CONSTRAINT_TYPE = 'CHECK'",
                "t, k",
            )
        for row in rows:
            condition = text_of(row["c"])
            if not condition.lower().startswith("json_valid("):
                yield row["t"], row["k"], condition[:60]

    def _columns_of(self, table: str) -> set[str]:
        """The columns of a table of the catalog; none if this server does not have it."""
        found = self._connection.exec_driver_sql(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = 'information_schema' AND TABLE_NAME = %s",
            (table,),
        )
        return {row[0] for row in found}


def declared_column(row: Mapping[str, Any], keys: Mapping[str, str]) -> Declared:
    """A column out of its row of information_schema.COLUMNS.

    Args:
        keys: PRIMARY KEY or UNIQUE by the name of the column that is one by itself.
    """
    extra, default = text_of(row["EXTRA"]).lower(), row["COLUMN_DEFAULT"]
    value = None if default is None or text_of(default).upper() == "NULL" else text_of(default)
    computed = "default_generated" in extra
    if value is not None and value[:1] == value[-1:] == "'":  # MariaDB writes an expression, MySQL the value
        value = value[1:-1]
    elif value is not None and "(" in value:
        computed = True
    return Declared(
        row["COLUMN_NAME"],
        text_of(row["COLUMN_TYPE"]),
        nullable=row["IS_NULLABLE"] != "NO",
        default=value,
        computed=computed or (value or "").upper().startswith("CURRENT_TIMESTAMP"),
        auto_increment="auto_increment" in extra,
        generated="generated" in extra.replace("default_generated", ""),
        on_update="on update" in extra,
        key=keys.get(row["COLUMN_NAME"], ""),
    )


def read_as(declared: Declared) -> ReadAs:
    """Return how a column of this type is read: times by their text, FLOAT with all of its 32 bits."""
    if declared.word == "float":
        return ReadAs("({} + 0e0)", lambda value: None if value is None else shortest_float(value))
    if declared.kind in ("date", "time") or declared.word in ("uuid", "inet4", "inet6"):
        return ReadAs("CAST({} AS CHAR)", _cell)
    return ReadAs("{}", _cell)


def _cell(value: Any) -> Cell:
    """A cell as a task holds it: what has no form in JSON as the text that MySQL reads."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.decode() if isinstance(value, bytes) else value


DEFAULT_SAMPLE = 50
"""Rows of a table. Every task holds the rows of its table, and every episode that changes them makes them."""

READ_SECONDS = 600
"""Seconds in which one table is read; its sample is drawn from all of its rows."""

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
    """Read tables of a MySQL or MariaDB server.

    Args:
        url: `mysql+pymysql://user:password@host:port/`, which may name the database.
        database: where the tables are, if the URL does not say it.
        names: only these tables; all of the database if left out, views not.
        sample: most rows of a table, drawn at random; rows that they refer to by foreign keys are
            added.
        seed: of the draw.

    Raises:
        ConfigError: if a name is not there, or `sample` is below 1.
        DatabaseError: if the server cannot be reached or refuses to be read. No text holds the password.
    """
    if sample < 1:
        raise ConfigError(f"the sample is {sample} rows; it must be at least 1.")
    parsed = parse_url(_without_database(url))
    engine = make_engine(parsed, READ_SECONDS)
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
            f"{redacted(url)!r} is not a MySQL or MariaDB server. Write mysql+pymysql://user:password@host:port/."
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
                    if "timed out" in str(error.orig):
                        raise DatabaseError(
                            f"{name}: its rows were not read within {READ_SECONDS} s. Leave the table out: "
                            "name the others by --tables."
                        ) from None
                    raise
                reason = error_text(error) if isinstance(error, DBAPIError) else "its texts are no UTF-8"
                if isinstance(error, DBAPIError) and error_code(error) == TOO_LARGE:
                    reason = f"it has rows of more than {MAX_ROW_BYTES:,} bytes"
                    self._connection.invalidate()  # it hung up; the next statement connects again
                    self._connection.rollback()
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
        """Return rows that earlier rows refer to, then rows drawn at random, in the order of the key."""
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
