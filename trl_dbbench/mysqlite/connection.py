"""An in-memory database that executes MySQL statements."""

from __future__ import annotations

import math
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

from sqlglot import exp

from trl_dbbench.mysqlite import errors, tables
from trl_dbbench.mysqlite.checks import check_size, names_read
from trl_dbbench.mysqlite.errors import SHOWN_DATABASE, StatementError, as_mysql, fail_if, refuse_if
from trl_dbbench.mysqlite.guard import BROKEN, SHORTAGES, Guard, primary_code
from trl_dbbench.mysqlite.kinds import Kind, Table, TableColumns, annotate, declared, kind_of
from trl_dbbench.mysqlite.names import check_differ, needed_tables
from trl_dbbench.mysqlite.parse import quote, text_of
from trl_dbbench.mysqlite.statements import Statement, commits, creation, look, translated, translation
from trl_dbbench.mysqlite.storage import numbered
from trl_dbbench.mysqlite.tables import Schema, shown
from trl_dbbench.mysqlite.values import COLLATION, OutOfTime

_MISSING = re.compile(
    r"(ALTER|CALL|PREPARE|EXECUTE|GRANT|REVOKE|ANALYZE|OPTIMIZE|CHECK|HANDLER|LOAD|LOCK|UNLOCK"
    r"|SHOW\s+(FIELDS|KEYS|INDEXES|EXTENDED)|CREATE\s+(TRIGGER|EVENT|USER|ROLE|DEFINER|OR))\b",
    re.IGNORECASE,
)
"""First words of MySQL statements that this database does not support."""

TIME_LIMIT = 3024
"""MySQL's error number for a statement that exceeded its time limit."""

Take = Callable[[Iterable[Any]], tuple[list[tuple], str | None]]
"""Function from a result's rows to the rows kept, and the name of the limit that cut them or `None`."""


class Limits(NamedTuple):
    """Limits per statement: `seconds` of execution, and `rows` in the result."""

    seconds: float = 5.0
    rows: int = 1000


class Result(NamedTuple):
    """The result of a statement.

    `rows` is `None` for a statement without a result set; `affected` is then the number of rows that it
    changed. `columns` are the names of the columns in `rows`. `limit` is the name of the limit that cut the
    rows (`"rows"` for `Limits.rows`), or `None`.
    """

    rows: list[tuple] | None = None
    affected: int | None = None
    columns: tuple[str, ...] | None = None
    limit: str | None = None


_DONE = Result(affected=0)
_LATE = "Query execution was interrupted, maximum statement execution time exceeded"
_INFINITE = frozenset({math.inf, -math.inf})


