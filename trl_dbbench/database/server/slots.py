"""Slots: each is an account, a database of the same name, and a connection as long as there is room for one.

An episode keeps its slot until it gives it back, but is sure of the connection only while a statement runs: a
server lends fewer connections than a run may have episodes. When they run out, the slot that has been idle
longest loses its connection and later opens a new one. An agent's session (transaction, variables, temporary
tables) ends with the connection, so if the agent has used its session, the slot's tables are lost with it and
must be made again. Slots whose agents have not done so share fewer connections than a server lends: each
takes memory on both sides, and a descriptor here.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from trl_dbbench.database.dialect import ServerDialect
from trl_dbbench.database.sandbox import Loss
from trl_dbbench.database.server import ownership
from trl_dbbench.database.server.ownership import Account
from trl_dbbench.database.server.pristine import fill
from trl_dbbench.database.server.session import Session
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.sql import quote
from trl_dbbench.tasks import Table

REMOVING_THREADS = 4

CONNECTIONS_PER_STATEMENT = 4
"""Connections that episodes share without need for a certain one, for each statement that may run at once."""


class Slot:
    """An account, a database, perhaps a connection, and what is known of the agent that has them.

    `plain`: all its statements leave nothing behind but rows in the tables. `stateless`: none of them left
    anything in the session. `full`: its tables have grown as large as they may.
    """

    def __init__(self, name: str, account: Account | None) -> None:
        self.name = name
        self.account = account
        self.session: Session | None = None
        self.plain = True
        self.stateless = True
        self.full = False
        self.busy = False
        self.used = 0
        self.tables: tuple[Table, ...] | None = None
        """`None` if the database may not exist, or may hold anything."""
        self.failed = False
        """The server failed during a statement: nobody knows what the statement did."""
        self.interrupted = False
        """A statement was stopped at a limit, perhaps in a transaction: nobody knows what it left."""
        self._cut_off = False

    @property
    def lost(self) -> Loss | None:
        """Whose doing it is that the agent's changes are gone, or cannot be told from others."""
        if self.failed or self._cut_off:
            return "environment"
        broken = self.session is not None and self.session.broken is not None
        return "agent" if self.interrupted or (broken and not self.stateless) else None

    def hang_up(self) -> None:
        if self.session is not None:
            self._cut_off = self._cut_off or not self.stateless
            self.session.disconnect()
            self.session = None

    def make(self, session: Session, tables: tuple[Table, ...]) -> None:
        """Makes the tables, and before the first ones the database."""
        if self.tables is None:
            session.connection.exec_driver_sql(f"CREATE DATABASE `{self.name}` CHARACTER SET utf8mb4")
            session.use(self.name)
        self.tables = None
        for table in tables:
            fill(session.connection, table)
        self.tables = tables

    def empty(self, session: Session) -> None:
        """Drops the tables, after an episode that cannot have made any others."""
        if self.tables:
            names = ", ".join(quote(table.name) for table in self.tables)
            session.connection.exec_driver_sql(f"DROP TABLE {names}")
        self.tables = ()


