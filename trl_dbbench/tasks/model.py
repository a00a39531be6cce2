"""`Task`, its parts, its JSON, and the checks that tasks of every format must pass.

Reading a task raises an error at the first fault, since a wrong task would silently train a wrong agent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.grading import DEFAULT_GRADER, GRADERS, SQL_GRADERS
from trl_dbbench.grading.scorers import Result
from trl_dbbench.tasks.column_types import check_type
from trl_dbbench.tasks.fields import as_object, check_known, check_text, json_object, optional, required
from trl_dbbench.tasks.skills import NAMED, operation_of, skills_of
from trl_dbbench.tasks.source import Source, described
from trl_dbbench.tasks.table import (
    Table,
    check_names,
    content_key,
    first_twice,
    is_cell,
    read_rows,
    read_table,
    table_entry,
)
from trl_dbbench.utils.lookup import unknown

FIELDS = (
    *("id", "question", "tables", "operation", "answer", "sql", "state_md5", "results", "skills"),
    *("grader", "database", "suite", "dialect", "knowledge", "schema", "max_turns"),
)
"""Fields of the native format (`formats.own`)."""

DIALECTS = ("mysql", "sqlite")

SCHEMAS = ("names", "full", "none")
"""Levels of detail in which a task's prompt describes its tables."""

OPERATIONS = ("SELECT", "INSERT", "UPDATE", "DELETE")

MAX_MYSQL_COLUMNS = 1017
"""Most columns of a table in InnoDB, the storage engine of both servers."""

SHOWN_ROWS = 20
"""Most rows of a gold result that reports show."""

TablesKey = bytes | Source


@dataclass(frozen=True, slots=True)
class Gold:
    """The reference solution of a task.

    Questions have an `answer`: labels (AgentBench) or rows (tuples). If agents answer with SQL, a question
    has its gold `sql`, or `results`, one of which the agent's SQL must return. Changes have the `sql` that
    makes the gold state and, in published data, that state's hash `state_md5` (32 hex digits; `""` for an
    empty table, whose hash MySQL returns as NULL).
    """

    answer: tuple | None = None
    sql: str | None = None
    state_md5: str | None = None
    results: tuple[Result, ...] = ()

    @property
    def shown(self) -> tuple | None:
        """Return the gold answer, or the first rows of each gold result, for display."""
        return tuple(tuple(each.rows[:SHOWN_ROWS]) for each in self.results) or self.answer


