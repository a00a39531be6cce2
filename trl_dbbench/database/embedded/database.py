"""SQLite embedded in this process, which needs no installation.

Tasks in SQLite's dialect run natively. For tasks in MySQL's dialect, statements are translated, and every
sandbox is its own database in memory. docs/mysqlite.md lists what it answers and what it refuses.
"""

from __future__ import annotations

import logging
import sqlite3

from trl_dbbench.database.base import Database
from trl_dbbench.database.dialect import SQLITE
from trl_dbbench.database.embedded.native import NativeSandbox
from trl_dbbench.database.embedded.sandbox import SQLiteSandbox
from trl_dbbench.database.sandbox import Limits, Sandbox
from trl_dbbench.errors import TaskError
from trl_dbbench.mysqlite.collation import unknown_letters
from trl_dbbench.tasks import Task

logger = logging.getLogger(__name__)

MAX_NAMED_LETTERS = 20
"""Most letters listed in a warning."""


class SQLiteDatabase(Database):
    """Database without a server: sandboxes are databases in memory, or read the files of tasks."""

    statements_at_once = 4  # statements compute in this process, where more threads would slow each other
    dialect = SQLITE
    task_dialects = frozenset({"mysql", "sqlite"})

    DIFFERENCES = (
        "It answers as MySQL 9.7 does or refuses, but computed DECIMALs come as plain numbers "
        "(docs/mysqlite.md)."
    )

    def __init__(self, limits: Limits) -> None:
        self.url = "sqlite"
        self.limits = limits
        self._warned: set[str] = set()

    def describe(self) -> str:
        return f"{self.dialect.product} {sqlite3.sqlite_version}, embedded, MySQL's dialect translated"

    def check_dialect(self, task: Task) -> None:
        super().check_dialect(task)
        if task.source is not None and task.dialect == "mysql":
            raise TaskError(
                f"task {task.id!r} is of MySQL's dialect over the database '{task.source.path}', which needs "
                "a server. Set database: docker, local, or the URL of one."
            )

    def fresh_sandbox(self, task: Task) -> Sandbox:
        if task.dialect == "sqlite":
            return NativeSandbox(task, self.limits)
        self._warn_of_letters(task)
        return SQLiteSandbox(task, self.limits)

    def _warn_of_letters(self, task: Task) -> None:
        cells = (cell for table in task.tables for row in table.rows for cell in row)
        new = unknown_letters(cell for cell in cells if isinstance(cell, str)) - self._warned
        if new:
            self._warned |= new
            logger.warning(
                "Task %r has letters that the embedded database compares by their codes, and MySQL may not: "
                "%s. If its questions compare or sort them, set database: docker, local, or a server's URL.",
                task.id,
                " ".join(sorted(new)[:MAX_NAMED_LETTERS]) + " ..." * (len(new) > MAX_NAMED_LETTERS),
            )

    def close(self) -> None:
        self.closed = True
        self._threads.shutdown(wait=False)
