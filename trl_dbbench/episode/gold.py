"""What a task's gold SQL does: executed where an agent's statements are, on a sandbox of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trl_dbbench.database import Database, Limits, QueryResult, Sandbox, State
from trl_dbbench.grading import SQLGrader
from trl_dbbench.grading.scorers import Result
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.skills import operation_of

JUDGED = Limits(rows=100_000, characters=16_000_000, cells=2_000_000)
"""How much of a result is judged; an agent sees less."""


def limits_beside(golds: Sequence[Result], grader: SQLGrader) -> Limits:
    """How much is read of an answer: what a right one can give at most. One that gives more is wrong."""
    rows = max(len(gold.rows) for gold in golds) if grader.counts_rows else JUDGED.rows
    cells = rows * max(gold.most_columns for gold in golds)
    return replace(JUDGED, rows=rows, cells=min(cells, JUDGED.cells or cells))


@dataclass(frozen=True)
class GoldState:
    """The tables after the gold SQL of a change, or the error it met on this database."""

    state: State | None
    error: str | None = None
    out_of_time: bool = False
    """The error is a time limit: on a busy machine another try may do better."""


def execute_alone(database: Database, task: Task, sql: str) -> QueryResult:
    """What a statement gives on the task's tables as they are at the start.

    Raises:
        EnvironmentFault: if the database fails.
    """
    with database.sandbox(task) as sandbox:
        return sandbox.execute(sql)


def whole_result(
    database: Database, task: Task, sql: str, limits: Limits = JUDGED
) -> tuple[Result | None, str]:
    """All that a statement gives on the task's tables as they are at the start; else `None`, and why not.

    Args:
        limits: what gives more is not read to its end, and is `None`.

    Raises:
        EnvironmentFault: if the database fails.
    """
    with database.sandbox(task) as sandbox:
        return whole_result_in(sandbox, task, sql, limits)


def whole_result_in(
    sandbox: Sandbox, task: Task, sql: str, limits: Limits = JUDGED
) -> tuple[Result | None, str]:
    """`whole_result` of a sandbox whose tables nothing has changed so far.

    Raises:
        EnvironmentFault: if the database fails.
    """
    result = sandbox.execute(sql, limits)
    # rows come of `DELETE ... RETURNING`, too; on servers a SELECT of a function counts as a change
    changed = sandbox.changed if task.dialect == "sqlite" else operation_of(sql) not in ("SELECT", None)
    if result.error:
        return None, result.error
    if changed and result.rows is not None:
        return None, "it changes the tables"
    if result.rows is None:
        return None, "it gives no rows: it is no query"
    if result.limit:
        bounds = f"{limits.rows} rows, {limits.cells} cells, {limits.characters} characters"
        return None, f"it gives more than can be judged ({bounds})"
    return Result(result.columns or (), result.rows), ""


def gold_state(database: Database, task: Task) -> GoldState:
    """The tables that a right change leaves.

    Raises:
        EnvironmentFault: if the database fails.
    """
    assert task.gold.sql is not None
    return state_after(database, task, task.gold.sql)


def state_after(database: Database, task: Task, sql: str) -> GoldState:
    """The tables that a statement leaves of the task's.

    Raises:
        EnvironmentFault: if the database fails.
    """
    with database.sandbox(task) as sandbox:
        result = sandbox.execute(sql)
        if result.error:
            return GoldState(None, result.error, result.limit == "time")
        return GoldState(sandbox.state())
