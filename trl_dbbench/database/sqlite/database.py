"""SQLite in the place of MySQL: nothing to install, MySQL's dialect translated by `mysql_dialect`.

Every sandbox is a database of its own in memory. It is meant for trying out and for tests; see
`SQLiteDatabase.DIFFERENCES` for what an agent would notice.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
import time
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import StaticPool
from sqlglot import exp

from trl_dbbench.database.base import Database
from trl_dbbench.database.faults import message
from trl_dbbench.database.sandbox import (
    STATE_ROWS,
    Limits,
    QueryResult,
    Sandbox,
    State,
    check_rows,
    clip,
    column_type,
    refuse,
    time_limit_message,
)
from trl_dbbench.database.sqlite import tables
from trl_dbbench.database.sqlite.checks import check_groups, check_size, names_read
from trl_dbbench.database.sqlite.functions import like
from trl_dbbench.database.sqlite.guard import Guard, is_environment_fault
from trl_dbbench.database.sqlite.parse import REMEMBERED_TEXT, parse, syntax_error, unsupported
from trl_dbbench.database.sqlite.translation import DATABASE, quote, write
from trl_dbbench.database.sqlite.values import FunctionError
from trl_dbbench.errors import DatabaseError, EnvironmentFault, TaskError
from trl_dbbench.tasks import Table, Task

logger = logging.getLogger("trl_dbbench.database")

LONGEST_MESSAGE = 512
"""Characters of an error that the agent is shown, as MySQL has it."""


class SQLiteDatabase(Database):
    """No server: hands out databases in memory."""

    statements_at_once = 4  # they compute in this process, and more threads only get in each other's way

    DIFFERENCES = (
        "It differs from MySQL: computed DECIMAL and date values come as plain numbers and texts, too long or rounded "
        "values are stored as they are, rare functions are missing."
    )

    def __init__(self, limits: Limits) -> None:
        self.url = "sqlite"
        self.dialect = "sqlite"
        self.limits = limits

    def describe(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}, embedded, MySQL's dialect translated"

    def fresh_sandbox(self, task: Task) -> Sandbox:
        if self.closed:
            raise DatabaseError("The database was closed. Open it again for more sandboxes.")
        return SQLiteSandbox(task, self.limits)

    def close(self) -> None:
        self.closed = True
        self._threads.shutdown(wait=False)


class SQLiteSandbox(Sandbox):
    """A database in memory, with MySQL's collation and functions."""

    def __init__(self, task: Task, limits: Limits) -> None:
        self._limits = limits
        self._views: dict[str, list[str]] = {}
        self._broken: str | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._engine = create_engine(
            "sqlite://",
            poolclass=StaticPool,
            connect_args={
                "check_same_thread": False,
                "cached_statements": 0,
                "detect_types": sqlite3.PARSE_DECLTYPES,
            },
            isolation_level="AUTOCOMMIT",
            execution_options={"no_parameters": True},
        )
        self._connection = self._engine.connect()
        self._raw: sqlite3.Connection = self._connection.connection.driver_connection  # type: ignore[assignment]
        try:
            self._guard = Guard(self._raw)
            for table in task.tables:
                self._fill(table)
            self._guard.confine(task.tables)
        except FunctionError as error:
            self.close()
            raise TaskError(f"Task {task.id!r}: its tables cannot be made: {error.text}") from None
        except DBAPIError as error:
            self.close()
            if is_environment_fault(error.orig):
                raise self._fail(error.orig) from None
            raise TaskError(f"Task {task.id!r}: its tables cannot be made: {error.orig}") from None
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str) -> QueryResult:
        self._check_usable()
        start = time.monotonic()
        refused = refuse(sql)
        if refused:
            return QueryResult(None, refused)
        try:
            with self._guard.statement(self._limits.seconds):
                result = self._dispatch(sql)
        except FunctionError as error:
            result = QueryResult(None, message(error.code, error.text))
        except DBAPIError as error:
            result = self._refused(error)
        except MemoryError as error:  # what an agent can have is bounded
            raise self._fail(error) from None
        except RecursionError:
            result = QueryResult(
                None, message(1436, "Thread stack overrun: the statement is nested too deeply")
            )
        except (ValueError, ArithmeticError) as error:
            result = QueryResult(None, message(1105, f"Unknown error: {error}"))
        except (AttributeError, TypeError, LookupError, AssertionError) as error:
            # a tree without the parts that its kind always has: sqlglot reads on where MySQL has given up
            logger.debug("not translated: %r", sql, exc_info=error)
            result = QueryResult(None, message(1064, syntax_error(sql).text))
        seconds = time.monotonic() - start
        error_shown = result.error and result.error[:LONGEST_MESSAGE]
        return QueryResult(result.rows, error_shown, result.limit, result.affected, seconds)

    def state(self) -> State:
        self._check_usable()
        try:
            return {
                name: self._rows(f"SELECT * FROM {quote(name)} LIMIT {STATE_ROWS}") for name in self._tables()
            }
        except (DBAPIError, MemoryError) as error:
            raise self._fail(getattr(error, "orig", error)) from None

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._connection.close()
            self._engine.dispose()
        except SQLAlchemyError:
            pass

    def _check_usable(self) -> None:
        if self._closed:
            raise DatabaseError("The sandbox is closed. Take another from Database.sandbox().")
        if self._broken:
            raise EnvironmentFault(f"The sandbox broke before: {self._broken}")

    def _fail(self, error: BaseException | None) -> EnvironmentFault:
        """The fault that this error means; the sandbox is not to be used again."""
        self._broken = f"SQLite failed: {str(error) or 'out of memory'}"
        return EnvironmentFault(self._broken)

    def _fill(self, table: Table) -> None:
        check_rows(table)
        columns = ", ".join(f"{quote(column.name)} {column_type(table, column)}" for column in table.columns)
        self._run(_creation(f"CREATE TABLE {quote(table.name)} ({columns})"))
        if table.rows:
            places = ", ".join("?" * len(table.columns))
            rows = [
                tuple(float(cell) if isinstance(cell, Decimal) else cell for cell in row)
                for row in table.rows
            ]
            self._connection.exec_driver_sql(f"INSERT INTO {quote(table.name)} VALUES ({places})", rows)

    # One statement.

    def _dispatch(self, sql: str) -> QueryResult:
        known = _known(sql)
        tree = known.tree
        if isinstance(tree, exp.Show):
            return self._show(tree)
        if isinstance(tree, exp.Describe):
            if not isinstance(tree.this, exp.Table):
                raise unsupported("EXPLAIN")
            return self._cut(self._columns(tree.this.name))
        if self._views:
            check_size(tree, self._views)
        if isinstance(tree, exp.Create):
            tree = tree.copy()  # which these change
            if tree.kind == "VIEW":
                self._views[tree.this.name.lower()] = names_read(tree)
            return self._run(
                tables.create(tree) if tree.kind == "TABLE" else tables.create_other(tree, write)
            )
        if isinstance(tree, exp.Alter):
            with self._guard.own():
                for statement in tables.alter(tree.copy()):
                    self._run(statement)
            return QueryResult(None, affected=0)
        if isinstance(tree, exp.TruncateTable):
            self._run(f"DELETE FROM {quote(tree.expressions[0].name)}")
            return QueryResult(None, affected=0)
        if isinstance(tree, exp.Use):
            if tree.this.name.lower() != DATABASE:
                raise FunctionError(1049, f"Unknown database '{tree.this.name}'")
            return QueryResult(None, affected=0)
        if isinstance(tree, exp.Transaction | exp.Commit | exp.Rollback):
            return self._transaction(tree)
        if isinstance(tree, exp.Set):
            return QueryResult(None, affected=0)
        if isinstance(tree, exp.Command):
            return self._command(tree)
        if isinstance(tree, exp.Drop) and tree.kind == "TABLE":
            return self._drop(tree)
        if not isinstance(tree, exp.Query | exp.Insert | exp.Update | exp.Delete | exp.Drop):
            raise syntax_error(sql.strip())
        if known.misgrouped and not any(
            column[3] for name in self._tables() for column in self._columns(name)
        ):
            raise FunctionError(*known.misgrouped)
        if known.catalog:
            self._offer_catalog(known.catalog)
        return self._run(_translation(sql) if len(sql) <= REMEMBERED_TEXT else write(tree))

    def _run(self, sql: str) -> QueryResult:
        result = self._connection.exec_driver_sql(sql)
        if not result.returns_rows:
            return QueryResult(None, affected=max(result.rowcount, 0))
        try:
            rows, limit = clip(result, self._limits)
        finally:
            result.close()
        return QueryResult(rows, limit=limit)

    def _cut(self, rows: list[tuple]) -> QueryResult:
        kept, limit = clip(rows, self._limits)
        return QueryResult(kept, limit=limit)

    def _rows(self, sql: str) -> list[tuple]:
        return [tuple(row) for row in self._connection.exec_driver_sql(sql)]

    def _refused(self, error: DBAPIError) -> QueryResult:
        if self._guard.timed_out:
            return QueryResult(None, time_limit_message(self._limits), limit="time")
        if (failure := self._guard.failure) is not None:
            return QueryResult(None, message(failure.code, failure.text))
        if is_environment_fault(error.orig):
            raise self._fail(error.orig) from None
        code, text = _as_mysql(str(error.orig))
        return QueryResult(None, message(code, text))

    def _transaction(self, tree: exp.Expr) -> QueryResult:
        """BEGIN ends an open transaction; COMMIT and ROLLBACK without one do nothing."""
        if self._raw.in_transaction:
            self._run("ROLLBACK" if isinstance(tree, exp.Rollback) else "COMMIT")
        if isinstance(tree, exp.Transaction):
            self._run("BEGIN")
        return QueryResult(None, affected=0)

    def _command(self, tree: exp.Command) -> QueryResult:
        word, rest = str(tree.this).upper(), tree.expression.name if tree.expression else ""
        renamed = re.fullmatch(r"TABLE\s+(`[^`]+`|\S+)\s+TO\s+(`[^`]+`|\S+)\s*", rest, re.IGNORECASE)
        if word == "RENAME" and renamed:
            return self._run(f"ALTER TABLE {renamed[1]} RENAME TO {renamed[2]}")
        if word in ("LOCK TABLES", "UNLOCK TABLES", "LOCK", "UNLOCK"):
            return QueryResult(None, affected=0)
        if word in _COMMANDS:
            raise unsupported(word)
        raise syntax_error(f"{word} {rest}")

    def _drop(self, tree: exp.Drop) -> QueryResult:
        for table in tree.args.get("tables") or [tree.this]:
            if not tree.args.get("exists") and table.name.lower() not in map(str.lower, self._tables()):
                raise FunctionError(1051, f"Unknown table '{DATABASE}.{table.name}'")
            self._run(f"DROP TABLE IF EXISTS {quote(table.name)}")
        return QueryResult(None, affected=0)

    # What there is.

    def _tables(self) -> list[str]:
        query = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        return [row[0] for row in self._rows(query)]

    def _table_name(self, name: str) -> str:
        found = next((each for each in self._tables() if each.lower() == name.lower()), None)
        if found is None:
            raise FunctionError(1146, f"Table '{DATABASE}.{name}' doesn't exist")
        return found

    def _columns(self, name: str) -> list[tuple]:
        """As DESCRIBE lists them: name, type, NULL allowed, key, default, extra."""
        with self._guard.own():
            info = self._rows(f"PRAGMA table_info({quote(self._table_name(name))})")
        return [tables.described(row) for row in info]

    def _show(self, tree: exp.Show) -> QueryResult:
        what, target = tree.name.upper(), tree.args.get("target")
        name = target.name if target is not None else ""
        if what == "TABLES":
            found: list[tuple] = [(table,) for table in sorted(self._tables())]
            if tree.args.get("full"):
                found = [(*row, "BASE TABLE") for row in found]
        elif what == "DATABASES":
            found = [("information_schema",), (DATABASE,)]
        elif what == "COLUMNS":
            found = self._columns(name)
            if tree.args.get("full"):
                found = [(row[0], row[1], None, *row[2:], "", "") for row in found]
        elif what == "CREATE TABLE":
            table = self._table_name(name)
            found = [(table, tables.shown(table, self._columns(table)))]
        elif what in ("WARNINGS", "ERRORS", "INDEX", "TRIGGERS", "VARIABLES", "STATUS"):
            found = []
        else:
            raise unsupported(f"SHOW {what}")
        pattern = tree.args.get("like")
        if pattern is not None:
            found = [row for row in found if like(row[0], pattern.name)]
        return self._cut(found)

    def _offer_catalog(self, wanted: frozenset[str]) -> None:
        """Make these information_schema tables."""
        with self._guard.own():
            names = sorted(self._tables())
            for catalog in wanted:
                headers, rows = tables.CATALOG[catalog](names, self._columns)
                target = f"temp.{quote(f'information_schema.{catalog}')}"
                self._run(f"DROP TABLE IF EXISTS {target}")
                self._run(
                    f"CREATE TEMP TABLE {quote(f'information_schema.{catalog}')} ({', '.join(headers)})"
                )
                if rows:
                    places = ", ".join("?" * len(headers))
                    self._connection.exec_driver_sql(f"INSERT INTO {target} VALUES ({places})", rows)


