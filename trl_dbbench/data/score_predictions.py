"""Score predicted SQL by the rules of all evaluators, side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from trl_dbbench.database import Database, Limits
from trl_dbbench.episode.gold import execute_untruncated
from trl_dbbench.episode.types import Status
from trl_dbbench.errors import ServerCrash, TaskError
from trl_dbbench.grading import SQL_GRADERS, SQLGrader
from trl_dbbench.grading.scorers import Result
from trl_dbbench.runs.read import loads
from trl_dbbench.tasks import Gold, Task
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS

_READS = re.compile(r"[\s(;]*(?:SELECT|WITH|VALUES|TABLE|--|/\*|#)", re.IGNORECASE)
"""Beginning of a query."""

LIMITS = Limits(seconds=30)
"""BIRD's time limit for a statement, gold or predicted."""

SIDE_BY_SIDE = 4
"""Number of tasks scored at a time."""

_BIRD_MARK = "\t----- bird -----\t"


@dataclass(frozen=True)
class Scores:
    """Score of one prediction by each grader, 0 to 1; `None` where a grader cannot judge by the gold SQL.

    `problem` says why the prediction or the gold SQL has no result.
    """

    task: Task
    sql: str | None
    values: dict[str, float | None]
    problem: str | None = None


def can_be_scored(task: Task) -> bool:
    """Return whether a task is a question with gold SQL, or with the results that this would give."""
    return task.is_question and (task.gold.sql is not None or bool(task.gold.results))


def score_all(tasks: Sequence[Task], predictions: Mapping[str, str], database: Database) -> Iterator[Scores]:
    """Score predictions (task id -> SQL) in the order of the tasks. A missing prediction is wrong.

    Raises:
        TaskError: if a task is a change, or has neither gold SQL nor gold results.
    """
    for task in tasks:
        if not can_be_scored(task):
            raise TaskError(f"task '{task.id}' is not a question with gold SQL; leave it out.")

    def scored(task: Task) -> Scores:
        return _scored(task, predictions.get(task.id), database)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield from pool.map(scored, tasks)


def _scored(task: Task, sql: str | None, database: Database) -> Scores:
    """Return the worst score over several databases, as Spider's test suites do."""
    found = [_scored_on_one(each, sql, database) for each in task.on_each_database()]
    values: dict[str, float | None] = {}
    for name in SQL_GRADERS:
        judged = [value for scores in found if (value := scores.values[name]) is not None]
        values[name] = min(judged) if len(judged) == len(found) else None
    problem = next((scores.problem for scores in found if scores.problem), None)
    return Scores(task, sql, values, problem)


def _scored_on_one(task: Task, sql: str | None, database: Database) -> Scores:
    @cache
    def result(statement: str) -> tuple[Result | None, str]:
        try:
            return execute_untruncated(database, task, statement)
        except ServerCrash as crash:
            return None, str(crash)

    unfit = None
    if sql is None or not sql.strip():
        unfit = "there is no prediction"
    elif len(sql) > MAX_STATEMENT_CHARACTERS:
        unfit = "the prediction is too long"
    sent = None if unfit else sql
    values = {name: _value(grader, sent, task.gold, result) for name, grader in SQL_GRADERS.items()}
    failed = [("the gold SQL", result(task.gold.sql))] if task.gold.sql is not None else []
    failed += [("it", result(sent))] if sent is not None else []
    problem = next((f"{what} fails: {why}" for what, (found, why) in failed if found is None), unfit)
    return Scores(task, sql, values, problem)


def _value(grader: SQLGrader, sql: str | None, gold: Gold, result: Any) -> float | None:
    golds = gold.results or (result(grader.rewrite(gold.sql or ""))[0],)
    predicted = None if sql is None else result(grader.rewrite(sql))[0]
    if golds[0] is None:
        return None
    return 0.0 if predicted is None else grader.best(predicted, golds, gold.sql)


