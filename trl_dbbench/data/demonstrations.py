"""Gold episodes for a supervised warm start, played by the rollout itself.

An agent that reads its turns from a script plays each task through a `Player`, so a demonstration has the
ids, the mask and the observations of the same turns in a rollout: tokens are laid out in one place only. The
default script is the gold SQL, then the resulting rows as the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from trl_dbbench.database import Database
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.dataset import sft_row
from trl_dbbench.episode.gold import execute_alone
from trl_dbbench.episode.judge import Judge, grader_of
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.protocol import AgentProtocol, Answer, Operation
from trl_dbbench.episode.types import Completion, Episode, Request, Rules
from trl_dbbench.errors import TaskError
from trl_dbbench.grading import SQLGrader
from trl_dbbench.tasks import Task

if TYPE_CHECKING:
    from datasets import Dataset


Teacher = Callable[[Task, AgentProtocol, Database], list[Operation | Answer]]
"""Returns what a teacher writes for a task, turn by turn; the last one is an answer."""


def demonstrate(
    tasks: Sequence[Task],
    chat: ChatFormat,
    database: Database,
    *,
    system_prompt: Opening | None = None,
    teacher: Teacher | None = None,
    batch_size: int = 256,
) -> list[Episode]:
    """Play each task as the teacher does; the default teacher writes the gold SQL, then its result.

    Raises:
        TaskError: if the teacher cannot do a task: it has no gold SQL, or that fails on this database.
    """
    teacher = teacher or gold_actions
    rules = Rules(max_turns=100, max_turn_tokens=100_000, max_completion_length=1_000_000)
    player = Player(chat, database, Judge(database), rules)
    episodes: list[Episode] = []
    with tqdm(total=len(tasks), desc="demonstrations", unit="task") as bar:
        for first in range(0, len(tasks), batch_size):
            batch = tasks[first : first + batch_size]
            scripts = [
                [chat.turn_ids(action) for action in teacher(task, chat.protocol, database)] for task in batch
            ]
            starts = [player.start(task, system_prompt=system_prompt) for task in batch]
            episodes += player.play_all(starts, Script(scripts))
            bar.update(len(batch))
    return episodes


def to_sft_dataset(episodes: Sequence[Episode]) -> Dataset:
    """Rows for TRL's SFTTrainer; see `sft_row`."""
    from datasets import Dataset

    return Dataset.from_list([sft_row(episode) for episode in episodes])


def gold_actions(task: Task, protocol: AgentProtocol, database: Database) -> list[Operation | Answer]:
    """Return the gold SQL, then the rows that it gives.

    Raises:
        TaskError: if there is none, or it fails on this database.
    """
    if task.gold.sql is None:
        raise TaskError(f"task '{task.id}' has no gold SQL to demonstrate; add 'sql', or leave the task out.")
    sql = task.gold.sql
    result = execute_alone(database, task, sql)
    if result.error:
        raise TaskError(f"task '{task.id}': its SQL fails on this database: {result.error}")
    if not task.is_question:
        return [Operation(sql), Answer("done", ("done",))]
    grader = grader_of(task, protocol.grader)
    if isinstance(grader, SQLGrader):
        return [Operation(sql), Answer(sql)]
    rows = result.rows or []
    if grader.rows:
        return [Operation(sql), Answer(str(rows), tuple(map(str, rows)))]
    values = tuple(str(row[0]) for row in rows)
    return [Operation(sql), Answer(str(list(values)), values)]


class Script:
    """An engine that reads its turns from a script: `ids[row][turn]`, and `end` after the last one."""

    def __init__(self, ids: Sequence[Sequence[list[int]]], end: Sequence[int] = ()):
        self._ids, self._end = ids, list(end)

    async def generate(self, request: Request) -> Completion:
        turns = self._ids[request.row]
        ids = turns[request.turn] if request.turn < len(turns) else self._end
        return Completion(ids, [0.0] * len(ids))

    def serve(self, episodes: Sequence[Future]) -> None:
        wait(episodes)
