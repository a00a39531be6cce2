"""A connection to a MySQL-family server that runs agents' statements within their limits."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pymysql.err import MySQLError
from sqlalchemy import Engine
from sqlalchemy.engine import URL, Connection, CursorResult
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from trl_dbbench.database.dialect import ServerDialect
from trl_dbbench.database.error_numbers import (
    KILLS,
    NO_ANSWER,
    SYNTAX_ERROR,
    TIME_LIMITS,
    TOO_LARGE,
    is_environment_fault,
    is_memory_limit,
)
from trl_dbbench.database.sandbox import (
    Limits,
    QueryResult,
    TableState,
    clip,
    failure,
    table_state,
    timed_out,
)
from trl_dbbench.database.server import ownership
from trl_dbbench.database.server.connections import (
    KILL_SECONDS,
    BoundedConnection,
    as_fault,
    error_code,
    error_text,
    hang_up,
    is_from_server,
    make_engine,
)
from trl_dbbench.database.server.names import Names, sent
from trl_dbbench.database.server.ownership import Account
from trl_dbbench.database.server.pulse import Pulse
from trl_dbbench.database.server.watchdog import Watch, Watchdog
from trl_dbbench.errors import DatabaseError, EnvironmentFault

logger = logging.getLogger("trl_dbbench.database")

GRACE_SECONDS = 10
"""Seconds beyond its time limit that a statement may take before the connection counts as lost, which is a
fault of the server."""

CATCH_UP = 3
"""Multiple of a statement's time limit for which a server may be slow after a standstill, while it works
through its backlog. A statement that is slow then is run again, at most `base.MAX_STANDSTILLS` times."""

TOO_MUCH_MEMORY = "The connection's memory limit was exceeded"
"""Message for the agent; the server's own contains numbers of bytes, which differ each time."""

BROKE_AT_A_LARGE_ROW = "it hung up on a row that is too large"
UNREADABLE = "its answer cannot be read"


class Host:
    """Server as seen by its sessions and slots. `Tenancy` sets the attributes."""

    url: URL
    dialect: ServerDialect
    own_server: bool
    """True if this run started the server, so that nothing else uses it."""
    has_accounts: bool
    """True if agents have their own accounts."""
    limits: Limits
    statements: int
    """Number of statements that may run at once."""
    owner: str
    keeper_number: int
    """Number of the connection that must hold the run's lock, which is named `owner`."""
    admin: Engine
    killer: Engine
    """Engines for our own statements (`admin`) and for killing agents' statements (`killer`)."""
    watchdog: Watchdog
    pulse: Pulse

    def session(self, account: Account | None) -> Session:
        """Open a session, as an agent's account or as ours; wait if the server has no connection left."""
        try:
            return Session(self, account)
        except DBAPIError as error:
            raise as_fault(error, down=True) from None

    def url_of(self, account: Account | None) -> URL:
        """Return the server's URL with this account; with `None`, the URL's own account."""
        if account is None:
            return self.url
        return self.url.set(username=account.name, password=account.password)

    def holds_lock(self, connection: Connection) -> bool:
        """Return whether the run's lock is still held, as queried on this connection."""
        return ownership.holder(connection, self.owner) == self.keeper_number


