"""Predicted SQL scored by the rules of all evaluators beside each other, whoever has written it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_dbbench.database import Database
from trl_dbbench.errors import TaskError
from trl_dbbench.gold import whole_result
from trl_dbbench.grading import SQL_GRADERS, SQLGrader
from trl_dbbench.grading.scorers import Result
from trl_dbbench.sql import MAX_STATEMENT_CHARACTERS
from trl_dbbench.tasks import Gold, Task

_BIRD_MARK = "\t----- bird -----\t"


@dataclass(frozen=True)
class Scores:
    """What each grader says of one prediction, from 0 to 1; `None` where the gold SQL cannot be judged by.

    `problem` says why the prediction, or the gold SQL, gives nothing.
    """

    task: Task
    sql: str | None
    values: dict[str, float | None]
    problem: str | None = None


def can_be_scored(task: Task) -> bool:
    """Whether it is a question with gold SQL, or with the results that it would give."""
    return task.is_question and (task.gold.sql is not None or bool(task.gold.results))


def score_all(
    tasks: Sequence[Task], predictions: Mapping[str, str], database: Database, workers: int = 4
) -> Iterator[Scores]:
    """Scores the predictions for questions, in the order of the tasks. A missing one is wrong.

    Args:
        predictions: SQL by the task's id.
        workers: tasks that are scored side by side.

    Raises:
        TaskError: a task is a change, or has neither gold SQL nor gold results.
        EnvironmentFault: the database failed.
    """
    for task in tasks:
        if not can_be_scored(task):
            raise TaskError(f"task '{task.id}' is no question with gold SQL; leave it out.")

    def scored(task: Task) -> Scores:
        return _scored(task, predictions.get(task.id), database)

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(scored, tasks)


def _scored(task: Task, sql: str | None, database: Database) -> Scores:
    """Of several databases the worst counts, as in Spider's test suites."""
    found = [_scored_on_one(each, sql, database) for each in task.on_each_database()]
    values: dict[str, float | None] = {}
    for name in SQL_GRADERS:
        judged = [value for scores in found if (value := scores.values[name]) is not None]
        values[name] = min(judged) if len(judged) == len(found) else None
    problem = next((scores.problem for scores in found if scores.problem), None)
    return Scores(task, sql, values, problem)


def _scored_on_one(task: Task, sql: str | None, database: Database) -> Scores:
    gave: dict[str, tuple[Result | None, str]] = {}

    def result(statement: str) -> tuple[Result | None, str]:
        if statement not in gave:
            gave[statement] = whole_result(database, task, statement)
        return gave[statement]

    if sql is None or not sql.strip():
        return Scores(task, sql, dict.fromkeys(SQL_GRADERS, 0.0), "there is no prediction")
    if len(sql) > MAX_STATEMENT_CHARACTERS:
        return Scores(task, sql, dict.fromkeys(SQL_GRADERS, 0.0), "the prediction is too long")
    values = {name: _value(grader, sql, task.gold, result) for name, grader in SQL_GRADERS.items()}
    failed = [("the gold SQL", result(task.gold.sql))] if task.gold.sql is not None else []
    failed.append(("it", result(sql)))
    problem = next((f"{what} fails: {why}" for what, (found, why) in failed if found is None), None)
    return Scores(task, sql, values, problem)


def _value(grader: SQLGrader, sql: str, gold: Gold, result: Any) -> float | None:
    golds = gold.results or (result(grader.rewrite(gold.sql or ""))[0],)
    predicted, _ = result(grader.rewrite(sql))
    if golds[0] is None:
        return None
    return 0.0 if predicted is None else grader.best(predicted, golds, gold.sql)


def read_predictions(path: Path, tasks: Sequence[Task]) -> dict[str, str]:
    """Predicted SQL by task.

    - `.jsonl`: lines with `id` and `sql`, or the `episodes.jsonl` of a run whose answers are SQL (of several
      episodes of a task the last one counts);
    - `.json`: an object of SQL by id, or by a task's place from 0, where a BIRD suffix is cut off;
    - anything else: a line of SQL for each task, in their order; a tab and what follows it is cut off.

    Raises:
        TaskError: the file cannot be read so, or names tasks that are not there.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".jsonl":
            found = dict(_of_line(json.loads(line)) for line in text.split("\n") if line.strip())
        elif path.suffix == ".json":
            found = _of_object(json.loads(text), tasks)
        else:
            found = _of_lines(text.removesuffix("\n").split("\n"), tasks)
        if others := [sql for sql in found.values() if not isinstance(sql, str)]:
            raise TypeError(f"{str(others[0])[:50]!r} is no SQL")
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise TaskError(
            f"the predictions of '{path}' cannot be read ({type(error).__name__}: {error}). Give a .jsonl "
            'file of {"id": ..., "sql": ...} or of episodes, a .json object of SQL by id, or a file with a '
            "line of SQL for each task."
        ) from None
    if strange := found.keys() - {task.id for task in tasks}:
        raise TaskError(
            f"{path} has predictions for tasks that are not there, such as '{min(strange)}'; the tasks are "
            f"'{tasks[0].id}', ... Give the file of tasks that it was made for."
        )
    return found


def _of_line(entry: dict[str, Any]) -> tuple[str, str]:
    if "turns" not in entry:
        return str(entry["id"]), entry["sql"]
    ran = [turn["sql"] for turn in entry["turns"] if "sql" in turn]
    last = entry["turns"][-1] if entry["turns"] else {}
    return str(entry["task_id"]), last.get("answer", "") or ("".join(ran[-1:]) if "answer" in last else "")


def _of_object(entries: dict[str, str], tasks: Sequence[Task]) -> dict[str, str]:
    ids = {task.id for task in tasks}
    by_place = not entries.keys() & ids
    if by_place and (wrong := [key for key in entries if not 0 <= int(key) < len(tasks)]):
        raise LookupError(f"{wrong[0]!r} is neither a task's id nor the place of one of {len(tasks)} tasks")
    return {tasks[int(key)].id if by_place else key: sql.split(_BIRD_MARK)[0] for key, sql in entries.items()}


def _of_lines(lines: Sequence[str], tasks: Sequence[Task]) -> dict[str, str]:
    if len(lines) != len(tasks):
        raise ValueError(f"{len(lines)} lines for {len(tasks)} tasks")
    return {task.id: line.rstrip("\r").split("\t")[0] for task, line in zip(tasks, lines, strict=True)}
