"""Examines tasks for what would teach the wrong thing, and repairs those that reward slips.

| module | |
|---|---|
| `slips` | the statements that one slip makes of a gold statement |
| `examine` | faults of a task, also where question and gold SQL name different values |
| `repair` | rows that tell a gold statement from the slips that pass for it |
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
    """A task, what was found about it, and what became of it.

    `outcome` is `sound` (nothing but doubts), `faulty`, or, where repairs were asked for, `repaired` or
    `dropped`. `kept` is the task to train on: the task itself, a repaired copy, or `None`.
    """

    task: Task
    findings: Sequence[Finding]
    outcome: str
    kept: Task | None
    changes: Sequence[Change] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """For a report."""
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
    """Examine each task and, if asked to, repairs it. Yields in the order of the tasks.

    Args:
        databases: the first one is where everything is tried; on all of them the gold SQL has to run, to
            agree, and to do so after a repair.
        repair: repairs tasks on which slips pass. What has other faults, or cannot be repaired, is dropped.
        drop_doubtful: drops tasks as well whose question and gold SQL seem not to speak of the same.
        grader: judges all questions instead of their own graders: a name of `grading.GRADERS` or
            `grading.SQL_GRADERS`, or a dotted path.
        workers: tasks that are examined side by side.

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
    """Tasks by outcome, and by kind of what was found; a task counts once for each kind."""
    outcomes = Counter(each.outcome for each in audited)
    kinds = Counter(kind for each in audited for kind in {found.kind for found in each.findings})
    return outcomes, kinds
