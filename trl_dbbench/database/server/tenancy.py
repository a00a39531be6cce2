"""A run's lock, accounts, databases and connections on a server, until the run or the server ends.

```
the run   dbb_<run>_r<rank>
  ├── pristine databases   ..._t<n>: one per distinct tables of tasks, or per shared source; never changed
  │     └── readers        connections of one account that may only SELECT there
  ├── slots                ..._s<n>: an account, a database of the same name, a connection while there is room
  └── observers            connections of ours that read the state that an agent has left
```
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakValueDictionary

from sqlalchemy import Engine
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from trl_dbbench.database.base import Database
from trl_dbbench.database.dialect import ServerDialect
from trl_dbbench.database.error_numbers import TIME_LIMITS, is_environment_fault, is_full_disk
from trl_dbbench.database.sandbox import Limits, Sandbox
from trl_dbbench.database.server import ownership
from trl_dbbench.database.server.connections import (
    ADMIN_SECONDS,
    CONNECT_SECONDS,
    KILL_SECONDS,
    as_fault,
    connections_for_files,
    error_code,
    error_text,
    files_advice,
    make_engine,
    shown,
    text_of,
)
from trl_dbbench.database.server.ownership import Account
from trl_dbbench.database.server.pristine import PristineDatabases
from trl_dbbench.database.server.pulse import PROBE_SECONDS, Probe, Pulse
from trl_dbbench.database.server.session import Host, Readers, Session
from trl_dbbench.database.server.slots import Slots
from trl_dbbench.database.server.sources import LOADERS, SourceLoader
from trl_dbbench.database.server.watchdog import Watchdog
from trl_dbbench.errors import DatabaseError, TaskError
from trl_dbbench.tasks import Task

LAST_WORDS = 2_000
"""Characters of the log before a fatal signal in which a server says why it ends."""

_SIGNAL = re.compile(r"got signal \d+")
_FAILED = re.compile(r"^\S+ +(?:\S+ )?([1-9]\d*) \[ERROR\] (?:\[FATAL\]|.*Assertion failure)", re.MULTILINE)
_CONNECTION = re.compile(r"^Connection ID \(thread ID\): (\d+)\nStatus: ", re.MULTILINE)


def crashed(log: str) -> set[int]:
    """Return the connections whose statements caused a failed assertion or a fatal signal, read from the log.

    The log quotes the statement after the signal and before its connection, so an agent cannot forge these
    lines. A full disk is blamed on no statement.
    """
    signals = [found.start() for found in _SIGNAL.finditer(log)]
    if not signals:
        return set()
    before, after = log[: signals[0]], log[signals[0] :]
    if is_full_disk(before[-LAST_WORDS:]):
        return set()
    numbers = {*_FAILED.findall(before), *_CONNECTION.findall(after)[-1:]}
    return {int(number) for number in numbers} - {0}


logger = logging.getLogger("trl_dbbench.database")

ADMIN_CONNECTIONS = 8
"""Most connections for the run's lock, and for making and removing tables and accounts."""

MAKER_CONNECTIONS = 4
"""Most connections for making the tables of slots and restoring their rows."""

KILL_CONNECTIONS = 4

OBSERVERS = 4
"""Most connections that read states; reading one takes a few milliseconds."""

SPARE_READERS = 2
"""Readers in addition to one per statement that may run at once. Slots leave connections free for them."""

MIN_CONNECTIONS = 3
"""Fewest connections for statements that a rank plans with, even if the server seems to allow fewer."""

FEW_CONNECTIONS = 24
"""Connections for statements on a rank below which a warning is logged."""


