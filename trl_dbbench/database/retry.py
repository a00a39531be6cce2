"""A sandbox that outlives failures of its server: what the episode did is done again on a fresh one.

```
statement fails, the environment's doing -> wait for the server -> fresh sandbox -> the episode's earlier changes
                                         -> the statement once more
```

- A server that does not answer is waited for, `Database.patience` seconds; then the episode ends without a reward.
- A statement that fails on `TRIES` fresh sandboxes of a server that ran all the while, where the tables could be
  made and the changes repeated, fails by its own doing (it killed its connection, asked for more memory than there is,
  or raised an error that looks like a failure): the error is its observation.
- Changes whose repetition gives something else than the agent has read (RAND(), NOW(), ...) end the episode without
  a reward: what it read would not be what there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from trl_dbbench.database.sandbox import QueryResult, Sandbox, State
from trl_dbbench.database.sqlite.parse import only_reads
from trl_dbbench.errors import DatabaseError, EnvironmentFault
from trl_dbbench.tasks import Task

if TYPE_CHECKING:
    from trl_dbbench.database.base import Database

T = TypeVar("T")

TRIES = 2
LONGEST_PAUSE = 2.0


class RetryingSandbox(Sandbox):
    """A task's tables; `Database.sandbox` returns one.

    Raises:
        EnvironmentFault: the database failed, and waiting and repeating did not help.
        TaskError: the tables cannot be made as the task describes them.
    """

    def __init__(self, database: Database, task: Task) -> None:
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
            result = QueryResult(None, fault.observation, limit="server")
        if not only_reads(sql) and not (result.limit and result.rows is None):  # what hit a limit was undone
            self._done.append((sql, result))
        return result

    def state(self) -> State:
        return self._attempt(lambda sandbox: sandbox.state())

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _attempt(self, what: Callable[[Sandbox], T]) -> T:
        start = time.monotonic()
        failures, restarts = 0, self._database.restarts
        for pause in _pauses():
            if self._closed or self._database.closed:
                raise DatabaseError("The sandbox is closed. Take another from Database.sandbox().")
            ready = False
            try:
                sandbox = self._ready()
                ready = True
                result = what(sandbox)
            except EnvironmentFault as fault:
                self._drop()
                self.retries += 1
                if fault.final:
                    raise
                answers = self._database.recover()
                failures += answers and ready
                if failures == TRIES:
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
        """The sandbox, in the state that the episode has brought it to."""
        if self._sandbox is not None and self._sandbox.lost:
            self._drop()
        if self._sandbox is None:
            self._sandbox = self._database.fresh_sandbox(self._task)
            for sql, seen in self._done:
                again = self._sandbox.execute(sql)
                if (again.rows, again.error, again.affected) != (seen.rows, seen.error, seen.affected):
                    raise EnvironmentFault(
                        f"the database failed, and {sql[:200]!r} cannot be repeated: it gave {_shown(seen)}, now "
                        f"{_shown(again)}",
                        final=again.limit != "time",  # a busy server may do better the next time
                    )
        return self._sandbox

    def _drop(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


def _pauses() -> Iterator[float]:
    """Seconds between tries: at once, then longer and longer."""
    pause = 0.0
    while True:
        yield pause
        pause = min(max(2 * pause, 0.25), LONGEST_PAUSE)


def _shown(result: QueryResult) -> str:
    return result.error or str(result.affected if result.rows is None else result.rows)[:200]