def _named(shown: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """Return a query's column names: `shown`, with a `*` replaced by names from the database's `own`."""
    if shown.count("*") != 1:
        return own if "*" in shown else shown or own
    place, more = shown.index("*"), len(own) - len(shown)
    return (*shown[:place], *own[place : place + 1 + more], *shown[place + 1 :])


class Connection:
    """One session on an in-memory database with the given tables. Only one thread at a time may use it.

    Raises:
        StatementError: MySQL would refuse to create one of the tables.
        sqlite3.Error: SQLite fails to create one of the tables.
    """

    def __init__(self, given: Sequence[Table] = (), limits: Limits = Limits()) -> None:  # noqa: B008
        self._limits = limits
        self.changed = False
        """True if the last statement may have changed something, even if it then failed."""
        self._views: dict[str, list[str]] = {}
        self._queries: dict[str, exp.Expr] = {}
        self._known: set[str] | None = {table.name for table in given}
        self._declared: dict[str, TableColumns] = {}
        self._autocommit = True
        self._assigned = False
        self._temporary = False
        self._miscounted: set[str] = set()
        """Tables whose next AUTO_INCREMENT value may differ from MySQL's."""
        self._numbered: set[str] = set()
        """AUTO_INCREMENT tables that the open transaction has inserted into."""
        self._open = False
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
            take: reads the rows of the result. By default, the first `Limits.rows` of them are kept.

        Raises:
            StatementError: MySQL or this database refuses the statement. If memory or disk space ran out,
                `__cause__` is the original error.
            Exception: this database is broken, or has a bug.
        """
        self.changed, self._open = False, self._raw.in_transaction
        self._take = take or self._first_rows
        try:
            with self._guard.statement(self._limits.seconds):
                return self._dispatch(sql)
        except OutOfTime:
            raise StatementError(TIME_LIMIT, _LATE) from None
        except sqlite3.Error as error:
            if self._guard.timed_out:
                raise StatementError(TIME_LIMIT, _LATE) from None
            if (reason := self._guard.failure) is not None:
                raise StatementError(reason.code, reason.text) from None
            code = primary_code(error)
            if code in BROKEN:
                raise
            if code in SHORTAGES and code != sqlite3.SQLITE_FULL:
                raise StatementError(1041, "Out of memory") from error
            raise StatementError(*as_mysql(str(error))) from error
        except UnicodeDecodeError:  # in a name or an error message
            raise StatementError(1300, "Invalid utf8mb4 character string") from None
        except MemoryError as error:
            raise StatementError(1041, "Out of memory") from error
        except RecursionError:
            raise errors.nested_too_deeply() from None

    @property
    def rolled_back(self) -> bool:
        """Return whether the last statement failed and rolled back a transaction that MySQL would keep."""
        return self._open and not self._raw.in_transaction

    def table_names(self) -> list[str]:
        """Return the names of the tables, except temporary ones."""
        with self._guard.reading():
            return [name for name, type in self._schema.listed() if type == "BASE TABLE"]

    def table(self, name: str, most: int) -> tuple[tuple[str, ...], list[tuple]]:
        """Return a table's column names and its rows, at most `most` of them."""
        # in main: a temporary table may hide it
        sql = f"SELECT * FROM main.{quote(name)} LIMIT {most}"
        kinds = self._schema.kinds(name)
        with self._guard.reading():
            found = self._raw.execute(sql)
            rows = [tuple(row) for row in shown(found, kinds)]
            return tuple(column[0] for column in found.description), rows

    def close(self) -> None:
        """Close the database, which discards its tables. May be called repeatedly."""
        self._raw.close()

    def _fill(self, table: Table) -> None:
        columns = ", ".join(f"{quote(column.name)} {column.type}" for column in table.columns)
        self._run(creation(f"CREATE TABLE {quote(table.name)} ({columns})"))
        if table.rows:
            places = ", ".join("?" * len(table.columns))
            pairs = zip(dict(self._schema.columns(table.name).columns).values(), table.columns, strict=True)
            kinds = [declared(column.type) if kind.name == "int" else kind for kind, column in pairs]
            rows = tables.stored_rows(table, kinds)
            self._raw.executemany(f"INSERT INTO {quote(table.name)} VALUES ({places})", rows)

    def _first_rows(self, rows: Iterable[Any]) -> tuple[list[tuple], str | None]:
        most = self._limits.rows
        found = [tuple(row) for row in islice(rows, most + 1)]
        return found[:most], "rows" if len(found) > most else None

    def _dispatch(self, sql: str) -> Result:
        statement = look(sql)
        tree = statement.tree
        # forget the known tables, unless the statement turns out to leave them unchanged
        known, self._known = self._known, None
        if known is None:
            self._declared.clear()
        if isinstance(tree, exp.Show):
            return self._cut(*tables.show(tree, self._schema))
        if isinstance(tree, exp.Describe):
            if not isinstance(tree.this, exp.Table):
                raise errors.unsupported("EXPLAIN")
            return self._cut(tables.OF_COLUMNS, self._schema.described(tables.own_name(tree.this)))
        assigned = self._assigned and not isinstance(tree, exp.Set)
        refuse_if(assigned and tree.find(exp.Parameter), "a variable that SET has set")
        if self._views:
            check_size(tree, self._views)
        if commits(tree):  # even if the statement then fails
            self._commit()
        if statement.tables:
            known = self._schema.names() if known is None else known
            if missing := [name for name in statement.tables if name not in known]:
                raise errors.unknown_table(missing[0])
        if self._temporary:
            self._check_reopened(statement)
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
        made = translation(statement, self._described(statement.tables))
        for constant in made.constants:
            self._read_early(constant)
        # with ORDER BY, MySQL changes rows one by one in that order; with IGNORE, it replaces NULL by a value
        doubtful = "UNIQUE" if tree.args.get("order") else "NOT NULL" if tree.args.get("ignore") else None
        try:
            result = self._insert(tree, made.sql) if isinstance(tree, exp.Insert) else self._run(*made[:2])
        except sqlite3.IntegrityError as error:
            refuse_if(doubtful and str(error).startswith(doubtful), f"a change in which {error}")
            if isinstance(tree, exp.Insert) and isinstance(tree.this, exp.Schema):
                column = str(error).rpartition(".")[2]
                left_out = column.lower() not in (each.name.lower() for each in tree.this.expressions)
                if str(error).startswith("NOT NULL") and left_out:
                    raise StatementError(1364, f"Field '{column}' doesn't have a default value") from None
            raise
        if not isinstance(tree, exp.Drop):
            self._known = known
        return result._replace(columns=_named(statement.shown, result.columns or ()) or None)

    def _check_reopened(self, statement: Statement) -> None:
        """Refuse a statement that reads a temporary table twice, which MySQL cannot do."""
        temporary = self._schema.temporary().keys() & set(statement.tables)
        counts = Counter(table.name for table in statement.tree.find_all(exp.Table)) if temporary else {}
        twice = {name for name, count in counts.items() if count > 1}
        # a CTE that is read twice reads its tables twice
        refuse_if(twice - set(statement.tables) or twice & temporary, "a temporary table that is read twice")

    def _check_new(self, name: str) -> None:
        known = self._schema.names()
        alike = name not in known and name.lower() in map(str.lower, known)
        refuse_if(alike, "names of tables that differ in case alone")

    def _insert(self, tree: exp.Insert, sql: str) -> Result:
        """Execute INSERT or REPLACE; refuse it if MySQL's next AUTO_INCREMENT value is not certain."""
        name = cast(exp.Table, tree.find(exp.Table)).name
        (table,) = self._described((name,))
        if not table.automatic:
            return self._run(sql)
        if self._raw.in_transaction:
            self._numbered.add(name)
        rows = numbered(tree, table)
        kinds, passes_over = set(rows), tree.args.get("ignore") or tree.args.get("conflict")
        doubtful = name in self._miscounted or (passes_over and len(rows) != 1)
        refuse_if(doubtful and kinds != {False}, "the next number of AUTO_INCREMENT")
        if len(rows) != 1 and kinds not in ({True}, {False}):  # MySQL reserves values that it does not use
            self._miscounted.add(name)
        try:
            return self._run(sql)
        except BaseException as error:
            duplicate = str(error).startswith("UNIQUE")
            if duplicate and kinds == {True}:  # MySQL has numbered all rows by then
                self._schema.skip_numbers(name, len(rows))
            elif kinds != {False} and (duplicate or len(rows) != 1):
                self._miscounted.add(name)
            raise

    def _read_early(self, constant: str) -> None:
        """Evaluate a constant or constant subquery and raise if it fails: MySQL reads it before any row."""
        try:
            self._run(f"SELECT {constant}")
        except sqlite3.Error:
            if self._guard.failure is not None:
                raise

    def _described(self, names: Sequence[str]) -> tuple[TableColumns, ...]:
        """Return the columns of tables and views, cached until a statement changes the schema."""
        for name in names:
            if name not in self._declared:
                found = self._schema.columns(name)
                if (query := self._queries.get(name)) is not None:
                    kinds = annotate(query.copy(), self._described(needed_tables(query)))
                    found = TableColumns(name, tuple(zip(dict(found.columns), kinds, strict=False)))
                self._declared[name] = found
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
        refuse_if(not all(map(_INFINITE.isdisjoint, rows)), "a result beyond the range of DOUBLE")
        return Result(rows, columns=tuple(column[0] for column in found.description or ()), limit=limit)

    def _cut(self, columns: tuple[str, ...], rows: list[tuple]) -> Result:
        kept, limit = self._take(rows)
        return Result(kept, columns=columns, limit=limit)

    def _create(self, statement: Statement) -> Result:
        tree, read = cast(exp.Create, statement.tree.copy()), self._described(statement.tables)
        query, view = tree.expression, tree.kind == "VIEW"
        refuse_if(statement.catalog, "information_schema in CREATE")
        name = cast(exp.Table, tree.find(exp.Table)).name
        temporary = tree.find(exp.TemporaryProperty) is not None
        self._temporary |= temporary
        if tree.kind != "INDEX":
            self._check_new(name)
        refuse_if(name in self._queries and tree.kind == "TABLE", "a table that hides a view")
        refuse_if(temporary and (view or name in statement.tables), "such a temporary table or view")
        if not isinstance(query, exp.Query):
            refuse_if(tree.kind == "INDEX" and tree.find(exp.Anonymous), "an index of a part of a column")
            for column in tree.find_all(exp.Column) if tree.kind == "INDEX" else ():
                here = column.name.lower() in (each.lower() for each, _ in read[0].columns)
                fail_if(not here, 1072, f"Key column '{column.name}' doesn't exist in table")
            return self._run(tables.create(tree) if tree.kind == "TABLE" else translated(tree, read).sql)
        copy = query.copy()
        kinds = [*annotate(copy, read), *(kind_of(each) for each in copy.find_all(exp.Column) if view)]
        refuse_if(any(kind.is_single or kind.name == "fixed" for kind in kinds), "a query with FLOAT")
        if view:
            self._check_view(tree, [named for named, _ in copy.meta["row"]])
            # keep what an existing view of this name reads: this CREATE may fail
            self._views.setdefault(name.lower(), []).extend(names_read(tree))
            self._together([translated(tree, read).sql, f"SELECT 1 FROM {quote(name)} LIMIT 0"])
            self._queries[name] = query.copy()
            return _DONE
        refuse_if(not isinstance(tree.this, exp.Table), "CREATE TABLE with columns and a query")
        named = all(isinstance(each, exp.Alias | exp.Column | exp.Star) for each in query.selects)
        refuse_if(not named, "a column without a name in CREATE TABLE ... AS")
        refuse_if(tree.args.get("exists") and name in self._schema.names(), "a table that exists, of a query")
        row = copy.meta["row"]
        filling = exp.Insert(this=exp.Table(this=exp.to_identifier(name)), expression=query.copy())
        filled = translated(filling, (*read, TableColumns(name, tuple(row)))).sql
        return self._together([tables.create_filled(tree, row), filled])

    def _check_view(self, tree: exp.Create, names: Sequence[str]) -> None:
        fail_if(tree.find(exp.Parameter), 1351, "View's SELECT contains a variable or parameter")
        temporary = self._schema.temporary().keys() & set(needed_tables(tree.expression))
        for name in temporary:
            raise StatementError(1352, f"View's SELECT refers to a temporary table '{name}'")
        if isinstance(tree.this, exp.Schema):
            names = [each.name for each in tree.this.expressions]
        check_differ(names)

    def _alter(self, statement: Statement) -> Result:
        tree = cast(exp.Alter, statement.tree)
        refuse_if(self._queries, "ALTER TABLE beside a view")
        refuse_if(
            self._miscounted and tree.find(exp.AlterRename), "RENAME, and the next number of AUTO_INCREMENT"
        )
        for each in tree.find_all(exp.AlterRename):
            self._check_new(each.this.name)
        known = {name.lower() for name, _ in self._described(statement.tables)[0].columns}
        for action in tree.args.get("actions") or []:
            name = action.this.name if action.this else ""
            name = name or "".join(each.name for each in action.args.get("tables") or [])
            if isinstance(action, exp.RenameColumn) and name.lower() not in known:
                raise errors.unknown_column(name, tree.this.name)
            dropped = isinstance(action, exp.Drop) and action.args.get("kind") == "COLUMN"
            fail_if(
                dropped and name and name.lower() not in known,
                1091,
                f"Can't DROP '{name}'; check that column/key exists",
            )
        with self._guard.own():
            self._together(tables.alter(tree.copy()))
        return _DONE

    def _together(self, statements: Iterable[str]) -> Result:
        """Run the statements, and undo all of them if one fails; return the last one's result."""
        result = self._run("SAVEPOINT my_change")
        try:
            for each in statements:
                result = self._run(each)
            self._raw.execute("RELEASE my_change")
        except BaseException:
            with self._guard.own():
                if self._raw.in_transaction:  # SQLite has not rolled back the transaction
                    self._raw.execute("ROLLBACK TO my_change")
                    self._raw.execute("RELEASE my_change")
            raise
        return result

    def _truncate(self, statement: Statement) -> Result:
        target = statement.tree.expressions[0]
        if not isinstance(target, exp.Table):
            raise errors.syntax_error(text_of(target))
        self._miscounted.discard(target.name)
        if target.db not in ("", SHOWN_DATABASE):
            raise StatementError(1146, f"Table '{target.db}.{target.name}' doesn't exist")
        statements = [f"DELETE FROM {quote(target.name)}"]
        if self._described(statement.tables)[0].automatic:
            schema = "temp" if target.name in self._schema.temporary() else "main"
            name = exp.Literal.string(target.name).sql()
            statements.append(f"DELETE FROM {schema}.sqlite_sequence WHERE name = {name}")
        self._together(statements)
        return _DONE

    def _use(self, statement: Statement) -> Result:
        refuse_if(statement.tree.this.name.lower() == "information_schema", "USE information_schema")
        if statement.tree.this.name != SHOWN_DATABASE:
            raise StatementError(1049, f"Unknown database '{statement.tree.this.name}'")
        return _DONE

    def _transact(self, statement: Statement) -> Result:
        """Begin or end a transaction. BEGIN commits an open one; without one, the others do nothing."""
        tree = statement.tree
        refuse_if("READ ONLY" in _modes(tree.args.get("modes")), "a transaction that is READ ONLY")
        if isinstance(tree, exp.Rollback) and tree.args.get("savepoint"):
            raise StatementError(1305, f"SAVEPOINT {tree.args['savepoint'].name} does not exist")
        if isinstance(tree, exp.Rollback) and self._raw.in_transaction:
            self._roll_back()
        self._commit()
        if isinstance(tree, exp.Transaction):
            self._run("BEGIN")
        return _DONE

    def _roll_back(self) -> None:
        """Roll back. In MySQL, temporary tables stay but are empty, and AUTO_INCREMENT values stay used."""
        made = self._schema.temporary()
        self._miscounted |= self._numbered
        self._run("ROLLBACK")
        with self._guard.own():
            for name in made.keys() - self._schema.temporary():
                self._raw.execute(made[name])

    def _commit(self) -> None:
        self._open = False
        self._numbered.clear()
        if self._raw.in_transaction:
            self._run("COMMIT")

    def _set(self, statement: Statement) -> Result:
        """Set autocommit or user variables, whose later use is refused. The isolation level has no effect."""
        before, assigned = self._autocommit, self._assigned
        after = before
        for item in statement.tree.expressions:
            target = item.this.this if isinstance(item.this, exp.EQ) else item
            name, kind = target.name.lower(), item.args.get("kind")
            if isinstance(target, exp.Parameter):
                assigned = True
            elif name == "autocommit" and kind != "GLOBAL":
                word = text_of(item.this.expression).upper()
                refuse_if(word not in _SWITCH, f"SET autocommit = {word[:40]}")
                after = _SWITCH[word]
            elif kind == "TRANSACTION":
                odd = item.args.get("global_") or self._raw.in_transaction
                refuse_if(odd or "READ ONLY" in _modes(item.expressions), "this form of SET TRANSACTION")
            else:
                collation = item.text("collate") or COLLATION
                refuse_if(collation.lower() != COLLATION, f"COLLATE {collation}")
                refuse_if(name not in ("utf8mb4", "foreign_key_checks", "unique_checks"), f"SET {name}")
        self._autocommit, self._assigned = after, assigned
        if after and not before:
            self._commit()
        return _DONE

    def _command(self, statement: Statement) -> Result:
        word, rest = str(statement.tree.this).upper(), statement.tree.text("expression")
        if word == "RENAME":
            self._commit()
            refuse_if(self._queries, "RENAME beside a view")
            refuse_if(self._miscounted, "RENAME, and the next number of AUTO_INCREMENT")
            self._together(map(self._renaming, tables.renamed(rest.strip())))
            return _DONE
        written = f"{word} {rest.strip()}"
        refuse_if(_MISSING.match(written), written[:40])
        raise statement.not_executed()

    def _renaming(self, names: tuple[str, str]) -> str:
        old, new = names
        refuse_if(old in self._schema.temporary(), "RENAME of a temporary table")
        self._check_new(new)
        return f"ALTER TABLE {quote(self._schema.table_name(old))} RENAME TO {quote(new)}"

    def _drop(self, tree: exp.Drop, kind: str) -> Result:
        schemas = ("temp",) if tree.args.get("temporary") else ("temp", "main")
        refuse_if(schemas == ("temp",) and self._raw.in_transaction, "DROP TEMPORARY TABLE in a transaction")
        known = self._schema.names(kind.lower(), schemas)
        named = [(table.db or SHOWN_DATABASE, table.name) for table in tree.args.get("tables") or [tree.this]]
        found = [name for schema, name in named if schema == SHOWN_DATABASE and name in known]
        if kind == "VIEW" and not tree.args.get("exists"):
            for name in self._schema.names("table", ("main",)).intersection(name for _, name in named):
                raise StatementError(1347, f"'{SHOWN_DATABASE}.{name}' is not VIEW")
        unknown = [f"{schema}.{name}" for schema, name in named if name not in found]
        fail_if(unknown and not tree.args.get("exists"), 1051, f"Unknown table '{','.join(unknown)}'")
        kept = (query for view, query in self._queries.items() if view not in found)
        read = {name for query in kept for name in needed_tables(query)} - self._schema.temporary().keys()
        refuse_if(read.intersection(found), "DROP of what a view reads")
        twice = [name for name in found if found.count(name) > 1]
        fail_if(twice, 1066, f"Not unique table/alias: '{''.join(twice[:1])}'")
        for name in found:  # a temporary table is dropped before the one that it hides
            self._run(f"DROP {kind} {quote(name)}")
            self._queries.pop(name, None)
            self._miscounted.discard(name)
        return _DONE


def _modes(modes: Iterable[Any] | None) -> str:
    """Return a transaction's characteristics, such as READ ONLY, as one text."""
    return ", ".join(getattr(mode, "name", mode) for mode in modes or ()).upper()


_SWITCH = {"0": False, "FALSE": False, "OFF": False, "'OFF'": False}
_SWITCH |= {"1": True, "TRUE": True, "ON": True, "'ON'": True, "DEFAULT": True}
"""Values of autocommit in SET."""

_RUN: dict[type, Callable[[Connection, Statement], Result]] = {
    exp.Create: Connection._create,
    exp.Alter: Connection._alter,
    exp.TruncateTable: Connection._truncate,
    exp.Use: Connection._use,
    **dict.fromkeys((exp.Transaction, exp.Commit, exp.Rollback), Connection._transact),
    exp.Set: Connection._set,
    exp.Command: Connection._command,
}
"""Methods for statements that are not translated as a whole, by node type."""
