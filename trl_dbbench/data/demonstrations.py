"""Gold episodes for a supervised warm start, played by the code of the rollout.

A scripted agent plays each task through a `Player`, so a demonstration has the same token ids, mask and
observations as these turns have in a rollout: tokens are laid out in one place only. The default script is
the gold SQL, then the resulting rows as the answer. With `with_mistakes` some episodes begin with a failing
statement, since an agent that has never seen an error does not know how to continue after one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
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
from trl_dbbench.grading.states import without_dates
from trl_dbbench.tasks import Task
from trl_dbbench.utils.sql import quote

if TYPE_CHECKING:
    from datasets import Dataset


UNLIMITED = Rules(max_turns=100, max_turn_tokens=100_000, max_completion_length=1_000_000)
"""Limits that no demonstration reaches."""

Teacher = Callable[[Task, AgentProtocol, Database], list[Operation | Answer]]
"""Function that returns a teacher's turns for a task; the last one is an answer."""


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
        TaskError: if the teacher cannot solve a task.
    """
    teacher = teacher or gold_actions
    player = Player(chat, database, Judge(database), UNLIMITED)
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


def to_sft_dataset(episodes: Sequence[Episode], imitate_errors: bool = True) -> Dataset:
    """Return rows for TRL's SFTTrainer; see `sft_row`. Without `imitate_errors`, failed SQL has no loss."""
    from datasets import Dataset

    return Dataset.from_list([sft_row(episode, imitate_errors) for episode in episodes])


def gold_actions(task: Task, protocol: AgentProtocol, database: Database) -> list[Operation | Answer]:
    """Return the gold SQL, then its rows as the answer; raise TaskError if there is none or it fails."""
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
    rows = list(map(without_dates, result.rows or []))
    if grader.rows:
        return [Operation(sql), Answer(str(rows), tuple(map(str, rows)))]
    values = tuple(str(cell) for row in rows for cell in row)
    return [Operation(sql), Answer(str(list(values)), values)]


def with_mistakes(share: float, seed: int = 0) -> Teacher:
    """Return a teacher of gold episodes; this share of them begins with a failing statement.

    The statement misspells a name as weak models do: a word is left out, underscores replace spaces, or the
    backticks are missing. Train on such episodes with `to_sft_dataset(episodes, imitate_errors=False)`.
    """
    rng = random.Random(seed)

    def teacher(task: Task, protocol: AgentProtocol, database: Database) -> list[Operation | Answer]:
        actions = gold_actions(task, protocol, database)
        if rng.random() >= share:
            return actions
        wrong = list(misspelled(task))
        rng.shuffle(wrong)
        failed = next((sql for sql in wrong if execute_alone(database, task, sql).error), None)
        return actions if failed is None else [Operation(failed), *actions]

    return teacher


def misspelled(task: Task) -> Iterator[str]:
    """Yield the gold SQL with one of its names misspelled, in each way once."""
    sql = task.gold.sql or ""
    names = {name for table in task.tables for name in (table.name, *(c.name for c in table.columns))}
    for name in sorted(names):
        words = name.split(" ")
        ways = [name.replace(" ", "_"), name + "s", name.rstrip("s")]
        ways += [" ".join(words[:-1]), " ".join(words[1:])] if len(words) > 1 else []
        wrong = [quote(way) for way in dict.fromkeys(ways) if way not in ("", *names)]
        if not name.isidentifier():
            wrong.append(name)
        bare = rf"|\b{name}\b" if name.isidentifier() else ""
        written = re.compile(re.escape(quote(name)) + bare)
        if written.search(sql):
            yield from (written.sub(way.replace("\\", r"\\"), sql) for way in wrong)


class Script:
    """An engine that reads its turns from a script: `ids[row][turn]`, then `end` after the last one."""

    def __init__(self, ids: Sequence[Sequence[list[int]]], end: Sequence[int] = ()):
        self._ids, self._end = ids, list(end)

    async def generate(self, request: Request) -> Completion:
        turns = self._ids[request.row]
        ids = turns[request.turn] if request.turn < len(turns) else self._end
        return Completion(ids, [0.0] * len(ids))

    def serve(self, episodes: Sequence[Future]) -> None:
        wait(episodes)
