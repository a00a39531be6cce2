"""A database in memory that answers MySQL's statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from sqlglot import exp

from trl_dbbench.mysqlite import tables
from trl_dbbench.mysqlite.checks import check_size, names_read
from trl_dbbench.mysqlite.errors import (
    SHOWN_DATABASE,
    StatementError,
    as_mysql,
    nested_too_deeply,
    syntax_error,
    unknown_table,
    unsupported,
)
from trl_dbbench.mysqlite.guard import BROKEN, SHORTAGES, Guard, primary_code
from trl_dbbench.mysqlite.kinds import UNKNOWN, Column, Kind, Table, TableColumns, words
from trl_dbbench.mysqlite.parse import quote, text_of
from trl_dbbench.mysqlite.statements import (
    Statement,
    autocommit_of,
    commits,
    creation,
    definition,
    look,
    translation,
)
from trl_dbbench.mysqlite.tables import Schema, shown
from trl_dbbench.mysqlite.values import OutOfTime

_COMMANDS = words("CALL PREPARE EXECUTE GRANT REVOKE ANALYZE OPTIMIZE CHECK HANDLER LOAD")
"""First words of MySQL's statements that this database does not have."""

TIME_LIMIT = 3024
"""Number of the error for a statement that ran too long."""

Take = Callable[[Iterable[Any]], tuple[list[tuple], str | None]]
"""Reads the rows of a result: returns those that are kept, and the name of the limit that cut them."""


class Limits(NamedTuple):
    """Bounds of one statement: `seconds` of its execution, and `rows` of its result."""

    seconds: float = 5.0
    rows: int = 1000


class Result(NamedTuple):
    """The result of a statement.

    `rows` is `None` for a statement without a result set; `affected` is then the number of rows that it
    changed. `columns` are the names of the columns of `rows`. `limit` is the name of the limit that cut the
    rows, `"rows"` for `Limits.rows`.
    """

    rows: list[tuple] | None = None
    affected: int | None = None
    columns: tuple[str, ...] | None = None
    limit: str | None = None


_DONE = Result(affected=0)


