"""Slots: each is an account, a database of the same name, and a connection as long as there is room for one.

A server lends fewer connections than a run may have episodes, so an episode is sure of its connection only
while a statement runs. When they run out, the slot that has been idle longest loses its own to another
(`Session.renew`). An agent's session (transaction, variables, temporary tables) ends with that; if the agent
has used it, the slot's tables are lost as well and must be made again. Slots whose agents have not used their
sessions share fewer connections than a server lends: each takes memory on both sides, and a descriptor here.

A slot that is given back keeps its tables for the next episode that has the same (see `Slot`). Others take
the slot that was given back last, and make their tables there. Only for tables that were dropped so and are
asked for again, there are more slots than episodes at once: up to `MAX_SLOTS`, after which such tables take
the place of those that have been idle longest.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from trl_dbbench.database.sandbox import Loss, QueryResult
from trl_dbbench.database.server import ownership
from trl_dbbench.database.server.ownership import Account
from trl_dbbench.database.server.pristine import fill, fill_rows
from trl_dbbench.database.server.session import Host, Session
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Table
from trl_dbbench.tasks.model import TablesKey
from trl_dbbench.utils.sql import quote

MAX_ROWS = 1_000
MAX_SECONDS = 0.2
"""Rows and seconds up to which tables are kept: rows that they have and that an episode changed, and time
it took."""

LOCK_SECONDS = 5
"""Seconds a table is waited for that somebody else holds."""

_PLAIN_WORDS = {
    *("NOT", "NULL", "DEFAULT", "PRIMARY", "UNIQUE", "KEY"),
    *("UNSIGNED", "SIGNED", "ZEROFILL", "PRECISION", "VARYING"),
}
"""Words of a column's type, beside its name, with which the column is fully described by its rows."""

_IN_QUOTES_OR_PARENTHESES = re.compile(r"'[^']*'|\([^()']*(?:'[^']*'[^()']*)*\)")


def is_of_rows(tables: tuple[Table, ...]) -> bool:
    """Return whether all that an episode can change in the tables is seen in their rows, and these are few.

    Not so where the server counts on (AUTO_INCREMENT) or keeps old rows (MariaDB's WITH SYSTEM VERSIONING).
    """
    types = {column.type.upper() for table in tables for column in table.columns}
    few = sum(len(table.rows) for table in tables) <= MAX_ROWS
    return few and all(map(_is_plain, types))


