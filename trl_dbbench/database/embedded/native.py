"""Sandbox for a task in SQLite's own dialect.

```
a file: shared by all its rollouts -> a statement would write -> a private copy, where the session continues
tables: a database in memory
```

Opening a file of any size takes a millisecond, and nothing is ever written to it or beside it.
"""

from __future__ import annotations

import math
import re
import sqlite3
import time

from trl_dbbench.database.embedded.base import EmbeddedSandbox
from trl_dbbench.database.embedded.expansion import MAX_WORDS, views_of, words_written_out
from trl_dbbench.database.embedded.mistakes import (
    REFUSED,
    all_are_short,
    is_broken,
    is_file_broken,
    is_shortage,
    report,
)
from trl_dbbench.database.embedded.native_guard import MAX_SMALL_BYTES, NativeGuard
from trl_dbbench.database.sandbox import (
    Limits,
    QueryResult,
    State,
    TableState,
    check_rows,
    clip,
    table_state,
)
from trl_dbbench.errors import TaskError
from trl_dbbench.mysqlite.errors import StatementError
from trl_dbbench.tasks import Table, Task
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS, quote

NATIVE = "SQLite's own dialect"

BYTES_OF_A_CHARACTER = 4

_TABLES = "SELECT name, sql FROM main.sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
_SHADOWS = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow'"
"""Query for the shadow tables of indexes (FTS, R-Tree). Their content for the same rows depends on the
statements that wrote these."""

_NOTHING = re.compile(r"(?:[\s;\ufeff]|--[^\n]*|/\*(?:.*?\*/|.*))*+", re.DOTALL)
_COMPUTED = 2
"""Number in `table_xinfo` for a column that is computed when it is read."""

_RAISED = "user-defined function raised exception"


