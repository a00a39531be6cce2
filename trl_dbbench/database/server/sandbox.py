"""A task's tables on a server: made once for all rollouts, and again for each rollout that changes them.

An episode starts with the pristine tables: a statement that can only read them runs on any idle reader. With
the first statement that might do more, the episode gets a slot with tables of its own, which it keeps; an
episode whose task asks for a change gets the slot at once, while the model is still writing. Slots are
reused, unless their agent ran anything but plain reads and writes (SET, BEGIN, LOCK TABLES, a user variable,
...): it may have changed its session or its account's password, so such a slot is discarded. A reused slot
keeps its tables for a task with the same ones (see `Slot`).

From a source that tasks share, the slot gets only the tables that its statements touch, at the time they do
(see `sources.py`); reads that touch none of these still use the pristine ones. The first statement that does
anything but read or change rows gets the slot all tables.

A statement's text decides whether it only reads; in doubt, it does not. The server enforces this: the
readers' account cannot change anything, and a statement denied to it runs again in a slot, whose account has
no rights elsewhere.

Statements run with autocommit, as in MySQL's own client; an agent that writes BEGIN gets a transaction. The
state is read on a session that no agent has used, so that nothing an agent did to its session (a limit on
rows, a temporary table that hides a real one) affects it. The state includes uncommitted changes.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import replace

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from trl_dbbench.database.dialect import Dialect, Kind
from trl_dbbench.database.error_numbers import TABLE_FULL, TOO_LARGE
from trl_dbbench.database.sandbox import (
    MAX_TABLE_BYTES,
    Limits,
    Loss,
    QueryResult,
    Sandbox,
    State,
    TableState,
    failure,
    refusal,
)
from trl_dbbench.database.server.connections import as_fault, error_code, error_text, is_from_server
from trl_dbbench.database.server.pristine import PristineDatabase
from trl_dbbench.database.server.session import BROKE_AT_A_LARGE_ROW, UNREADABLE, Session
from trl_dbbench.database.server.slots import Slot
from trl_dbbench.database.server.sources import Loaded
from trl_dbbench.database.server.tenancy import Tenancy
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Task
from trl_dbbench.utils.sql import quote

logger = logging.getLogger("trl_dbbench.database")

_OWN_CLOCK = re.compile(r"\bSET\b.*\b(?:timestamp|rand_seed[12])\b", re.IGNORECASE | re.DOTALL)
_DIAGNOSTICS = re.compile(
    r"\b(?:ROW_COUNT|FOUND_ROWS|WARNINGS|ERRORS|DIAGNOSTICS|warning_count|error_count)\b", re.IGNORECASE
)
"""Words that read the previous statement's diagnostics, which a SET before them would clear."""


class Moments:
    """Clock and random seeds of an episode's statements in a slot, fixed so that they can be repeated.

    A moment is the SQL that sets both.

    Args:
        ahead: seconds by which the server's clock is ahead of ours.
    """

    def __init__(self, dialect: Dialect, task: Task, ahead: float) -> None:
        self._dialect = dialect
        self._ahead = ahead
        types = [column.type for table in task.tables for column in table.columns]
        self._hidden = any(dialect.varies(each) or "TIMESTAMP" in each.upper() for each in types)
        """True if every statement may depend on the clock or on chance, as something made here uses them."""
        self._agents = False
        """True once the agent has set the clock or the seeds."""

    def fix(self, session: Session, sql: str, kind: Kind, again: str | None) -> str | None:
        """Fix the statement's moment if its result may depend on it; return the moment, or `None`.

        Args:
            again: the moment of the earlier execution that is repeated.
        """
        self._agents = self._agents or (kind == "other" and _OWN_CLOCK.search(sql) is not None)
        varies = self._dialect.varies(sql)
        needed = (varies or self._hidden) and not self._agents and not _DIAGNOSTICS.search(sql)
        self._hidden = self._hidden or needed  # otherwise later statements would see the clock stopped here
        self._hidden = self._hidden or (varies and kind not in ("reads", "plain"))
        if not needed:
            return None
        first, second = (random.SystemRandom().getrandbits(30) for _ in range(2))
        now = f"SET timestamp = {time.time() + self._ahead:.6f}, rand_seed1 = {first}, rand_seed2 = {second}"
        moment = again or now
        try:
            session.connection.exec_driver_sql(moment)
        except DBAPIError as error:
            if not is_from_server(error.orig):
                raise
            return None  # for example an expired password; the statement itself will report it
        return moment


