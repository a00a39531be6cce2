"""A task's tables in an SQLite database in memory, for one rollout."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlglot import exp

from trl_dbbench.database.sandbox import (
    MAX_STATE_ROWS,
    SHOWN_DATABASE,
    Limits,
    QueryResult,
    Sandbox,
    State,
    TableState,
    check_rows,
    clip,
    columns_of,
    failure,
    refusal,
    timed_out,
)
from trl_dbbench.errors import DatabaseError, EnvironmentFault, TaskError
from trl_dbbench.mysqlite import tables
from trl_dbbench.mysqlite.cells import shown
from trl_dbbench.mysqlite.checks import check_size, names_read
from trl_dbbench.mysqlite.clock import OutOfTime
from trl_dbbench.mysqlite.guard import Guard
from trl_dbbench.mysqlite.kinds import UNKNOWN, Kind, TableColumns
from trl_dbbench.mysqlite.messages import MISPLACED, as_mysql
from trl_dbbench.mysqlite.mistakes import REFUSED, all_are_short, is_broken, is_shortage, report
from trl_dbbench.mysqlite.parse import nested_too_deeply, syntax_error, text_of, unsupported
from trl_dbbench.mysqlite.schema import Schema
from trl_dbbench.mysqlite.statements import (
    COMMANDS,
    CONSTANT_MISTAKES,
    Statement,
    autocommit_of,
    commits,
    creation,
    definition,
    look,
    not_executed,
    translation,
    until_constant,
)
from trl_dbbench.mysqlite.values import StatementError
from trl_dbbench.tasks import Table, Task
from trl_dbbench.utils.sql import quote

EMULATION = "The emulation of MySQL"

MAX_MESSAGE_CHARACTERS = 512
"""How much of an error the agent is shown, as in MySQL."""


_ENGINE = create_engine(
    "sqlite://",
    poolclass=NullPool,  # each connection has a database of its own, which ends with it
    connect_args={
        "check_same_thread": False,
        "cached_statements": 0,
        "detect_types": sqlite3.PARSE_DECLTYPES,
    },
    isolation_level="AUTOCOMMIT",
    execution_options={"no_parameters": True, "sqlite_raw_colnames": True},
)


class SQLiteSandbox(Sandbox):
    """A database in memory, with MySQL's collation and functions."""

    def __init__(self, task: Task, limits: Limits) -> None:
        self._limits = self._clipping = limits
        self._views: dict[str, list[str]] = {}
        self._known: set[str] | None = {table.name for table in task.tables}
        self._declared: dict[str, TableColumns] = {}
        self._autocommit = True
        self._broken: str | None = None
        self._executing, self._touched = "", False
        self._closed = False
        self._lock = threading.Lock()
        self._connection = _ENGINE.connect()
        self._raw = cast(sqlite3.Connection, self._connection.connection.driver_connection)
        try:
            self._guard = Guard(self._raw)
            self._schema = Schema(self._connection, self._guard)
            for table in task.tables:
                self._fill(table)
            self._guard.confine(task.tables)
        except StatementError as error:
            self.close()
            raise TaskError(f"Task {task.id!r}: its tables cannot be made: {error.text}") from None
        except DBAPIError as error:
            self.close()
            if is_shortage(error.orig):
                raise self._fail(error.orig) from None
            raise TaskError(f"Task {task.id!r}: its tables cannot be made: {error.orig}") from None
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        self._check_usable()
        if refused := refusal(sql):
            return refused
        self._clipping = limits or self._limits
        start = time.monotonic()
        try:
            self._executing, self._touched = sql, False
            with self._guard.statement(self._limits.seconds):
                result = self._dispatch(sql)
        except StatementError as error:
            result = failure(error.code, error.text)
        except OutOfTime:
            result = timed_out(self._limits)
        except DBAPIError as error:
            result = self._refused(error)
        except UnicodeDecodeError:  # a name or the text of an error
            result = failure(1300, "Invalid utf8mb4 character string")
        except MemoryError as error:
            result = self._short(error)
        except RecursionError:
            result = failure(*nested_too_deeply().args)
        except Exception as error:
            result = self._mistaken(error)
        shown = result.error and result.error[:MAX_MESSAGE_CHARACTERS]
        return replace(result, error=shown, seconds=time.monotonic() - start)

    def state(self) -> State:
        self._check_usable()
        self._executing = "(the tables' state)"
        try:
            with self._guard.reading():
                names = self._schema.tables()
        except (DBAPIError, MemoryError) as error:
            raise self._fail(getattr(error, "orig", error)) from None
        return {name: table for name in names if (table := self._table_state(name)) is not None}

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with suppress(SQLAlchemyError):
            self._connection.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise DatabaseError("The sandbox is closed. Take another from Database.sandbox().")
        if self._broken:
            raise EnvironmentFault(f"The sandbox broke before: {self._broken}")

    def _fail(self, error: BaseException | None) -> EnvironmentFault:
        """The fault that this error means. The sandbox must not be used again."""
        self._broken = f"SQLite failed: {error!r}"
        return EnvironmentFault(self._broken)

    def _fill(self, table: Table) -> None:
        check_rows(table)
        self._run(creation(f"CREATE TABLE {quote(table.name)} ({columns_of(table)})"))
        if table.rows:
            places = ", ".join("?" * len(table.columns))
            rows = tables.stored_rows(table)
            self._connection.exec_driver_sql(f"INSERT INTO {quote(table.name)} VALUES ({places})", rows)

    # --- one statement ------------------------------------------------------------------------------------

    def _dispatch(self, sql: str) -> QueryResult:
        statement = look(sql)
        tree = statement.tree
        # forgotten, unless it turns out that the statement leaves them as they are
        known, self._known = self._known, None
        if known is None:
            self._declared.clear()
        if isinstance(tree, exp.Show):
            return self._show(tree)
        if isinstance(tree, exp.Describe):
            if not isinstance(tree.this, exp.Table):
                raise unsupported("EXPLAIN")
            return self._cut(self._schema.described(tables.own_name(tree.this)))
        if self._views:
            check_size(tree, self._views)
        if statement.tables:
            known = self._schema.names() if known is None else known
            if missing := [name for name in statement.tables if name not in known]:
                raise StatementError(1146, f"Table '{SHOWN_DATABASE}.{missing[0]}' doesn't exist")
        if commits(tree):
            self._commit()
        if isinstance(tree, exp.Create):
            tree = definition(tree, self._described(statement.tables))
            if tree.kind == "VIEW":  # what it has read before counts, too: perhaps it cannot be made again
                self._views.setdefault(tree.this.name.lower(), []).extend(names_read(tree))
            return self._run(tables.create(tree) if tree.kind == "TABLE" else tables.create_other(tree))
        if isinstance(tree, exp.Alter):
            with self._guard.own():
                for change in tables.alter(tree.copy()):
                    self._run(change)
            return QueryResult(None, affected=0)
        if isinstance(tree, exp.TruncateTable):
            return self._truncate(tree)
        if isinstance(tree, exp.Use):
            if tree.this.name != SHOWN_DATABASE:
                raise StatementError(1049, f"Unknown database '{tree.this.name}'")
            return QueryResult(None, affected=0)
        if isinstance(tree, exp.Transaction | exp.Commit | exp.Rollback):
            return self._transaction(tree)
        if isinstance(tree, exp.Set):
            return self._set(tree)
        if isinstance(tree, exp.Command):
            return self._command(tree, sql)
        if isinstance(tree, exp.Drop) and tree.kind in ("TABLE", "VIEW"):
            return self._drop(tree, tree.kind)
        executed = isinstance(tree, exp.Query | exp.Insert | exp.Update | exp.Delete | exp.Drop)
        if not executed or (
            isinstance(tree, exp.Update | exp.Delete) and not isinstance(tree.this, exp.Table)
        ):
            raise not_executed(sql)
        if statement.misnamed:
            raise StatementError(*statement.misnamed)
        if statement.catalog:
            self._schema.offer_catalog(statement.catalog)
        if not self._autocommit and not self._raw.in_transaction:
            self._run("BEGIN")
        result = self._run_translated(sql, statement)
        if not isinstance(tree, exp.Drop):
            self._known = known
        return result

    def _run_translated(self, sql: str, statement: Statement) -> QueryResult:
        described = self._described(statement.tables)
        translated = translation(sql, statement, described)
        if translated.constants and (wrong := self._wrong_constant(translated.constants)) is not None:
            translated = until_constant(statement, translated, wrong, described)
        if (mistake := translated.misgrouped or statement.misplaced) is not None:
            try:
                self._run(f"EXPLAIN {translated.sql}")  # an unknown column is the graver mistake
            except DBAPIError as error:
                if not MISPLACED.match(str(error.orig)):
                    raise
            raise StatementError(*mistake)
        return self._run(translated.sql, translated.kinds)

    def _wrong_constant(self, constants: Sequence[str]) -> StatementError | None:
        """MySQL's error for the first of these constants that is no date or number, though it must be one."""
        for constant in constants:
            try:
                self._run(f"SELECT {constant}")
            except DBAPIError:
                wrong, self._guard.failure = self._guard.failure, None
                if wrong is not None and wrong.code in CONSTANT_MISTAKES:
                    return wrong
                if wrong is not None:
                    raise wrong from None
        return None

    def _described(self, names: Sequence[str]) -> tuple[TableColumns, ...]:
        """Tables and views, looked up once until a statement changes them."""
        for name in names:
            if name not in self._declared:
                self._declared[name] = self._schema.columns(name)
        return tuple(self._declared[name] for name in names)

    def _run(self, sql: str, kinds: Sequence[Kind] = ()) -> QueryResult:
        result = self._connection.exec_driver_sql(sql)
        if not result.returns_rows:
            self._touched = True
            return QueryResult(None, affected=max(result.rowcount, 0))
        try:
            rows, limit = clip(shown(result, kinds), self._clipping)
        finally:
            result.close()
        return QueryResult(rows, limit=limit, columns=tuple(result.keys()))

    def _cut(self, rows: list[tuple]) -> QueryResult:
        kept, limit = clip(rows, self._clipping)
        return QueryResult(kept, limit=limit, columns=tuple(map(str, range(len(kept[0])))) if kept else ())

    def _table_state(self, name: str) -> TableState | None:
        """The table, `None` if it cannot be read."""
        try:
            # of main: not the temporary table that may hide it
            sql = f"SELECT * FROM main.{quote(name)} LIMIT {MAX_STATE_ROWS}"
            kinds = self._schema.floats(name)
            with self._guard.reading():
                result = self._connection.exec_driver_sql(sql)
                rows = shown(result, kinds) if any(kind.name != UNKNOWN.name for kind in kinds) else result
                return TableState(tuple(result.keys()), [tuple(row) for row in rows])
        except Exception as error:
            cause = getattr(error, "orig", error)
            if is_shortage(cause) and all_are_short():
                raise self._fail(cause) from None
            report(cause, EMULATION, self._executing)
            return None

    def _refused(self, error: DBAPIError) -> QueryResult:
        if self._guard.timed_out:
            return timed_out(self._limits)
        if (reason := self._guard.failure) is not None:
            return failure(reason.code, reason.text)
        if is_shortage(error.orig):
            return self._short(error.orig)
        if error.orig is not None and is_broken(error.orig):
            self._touched = True
            return self._mistaken(error.orig)
        return failure(*as_mysql(str(error.orig)))

    def _short(self, error: BaseException | None) -> QueryResult:
        """The result of a statement that was short of memory or of room.

        Raises:
            EnvironmentFault: so is everybody.
        """
        if all_are_short():
            raise self._fail(error) from None
        full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        return failure(*as_mysql(str(error))) if full else failure(1041, "Out of memory", limit="server")

    def _mistaken(self, error: BaseException) -> QueryResult:
        """The result of a statement that met a mistake of the emulation."""
        report(error, EMULATION, self._executing)
        if self._touched:
            self.lost = "agent"  # what it did before is undone with the tables, which are made again
        return failure(1235, REFUSED, limit="emulation")

    def _transaction(self, tree: exp.Expr) -> QueryResult:
        """BEGIN ends an open transaction; COMMIT and ROLLBACK without one do nothing."""
        if isinstance(tree, exp.Rollback) and tree.args.get("savepoint"):
            raise StatementError(1305, f"SAVEPOINT {tree.args['savepoint'].name} does not exist")
        if isinstance(tree, exp.Rollback) and self._raw.in_transaction:
            self._run("ROLLBACK")
        self._commit()
        if isinstance(tree, exp.Transaction):
            self._run("BEGIN")
        return QueryResult(None, affected=0)

    def _commit(self) -> None:
        if self._raw.in_transaction:
            self._run("COMMIT")

    def _set(self, tree: exp.Set) -> QueryResult:
        """Session variables have no effect, but for autocommit."""
        autocommit = autocommit_of(tree)
        if autocommit is not None:
            if autocommit and not self._autocommit:
                self._commit()
            self._autocommit = autocommit
        return QueryResult(None, affected=0)

    def _command(self, tree: exp.Command, sql: str) -> QueryResult:
        word, rest = str(tree.this).upper(), tree.text("expression")
        if word == "RENAME":
            self._commit()
            for old, new in tables.renamed(rest.strip()):
                self._run(f"ALTER TABLE {quote(self._schema.table_name(old))} RENAME TO {quote(new)}")
            return QueryResult(None, affected=0)
        if word in ("LOCK TABLES", "UNLOCK TABLES", "LOCK", "UNLOCK"):
            self._commit()
            return QueryResult(None, affected=0)
        if word in COMMANDS:
            raise unsupported(word)
        raise not_executed(sql)

    def _truncate(self, tree: exp.TruncateTable) -> QueryResult:
        target = tree.expressions[0]
        if not isinstance(target, exp.Table):
            raise syntax_error(text_of(target))
        if target.db not in ("", SHOWN_DATABASE):
            raise StatementError(1146, f"Table '{target.db}.{target.name}' doesn't exist")
        self._run(f"DELETE FROM {quote(target.name)}")
        return QueryResult(None, affected=0)

    def _drop(self, tree: exp.Drop, kind: str) -> QueryResult:
        schemas = ("temp",) if tree.args.get("temporary") else ("temp", "main")
        known = self._schema.names(kind.lower(), schemas)
        named = [(table.db or SHOWN_DATABASE, table.name) for table in tree.args.get("tables") or [tree.this]]
        found = [name for schema, name in named if schema == SHOWN_DATABASE and name in known]
        unknown = [f"{schema}.{name}" for schema, name in named if name not in found]
        if unknown and not tree.args.get("exists"):
            raise StatementError(1051, f"Unknown table '{','.join(unknown)}'")
        for name in found:  # a temporary table goes before the one that it hides
            self._run(f"DROP {kind} {quote(name)}")
        return QueryResult(None, affected=0)

    def _show(self, tree: exp.Show) -> QueryResult:
        schema = self._schema
        return self._cut(tables.show(tree, schema.tables(), schema.table_name, schema.described))
