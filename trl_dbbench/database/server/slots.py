"""Slots: an account, a database of its name, and a connection while there is room for one.

A slot belongs to one episode until that gives it back, but its connection only while a statement runs: a server
lends fewer connections than a run may have episodes. Where they run out, the slot that was used longest ago loses
its own. That costs it a new one; but an agent's session (transaction, variables, temporary tables) ends with its
connection, so the tables of a slot whose agent has used one are lost with it and must be made again.
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

from trl_dbbench.database.server import accounts
from trl_dbbench.database.server.accounts import Account
from trl_dbbench.database.server.pristine import fill, quote
from trl_dbbench.database.server.session import Session
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Table


class Slot:
    """See the module.

    `plain`: its agent ran statements only that leave nothing behind but rows in the tables. `stateless`: none that
    leave anything in the session. `full`: its tables have grown as large as they may.
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
        """`None` where the database may not be there, or may hold anything."""
        self.failed = False
        """The server failed under a statement: nobody knows what it did."""
        self._cut_off = False

    @property
    def lost(self) -> bool:
        """Whether what the agent did is not to be had any more."""
        broken = self.session is not None and self.session.broken is not None
        return self.failed or self._cut_off or (broken and not self.stateless)

    def hang_up(self) -> None:
        if self.session is not None:
            self._cut_off = self._cut_off or not self.stateless
            self.session.disconnect()
            self.session = None

    def make(self, session: Session, tables: tuple[Table, ...]) -> None:
        """Makes the tables, and the database if it is not there."""
        if self.tables is None:
            accounts.drop_database(session.connection, self.name)
            session.connection.exec_driver_sql(f"CREATE DATABASE `{self.name}` CHARACTER SET utf8mb4")
            session.use(self.name)
        self.tables = None
        for table in tables:
            fill(session.connection, table)
        self.tables = tables

    def empty(self, session: Session) -> None:
        """Drops the tables, after an episode that can have made no others."""
        if self.tables:
            names = ", ".join(quote(table.name) for table in self.tables)
            session.connection.exec_driver_sql(f"DROP TABLE {names}")
        self.tables = ()


class Slots:
    """The slots of a run on one server. Thread-safe.

    Args:
        names: of slots to be made.
        connect: opens a session under an account, or under the given one for `None`.
        has_accounts: whether slots have accounts of their own.
        connections: how many of the slots may have one at a time.
    """

    def __init__(
        self,
        admin: Engine,
        names: Iterator[str],
        connect: Callable[[Account | None], Session],
        *,
        has_accounts: bool,
        connections: int,
    ) -> None:
        self._admin = admin
        self._names = names
        self._connect = connect
        self._has_accounts = has_accounts
        self._most = connections
        self._connected = 0
        self._uses = itertools.count()
        self._all: set[Slot] = set()
        self._idle: list[Slot] = []
        self._free = threading.Condition()
        self._removing = ThreadPoolExecutor(4, thread_name_prefix="dbbench-removing")
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
            DBAPIError, EnvironmentFault: it cannot be opened.
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
        """Lends the slot to the next episode if nothing of this one is left in it."""
        if (
            slot.plain
            and not slot.full
            and not slot.failed
            and (slot.session is None or not slot.session.broken)
        ):
            with contextlib.suppress(Exception):
                with self.using(slot) as session:
                    slot.empty(session)
                with self._free:
                    if not self._closed:
                        self._idle.append(slot)
                        return
        self._remove(slot)

    def close(self) -> None:
        """Ends all connections; what the slots hold on the server is the caller's to remove."""
        with self._free:
            self._closed = True
            slots = list(self._all)
            self._all.clear()
            self._idle.clear()
            self._free.notify_all()
        for slot in slots:
            slot.hang_up()
        self._removing.shutdown(wait=False, cancel_futures=True)

    def _new(self) -> Slot:
        name = next(self._names)
        account = None
        if self._has_accounts:
            with self._admin.connect() as admin:
                account = accounts.create_account(admin, name)
        slot = Slot(name, account)
        with self._free:
            self._all.add(slot)
        return slot

    def _make_room(self) -> None:
        """Counts one more connection; takes another slot's first if there are too many."""
        with self._free:
            while self._connected >= self._most:
                if self._closed:
                    raise EnvironmentFault("The database was closed or its server restarted")
                others = [slot for slot in self._all if slot.session is not None and not slot.busy]
                if others:
                    # those first that lose nothing by it
                    self._hang_up(min(others, key=lambda slot: (not slot.stateless, slot.used)))
                else:
                    self._free.wait()
            self._connected += 1

    def _hang_up(self, slot: Slot) -> None:
        with self._free:
            slot.hang_up()
            self._connected -= 1
            self._free.notify()

    def _remove(self, slot: Slot) -> None:
        """Removes the slot, its database and its account. What fails here, the end of the run tries again."""
        with self._free:
            self._all.discard(slot)
            if self._closed:
                return
        if slot.session is not None:
            self._hang_up(slot)
        # beside: a database whose last statement is still being undone cannot be dropped before that ends
        with contextlib.suppress(RuntimeError):  # shut down meanwhile
            self._removing.submit(self._drop, slot.name)

    def _drop(self, name: str) -> None:
        with contextlib.suppress(SQLAlchemyError), self._admin.connect() as admin:
            accounts.drop_database(admin, name)
            if self._has_accounts:
                accounts.drop_account(admin, name)
