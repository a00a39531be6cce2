"""Source databases that tasks share, on a server: loaded once, read by all, and copied table by table.

An episode that changes something gets copies of the tables that its statement names and of those that foreign
keys involve: tables that refer to them, as changes may cascade there, and tables that they refer to, as the
referenced rows must exist. All other tables are read in the shared database.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError

from trl_dbbench.database.dialect import ServerDialect
from trl_dbbench.database.error_numbers import TIME_LIMITS, is_environment_fault
from trl_dbbench.database.server.connections import (
    check_packet,
    error_code,
    error_text,
    make_engine,
    text_of,
)
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Source
from trl_dbbench.tasks.sources.base import Step, in_order, names_in
from trl_dbbench.tasks.sources.declaration import declaration
from trl_dbbench.tasks.sources.dump_text import words_of
from trl_dbbench.utils.sql import quote

logger = logging.getLogger("trl_dbbench.database")

LOADERS = 4
"""Most connections that load and copy at the same time; further loads and copies wait."""

LOAD_SECONDS = 600
"""Seconds that one statement of a load or copy may take."""

SHOWN_NOTES = 20
"""Most differences between a loaded database and its source that are logged."""

_SESSION = (
    # strict, so that no value is truncated or rounded to fit; zero dates are kept
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
# without FULLTEXT keys: InnoDB adds only one per statement
_KEY = re.compile(r"  (?:UNIQUE )?KEY `")
_REFERENCE = re.compile(r"  CONSTRAINT `[^`]*` FOREIGN KEY")
_UNKNOWN_COLLATION = frozenset({1115, 1273})
_COLLATION = re.compile(r"\sCOLLATE[ =]+'?\w+'?", re.IGNORECASE)


@dataclass(frozen=True)
class _Table:
    create: str
    add: str
    """Keys and foreign keys for ALTER TABLE: adding them after the rows takes half the time."""
    columns: str
    """Columns to copy, without generated ones, which the server computes."""
    parents: frozenset[str]


@dataclass(frozen=True)
class Loaded:
    """Pristine database; for a source, also its tables, and its views with the SQL that creates them."""

    database: str
    bytes: int = 0
    tables: dict[str, _Table] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {*self.tables, *self.views}

    def named_in(self, sql: str) -> set[str]:
        """Return the tables and views whose names occur in a statement, and those that these views read."""
        found: set[str] = set()
        left = names_in(sql, self.names)
        while left:
            found |= left
            selects = (self.views[name] for name in left if name in self.views)
            left = set().union(*(names_in(select, self.names) for select in selects)) - found
        return found

    def touched_by(self, named: Iterable[str]) -> set[str]:
        """Return the named tables and those that changing them may read or change through foreign keys."""
        changed: set[str] = set()
        left = set(named)
        while left:
            changed |= left
            left = {name for name, table in self.tables.items() if table.parents & left} - changed
        tables = (self.tables[each] for each in changed if each in self.tables)
        return changed.union(*(table.parents for table in tables))


class SourceLoader:
    """Loader of sources into databases of a server, which also copies their tables. Thread-safe.

    Args:
        size: returns the size of a database in bytes.
    """

    def __init__(self, url: URL, dialect: ServerDialect, size: Callable[[str], int]) -> None:
        self._engine = make_engine(url, LOAD_SECONDS, connections=LOADERS, patient=True)
        self._dialect = dialect
        self._size = size

    def load(self, source: Source, database: str) -> Loaded:
        """Load the source into an empty database.

        Raises:
            DBAPIError: the server failed.
            TaskError: the source cannot be read, or the server refuses its content.
        """
        notes: list[str] = []
        what = f"the database '{source.path}' cannot be loaded"
        with self._engine.connect() as connection:
            try:
                _prepare(connection, database)
                for step in source.opened.steps():
                    if isinstance(step, str):
                        notes.append(step)
                    else:
                        check_packet(connection, step.sql, step.rows, what)
                        self._execute(connection, step, source, notes)
                found = _contents(connection, database)
            finally:
                connection.invalidate()  # the next load starts with a fresh session
        _tell(source, notes)
        return Loaded(database, self._size(database), *found)

    def copy(self, loaded: Loaded, names: set[str], target: str) -> None:
        """Copy the named tables and views into another database."""
        with self._engine.connect() as connection:
            try:
                _prepare(connection, target)
                connection.exec_driver_sql("SET SESSION foreign_key_checks = 0, unique_checks = 0")
                for name in sorted(names & loaded.tables.keys()):
                    table, place = loaded.tables[name], f"`{loaded.database}`.{quote(name)}"
                    connection.exec_driver_sql(table.create)
                    connection.exec_driver_sql(
                        f"INSERT INTO {quote(name)} ({table.columns}) SELECT {table.columns} FROM {place}"
                    )
                    if table.add:
                        connection.exec_driver_sql(f"ALTER TABLE {quote(name)} {table.add}")
                for name in in_order(loaded.views):
                    if name in names:
                        connection.exec_driver_sql(loaded.views[name].replace(f"`{loaded.database}`.", ""))
            finally:
                connection.invalidate()

    def close(self) -> None:
        self._engine.dispose()

    def _execute(self, connection: Connection, step: Step, source: Source, notes: list[str]) -> None:
        try:
            _send(connection, step, notes)
        except DBAPIError as error:
            code = error_code(error)
            if is_environment_fault(code) or code in TIME_LIMITS or error.connection_invalidated:
                raise
            if step.else_lost is None:
                raise TaskError(
                    f"the database '{source.path}' cannot be loaded into {self._dialect.product}: "
                    f"{error_text(error)}, in {step.sql[:200]}"
                ) from None
            notes.append(f"{step.else_lost} ({error_text(error)})")


def _prepare(connection: Connection, database: str) -> None:
    for sql in (*_SESSION, f"USE `{database}`"):
        connection.exec_driver_sql(sql)


def _send(connection: Connection, step: Step, notes: list[str]) -> None:
    try:
        if step.rows:
            connection.exec_driver_sql(step.sql, list(step.rows))
        else:
            connection.exec_driver_sql(step.sql)
    except DBAPIError as error:
        plain = _COLLATION.sub("", step.sql)
        if error_code(error) not in _UNKNOWN_COLLATION or plain == step.sql:
            raise
        notes.append(f"{_COLLATION.findall(step.sql)[0].strip()}, which the server does not know")
        connection.exec_driver_sql(plain)


def _tell(source: Source, notes: list[str]) -> None:
    if notes:
        more = f"; and {len(notes) - SHOWN_NOTES} more" if len(notes) > SHOWN_NOTES else ""
        logger.warning(
            "The database '%s' is not on the server as it is in the file: %s%s",
            source.path,
            "; ".join(notes[:SHOWN_NOTES]),
            more,
        )


def _contents(connection: Connection, database: str) -> tuple[dict[str, _Table], dict[str, str]]:
    made: dict[str, str] = {}
    views: dict[str, str] = {}
    for name, kind in connection.exec_driver_sql(f"SHOW FULL TABLES FROM `{database}`").fetchall():
        text = text_of(connection.exec_driver_sql(f"SHOW CREATE TABLE {quote(name)}").one()[1])
        if kind == "VIEW":
            views[name] = re.sub(r"^CREATE .*?VIEW ", "CREATE SQL SECURITY INVOKER VIEW ", text, count=1)
        else:
            made[name] = text
    declared = {name: declaration(words_of(text)) for name, text in made.items()}
    parents = {name: frozenset(key.target for key in each.references) for name, each in declared.items()}
    referred = set[str]().union(*parents.values())
    tables = {}
    for name, text in made.items():
        columns = [column.name for column in declared[name].columns.values() if not column.generated]
        create, add = _without_keys(text, name in referred)
        tables[name] = _Table(create, add, ", ".join(map(quote, columns)), parents[name])
    return tables, views


def _without_keys(made: str, referred: bool) -> tuple[str, str]:
    """Split what SHOW CREATE TABLE gives into CREATE TABLE without keys, and their ALTER TABLE clauses.

    Args:
        referred: another table refers to this one, which then needs its keys from the start.
    """
    counted = re.search(r"^  (`(?:[^`]|``)+`) .*AUTO_INCREMENT", made, re.MULTILINE)
    if counted and f"\n  PRIMARY KEY ({counted[1]}" not in made:
        return made, ""
    first, *lines, last = made.split("\n")
    later = [line for line in lines if _REFERENCE.match(line) or (not referred and _KEY.match(line))]
    kept = [line for line in lines if line not in later]
    body = ",\n".join(line.removesuffix(",") for line in kept)
    return f"{first}\n{body}\n{last}", ", ".join(f"ADD {line.strip().removesuffix(',')}" for line in later)