STATE_SECONDS = 20
"""Seconds that reading one table of the state may take."""

UNMEASURED_SECONDS = 0.2
UNMEASURED_ROWS = 10_000
"""Seconds of statements, and rows changed by one statement, from which the size of an agent's tables is
measured. Below both, not much can have been written."""

SPILL_SECONDS = 1.0
"""Seconds of one statement above which its reader is closed: MySQL keeps the disk space of temporary tables
until the connection ends."""

MAX_TEMPORARY_BYTES = 512 * 1024 * 1024
"""Size, in bytes, to which all temporary tables of a MariaDB server together may grow."""

_MAKES_TEMPORARY = re.compile(r"\b(?:TEMPORARY|PREPARE|IMMEDIATE)\b", re.IGNORECASE)
_FULL = failure(TABLE_FULL, "The table is full", limit="size")
_OF_ROWS = re.compile(r"[\s(]*+(?:SELECT|WITH|INSERT|REPLACE|UPDATE|DELETE)\b", re.IGNORECASE)
_OF_COLUMNS = re.compile(
    r"\s*(?:SHOW\s+(?:FULL\s+)?(?:TABLES|COLUMNS|FIELDS|CREATE\s+TABLE)\b|DESC(?:RIBE)?\s+(?:`[^`]+`|\w+)[\s;]*$)",
    re.IGNORECASE,
)
_DENIED = failure(1227, "Access denied; you need a privilege that you do not have")
_DENIED_TO_READERS = frozenset({1044, 1142, 1143, 1227, 1370})
"""Error numbers after which a read is run again in a slot, whose account may have the denied right in its own
database."""
_UNKNOWN_DATABASE = 1049


