"""What tables, views and columns an embedded database has, and information_schema, which lists them."""

from __future__ import annotations

import sqlite3

from trl_dbbench.mysqlite import tables
from trl_dbbench.mysqlite.errors import unknown_table
from trl_dbbench.mysqlite.guard import Guard
from trl_dbbench.mysqlite.kinds import UNKNOWN, Kind, TableColumns, declared
from trl_dbbench.mysqlite.parse import quote


class Schema:
    """Looks into the database anew each time."""

    def __init__(self, connection: sqlite3.Connection, guard: Guard) -> None:
        self._connection = connection
        self._guard = guard

    def tables(self) -> list[str]:
        query = "SELECT name FROM main.sqlite_master WHERE type = 'table'"
        return [row[0] for row in self._rows(rf"{query} AND name NOT LIKE 'sqlite\_%' ESCAPE '\'")]

    def names(self, kind: str | None = None, schemas: tuple[str, ...] = ("temp", "main")) -> set[str]:
        """Of tables and views, or only one kind."""
        return {
            name
            for schema in schemas
            for name, found in self._rows(f"SELECT name, type FROM {schema}.sqlite_master")
            if found in ((kind,) if kind else ("table", "view"))
            and not name.startswith(("sqlite_", "information_schema."))
        }

    def table_name(self, name: str) -> str:
        """The name, if it is that of a table or view."""
        if name not in self.names():
            raise unknown_table(name)
        return name

    def described(self, name: str) -> list[tuple]:
        """The columns as DESCRIBE lists them: name, type, NULL allowed, key, default, extra."""
        return [tables.described(row) for row in self._info(self.table_name(name))]

    def columns(self, name: str) -> TableColumns:
        """Of a table or view."""
        info = self._info(name)
        columns = tuple((row[1], declared(row[2])) for row in info)
        return TableColumns(name, columns, tuple(row[1] for row in info if row[5]))

    def floats(self, name: str) -> list[Kind]:
        """The kinds of a table's columns that show fewer digits than they hold; of others, unknown ones."""
        kinds = [declared(row[2]) for row in self._info(name, "main.")]
        return [kind if kind.is_single or kind.name == "fixed" else UNKNOWN for kind in kinds]

    def offer_catalog(self, wanted: frozenset[str]) -> None:
        """Makes these information_schema tables, with what they say now."""
        connection = self._connection
        with self._guard.own():
            names = sorted(self.tables())
            for catalog in wanted:
                headers, rows = tables.CATALOG[catalog](names, self.described)
                target = quote(f"information_schema.{catalog}")
                connection.execute(f"DROP TABLE IF EXISTS temp.{target}")
                connection.execute(f"CREATE TEMP TABLE {target} ({', '.join(headers)})")
                if rows:
                    places = ", ".join("?" * len(headers))
                    connection.executemany(f"INSERT INTO temp.{target} VALUES ({places})", rows)

    def _info(self, name: str, schema: str = "") -> list[tuple]:
        with self._guard.own():
            return self._rows(f"PRAGMA {schema}table_info({quote(name)})")

    def _rows(self, sql: str) -> list[tuple]:
        return self._connection.execute(sql).fetchall()
