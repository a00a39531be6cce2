"""Every transcript, packed for the page: an index to list and filter by, and blocks to unpack."""

from __future__ import annotations

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from trl_dbbench.evaluation.report.run import Run
from trl_dbbench.runs.records import PHASES, EpisodeRecord, failed_statement, is_void
from trl_dbbench.tasks import Task

BLOCK = 100
"""Episodes, or tasks, that are unpacked together."""

TABLE_ROWS = 500
"""Rows of a task's table that go into the page."""

IN_INDEX = frozenset(
    {"phase", "step", "status", "right", "greedy", "operation", "skills"}
    | {"task_id", "task_digest", "question"}
)
"""What the index says of an episode, or another field does: not in its block."""

Key = tuple[str, str, str]
"""Id, question and digest of a task."""


def transcripts(shown: Sequence[tuple[str, Run]]) -> tuple[dict[str, Any], list[str], list[str]]:
    """The index, in columns, that the page lists and filters by; blocks of episodes; blocks of tasks.

    Episodes of one task point to it, so its question is in the page once.
    """
    recorded: dict[Key, Task] = {}
    for task in (task for _, run in shown for task in run.tasks):
        recorded[task.id, task.question, task.digest] = task
        recorded.setdefault((task.id, task.question, ""), task)  # older episodes have no digest of their task
        recorded.setdefault((task.id, "", ""), task)  # still older ones do not say their question
    places: dict[Key, int] = {}
    tasks: list[dict[str, Any]] = []
    details: list[dict[str, Any] | None] = []
    episodes = [(number, episode) for number, (_, run) in enumerate(shown) for episode in run.episodes]
    for _, episode in episodes:
        key = _key(episode)
        if key not in places:
            places[key] = len(tasks)
            found = recorded.get(key)
            question = episode["question"] or (found.question if found else "")
            tasks.append(
                {"id": key[0], "question": question, "op": episode["operation"], "skills": episode["skills"]}
            )
            details.append(_task_detail(found) if found else None)
    flipped = _flipped(episodes)
    for key, place in places.items():
        tasks[place]["flipped"] = key in flipped
    statuses = list(dict.fromkeys(episode["status"] for _, episode in episodes))
    index = {
        "runs": [name for name, _ in shown],
        "tasks": tasks,
        "statuses": statuses,
        "phases": PHASES,
        "block": BLOCK,
        "episodes": {
            "run": [number for number, _ in episodes],
            "task": [places[_key(e)] for _, e in episodes],
            "phase": [e["phase"] for _, e in episodes],
            "step": [e["step"] for _, e in episodes],
            "status": [statuses.index(e["status"]) for _, e in episodes],
            "right": [int(e["right"]) for _, e in episodes],
            "failing": [int(any(map(failed_statement, e["turns"]))) for _, e in episodes],
        },
    }
    bodies = [{key: value for key, value in e.items() if key not in IN_INDEX} for _, e in episodes]
    return index, _blocks(bodies), _blocks(details)


def _key(episode: EpisodeRecord) -> Key:
    return episode["task_id"], episode["question"], str(episode.get("task_digest") or "")


def _flipped(episodes: Iterable[tuple[int, EpisodeRecord]]) -> set[Key]:
    """The tasks that were right in one evaluation and wrong in another, held-out or greedy before an update.

    Of an evaluation that was played twice, the second time counts, as in the accuracies.

    Args:
        episodes: (number of its run, episode).
    """
    ends: defaultdict[Key, dict[tuple[int, str, int], bool]] = defaultdict(dict)
    for number, episode in episodes:
        if episode["phase"] != "train" and not is_void(episode):
            ends[_key(episode)][number, episode["phase"], episode["step"]] = episode["right"]
    return {key for key, of in ends.items() if len(set(of.values())) == 2}


def _task_detail(task: Task) -> dict[str, Any]:
    tables = [
        {
            "name": table.name,
            "columns": [f"{column.name} {column.type}" for column in table.columns],
            "rows": table.rows[:TABLE_ROWS],
            "count": None if task.source else len(table.rows),
        }
        for table in task.tables
    ]
    gold = task.gold.shown
    answer = None if gold is None else json.dumps(gold, ensure_ascii=False)
    return {"tables": tables, "sql": task.gold.sql, "answer": answer}


def _blocks(entries: Sequence[Any]) -> list[str]:
    blocks = (entries[start : start + BLOCK] for start in range(0, len(entries), BLOCK))
    texts = (json.dumps(block, separators=(",", ":"), default=str) for block in blocks)
    return [base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode() for text in texts]
