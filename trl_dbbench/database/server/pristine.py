"""Databases with the tables of tasks: each is made once on a server, and then only read."""

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

from trl_dbbench.database.sandbox import check_rows, columns_of
from trl_dbbench.database.server.ownership import drop_database
from trl_dbbench.sql import quote
from trl_dbbench.tasks import Table
from trl_dbbench.tasks.table import content_key

MAX_DATABASES = 256
"""When there are more, those that nobody uses are dropped; making one again takes a few milliseconds."""


@dataclass
class PristineDatabase:
    """A database, perhaps still being made, and how many sandboxes use it."""

    made: Future[str]
    users: int = 0
    last_take: int = 0
    """The number of the take that was the last to return it."""

    @property
    def name(self) -> str:
        return self.made.result()


class PristineDatabases:
    """The databases `<owner>_t<n>` of a run, found by the tables in them. Thread-safe."""

    def __init__(self, admin: Engine, owner: str, numbers: Iterator[int]) -> None:
        self._admin = admin
        self._owner = owner
        self._numbers = numbers
        self._takes = itertools.count()
        self._lock = threading.Lock()
        self._kept: dict[bytes, PristineDatabase] = {}

    def take(self, tables: tuple[Table, ...]) -> PristineDatabase:
        """The database with these tables, which is kept at least until it is given back.

        Raises:
            DBAPIError: it cannot be made.
            TaskError: a table has no columns, or rows of the wrong length.
        """
        key = content_key(tables)
        with self._lock:
            kept = self._kept.get(key)
            mine = kept is None
            if kept is None:
                kept = self._kept[key] = PristineDatabase(Future())
            kept.users += 1
            kept.last_take = next(self._takes)
        if mine:
            try:
                kept.made.set_result(self._make(tables))
            except BaseException as error:
                with self._lock:
                    del self._kept[key]
                kept.made.set_exception(error)
        kept.made.result()
        return kept

    def give_back(self, kept: PristineDatabase) -> None:
        surplus: list[str] = []
        with self._lock:
            kept.users -= 1
            if len(self._kept) > MAX_DATABASES:
                unused = [key for key, each in self._kept.items() if not each.users]
                unused.sort(key=lambda key: self._kept[key].last_take)
                surplus = [self._kept.pop(key).name for key in unused[: len(self._kept) - MAX_DATABASES]]
        # what cannot be dropped here is removed with everything else when the run ends
        with contextlib.suppress(SQLAlchemyError):
            for name in surplus:
                with self._admin.connect() as admin:
                    drop_database(admin, name)

    def _make(self, tables: tuple[Table, ...]) -> str:
        for table in tables:
            check_rows(table)
        name = f"{self._owner}_t{next(self._numbers):07d}"
        with self._admin.connect() as admin:
            admin.exec_driver_sql(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
            try:
                for table in tables:
                    fill(admin, table, name)
            except BaseException:
                with contextlib.suppress(SQLAlchemyError):  # the connection may be lost
                    drop_database(admin, name)
                raise
        return name


def fill(connection: Connection, table: Table, database: str | None = None) -> None:
    """Makes a table with its rows, in `database` or in the database in use."""
    target = f"`{database}`.{quote(table.name)}" if database else quote(table.name)
    connection.exec_driver_sql(f"CREATE TABLE {target} ({columns_of(table)})")
    if table.rows:
        names = ", ".join(quote(column.name) for column in table.columns).replace("%", "%%")
        places = ", ".join(["%s"] * len(table.columns))
        target = target.replace("%", "%%")
        connection.exec_driver_sql(f"INSERT INTO {target} ({names}) VALUES ({places})", list(table.rows))