class Connection:
    """The given tables in memory, for the statements of one session. One thread at a time may use it.

    Raises:
        StatementError: MySQL would not make one of the tables.
        sqlite3.Error: SQLite does not make it.
    """

    def __init__(self, given: Sequence[Table] = (), limits: Limits = Limits()) -> None:  # noqa: B008
        self._limits = limits
        self.changed = False
        """True if the last statement may have changed something, if only in part."""
        self._views: dict[str, list[str]] = {}
        self._known: set[str] | None = {table.name for table in given}
        self._declared: dict[str, TableColumns] = {}
        self._autocommit = True
        self._raw = sqlite3.connect(
            ":memory:",
            isolation_level=None,
            check_same_thread=False,
            cached_statements=0,
            detect_types=sqlite3.PARSE_DECLTYPES,
        )
        try:
            self._guard = Guard(self._raw)
            self._schema = Schema(self._raw, self._guard)
            for table in given:
                self._fill(table)
            self._guard.confine(given)
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str, take: Take | None = None) -> Result:
        """Execute a statement.

        Args:
            take: reads the rows of the result, in place of a limit to their number.

        Raises:
            StatementError: MySQL refuses it, or this database does. Where memory or room for files was short,
                `__cause__` is the error that says so.
            Exception: this database is broken, or met a mistake of its own.
        """
        self.changed = False
        self._take = take or self._first_rows
        try:
            with self._guard.statement(self._limits.seconds):
                return self._dispatch(sql)
        except OutOfTime:
            raise _out_of_time() from None
        except sqlite3.Error as error:
            if self._guard.timed_out:
                raise _out_of_time() from None
            if (reason := self._guard.failure) is not None:
                raise StatementError(reason.code, reason.text) from None
            code = primary_code(error)
            if code in BROKEN:
                raise
            if code in SHORTAGES and code != sqlite3.SQLITE_FULL:
                raise StatementError(1041, "Out of memory") from error
            raise StatementError(*as_mysql(str(error))) from error
        except UnicodeDecodeError:  # a name or the text of an error
            raise StatementError(1300, "Invalid utf8mb4 character string") from None
        except MemoryError as error:
            raise StatementError(1041, "Out of memory") from error
        except RecursionError:
            raise nested_too_deeply() from None

    def table_names(self) -> list[str]:
        """Return the names of the tables, but for temporary ones."""
        with self._guard.reading():
            return self._schema.tables()

    def table(self, name: str, most: int) -> tuple[tuple[str, ...], list[tuple]]:
        """Return a table's columns, and as many of its rows as are wanted."""
        # of main: not the temporary table that may hide it
        sql = f"SELECT * FROM main.{quote(name)} LIMIT {most}"
        kinds = self._schema.floats(name)
        with self._guard.reading():
            found = self._raw.execute(sql)
            rows = shown(found, kinds) if any(kind.name != UNKNOWN.name for kind in kinds) else found
            return tuple(column[0] for column in found.description), [tuple(row) for row in rows]

    def close(self) -> None:
        """Remove the tables. May be called repeatedly."""
        self._raw.close()

    def _fill(self, table: Table) -> None:
        columns = ", ".join(f"{quote(column.name)} {column.type}" for column in table.columns)
        self._run(creation(f"CREATE TABLE {quote(table.name)} ({columns})"))
        if table.rows:
            places = ", ".join("?" * len(table.columns))
            rows = tables.stored_rows(table)
            self._raw.executemany(f"INSERT INTO {quote(table.name)} VALUES ({places})", rows)

    def _first_rows(self, rows: Iterable[Any]) -> tuple[list[tuple], str | None]:
        most = self._limits.rows
        found = [tuple(row) for row in islice(rows, most + 1)]
        return found[:most], "rows" if len(found) > most else None

    def _dispatch(self, sql: str) -> Result:
        statement = look(sql)
        tree = statement.tree
        # forgotten, unless it turns out that the statement leaves them as they are
        known, self._known = self._known, None
        if known is None:
            self._declared.clear()
        if isinstance(tree, exp.Show):
            schema = self._schema
            return self._cut(tables.show(tree, schema.tables(), schema.table_name, schema.described))
        if isinstance(tree, exp.Describe):
            if not isinstance(tree.this, exp.Table):
                raise unsupported("EXPLAIN")
            return self._cut(self._schema.described(tables.own_name(tree.this)))
        if self._views:
            check_size(tree, self._views)
        if statement.tables:
            known = self._schema.names() if known is None else known
            if missing := [name for name in statement.tables if name not in known]:
                raise unknown_table(missing[0])
        if commits(tree):
            self._commit()
        if (run := _RUN.get(type(tree))) is not None:
            return run(self, statement)
        if isinstance(tree, exp.Drop) and tree.kind in ("TABLE", "VIEW"):
            return self._drop(tree, tree.kind)
        if not isinstance(tree, exp.Query | exp.Insert | exp.Update | exp.Delete | exp.Drop) or (
            isinstance(tree, exp.Update | exp.Delete) and not isinstance(tree.this, exp.Table)
        ):
            raise statement.not_executed()
        if statement.catalog:
            self._schema.offer_catalog(statement.catalog)
        if not self._autocommit and not self._raw.in_transaction:
            self._run("BEGIN")
        translated = translation(statement, self._described(statement.tables))
        for constant in translated.constants:
            self._read_early(constant)
        result = self._run(translated.sql, translated.kinds)
        if not isinstance(tree, exp.Drop):
            self._known = known
        return result

    def _read_early(self, constant: str) -> None:
        """Evaluate a constant that must be a date or a number: MySQL does before any row, if there is one."""
        try:
            self._run(f"SELECT {constant}")
        except sqlite3.Error:
            if self._guard.failure is not None:
                raise

    def _described(self, names: Sequence[str]) -> tuple[TableColumns, ...]:
        """Return tables and views, looked up once until a statement changes them."""
        for name in names:
            if name not in self._declared:
                self._declared[name] = self._schema.columns(name)
        return tuple(self._declared[name] for name in names)

    def _run(self, sql: str, kinds: Sequence[Kind] = ()) -> Result:
        found = self._raw.execute(sql)
        if found.description is None:
            self.changed = True
            return Result(affected=max(found.rowcount, 0))
        try:
            rows, limit = self._take(shown(found, kinds))
        finally:
            found.close()
        return Result(rows, columns=tuple(column[0] for column in found.description or ()), limit=limit)

    def _cut(self, rows: list[tuple]) -> Result:
        kept, limit = self._take(rows)
        return Result(kept, columns=tuple(map(str, range(len(kept[0])))) if kept else (), limit=limit)

    def _create(self, statement: Statement) -> Result:
        tree: Any = definition(cast(exp.Create, statement.tree), self._described(statement.tables))
        if tree.kind == "VIEW":  # what it has read before counts, too: perhaps it cannot be made again
            self._views.setdefault(tree.this.name.lower(), []).extend(names_read(tree))
        return self._run(tables.create(tree) if tree.kind == "TABLE" else tables.create_other(tree))

    def _alter(self, statement: Statement) -> Result:
        with self._guard.own():
            for change in tables.alter(cast(exp.Alter, statement.tree).copy()):
                self._run(change)
        return _DONE

    def _truncate(self, statement: Statement) -> Result:
        target = statement.tree.expressions[0]
        if not isinstance(target, exp.Table):
            raise syntax_error(text_of(target))
        if target.db not in ("", SHOWN_DATABASE):
            raise StatementError(1146, f"Table '{target.db}.{target.name}' doesn't exist")
        self._run(f"DELETE FROM {quote(target.name)}")
        return _DONE

    def _use(self, statement: Statement) -> Result:
        if statement.tree.this.name != SHOWN_DATABASE:
            raise StatementError(1049, f"Unknown database '{statement.tree.this.name}'")
        return _DONE

    def _transact(self, statement: Statement) -> Result:
        """End an open transaction, for BEGIN as well; COMMIT and ROLLBACK without one do nothing."""
        tree = statement.tree
        if isinstance(tree, exp.Rollback) and tree.args.get("savepoint"):
            raise StatementError(1305, f"SAVEPOINT {tree.args['savepoint'].name} does not exist")
        if isinstance(tree, exp.Rollback) and self._raw.in_transaction:
            self._run("ROLLBACK")
        self._commit()
        if isinstance(tree, exp.Transaction):
            self._run("BEGIN")
        return _DONE

    def _commit(self) -> None:
        if self._raw.in_transaction:
            self._run("COMMIT")

    def _set(self, statement: Statement) -> Result:
        """Set autocommit; other session variables have no effect."""
        autocommit = autocommit_of(cast(exp.Set, statement.tree))
        if autocommit is not None:
            if autocommit and not self._autocommit:
                self._commit()
            self._autocommit = autocommit
        return _DONE

    def _command(self, statement: Statement) -> Result:
        word, rest = str(statement.tree.this).upper(), statement.tree.text("expression")
        if word == "RENAME":
            self._commit()
            for old, new in tables.renamed(rest.strip()):
                self._run(f"ALTER TABLE {quote(self._schema.table_name(old))} RENAME TO {quote(new)}")
            return _DONE
        if word in ("LOCK TABLES", "UNLOCK TABLES", "LOCK", "UNLOCK"):
            self._commit()
            return _DONE
        raise unsupported(word) if word in _COMMANDS else statement.not_executed()

    def _drop(self, tree: exp.Drop, kind: str) -> Result:
        schemas = ("temp",) if tree.args.get("temporary") else ("temp", "main")
        known = self._schema.names(kind.lower(), schemas)
        named = [(table.db or SHOWN_DATABASE, table.name) for table in tree.args.get("tables") or [tree.this]]
        found = [name for schema, name in named if schema == SHOWN_DATABASE and name in known]
        unknown = [f"{schema}.{name}" for schema, name in named if name not in found]
        if unknown and not tree.args.get("exists"):
            raise StatementError(1051, f"Unknown table '{','.join(unknown)}'")
        for name in found:  # a temporary table goes before the one that it hides
            self._run(f"DROP {kind} {quote(name)}")
        return _DONE


def open_file(path: str | Path, limits: Limits = Limits()) -> Connection:  # noqa: B008
    """Return a connection to the tables of an SQLite file, read into memory."""
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as file:
        found = file.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
        )
        given = []
        for (name,) in found.fetchall():
            info = file.execute(f"PRAGMA table_info({quote(name)})")
            columns = [Column(row[1], row[2] or "TEXT") for row in info]
            given.append(Table(name, columns, file.execute(f"SELECT * FROM {quote(name)}").fetchall()))
    return Connection(given, limits)


def _out_of_time() -> StatementError:
    return StatementError(
        TIME_LIMIT, "Query execution was interrupted, maximum statement execution time exceeded"
    )


_RUN: dict[type, Callable[[Connection, Statement], Result]] = {
    exp.Create: Connection._create,
    exp.Alter: Connection._alter,
    exp.TruncateTable: Connection._truncate,
    exp.Use: Connection._use,
    exp.Transaction: Connection._transact,
    exp.Commit: Connection._transact,
    exp.Rollback: Connection._transact,
    exp.Set: Connection._set,
    exp.Command: Connection._command,
}
"""Statements that are not translated as a whole, with what executes them."""
