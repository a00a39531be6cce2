"""An opened database, which hands out sandboxes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from trl_dbbench.database.dialect import Dialect
from trl_dbbench.database.retry import Outage, RetryingSandbox
from trl_dbbench.database.sandbox import Closing, Limits, Sandbox
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Task

T = TypeVar("T")

DEFAULT_LIMITS = Limits()


class Database(Closing):
    """An opened database: a context manager that removes everything it made at its end.

    `url` is what another process passes to `open_database` to share this server (`"sqlite"` shares nothing:
    each process has its own). `limits` apply to every statement.
    """

    url: str
    dialect: Dialect
    task_dialects: frozenset[str] = frozenset({"mysql"})
    """Dialects of the tasks that can be played here."""
    limits: Limits = DEFAULT_LIMITS
    statements_at_once: int = 32
    """Number of threads in which statements wait for the server (`in_thread`)."""
    patience: float = 300.0
    """Seconds to wait for a server that does not answer, counted from the outage's beginning."""
    restarts: int = 0
    """Times the server was lost, with everything that this database had there."""
    closed: bool = False
    silent: bool = False
    """Whether the server has not answered for some seconds. Asking this waits for nothing."""
    gave_up: str | None = None
    """Reason that a sandbox gave up waiting for the server; `None` as soon as the server answers."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits

    @cached_property
    def outage(self) -> Outage:
        """Return what the sandboxes know together of a server that does not answer."""
        return Outage()

    def sandbox(self, task: Task) -> Sandbox:
        """A fresh private view of the task's tables, which survives failures of the server.

        May be called from several threads at once.

        Raises:
            EnvironmentFault: the database failed, and waiting for it did not help.
            TaskError: the tables cannot be made as the task describes them.
        """
        self.check_dialect(task)
        return RetryingSandbox(self, task)

    def check_dialect(self, task: Task) -> None:
        """Raise TaskError if this database does not have the task's dialect."""
        if task.dialect not in self.task_dialects:
            raise TaskError(
                f"task {task.id!r} has the dialect {task.dialect}, and this database is "
                f"{self.dialect.product}. Set database: {task.dialect} for such tasks."
            )

    @abstractmethod
    def fresh_sandbox(self, task: Task) -> Sandbox:
        """A private view of the task's tables, which breaks when the server fails.

        Raises:
            EnvironmentFault: the database failed.
            TaskError: the tables cannot be made as the task describes them.
        """

    def recover(self) -> bool:
        """Restore what the database lost in a failure. Returns whether the server answers."""
        return True

    def in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Call the function in one of the database's own threads, for the running event loop to await.

        The threads are kept: starting one takes longer than a short statement.
        """
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.statements_at_once, thread_name_prefix="dbbench-statement")

    @abstractmethod
    def describe(self) -> str:
        """The product, its version and where it runs, for a log line."""

    @abstractmethod
    def close(self) -> None:
        """Remove what is left of the sandboxes and gives up the server. May be called repeatedly."""