# A group's episodes run much the same statements: what is said of one is remembered.


@dataclass(frozen=True)
class _Known:
    """What is known of a statement: its tree, not to be changed unless it is a long one, the information_schema tables
    that it reads, and the error (number, text) that it is for tables without keys."""

    tree: exp.Expr
    catalog: frozenset[str]
    misgrouped: tuple[int, str] | None


def _known(sql: str) -> _Known:
    return _remembered(sql) if len(sql) <= REMEMBERED_TEXT else _look(sql)


def _look(sql: str) -> _Known:
    tree = parse(sql)
    check_size(tree, {})
    catalog = {
        table.name.lower() for table in tree.find_all(exp.Table) if table.db.lower() == "information_schema"
    }
    misgrouped = None
    try:
        check_groups(tree)
    except FunctionError as error:
        misgrouped = error.code, error.text
    return _Known(tree, frozenset(catalog & set(tables.CATALOG)), misgrouped)


_remembered = lru_cache(maxsize=512)(_look)


@lru_cache(maxsize=4096)
def _translation(sql: str) -> str:
    return write(_known(sql).tree.copy())


@lru_cache(maxsize=4096)
def _creation(sql: str) -> str:
    return tables.create(parse(sql))


_COMMANDS = frozenset(
    {"CALL", "PREPARE", "EXECUTE", "GRANT", "REVOKE", "ANALYZE", "OPTIMIZE", "CHECK", "HANDLER", "LOAD"}
)

