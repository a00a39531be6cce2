"""Questions about your own tables, both as CSV files.

A missing answer is computed by executing the gold SQL. A wrong field is an error that names file and line. If
two fields disagree, such as an answer and the rows of its SQL, a `Loss` says so, which `convert` prints with
its own. This format can only be read. It is not in the registry, since it needs tables and a database.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import cached_property, partial
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.grading import DEFAULT_GRADER, GRADERS
from trl_dbbench.grading.states import without_dates
from trl_dbbench.tasks.column_types import kind_of_type, number_or_text
from trl_dbbench.tasks.csv_tables import FROM_FILE, CsvOptions, day_of, has_marks, read_if_fit, timed
from trl_dbbench.tasks.fields import check_known, first_id
from trl_dbbench.tasks.formats.base import Loss
from trl_dbbench.tasks.model import OPERATIONS, Gold, Task, checked, operation_in, skills_in
from trl_dbbench.tasks.skills import operation_of
from trl_dbbench.tasks.table import Cell, Table

FIELDS = ("question", "answer", "sql", "id", "operation", "tables")


class CsvFormat:
    """Questions in a CSV file with a header, or in JSONL. docs/data.md, "CSV files", describes the fields.

    Args:
        tables: tables by name.
        gold_rows: returns the rows of a task's gold SQL, or raises TaskError if it fails.
        csv: options for reading a CSV file of questions.

    Attributes:
        warnings: doubts about the tasks read so far, such as an answer that differs from the rows of its SQL,
            or SQL that returns no rows.
    """

    name = "csv"

    def __init__(
        self,
        tables: Mapping[str, Table],
        gold_rows: Callable[[Task], list[tuple]],
        csv: CsvOptions = FROM_FILE,
    ):
        self.csv = csv
        self.warnings: list[Loss] = []
        self._tables = tables
        self._gold_rows = gold_rows
        self._questions = 0

    def matches(self, entry: Mapping[str, Any]) -> bool:
        """Match any entry, so that reading names the field that is wrong."""
        return True

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        self._questions += 1
        given = _given(entry)
        if "answer" in given and "sql" not in given:
            given["answer"] = self._as_held(given["answer"])
        task = checked(_task(given, self._tables, str(self._questions)))
        if task.gold.sql is None:
            for cell in (cell for row in task.gold.answer or () for cell in row):
                if isinstance(cell, str) and has_marks(cell) and cell not in self._cells[0]:
                    self._warn(
                        task, f"{cell!r} is a text, to which no number is right; write numbers as 1234.50"
                    )
            return _answerable(task)
        rows = self._gold_rows(task)
        if task.is_question and "answer" not in given:
            answer = tuple(tuple(map(_json_cell, without_dates(row))) for row in rows)
            task = replace(task, gold=replace(task.gold, answer=answer))
            if not rows:
                self._warn(task, "the SQL gives no rows, so the answer is an empty list")
        elif task.is_question:
            grader, gold = GRADERS[DEFAULT_GRADER], list(task.gold.answer or ())
            if not grader.judge(grader.answer(rows), gold):
                self._warn(task, f"the SQL gives {rows}, the answer says {gold}")
        return _answerable(task)

    def _as_held(self, answer: Any) -> Any:
        """Return the answer with values as in the tables, such as zip codes as texts and dates as MySQL's."""
        if isinstance(answer, str):
            if (text := answer.strip()).upper() == "NULL":
                return [[None]]
            if (held := self._held(text)) is not None:
                return [[held]]
        return [
            [*map(self._cell_held, row)] if isinstance(row, list) else self._cell_held(row)
            for row in _answer_rows(answer)
        ]

    def _cell_held(self, cell: Any) -> Any:
        known = isinstance(cell, str | int | float) and not isinstance(cell, bool)
        held = self._held(str(cell)) if known else None
        return cell if held is None else held

    def _held(self, text: str) -> str | None:
        """Return the only text in the tables that equals a value; `None` if there is none, or for a number
        that the tables hold."""
        texts, numbers = self._cells
        days = {read_if_fit(partial(day_of, month_first=first), text) for first in (False, True)}
        if len(held := texts.intersection(days)) == 1:
            return next(iter(held))
        if number_or_text(text) in numbers:
            return None
        if text in texts:
            return text
        times = texts.intersection(read_if_fit(timed(each, [text]).read, text) for each in self._times)
        return next(iter(times)) if len(times) == 1 else None

    @cached_property
    def _times(self) -> frozenset[str]:
        """The types of all columns with a time of day."""
        columns = (column.type for table in self._tables.values() for column in table.columns)
        return frozenset(type_ for type_ in columns if kind_of_type(type_) == "time")

    @cached_property
    def _cells(self) -> tuple[frozenset[str], frozenset[Cell]]:
        """All texts of the tables, and all other cells. DECIMALs, whose cells are texts, are numbers."""
        held: set[Cell] = set()
        for table in self._tables.values():
            for column, cells in zip(table.columns, zip(*table.rows, strict=True), strict=False):
                exact = kind_of_type(column.type) == "exact"
                held |= {number_or_text(cell) if exact and isinstance(cell, str) else cell for cell in cells}
        texts = frozenset(cell for cell in held if isinstance(cell, str))
        return texts, frozenset(held - texts)

    def _warn(self, task: Task, text: str) -> None:
        self.warnings.append(Loss(task.id, "answer", text))


