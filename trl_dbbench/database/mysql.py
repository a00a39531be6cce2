"""MySQL and MariaDB: a task's tables are made once, and again for whoever changes them.

```
the run   dbb_<run>_r<rank>
  ├── pristine databases   ..._t<n>: one per task, which nobody changes
  │     └── readers        connections of one account that may only SELECT there
  └── slots                ..._s<n>: an account, its one connection, and a database of the same name
```

An episode begins with the pristine tables: a statement that can only read them runs on any idle reader. The first
statement that might do more gets the episode a slot with tables of its own, for good; an episode whose task asks
for a change gets it at once, while the model still writes. Slots are lent again. One whose agent ran anything but
plain reads and writes (SET, BEGIN, LOCK TABLES, a user variable, ...) may have changed its session or its account's
password: it is thrown away.

What counts as reading is decided on the text and in doubt is no. The server guards it: the readers' account can
change nothing, and what it is denied is tried again in a slot, whose account has no rights elsewhere.

Statements run with autocommit, as in MySQL's own client; an agent that writes BEGIN has its transaction. The
state is read on the agent's connection, so that what it has not committed counts.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ..errors import DatabaseError, EnvironmentFault, TaskError
from ..tasks import Table, Task
from . import accounts
from .accounts import Account
from .connections import (
    ADMIN_SECONDS,
    CONNECT_SECONDS,
    connect_advice,
    engine,
    error_code,
    error_text,
    fault,
    parse_url,
)
from .faults import is_environment_fault, is_time_limit, message
from .mysql_parse import kind_of, only_reads
from .pristine import Kept, Pristine, fill, quote
from .sandbox import (
    STATE_ROWS,
    Database,
    Limits,
    QueryResult,
    Sandbox,
    State,
    check_rows,
    refuse,
)
from .session import Session, Watchdog

logger = logging.getLogger("trl_dbbench.database")

T = TypeVar("T")

_UNKNOWN_DATABASE = 1049
_DENIED = re.compile(r"(?:1044|1142|1143|1227|1370) \(")
"""What a reader is told that an account with a database of its own may do there."""


class MySQLDatabase(Database):
    """A MySQL-family server at a URL.

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
        where: str | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.url = url
        self.limits = limits
        self._url = parse_url(url)
        self._owner = f"dbb_{run}_r{rank}"
        self._on_close = on_close
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._idle: list[_Slot] = []
        self._all: set[_Slot] = set()
        self._readers: list[Session] = []
        self._reading: Account | None = None
        self._watchdog = Watchdog()
        self.closed = False
        self._admin = engine(self._url, ADMIN_SECONDS)
        try:
            version = self._reach()
            self.dialect = "mariadb" if "MariaDB" in version else "mysql"
            product = "MariaDB" if self.dialect == "mariadb" else "MySQL"
            place = where or f"at {self._url.set(database=None).render_as_string(hide_password=True)}"
            self._description = f"{product} {version.split('-')[0]}, {place}"
            self._keeper = self._admin.connect()
            accounts.hold_lock(self._keeper, self._owner)
            self.pristine = Pristine(self._admin, self._owner)
            self._has_accounts = self._try_rights()
            with contextlib.suppress(SQLAlchemyError), self._admin.connect() as admin:
                accounts.sweep(admin, accounts=self._has_accounts)
        except DBAPIError as error:
            self._admin.dispose()
            raise DatabaseError(f"{self._shown()}: {error_text(error)}") from None
        except BaseException:
            self._admin.dispose()
            raise

    def describe(self) -> str:
        return self._description

    def sandbox(self, task: Task) -> Sandbox:
        if self.closed:
            raise DatabaseError("The database was closed. Open it again for more sandboxes.")
        if self._reading is None or not task.is_question:
            return MySQLSandbox(self, task, None, self.take(task))
        with self._failing(task):
            return MySQLSandbox(self, task, self.pristine.take(task.tables), None)

    def close(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
            sessions = [*self._readers, *(slot.session for slot in self._all)]
            self._all.clear()
            self._idle.clear()
            self._readers.clear()
        self._watchdog.close()
        self._threads.shutdown(wait=False)
        for session in sessions:
            session.disconnect()
        try:
            with self._admin.connect() as admin:
                accounts.remove_owned(admin, self._owner, accounts=self._has_accounts)
        except SQLAlchemyError as error:
            logger.warning(
                "%s: what this run made could not be removed: %s", self._shown(), error_text(error)
            )
        with contextlib.suppress(SQLAlchemyError):
            self._keeper.close()
        self._admin.dispose()
        if self._on_close:
            self._on_close()

    # What sandboxes ask for.

    def read(self, pristine: str, what: Callable[[Session], T]) -> T:
        """What `what` reads in this database, on a session that may do no more.

        Raises:
            EnvironmentFault: the database failed.
        """
        try:
            with self._reader(pristine) as session:
                return what(session)
        except EnvironmentFault:  # the server may have closed the idle connection; to read again does no harm
            with self._reader(pristine, new=True) as session:
                return what(session)

    @contextmanager
    def _reader(self, pristine: str, *, new: bool = False) -> Iterator[Session]:
        session = self._take_reader(pristine, new)
        try:
            yield session
        finally:
            with self._lock:
                keep = session.broken is None and not self.closed
                if keep:
                    self._readers.append(session)
            if not keep:
                session.disconnect()

    def take(self, task: Task) -> _Slot:
        """A slot with the task's tables.

        Raises:
            EnvironmentFault: the database failed.
            TaskError: the tables cannot be made as the task describes them.
        """
        for table in task.tables:
            check_rows(table)
        with self._lock:
            slot = self._idle.pop() if self._idle else None
        if slot is not None:
            try:
                slot.make(task.tables)
                return slot
            except DBAPIError:  # the server may have closed the idle connection
                self._discard(slot)
        with self._failing(task):
            slot = self._new_slot()
            try:
                slot.make(task.tables)
            except DBAPIError:
                self._discard(slot)
                raise
        return slot

    def give_back(self, slot: _Slot, *, sound: bool) -> None:
        """Lends the slot to the next episode if it is sound."""
        if sound and slot.session.broken is None:
            with contextlib.suppress(SQLAlchemyError):
                slot.empty()
                with self._lock:
                    if not self.closed:
                        self._idle.append(slot)
                        return
        self._discard(slot)

    @contextmanager
    def _failing(self, task: Task) -> Iterator[None]:
        """Says whose fault it is that tables cannot be made."""
        try:
            yield
        except DBAPIError as error:
            code = error_code(error)
            if is_environment_fault(code) or is_time_limit(code):
                raise fault(error) from None
            raise TaskError(f"Task {task.id!r}: its tables cannot be made: {error_text(error)}") from None

    # Opening.

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

    def _try_rights(self) -> bool:
        """Make the first slot; returns whether accounts can be created.

        Raises:
            DatabaseError: databases cannot be created.
        """
        name = self._next_name()
        with self._admin.connect() as admin:
            try:
                admin.exec_driver_sql(f"CREATE DATABASE `{name}`")
                accounts.drop_database(admin, name)
            except DBAPIError as error:
                pattern = r"`dbb\_%`"
                raise DatabaseError(
                    f"{self._shown()}: this account may not create databases ({error_text(error)}). Every rollout gets "
                    f"its own: run GRANT ALL ON {pattern}.* TO {self._url.username!r} on the server, or give another "
                    "account."
                ) from None
            try:
                self._idle.append(_Slot(name, self._connect(accounts.create_account(admin, name))))
                self._all.update(self._idle)
            except DBAPIError as error:
                with contextlib.suppress(SQLAlchemyError):
                    accounts.drop_account(admin, name)
                logger.warning(
                    "%s: no account of its own for the agent (%s). Its statements run under the given account and "
                    "reach all that it may reach; give an account with CREATE USER and GRANT OPTION to prevent that.",
                    self._shown(),
                    error_text(error),
                )
                return False
            try:
                self._reading = accounts.create_reader(admin, self._next_name(), self._owner)
            except DBAPIError as error:
                logger.debug("%s: no account for pristine tables: %s", self._shown(), error_text(error))
        return True

    # Slots.

    def _next_name(self) -> str:
        return f"{self._owner}_s{next(self._numbers)}"

    def _new_slot(self) -> _Slot:
        name = self._next_name()
        account = None
        if self._has_accounts:
            with self._admin.connect() as admin:
                account = accounts.create_account(admin, name)
        slot = _Slot(name, self._connect(account))
        with self._lock:
            self._all.add(slot)
        return slot

    def _take_reader(self, pristine: str, new: bool) -> Session:
        session = None
        with self._lock:
            if self._readers and not new:
                session = next(
                    (each for each in self._readers if each.database == pristine), self._readers[-1]
                )
                self._readers.remove(session)
        try:
            session = session or self._connect(self._reading)
            if session.database != pristine:
                session.use(pristine)
        except DBAPIError as error:
            if session is not None:
                session.disconnect()
            raise fault(error) from None
        return session

    def _connect(self, account: Account | None) -> Session:
        url = self._url.set(database=None)
        if account is not None:
            url = url.set(username=account.name, password=account.password)
        return Session(url, self.limits, self.dialect, self._admin, self._watchdog)

    def _discard(self, slot: _Slot) -> None:
        """Remove the slot, its database and its account. What fails here, `close` tries again."""
        with self._lock:
            self._all.discard(slot)
            if self.closed:
                return
        slot.session.disconnect()
        with contextlib.suppress(SQLAlchemyError), self._admin.connect() as admin:
            accounts.drop_database(admin, slot.name)
            if self._has_accounts:
                accounts.drop_account(admin, slot.name)


class _Slot:
    """An account, its session, and the database of its name with what tables it holds."""

    def __init__(self, name: str, session: Session) -> None:
        self.name = name
        self.session = session
        self._tables: tuple[Table, ...] | None = None
        """`None` where the database may not be there, or may hold anything."""

    def make(self, tables: tuple[Table, ...]) -> None:
        """Makes the tables, and the database if it is not there."""
        connection = self.session.connection
        if self._tables is None:
            accounts.drop_database(connection, self.name)
            connection.exec_driver_sql(f"CREATE DATABASE `{self.name}` CHARACTER SET utf8mb4")
            self.session.use(self.name)
        self._tables = None
        for table in tables:
            fill(connection, table)
        self._tables = tables

    def empty(self) -> None:
        """Drops the tables, after an episode that can have made no others."""
        if self._tables:
            names = ", ".join(quote(table.name) for table in self._tables)
            self.session.connection.exec_driver_sql(f"DROP TABLE {names}")
        self._tables = ()


class MySQLSandbox(Sandbox):
    """A task's tables for one rollout: the pristine ones, until it has its own in a slot."""

    def __init__(
        self, database: MySQLDatabase, task: Task, pristine: Kept | None, slot: _Slot | None
    ) -> None:
        self._database = database
        self._task = task
        self._pristine = pristine
        self._slot = slot
        self._plain = True
        self._closed = False

    def execute(self, sql: str) -> QueryResult:
        self._check_usable()
        if refused := refuse(sql):
            return QueryResult(None, refused)
        if self._slot is None and self._pristine is not None and only_reads(sql):
            result = self._database.read(self._pristine.name, lambda session: session.execute(sql))
            if not (result.error and _DENIED.match(result.error)):
                return result
        slot = self._own()
        kind = kind_of(sql)
        if kind == "kill":
            # It could only end this very connection, which would look like a failure of the server.
            return QueryResult(None, message(1227, "Access denied; you need the CONNECTION_ADMIN privilege"))
        self._plain = self._plain and kind == "plain"
        return slot.session.execute(sql)

    def state(self) -> State:
        self._check_usable()
        if self._slot is None and self._pristine is not None:
            name = self._pristine.name
            return self._database.read(name, lambda session: _read_all(session, name))
        slot = self._own()
        if not self._plain:
            try:
                slot.session.connection.exec_driver_sql("UNLOCK TABLES")
                slot.session.connection.exec_driver_sql("SET NAMES utf8mb4")
            except DBAPIError as error:
                raise slot.session.fail(error) from None
        return _read_all(slot.session, slot.name)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pristine is not None:
            self._database.pristine.give_back(self._pristine)
        if self._slot is not None:
            self._database.give_back(self._slot, sound=self._plain)

    def _own(self) -> _Slot:
        if self._slot is None:
            self._slot = self._database.take(self._task)
        return self._slot

    def _check_usable(self) -> None:
        if self._closed or self._database.closed:
            raise DatabaseError("The sandbox is closed. Take another from Database.sandbox().")
        if self._slot is not None and self._slot.session.broken:
            raise EnvironmentFault(f"The sandbox broke before: {self._slot.session.broken}")


def _read_all(session: Session, name: str) -> State:
    try:
        tables = session.connection.exec_driver_sql(f"SHOW FULL TABLES FROM `{name}`").fetchall()
        # LIMIT also overrides a sql_select_limit that the agent may have set.
        return {
            table: [
                tuple(row)
                for row in session.connection.exec_driver_sql(
                    f"SELECT * FROM `{name}`.{quote(table)} LIMIT {STATE_ROWS}"
                )
            ]
            for table, kind in tables
            if kind == "BASE TABLE"
        }
    except DBAPIError as error:
        if error_code(error) == _UNKNOWN_DATABASE:
            return {}  # dropped by the agent
        raise session.fail(error) from None
