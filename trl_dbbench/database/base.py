"""An opened database, whose sandboxes survive server failures by repeating what their episodes did.

```
the environment makes a statement fail -> wait for the server -> fresh sandbox
                                       -> repeat the episode's earlier changes -> repeat the statement
```

- An error is blamed on the environment only if the server failed for others at the same time: for our own
  statements (`Sandbox.failing`), or as a whole. All other errors are the agent's, because an agent can raise
  any error with SIGNAL and can end its own connection.
- If the server does not answer or takes no writes, sandboxes wait for up to `Database.patience` seconds; then
  the episode ends without a reward. All sandboxes wait together: the seconds count from the start of the
  outage.
- If an error looks like the environment's (`QueryResult.doubtful`) although the server works, the statement
  is tried again on fresh sandboxes, as the failure may have just ended. If the error recurs, it is the
  agent's, which observes it.
- A statement is itself at fault if it loses its connection on `MAX_TRIES` fresh sandboxes while the server
  answers others, or if the server stands still during it `MAX_STANDSTILLS` times. The agent then observes its
  error.
- A statement that has ended the server is not executed again: `ServerCrash` ends its episode.
- If a repeated change gives a result other than the one that the agent read (UUID(), ...), the episode ends
  without a reward, because its tables would not be those that the agent knows. If the agent itself caused the
  loss of its tables, or the server stood still, the episode continues with the new results: a heavy statement
  can make a busy server stand still.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from trl_dbbench.database.dialect import Dialect
from trl_dbbench.database.sandbox import Closing, Limits, Loss, QueryResult, Sandbox, State
from trl_dbbench.errors import DatabaseError, EnvironmentFault, ServerCrash, TaskError
from trl_dbbench.tasks import Task

T = TypeVar("T")

DEFAULT_LIMITS = Limits()

MAX_TRIES = 3
MAX_STANDSTILLS = 5
SECOND_LOOKS_SECONDS = (0.0, 0.5)
"""Pauses, in seconds, before each new try of a doubtful statement: a nearly full disk has room at times."""

MAX_PAUSE_SECONDS = 2.0

_OWN_CODE = re.compile(r"\b(?:FUNCTION|PREPARE|IMMEDIATE)\b", re.IGNORECASE)


class Outage:
    """Period in which a database cannot be used, timed by one clock for all its sandboxes. Thread-safe."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._last = 0.0
        self._lock = threading.Lock()

    def failed(self, patience: float) -> float:
        """Note that a try has just failed; return the seconds since the outage began."""
        with self._lock:
            now = time.monotonic()
            if self._since is None or now - self._last > max(patience, MAX_PAUSE_SECONDS):
                self._since = now  # a new outage: the last failure was too long ago
            self._last = now
            return now - self._since

    def over(self) -> None:
        """Note that a try succeeded."""
        with self._lock:
            self._since = None

    def hopeless(self, patience: float) -> bool:
        """Return whether the outage has lasted longer than `patience` and another try has just failed."""
        with self._lock:
            now = time.monotonic()
            long = self._since is not None and now - self._since > patience
            return long and now - self._last < MAX_PAUSE_SECONDS