class NativeSandbox(EmbeddedSandbox):
    """Sandbox on native SQLite: the task's file, or its tables in memory.

    Raises:
        TaskError: the file cannot be read, or the tables cannot be made as the task describes them.
    """

    _connection: sqlite3.Connection

    def __init__(self, task: Task, limits: Limits) -> None:
        super().__init__(limits)
        self._widest = max((len(table.columns) for table in task.tables), default=0)
        self._uri = None if task.source is None else task.source.file.uri
        self._shared = self._uri is not None
        self._done: list[str] = []
        """Statements that left something in the session, to repeat on a private copy."""
        self._kept_bytes: int | None = None
        try:
            self._use(_made(task.tables) if self._uri is None else _connect(self._uri))
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
        return self._shown(result, start)

    def state(self) -> State:
        self._check_usable()
        self._kept_bytes = None
        try:
            with self._guard.reading():
                tables = self._connection.execute(_TABLES).fetchall()
                # queried only if there may be some, because the query expands all views
                virtual = any(sql.startswith("CREATE VIRTUAL") for _, sql in tables)
                shadows = set(self._connection.execute(_SHADOWS) if virtual else ())
        except (sqlite3.Error, MemoryError) as error:
            raise self._fail(error) from None
        names = [name for name, _ in tables if (name,) not in shadows]
        return {name: table for name in names if (table := self._table_state(name)) is not None}

    def _use(self, connection: sqlite3.Connection) -> None:
        """Use this connection from now on, under a guard."""
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
        """Return the result, or `None` if the statement would write to the shared file."""
        transaction = self._connection.in_transaction
        self._kept_bytes = None
        try:
            self._check_expansion(sql)
            # one character more than may be shown, to detect that there is more
            self._kept_bytes = BYTES_OF_A_CHARACTER * (limits.characters + 1)
            with self._guard.statement(self._limits.seconds):
                result = self._run(sql, limits)
        except StatementError as error:
            result = _failure(error.code, error.text)
        except sqlite3.Error as error:
            if self._shared and _code(error) & 0xFF == sqlite3.SQLITE_READONLY:
                return None
            ended = transaction and not self._connection.in_transaction
            result = self._refused(error, sql, ended=ended)
        except UnicodeDecodeError:
            result = _failure(sqlite3.SQLITE_ERROR, "a name is not valid UTF-8")
        except MemoryError as error:
            result = self._short(error)
        except Exception as error:
            result = self._mistaken(error, sql)
        if self._shared and self.changed:
            interrupted = result.undone and transaction and not self._connection.in_transaction
            self._done.append("ROLLBACK" if interrupted else sql)
        return result

    def _check_expansion(self, sql: str) -> None:
        """Raise StatementError for a statement that is too large after its views and CTEs are expanded."""
        with self._guard.reading():
            views = views_of(self._connection)
        if words_written_out(sql, views) > MAX_WORDS:
            raise self._guard.too_many_parts

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

    def _refused(self, error: sqlite3.Error, sql: str, *, ended: bool) -> QueryResult:
        """Return the result of a statement that failed.

        Args:
            ended: the statement has ended the agent's transaction.
        """
        guard, undone = self._guard, "; the transaction was rolled back" if ended else ""
        if guard.timed_out:
            text = f"the statement was stopped: it exceeded the time limit of {self._limits.seconds:g} s"
            return _failure(sqlite3.SQLITE_INTERRUPT, text + undone, limit="time")
        if (reason := guard.failure) is not None:
            limit = "server" if reason is guard.spilled_too_much else None
            return _failure(reason.code, reason.text + undone, limit=limit)
        if is_shortage(error):
            return self._short(error, undone)
        if is_broken(error):
            self.changed = True  # the tables are made again
            return self._mistaken(error, sql)
        text = str(error)
        if text == _RAISED:  # none of our functions raised: sqlite3 could not decode the arguments
            text = "a function was given a text that is not valid UTF-8"
        return _failure(_code(error), text + undone)

    def _short(self, error: sqlite3.Error | MemoryError, undone: str = "") -> QueryResult:
        """Return the result of a statement that was short of memory or space; raise if a probe is, too."""
        if all_are_short():
            raise self._fail(error) from None
        limit = None if _code(error) == sqlite3.SQLITE_FULL else "server"
        return _failure(_code(error), (str(error) or "out of memory") + undone, limit=limit)

    def _mistaken(self, error: Exception, sql: str) -> QueryResult:
        """Return the result of a statement that met a bug of ours; raise if the task's file is corrupt."""
        if self._uri is not None and is_broken(error) and is_file_broken(self._uri):
            raise self._fail(error) from None
        report(error, NATIVE, sql)
        if self.changed:
            self.lost = "agent"  # what it did before is undone with the tables, which are made again
        return _failure(sqlite3.SQLITE_ERROR, REFUSED, limit="emulation")

    # --- the private copy ---------------------------------------------------------------------------------

    def _copy(self) -> None:
        """Continue on a private copy of the file, with the state of the session.

        That state consists of temporary tables and transactions. Statements that left something in it are
        executed again, so those that use random numbers or the clock give new values.

        Raises:
            EnvironmentFault: there is no space for the copy.
        """
        shared = self._connection
        try:
            private = _connect("")  # in memory, or in an unnamed temporary file if it is too large
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
        for sql in done:
            self._execute(sql, self._limits)
        self.changed = False

    def _table_state(self, name: str) -> TableState | None:
        """Return the table's state; `None` if it cannot be read.

        A virtual table cannot be read if its module is missing or its shadow tables were overwritten, and a
        table with computed columns if they exceed the limits of a statement.
        """
        # from main, as a temporary table may hide it
        query = f"SELECT * FROM main.{quote(name)}"
        length = self._connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
        try:
            info = self._connection.execute(f"PRAGMA main.table_xinfo({quote(name)})").fetchall()
            computed = any(row[6] == _COMPUTED for row in info)
            longest = MAX_SMALL_BYTES if computed else 2**31 - 1
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            with self._guard.reading(self._limits.seconds if computed else math.inf):
                cursor = self._connection.execute(query)
                state = table_state(tuple(column[0] for column in cursor.description), cursor)
                cursor.close()
        except Exception as error:
            file_broken = self._uri is not None and is_broken(error) and is_file_broken(self._uri)
            if file_broken or (is_shortage(error) and all_are_short()):
                raise self._fail(error) from None
            if not isinstance(error, sqlite3.Error):
                report(error, NATIVE, query)
            return None
        finally:
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, length)
        return state


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(
        name,
        uri=name.startswith("file:"),
        isolation_level=None,
        check_same_thread=False,
        cached_statements=0,
    )


def _made(tables: tuple[Table, ...]) -> sqlite3.Connection:
    """Return a connection to a database in memory with these tables."""
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
    try:
        connection.executemany(f"INSERT INTO {quote(table.name)} VALUES ({places})", table.rows)
    except OverflowError:
        large = next(
            (column.name, cell)
            for row in table.rows
            for column, cell in zip(table.columns, row, strict=True)
            if isinstance(cell, int) and not -(2**63) <= cell < 2**63
        )
        raise OverflowError(
            f"table '{table.name}', column '{large[0]}' holds {large[1]}, too large for SQLite's "
            "integers of 64 bits; write it as a text, or as a number with a point"
        ) from None
    connection.execute("COMMIT")


def _code(error: BaseException) -> int:
    """Return SQLite's number of an error, or SQLITE_ERROR for Python's own errors, which have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)


def _failure(code: int, text: str, *, limit: str | None = None) -> QueryResult:
    return QueryResult(None, text, code, limit=limit)


def _refusal(sql: str) -> QueryResult | None:
    """Return the result of a text that must not be passed to SQLite, or `None` if it can be."""
    if len(sql) > MAX_STATEMENT_CHARACTERS:
        return _failure(sqlite3.SQLITE_TOOBIG, f"the statement is too long ({len(sql)} characters)")
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        return _failure(sqlite3.SQLITE_ERROR, f"not a character: {sql[error.start : error.end]!a}")
    if _NOTHING.fullmatch(sql):
        return _failure(sqlite3.SQLITE_ERROR, "there is no statement in this text")
    return None
