"""AgentBench's DB-Bench: JSONL with questions of several kinds, and changes with the hash of the final table.

https://github.com/THUDM/AgentBench, `data/dbbench`. The benchmark makes every column TEXT and inserts
`str(cell)`, whatever the column's type. Reading does the same here.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from trl_dbbench.errors import TaskError
from trl_dbbench.grading import GRADERS
from trl_dbbench.grading.rows import State
from trl_dbbench.tasks.fields import as_object, first_id, required
from trl_dbbench.tasks.formats.base import Unrepresentable, WriteContext, check_plain, published_hash
from trl_dbbench.tasks.model import OPERATIONS, Gold, Task, checked, is_md5, skills_in
from trl_dbbench.tasks.table import Cell, Column, Table, read_table, table_entry

QUESTIONS = (
    "other",
    "counting",
    "comparison",
    "ranking",
    "aggregation-SUM",
    "aggregation-MIN",
    "aggregation-MAX",
    "aggregation-AVG",
)
"""Kinds of questions in the field `type`. Its other values are INSERT, UPDATE and DELETE."""


class AgentBenchFormat:
    name = "agentbench"
    suffix = ".jsonl"
    nested = frozenset(("type", "label", "sql", "table"))
    losses: ClassVar[dict[str, str]] = {
        "tables": "columns become TEXT and cells text, as the benchmark makes every table",
        "sql": "kept as 'sql.query', which is never executed as a question's gold",
        "state_md5": "computed anew, for cells that are text",
        "answer": "kept as labels, texts without rows: their order and number no longer count",
    }

    def matches(self, entry: Mapping[str, Any]) -> bool:
        return ("description" in entry or "table" in entry) and "question" not in entry

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        kind = required(entry, "type", list)
        label = required(entry, "label", list)
        if not kind or not label:
            raise TaskError(f"'{'type' if not kind else 'label'}' is empty")
        if kind[0] not in (*OPERATIONS[1:], *QUESTIONS):
            allowed = ", ".join((*OPERATIONS[1:], *QUESTIONS))
            raise TaskError(f"unknown operation {kind[0]!r} in 'type'; allowed: {allowed}")
        tables = required(entry, "table", (dict, list))
        question = required(entry, "description", str)
        if evidence := entry.get("evidence"):
            question += f"\n{evidence}"
        changes = kind[0] in OPERATIONS[1:]
        if changes and not isinstance(label[0], str):
            raise TaskError(f"the 'label' of a change must be its gold SQL, is {label[0]!r}")
        if changes:
            gold = Gold(sql=label[0], state_md5=_published_md5(required(entry, "answer_md5", str)))
        else:
            gold = Gold(answer=tuple(label))
        return checked(
            Task(
                id=first_id(entry, ("id",), default_id),
                question=question,
                tables=tuple(map(_read_table, tables if isinstance(tables, list) else [tables])),
                operation=kind[0] if changes else "SELECT",
                gold=gold,
                skills=_skills(entry, gold),
                grader=None,
            )
        )

    def write(self, task: Task, context: WriteContext) -> dict[str, Any]:
        """Write the entry, with all cells as texts. Executing the gold SQL checks that it still holds."""
        check_plain(task, "AgentBench")
        as_text = replace(task, tables=tuple(map(_text_table, task.tables)))
        tables = [_write_table(table) for table in as_text.tables]
        entry: dict[str, Any] = {
            "id": task.id,
            "description": task.question,
            "add_description": task.prompt()[len(task.question.rstrip()) :].lstrip("\n"),
            "table": tables if len(tables) > 1 else tables[0],
            "skills": list(task.skills),
        }
        if not task.is_question:
            return entry | _write_change(task, as_text, context)
        labels, sql = _labels(task), task.gold.sql
        if sql is not None:
            if as_text != task:
                labels = _labels_shown(as_text, labels, context)
            entry["sql"] = {"query": sql, "length": len(sql)}
        return entry | {"type": ["other"], "label": labels}


def _skills(entry: Mapping[str, Any], gold: Gold) -> tuple[str, ...]:
    if gold.sql is not None or "skills" in entry:
        return skills_in(entry.get("skills"), gold.sql)
    # the published SQL of a question is often invalid: it only gives the skills, and is never executed
    sql = entry.get("sql")
    query = sql.get("query") if isinstance(sql, dict) else None
    return skills_in(None, query if isinstance(query, str) else None)


def _read_table(table: Any) -> Table:
    table = as_object(table, "table")
    info = required(table, "table_info", dict)
    name = required(table, "table_name", str)
    plain = read_table({**info, "name": name})
    return Table(
        plain.name,
        tuple(Column(column.name) for column in plain.columns),
        tuple(tuple(str(cell) for cell in row) for row in plain.rows),
    )


def _published_md5(text: str) -> str:
    """Return the hash in `"[('<md5>',)]"`, as a MySQL driver printed it; `""` for an empty table."""
    try:
        ((md5,),) = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        md5 = False
    if md5 is not None and not is_md5(md5):
        raise TaskError(f"'answer_md5' must look like [('<md5>',)], is {text!r}")
    return md5 or ""


def _text_table(table: Table) -> Table:
    """Return the table with all cells as texts; raise Unrepresentable for a NULL."""
    for number, row in enumerate(table.rows, 1):
        for column, cell in zip(table.columns, row, strict=True):
            if cell is None:
                raise Unrepresentable(
                    "tables",
                    f"table '{table.name}', row {number}, column '{column.name}' is NULL; AgentBench's cells "
                    "are text",
                )
    rows = tuple(tuple(_cell_text(cell) for cell in row) for row in table.rows)
    return Table(table.name, tuple(Column(column.name) for column in table.columns), rows)


def _cell_text(cell: Cell) -> str:
    return str(int(cell)) if isinstance(cell, bool) else str(cell)


def _write_table(table: Table) -> dict[str, Any]:
    info = table_entry(table)
    return {"table_name": info.pop("name"), "table_info": info}


def _write_change(task: Task, as_text: Task, context: WriteContext) -> dict[str, Any]:
    md5 = task.gold.state_md5
    if as_text != task:
        if _plain(context.state(task)) != _plain(context.state(as_text)):
            raise Unrepresentable(
                "tables", "with all cells as text the gold SQL makes other rows of the table"
            )
        md5 = None
    if md5 is None:
        md5 = published_hash(as_text, context)
    published = f"[('{md5}',)]" if md5 else "[(None,)]"
    return {"type": [task.operation], "label": [task.gold.sql], "answer_md5": published}


def _plain(state: State) -> dict[str, Counter]:
    """Return tables as multisets of rows in which numbers equal their texts."""

    def plain(cell: Any) -> Any:
        try:
            return None if cell is None else float(cell)
        except (TypeError, ValueError):
            return str(cell)

    return {name: Counter(tuple(map(plain, row)) for row in table.rows) for name, table in state.items()}


def _labels(task: Task) -> list[str]:
    """Return the answer as a flat list of texts, like the published labels."""
    assert task.gold.answer is not None
    if not task.gold.answer:
        raise Unrepresentable("answer", "it is empty; AgentBench has no label for nothing")
    rows = [row if isinstance(row, list | tuple) else (row,) for row in task.gold.answer]
    if wide := [row for row in rows if len(row) != 1]:
        raise Unrepresentable(
            "answer", f"its rows have {len(wide[0])} cells; AgentBench's labels are single values"
        )
    labels = [row[0] for row in rows]
    if None in labels:
        raise Unrepresentable("answer", "it holds NULL; AgentBench's labels are values")
    return list(map(_cell_text, labels))


def _labels_shown(as_text: Task, labels: list[str], context: WriteContext) -> list[str]:
    """Return the labels as the gold SQL returns them from the tables of texts.

    The grader of the text protocol compares several labels as written.
    """
    try:
        rows = context.rows(as_text)
    except Unrepresentable as error:
        raise Unrepresentable("tables", f"with all cells as text, {error}") from None
    grader = GRADERS["agentbench_fc"]
    if not grader.judge(grader.answer(rows), labels):
        raise Unrepresentable(
            "tables", f"with all cells as text the gold SQL gives {rows}, the answer is {labels}"
        )
    return [str(cell) for cell in grader.gold(rows)]
