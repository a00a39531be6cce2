"""Slots: each is an account, a database of the same name, and a connection as long as there is room for one.

An episode keeps its slot until it gives it back, but is sure of the connection only while a statement runs: a
server lends fewer connections than a run may have episodes. When they run out, the slot that has been idle
longest loses its connection, which becomes another's (`Session.renew`). An agent's session (transaction,
variables, temporary tables) ends with that, so if the agent has used its session, the slot's tables are lost
with it and must be made again. Slots whose agents have not done so share fewer connections than a server
lends: each takes memory on both sides, and a descriptor here.

A slot that is given back keeps its tables for the next episode of a task that has the same (see `slot.py`).
Another task gets the slot that was given back last, and makes its own there. Only for tables that were
dropped so and are asked for again, there are more slots than episodes at once. When these are `MAX_SLOTS`,
such tables take the place of those that have been idle longest.
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
from trl_dbbench.database.server import ownership
from trl_dbbench.database.server.ownership import Account
from trl_dbbench.database.server.session import Session
from trl_dbbench.database.server.slot import Slot
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Table
from trl_dbbench.tasks.model import TablesKey

REMOVING_THREADS = 4

MAX_SLOTS = 256
"""So many slots there are at most for keeping tables. Each takes some 100 kB on the server's disk."""

MAX_DROPPED = 4096
"""So many tables are remembered of those that were dropped last."""

CONNECTIONS_PER_STATEMENT = 4
"""Connections that episodes share without need for a certain one, for each statement that may run at once."""


class Slots:
    """The slots of a run on one server. Thread-safe.

    Args:
        admin: makes and removes slots. makers: make the tables in them.
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
        makers: Engine,
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
        self._makers = makers
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
        """The one that has been idle longest comes first. None of them has a session."""
        self._dropped: dict[TablesKey, None] = {}
        """What tables other tasks' have taken the place of, in that order."""
        self._sessions: list[Session] = []
        """Those that nobody uses, of any account."""
        self._free = threading.Condition()
        self._removing = ThreadPoolExecutor(REMOVING_THREADS, thread_name_prefix="dbbench-removing")
        self._closed = False

    def take(self, key: TablesKey, tables: tuple[Table, ...]) -> Slot:
        """A slot with these tables, which `key` stands for.

        Raises:
            DBAPIError, EnvironmentFault: the tables cannot be made.
        """
        if (slot := self._take_idle(key)) is not None:
            try:
                return self._with_tables(slot, key, tables)
            except Exception:  # the server may have closed an idle connection
                self._remove(slot)
        slot = self._new()
        try:
            return self._with_tables(slot, key, tables)
        except BaseException:
            self._remove(slot)
            raise

    def show(self, slot: Slot) -> None:
        """Prepares the slot's tables for a statement that may show more of them than rows and columns.

        Raises:
            DBAPIError: the server failed.
        """
        slot.key = None
        if slot.kept:
            with self._makers.connect() as maker:
                slot.make_anew(maker)

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
                slot.session = self._session_of(slot)
            yield slot.session
        finally:
            with self._free:
                slot.busy = False
                slot.used = next(self._uses)
                self._free.notify()

    def give_back(self, slot: Slot) -> None:
        """Lends the slot to the next episode, unless this one may have left something in it."""
        with self._free:
            session = slot.session
            broken = session is not None and session.broken is not None
            lent_again = slot.plain and not slot.full and not slot.lost and not broken
            if lent_again:
                slot.session = None
        if not lent_again:
            self._remove(slot)
            return
        if session is not None:
            self._put_back(session)
        try:
            if not slot.can_keep:
                with self._makers.connect() as maker:
                    slot.empty(maker)
        except Exception:  # whose that is, whoever needs the server next finds out
            self._remove(slot)
            return
        with self._free:
            if not self._closed:
                self._idle.append(slot)

    def close(self) -> None:
        """Ends all connections. What the slots hold on the server is left for the caller to remove."""
        with self._free:
            self._closed = True
            slots = list(self._all)
            self._all.clear()
            self._idle.clear()
            sessions = list(self._sessions)
            self._sessions.clear()
            self._free.notify_all()
        answers = True  # a server that does not is not asked again and again
        for slot in slots:
            answers = answers and self._roll_back_prepared(slot)
            slot.hang_up()
        for session in sessions:
            session.disconnect()
        self._makers.dispose()
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

    def _take_idle(self, key: TablesKey) -> Slot | None:
        """An idle slot with the tables, or an empty one, or another's; `None` if a new one is worth it."""
        with self._free:
            for wanted in (key, None):
                for place in reversed(range(len(self._idle))):
                    if self._idle[place].key == wanted:
                        return self._idle.pop(place)
            come_again = key in self._dropped
            if not self._idle or (come_again and len(self._all) < MAX_SLOTS):
                return None
            # tables that may never come again take the place of the latest: the server has it at hand, and
            # those that were kept long stay
            slot = self._idle.pop(0 if come_again else -1)
            if slot.key is not None:
                self._dropped.pop(slot.key, None)
                self._dropped[slot.key] = None
            if len(self._dropped) > MAX_DROPPED:
                del self._dropped[next(iter(self._dropped))]
            return slot

    def _with_tables(self, slot: Slot, key: TablesKey, tables: tuple[Table, ...]) -> Slot:
        with self._makers.connect() as maker:
            if slot.key == key:
                slot.restore(maker)
            else:
                slot.make(maker, key, tables)
        with self.using(slot):  # its connection is opened while the model is writing
            return slot

    def _session_of(self, slot: Slot) -> Session:
        """A session of the slot's account, in its database, as new."""
        session = self._spare_session()
        try:
            if session is not None:
                try:
                    session.renew(slot.name, slot.account)
                    return session
                except EnvironmentFault:  # the server may have closed it while it was idle
                    session.disconnect()
            session = self._connect(slot.account)
            session.renew(slot.name)
            return session
        except BaseException:
            if session is not None:
                session.disconnect()
            with self._free:
                self._connected -= 1
                self._free.notify()
            raise

    def _spare_session(self) -> Session | None:
        """A session for another slot; `None` if one more can be opened, which is counted already."""
        with self._free:
            while not self._sessions and self._connected >= self._shared_connections:
                if self._closed:
                    raise EnvironmentFault("The database was closed or its server restarted")
                others = [slot for slot in self._all if slot.session is not None and not slot.busy]
                if any(slot.stateless for slot in others):
                    others = [slot for slot in others if slot.stateless]
                elif self._connected < self._max_connections:
                    break
                if not others:
                    self._free.wait()
                    continue
                slot = min(others, key=lambda slot: slot.used)
                if slot.stateless and slot.session is not None and slot.session.broken is None:
                    session, slot.session = slot.session, None
                    return session
                self._hang_up(slot)
            if self._sessions:
                return self._sessions.pop()
            self._connected += 1
            return None

    def _put_back(self, session: Session) -> None:
        """Keeps a session for whoever needs one next; what an agent left in it ends now."""
        with contextlib.suppress(EnvironmentFault):
            session.clear()
        with self._free:
            keep = (
                session.broken is None and not self._closed and len(self._sessions) < self._idle_connections
            )
            if keep:
                self._sessions.append(session)
            else:
                self._connected -= 1
            self._free.notify()
        if not keep:
            session.disconnect()

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
