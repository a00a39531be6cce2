"""Checks of gold solutions, with the sandboxes and graders that training uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trl_dbbench.database import Database
from trl_dbbench.episode.gold import changes_with_time, execute_alone, execute_untruncated
from trl_dbbench.episode.judge import Judge, answer_graders, published_right
from trl_dbbench.errors import TaskError
from trl_dbbench.grading import Grader, SQLGrader, get_grader
from trl_dbbench.grading.scorers import Result
from trl_dbbench.tasks import Task
from trl_dbbench.utils.sql import quote


@dataclass(frozen=True)
class Validation:
    """Result of checking one task; `problem` is `None` if its gold scores as right."""

    task: Task
    problem: str | None = None


def validate(
    tasks: Sequence[Task], database: Database, workers: int = 4, grader: str | None = None
) -> Iterator[Validation]:
    """Execute every gold solution; yield a `Validation` per task, in order.

    - A question: its graders must accept the gold answer and, if there is gold SQL, its rows.
    - A question answered in SQL: the gold SQL must give the same result twice, be accepted by the grader, and
      give more than NULLs. If the gold is a list of results, the database must open, the grader must
      accept each result, and one must hold more than NULLs.
    - A change: the gold SQL must run and leave tables of the published hash, if there is one.

    Args:
        workers: number of tasks validated in parallel.
        grader: replaces the graders of all questions: a name of `grading.GRADERS` or a dotted path.

    Raises:
        ConfigError: if there is no such grader.
    """
    override = None if grader is None else get_grader(grader)
    judge = Judge(database)

    def problem(task: Task) -> str | None:
        try:
            if task.is_question:
                return _question_problem(task, database, override)
            return _change_problem(task, database, judge)
        except TaskError as error:
            return str(error)

    with ThreadPoolExecutor(workers) as pool:
        problems = pool.map(problem, tasks)
        yield from (Validation(task, problem) for task, problem in zip(tasks, problems, strict=True))


def _question_problem(task: Task, database: Database, override: Grader | SQLGrader | None) -> str | None:
    named = override or (get_grader(task.grader) if task.grader is not None else None)
    if isinstance(named, SQLGrader):
        return _sql_problem(task, database, named)
    if task.gold.answer is None:
        return f"the grader {named.name if named else 'of a protocol'} needs a gold answer"
    judged = answer_graders(task, named if override else None)
    for grader, gold in judged:
        if not grader.can_be_right(gold):
            return f"the gold answer {gold} is not right to the grader {grader.name}"
    if task.gold.sql is None:
        with database.sandbox(task):  # it raises if the tables cannot be made
            return None
    result = execute_alone(database, task, task.gold.sql)
    if result.error:
        return f"the gold SQL fails: {result.error}"
    rows = result.rows or []
    if result.limit:
        return f"the gold SQL gives more than an agent is shown, whose result ends after {len(rows):,} rows"
    for grader, gold in judged:
        if not grader.judge(grader.answer(rows), gold):
            return f"the gold SQL gives {rows}, the gold answer is {gold}"
    return None


_SAYS_NOTHING = (
    "the gold gives no rows, or only NULLs, which statements also give by mistake, so no answer is right. "
    "Leave the task out."
)


def _sql_problem(task: Task, database: Database, grader: SQLGrader) -> str | None:
    """Return a problem on any of the task's databases; in a suite the gold may give nothing on some."""
    golds: list[Result] = []
    for each in task.on_each_database():
        try:
            golds += _checked_golds(each, database, grader)
        except TaskError as problem:
            of_suite = each.source if each.source != task.source else None
            return f"{problem} (on '{of_suite.path}' of its suite)" if of_suite else str(problem)
    return _SAYS_NOTHING if all(gold.says_nothing for gold in golds) else None


def _checked_golds(task: Task, database: Database, grader: SQLGrader) -> Sequence[Result]:
    """Return the gold results on one database; raise TaskError if there are none or one is rejected."""
    if task.gold.results:
        return _checked_results(task, database, grader)
    if task.gold.sql is None:
        raise TaskError(f"the grader {grader.name} needs gold SQL")
    sql = grader.rewrite(task.gold.sql)
    first, problem = execute_untruncated(database, task, sql)
    again, problem = execute_untruncated(database, task, sql) if first else (None, problem)
    if first is None or again is None:
        raise TaskError(f"the gold SQL fails: {problem}")
    if grader.best(again, [first], task.gold.sql) < 1:
        gives = f"gives {first.rows[:3]} and then {again.rows[:3]}" if first.rows else "gives no rows"
        raise TaskError(f"the gold SQL, which {gives}, is not right to the grader {grader.name}")
    return [first]


def _checked_results(task: Task, database: Database, grader: SQLGrader) -> Sequence[Result]:
    result = execute_alone(database, task, f"SELECT * FROM {quote(task.tables[0].name)} LIMIT 1")
    if result.error:
        raise TaskError(f"its database cannot be read: {result.error}")
    for gold in task.gold.results:
        if grader.best(gold, [gold], None) < 1:
            raise TaskError(f"the gold result {gold.rows[:3]} is not right to the grader {grader.name}")
    return task.gold.results


def _change_problem(task: Task, database: Database, judge: Judge) -> str | None:
    gold = judge.gold_state(task)
    if gold.state is None:
        return f"the gold SQL fails: {gold.error}"
    if published_right(task, gold.state) is False:
        return f"the gold SQL leaves tables of another hash than the published {task.gold.state_md5}"
    if changes_with_time(database, task, gold.state):
        return (
            "the gold SQL leaves other tables a second later, by the clock or by chance, so no change is "
            "right. Let the question give the value, or leave the task out."
        )
    return None
