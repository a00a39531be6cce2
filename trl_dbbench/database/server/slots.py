"""Slots: each is an account, a database of the same name and, as long as there is room, a connection.

A server may allow fewer connections than a run has episodes, so an episode is sure of its connection only
while a statement runs. When connections run out, the slot that has been idle longest loses its connection to
another (`Session.renew`). This ends its agent's session (transaction, variables, temporary tables); if the
agent has used these, the slot's tables are lost as well and must be made again. Slots whose agents have not
used their sessions share fewer connections than the server allows, as each takes memory on both sides and a
file descriptor here.

A slot that is given back keeps its tables for the next episode with the same tables (see `Slot`). Other
episodes take the slot that was given back last and replace its tables. If tables replaced in this way are
needed again, they get a slot of their own, so that there are more slots than concurrent episodes, up to
`MAX_SLOTS`; after that, they replace the tables that have been idle longest.
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
"""Most rows that kept tables may have, most rows that an episode may have changed in them, and most seconds
that its changes may have taken."""

LOCK_SECONDS = 5
"""Seconds to wait for a table that another transaction holds."""

_PLAIN_WORDS = {
    *("NOT", "NULL", "DEFAULT", "PRIMARY", "UNIQUE", "KEY"),
    *("UNSIGNED", "SIGNED", "ZEROFILL", "PRECISION", "VARYING"),
}
"""Words that may follow the name of a column's type if rows alone are to describe the column's content."""

_IN_QUOTES_OR_PARENTHESES = re.compile(r"'[^']*'|\([^()']*(?:'[^']*'[^()']*)*\)")


def is_of_rows(tables: tuple[Table, ...]) -> bool:
    """Return whether the tables have few rows, and an episode can change nothing but these rows.

    It can change more if the server keeps a counter (AUTO_INCREMENT) or old rows (MariaDB's WITH SYSTEM
    VERSIONING).
    """
    types = {column.type.upper() for table in tables for column in table.columns}
    few = sum(len(table.rows) for table in tables) <= MAX_ROWS
    return few and all(map(_is_plain, types))


def _is_plain(type: str) -> bool:
    first, *more = re.findall(r"[A-Z_]\w*", _IN_QUOTES_OR_PARENTHESES.sub(" ", type)) or [""]
    return first != "SERIAL" and _PLAIN_WORDS.issuperset(more)


class Slot:
    """Account, database and perhaps connection, with what is known about the agent that uses them.

    - `plain`: the agent's statements left nothing behind but rows in the tables;
    - `stateless`: they left nothing in the session;
    - `full`: the tables have reached their size limit.
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
        """Time of the session's last statement, by `time.monotonic`."""
        self.tables: tuple[Table, ...] | None = None
        """Tables in the database; `None` if it may not exist or may hold anything."""
        self.key: TablesKey | None = None
        """Key of the tables if they can be kept, else `None`."""
        self.kept = False
        """True if the tables were not rebuilt since an earlier episode used them."""
        self.changed: set[str] = set()
        """Names of the tables whose rows may differ from the task's."""
        self.failed = False
        """True if the server failed during a statement, whose effect is therefore unknown."""
        self.interrupted = False
        """True if a statement was stopped at a limit, so its effect, or its transaction's, is unknown."""
        self._cut_off = False
        self._rows_changed = 0
        self._seconds = 0.0

    @property
    def lost(self) -> Loss | None:
        """Return who caused the agent's changes to be gone or unknown; `None` if they are intact."""
        if self.failed:
            return "environment"
        session = self.session  # another thread may move it to another slot at any time
        broken = session is not None and session.broken is not None
        # a connection that became another slot's does not end the agent's episode
        return "agent" if self._cut_off or self.interrupted or (broken and not self.stateless) else None

    @property
    def can_keep(self) -> bool:
        """Return whether the tables may be kept for the next episode with the same tables."""
        return self.key is not None and self._rows_changed <= MAX_ROWS and self._seconds <= MAX_SECONDS

    def hang_up(self) -> None:
        if self.session is not None:
            self._cut_off = self._cut_off or not self.stateless
            self.session.disconnect()
            self.session = None

    def changes(self, sql: str) -> None:
        """Note that a statement that may change rows is about to run."""
        text = sql.lower()
        names = {table.name for table in self.tables or ()}
        # in doubt, a table counts as named
        named = {name for name in names if name.lower() in text or "`" in name or not name.isascii()}
        self.changed |= named or names

    def has_changed(self, result: QueryResult) -> None:
        """Note the result of a statement that may have changed rows."""
        self._rows_changed += max(result.affected or 0, 0)
        self._seconds += result.seconds

    def make(self, maker: Connection, key: TablesKey, tables: tuple[Table, ...]) -> None:
        """Make the tables, in place of earlier ones or in a new database."""
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
        """Restore the rows of tables that an earlier episode has changed."""
        for table in self.tables or ():
            if table.name not in self.changed:
                continue
            maker.exec_driver_sql(f"DELETE FROM `{self.name}`.{quote(table.name)}")
            fill_rows(maker, table, self.name)
        self._forget_changes()
        self.kept = True

    def make_anew(self, maker: Connection) -> None:
        """Rebuild tables that an earlier episode has used, with their current rows."""
        maker.exec_driver_sql(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")
        for table in self.tables or ():
            if table.name in self.changed:  # this episode has changed it, so its rows must be kept
                maker.exec_driver_sql(f"ALTER TABLE `{self.name}`.{quote(table.name)} FORCE")
            else:
                maker.exec_driver_sql(f"DROP TABLE `{self.name}`.{quote(table.name)}")
                fill(maker, table, self.name)
        self.kept = False

    def empty(self, maker: Connection) -> None:
        """Drop the tables, after an episode that cannot have made other ones."""
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
"""Most slots kept for their tables. Each takes about 100 kB on the server's disk."""

MAX_DROPPED = 4096
"""Most keys of dropped tables that are remembered; the latest are kept."""

CONNECTIONS_PER_STATEMENT = 4
"""Connections, per statement that may run at once, shared by episodes that do not need a particular one."""


class Slots:
    """Slots of a run on one server. Thread-safe.

    If the server fails, or cannot make a slot or its tables, methods raise DBAPIError or EnvironmentFault.

    Args:
        makers: engine for making the tables in the slots.
        names: names for new slots.
        connections: number of slots that may have a connection at the same time.
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
        """Idle slots, longest idle first. None of them has a session."""
        self._dropped: dict[TablesKey, None] = {}
        """Keys of tables that another task's tables replaced, oldest first."""
        self._sessions: list[Session] = []
        """Idle sessions, each still logged in to the account that used it last; no two share an account."""
        self._free = threading.Condition()
        self._removing = ThreadPoolExecutor(REMOVING_THREADS, thread_name_prefix="dbbench-removing")
        self._closed = False

    def take(self, key: TablesKey, tables: tuple[Table, ...]) -> Slot:
        """Return a slot with these tables, which `key` identifies."""
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
        """Rebuild reused tables before a statement that may show more of them than rows and columns."""
        slot.key = None
        if slot.kept:
            with self._makers.connect() as maker:
                slot.make_anew(maker)

    @contextmanager
    def using(self, slot: Slot) -> Iterator[Session]:
        """Lend the slot's session for one statement."""
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
        """Keep the slot for the next episode, unless this one may have left something in it."""
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
        except Exception:  # the next statement will notice if the server failed
            self._remove(slot)
            return
        with self._free:
            if not self._closed:
                self._idle.append(slot)

    def close(self) -> None:
        """End all connections. The slots' databases and accounts are left for the caller to remove."""
        with self._free:
            self._closed = True
            slots = list(self._all)
            self._all.clear()
            self._idle.clear()
            sessions = list(self._sessions)
            self._sessions.clear()
            self._free.notify_all()
        answers = True  # once the server does not answer, it is not asked again
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
        """Return an idle slot, preferably with the tables, else empty, else with other tables.

        Return `None` if a new slot should be made.
        """
        with self._free:
            for wanted in (key, None):
                for place in reversed(range(len(self._idle))):
                    if self._idle[place].key == wanted:
                        return self._idle.pop(place)
            come_again = key in self._dropped
            if not self._idle or (come_again and len(self._all) < MAX_SLOTS):
                return None
            # tables that may never be needed again replace the latest ones: the server has these cached, and
            # tables kept for long stay
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
        with self.using(slot):  # opens its connection already while the model is writing
            return slot

    def _session_of(self, slot: Slot) -> Session:
        """Return a clean session of the slot's account in its database."""
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
        """Return a session for `taker` to take over; `None` if it may open a new one, already counted.

        An idle session of the taker's own account comes first: otherwise its agent would see that session
        beside its own and could kill it.
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
        """Keep a session for the next slot that needs one, after clearing what an agent left in it."""
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
        """Roll back what would outlive the slot's connection; return whether the connection still works."""
        # on a server that we started, `_drop` does it, which need not know who prepared a transaction
        if self._host.own_server or slot.session is None or slot.stateless:
            return True
        return slot.session.roll_back_prepared()

    def _remove(self, slot: Slot) -> None:
        """Remove the slot, its database and its account; on failure, the end of the run tries again."""
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
        # while the agent's connection is still closing, no other one can roll back what it has prepared
        for _ in range(2 if self._host.own_server else 1):
            with contextlib.suppress(SQLAlchemyError), self._host.admin.connect() as admin:
                if self._host.own_server:
                    ownership.roll_back_prepared(admin, self._host.dialect)
                ownership.drop_database(admin, name)
                if self._host.has_accounts:
                    ownership.drop_account(admin, name)
                return
