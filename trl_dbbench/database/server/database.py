"""MySQL and MariaDB: a task's tables are made once, and again for whoever changes them.

An episode begins with the pristine tables: a statement that can only read them runs on any idle reader. The first
statement that might do more gets the episode a slot with tables of its own, for good; an episode whose task asks
for a change gets it at once, while the model still writes. Slots are lent again. One whose agent ran anything but
plain reads and writes (SET, BEGIN, LOCK TABLES, a user variable, ...) may have changed its session or its account's
password: it is thrown away.

What counts as reading is decided on the text and in doubt is no. The server guards it: the readers' account can
change nothing, and what it is denied is tried again in a slot, whose account has no rights elsewhere.

Statements run with autocommit, as in MySQL's own client; an agent that writes BEGIN has its transaction. The
state is read on the agent's connection, so that what it has not committed counts.

What a run holds on the server is its `Tenancy`; after a restart of the server `recover` begins a new one, and the
sandboxes of the old one fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import re
import threading
import time
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from trl_dbbench.database.base import Database
from trl_dbbench.database.faults import TOO_LARGE, is_environment_fault, is_time_limit, message
from trl_dbbench.database.sandbox import (
    STATE_CHARACTERS,
    STATE_ROWS,
    TABLE_BYTES,
    Limits,
    QueryResult,
    Sandbox,
    State,
    refuse,
)
from trl_dbbench.database.server.connections import (
    CONNECT_SECONDS,
    connect_advice,
    engine,
    error_code,
    error_text,
    fault,
    parse_url,
)
from trl_dbbench.database.server.pristine import Kept, quote
from trl_dbbench.database.server.session import TOO_LARGE_A_ROW, Session, Watchdog
from trl_dbbench.database.server.slots import Slot
from trl_dbbench.database.server.start import Server
from trl_dbbench.database.server.tenancy import Tenancy
from trl_dbbench.database.sqlite.parse import kind_of, only_reads
from trl_dbbench.errors import DatabaseError, EnvironmentFault
from trl_dbbench.tasks import Task

logger = logging.getLogger("trl_dbbench.database")

STATE_SECONDS = 20
WATCH_SECONDS = 1.0
"""How often a server that we started is looked after."""

_FULL = QueryResult(None, message(1114, "The table is full"), limit="size")
_UNKNOWN_DATABASE = 1049
_DENIED = re.compile(r"(?:1044|1142|1143|1227|1370) \(")
"""What a reader is told that an account with a database of its own may do there."""


class MySQLDatabase(Database):
    """A MySQL-family server at a URL.

    Args:
        server: that this process has started: it is started again if it ends, and stopped with the database.
        ranks: processes that share the server.
        patience: see `Database`.
        require_accounts: refuse a server on which agents cannot have accounts of their own.

    Raises:
        DatabaseError: it cannot be reached, or its account may not create databases.
    """

    def __init__(
        self,
        url: str,
        *,
        limits: Limits,
        run: str,
        rank: int = 0,
        ranks: int = 1,
        server: Server | None = None,
        patience: float = Database.patience,
        require_accounts: bool = False,
    ) -> None:
        self.url = url
        self.limits = limits
        self.patience = patience
        self._url = parse_url(url)
        self._server = server
        self._watchdog = Watchdog()
        self._recovering = threading.Lock()
        self._down_since: float | None = None
        self._numbers = itertools.count()

        def enter() -> Tenancy:
            return Tenancy(
                self._url,
                f"dbb_{run}_r{rank}",
                self._numbers,
                dialect=self.dialect,
                limits=limits,
                watchdog=self._watchdog,
                statements=Database.statements_at_once,
                ranks=ranks,
                require_accounts=require_accounts,
            )

        self._enter = enter
        try:
            version = self._reach()
            self.dialect = "mariadb" if "MariaDB" in version else "mysql"
            product = "MariaDB" if self.dialect == "mariadb" else "MySQL"
            place = server.where if server else f"at {self._shown()}"
            self._description = f"{product} {version.split('-')[0]}, {place}"
            self._tenancy = enter()
        except SQLAlchemyError as error:
            raise DatabaseError(f"{self._shown()}: {error_text(error)}") from None
        self.statements_at_once = self._tenancy.statements
        if server is not None:
            threading.Thread(
                target=self._look_after, args=(server,), name="dbbench-server", daemon=True
            ).start()

    def describe(self) -> str:
        return self._description

    def fresh_sandbox(self, task: Task) -> Sandbox:
        if self.closed:
            raise DatabaseError("The database was closed. Open it again for more sandboxes.")
        return MySQLSandbox(self._tenancy, task)

    def recover(self) -> bool:
        with self._recovering:
            if self.closed or self._tenancy.held():
                return True
            try:
                if self._server is not None and not self._server.alive():
                    logger.warning(
                        "The database server (%s) has ended; it is started again.", self._server.where
                    )
                    self._tenancy.leave()
                    self._server.restart()
                tenancy = self._enter()
            except (SQLAlchemyError, DatabaseError) as error:
                if self._down_since is None:
                    self._down_since = time.monotonic()
                    text = error_text(error) if isinstance(error, SQLAlchemyError) else error
                    logger.warning("%s does not answer (%s); it is waited for.", self._shown(), text)
                return False
            self._tenancy.leave()
            self._tenancy = tenancy
            self.restarts += 1
            down = (
                f" after {time.monotonic() - self._down_since:.0f} s" if self._down_since is not None else ""
            )
            self._down_since = None
            logger.warning("%s answers again%s; what it has lost is made anew.", self._shown(), down)
            return True

    def close(self) -> None:
        with self._recovering:
            if self.closed:
                return
            self.closed = True
        self._watchdog.close()
        self._threads.shutdown(wait=False)
        if self._server is None:
            self._tenancy.close()
        else:  # with all that is on it
            self._tenancy.leave()
            self._server.stop()

    def _look_after(self, server: Server) -> None:
        """Starts the server again as soon as it ends: other ranks may need it while this one does not."""
        while not self.closed:
            time.sleep(WATCH_SECONDS)
            if not self.closed and not server.alive():
                self.recover()

    def _shown(self) -> str:
        return self._url.render_as_string(hide_password=True)

    def _reach(self) -> str:
        """The server's version; the first word with it, under a short time limit of its own."""
        probe = engine(self._url, CONNECT_SECONDS)
        try:
            with probe.connect() as connection:
                return str(connection.exec_driver_sql("SELECT VERSION()").scalar())
        except DBAPIError as error:
            raise DatabaseError(f"{self._shown()}: {connect_advice(error)}") from None
        finally:
            probe.dispose()


