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

from trl_dbbench.database.faults import RESOURCES, TOO_LARGE, is_environment_fault, is_time_limit, message
from trl_dbbench.database.sandbox import Limits, QueryResult, clip, time_limit_message
from trl_dbbench.database.server import accounts
from trl_dbbench.database.server.connections import BoundedConnection, engine, error_code, error_text, fault
from trl_dbbench.errors import EnvironmentFault

GRACE_SECONDS = 10
"""How long after its time limit a statement may still hold its connection before that counts as a fault."""

TOO_LARGE_A_ROW = "it hung up on a row that is too large"

HANG_UP_SECONDS = 0.4
"""How long a killed statement may take to end before nobody waits for it any longer: a large change that is undone
takes about as long as it took."""


class Session:
    """An engine with one connection.

    Args:
        url: with the account that statements run under.
        killer: may kill others' statements.
        owner, keeper: a run's lock and the number of the connection that must hold it.

    Raises:
        DBAPIError: it cannot be opened.
        EnvironmentFault: the server was restarted, what the run had there is gone.
    """

    def __init__(
        self,
        url: URL,
        limits: Limits,
        dialect: str,
        killer: Engine,
        watchdog: Watchdog,
        owner: str,
        keeper: int,
    ) -> None:
        limit = (
            f"SET SESSION max_statement_time = {limits.seconds:g}"
            if dialect == "mariadb"
            else f"SET SESSION max_execution_time = {max(1, round(limits.seconds * 1000))}"
        )
        self.limits = limits
        self.broken: str | None = None
        """Why it is not to be used any more."""
        self.database = ""
        """A name that differs from run to run, which observations must not; they say `dbbench` instead."""
        self._killer = killer
        self._watchdog = watchdog
        self._engine = engine(url, limits.seconds + GRACE_SECONDS, init_command=limit)
        self.connection = self._engine.connect()
        try:
            if accounts.holder(self.connection, owner) != keeper:
                raise EnvironmentFault("The server was restarted")
            self._number = int(self.connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar() or 0)
        except BaseException:
            self.disconnect()
            raise

    def use(self, database: str) -> None:
        """Makes it the session's own database, the one that names without another mean."""
        self.connection.exec_driver_sql(f"USE `{database}`")
        self.database = database

    def execute(self, sql: str) -> QueryResult:
        """Runs one statement, however it is written.

        A statement that hits a limit may leave the session `broken`.

        Raises:
            EnvironmentFault: the database failed; the session cannot be used any more.
        """
        start = time.monotonic()
        watch = self._watchdog(self.limits.seconds, self._kill, self._driver.hang_up)
        try:
            with watch:
                result = self._run(sql, start)
        except DBAPIError as error:
            result = (
                self._timed_out(start) if watch.hung_up else self._refused(error, time.monotonic() - start)
            )
        except (ValueError, OverflowError) as error:  # PyMySQL cannot read what the server sent
            result = QueryResult(
                None, message(1105, f"Unknown error: {error}"), seconds=time.monotonic() - start
            )
        if watch.hung_up:
            self.broken = "its statement could not be stopped in time"
        elif watch.fired and not self.broken:
            self._absorb_kill()
        # SLEEP() and its like return a value when they are stopped, instead of failing.
        if watch.fired or (result.rows is not None and result.seconds >= self.limits.seconds):
            return self._timed_out(start)
        return result

    def rows(self, sql: str, limits: Limits) -> list[tuple]:
        """What a statement of our own returns, up to the limits on rows and text.

        Raises:
            DBAPIError: the database failed.
        """
        result = self.connection.exec_driver_sql(sql, execution_options={"stream_results": True})
        rows, limit = clip(result, limits)
        if limit:
            self._drop_rest(result)
        else:
            result.close()
        return rows

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
        affected = None if result.returns_rows else result.rowcount
        try:
            rows, limit = clip(result, self.limits) if result.returns_rows else (None, None)
            if limit:
                self._drop_rest(result)
        finally:
            # an error of a further result is nobody's; a lost connection is found out later
            with contextlib.suppress(Exception):
                result.close()
                self._driver.drop_rest()
        return QueryResult(rows, limit=limit, affected=affected, seconds=time.monotonic() - start)

    @property
    def _driver(self) -> BoundedConnection:
        driver = self.connection.connection.driver_connection
        assert isinstance(driver, BoundedConnection)
        return driver

    def _drop_rest(self, result: Any) -> None:
        """Stop a statement whose remaining rows nobody wants; what is on its way is read and dropped."""
        self._kill()
        with contextlib.suppress(Exception):
            self._driver.drop_rest()
        with contextlib.suppress(Exception):
            result.cursor.close()
        if self._driver.open:
            self._absorb_kill()
        else:
            self.broken = TOO_LARGE_A_ROW

    def _kill(self, what: str = "QUERY") -> bool:
        """Stop what runs, or the connection; returns whether the server has heard it."""
        # an account that may not kill others' statements may kill its own
        for each in (self._killer, self._engine):
            with contextlib.suppress(SQLAlchemyError), each.connect() as connection:
                connection.exec_driver_sql(f"KILL {what} {self._number}")
                return True
        return False

    def _timed_out(self, start: float) -> QueryResult:
        return QueryResult(
            None, time_limit_message(self.limits), limit="time", seconds=time.monotonic() - start
        )

    def _lives(self) -> bool:
        try:
            self.connection.exec_driver_sql("DO 0")
        except DBAPIError:
            return False
        return True

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
        if code == TOO_LARGE:
            self.broken = TOO_LARGE_A_ROW
            return QueryResult(None, error_text(error), limit="size", seconds=seconds)
        if error.connection_invalidated or (
            is_environment_fault(code) and (code in RESOURCES or not self._lives())
        ):
            raise self.fail(error) from None
        # The name of the database differs from run to run; an observation should not.
        return QueryResult(None, error_text(error).replace(self.database, "dbbench"), seconds=seconds)


class Watchdog:
    """Stops what takes too long: one thread for all the statements of a database.

    ```python
    with watchdog(5.0, kill, hang_up) as watch:
        ...
    watch.fired  # whether kill was called
    watch.hung_up  # whether that did not help, and hang_up was called
    ```
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, _Watch]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def __call__(self, seconds: float, kill: Callable[..., bool], hang_up: Callable[[], None]) -> _Watch:
        watch = _Watch(kill, hang_up)
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

    def __init__(self, kill: Callable[..., bool], hang_up: Callable[[], None]) -> None:
        self.fired = False
        self.hung_up = False
        self._kill = kill
        self._hang_up = hang_up
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended.set()

    def fire(self) -> None:
        with self._lock:
            if self.done:
                return
            self.fired = True
            killed = self._kill()
        # a server that hears no kill has failed: that is for the connection's own time limit to find out
        if killed and not self._ended.wait(HANG_UP_SECONDS):
            with self._lock:
                if self.done:
                    return
                self.hung_up = True
                self._hang_up()
            self._kill("CONNECTION")  # an agent's code can handle the error of a kill and go on
