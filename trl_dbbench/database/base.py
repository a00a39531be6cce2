"""An opened database. Its sandboxes survive failures of its server: what an episode did is done again.

```
a statement fails, by the environment's fault -> wait for the server -> fresh sandbox
                                              -> repeat the episode's earlier changes -> repeat the statement
```

- An error is the environment's only if the server failed for others at the same time: for statements of
  our own (`Sandbox.failing`), or as a whole. Everything else is the agent's: it can raise any error with
  SIGNAL, and end its own connection.
- A server that does not answer, or takes no writes, is waited for, up to `Database.patience` seconds; then
  the episode ends without a reward. All sandboxes wait together, so the seconds count from the outage's
  beginning.
- An error that looks like the environment's (`QueryResult.doubtful`) while the server is in order is tried
  again, on fresh sandboxes: the failure may have just ended. If it comes again it is the agent's, and
  so its observation.
- A statement is at fault itself if it loses its connection on `MAX_TRIES` fresh sandboxes while the server
  answers others, or if the server stood still `MAX_STANDSTILLS` times during it. Its error is then the
  agent's observation.
- A statement that has ended the server itself is not executed again: `ServerCrash` ends its episode.
- If repeating a change gives another result than the agent has read (UUID(), ...), the episode ends without
  a reward: the tables would not be those that the agent knows. But if it lost its tables by its own doing,
  or because the server stood still, it goes on with what the changes give now: a heavy statement can make a
  busy server stand still.
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
"""Pauses before a doubtful error is tried again: a disk that is nearly full has room now and then."""

MAX_PAUSE_SECONDS = 2.0

_OWN_CODE = re.compile(r"\b(?:FUNCTION|PREPARE|IMMEDIATE)\b", re.IGNORECASE)


class Outage:
    """A time in which a database cannot be used: one clock for all its sandboxes. Thread-safe."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._last = 0.0
        self._lock = threading.Lock()

    def failed(self, patience: float) -> float:
        """Note that a try failed just now. Returns the seconds since the outage began."""
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
        """Return whether it has outlasted our patience, and somebody tried again just now, in vain."""
        with self._lock:
            now = time.monotonic()
            long = self._since is not None and now - self._since > patience
            return long and now - self._last < MAX_PAUSE_SECONDS


class Database(Closing):
    """An opened database: a context manager that removes everything it made at its end."""

    url: str
    """Passed to `open_database` in another process, it shares this server; `"sqlite"` shares nothing."""
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
    """Whether the server has not answered for some seconds; known without asking it."""
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

    def check_open(self) -> None:
        """Raise DatabaseError if this database was closed."""
        if self.closed:
            raise DatabaseError("The database is closed. Open it again for more sandboxes.")

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
        self.check_open()
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


class RetryingSandbox(Sandbox):
    """A task's tables; `Database.sandbox` returns one, and says what it raises.

    ServerCrash is raised as well: a statement of this sandbox has ended the server.
    """

    def __init__(self, database: Database, task: Task) -> None:
        self.retries = 0
        self._database = database
        self._task = task
        self._done: list[tuple[str, QueryResult]] = []
        self._sandbox: Sandbox | None = None
        self._answered = 0.0
        """When the sandbox was last in order: a failure of the server since then may be why it is not now."""
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
            return {}  # by what the agent has made: the server is in order

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _settled(self, sandbox: Sandbox, execute: Callable[[Sandbox], QueryResult]) -> QueryResult:
        """Return what a statement gives, where the server itself is in order."""
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
        """Execute a statement on a fresh sandbox, which takes the place of this one, or returns `result`."""
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
        """Raise EnvironmentFault if the server has failed since a moment."""
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
                made = sandbox or self._sandbox  # what could be made, though perhaps not brought to its state
                # what fails on the way back is of the same outage
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
            time.sleep(pause)  # not at first, then longer and longer
            pause = min(max(2 * pause, 0.25), MAX_PAUSE_SECONDS)

    def _gave_up(self, why: str) -> EnvironmentFault:
        return EnvironmentFault(f"{why}; waited for {self._database.patience:g} s", final=True)

    def _check_blame(self) -> None:
        """Raise ServerCrash if a statement of this episode has ended the server."""
        if any(sandbox.brought_down for sandbox in self._earlier):
            raise ServerCrash

    def _ready(self) -> Sandbox:
        """The sandbox, in the state to which the episode has brought it."""
        if self._sandbox is not None and (lost := self._sandbox.lost):
            self._lost = lost
            self._drop()
        if self._sandbox is None:
            self._answered = time.monotonic()
            self._sandbox = self._database.fresh_sandbox(self._task)
            if differs := self._repeat(self._sandbox, anyway=self._lost == "agent"):
                raise differs
            self._lost = "environment"  # if ever again, unless the sandbox says otherwise
        return self._sandbox

    def _repeat(self, sandbox: Sandbox, *, anyway: bool = False) -> EnvironmentFault | None:
        """Execute the earlier changes on a fresh sandbox.

        Returns:
            The fault of a change that gave another result than before, after which the rest is not executed;
            with `anyway`, all are.
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
                # a busy server may be faster the next time, and one with a full disk have room
                down = sandbox.failing(start) is not None
                return EnvironmentFault(
                    text, observation=again.error, error_code=again.error_code, still=not down, down=down
                )
        return None

    def _only_shows(self, sql: str) -> bool:
        """Return whether the agent keeps what a statement has shown it, and nothing else depends on that."""
        own_code = any(_OWN_CODE.search(each) for each, _ in self._done)
        return not own_code and self._database.dialect.only_shows(sql)

    def _drop(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._earlier.append(self._sandbox)
            self._sandbox = None


def _shown(result: QueryResult) -> str:
    return result.error or str(result.affected if result.rows is None else result.rows)[:200]
