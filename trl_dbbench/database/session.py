"""One connection to a MySQL-family server on which agents' statements run, each within the limits."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ..errors import EnvironmentFault
from .connections import engine, error_code, error_text, fault
from .faults import is_environment_fault, is_time_limit, message
from .sandbox import Limits, QueryResult, clip, time_limit_message

GRACE_SECONDS = 10
"""How long after its time limit a statement may still hold its connection before that counts as a fault."""


class Session:
    """An engine with one connection.

    Args:
        url: with the account that statements run under.
        shown: a name that differs from run to run, which observations must not; they say `dbbench` instead.

    Raises:
        DBAPIError: it cannot be opened.
    """

    def __init__(self, url: URL, limits: Limits, dialect: str, admin: Engine, watchdog: Watchdog) -> None:
        limit = (
            f"SET SESSION max_statement_time = {limits.seconds:g}"
            if dialect == "mariadb"
            else f"SET SESSION max_execution_time = {max(1, round(limits.seconds * 1000))}"
        )
        self.limits = limits
        self.broken: str | None = None
        self._admin = admin
        self._watchdog = watchdog
        self._engine = engine(url, limits.seconds + GRACE_SECONDS, init_command=limit)
        self.connection = self._engine.connect()
        self._number = int(self.connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar() or 0)
        self.database = ""

    def use(self, database: str) -> None:
        """Makes it the session's own database, the one that names without another mean."""
        self.connection.exec_driver_sql(f"USE `{database}`")
        self.database = database

    def execute(self, sql: str) -> QueryResult:
        """Runs one statement, however it is written.

        Raises:
            EnvironmentFault: the database failed; the session cannot be used any more.
        """
        start = time.monotonic()
        try:
            with self._watchdog(self.limits.seconds, self._kill_query) as watch:
                result = self._run(sql, start)
        except DBAPIError as error:
            result = self._refused(error, time.monotonic() - start)
        except (ValueError, OverflowError) as error:  # PyMySQL cannot read what the server sent
            result = QueryResult(
                None, message(1105, f"Unknown error: {error}"), seconds=time.monotonic() - start
            )
        if watch.fired:
            self._absorb_kill()
        # SLEEP() and its like return a value when they are stopped, instead of failing.
        if watch.fired or (result.rows is not None and result.seconds >= self.limits.seconds):
            return QueryResult(None, time_limit_message(self.limits), limit="time", seconds=result.seconds)
        return result

    def disconnect(self) -> None:
        with contextlib.suppress(SQLAlchemyError):
            # Not close(): that would first read whatever a broken-off statement still has to send.
            self.connection.invalidate()
            self.connection.close()
        self._engine.dispose()

    def fail(self, error: DBAPIError) -> EnvironmentFault:
        """The fault that this error means; the session is not to be used again."""
        self.broken = error_text(error)
        return fault(error)

    def _run(self, sql: str, start: float) -> QueryResult:
        result = self.connection.exec_driver_sql(sql, execution_options={"stream_results": True})
        if not result.returns_rows:
            return QueryResult(None, affected=result.rowcount, seconds=time.monotonic() - start)
        try:
            rows, limit = clip(result, self.limits)
            if limit == "rows" or limit == "text":
                self._drop_rest(result)
        finally:
            with contextlib.suppress(SQLAlchemyError):
                result.close()
        return QueryResult(rows, limit=limit, seconds=time.monotonic() - start)

    def _drop_rest(self, result: Any) -> None:
        """Stop a statement whose remaining rows nobody wants; what is on its way is read and dropped."""
        self._kill_query()
        with contextlib.suppress(Exception):
            result.cursor.close()
        self._absorb_kill()

    def _kill_query(self) -> None:
        """Stop what runs. An account that may not kill others' statements may kill its own."""
        for each in (self._admin, self._engine):
            with contextlib.suppress(SQLAlchemyError), each.connect() as connection:
                connection.exec_driver_sql(f"KILL QUERY {self._number}")
                return

    def _absorb_kill(self) -> None:
        """Let a kill that came after its statement's end hit this one instead of the agent's next."""
        for _ in range(3):
            try:
                self.connection.exec_driver_sql("DO 0")
                return
            except DBAPIError as error:
                if not is_time_limit(error_code(error)):
                    raise self.fail(error) from None

    def _refused(self, error: DBAPIError, seconds: float) -> QueryResult:
        """The result of a statement that failed, unless the environment failed it."""
        code = error_code(error)
        if is_time_limit(code):
            return QueryResult(None, time_limit_message(self.limits), limit="time", seconds=seconds)
        if is_environment_fault(code) or error.connection_invalidated:
            raise self.fail(error) from None
        # The name of the database differs from run to run; an observation should not.
        return QueryResult(None, error_text(error).replace(self.database, "dbbench"), seconds=seconds)


class Watchdog:
    """Stops what takes too long: one thread for all the statements of a database.

    ```python
    with watchdog(5.0, kill) as watch:
        ...
    watch.fired  # whether kill was called
    ```
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, _Watch]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def __call__(self, seconds: float, kill: Callable[[], None]) -> _Watch:
        watch = _Watch(kill)
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dbbench-watchdog", daemon=True)
                self._thread.start()
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), watch))
            if self._due[0][2] is watch:
                self._changed.notify()
        return watch

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._due and self._due[0][2].done:
                    heapq.heappop(self._due)
                if self._closed:
                    return
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                watch = heapq.heappop(self._due)[2]
            # a kill waits for the server: beside, so that the others are stopped in time too
            threading.Thread(target=watch.fire, daemon=True).start()


class _Watch:
    """Whether one statement is still running; its kill never comes after the block has ended."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self.fired = False
        self.done = False
        self._kill = kill
        self._lock = threading.Lock()

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.done = True

    def fire(self) -> None:
        with self._lock:
            if not self.done:
                self.fired = True
                self._kill()
