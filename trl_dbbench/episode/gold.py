"""Executes gold SQL, and answers that are SQL, on a fresh sandbox of the task's tables.

Functions that execute a statement raise `EnvironmentFault` if the database fails.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trl_dbbench.database import Database, Limits, QueryResult, Sandbox, State
from trl_dbbench.grading import SQL_GRADERS, SQLGrader
from trl_dbbench.grading.rows import same_state
from trl_dbbench.grading.scorers import Result
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.skills import operation_of

JUDGED = Limits(rows=100_000, characters=16_000_000, cells=2_000_000)
"""Bounds on a judged result, in rows, characters and cells; an agent sees less."""


def answer_limits(golds: Sequence[Result], grader: SQLGrader) -> Limits:
    """Return the limits to read an answer's result with: the most that a right answer can give."""
    rows = max(len(gold.rows) for gold in golds) if grader.counts_rows else JUDGED.rows
    cells = rows * max(gold.most_columns for gold in golds)
    return replace(JUDGED, rows=rows, cells=min(cells, JUDGED.cells or cells))


@dataclass(frozen=True)
class GoldState:
    """The tables after the gold SQL of a change, or its error on this database."""

    state: State | None
    error: str | None = None
    out_of_time: bool = False
    """True if the error is a time limit; on a busy machine, another try may succeed."""


def execute_alone(database: Database, task: Task, sql: str) -> QueryResult:
    """Return the result of a statement on the task's initial tables."""
    with database.sandbox(task) as sandbox:
        return sandbox.execute(sql)


def execute_untruncated(
    database: Database, task: Task, sql: str, limits: Limits = JUDGED
) -> tuple[Result | None, str]:
    """Return the whole result of a query on the task's initial tables; if the query fails or exceeds the
    limits, `None` and the reason."""
    with database.sandbox(task) as sandbox:
        return execute_untruncated_in(sandbox, task, sql, limits)


def execute_untruncated_in(
    sandbox: Sandbox, task: Task, sql: str, limits: Limits = JUDGED
) -> tuple[Result | None, str]:
    """Return the same as `execute_untruncated`, in a sandbox whose tables are unchanged."""
    result = sandbox.execute(sql, limits)
    # `DELETE ... RETURNING` gives rows too; on servers a SELECT of a function counts as a change
    changed = sandbox.changed if task.dialect == "sqlite" else operation_of(sql) not in ("SELECT", None)
    if result.error:
        return None, result.error
    if changed and result.rows is not None:
        return None, "it changes the tables"
    if result.rows is None:
        return None, "it gives no rows: it is not a query"
    if result.limit:
        bounds = f"{limits.rows} rows, {limits.cells} cells, {limits.characters} characters"
        return None, f"it gives more than can be judged ({bounds})"
    return Result(result.columns or (), result.rows), ""


def gives_gold_rows(database: Database, task: Task, sql: str | None) -> bool | None:
    """Return whether a query gives the rows of the task's gold SQL, by the grader `strict`.

    No query matches a gold result without rows, or with NULLs only. `None` if the gold SQL fails on this
    database.
    """
    assert task.gold.sql is not None
    gold, _ = execute_untruncated(database, task, task.gold.sql)
    if gold is None:
        return None
    if sql is None or gold.says_nothing:
        return False
    strict = SQL_GRADERS["strict"]
    given, _ = execute_untruncated(database, task, sql, answer_limits([gold], strict))
    return given is not None and strict.right(given, [gold], task.gold.sql)


def ignores_rows(database: Database, task: Task, sql: str) -> bool:
    """Return whether a query's result, unlike the gold SQL's, is the same with half of each table's rows.

    `False` for tables in a file or on a server.
    """
    assert task.gold.sql is not None
    half = replace(task, tables=tuple(replace(table, rows=table.rows[1::2]) for table in task.tables))

    def gives_the_same(query: str) -> bool:
        one, other = (execute_untruncated(database, each, query)[0] for each in (task, half))
        return one is not None and other is not None and SQL_GRADERS["strict"].right(one, [other], query)

    return task.source is None and gives_the_same(sql) and not gives_the_same(task.gold.sql)


def reads_clock(database: Database, task: Task) -> bool:
    """Return whether a change's gold SQL, or a column's default, may depend on the clock or on chance."""
    types = [column.type for table in task.tables for column in table.columns]
    return any(map(database.dialect.varies, [task.gold.sql or "", *types]))


def changes_with_time(database: Database, task: Task, state: State) -> bool:
    """Return whether a change's gold SQL, executed a second later, leaves tables that differ from `state`."""
    if not reads_clock(database, task):
        return False
    time.sleep(1.1)
    later = gold_state(database, task).state
    return later is None or not same_state(state, later)


def gold_state(database: Database, task: Task) -> GoldState:
    """Return the tables after the task's gold SQL."""
    assert task.gold.sql is not None
    return state_after(database, task, task.gold.sql)


def state_after(database: Database, task: Task, sql: str) -> GoldState:
    """Return the tables after a statement on the task's initial tables."""
    with database.sandbox(task) as sandbox:
        result = sandbox.execute(sql)
        if result.error:
            return GoldState(None, result.error, result.limit == "time")
        return GoldState(sandbox.state())
