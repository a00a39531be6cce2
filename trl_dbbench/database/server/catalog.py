"""The catalog of a server, `information_schema`: its tables, and what is declared of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection

from trl_dbbench.tasks import Cell
from trl_dbbench.tasks.declared import Declared, shortest_float

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
    """How a column is read without a loss: the SQL for `{}`, its name, and what makes a cell of the value."""

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
        """What tasks do not hold of these tables, and of the database if they are all that it has."""
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
    """How a column of this type is read: times by their text, FLOAT with all of its 32 bits."""
    if declared.word == "float":
        return ReadAs("({} + 0e0)", lambda value: None if value is None else shortest_float(value))
    if declared.kind in ("date", "time") or declared.word in ("uuid", "inet4", "inet6"):
        return ReadAs("CAST({} AS CHAR)", _cell)
    return ReadAs("{}", _cell)


def text_of(value: Any) -> str:
    """Some versions of MySQL give texts of the catalog as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _cell(value: Any) -> Cell:
    """A cell as a task holds it: what has no form in JSON as the text that MySQL reads."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.decode() if isinstance(value, bytes) else value