def _given(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not empty. Raises TaskError for unknown fields and wrong types."""
    check_known(entry, FIELDS, "field")
    # a NaN, by which pandas marks an empty field, equals nothing
    given = {name: value for name, value in entry.items() if value not in (None, "") and value == value}
    for name in ("question", "sql", "operation"):
        if not isinstance(given.get(name, ""), str):
            raise TaskError(f"the field '{name}' must be text, is {given[name]!r}")
    if "question" not in given:
        raise TaskError("the field 'question' is missing")
    return given


def _task(given: Mapping[str, Any], tables: Mapping[str, Table], number: str) -> Task:
    """Return the task as given, with an empty answer if the SQL will give it."""
    sql, answer = given.get("sql"), given.get("answer")
    operation = given.get("operation", "").strip().upper() or (operation_in(sql) if sql else "SELECT")
    if operation not in OPERATIONS:
        raise TaskError(f"unknown operation {given['operation']!r}; allowed: {', '.join(OPERATIONS)}")
    if sql and (read := operation_of(sql)) not in (None, operation):
        raise TaskError(f"the operation is said to be {operation}, the SQL is {read}: {sql}")
    if operation == "SELECT" and sql is None and answer is None:
        raise TaskError("needs an 'answer' or the 'sql' that gives it")
    if operation != "SELECT" and (sql is None or answer is not None):
        raise TaskError(f"{operation} needs its gold solution 'sql' and takes no 'answer'")
    rows = GRADERS[DEFAULT_GRADER].gold(_answer_rows(answer))
    return Task(
        id=first_id(given, ("id",), number),
        question=given["question"],
        tables=tuple(_asked_of(given.get("tables"), tables)),
        operation=operation,
        gold=Gold(tuple(rows) if operation == "SELECT" else None, sql),
        skills=skills_in(None, sql),
    )


def _asked_of(names: Any, tables: Mapping[str, Table]) -> list[Table]:
    if names is None:
        return list(tables.values())
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if not isinstance(wanted, list):
        raise TaskError(f"the field 'tables' must be names of tables, is {names!r}")
    if unknown := [name for name in wanted if name not in tables]:
        raise TaskError(f"there is no table {unknown[0]!r}; given are: {', '.join(tables)}")
    return [tables[name] for name in wanted]


def _answer_rows(answer: Any) -> list:
    """Return an answer as rows: those of a list, or one row with a single cell."""
    if isinstance(answer, str):
        listed = _listed(answer.strip())
        answer = [[number_or_text(answer.strip())]] if listed is None else listed
    if answer is None:
        return []
    return answer if isinstance(answer, list) else [[answer]]


def _listed(text: str) -> list | None:
    """Parse a text as a list in JSON's or Python's notation; return `None` for another text."""
    if not (text.startswith(("[", "(", "{")) and text.endswith(("]", ")", "}"))):
        if _CALL.match(text):
            raise TaskError(f"the answer {text[:80]!r} is a call of Python's; write its value, such as 1.5")
        return None
    for read in (json.loads, _python_list):
        try:
            found = read(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        if isinstance(found, set | frozenset):
            found = sorted(found, key=repr)
        if isinstance(found, list | tuple):
            return _as_rows(found, text)
        break
    if (text.startswith("[") and _LIST_LIKE.search(text)) or _CALL.search(text):
        raise TaskError(
            f"the answer {text[:80]!r} is written as a list and cannot be read as one; write rows as JSON: "
            '[[1, "a"], [2, "b"]]'
        )
    return None


_LIST_LIKE = re.compile(r"[,'\"]|\d\s+[-\d]")
"""Signs that a text in brackets is meant as a list, such as NumPy's `[1 2]`, but not `[unknown]`."""


_CALL = re.compile(r"\b(?:Decimal|Timestamp|array|datetime\.\w+|np\.\w+)\(.*\)")
"""Calls in Python's notation of values. No answer equals such a text."""


def _python_list(text: str) -> Any:
    if re.search(r"['\"]\s+['\"]", text):  # NumPy's ['a' 'b'], which Python reads as one text
        raise ValueError
    return ast.literal_eval(text)


def _as_rows(found: list | tuple, text: str) -> list:
    rows = [list(row) if isinstance(row, list | tuple) else [row] for row in found]
    if isinstance(found, tuple) and not any(isinstance(row, list | tuple) for row in found):
        rows = [list(found)]  # a tuple is a row
    if wrong := [cell for row in rows for cell in row if not isinstance(cell, str | int | float | None)]:
        raise TaskError(
            f"the answer {text[:80]!r} has the cell {wrong[0]!r}; a cell is a text, a number or null"
        )
    return rows


def _json_cell(cell: Any) -> Cell:
    """Convert a cell of a result to a cell of a gold answer: DECIMALs become numbers."""
    if isinstance(cell, Decimal):
        return int(cell) if cell == cell.to_integral_value() else float(cell)
    if cell is None or isinstance(cell, str | int | float):
        return cell
    raise TaskError(f"the sql gives {cell!r}, which no answer can be compared with")


def _answerable(task: Task) -> Task:
    """Return the task with a grader that can accept its gold answer.

    The default grader splits answers at commas. Values with commas become labels for AgentBench's graders.
    """
    answer = task.gold.answer
    if answer is None or GRADERS[DEFAULT_GRADER].can_be_right(answer):
        return task
    labels = [cell for row in answer for cell in row]
    of_labels = [grader for grader in GRADERS.values() if not grader.rows]
    if any(len(row) != 1 for row in answer) or not all(each.can_be_right(labels) for each in of_labels):
        raise TaskError(
            f"the answer {list(answer)} could never be right: graders cut rows of several cells at commas, "
            "those within a text too. Ask for fewer columns, or for a number."
        )
    return replace(task, gold=replace(task.gold, answer=tuple(labels)), grader=None)
