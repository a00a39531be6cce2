"""LifelongAgentBench's DB-Bench: JSON `{key: entry}`, or the parquet files of its hub repository.

https://huggingface.co/datasets/csyq/LifelongAgentBench. A task has one table, and either gold rows or the
hash of the table after the gold SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar

from trl_dbbench.errors import TaskError
from trl_dbbench.grading import GRADERS
from trl_dbbench.tasks.column_types import number_or_text
from trl_dbbench.tasks.fields import first_id, optional, required
from trl_dbbench.tasks.formats.base import Unrepresentable, WriteContext, check_plain, published_hash
from trl_dbbench.tasks.model import Gold, Task, checked, operation_in, skills_in
from trl_dbbench.tasks.table import read_table, table_entry

HUB_ID = "csyq/LifelongAgentBench"
HUB_FOLDER = "db_bench"

GRADER = GRADERS["lifelong"]


class LifelongFormat:
    name = "lifelong"
    suffix = ".json"
    nested = frozenset(("answer_info", "direct", "table_info", "column_info_list", "row_list", "skill_list"))
    losses: ClassVar[dict[str, str]] = {"answer": "labels become rows of one cell"}

    def matches(self, entry: Mapping[str, Any]) -> bool:
        return "answer_info" in entry or "table_info" in entry

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        info = dict(required(entry, "answer_info", dict))
        if info.get("direct") in ("", "null", "None"):  # how some exports write null
            info["direct"] = None
        answer, md5, sql = (
            optional(info, *field) for field in (("direct", list), ("md5", str), ("sql", str))
        )
        if md5 in ("", "null") or (md5 == "None" and answer is not None):
            md5 = None
        if (answer is None) == (md5 is None):
            raise TaskError(
                "'answer_info' must have exactly one of 'direct' (a question) and 'md5' (a change)"
            )
        table = required(entry, "table_info", dict)
        return checked(
            Task(
                id=first_id(entry, ("id", "sample_index"), default_id),
                question=required(entry, "instruction", str),
                tables=(read_table(table, columns="column_info_list", rows="row_list"),),
                operation="SELECT" if md5 is None else operation_in(required(info, "sql", str)),
                gold=Gold(
                    None if answer is None else tuple(GRADER.gold(answer)),
                    sql,
                    # the benchmark takes the hash from MySQL's reply, which is None for an empty table
                    "" if md5 == "None" else md5,
                ),
                skills=skills_in(entry.get("skill_list"), sql),
                grader=GRADER.name,
            )
        )

    def write(self, task: Task, context: WriteContext) -> dict[str, Any]:
        check_plain(task, "LifelongAgentBench")
        if len(task.tables) != 1:
            raise Unrepresentable(
                "tables", f"it has {len(task.tables)} tables; LifelongAgentBench's tasks have one"
            )
        gold, (table,) = task.gold, task.tables
        info: dict[str, Any] = {"direct": None, "md5": None, "sql": gold.sql}
        if task.is_question:
            in_rows = task.grader is not None and GRADERS[task.grader].rows
            info["direct"] = list(gold.answer or ()) if in_rows else _labels(task, context)
        else:
            md5 = published_hash(task, context) if gold.state_md5 is None else gold.state_md5
            info["md5"] = md5 or "None"
        return {
            "id": task.id,
            "instruction": task.question,
            "answer_info": info,
            "table_info": table_entry(table, columns="column_info_list", rows="row_list"),
            "skill_list": list(task.skills),
        }


def _labels(task: Task, context: WriteContext) -> list[Any]:
    """Return labels of a question that accept the answer of its gold SQL; raise Unrepresentable if none do.

    If the SQL returns only numbers, labels become numbers, since no text equals a DECIMAL, which agents see
    as `Decimal('4.00')`.
    """
    labels = list(task.gold.answer or ())
    if not GRADER.can_be_right(GRADER.gold(labels)):
        raise Unrepresentable(
            "answer", f"{labels} could never be right to the grader {GRADER.name}, which cuts at commas"
        )
    if task.gold.sql is None:
        return labels
    rows = context.rows(task)
    if all(isinstance(cell, int | float | Decimal) for row in rows for cell in row):
        labels = [number_or_text(each.strip()) if isinstance(each, str) else each for each in labels]
    if not GRADER.judge(GRADER.answer(rows), GRADER.gold(labels)):
        raise Unrepresentable(
            "answer", f"to the grader {GRADER.name} {labels} is not what the gold SQL gives: {rows}"
        )
    return labels