class Tenancy(Host):
    """A run's resources on a server, from construction until `close` or `leave`.

    Args:
        owner: `dbb_<run>_r<rank>`.
        numbers: numbers for new names, which no other tenancy of the run has used. Threads draw from it
            concurrently.
        ranks: the number of processes that share the server.
        require_accounts: refuse a server on which slots cannot have their own accounts.

    Raises:
        DBAPIError: the server cannot be reached.
        DatabaseError: the URL's account does not have the necessary rights.
    """

    def __init__(
        self,
        url: URL,
        owner: str,
        numbers: Iterator[int],
        *,
        dialect: ServerDialect,
        limits: Limits,
        watchdog: Watchdog,
        ranks: int,
        own_server: bool,
        require_accounts: bool,
    ) -> None:
        self.owner = owner
        self.over = False
        self.own_server = own_server
        self.dialect = dialect
        self.limits = limits
        self.url = url
        self.watchdog = watchdog
        self.admin = make_engine(url, ADMIN_SECONDS, connections=ADMIN_CONNECTIONS)
        quick = partial(make_engine, url, KILL_SECONDS, connect_timeout=KILL_SECONDS)
        self.killer = quick(connections=KILL_CONNECTIONS)
        self._killed: dict[int, float] = {}
        """Connection number -> time at which its statement was first seen killed but still running."""
        self.users: WeakValueDictionary[int, Sandbox] = WeakValueDictionary()
        """Connection number -> the sandbox whose statement ran there last."""
        self.pulse = Pulse(quick(connections=1))
        # not a generator, as several threads cannot draw from one concurrently
        names = map(f"{owner}_s{{:07d}}".format, numbers)
        try:
            self._keeper = self.admin.connect()
            self.keeper_number = ownership.hold_lock(self._keeper, owner)
            self.ahead = float(self._keeper.exec_driver_sql("SELECT @@timestamp").scalar() or 0) - time.time()
            """Seconds by which the server's clock is ahead of ours."""
            self.lowers_names = self._keeper.exec_driver_sql("SELECT @@lower_case_table_names").scalar() == 1
            """True if the server stores table names in lower case."""
            connections = self._connections(self._keeper, ranks)
            self.statements = max(1, min(Database.statements_at_once, connections // 3))
            with self.admin.connect() as admin:
                self._reader = self._prepare(admin, names, require_accounts)
                self._probe = Probe(self._probing(admin, next(names)))
        except BaseException:
            self._dispose()
            raise
        self.loader = SourceLoader(url, dialect, lambda name: self.size(name, 0))
        self.pristine = PristineDatabases(self.admin, self.loader, owner, numbers)
        self.readers = None
        if self._reader is not None:
            connect = partial(self.session, self._reader)
            self.readers = Readers(connect, self.statements + SPARE_READERS)
        self.observers = Readers(partial(self.session, None), OBSERVERS)
        makers = make_engine(url, ADMIN_SECONDS, connections=MAKER_CONNECTIONS, ping=False)
        self.slots = Slots(self, makers, names, max(1, connections - self.statements - SPARE_READERS))

    def failing(self, since: float) -> str | None:
        """Return the reason for which our own statements failed since `since`, or `None`; see `Probe`."""
        if self.over:
            return "The server was restarted"
        return self._probe.failing(since)

    def held(self, engine: Engine | None = None) -> bool:
        """Return whether the server answers and still holds what this tenancy made.

        Args:
            engine: engine for the connection to check on; by default `admin`.
        """
        try:
            with (engine or self.admin).connect() as connection:
                return not self.over and self.holds_lock(connection)
        except SQLAlchemyError:
            return False

    def answers(self) -> bool:
        """Return `held` for a server that may be lost, on a new connection that waits `CONNECT_SECONDS`."""
        engine = make_engine(self.url, CONNECT_SECONDS, connections=1)
        try:
            return self.held(engine)
        finally:
            engine.dispose()

    @contextmanager
    def making(self, task: Task) -> Iterator[None]:
        """Turn an error of a block that makes tables into EnvironmentFault or TaskError, by who caused it."""
        try:
            yield
        except SQLAlchemyError as error:
            if self.server_failed(error):
                raise as_fault(error, down=True) from None
            raise TaskError(f"Task {task.id!r}: its tables cannot be made: {error_text(error)}") from None

    def server_failed(self, error: SQLAlchemyError) -> bool:
        """Return whether an error of one of our own statements is a failure of the server."""
        code = error_code(error)
        return is_environment_fault(code, error_text(error)) or code in TIME_LIMITS or not self.held()

    def size(self, database: str, connection: int) -> int:
        """Return the bytes on disk of a database's tables and a connection's temporary ones; 0 if unknown."""
        names = {"files": database.replace("_", r"\_") + "/%", "database": database, "connection": connection}
        with contextlib.suppress(SQLAlchemyError), self.admin.connect() as admin:
            *settings, size = self.dialect.database_size
            for setting in settings:
                admin.exec_driver_sql(setting)
            return int(admin.exec_driver_sql(size, names).scalar() or 0)
        return 0

    def temporary_bytes(self) -> int:
        """Return the size, in bytes, of the file that holds all temporary tables; 0 if there is none.

        The file grows only if it has no free space left inside.
        """
        with contextlib.suppress(SQLAlchemyError), self.admin.connect() as admin:
            if self.dialect.temporary_size is not None:
                return int(admin.exec_driver_sql(self.dialect.temporary_size).scalar() or 0)
        return 0

    def runaways(self, seconds: float) -> list[int]:
        """Return the connections whose statements still run `seconds` after they were killed."""
        now = time.monotonic()
        # after a standstill, statements killed just now would look old
        if self.pulse.stood_still(now - 2 * (self.limits.seconds + seconds)):
            return []
        with contextlib.suppress(SQLAlchemyError, DatabaseError), self.admin.connect() as admin:
            # not by the seconds that the server reports, which depend on the session's clock
            self._killed = {number: self._killed.get(number, now) for number in ownership.killed(admin)}
            return [number for number, since in self._killed.items() if now - since > seconds]
        return []

    def lay_blame(self, connections: Iterable[int]) -> None:
        """Mark the sandboxes whose statements ran on these connections as having ended the server."""
        for number in connections:
            if (sandbox := self.users.get(number)) is not None:
                sandbox.brought_down = True

    def leave(self) -> None:
        """End all connections. Databases and accounts stay on the server; `close` removes them first."""
        self.over = True
        self._close_sessions()
        self._dispose()

    def close(self) -> None:
        """Remove everything that the run has made on the server, then leave it."""
        self._close_sessions()
        try:
            with self.admin.connect() as admin:
                ownership.remove_owned(admin, self.owner, accounts=self.has_accounts)
                if self._reader is not None:
                    ownership.drop_account(admin, self._reader.name)
        except SQLAlchemyError as error:
            logger.warning(
                "%s: what this run made could not be removed (the next run will do it): %s",
                shown(self.url),
                error_text(error),
            )
        self.leave()

    def _close_sessions(self) -> None:
        self.loader.close()
        if self.readers is not None:
            self.readers.close()
        self.observers.close()
        self.slots.close()

    def _probing(self, admin: Connection, name: str) -> Engine:
        """Return the probe's engine, with its own database and, if possible, an account like an agent's."""
        admin.exec_driver_sql(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        url = self.url_of(ownership.create_account(admin, name) if self.has_accounts else None)
        setting = self.dialect.set_time_limit(PROBE_SECONDS)
        url = url.set(database=name)
        return make_engine(url, PROBE_SECONDS, connect_timeout=KILL_SECONDS, init_command=setting)

    def _connections(self, keeper: Connection, ranks: int) -> int:
        """Return how many connections this rank may have for statements."""
        # the second is our account's own limit, or the default for all accounts; 0 means no limit
        lent, lent_to_us = keeper.exec_driver_sql("SELECT @@max_connections, @@max_user_connections").one()
        _, others = keeper.exec_driver_sql("SHOW STATUS LIKE 'Threads_connected'").one()
        free, limit = int(lent) - int(others), f"max_connections = {lent}"
        if 0 < int(lent_to_us) < free:
            free, limit = int(lent_to_us), f"max_user_connections = {lent_to_us}"
        by_server, by_process = int(0.9 * free / ranks), connections_for_files()
        ours = ADMIN_CONNECTIONS + MAKER_CONNECTIONS + KILL_CONNECTIONS + OBSERVERS + LOADERS
        share = min(by_server, by_process) - ours
        if share < MIN_CONNECTIONS and by_process < by_server:
            raise DatabaseError(f"{shown(self.url)}: too few connections: {files_advice()}")
        if share < FEW_CONNECTIONS:
            logger.warning(
                "%s: only %d connections are left for statements on each of %d ranks, and rollouts will wait "
                "for one another: %s",
                shown(self.url),
                max(share, MIN_CONNECTIONS),
                ranks,
                files_advice() if by_process < by_server else f"{limit}. Raise it on the server.",
            )
        return max(share, MIN_CONNECTIONS)

    def _prepare(self, admin: Connection, names: Iterator[str], require_accounts: bool) -> Account | None:
        """Check the rights of the given account, and remove what killed runs have left.

        Returns:
            The readers' account; `None` if none can be made.
        """
        self._try_database(admin, next(names))
        problem = self._try_account(admin, next(names))
        if problem and require_accounts:
            raise DatabaseError(
                f"{shown(self.url)}: no account of its own for the agent ({problem}), and require_accounts "
                "is set. Give an account with CREATE USER and GRANT OPTION, or leave require_accounts out."
            )
        if problem:
            logger.warning(
                "%s: no account of its own for the agent (%s). Its statements run under the given account "
                "and reach all that it may reach: other databases, files, other connections. Give an account "
                "with CREATE USER and GRANT OPTION to prevent that; require_accounts refuses to run without.",
                shown(self.url),
                problem,
            )
        self.has_accounts = problem is None
        # in this mode, our own account may write but agents' accounts may not
        read_only = text_of(admin.exec_driver_sql("SELECT @@read_only").scalar())
        if self.has_accounts and read_only not in ("", "OFF"):
            raise DatabaseError(
                f"{shown(self.url)}: the server is in read-only mode (read_only = {read_only}); agents "
                "could change nothing there. Name a server that takes changes, or SET GLOBAL read_only = OFF."
            )
        reader = self._try_reader(admin, next(names)) if self.has_accounts else None
        with contextlib.suppress(SQLAlchemyError):
            ownership.sweep(admin, accounts=self.has_accounts)
        return reader

    def _try_database(self, admin: Connection, name: str) -> None:
        try:
            admin.exec_driver_sql(f"CREATE DATABASE `{name}`")
            ownership.drop_database(admin, name)
        except DBAPIError as error:
            if is_environment_fault(error_code(error), error_text(error)):
                raise
            pattern = r"`dbb\_%`"
            raise DatabaseError(
                f"{shown(self.url)}: this account may not create databases ({error_text(error)}). Every "
                f"rollout gets its own: run GRANT ALL ON {pattern}.* TO {self.url.username!r} on the "
                "server, or give another account."
            ) from None

    def _try_account(self, admin: Connection, name: str) -> str | None:
        """Return the reason for which accounts for slots cannot be made, or `None`."""
        problem = None
        try:
            Session(self, ownership.create_account(admin, name)).disconnect()
        except DBAPIError as error:
            if is_environment_fault(error_code(error), error_text(error)):
                raise
            problem = error_text(error)
        with contextlib.suppress(SQLAlchemyError):
            ownership.drop_account(admin, name)
        return problem

    def _try_reader(self, admin: Connection, name: str) -> Account | None:
        try:
            if ownership.names_are_literal(admin):  # each pristine database would need its own GRANT
                return None
            return ownership.create_reader(admin, name, self.owner)
        except DBAPIError as error:
            logger.debug("%s: no account for pristine tables: %s", shown(self.url), error_text(error))
            return None

    def _dispose(self) -> None:
        with contextlib.suppress(SQLAlchemyError, AttributeError):
            self._keeper.close()
        with contextlib.suppress(AttributeError):
            self._probe.close()
        self.pulse.close()
        self.killer.dispose()
        self.admin.dispose()
