"""A task's database in SQLite's own dialect, for one rollout.

```
a file: read by all its rollouts -> a statement would write -> a private copy, on which the session goes on
tables: a database in memory
```

Opening a file takes a millisecond, whatever its size, and nothing is ever written to it or beside it.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
import time
from dataclasses import dataclass, replace

from trl_dbbench.database.sandbox import (
    MAX_STATE_CHARACTERS,
    MAX_STATE_ROWS,
    Limits,
    QueryResult,
    Sandbox,
    State,
    TableState,
    check_rows,
    clip,
)
from trl_dbbench.database.sqlite.guard import is_environment_fault
from trl_dbbench.database.sqlite.native_guard import NativeGuard
from trl_dbbench.errors import DatabaseError, EnvironmentFault, TaskError
from trl_dbbench.sql import MAX_STATEMENT_CHARACTERS, quote
from trl_dbbench.tasks import Table, Task

logger = logging.getLogger("trl_dbbench.database")

MAX_MESSAGE_CHARACTERS = 512
"""How much of an error the agent is shown."""

BYTES_OF_A_CHARACTER = 4

_TABLES = """
SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'
AND name NOT IN (SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow')
"""
"""Tables less those that indexes (FTS, R-Tree) are made of: how these hold the same rows depends on the
statements that wrote them."""

_NOTHING = re.compile(r"(?:[\s;\ufeff]|--[^\n]*|/\*(?:.*?\*/|.*))*+", re.DOTALL)
_RAISED = "user-defined function raised exception"


@dataclass(frozen=True)
class _Done:
    """A statement that left something in the session, and the error that it had all the same."""

    sql: str
    error: str | None


class NativeSandbox(Sandbox):
    """A connection of SQLite, to the task's file or to a database of its own.

    Raises:
        TaskError: the file cannot be read, or the tables cannot be made as the task describes them.
    """

    def __init__(self, task: Task, limits: Limits) -> None:
        self._limits = limits
        self._widest = max((len(table.columns) for table in task.tables), default=0)
        self._shared = task.source is not None
        self._done: list[_Done] = []
        self._kept_bytes: int | None = None
        self._broken: str | None = None
        self._closed = False
        self._lock = threading.Lock()
        try:
            self._use(_made(task.tables) if task.source is None else _connect(task.source.file.uri))
        except (sqlite3.Error, OverflowError, ValueError) as error:
            what = "its tables cannot be made"
            if task.source is not None:
                what = f"the database '{task.source.path}' cannot be read"
            raise TaskError(f"Task {task.id!r}: {what}: {error}") from None

    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        self._check_usable()
        self.changed = False
        if refused := _refusal(sql):
            return refused
        limits = limits or self._limits
        start = time.monotonic()
        result = self._execute(sql, limits)
        if result is None:  # it would write to the file
            self._copy()
            start = time.monotonic()
            result = self._execute(sql, limits)
            assert result is not None
        shown = result.error and result.error[:MAX_MESSAGE_CHARACTERS]
        return replace(result, error=shown, seconds=time.monotonic() - start)

    def state(self) -> State:
        self._check_usable()
        self._kept_bytes = None
        length = self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2**31 - 1)
        try:
            names = self._connection.execute(_TABLES).fetchall()
            found = {name: self._table_state(name) for (name,) in names}
            return {name: table for name, table in found.items() if table is not None}
        except (sqlite3.Error, MemoryError) as error:
            raise self._fail(error) from None
        finally:
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, length)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._connection.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise DatabaseError("The sandbox is closed. Take another from Database.sandbox().")
        if self._broken:
            raise EnvironmentFault(f"The sandbox broke before: {self._broken}")

    def _fail(self, error: BaseException) -> EnvironmentFault:
        """The fault that this error means. The sandbox must not be used again."""
        self._broken = f"SQLite failed: {error!r}"
        code = getattr(error, "sqlite_errorcode", None)
        # a statement alone can cause these: by its size, and by writing what an index of texts is made of
        own = isinstance(error, MemoryError) or code == sqlite3.SQLITE_CORRUPT_VTAB
        if own:
            return EnvironmentFault(self._broken, observation=str(error) or "out of memory", error_code=code)
        return EnvironmentFault(self._broken)

    def _use(self, connection: sqlite3.Connection) -> None:
        """Makes this the connection, and watches over it from now on."""
        try:
            connection.text_factory = self._decoded
            connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchall()  # reads the schema
            self._guard = NativeGuard(connection, self._widest)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _decoded(self, text: bytes) -> str:
        kept = text if self._kept_bytes is None else text[: self._kept_bytes]
        return kept.decode(errors="replace")

    # --- one statement ------------------------------------------------------------------------------------

    def _execute(self, sql: str, limits: Limits) -> QueryResult | None:
        """The result, or `None` if the statement would write to the file that others read, too."""
        transaction = self._connection.in_transaction
        # one character more than may be shown, to see that there is more
        self._kept_bytes = BYTES_OF_A_CHARACTER * (limits.characters + 1)
        try:
            with self._guard.statement(self._limits.seconds):
                result = self._run(sql, limits)
        except sqlite3.Error as error:
            if self._shared and _code(error) & 0xFF == sqlite3.SQLITE_READONLY:
                return None
            result = self._refused(error, ended=transaction and not self._connection.in_transaction)
        except UnicodeDecodeError:
            result = _failure(sqlite3.SQLITE_ERROR, "a name is not valid UTF-8")
        except MemoryError as error:
            raise self._fail(error) from None
        except Exception as error:  # a mistake of ours; the agent may have written anything
            logger.exception("SQLite's own dialect failed on %r", sql)
            raise self._fail(error) from error
        if self._shared and self.changed:
            interrupted = result.undone and transaction and not self._connection.in_transaction
            self._done.append(_Done("ROLLBACK", None) if interrupted else _Done(sql, result.error))
        return result

    def _run(self, sql: str, limits: Limits) -> QueryResult:
        changes = self._connection.total_changes
        self._guard.expect(large=False)
        try:
            return self._run_once(sql, limits)
        except sqlite3.Error as error:
            again = _code(error) == sqlite3.SQLITE_TOOBIG or str(error).startswith("LIKE or GLOB pattern")
            partly = self._connection.total_changes != changes
            if not again or partly or self._guard.failure is not None:
                raise
        self._guard.expect(large=True)
        try:
            return self._run_once(sql, limits)
        except sqlite3.Error:
            if not self._guard.search_denied:
                raise
        self._guard.replace_searches()
        self._guard.expect(large=True)
        return self._run_once(sql, limits)

    def _run_once(self, sql: str, limits: Limits) -> QueryResult:
        connection = self._connection
        before = (connection.total_changes, connection.in_transaction)
        cursor = connection.cursor()
        try:
            cursor.execute(sql)
            if cursor.description is not None and not self._guard.alters:
                columns = tuple(column[0] for column in cursor.description)
                rows, limit = clip(cursor, limits)
                return QueryResult(rows, limit=limit, columns=columns)
            self.changed = True
            affected = 0
            if connection.total_changes != before[0]:
                with self._guard.own():
                    (affected,) = connection.execute("SELECT changes()").fetchone()
            return QueryResult(None, affected=affected)
        finally:
            cursor.close()
            self.changed |= before != (connection.total_changes, connection.in_transaction)

    def _refused(self, error: sqlite3.Error, *, ended: bool) -> QueryResult:
        """
        Args:
            ended: the agent's transaction has ended with the statement.
        """
        guard, undone = self._guard, "; the transaction was rolled back" if ended else ""
        if guard.timed_out:
            text = f"the statement was stopped: it exceeded the time limit of {self._limits.seconds:g} s"
            return _failure(sqlite3.SQLITE_INTERRUPT, text + undone, limit="time")
        if (reason := guard.failure) is not None:
            limit = "server" if reason is guard.spilled_too_much else None
            return _failure(reason.code, reason.text + undone, limit=limit)
        if is_environment_fault(error):
            raise self._fail(error) from None
        text = str(error)
        if text == _RAISED:  # none of ours did: it was not called
            text = "a function was given a text that is not valid UTF-8"
        return _failure(_code(error), text + undone)

    # --- the private copy ---------------------------------------------------------------------------------

    def _copy(self) -> None:
        """Goes on with a copy of the file, in the state to which the episode has brought its session.

        Raises:
            EnvironmentFault: there is no room for it, or something came out otherwise than it did before.
        """
        shared = self._connection
        try:
            private = _connect("")  # in memory, and what is too large for that in a file without a name
            try:
                shared.backup(private)
            except BaseException:
                private.close()
                raise
            self._use(private)
        except (sqlite3.Error, MemoryError) as error:
            raise self._fail(error) from None
        shared.close()
        self._shared = False
        done, self._done = self._done, []
        for each in done:
            again = self._execute(each.sql, self._limits)
            if again is None or again.error != each.error:
                self._broken = f"SQLite failed: {each.sql[:200]!r} cannot be repeated: {again}"
                raise EnvironmentFault(self._broken)
        self.changed = False

    def _table_state(self, name: str) -> TableState | None:
        """The table, `None` if SQLite cannot read it: it is virtual, and of a module that is not here."""
        limits = Limits(rows=MAX_STATE_ROWS, characters=MAX_STATE_CHARACTERS)
        try:
            # of main: not the temporary table that may hide it
            cursor = self._connection.execute(f"SELECT * FROM main.{quote(name)} LIMIT {MAX_STATE_ROWS}")
        except sqlite3.Error as error:
            if is_environment_fault(error):
                raise
            return None
        columns = tuple(column[0] for column in cursor.description)
        rows, _ = clip(cursor, limits)
        cursor.close()
        return TableState(columns, rows)


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(
        name,
        uri=name.startswith("file:"),
        isolation_level=None,
        check_same_thread=False,
        cached_statements=0,
    )


def _made(tables: tuple[Table, ...]) -> sqlite3.Connection:
    """A database in memory with these tables."""
    connection = _connect(":memory:")
    try:
        for table in tables:
            _fill(connection, table)
    except BaseException:
        connection.close()
        raise
    return connection


def _fill(connection: sqlite3.Connection, table: Table) -> None:
    check_rows(table)
    columns = ", ".join(f"{quote(column.name)} {column.type}" for column in table.columns)
    connection.execute(f"CREATE TABLE {quote(table.name)} ({columns})")
    places = ", ".join("?" * len(table.columns))
    connection.execute("BEGIN")
    connection.executemany(f"INSERT INTO {quote(table.name)} VALUES ({places})", table.rows)
    connection.execute("COMMIT")


def _code(error: sqlite3.Error) -> int:
    """SQLite's number of the error; Python's own have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)


def _failure(code: int, text: str, *, limit: str | None = None) -> QueryResult:
    return QueryResult(None, text, code, limit=limit)


def _refusal(sql: str) -> QueryResult | None:
    """The result of a text that SQLite is not given, or `None` if it is."""
    if len(sql) > MAX_STATEMENT_CHARACTERS:
        return _failure(sqlite3.SQLITE_TOOBIG, f"the statement is too long ({len(sql)} characters)")
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        return _failure(sqlite3.SQLITE_ERROR, f"not a character: {sql[error.start : error.end]!a}")
    if _NOTHING.fullmatch(sql):
        return _failure(sqlite3.SQLITE_ERROR, "there is no statement in this text")
    return None