_MESSAGES: list[tuple[str, int, str]] = [
    (r"no such column: (?:.*\.)?(.*)", 1054, "Unknown column '{0}' in 'field list'"),
    (r"table .* has no column named (.*)", 1054, "Unknown column '{0}' in 'field list'"),
    (r"no such table: (?:main\.|temp\.)?(.*)", 1146, f"Table '{DATABASE}.{{0}}' doesn't exist"),
    (r"UNIQUE constraint failed: (.*)", 1062, "Duplicate entry for key '{0}'"),
    (r"NOT NULL constraint failed: (?:.*\.)?(.*)", 1048, "Column '{0}' cannot be null"),
    (
        r"table .* has \d+ columns but \d+ values were supplied",
        1136,
        "Column count doesn't match value count at row 1",
    ),
    (r"\d+ values for \d+ columns", 1136, "Column count doesn't match value count at row 1"),
    (
        r"all VALUES must have the same number of terms",
        1136,
        "Column count doesn't match value count at row 2",
    ),
    (r"ambiguous column name: (.*)", 1052, "Column '{0}' in field list is ambiguous"),
    (r"misuse of (?:window function|aggregate).*", 1111, "Invalid use of group function"),
    (r"table (.*) already exists", 1050, "Table '{0}' already exists"),
    (r"there is already another table or index with this name: (.*)", 1050, "Table '{0}' already exists"),
    (r"duplicate column name: (.*)", 1060, "Duplicate column name '{0}'"),
    (r"sub-select returns \d+ columns - expected (\d+)", 1241, "Operand should contain {0} column(s)"),
    (r"row value misused", 1241, "Operand should contain 1 column(s)"),
    (
        r"SELECTs to the left and right of .*",
        1222,
        "The used SELECT statements have a different number of columns",
    ),
    (r"no such function: (?:my_)?(.*)", 1305, f"FUNCTION {DATABASE}.{{0}} does not exist"),
    (
        r"wrong number of arguments to function (?:my_)?(.*)\(\)",
        1582,
        "Incorrect parameter count in the call to native function '{0}'",
    ),
    (r"CHECK constraint failed: (.*)", 1366, "Incorrect numeric value for column '{0}'"),
    (r"database or disk is full", 1114, "The table is full"),
    (r"too many columns.*", 1117, "Too many columns"),
    (r"string or blob too big", 1301, "Result was larger than max_allowed_packet"),
    (r"not authorized|.*prohibited.*", 1142, "Command denied to the agent"),
]


def _as_mysql(text: str) -> tuple[int, str]:
    """The number and message with which MySQL says what SQLite has said."""
    for pattern, code, form in _MESSAGES:
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match:
            return code, form.format(*(group.strip('"').strip("`") for group in match.groups()))
    near = re.match(r'near "(.*)": syntax error', text, re.DOTALL)
    if near:
        error = syntax_error(near[1])
        return error.code, error.text
    return 1105, f"Unknown error: {text}"
