"""A run's folder with episodes that a test has written: for each task one that is right and one that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fakes import RULES, play_script
from transformers import PreTrainedTokenizerBase

from trl_dbbench.database import Database
from trl_dbbench.episode.types import Episode
from trl_dbbench.runs.records import Phase, episode_record
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Column, Gold, Table, Task
from trl_dbbench.training.callbacks import EpisodeLogCallback


def sql(statement: str) -> str:
    return f"Action: Operation\n```sql\n{statement}\n```"


def answer(text: str) -> str:
    return f"Action: Answer\nFinal Answer: {text}"


def count_task(number: int) -> Task:
    """How many of `number` + 1 orders were late? All but one."""
    rows = tuple((str(n), str(int(n > 0))) for n in range(number + 1))
    return Task(
        f"late-{number}",
        f"How many orders were late in week {number}?",
        (Table("orders", (Column("id", "INT"), Column("late", "INT")), rows),),
        "SELECT",
        Gold(answer=((str(number),),), sql="SELECT COUNT(*) FROM orders WHERE late = 1"),
    )


def delete_task(number: int) -> Task:
    """Delete the cheapest of three fruits."""
    rows = (("apple", "1"), ("pear", "2"), ("plum", "4"))
    return Task(
        f"drop-{number}",
        f"Delete the cheapest fruit, order {number}.",
        (Table("fruits", (Column("name", "VARCHAR(20)"), Column("price", "INT")), rows),),
        "DELETE",
        Gold(sql="DELETE FROM fruits WHERE name = 'apple'"),
    )


LOOK = sql("SELECT COUNT(*) FROM orders WHERE late = 1")
FORGOT_WHERE = sql("SELECT COUNT(*) FROM orders")


def count_scripts(numbers: Iterable[int]) -> list[tuple[Task, list[str]]]:
    """For each task a right episode of two turns and a wrong one of two."""
    scripts = []
    for number in numbers:
        task = count_task(number)
        scripts.append((task, [LOOK, answer(f"[({number},)]")]))
        scripts.append((task, [FORGOT_WHERE, answer(f"[({number + 1},)]")]))
    return scripts


def save_run(
    folder: Path,
    database: Database,
    tokenizer: PreTrainedTokenizerBase,
    scripts: Sequence[tuple[Task, Sequence[str]]],
    phase: Phase = "train",
    **settings: Any,
) -> Path:
    """Plays the scripts and saves them as the sampled episodes of step 0."""
    protocol = settings.get("protocol", "text")
    episodes = [play_script(task, turns, tokenizer, database, protocol) for task, turns in scripts]
    return save_episodes(folder, database, episodes, phase, **settings)


def save_episodes(
    folder: Path, database: Database, episodes: Sequence[Episode], phase: Phase = "train", **settings: Any
) -> Path:
    """Saves played episodes as those of step 0."""
    known: dict[str, Any] = {
        "protocol": "text",
        "observation_characters": 800,
        "max_turns": RULES.max_turns,
        "max_completion_length": RULES.max_completion_length,
        "max_turn_tokens": RULES.max_turn_tokens,
        "system_prompt": "Rules.",
        "dialect": database.dialect.name,
    }
    lines = [episode_record(episode, phase, 0) for episode in episodes]
    tasks = [episode.task.to_json() for episode in episodes]
    EpisodeLogCallback(folder, RunSettings(**known | settings)).write(lines, tasks)
    return folder
