"""`Task` and what it is made of; its line of JSON; and what every task must satisfy, whatever format it comes
in.

Reading fails at the first thing that cannot be right, since a task that is silently wrong trains a silently
wrong agent.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.grading import DEFAULT_GRADER, GRADERS
from trl_dbbench.skills import NAMED, operation_of, skills_of
from trl_dbbench.tasks.fields import as_object, check_known, json_object, optional, required
from trl_dbbench.tasks.types import check_type

Cell = str | int | float | bool | None
"""A cell of a table, as JSON holds it; the column's type says what MySQL makes of it."""

FIELDS = ("id", "question", "tables", "operation", "skills", "grader", "answer", "sql", "state_md5")
"""Of the own format."""

OPERATIONS = ("SELECT", "INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name and its MySQL type, as written in CREATE TABLE."""

    name: str
    type: str = "TEXT"


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it lies in the database when an episode starts."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Gold:
    """What a right episode ends in.

    Questions have an `answer`: labels (AgentBench) or rows (tuples). Changes have the `sql` that makes
    the gold state and, in published data, its hash `state_md5` (32 hex digits; `""` stands for the
    hash of an empty table, which MySQL gives as NULL).
    """

    answer: tuple | None = None
    sql: str | None = None
    state_md5: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One question or change.

    `grader` names one of `grading.GRADERS`; `None` leaves it to the protocol, as AgentBench has a grader for
    each of its two protocols.
    """

    id: str
    question: str
    tables: tuple[Table, ...]
    operation: str
    gold: Gold
    skills: tuple[str, ...] = ()
    grader: str | None = DEFAULT_GRADER

    @property
    def is_question(self) -> bool:
        """Whether the task is judged by its answer; otherwise by the state of its tables."""
        return self.operation == "SELECT"

    def prompt(self) -> str:
        """The question, then what the agent may know of the tables: their names and columns."""
        return "\n".join([self.question.rstrip(), *map(_describe, self.tables)])

    @property
    def digest(self) -> str:
        """16 hex digits that stand for all of the task: its id is unique in a file only."""
        return hashlib.blake2b(self.to_json().encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def to_json(self) -> str:
        """The task as a line of the own format; `from_json` gives an equal task back."""
        return json.dumps(self.to_entry(), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Task:
        """Reads a line that `to_json` wrote or a user did by hand.

        Raises:
            TaskError: if it is not a task, saying why.
        """
        return cls.from_entry(json_object(line))

    def to_entry(self) -> dict[str, Any]:
        """The fields of the own format."""
        # spelled out: dataclasses.asdict copies every cell, which takes a minute for 100,000 tasks
        return {
            "id": self.id,
            "question": self.question,
            "tables": [
                {
                    "name": table.name,
                    "columns": [{"name": column.name, "type": column.type} for column in table.columns],
                    "rows": table.rows,
                }
                for table in self.tables
            ],
            "operation": self.operation,
            "skills": self.skills,
            "grader": self.grader,
            "answer": self.gold.answer,
            "sql": self.gold.sql,
            "state_md5": self.gold.state_md5,
        }

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Task:
        """The task that these fields of the own format describe; see `formats.own`.

        Raises:
            TaskError: if they describe none, saying why.
        """
        check_known(entry, FIELDS, "field")
        sql = optional(entry, "sql", str)
        answer = optional(entry, "answer", list)
        grader = entry.get("grader", DEFAULT_GRADER)
        if grader is not None and grader not in tuple(GRADERS):
            raise TaskError(
                f"unknown grader {grader!r}; allowed: {', '.join(GRADERS)}. A task file cannot name code to "
                "run: set a grader of your own with `grader:` in the recipe or with --grader."
            )
        if grader is not None and GRADERS[grader].rows and answer is not None:
            answer = GRADERS[grader].gold(answer)
        return checked(
            Task(
                id=str(required(entry, "id", (str, int))),
                question=required(entry, "question", str),
                tables=tuple(
                    _own_table(as_object(table, "table")) for table in required(entry, "tables", list)
                ),
                operation=entry.get("operation") or (operation_in(sql) if sql else "SELECT"),
                gold=Gold(None if answer is None else tuple(answer), sql, optional(entry, "state_md5", str)),
                skills=skills_in(entry.get("skills"), sql),
                grader=grader,
            )
        )


def _own_table(table: Mapping[str, Any]) -> Table:
    check_known(table, ("name", "columns", "rows"), "field of a table")
    for column in optional(table, "columns", list) or ():
        check_known(as_object(column, "column"), ("name", "type"), "field of a column")
    return read_table(table, name="name", columns="columns", rows="rows")


def _describe(table: Table) -> str:
    columns = ", ".join(column.name for column in table.columns)
    return f"The table is named {table.name} and has these columns: {columns}"


def checked(task: Task) -> Task:
    """The task itself, if it can be one; its tables have been checked by `read_table`.

    Raises:
        TaskError: saying what cannot be right.
    """
    operation, gold = task.operation, task.gold
    if operation not in OPERATIONS:
        raise TaskError(f"unknown operation {operation!r}; allowed: {', '.join(OPERATIONS)}")
    if operation == "SELECT" and gold.answer is None:
        raise TaskError("a question needs its gold 'answer'")
    if operation != "SELECT" and not gold.sql:
        raise TaskError(f"{operation} needs its gold solution 'sql'")
    if gold.state_md5 and not is_md5(gold.state_md5):
        raise TaskError(f"the gold state's md5 must be 32 hex digits, is {gold.state_md5!r}")
    if unknown := [skill for skill in task.skills if skill not in NAMED]:
        raise TaskError(f"unknown skill {unknown[0]!r}; allowed: {', '.join(NAMED)}")
    names = [table.name for table in task.tables]
    if not names:
        raise TaskError("a task needs at least one table; the list is empty")
    if twice := [name for name in names if names.count(name) > 1]:
        raise TaskError(f"there are two tables named '{twice[0]}'")
    for table in task.tables:
        for column in table.columns:
            check_type(column.type, table.name, column.name)
    try:
        task.to_json().encode()
    except UnicodeEncodeError as error:
        raise TaskError(
            f"holds half of a surrogate pair, which is no text: {error.object[error.start]!r}"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"holds what JSON cannot: {error}") from None
    return task


def operation_in(sql: str) -> str:
    """What a gold solution does: one of `OPERATIONS`.

    Raises:
        TaskError: if it is not one statement of these.
    """
    operation = operation_of(sql)
    if operation is None:
        raise TaskError(f"'sql' is not one statement of {', '.join(OPERATIONS)}: {sql}")
    return operation


def skills_in(named: Any, sql: str | None) -> tuple[str, ...]:
    """The skills that an entry names; where it names none, those that its SQL shows."""
    if named is None:
        return skills_of(sql) if sql else ()
    if not isinstance(named, list | tuple):
        raise TaskError(f"the skills must be a list of names, are {named!r}")
    return tuple(named)


def is_md5(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


def read_table(table: Mapping[str, Any], *, name: str, columns: str, rows: str) -> Table:
    """A table out of an entry whose fields have these names.

    Raises:
        TaskError: if a column comes twice, or a row or cell is none.
    """
    title = required(table, name, str)
    read = []
    for column in required(table, columns, list):
        column = as_object(column, "column")
        read.append(_column(required(column, "name", str), optional(column, "type", str) or "TEXT"))
    if not read:
        raise TaskError(f"table '{title}' has no columns")
    folded = [column.name.casefold() for column in read]
    if twice := [column.name for column in read if folded.count(column.name.casefold()) > 1]:
        raise TaskError(
            f"table '{title}' has the column '{twice[0]}' twice; MySQL ignores case in column names"
        )
    lines = []
    for number, row in enumerate(required(table, rows, list), 1):
        if not isinstance(row, list | tuple) or len(row) != len(read):
            size = f"{len(row)} cells" if isinstance(row, list | tuple) else repr(row)
            raise TaskError(f"table '{title}', row {number} has {size}, the table has {len(read)} columns")
        if wrong := [cell for cell in row if not _is_cell(cell)]:
            raise TaskError(
                f"table '{title}', row {number} has the cell {wrong[0]!r}; a cell is a string, a finite "
                "number, true, false or null"
            )
        # the same names come again and again in a file of many tasks: one object for each
        lines.append(tuple(intern(cell) if isinstance(cell, str) else cell for cell in row))
    return Table(title, tuple(read), tuple(lines))


@lru_cache(maxsize=10_000)
def _column(name: str, type: str) -> Column:
    return Column(name, type)


def _is_cell(value: Any) -> bool:
    return value is None or (
        isinstance(value, str | int | float) and not (value != value or value in (math.inf, -math.inf))
    )
