"""The tables of tasks, each made once on a server and then only read."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from concurrent.futures import Future

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from ..tasks import Table
from . import accounts
from .sandbox import column_type

KEPT = 256
"""Databases that stay when nobody uses them; making one again takes some milliseconds."""


class Pristine:
    """Databases `<owner>_t<n>`, by the tables in them. Thread-safe."""

    def __init__(self, admin: Engine, owner: str) -> None:
        self._admin = admin
        self._owner = owner
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[Table, ...], Future[str]] = OrderedDict()  # least recently used first
        self._users: dict[tuple[Table, ...], int] = {}

    def take(self, tables: tuple[Table, ...]) -> str:
        """The name of the database with these tables, which stays at least until `give_back`.

        Raises:
            DBAPIError: it cannot be made.
        """
        with self._lock:
            made = self._made.get(tables)
            mine = made is None
            if made is None:
                made = self._made[tables] = Future()
            self._made.move_to_end(tables)
            self._users[tables] = self._users.get(tables, 0) + 1
        if mine:
            try:
                made.set_result(self._make(tables))
            except BaseException as error:
                with self._lock:
                    del self._made[tables]
                made.set_exception(error)
        try:
            return made.result()
        except BaseException:
            self.give_back(tables)
            raise

    def give_back(self, tables: tuple[Table, ...]) -> None:
        with self._lock:
            self._users[tables] -= 1
            if not self._users[tables]:
                del self._users[tables]
            surplus = len(self._made) - KEPT
            unused = [each for each in self._made if each not in self._users] if surplus > 0 else []
            names = [self._made.pop(each).result() for each in unused[:surplus]]
        # what fails here is removed with all else when the run ends
        with contextlib.suppress(SQLAlchemyError):
            for name in names:
                with self._admin.connect() as admin:
                    accounts.drop_database(admin, name)

    def _make(self, tables: tuple[Table, ...]) -> str:
        name = f"{self._owner}_t{next(self._numbers)}"
        with self._admin.connect() as admin:
            admin.exec_driver_sql(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
            try:
                for table in tables:
                    fill(admin, table, name)
            except BaseException:
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