class Database(Closing):
    """Opened database: a context manager that removes everything it made when it exits."""

    url: str
    """URL with which `open_database` in another process opens the same server; `"sqlite"` shares nothing."""
    dialect: Dialect
    task_dialects: frozenset[str] = frozenset({"mysql"})
    """Dialects of tasks that this database can run."""
    limits: Limits = DEFAULT_LIMITS
    statements_at_once: int = 32
    """Number of threads in which statements wait for the server; see `in_thread`."""
    patience: float = 300.0
    """Seconds to wait for a server that does not answer, counted from the start of the outage."""
    restarts: int = 0
    """Number of times that the server lost everything this database had on it."""
    closed: bool = False
    silent: bool = False
    """True if the server has not answered for some seconds. Reading it sends no query."""
    gave_up: str | None = None
    """Reason for which a sandbox gave up waiting for the server; `None` again once the server answers."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits

    @cached_property
    def outage(self) -> Outage:
        """Return the clock of the current outage, which all sandboxes share."""
        return Outage()

    def sandbox(self, task: Task) -> Sandbox:
        """Return a fresh private view of the task's tables that survives failures of the server.

        May be called from several threads at once.

        Raises:
            EnvironmentFault: the database failed, and waiting for it did not help.
            TaskError: the tables cannot be made as the task describes them.
        """
        self.check_dialect(task)
        return RetryingSandbox(self, task)

    def check_dialect(self, task: Task) -> None:
        """Raise TaskError if this database cannot run tasks of the task's dialect."""
        if task.dialect not in self.task_dialects:
            raise TaskError(
                f"task {task.id!r} has the dialect {task.dialect}, and this database is "
                f"{self.dialect.product}. Set database: {task.dialect} for such tasks."
            )

    def check_open(self) -> None:
        """Raise DatabaseError if this database was closed."""
        if self.closed:
            raise DatabaseError("The database is closed. Open it again for more sandboxes.")

    @abstractmethod
    def fresh_sandbox(self, task: Task) -> Sandbox:
        """Return a fresh private view of the task's tables that breaks when the server fails.

        Raises:
            EnvironmentFault: the database failed.
            TaskError: the tables cannot be made as the task describes them.
        """

    def recover(self) -> bool:
        """Restore what the database lost in a failure; return whether the server answers."""
        return True

    def in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Call the function in one of the database's threads and return a future of the running event loop.

        The threads are reused: starting one takes longer than a short statement.
        """
        self.check_open()
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.statements_at_once, thread_name_prefix="dbbench-statement")

    @abstractmethod
    def describe(self) -> str:
        """Return the product, its version and where it runs, for log lines."""

    @abstractmethod
    def close(self) -> None:
        """Remove what is left of the sandboxes and disconnect from the server. May be called repeatedly."""


class RetryingSandbox(Sandbox):
    """Sandbox that recovers from server failures, as returned by `Database.sandbox`.

    It raises what `Database.sandbox` documents, and `ServerCrash` if one of its statements ended the server.
    """

    def __init__(self, database: Database, task: Task) -> None:
        self.retries = 0
        self._database = database
        self._task = task
        self._done: list[tuple[str, QueryResult]] = []
        self._sandbox: Sandbox | None = None
        self._answered = 0.0
        """Time at which the sandbox last worked. A server failure since then may be why it now does not."""
        self._earlier: list[Sandbox] = []
        self._lost: Loss = "environment"
        self._closed = False
        self._attempt(lambda sandbox: None)

    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        return self._run(sql, lambda sandbox: sandbox.execute(sql, limits))

    def repeat(self, sql: str, seen: QueryResult) -> QueryResult:
        return self._run(sql, lambda sandbox: sandbox.repeat(sql, seen))

    def _run(self, sql: str, execute: Callable[[Sandbox], QueryResult]) -> QueryResult:
        try:
            result = self._attempt(lambda sandbox: self._settled(sandbox, execute))
        except EnvironmentFault as fault:
            if fault.observation is None:
                raise
            result = QueryResult(None, fault.observation, fault.error_code, limit="server")
        self.changed = self._sandbox is None or self._sandbox.changed
        if self._sandbox is not None and self._sandbox.changed and not result.undone:
            self._done.append((sql, result))
        return result

    def state(self) -> State:
        try:
            return self._attempt(lambda sandbox: sandbox.state())
        except EnvironmentFault as fault:
            if fault.observation is None:
                raise
            return {}  # the server works: the agent made its tables unreadable

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _settled(self, sandbox: Sandbox, execute: Callable[[Sandbox], QueryResult]) -> QueryResult:
        """Return a statement's result, after trying a doubtful one again on fresh sandboxes.

        Raise EnvironmentFault if the server itself has failed.
        """
        start = time.monotonic()
        result = execute(sandbox)
        if not result.doubtful and result.limit != "time":
            return result
        self._check(sandbox, start)
        if not result.doubtful:
            return result
        for pause in SECOND_LOOKS_SECONDS:
            time.sleep(pause)
            again = self._again(sandbox, execute, result)
            if not again.doubtful:
                return again
        return result

    def _again(
        self, sandbox: Sandbox, execute: Callable[[Sandbox], QueryResult], result: QueryResult
    ) -> QueryResult:
        """Execute a statement again on a fresh sandbox, which replaces this one if it gives a clear result.

        Otherwise return `result`.
        """
        start = time.monotonic()
        fresh = self._database.fresh_sandbox(self._task)
        self._earlier.append(fresh)
        try:
            same = self._repeat(fresh) is None
            again = execute(fresh) if same else result
        except EnvironmentFault:
            again = result
        except BaseException:
            fresh.close()
            raise
        if again.doubtful or again.limit == "time":
            fresh.close()
            self._check(sandbox, start)
            return result
        self._drop()
        self._sandbox = fresh
        return again

    def _check(self, sandbox: Sandbox, since: float) -> None:
        """Raise EnvironmentFault if the server has failed since the time `since`."""
        if why := sandbox.failing(since):
            raise EnvironmentFault(why, down=True)

    def _attempt(self, action: Callable[[Sandbox], T]) -> T:
        database = self._database
        start = time.monotonic()
        failures, standstills, restarts, others = 0, 0, database.restarts, False
        pause = 0.0
        while True:
            database.check_open()
            if self._closed:
                raise DatabaseError("The sandbox is closed. Take another from Database.sandbox().")
            if database.gave_up is not None and database.outage.hopeless(database.patience):
                raise self._gave_up(database.gave_up)
            sandbox = None
            try:
                self._check_blame()
                sandbox = self._ready()
                result = action(sandbox)
            except EnvironmentFault as fault:
                made = sandbox or self._sandbox  # made, though perhaps not all changes were repeated on it
                # failures during recovery belong to the same outage
                others |= made is None or fault.down or made.failing(self._answered) is not None
                self._drop()
                self.retries += 1
                if fault.final:
                    raise
                answers = database.recover()
                self._lost = "environment" if others or database.restarts != restarts else "agent"
                self._check_blame()
                if answers and made is not None and not fault.down:
                    failures += not fault.still
                    standstills += fault.still
                    if failures == MAX_TRIES or standstills == MAX_STANDSTILLS:
                        if database.restarts != restarts:
                            fault.observation = None
                        raise
                elif max(database.outage.failed(database.patience), time.monotonic() - start) > (
                    database.patience
                ):
                    database.gave_up = str(fault)
                    raise self._gave_up(str(fault)) from None
            else:
                if sandbox.reached:
                    database.gave_up = None
                    database.outage.over()
                self._answered = time.monotonic()
                return result
            time.sleep(pause)  # 0 at first, then growing
            pause = min(max(2 * pause, 0.25), MAX_PAUSE_SECONDS)

    def _gave_up(self, why: str) -> EnvironmentFault:
        return EnvironmentFault(f"{why}; waited for {self._database.patience:g} s", final=True)

    def _check_blame(self) -> None:
        """Raise ServerCrash if a statement of this episode has ended the server."""
        if any(sandbox.brought_down for sandbox in self._earlier):
            raise ServerCrash

    def _ready(self) -> Sandbox:
        """Return the sandbox with all changes of the episode, making it again if it was lost."""
        if self._sandbox is not None and (lost := self._sandbox.lost):
            self._lost = lost
            self._drop()
        if self._sandbox is None:
            self._answered = time.monotonic()
            self._sandbox = self._database.fresh_sandbox(self._task)
            if differs := self._repeat(self._sandbox, anyway=self._lost == "agent"):
                raise differs
            self._lost = "environment"  # for the next loss, unless the sandbox says otherwise
        return self._sandbox

    def _repeat(self, sandbox: Sandbox, *, anyway: bool = False) -> EnvironmentFault | None:
        """Execute the earlier changes on a fresh sandbox.

        Returns:
            The fault of the first change whose result differs from the earlier one; later changes are not
            executed. With `anyway`, all changes are executed, and `None` is returned.
        """
        start = time.monotonic()
        for sql, seen in self._done:
            again = sandbox.repeat(sql, seen)
            same = (again.rows, again.error, again.affected) == (seen.rows, seen.error, seen.affected)
            if not (same or anyway or self._only_shows(sql)):
                text = (
                    f"the database failed, and {sql[:200]!r} cannot be repeated: it gave {_shown(seen)}, now "
                    f"{_shown(again)}"
                )
                if again.limit != "time" and not again.doubtful:
                    return EnvironmentFault(text, final=True)
                # next time, a busy server may be faster, and a full disk may have room
                down = sandbox.failing(start) is not None
                return EnvironmentFault(
                    text, observation=again.error, error_code=again.error_code, still=not down, down=down
                )
        return None

    def _only_shows(self, sql: str) -> bool:
        """Return whether a statement did nothing but show its result, which the agent has read already."""
        own_code = any(_OWN_CODE.search(each) for each, _ in self._done)
        return not own_code and self._database.dialect.only_shows(sql)

    def _drop(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._earlier.append(self._sandbox)
            self._sandbox = None


def _shown(result: QueryResult) -> str:
    return result.error or str(result.affected if result.rows is None else result.rows)[:200]
