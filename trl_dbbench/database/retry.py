"""A sandbox that survives failures of its server: what the episode did is repeated on a fresh one.

```
a statement fails, by the environment's fault -> wait for the server -> fresh sandbox
                                              -> repeat the episode's earlier changes -> repeat the statement
```

- A server that does not answer is waited for, up to `Database.patience` seconds; then the episode ends
  without a reward.
- A statement is at fault itself if it fails on `MAX_TRIES` fresh sandboxes of a server that was running all
  the while, on which the tables could be made and the changes repeated. It has killed its connection, asked
  for more memory than there is, or raised an error that looks like a failure. The error becomes its
  observation.
- If repeating a change gives another result than the agent has read (RAND(), NOW(), ...), the episode ends
  without a reward: the tables would not be those that the agent knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from trl_dbbench.database.dialect import Dialect
from trl_dbbench.database.sandbox import QueryResult, Sandbox, State
from trl_dbbench.errors import DatabaseError, EnvironmentFault
from trl_dbbench.tasks import Task

T = TypeVar("T")

MAX_TRIES = 2
MAX_PAUSE_SECONDS = 2.0


class Recoverable(Protocol):
    """What a `RetryingSandbox` needs of its `Database`, where these are described."""

    dialect: Dialect
    patience: float
    restarts: int
    closed: bool
    gave_up: str | None

    def fresh_sandbox(self, task: Task) -> Sandbox: ...

    def recover(self) -> bool: ...


class RetryingSandbox(Sandbox):
    """A task's tables; `Database.sandbox` returns one.

    Raises:
        EnvironmentFault: the database failed, and neither waiting nor repeating helped.
        TaskError: the tables cannot be made as the task describes them.
    """

    def __init__(self, database: Recoverable, task: Task) -> None:
        self.retries = 0
        self._database = database
        self._task = task
        self._done: list[tuple[str, QueryResult]] = []
        self._sandbox: Sandbox | None = None
        self._closed = False
        self._attempt(lambda sandbox: None)

    def execute(self, sql: str) -> QueryResult:
        try:
            result = self._attempt(lambda sandbox: sandbox.execute(sql))
        except EnvironmentFault as fault:
            if fault.observation is None:
                raise
            result = QueryResult(None, fault.observation, fault.error_code, limit="server")
        undone = result.limit and result.rows is None
        if not undone and not self._database.dialect.only_reads(sql):
            self._done.append((sql, result))
        return result

    def state(self) -> State:
        return self._attempt(lambda sandbox: sandbox.state())

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _attempt(self, action: Callable[[Sandbox], T]) -> T:
        start = time.monotonic()
        failures, restarts = 0, self._database.restarts
        for pause in _pauses():
            if self._closed or self._database.closed:
                raise DatabaseError("The sandbox is closed. Take another from Database.sandbox().")
            ready = False
            try:
                sandbox = self._ready()
                ready = True
                result = action(sandbox)
            except EnvironmentFault as fault:
                self._drop()
                self.retries += 1
                if fault.final:
                    raise
                answers = self._database.recover()
                failures += answers and ready
                if failures == MAX_TRIES:
                    if self._database.restarts != restarts:
                        fault.observation = None
                    raise
                if not (answers and ready) and time.monotonic() - start > self._database.patience:
                    self._database.gave_up = str(fault)
                    raise EnvironmentFault(
                        f"{fault}; waited for {self._database.patience:g} s", final=True
                    ) from None
            else:
                self._database.gave_up = None
                return result
            time.sleep(pause)
        raise AssertionError

    def _ready(self) -> Sandbox:
        """The sandbox, in the state to which the episode has brought it."""
        if self._sandbox is not None and self._sandbox.lost:
            self._drop()
        if self._sandbox is None:
            self._sandbox = self._database.fresh_sandbox(self._task)
            for sql, seen in self._done:
                again = self._sandbox.execute(sql)
                if (again.rows, again.error, again.affected) != (seen.rows, seen.error, seen.affected):
                    raise EnvironmentFault(
                        f"the database failed, and {sql[:200]!r} cannot be repeated: it gave "
                        f"{_shown(seen)}, now {_shown(again)}",
                        final=again.limit != "time",  # a busy server may be faster the next time
                    )
        return self._sandbox

    def _drop(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


def _pauses() -> Iterator[float]:
    """Seconds between tries: none at first, then longer and longer."""
    pause = 0.0
    while True:
        yield pause
        pause = min(max(2 * pause, 0.25), MAX_PAUSE_SECONDS)


def _shown(result: QueryResult) -> str:
    return result.error or str(result.affected if result.rows is None else result.rows)[:200]
