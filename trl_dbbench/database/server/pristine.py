"""Databases with the pristine tables of tasks, or of a source that tasks share: made once, then only read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from trl_dbbench.database.sandbox import check_rows, columns_of
from trl_dbbench.database.server.connections import check_packet
from trl_dbbench.database.server.ownership import drop_database
from trl_dbbench.database.server.sources import Loaded, SourceLoader
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Table, Task
from trl_dbbench.tasks.model import TablesKey
from trl_dbbench.utils.sql import quote

MAX_DATABASES = 256
"""Most databases kept; above it, unused ones are dropped. Making one again takes a few milliseconds."""

MAX_SOURCE_BYTES = 4 * 1024**3
"""Most bytes of sources kept; above it, unused ones are dropped. Loading one takes seconds or minutes."""


@dataclass
class PristineDatabase:
    """Database that may still be in the making, with the number of sandboxes that use it."""

    made: Future[Loaded]
    users: int = 0

    @property
    def loaded(self) -> Loaded:
        return self.made.result()


class PristineDatabases:
    """Pristine databases `<owner>_t<n>` of a run, found by the tables in them. Thread-safe."""

    def __init__(self, admin: Engine, loader: SourceLoader, owner: str, numbers: Iterator[int]) -> None:
        self._admin = admin
        self._loader = loader
        self._owner = owner
        self._numbers = numbers
        self._lock = threading.Lock()
        self._kept: dict[TablesKey, PristineDatabase] = {}
        """Databases in the order in which they were last taken, latest last."""
        self._source_bytes = 0
        """Size of the kept sources, in bytes."""
        self._refused: dict[TablesKey, str] = {}
        """Sources that cannot be loaded, with the reason, because trying again takes long."""

    def take(self, task: Task) -> PristineDatabase:
        """Return the database with the task's tables, which is kept at least until it is given back.

        Raises:
            DBAPIError: the database cannot be made.
            TaskError: a table has no columns, or rows of the wrong length; or the source cannot be loaded.
        """
        key = task.tables_key
        with self._lock:
            if key in self._refused:
                raise TaskError(self._refused[key])
            known = self._kept.pop(key, None)
            kept = self._kept[key] = known or PristineDatabase(Future())
            kept.users += 1
        if known is None:
            try:
                made = self._make(task)
                with self._lock:
                    self._source_bytes += made.bytes
                kept.made.set_result(made)
            except BaseException as error:
                with self._lock:
                    del self._kept[key]
                    if task.source is not None and isinstance(error, TaskError):
                        self._refused[key] = str(error)
                kept.made.set_exception(error)
        kept.made.result()
        return kept

    def has(self, key: TablesKey) -> bool:
        """Return whether the database with these tables exists or is being made."""
        with self._lock:
            return key in self._kept

    def give_back(self, kept: PristineDatabase) -> None:
        surplus: list[str] = []
        with self._lock:
            kept.users -= 1
            number, size = len(self._kept), self._source_bytes
            if number > MAX_DATABASES or size > MAX_SOURCE_BYTES:
                for key in [key for key, each in self._kept.items() if not each.users]:
                    loaded = self._kept[key].loaded
                    if number <= MAX_DATABASES and (size <= MAX_SOURCE_BYTES or not loaded.bytes):
                        continue
                    del self._kept[key]
                    surplus.append(loaded.database)
                    number, size = number - 1, size - loaded.bytes
                self._source_bytes = size
        # what cannot be dropped here is removed with everything else when the run ends
        with contextlib.suppress(SQLAlchemyError):
            for name in surplus:
                with self._admin.connect() as admin:
                    drop_database(admin, name)

    def _make(self, task: Task) -> Loaded:
        name = f"{self._owner}_t{next(self._numbers):07d}"
        with self._admin.connect() as admin:
            admin.exec_driver_sql(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        try:
            # a load takes minutes and needs an admin connection at its end: none is held meanwhile, or
            # concurrent loads could hold them all and wait for each other
            if task.source is not None:
                return self._loader.load(task.source, name)
            with self._admin.connect() as admin:
                for table in task.tables:
                    fill(admin, table, name)
            return Loaded(name)
        except BaseException:
            with contextlib.suppress(SQLAlchemyError), self._admin.connect() as admin:  # server may be lost
                drop_database(admin, name)
            raise


def fill(connection: Connection, table: Table, database: str) -> None:
    """Make a table with its rows; raise TaskError if its rows do not match its columns."""
    check_rows(table)
    connection.exec_driver_sql(f"CREATE TABLE `{database}`.{quote(table.name)} ({columns_of(table)})")
    fill_rows(connection, table, database)


def fill_rows(connection: Connection, table: Table, database: str) -> None:
    """Insert rows into an empty table; raise TaskError for a row larger than the server accepts."""
    if table.rows:
        names = ", ".join(quote(column.name) for column in table.columns)
        target = f"`{database}`.{quote(table.name)} ({names})".replace("%", "%%")
        insert = f"INSERT INTO {target} VALUES ({', '.join(['%s'] * len(table.columns))})"
        check_packet(connection, insert, table.rows, f"table {table.name!r} cannot be filled")
        connection.exec_driver_sql(insert, list(table.rows))