class Session:
    """Engine with a single connection.

    Args:
        account: account that runs the statements; `None` for the account of the server's URL.

    Raises:
        DBAPIError: the connection cannot be opened.
        EnvironmentFault: the server was restarted, and everything that the run had there is gone.
    """

    def __init__(self, host: Host, account: Account | None) -> None:
        self.broken: str | None = None
        """Reason for which the session must not be used any more, or `None`."""
        self.database = ""
        """Real database name, which differs in every run; the agent sees `SHOWN_DATABASE` instead."""
        self.reader: object = None
        """User of a shared session (`Readers`) whose statement ran last."""
        self._host = host
        self._limits = host.limits
        self._names = Names(host.owner)
        self._url = host.url_of(account)
        seconds = self._limits.seconds
        time_limit = host.dialect.set_time_limit(seconds)
        self._engine = make_engine(self._url, seconds + GRACE_SECONDS, init_command=time_limit)
        self.connection = self._engine.connect()
        try:
            self._check()
            self.number = int(self.connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar() or 0)
        except BaseException:
            self.disconnect()
            raise

    def use(self, database: str) -> None:
        """Make `database` the session's database, in which unqualified names are looked up."""
        self.connection.exec_driver_sql(f"USE `{database}`")
        self.database = database

    def renew(self, database: str = "", account: Account | None = None) -> None:
        """End everything that statements have left in the session, for the next episode.

        Args:
            database: as for `use`.
            account: account to which the session is switched; by default it keeps its own.

        Raises:
            EnvironmentFault: the connection is lost, or the server was restarted.
        """
        with self._or_broken():
            if account is not None and account.name != self._url.username:
                self._driver.change_user(account.name, account.password, database)
                self._url = self._url.set(username=account.name, password=account.password)
                self.database = database
                self._driver.set_up()
            else:
                self._driver.reset()
                self._driver.set_up()
                if database:  # after a reset, MariaDB keeps the database but forgets its character set
                    self.use(database)
            self._check()  # FOUND_ROWS() survives a reset; this query sets it to a new session's value

    def clear(self) -> None:
        """End what statements left in the session, so that it blocks nobody; `renew` must follow."""
        with self._or_broken():
            self._driver.reset()

    @contextmanager
    def _or_broken(self) -> Iterator[None]:
        try:
            yield
        except (MySQLError, SQLAlchemyError, OSError) as error:
            self.broken = str(error)
            raise EnvironmentFault(f"The session cannot be used again: {error}") from None

    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        """Run one statement with any text.

        A statement that hits a limit may leave the session `broken`.

        Args:
            limits: limits on rows and text, in place of the session's.

        Raises:
            EnvironmentFault: the database failed; the session cannot be used again.
        """
        start = time.monotonic()
        watch = Watch(lambda: self._time_left(start), self._kill, self._driver.hang_up)
        try:
            with self._host.watchdog(watch):
                result = self._run(sql, start, limits or self._limits)
        except DBAPIError as error:
            if watch.fired or error_code(error) in TIME_LIMITS:
                result = timed_out(self._limits)
            else:
                result = self._refused(error, start)
        except EnvironmentFault:
            raise
        except Exception as error:
            # a bug of ours or of PyMySQL's; the rest of the answer is still unread
            logger.warning("the answer to %.200r cannot be read", sql, exc_info=True)
            self.broken = UNREADABLE
            text = f"Unknown error: {type(error).__name__}"
            result = failure(1105, text, limit="server", seconds=time.monotonic() - start)
        if watch.fired and not watch.heard:
            # the server may execute the kill later, and stop another statement
            raise self._stood_still()
        if watch.hung_up:
            self.broken = "its statement could not be stopped in time"
        elif watch.fired and not self.broken:
            self._absorb_kill(start)
        # SLEEP() and similar functions return a value when they are killed, instead of failing; a statement
        # without a result set has completed
        stopped = result.rows is not None and (watch.fired or result.seconds >= self._limits.seconds)
        if not stopped and result.limit != "time":
            return result
        if self._host.pulse.stood_still(start - CATCH_UP * self._limits.seconds):
            raise self._stood_still()
        return timed_out(self._limits, time.monotonic() - start)

    def table(self, sql: str) -> TableState:
        """Return the result of our own query as a table's state."""
        result = self.connection.exec_driver_sql(sql, execution_options={"stream_results": True})
        state = table_state(tuple(result.keys()), result)
        result.close()
        return state

    def roll_back_prepared(self) -> bool:
        """Roll back an XA transaction that was prepared here; return whether the connection still works."""
        if self.broken is None:
            ownership.roll_back_prepared(self.connection, self._host.dialect, only_own=True)
        return self.broken is None and not self.connection.invalidated

    def disconnect(self) -> None:
        hang_up(self.connection)
        self._engine.dispose()

    def _time_left(self, start: float) -> float:
        """Return the seconds for which a statement may still run, not counting the server's standstills."""
        return start + self._limits.seconds + self._host.pulse.stood_still(start) - time.monotonic()

    def _stood_still(self) -> EnvironmentFault:
        """Return the fault for a stopped statement that may not be slow itself; mark the session broken."""
        self.broken = "The server stood still during a statement"
        stopped = timed_out(self._limits)
        return EnvironmentFault(
            self.broken, observation=stopped.error, error_code=stopped.error_code, still=True
        )

    def _fail(self, error: DBAPIError, start: float) -> EnvironmentFault:
        """Return an error as an EnvironmentFault; mark the session as broken."""
        self.broken = error_text(error)
        fault = as_fault(error)
        fault.still = self._host.pulse.stood_still(start) > 0
        fault.observation = self._names.shown(fault.observation)
        return fault

    def _run(self, sql: str, start: float, limits: Limits) -> QueryResult:
        result = self._send(sql)
        rows = affected = columns = limit = None
        try:
            if result.returns_rows:
                columns = tuple(map(self._names.shown, result.keys()))
                rows, limit = clip((tuple(map(self._names.shown, row)) for row in result), limits)
            else:
                affected = result.rowcount
            if limit:
                self._drop_rest(result, start)
        finally:
            # errors in further results do not matter; a lost connection is noticed later
            with contextlib.suppress(Exception):
                result.close()
                self._driver.drop_rest()
        return QueryResult(
            rows, limit=limit, affected=affected, seconds=time.monotonic() - start, columns=columns
        )

    def _check(self) -> None:
        if not self._host.holds_lock(self.connection):
            raise EnvironmentFault("The server was restarted")

    def _send(self, sql: str) -> CursorResult[Any]:
        options = {"stream_results": True}
        named = sent(sql, self.database)
        try:
            return self.connection.exec_driver_sql(named, execution_options=options)
        except DBAPIError as error:
            if named == sql or error_code(error) != SYNTAX_ERROR:
                raise
            # send the agent's own text, so that the error quotes it
            return self.connection.exec_driver_sql(sql, execution_options=options)

    @property
    def _driver(self) -> BoundedConnection:
        driver = self.connection.connection.driver_connection
        assert isinstance(driver, BoundedConnection)
        return driver

    def _drop_rest(self, result: Any, start: float) -> None:
        """Stop a statement whose remaining rows are not needed; rows already sent are read and discarded."""
        self._kill()
        with contextlib.suppress(Exception):
            self._driver.drop_rest()
        with contextlib.suppress(Exception):
            result.cursor.close()
        if self._driver.open:
            self._absorb_kill(start)
        else:
            self.broken = BROKE_AT_A_LARGE_ROW

    def _kill(self, what: str = "QUERY") -> bool:
        """Kill the running statement, or the connection; return whether the server accepted the kill."""
        for engine in self._killers():
            try:
                with engine.connect() as connection:
                    connection.exec_driver_sql(f"KILL {what} {self.number}")
                return True
            except SQLAlchemyError as error:
                if error_code(error) in NO_ANSWER:
                    return False
            except DatabaseError:  # too many open files, which the next session reports
                return False
        return False

    def _killers(self) -> Iterator[Engine]:
        yield self._host.killer
        # an account that may not kill the statements of others may still kill its own
        yield make_engine(
            self._url, KILL_SECONDS, init_command=self._host.dialect.set_time_limit(KILL_SECONDS)
        )

    def _lives(self) -> bool:
        try:
            self.connection.exec_driver_sql("DO 0")
        except DBAPIError:
            return False
        return True

    def _absorb_kill(self, start: float) -> None:
        """Let a kill that came too late hit a statement of ours instead of the agent's next one."""
        for _ in range(3):
            try:
                self.connection.exec_driver_sql("DO 0")
                return
            except DBAPIError as error:
                if error_code(error) not in KILLS:
                    raise self._fail(error, start) from None

    def _refused(self, error: DBAPIError, start: float) -> QueryResult:
        """Return the result of a statement that failed, marked as doubtful if the server may be to blame."""
        code, text, seconds = error_code(error), error_text(error), time.monotonic() - start
        if not is_from_server(error.orig):
            if code != TOO_LARGE:
                raise self._fail(error, start) from None
            self.broken = BROKE_AT_A_LARGE_ROW
            return QueryResult(None, text, code, limit="size", seconds=seconds)
        if is_memory_limit(code, text):
            self.broken = "it took too much memory"
            return failure(code, TOO_MUCH_MEMORY, limit="server", seconds=seconds)
        doubtful = is_environment_fault(code, text) or code in KILLS
        if doubtful and not self._lives():
            raise self._fail(error, start) from None
        return QueryResult(None, self._names.shown(text), code, seconds=seconds, doubtful=doubtful)