class ServerSandbox(Sandbox):
    """Sandbox with the pristine tables, until the rollout gets its own tables in a slot."""

    def __init__(self, tenancy: Tenancy, task: Task) -> None:
        self._tenancy = tenancy
        self._task = task
        self._pristine: PristineDatabase | None = None
        self._slot: Slot | None = None
        self._copied: set[str] = set()
        """Names of the source's tables and views that were copied into the slot."""
        self._unmeasured_seconds = 0.0
        self._moments = Moments(tenancy.dialect, task, tenancy.ahead)
        self._has_temporary = False
        self._own_names = {each.name.lower(): each.name for each in task.tables if tenancy.lowers_names}
        """Lower-case name -> the task's name of a table, if the server lowers names."""
        self.brought_down = False
        if task.source is not None or (tenancy.readers is not None and task.is_question):
            self.reached = False  # the tables may have existed already
            with tenancy.making(task):
                self._pristine = tenancy.pristine.take(task)
        else:
            self._own()

    @property
    def lost(self) -> Loss | None:  # type: ignore[override]
        return self._slot.lost if self._slot is not None else None

    def failing(self, since: float) -> str | None:
        return self._tenancy.failing(since)

    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        return self._executed(sql, limits, None)

    def repeat(self, sql: str, seen: QueryResult) -> QueryResult:
        return self._executed(sql, None, seen.moment)

    def _executed(self, sql: str, limits: Limits | None, again: str | None) -> QueryResult:
        if refused := refusal(sql):
            return refused
        self.reached = True
        result = self._execute(sql, limits, again)
        # the error may concern something that the server lost or another run removed while it was down
        if result.error and not result.limit and not self._tenancy.held():
            raise EnvironmentFault(f"The server was restarted: {result.error}")
        return result

    def state(self) -> State:
        self.reached = True
        if self._slot is None and self._pristine is not None:
            return self._observed(self._pristine.loaded.database, "READ COMMITTED")
        slot = self._own()
        shared = self._shared
        state = self._observed(shared.database, "READ COMMITTED", self._copied) if shared is not None else {}
        if slot.stateless:  # uncommitted changes there are a killed statement's, which is still being undone
            self._check_usable(slot)
            return {**state, **self._observed(slot.name, "READ COMMITTED")}
        with self._session(slot) as session:  # kept open: otherwise uncommitted changes would be gone
            self._unlock(session)
            return {**state, **self._observed(slot.name, "READ UNCOMMITTED")}

    def close(self) -> None:
        if self._pristine is not None:
            self._tenancy.pristine.give_back(self._pristine)
            self._pristine = None
        if self._slot is not None:
            self._tenancy.slots.give_back(self._slot)
            self._slot = None

    def _execute(self, sql: str, limits: Limits | None, again: str | None) -> QueryResult:
        readers, pristine = self._tenancy.readers, self._pristine
        dialect = self._tenancy.dialect
        self.changed = False
        if (
            pristine is not None
            and readers is not None
            and dialect.looks_like_read(sql)
            and (self._slot is None or self._touches_no_copy(sql))
        ):
            result = readers.read(
                lambda session: self._read_once(session, sql, limits),
                database=pristine.loaded.database,
                reader=self,
            )
            if result.error_code not in _DENIED_TO_READERS:
                return result
        kind = dialect.kind_of(sql)
        if kind == "denied":
            return _DENIED
        reads = dialect.only_reads(sql)
        self._copy_for(sql, kind, reads)
        slot = self._own()
        if slot.full and not reads:
            return _FULL
        if not (_only_rows(sql, kind) or (reads and _OF_COLUMNS.match(sql))):
            with self._tenancy.making(self._task):
                self._tenancy.slots.show(slot)
        if not reads:
            slot.changes(sql)
        with self._session(slot) as session:
            slot.plain = slot.plain and kind in ("reads", "plain")
            slot.stateless = slot.stateless and kind != "other"
            # after other statements a SELECT may change something, such as by a function that the agent made
            self.changed = not (reads and slot.stateless)
            self._tenancy.users[session.number] = self
            moment = self._moments.fix(session, sql, kind, again)
            before = self._temporary_bytes(sql, reads)
            result = replace(session.execute(sql, limits), moment=moment)
            after = self._temporary_bytes(sql, reads)
            if not reads:
                slot.has_changed(result)
            if session.broken:
                slot.plain = False  # the statement may still run and lock the tables
            if self.changed and result.undone and not slot.stateless:
                slot.interrupted = True
            elif self.changed and not session.broken:
                grew = after > max(before, MAX_TEMPORARY_BYTES)
                if grew or self._has_outgrown(slot, session, result):
                    slot.full = True
                    return _FULL
        return result

    def _read_once(self, session: Session, sql: str, limits: Limits | None) -> QueryResult:
        self._tenancy.users[session.number] = self
        result = session.execute(sql, limits)
        if result.seconds > SPILL_SECONDS:
            session.broken = session.broken or "its temporary files may be large"
        return result

    def _temporary_bytes(self, sql: str, reads: bool) -> int:
        """Return the size of all temporary tables; 0 if this episode cannot have made or changed any."""
        self._has_temporary = self._has_temporary or _MAKES_TEMPORARY.search(sql) is not None
        return self._tenancy.temporary_bytes() if self._has_temporary and not reads else 0

    def _has_outgrown(self, slot: Slot, session: Session, result: QueryResult) -> bool:
        """Return whether the tables exceed `MAX_TABLE_BYTES`, which is measured only now and then."""
        self._unmeasured_seconds += result.seconds
        if self._unmeasured_seconds < UNMEASURED_SECONDS and (result.affected or 0) < UNMEASURED_ROWS:
            return False
        self._unmeasured_seconds = 0.0
        begun = self._pristine.loaded.bytes if self._pristine is not None else 0
        return self._tenancy.size(slot.name, session.number) > MAX_TABLE_BYTES + begun

    # --- the tables of a source ---------------------------------------------------------------------------

    @property
    def _shared(self) -> Loaded | None:
        """Return the source while the slot lacks some of its tables, else `None`."""
        loaded = self._pristine.loaded if self._pristine is not None else None
        return loaded if loaded is not None and not loaded.names <= self._copied else None

    def _touches_no_copy(self, sql: str) -> bool:
        """Return whether a read gives the same on the pristine tables as in the slot."""
        return (shared := self._shared) is not None and not shared.named_in(sql) & self._copied

    def _copy_for(self, sql: str, kind: Kind, reads: bool) -> None:
        """Copy the tables that a statement needs into the slot: those that it touches, or else all."""
        if (shared := self._shared) is None:
            return
        needed = shared.names
        if _only_rows(sql, kind):
            named = shared.named_in(sql)
            needed = named if reads else shared.touched_by(named)
        if missing := needed - self._copied:
            slot = self._own()
            slot.plain = False
            with self._tenancy.making(self._task):
                self._tenancy.loader.copy(shared, missing, slot.name)
            self._copied |= missing

    # --- the slot and its session ---------------------------------------------------------------------------

    def _own(self) -> Slot:
        if self._slot is None:
            task = self._task
            # a source's tables are copied later, by `loader`
            wanted = (task.tables_key, task.tables) if task.source is None else (b"", ())
            with self._tenancy.making(task):
                self._slot = self._tenancy.slots.take(*wanted)
        return self._slot

    def _unlock(self, session: Session) -> None:
        """Release an agent's table locks, which would block the session that reads the state."""
        for sql in ("UNLOCK TABLES", "COMMIT AND NO CHAIN NO RELEASE", "UNLOCK TABLES"):
            try:
                session.connection.exec_driver_sql(sql)
                if sql == "UNLOCK TABLES":
                    return
            except DBAPIError as error:  # MySQL allows only COMMIT after CREATE TABLE ... START TRANSACTION
                if self._tenancy.server_failed(error):
                    raise

    def _check_usable(self, slot: Slot) -> None:
        if slot.lost or self._tenancy.over:
            raise EnvironmentFault("The sandbox is lost")

    @contextlib.contextmanager
    def _session(self, slot: Slot) -> Iterator[Session]:
        self._check_usable(slot)
        try:
            with self._tenancy.slots.using(slot) as session:
                yield session
        except EnvironmentFault:
            slot.failed = True
            raise
        except SQLAlchemyError as error:
            slot.failed = True
            raise as_fault(error) from None

    def _observed(self, name: str, isolation: str, but: Collection[str] = ()) -> State:
        return self._tenancy.observers.read(lambda session: self._read_all(session, name, isolation, but))

    def _read_all(self, session: Session, name: str, isolation: str, but: Collection[str]) -> State:
        state: dict[str, TableState] = {}
        self._tenancy.users[session.number] = self
        try:
            session.connection.exec_driver_sql(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
            tables = session.connection.exec_driver_sql(
                f"SHOW FULL TABLES FROM `{name}`", execution_options={"stream_results": True}
            ).fetchall()
            for table, kind in tables:
                if isinstance(table, bytes):  # not valid text, so not a table of the task
                    state[repr(table)] = TableState((), [])
                elif kind == "BASE TABLE" and table not in but and not session.broken:
                    held = self._read(session, f"`{name}`.{quote(table)}")
                    if held is not None:
                        state[self._own_names.get(table, table)] = held
        except DBAPIError as error:
            if error_code(error) == _UNKNOWN_DATABASE and self._tenancy.held():
                return {}  # dropped by the agent
            raise
        return state

    def _read(self, session: Session, source: str) -> TableState | None:
        """Return a table's state; `None` if the agent has made it unreadable."""
        start = time.monotonic()
        try:
            return session.table(self._tenancy.dialect.select_all(source, STATE_SECONDS))
        except DBAPIError as error:
            if error_code(error) == TOO_LARGE:
                session.broken = BROKE_AT_A_LARGE_ROW
            # otherwise a computed column that the agent wrote fails or is slow
            elif self._tenancy.server_failed(error) and self._tenancy.failing(start):
                raise
            elif not is_from_server(error.orig):
                session.broken = error_text(error)
        except Exception:
            logger.warning("the table %s cannot be read", source, exc_info=True)
            session.broken = UNREADABLE
        return None


def _only_rows(sql: str, kind: Kind) -> bool:
    """Return whether a statement does nothing but read or change rows of tables."""
    return kind in ("reads", "plain") and bool(_OF_ROWS.match(sql)) and "_schema" not in sql.lower()