class Slots:
    """The slots of a run on one server. Thread-safe.

    Args:
        names: the names of slots to be made.
        connect: opens a session under an account; `None` stands for the account of the database's URL.
        has_accounts: whether slots have accounts of their own. own_server: whether nobody else uses the
            server.
        connections: how many slots may have a connection at a time.
        statements: how many statements may run at once.
    """

    def __init__(
        self,
        admin: Engine,
        names: Iterator[str],
        connect: Callable[[Account | None], Session],
        *,
        dialect: ServerDialect,
        has_accounts: bool,
        own_server: bool,
        connections: int,
        statements: int,
    ) -> None:
        self._admin = admin
        self._dialect = dialect
        self._own_server = own_server
        self._names = names
        self._connect = connect
        self._has_accounts = has_accounts
        self._max_connections = connections
        self._shared_connections = min(connections, CONNECTIONS_PER_STATEMENT * statements)
        self._idle_connections = statements
        self._connected = 0
        self._uses = itertools.count()
        self._all: set[Slot] = set()
        self._idle: list[Slot] = []
        self._free = threading.Condition()
        self._removing = ThreadPoolExecutor(REMOVING_THREADS, thread_name_prefix="dbbench-removing")
        self._closed = False

    def take(self, tables: tuple[Table, ...]) -> Slot:
        """A slot with these tables.

        Raises:
            DBAPIError, EnvironmentFault: the tables cannot be made.
        """
        with self._free:
            slot = self._idle.pop() if self._idle else None
        if slot is not None:
            try:
                with self.using(slot) as session:
                    slot.make(session, tables)
                return slot
            except Exception:  # the server may have closed the idle connection
                self._remove(slot)
        slot = self._new()
        try:
            with self.using(slot) as session:
                slot.make(session, tables)
        except BaseException:
            self._remove(slot)
            raise
        return slot

    @contextmanager
    def using(self, slot: Slot) -> Iterator[Session]:
        """The slot's session, for one statement.

        Raises:
            DBAPIError, EnvironmentFault: the session cannot be opened.
        """
        with self._free:
            slot.busy = True
        try:
            if slot.session is not None and slot.session.broken is not None:
                self._hang_up(slot)
            if slot.session is None:
                self._make_room()
                try:
                    slot.session = self._connect(slot.account)
                    if slot.tables is not None:
                        slot.session.use(slot.name)
                except BaseException:
                    self._hang_up(slot)
                    raise
            yield slot.session
        finally:
            with self._free:
                slot.busy = False
                slot.used = next(self._uses)
                self._free.notify()

    def give_back(self, slot: Slot) -> None:
        """Lends the slot to the next episode, unless this one may have left something in it."""
        if (
            slot.plain
            and not slot.full
            and not slot.lost
            and (slot.session is None or not slot.session.broken)
        ):
            with contextlib.suppress(Exception):
                with self.using(slot) as session:
                    session.renew()
                    session.use(slot.name)  # MariaDB stays in it, but forgets its character set
                    slot.empty(session)
                with self._free:
                    if not self._closed:
                        self._idle.append(slot)
                        connected = [each for each in self._idle if each.session is not None]
                        if len(connected) > self._idle_connections:
                            self._hang_up(connected[0])
                        return
        self._remove(slot)

    def close(self) -> None:
        """Ends all connections. What the slots hold on the server is left for the caller to remove."""
        with self._free:
            self._closed = True
            slots = list(self._all)
            self._all.clear()
            self._idle.clear()
            self._free.notify_all()
        answers = True  # a server that does not is not asked again and again
        for slot in slots:
            answers = answers and self._roll_back_prepared(slot)
            slot.hang_up()
        self._removing.shutdown(wait=False, cancel_futures=True)

    def _new(self) -> Slot:
        name = next(self._names)
        account = None
        if self._has_accounts:
            with self._admin.connect() as admin:
                account = ownership.create_account(admin, name)
        slot = Slot(name, account)
        with self._free:
            self._all.add(slot)
        return slot

    def _make_room(self) -> None:
        """Counts one more connection, after closing another slot's if there are too many."""
        with self._free:
            while self._connected >= self._shared_connections:
                if self._closed:
                    raise EnvironmentFault("The database was closed or its server restarted")
                others = [slot for slot in self._all if slot.session is not None and not slot.busy]
                if any(slot.stateless for slot in others):
                    others = [slot for slot in others if slot.stateless]
                elif self._connected < self._max_connections:
                    break
                if others:
                    self._hang_up(min(others, key=lambda slot: slot.used))
                else:
                    self._free.wait()
            self._connected += 1

    def _hang_up(self, slot: Slot) -> None:
        self._roll_back_prepared(slot)
        with self._free:
            slot.hang_up()
            self._connected -= 1
            self._free.notify()

    def _roll_back_prepared(self, slot: Slot) -> bool:
        """Rolls back what would outlive the slot's connection. Returns whether that still works."""
        # on a server of our own `_drop` does it, which need not know whose a transaction is
        if self._own_server or slot.session is None or slot.stateless:
            return True
        return slot.session.roll_back_prepared()

    def _remove(self, slot: Slot) -> None:
        """Removes the slot, its database and its account. If that fails, the end of the run tries again."""
        with self._free:
            self._all.discard(slot)
            if self._closed:
                return
        if slot.session is not None:
            self._hang_up(slot)
        # in the background: a database cannot be dropped while its last statement is still being undone
        with contextlib.suppress(RuntimeError):  # the pool has been shut down
            self._removing.submit(self._drop, slot.name)

    def _drop(self, name: str) -> None:
        with contextlib.suppress(SQLAlchemyError), self._admin.connect() as admin:
            if self._own_server:
                ownership.roll_back_prepared(admin, self._dialect)
            ownership.drop_database(admin, name)
            if self._has_accounts:
                ownership.drop_account(admin, name)
