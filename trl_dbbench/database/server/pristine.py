"""The tables of tasks, each made once on a server and then only read."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from trl_dbbench.database.sandbox import check_rows, column_type
from trl_dbbench.database.server import accounts
from trl_dbbench.tasks import Table

KEPT = 256
"""Databases that stay when nobody uses them; making one again takes some milliseconds."""


@dataclass
class Kept:
    """A database with its number of users."""

    made: Future[str]
    users: int = 0
    used: int = 0
    """When it was taken last, in takes."""

    @property
    def name(self) -> str:
        return self.made.result()


class Pristine:
    """Databases `<owner>_t<n>`, by the tables in them. Thread-safe."""

    def __init__(self, admin: Engine, owner: str, numbers: Iterator[int]) -> None:
        self._admin = admin
        self._owner = owner
        self._numbers = numbers
        self._takes = itertools.count()
        self._lock = threading.Lock()
        self._kept: dict[tuple[Table, ...], Kept] = {}

    def take(self, tables: tuple[Table, ...]) -> Kept:
        """The database with these tables, which stays at least until `give_back`.

        Raises:
            DBAPIError: it cannot be made.
            TaskError: the tables are none.
        """
        with self._lock:
            kept = self._kept.get(tables)  # looked up once only: it hashes every cell
            mine = kept is None
            if kept is None:
                kept = self._kept[tables] = Kept(Future())
            kept.users += 1
            kept.used = next(self._takes)
        if mine:
            try:
                kept.made.set_result(self._make(tables))
            except BaseException as error:
                with self._lock:
                    del self._kept[tables]
                kept.made.set_exception(error)
        kept.made.result()
        return kept

    def give_back(self, kept: Kept) -> None:
        surplus: list[str] = []
        with self._lock:
            kept.users -= 1
            if len(self._kept) > KEPT:
                unused = [tables for tables, each in self._kept.items() if not each.users]
                unused.sort(key=lambda tables: self._kept[tables].used)
                surplus = [self._kept.pop(tables).name for tables in unused[: len(self._kept) - KEPT]]
        # what fails here is removed with all else when the run ends
        with contextlib.suppress(SQLAlchemyError):
            for name in surplus:
                with self._admin.connect() as admin:
                    accounts.drop_database(admin, name)

    def _make(self, tables: tuple[Table, ...]) -> str:
        for table in tables:
            check_rows(table)
        name = f"{self._owner}_t{next(self._numbers)}"
        with self._admin.connect() as admin:
            admin.exec_driver_sql(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
            try:
                for table in tables:
                    fill(admin, table, name)
            except BaseException:
                with contextlib.suppress(SQLAlchemyError):  # the connection itself may be lost
                    accounts.drop_database(admin, name)
                raise
        return name


def fill(connection: Connection, table: Table, database: str | None = None) -> None:
    """Makes a table with its rows, in `database` or in the one in use."""
    target = f"`{database}`.{quote(table.name)}" if database else quote(table.name)
    columns = ", ".join(f"{quote(column.name)} {column_type(table, column)}" for column in table.columns)
    connection.exec_driver_sql(f"CREATE TABLE {target} ({columns})")
    if table.rows:
        names = ", ".join(quote(column.name) for column in table.columns).replace("%", "%%")
        places = ", ".join(["%s"] * len(table.columns))
        target = target.replace("%", "%%")
        connection.exec_driver_sql(f"INSERT INTO {target} ({names}) VALUES ({places})", list(table.rows))


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