T = TypeVar("T")


class Readers:
    """Pool of sessions, opened by `connect`, for statements that only read. Thread-safe."""

    def __init__(self, connect: Callable[[], Session], connections: int) -> None:
        self._connect = connect
        self._places = threading.BoundedSemaphore(connections)
        self._idle: list[Session] = []
        """Idle sessions, longest idle first."""
        self._lock = threading.Lock()
        self._closed = False

    def read(
        self, action: Callable[[Session], T], *, database: str | None = None, reader: object = None
    ) -> T:
        """Return the result of `action`, called with a session of the pool.

        Args:
            database: the database in which unqualified names are looked up.
            reader: the user that the statement belongs to; a session that another one used is reset first.
        """
        with self._places:
            try:
                with self._session(database, reader) as session:
                    return action(session)
            except EnvironmentFault:
                # the server may have closed the idle connection, and reading again does no harm
                with self._session(database, reader, new=True) as session:
                    return action(session)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.disconnect()

    @contextmanager
    def _session(self, database: str | None, reader: object, *, new: bool = False) -> Iterator[Session]:
        session = None if new else self._choose(database, reader)
        try:
            if session is None:
                session = self._connect()
            if session.reader is not reader:
                session.renew(database or "")
                session.reader = reader
            elif database is not None and session.database != database:
                session.use(database)
            yield session
        except BaseException as error:  # possibly in the middle of an answer
            if session is not None:
                session.broken = session.broken or repr(error)
            if isinstance(error, SQLAlchemyError):
                raise as_fault(error) from None
            raise
        finally:
            if session is not None:
                self._put_back(session)

    def _put_back(self, session: Session) -> None:
        with self._lock:
            if session.broken is None and not self._closed:
                self._idle.append(session)
                return
        session.disconnect()

    def _choose(self, database: str | None, reader: object) -> Session | None:
        """Return an idle session: preferably the reader's last one, else one in the database, else any."""
        with self._lock:
            if not self._idle:
                return None
            tastes = [(each.reader is not reader, each.database != database) for each in self._idle]
            return self._idle.pop(tastes.index(min(tastes)))