def read_predictions(path: Path, tasks: Sequence[Task]) -> dict[str, str]:
    """Read a file of predictions; return SQL by the task's id.

    - `.jsonl`: lines with `id` and `sql` (or a `.json` list of such objects), or the `episodes.jsonl` of a
      run whose answers are SQL (the last episode of a task counts; void ones and those of other tasks are
      skipped);
    - the greedy episodes in a file of `eval --json`;
    - `.json`: an object of SQL by id, or by a task's position from 0, as in BIRD's own files. A BIRD suffix
      is cut off, and 0, null or pandas' NaN means no prediction;
    - anything else: a line of SQL for each task, in their order; a tab and what follows it is cut off.

    Two different predictions for one id are an error. A task that occurs twice shares one prediction by id.
    The part that is cut off names a database, which must be the task's.

    Raises:
        TaskError: if the file cannot be read in this way, names unknown tasks, is ambiguous between ids and
            positions, or was made for other tasks or another order.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".jsonl":
            found = _of_entries(_json_lines(text), tasks)
        elif path.suffix.lower() == ".json":
            # NaN is what pandas writes for a missing text
            told = json.loads(text, object_pairs_hook=_once, parse_constant=lambda _: None)
            if isinstance(told, dict) and isinstance(told.get("episodes"), list):
                told = told["episodes"]  # of a file of `eval --json`
            if isinstance(told, list) and not all(isinstance(each, dict) for each in told):
                raise ValueError("a list does not say which tasks its SQL is for")
            found = _of_entries(told, tasks) if isinstance(told, list) else _of_object(told, tasks)
        else:
            found = _of_lines(text.removesuffix("\n").split("\n"), tasks)
        if others := [sql for sql in found.values() if not isinstance(sql, str)]:
            raise TypeError(f"{str(others[0])[:50]!r} is not SQL")
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from None
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
    return _with_repeats(found, tasks)


def _json_lines(text: str) -> list[Any]:
    """Return the values of the lines. The last line of a killed or unfinished run may be incomplete."""
    *whole, last = text.split("\n")
    entries = [loads(line) for line in whole if line.strip()]
    with suppress(ValueError) if entries and "turns" in entries[-1] else nullcontext():
        entries += [loads(last)] if last.strip() else []
    return entries


def _of_entries(entries: Sequence[dict[str, Any]], tasks: Sequence[Task]) -> dict[str, str]:
    """Return SQL by id; void episodes of a run, and those of other tasks, are skipped."""
    digests = {task.digest for task in tasks}
    played = [each for each in entries if "turns" in each]
    played = [each for each in played if each.get("status") != Status.ENVIRONMENT_FAULT]
    played = [each for each in played if each.get("task_digest") in digests] or played
    answers = [turn["answer"] for each in played for turn in each["turns"] if turn.get("answer")]
    if answers and not any(map(_READS.match, answers)):
        raise TaskError(
            f"its episodes answer in words, such as {answers[0][:50]!r}; only a run with protocol text_sql "
            "or tools_sql answers in SQL. `trl-dbbench eval` and `replay` judge other answers."
        )
    lines = _once([(str(each["id"]), _parts(each["sql"])[0]) for each in entries if "turns" not in each])
    return lines | dict(map(_of_episode, played))


def _of_episode(entry: dict[str, Any]) -> tuple[str, str]:
    ran = [turn["sql"] for turn in entry["turns"] if "sql" in turn]
    last = entry["turns"][-1] if entry["turns"] else {}
    return str(entry["task_id"]), last.get("answer", "") or ("".join(ran[-1:]) if "answer" in last else "")


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dictionary of pairs; raise ValueError if a key occurs twice with different values."""
    found = dict(pairs)
    for key, value in pairs:
        if value != found[key]:
            raise ValueError(f"{key!r} stands twice, with {str(value)[:50]!r} and {str(found[key])[:50]!r}")
    return found


def _parts(sql: Any) -> list[str]:
    """Return a prediction's SQL, followed by the database that BIRD's files append to it, if they do."""
    sql = "" if sql is None or sql == 0 else sql
    if not isinstance(sql, str):
        raise TypeError(f"{str(sql)[:50]!r} is not SQL")
    return sql.split(_BIRD_MARK)


def _of_object(entries: dict[str, str], tasks: Sequence[Task]) -> dict[str, str]:
    """Return SQL by task id; the keys are read as ids or as positions, whichever fits all of them.

    Raises:
        TaskError: if both fit and mean different tasks, or if the databases named are not the tasks'.
        LookupError: if neither fits.
    """
    by_id = {task.id: task for task in tasks}
    by_place = {str(place): task for place, task in enumerate(tasks)}
    readings = [names for names in (by_id, by_place) if entries.keys() <= names.keys()]
    if not readings:
        no_id, no_place = (next(key for key in entries if key not in names) for names in (by_id, by_place))
        raise LookupError(
            f"{no_id!r} is not a task's id, and {no_place!r} not the place of one of {len(tasks)} tasks"
        )
    parts = {key: _parts(sql) for key, sql in entries.items()}
    wrong = [_misnamed(((names[key], part[1:]) for key, part in parts.items()), tasks) for names in readings]
    fitting = [names for names, misnamed in zip(readings, wrong, strict=True) if misnamed is None]
    if not fitting:
        raise TaskError(f"{wrong[0]}. Give the file of tasks that it was made for, in their order.")
    names = fitting[0]
    if unsure := [key for key in entries if any(other[key] is not names[key] for other in fitting)]:
        key = unsure[0]
        raise TaskError(
            f"the key '{key}' is the id of one task and, from 0, the place of '{by_place[key].id}': it "
            'does not say which is meant. Give lines of {"id": ..., "sql": ...} in a .jsonl file, or a line '
            "of SQL for each task, in their order, in a .sql file."
        )
    return {names[key].id: part[0] for key, part in parts.items()}


def _of_lines(lines: Sequence[str], tasks: Sequence[Task]) -> dict[str, str]:
    if len(lines) != len(tasks):
        raise ValueError(f"{len(lines)} lines for {len(tasks)} tasks")
    parts = [line.rstrip("\r").split("\t") for line in lines]
    named = ((task, part[-1:] if part[1:] else []) for task, part in zip(tasks, parts, strict=True))
    if wrong := _misnamed(named, tasks):
        raise TaskError(f"{wrong}. Give the file of tasks that it was made for, in their order.")
    return {task.id: part[0] for task, part in zip(tasks, parts, strict=True)}


def _misnamed(named: Iterable[tuple[Task, Sequence[str]]], tasks: Sequence[Task]) -> str | None:
    """Describe the first prediction that names another task's database; return `None` if none does."""
    known = {name for task in tasks if (name := _database_of(task)) is not None}
    for task, names in named:
        said, own = "".join(names).strip(), _database_of(task)
        if said in known and own is not None and said != own:
            return (
                f"the prediction for the task '{task.id}' is for the database '{said}', the task's is '{own}'"
            )
    return None


def _database_of(task: Task) -> str | None:
    """Return the name of a benchmark task's database, if its path tells."""
    source = task.source
    return None if source is None or source.path.endswith(".sql") else Path(source.path).stem


def _with_repeats(found: dict[str, str], tasks: Sequence[Task]) -> dict[str, str]:
    """Return the predictions; the repetition of a task in its file (`137-2`) shares the first one's."""
    by_id = {task.id: task for task in tasks}
    for task in tasks:
        first, _, number = task.id.rpartition("-")
        repeats = number.isdecimal() and first in found and replace(task, id=first) == by_id[first]
        if repeats and task.id not in found:
            found[task.id] = found[first]
    return found
