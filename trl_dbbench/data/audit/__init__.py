"""Find faults of tasks that would teach the wrong thing, and repair tasks that reward slips.

A slip is a small mistake in a statement, such as a forgotten WHERE or `<` for `<=`.

| module | |
|---|---|
| `slips` | statements that differ from a gold statement by one slip |
| `examine` | faults of a task, and values that only its question or only its gold SQL names |
| `repair` | rows on which the gold statement and the slips that passed for it differ |
| `page` | the report |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from trl_dbbench.data.audit.examine import DOUBTS, KINDS, OF_WORDING, Finding, examine
from trl_dbbench.data.audit.repair import Change, repaired
from trl_dbbench.database import Database
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.grading import get_grader
from trl_dbbench.tasks import Task

__all__ = ["DOUBTS", "KINDS", "Audited", "Change", "Finding", "audit", "counts"]


@dataclass(frozen=True)
class Audited:
    """A task, its findings, and the outcome.

    `outcome` is `sound` (no findings but doubts), `faulty`, `repaired` (only with `repair`) or `dropped`
    (only with `repair` or `drop_doubtful`). `kept` is the task to train on: the task itself, a repaired copy,
    or `None`.
    """

    task: Task
    findings: Sequence[Finding]
    outcome: str
    kept: Task | None
    changes: Sequence[Change] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the task's entry in the report."""
        return {
            "id": self.task.id,
            "question": self.task.question,
            "sql": self.task.gold.sql,
            "outcome": self.outcome,
            "kept_as": self.kept.id if self.kept is not None else None,
            "findings": [asdict(found) for found in self.findings],
            "changes": [asdict(change) for change in self.changes],
        }


def audit(
    tasks: Sequence[Task],
    databases: Sequence[Database],
    *,
    repair: bool = False,
    drop_doubtful: bool = False,
    grader: str | None = None,
    workers: int = 4,
) -> Iterator[Audited]:
    """Examine each task and optionally repair it; yield the results in the order of the tasks.

    Args:
        databases: the first one runs all checks. On each of them the gold SQL has to run and give the same
            result, also after a repair.
        repair: repair tasks on which slips pass; drop tasks that have other faults or cannot be repaired.
        drop_doubtful: also drop tasks whose question and gold SQL seem to disagree.
        grader: judges all questions instead of their own graders: a name of `grading.GRADERS` or
            `grading.SQL_GRADERS`, or a dotted path.
        workers: number of tasks examined in parallel.

    Raises:
        EnvironmentFault: if a database fails.
    """
    override = None if grader is None else get_grader(grader)

    def one(task: Task) -> Audited:
        try:
            found = examine(task, databases, override)
            faults = {finding.kind for finding in found if finding.is_fault}
            if drop_doubtful and any(finding.kind in OF_WORDING for finding in found):
                return Audited(task, found, "dropped", None)
            if not faults:
                return Audited(task, found, "sound", task)
            if not repair:
                return Audited(task, found, "faulty", task)
            if faults == {"weak"} and (better := repaired(task, databases, override)):
                return Audited(task, found, "repaired", *better)
        except EnvironmentFault as error:
            raise EnvironmentFault(f"task {task.id}: {error}") from error
        return Audited(task, found, "dropped", None)

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(one, tasks)


def counts(audited: Sequence[Audited]) -> tuple[Counter[str], Counter[str]]:
    """Count tasks by outcome and by kind of finding; a task counts once per kind."""
    outcomes = Counter(each.outcome for each in audited)
    kinds = Counter(kind for each in audited for kind in {found.kind for found in each.findings})
    return outcomes, kinds