@dataclass(frozen=True, slots=True)
class Task:
    """One question or change.

    `grader` names one of `grading.GRADERS` or, for agents that answer with SQL, of `grading.SQL_GRADERS`.
    `None` leaves the choice to the protocol, as AgentBench has one grader for each of its two protocols.

    Tasks can share a database: `source` then has the rows, and `tables` only the columns. An SQL answer must
    also be right on each database of the `suite`, which have the same tables with other rows. `dialect` is
    the SQL dialect of agent and gold. The prompt adds `knowledge` to the question, and describes the tables
    as `schema`, one of `SCHEMAS`, says. `max_turns` replaces the run's limit of turns.
    """

    id: str
    question: str
    tables: tuple[Table, ...]
    operation: str
    gold: Gold
    skills: tuple[str, ...] = ()
    grader: str | None = DEFAULT_GRADER
    source: Source | None = None
    dialect: str = "mysql"
    knowledge: str | None = None
    schema: str = "names"
    suite: tuple[Source, ...] = ()
    max_turns: int | None = None
    _tables_key: TablesKey | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def is_question(self) -> bool:
        """Return whether the task is judged by its answer, not by the final state of its tables."""
        return self.operation == "SELECT"

    @property
    def tables_key(self) -> TablesKey:
        """Return a key of the tables' contents: tasks with equal keys can read the same copy of them."""
        if self._tables_key is None:  # cached: each episode needs it, and large tables take long
            object.__setattr__(self, "_tables_key", self.source or content_key(self.tables))
        assert self._tables_key is not None
        return self._tables_key

    def on_each_database(self) -> Iterator[Task]:
        """Yield the task on its own database, then on each database of its suite."""
        yield replace(self, suite=()) if self.suite else self
        for source in self.suite:
            yield replace(self, source=source, suite=())

    def prompt(self) -> str:
        """Return the question, the added knowledge, and the description of the tables."""
        lines = [self.question.rstrip()]
        if self.knowledge:
            lines.append(self.knowledge.strip())
        if self.schema == "full":
            lines.append(described(self.tables, self.source, self.dialect))
        elif self.schema == "names":
            for table in self.tables:
                columns = ", ".join(column.name for column in table.columns)
                lines.append(f"The table is named {table.name} and has these columns: {columns}")
        return "\n".join(lines)

    @property
    def digest(self) -> str:
        """Return a hash of the whole task, 16 hex digits. Its id is unique only within a file."""
        return digest_of(self.to_json())

    @property
    def portable_digest(self) -> str:
        """Return a hash of the task without the paths of shared databases, which differ between machines."""
        return portable_digest(self.to_entry())

    def to_json(self) -> str:
        """Return the task as a line of the native format. `from_json` returns an equal task."""
        return json.dumps(self.to_entry(), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Task:
        """Read a line of the native format. Raises TaskError if it is not a task."""
        return cls.from_entry(json_object(line))

    def to_entry(self) -> dict[str, Any]:
        """Return the task's fields in the native format."""
        # spelled out: dataclasses.asdict copies every cell, which takes a minute for 100,000 tasks
        entry: dict[str, Any] = {
            "id": self.id,
            "question": self.question,
            "tables": [*map(table_entry, self.tables)],
            "operation": self.operation,
            "skills": self.skills,
            "grader": self.grader,
            "answer": self.gold.answer,
            "sql": self.gold.sql,
            "state_md5": self.gold.state_md5,
        }
        if self.source is not None:
            del entry["tables"]
            entry["database"] = self.source.to_entry()
        if self.suite:
            entry["suite"] = [each.to_entry() for each in self.suite]
        # defaults are left out: they must not change the digests of tasks, which hash this text
        if self.gold.results:
            entry["results"] = [*map(_result_entry, self.gold.results)]
        usual = {
            "dialect": "mysql" if self.source is None else self.source.opened.dialects[0],
            "knowledge": None,
            "schema": "names",
            "max_turns": None,
        }
        more = {key: getattr(self, key) for key in usual}
        return entry | {key: value for key, value in more.items() if value != usual[key]}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Task:
        """Read a task from its fields in the native format. Raises TaskError if they are not a task."""
        check_known(entry, FIELDS, "field")
        grader = entry.get("grader", DEFAULT_GRADER)
        if grader is not None and grader not in (*GRADERS, *SQL_GRADERS):
            raise TaskError(
                f"unknown grader {grader!r}; allowed: {', '.join([*GRADERS, *SQL_GRADERS])}. A task file "
                "cannot name code to run: set a grader of your own with `grader:` in the recipe or with "
                "--grader."
            )
        gold = _gold(entry, grader)
        source = None
        if database := optional(entry, "database", dict):
            source = Source.from_entry(database)
            if entry.get("tables"):
                raise TaskError("a task has 'tables' or a 'database', not both; leave one out")
        suite = tuple(
            Source.from_entry(as_object(each, "database of the suite"))
            for each in optional(entry, "suite", list) or ()
        )
        dialects = DIALECTS if source is None else source.opened.dialects
        dialect = entry.get("dialect") or dialects[0]
        if dialect not in DIALECTS:
            raise TaskError(unknown("dialect", str(dialect), DIALECTS))
        if source is not None and dialect not in dialects:
            raise TaskError(
                f"the database '{source.path}' is a dump of MySQL's, the task's dialect is {dialect}; leave "
                "it out"
            )
        return checked(
            Task(
                id=str(required(entry, "id", (str, int))),
                question=required(entry, "question", str),
                tables=tuple(
                    _own_table(as_object(table, "table")) for table in required(entry, "tables", list)
                )
                if source is None
                else source.tables(dialect),
                operation=entry.get("operation")
                or (operation_in(gold.sql, dialect) if gold.sql else "SELECT"),
                gold=gold,
                skills=skills_in(entry.get("skills"), gold.sql, dialect),
                grader=grader,
                source=source,
                dialect=dialect,
                knowledge=optional(entry, "knowledge", str),
                schema=entry.get("schema") or "names",
                suite=suite,
                max_turns=entry.get("max_turns"),
            )
        )


def digest_of(line: str) -> str:
    """Return `Task.digest` of a task's line in the native format."""
    return hashlib.blake2b(line.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def portable_digest(entry: Mapping[str, Any]) -> str:
    """Return `Task.portable_digest` of an entry in the native format; its databases need not exist here."""

    def placeless(database: Mapping[str, Any]) -> dict[str, Any]:
        return {key: key in ("path", "descriptions") or value for key, value in database.items()}

    told = {**entry, "suite": [*map(placeless, entry.get("suite") or ())]}
    if entry.get("database"):
        told["database"] = placeless(entry["database"])
    return digest_of(json.dumps(told, ensure_ascii=False, sort_keys=True))


def _own_table(table: Mapping[str, Any]) -> Table:
    check_known(table, ("name", "columns", "rows"), "field of a table")
    for column in optional(table, "columns", list) or ():
        check_known(as_object(column, "column"), ("name", "type"), "field of a column")
    return read_table(table)


def _gold(entry: Mapping[str, Any], grader: str | None) -> Gold:
    answer = optional(entry, "answer", list)
    if answer is not None:
        # the protocols' own graders read labels
        reads_it = "agentbench_fc" if grader is None else grader if grader in GRADERS else DEFAULT_GRADER
        answer = GRADERS[reads_it].gold(answer)
    return Gold(
        None if answer is None else tuple(answer),
        optional(entry, "sql", str),
        optional(entry, "state_md5", str),
        tuple(map(_result, optional(entry, "results", list) or ())),
    )


def _result(entry: Any) -> Result:
    result = as_object(entry, "gold result")
    check_known(result, ("columns", "rows", "width"), "field of a gold result")
    columns = required(result, "columns", list)
    if not columns or not all(isinstance(name, str) for name in columns):
        raise TaskError(f"the 'columns' of a gold result must be a list of names, are {columns!r}")
    width = optional(result, "width", int) or 0
    if width and (isinstance(width, bool) or width <= len(columns)):
        raise TaskError(
            "the 'width' of a gold result is the number of its columns with those that do not count, more "
            f"than the {len(columns)} that do; it is {width!r}. Leave it out where all count."
        )
    rows = read_rows(required(result, "rows", list), len(columns), "a gold result")
    return Result(tuple(columns), rows, width)


def _result_entry(result: Result) -> dict[str, Any]:
    entry = {"columns": result.columns, "rows": result.rows}
    return entry | {"width": result.width} if result.width else entry


def checked(task: Task) -> Task:
    """Return the task if it is valid, else raise TaskError. `read_table` has checked its tables before."""
    operation, gold = task.operation, task.gold
    if operation not in OPERATIONS:
        raise TaskError(f"unknown operation {operation!r}; allowed: {', '.join(OPERATIONS)}")
    if gold.results:
        _check_results(task)
    elif operation == "SELECT" and task.grader in SQL_GRADERS and not gold.sql:
        raise TaskError(f"a question needs its gold 'sql' or 'results' for the grader {task.grader}")
    if operation == "SELECT" and gold.answer is None and task.grader not in SQL_GRADERS:
        raise TaskError("a question needs its gold 'answer'")
    in_rows = task.grader in SQL_GRADERS or (task.grader in GRADERS and GRADERS[task.grader].rows)
    for row in gold.answer or ():
        cells = row if in_rows and isinstance(row, list | tuple) else (row,)
        if wrong := [cell for cell in cells if not is_cell(cell)]:
            raise TaskError(
                f"the answer has the cell {repr(wrong[0])[:80]}; a cell is a string, a finite number, true, "
                'false or null, and an answer is a list of rows: [["Ann", 5], ["Bob", 7]]'
            )
    if operation != "SELECT" and not gold.sql:
        raise TaskError(f"{operation} needs its gold solution 'sql'")
    if gold.state_md5 and not is_md5(gold.state_md5):
        raise TaskError(f"the gold state's md5 must be 32 hex digits, is {gold.state_md5!r}")
    if strange := [skill for skill in task.skills if skill not in NAMED]:
        raise TaskError(f"unknown skill {strange[0]!r}; allowed: {', '.join(NAMED)}")
    if task.schema not in SCHEMAS:
        raise TaskError(unknown("schema", str(task.schema), SCHEMAS))
    if task.max_turns is not None and (type(task.max_turns) is not int or task.max_turns < 1):
        raise TaskError(
            f"max_turns must be a whole number from 1 on, is {task.max_turns!r}; leave it out for the run's"
        )
    if task.suite and (task.source is None or not task.is_question):
        raise TaskError("a 'suite' is for questions over a 'database'; leave it out")
    for each in task.suite:
        if task.dialect not in each.opened.dialects:
            raise TaskError(f"the suite's database '{each.path}' cannot be of the dialect {task.dialect}")
    names = [table.name for table in task.tables]
    if not names:
        raise TaskError("a task needs at least one table; the list is empty")
    if (twice := first_twice(names)) is not None:
        raise TaskError(f"there are two tables named '{names[twice]}'")
    for table in task.tables if task.dialect == "mysql" and task.source is None else ():
        check_table(table)
    try:
        check_text(task.to_json())
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"holds what JSON cannot: {error}") from None
    return task


def check_table(table: Table) -> None:
    """Raise TaskError for too many columns, or for a name or type that no server accepts."""
    if len(table.columns) > MAX_MYSQL_COLUMNS:
        raise TaskError(
            f"table '{table.name}' has {len(table.columns):,} columns; MySQL's and MariaDB's InnoDB take at "
            f"most {MAX_MYSQL_COLUMNS:,}. Leave out those that the question does not need, or divide the "
            "table."
        )
    check_names(table)
    for column in table.columns:
        check_type(column.type, table.name, column.name)


def _check_results(task: Task) -> None:
    if task.operation != "SELECT" or task.grader not in SQL_GRADERS:
        raise TaskError(
            f"gold 'results' are for questions that are answered with SQL: name one of the graders "
            f"{', '.join(SQL_GRADERS)}, or give the gold 'answer'"
        )
    if task.gold.sql or task.suite:
        other = "'sql', which gives the gold" if task.gold.sql else "a 'suite', on whose databases it differs"
        raise TaskError(f"a task has gold 'results' or {other}, not both; leave one out")


def operation_in(sql: str, dialect: str = "mysql") -> str:
    """Return the operation of a gold solution, one of `OPERATIONS`.

    Raises TaskError unless it is exactly one statement of these.
    """
    operation = operation_of(sql, dialect)
    if operation is None:
        raise TaskError(f"'sql' is not one statement of {', '.join(OPERATIONS)}: {sql}")
    return operation


def skills_in(named: Any, sql: str | None, dialect: str = "mysql") -> tuple[str, ...]:
    """Return the skills that an entry names, or those of its SQL if `named` is `None`."""
    if named is None:
        return skills_of(sql, dialect) if sql else ()
    if not isinstance(named, list | tuple):
        raise TaskError(f"the skills must be a list of names, are {named!r}")
    return tuple(named)


def is_md5(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None