def _is_plain(type: str) -> bool:
    first, *more = re.findall(r"[A-Z_]\w*", _IN_QUOTES_OR_PARENTHESES.sub(" ", type)) or [""]
    return first != "SERIAL" and _PLAIN_WORDS.issuperset(more)


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
        self.used = 0.0
        """When its session ran a statement last, by `time.monotonic`."""
        self.tables: tuple[Table, ...] | None = None
        """`None` if the database may not exist, or may hold anything."""
        self.key: TablesKey | None = None
        """The key of the tables, if they can be kept."""
        self.kept = False
        """An earlier episode has had the tables as they are."""
        self.changed: set[str] = set()
        """Names of the tables whose rows may be others than the task's."""
        self.failed = False
        """The server failed during a statement: nobody knows what the statement did."""
        self.interrupted = False
        """A statement was stopped at a limit, perhaps in a transaction: nobody knows what it left."""
        self._cut_off = False
        self._rows_changed = 0
        self._seconds = 0.0

    @property
    def lost(self) -> Loss | None:
        """Whose doing it is that the agent's changes are gone, or cannot be told from others."""
        if self.failed:
            return "environment"
        session = self.session  # which may become another slot's at any time
        broken = session is not None and session.broken is not None
        # a connection that became another slot's does not end the agent's episode
        return "agent" if self._cut_off or self.interrupted or (broken and not self.stateless) else None

    @property
    def can_keep(self) -> bool:
        """Return whether the next episode with these tables may have them."""
        return self.key is not None and self._rows_changed <= MAX_ROWS and self._seconds <= MAX_SECONDS

    def hang_up(self) -> None:
        if self.session is not None:
            self._cut_off = self._cut_off or not self.stateless
            self.session.disconnect()
            self.session = None

    def changes(self, sql: str) -> None:
        """Note that a statement which may change rows is about to run."""
        text = sql.lower()
        names = {table.name for table in self.tables or ()}
        # in doubt, a table is named
        named = {name for name in names if name.lower() in text or "`" in name or not name.isascii()}
        self.changed |= named or names

    def has_changed(self, result: QueryResult) -> None:
        """Note what came of it."""
        self._rows_changed += max(result.affected or 0, 0)
        self._seconds += result.seconds

    def make(self, maker: Connection, key: TablesKey, tables: tuple[Table, ...]) -> None:
        """Make the tables, and before the first ones the database."""
        if self.tables is None:
            maker.exec_driver_sql(f"CREATE DATABASE `{self.name}` CHARACTER SET utf8mb4")
        else:
            self.empty(maker)
        self.tables = None
        for table in tables:
            fill(maker, table, self.name)
        self.tables = tables
        self.key = key if is_of_rows(tables) else None

    def restore(self, maker: Connection) -> None:
        """Give the tables that an earlier episode has changed their rows again."""
        for table in self.tables or ():
            if table.name not in self.changed:
                continue
            maker.exec_driver_sql(f"DELETE FROM `{self.name}`.{quote(table.name)}")
            fill_rows(maker, table, self.name)
        self._forget_changes()
        self.kept = True

    def make_anew(self, maker: Connection) -> None:
        """Make new tables with the same rows of those that an earlier episode had."""
        maker.exec_driver_sql(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")
        for table in self.tables or ():
            if table.name in self.changed:  # by this episode
                maker.exec_driver_sql(f"ALTER TABLE `{self.name}`.{quote(table.name)} FORCE")
            else:
                maker.exec_driver_sql(f"DROP TABLE `{self.name}`.{quote(table.name)}")
                fill(maker, table, self.name)
        self.kept = False

    def empty(self, maker: Connection) -> None:
        """Drop the tables, after an episode that cannot have made any others."""
        if self.tables:
            names = ", ".join(f"`{self.name}`.{quote(table.name)}" for table in self.tables)
            self.tables = None
            maker.exec_driver_sql(f"DROP TABLE {names}")
        self.tables, self.key, self.kept = (), None, False
        self._forget_changes()

    def _forget_changes(self) -> None:
        self.changed.clear()
        self._rows_changed, self._seconds = 0, 0.0


REMOVING_THREADS = 4

MAX_SLOTS = 256
"""Slots kept for their tables. Each takes about 100 kB on the server's disk."""

MAX_DROPPED = 4096
"""Keys of dropped tables that are remembered, the latest ones."""

CONNECTIONS_PER_STATEMENT = 4
"""Connections that episodes share without need for a certain one, for each statement that may run at once."""


class Slots:
    """The slots of a run on one server. Thread-safe.

    A server that fails, or cannot make what it should, raises DBAPIError or EnvironmentFault.

    Args:
        makers: make the tables in the slots.
        names: of slots to be made.
        connections: how many slots may have a connection at a time.
    """

    def __init__(self, host: Host, makers: Engine, names: Iterator[str], connections: int) -> None:
        self._host = host
        self._makers = makers
        self._names = names
        self._max_connections = connections
        self._shared_connections = min(connections, CONNECTIONS_PER_STATEMENT * host.statements)
        self._connected = 0
        self._all: set[Slot] = set()
        self._idle: list[Slot] = []
        """The one that has been idle longest comes first. None of them has a session."""
        self._dropped: dict[TablesKey, None] = {}
        """Keys of tables that other tasks' tables replaced, in that order."""
        self._sessions: list[Session] = []
        """Idle sessions, each of the account that used it last, no two of the same."""
        self._free = threading.Condition()
        self._removing = ThreadPoolExecutor(REMOVING_THREADS, thread_name_prefix="dbbench-removing")
        self._closed = False

    def take(self, key: TablesKey, tables: tuple[Table, ...]) -> Slot:
        """A slot with these tables, which `key` stands for."""
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
        """Prepare the slot's tables for a statement that may show more of them than rows and columns."""
        slot.key = None
        if slot.kept:
            with self._makers.connect() as maker:
                slot.make_anew(maker)

    @contextmanager
    def using(self, slot: Slot) -> Iterator[Session]:
        """The slot's session, for one statement."""
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
                slot.used = time.monotonic()
                self._free.notify()

    def give_back(self, slot: Slot) -> None:
        """Lend the slot to the next episode, unless this one may have left something in it."""
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
        except Exception:  # the next statement finds out whether the server failed
            self._remove(slot)
            return
        with self._free:
            if not self._closed:
                self._idle.append(slot)

    def close(self) -> None:
        """End all connections. What the slots hold on the server is left for the caller to remove."""
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
        if self._host.has_accounts:
            with self._host.admin.connect() as admin:
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
        session = self._spare_session(slot)
        try:
            if session is not None:
                try:
                    session.renew(slot.name, slot.account)
                    return session
                except EnvironmentFault:  # the server may have closed it while it was idle
                    session.disconnect()
            session = self._host.session(slot.account)
            session.renew(slot.name)
            return session
        except BaseException:
            if session is not None:
                session.disconnect()
            with self._free:
                self._connected -= 1
                self._free.notify()
            raise

    def _spare_session(self, taker: Slot) -> Session | None:
        """A session for another slot; `None` if one more can be opened, which is counted already.

        One that is still of the taker's account comes first: its agent would see it beside its own, and could
        end it.
        """
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
                own = [place for place, each in enumerate(self._sessions) if each.database == taker.name]
                return self._sessions.pop(own[0] if own else -1)
            self._connected += 1
            return None

    def _put_back(self, session: Session) -> None:
        """Keep a session for the next slot that needs one, after ending what an agent left in it."""
        with contextlib.suppress(EnvironmentFault):
            session.clear()
        with self._free:
            keep = session.broken is None and not self._closed and len(self._sessions) < self._host.statements
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
        """Roll back what would outlive the slot's connection. Returns whether that still works."""
        # on a server of our own `_drop` does it, which need not know whose a transaction is
        if self._host.own_server or slot.session is None or slot.stateless:
            return True
        return slot.session.roll_back_prepared()

    def _remove(self, slot: Slot) -> None:
        """Remove the slot, its database and its account. If that fails, the end of the run tries again."""
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
        # while the agent's connection is still ending, nobody else can roll back what it has prepared
        for _ in range(2 if self._host.own_server else 1):
            with contextlib.suppress(SQLAlchemyError), self._host.admin.connect() as admin:
                if self._host.own_server:
                    ownership.roll_back_prepared(admin, self._host.dialect)
                ownership.drop_database(admin, name)
                if self._host.has_accounts:
                    ownership.drop_account(admin, name)
                return