def _without(name: str, rows: list[tuple]) -> list[tuple]:
    return [
        tuple(cell.replace(name, "dbbench") if isinstance(cell, str) else cell for cell in row)
        for row in rows
    ]


class _Unreadable(Exception):
    """A table that cannot be read."""


class MySQLSandbox(Sandbox):
    """A task's tables for one rollout: the pristine ones, until it has its own in a slot."""

    def __init__(self, tenancy: Tenancy, task: Task) -> None:
        self._tenancy = tenancy
        self._task = task
        self._pristine: Kept | None = None
        self._slot: Slot | None = None
        self._seconds = 0.0
        if tenancy.readers is not None and task.is_question:
            with tenancy.making(task):
                self._pristine = tenancy.pristine.take(task.tables)
        else:
            self._own()

    @property
    def lost(self) -> bool:  # type: ignore[override]
        return self._slot is not None and self._slot.lost

    def execute(self, sql: str) -> QueryResult:
        if refused := refuse(sql):
            return QueryResult(None, refused)
        result = self._execute(sql)
        # an error may be about something that the server lost, or that another run removed when it was down
        if result.error and not result.limit and not self._tenancy.held():
            raise EnvironmentFault(f"The server was restarted: {result.error}")
        return result

    def state(self) -> State:
        if self._slot is None and self._pristine is not None and self._tenancy.readers is not None:
            name = self._pristine.name
            return self._tenancy.readers.read(name, lambda session: self._read_all(session, name))
        slot = self._own()
        with self._session(slot) as session:
            if not slot.plain:
                try:
                    session.connection.exec_driver_sql("UNLOCK TABLES")
                    session.connection.exec_driver_sql("SET NAMES utf8mb4")
                except DBAPIError as error:
                    raise session.fail(error) from None
            return self._read_all(session, slot.name)

    def close(self) -> None:
        if self._pristine is not None:
            self._tenancy.pristine.give_back(self._pristine)
            self._pristine = None
        if self._slot is not None:
            self._tenancy.slots.give_back(self._slot)
            self._slot = None

    def _execute(self, sql: str) -> QueryResult:
        readers, pristine = self._tenancy.readers, self._pristine
        reads = only_reads(sql)
        if reads and self._slot is None and pristine is not None and readers is not None:
            result = readers.read(pristine.name, lambda session: session.execute(sql))
            if not (result.error and _DENIED.match(result.error)):
                return result
        kind = kind_of(sql)
        if kind == "denied":
            return QueryResult(
                None, message(1227, "Access denied; you need a privilege that you do not have")
            )
        slot = self._own()
        if slot.full and not reads:
            return _FULL
        with self._session(slot) as session:
            slot.plain = slot.plain and kind == "plain"
            slot.stateless = slot.stateless and kind != "other"
            result = session.execute(sql)
            if session.broken:
                slot.plain = False  # the statement may still run, and hold the tables
            if reads or session.broken:
                return result
            if result.rows is not None:
                # these names differ from run to run, which observations must not
                result = dataclasses.replace(result, rows=_without(slot.name, result.rows))
            if result.limit == "time" and not slot.stateless:
                session.broken = "its statement was stopped, and may have done a part of its work"
            elif self._grew_too_large(slot, result):
                slot.full = True
                return _FULL
        return result

    def _grew_too_large(self, slot: Slot, result: QueryResult) -> bool:
        """Asks the server only when enough time or rows have gone by for much to have been written."""
        self._seconds += result.seconds
        if self._seconds < 0.2 and (result.affected or 0) < 10_000:
            return False
        self._seconds = 0.0
        return self._tenancy.size(slot.name) > TABLE_BYTES

    def _own(self) -> Slot:
        if self._slot is None:
            self._slot = self._tenancy.take_slot(self._task)
        return self._slot

    @contextlib.contextmanager
    def _session(self, slot: Slot) -> Iterator[Session]:
        if slot.lost or self._tenancy.over:
            raise EnvironmentFault("The sandbox is lost")
        try:
            with self._tenancy.slots.using(slot) as session:
                yield session
        except EnvironmentFault:
            slot.failed = True
            raise
        except SQLAlchemyError as error:
            slot.failed = True
            raise fault(error) from None

    def _read_all(self, session: Session, name: str) -> State:
        limits = Limits(rows=STATE_ROWS, characters=STATE_CHARACTERS)
        state: State = {}
        try:
            tables = session.connection.exec_driver_sql(f"SHOW FULL TABLES FROM `{name}`").fetchall()
            for table, kind in tables:
                if kind == "BASE TABLE" and not session.broken:
                    with contextlib.suppress(_Unreadable):
                        # LIMIT also overrides a sql_select_limit that the agent may have set
                        state[table] = self._read(
                            session, f"`{name}`.{quote(table)} LIMIT {STATE_ROWS}", limits
                        )
        except DBAPIError as error:
            if error_code(error) == _UNKNOWN_DATABASE and self._tenancy.held():
                return {}  # dropped by the agent
            raise session.fail(error) from None
        return state

    def _read(self, session: Session, what: str, limits: Limits) -> list[tuple]:
        """
        Raises:
            _Unreadable: by the agent's doing; no task has such a table.
            DBAPIError: the database failed.
        """
        # under a time limit of its own, not under that of the agent's statements
        query = (
            f"SELECT /*+ MAX_EXECUTION_TIME({1000 * STATE_SECONDS}) */ * FROM {what}"
            if self._tenancy.dialect == "mysql"
            else f"SET STATEMENT max_statement_time={STATE_SECONDS} FOR SELECT * FROM {what}"
        )
        try:
            return session.rows(query, limits)
        except DBAPIError as error:
            code = error_code(error)
            if code == TOO_LARGE:
                session.broken = TOO_LARGE_A_ROW
            elif is_environment_fault(code) or is_time_limit(code) or not self._tenancy.held():
                raise
            raise _Unreadable from None
