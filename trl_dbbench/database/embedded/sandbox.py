"""Sandbox for a task in MySQL's dialect, embedded in this process through `mysqlite`."""

from __future__ import annotations

import sqlite3
import time

from trl_dbbench import mysqlite
from trl_dbbench.database.embedded.base import EmbeddedSandbox
from trl_dbbench.database.embedded.mistakes import REFUSED, all_are_short, is_broken, is_shortage, report
from trl_dbbench.database.sandbox import (
    MAX_STATE_ROWS,
    Limits,
    QueryResult,
    State,
    TableState,
    check_rows,
    clip,
    columns_of,
    failure,
    timed_out,
)
from trl_dbbench.errors import TaskError
from trl_dbbench.mysqlite import StatementError
from trl_dbbench.tasks import Table, Task

EMULATION = "The emulation of MySQL"


class SQLiteSandbox(EmbeddedSandbox):
    """Sandbox on a database in memory with a task's tables.

    Raises:
        TaskError: the tables cannot be made as the task describes them.
    """

    _connection: mysqlite.Connection

    def __init__(self, task: Task, limits: Limits) -> None:
        super().__init__(limits)
        try:
            given = [_checked(table) for table in task.tables]
            self._connection = mysqlite.Connection(given, mysqlite.Limits(limits.seconds))
        except StatementError as error:
            raise TaskError(f"Task {task.id!r}: its tables cannot be made: {error.text}") from None
        except sqlite3.Error as error:
            if is_shortage(error):
                raise self._fail(error) from None
            raise TaskError(f"Task {task.id!r}: its tables cannot be made: {error}") from None

    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        self._check_usable()
        start = time.monotonic()
        return self._shown(self._execute(sql, limits or self._limits), start)

    def state(self) -> State:
        self._check_usable()
        try:
            names = self._connection.table_names()
        except (sqlite3.Error, MemoryError) as error:
            raise self._fail(error) from None
        return {name: table for name in names if (table := self._table_state(name)) is not None}

    def _execute(self, sql: str, limits: Limits) -> QueryResult:
        try:
            found = self._connection.execute(sql, lambda rows: clip(rows, limits))
        except StatementError as error:
            if self._connection.rolled_back:
                self.lost = "agent"  # the tables are made again, and earlier statements repeated
            return self._refused(error)
        except Exception as error:
            report(error, EMULATION, sql)
            if self._connection.changed or self._connection.rolled_back or is_broken(error):
                self.lost = "agent"  # what it did before is undone with the tables, which are made again
            return failure(1235, REFUSED, limit="emulation")
        return QueryResult(found.rows, limit=found.limit, affected=found.affected, columns=found.columns)

    def _refused(self, error: StatementError) -> QueryResult:
        """Return the result of a statement that was refused; raise if a probe is short of memory, as well."""
        if error.code == mysqlite.TIME_LIMIT:
            return timed_out(self._limits)
        cause = error.__cause__
        if not is_shortage(cause):
            return failure(error.code, error.text)
        if cause is not None and all_are_short():
            raise self._fail(cause) from None
        full = getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        return failure(error.code, error.text, limit=None if full else "server")

    def _table_state(self, name: str) -> TableState | None:
        """Return the table's state; `None` if it cannot be read."""
        try:
            return TableState(*self._connection.table(name, MAX_STATE_ROWS))
        except Exception as error:
            if is_shortage(error) and all_are_short():
                raise self._fail(error) from None
            report(error, EMULATION, "(the tables' state)")
            return None


def _checked(table: Table) -> mysqlite.Table:
    """Return the table in the form that `mysqlite` takes."""
    check_rows(table)
    columns_of(table)  # raises for an invalid type
    columns = [mysqlite.Column(column.name, column.type) for column in table.columns]
    return mysqlite.Table(table.name, columns, table.rows)
