"""Saved episodes as chat messages: as the policy read them, and as training data.

```
run.json       the protocol: roles, tools, system prompt      ─┐
tasks.jsonl    the task: what the prompt asks                  │
shots.jsonl    earlier episodes in its prompt, if any          ├─> prompt, completion
episodes.jsonl the record: turns, and the observations read   ─┘
```

An observation that no turn follows is left out, as in `Episode.messages`. The prompts of a user's own dataset
are not in a run's folder: the protocol's prompts take their place.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from trl_dbbench.episode.protocol import AgentProtocol, get_protocol
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.few_shot import shown_in, with_examples
from trl_dbbench.runs.read import read_episodes, tasks_by_digest
from trl_dbbench.runs.records import (
    EPISODES_FILE,
    OF_TRAINING_TASKS,
    SHOTS_FILE,
    TASKS_FILE,
    EpisodeRecord,
    Phase,
    check_turns,
    is_void,
)
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Task

Message = dict[str, str]
Played = tuple[EpisodeRecord, Task]
Labels = list[bool | None]
"""List with, for each turn, whether it was a good step; `None` if unknown."""


def saved_episodes(
    run: str | Path, notes: list[str], phases: Sequence[Phase] = OF_TRAINING_TASKS
) -> Iterator[Played]:
    """Yield a run's episodes with their tasks, in the order of its log.

    Episodes are left out, with a note, if their environment failed, they have no turns, their task is
    missing, or an episode shown in their prompt is. `notes` are complete when the iterator ends.
    """
    folder = Path(run)
    tasks = tasks_by_digest(folder / TASKS_FILE, notes)
    shown = shown_in(folder)
    lost: Counter[str] = Counter()
    for _, record in read_episodes(folder / EPISODES_FILE, notes, check_turns):
        if record["phase"] not in phases:
            continue
        task = tasks.get(str(record.get("task_digest")))
        if is_void(record):
            lost["void, as the environment had failed"] += 1
        elif task is None or not record["turns"]:
            lost["without turns or task"] += 1
        elif not all(id in shown for id in record.get("shots", ())):
            lost[f"what the prompt showed is not in {SHOTS_FILE}"] += 1
        else:
            if "shots" in record:
                record["shown"] = [shown[id] for id in record["shots"]]
            yield record, task
    notes += [
        f"{folder}: {count:,} episode{'s' * (count > 1)} left out: {why}." for why, count in lost.items()
    ]


# --- as the policy read them ---------------------------------------------------------------------------


def prompt_messages(record: EpisodeRecord, task: Task, settings: RunSettings) -> list[Message]:
    """Return the prompt, including the earlier episodes that it showed."""
    protocol = protocol_of(settings)
    prompt = protocol.messages(task, settings.system_prompt)
    return with_examples(prompt, record.get("shown", ()), protocol)


def completion_messages(record: EpisodeRecord, settings: RunSettings) -> list[Message]:
    """Return the turns, one message each, and the observations that the agent read."""
    role = protocol_of(settings).observation_role
    messages = []
    for turn, said in zip(record["turns"], written(record), strict=True):
        if said:
            messages.append({"role": "assistant", "content": turn["text"]})
        # 0 tokens may mean uncounted; an observation before another turn was read in any case
        read = turn.get("observation_tokens") or turn is not record["turns"][-1]
        if turn.get("observation") is not None and read:
            messages.append({"role": role, "content": str(turn["observation"])})
    return messages


def template_columns(settings: RunSettings) -> dict[str, Any]:
    """Return the columns that make TRL render messages as for the policy: `tools` (JSON) and
    `chat_template_kwargs`, if the run had them."""
    tools = protocol_of(settings).tools
    columns = {"tools": tools and json.dumps(tools), "chat_template_kwargs": settings.chat_template_kwargs}
    return {name: value for name, value in columns.items() if value}


def protocol_of(settings: RunSettings) -> AgentProtocol:
    """Return the protocol of the run's episodes."""
    return _protocol(settings.protocol, settings.observation_characters, settings.grader)


_protocol = lru_cache(maxsize=16)(get_protocol)
"""A user's protocol may take long to make, and each episode asks for it."""


# --- as data ------------------------------------------------------------------------------------------


def preference_pairs(
    episodes: Iterable[Played], settings: RunSettings, *, per_task: int = 8, seed: int = 0
) -> list[dict[str, Any]]:
    """Return rows for TRL's trainers, in the order of the tasks: a right and a wrong episode per prompt.

    Rows have `prompt`, `chosen` and `rejected` as messages, the columns of `template_columns`, and `task_id`.
    Episodes of a prompt with the same messages count once. A task gets at most `per_task` pairs, drawn
    independently of other tasks.
    """
    tasks: dict[str, Task] = {}
    said_by: dict[str, dict[str, dict[bool, dict[str, None]]]] = {}  # by task, prompt and verdict, as JSON
    for record, task in episodes:
        prompt, said = prompt_messages(record, task, settings), completion_messages(record, settings)
        tasks.setdefault(task.digest, task)
        of_prompt = said_by.setdefault(task.digest, {}).setdefault(json.dumps(prompt), {True: {}, False: {}})
        of_prompt[record["right"]][json.dumps(said)] = None
    rows = []
    for digest, task in tasks.items():
        found = [(key, *pair) for key, by in said_by[digest].items() for pair in product(by[True], by[False])]
        if len(found) > per_task:
            found = random.Random(f"{seed}/{digest}").sample(found, per_task)
        pairs = [map(json.loads, pair) for pair in found]
        shared = {**template_columns(settings), "task_id": task.id}
        rows += [
            {"prompt": prompt, **shared, "chosen": right, "rejected": wrong} for prompt, right, wrong in pairs
        ]
    return rows


def step_labels(record: EpisodeRecord, by: str = "outcome") -> Labels | None:
    """Return a label per turn, good or bad; `None` if no turn has the reward `by`, as in greedy episodes.

    `outcome` labels every turn with the episode's outcome. The name of a step reward labels turns above 0 as
    good and below 0 as bad; at 0 or without a value, the last turn gets the outcome and others no label.
    """
    turns = record["turns"]
    if by == "outcome":
        return [record["right"]] * len(turns)
    values = [turn.get("rewards", {}).get(by) for turn in turns]
    if all(value is None for value in values):
        return None
    labels: Labels = [value > 0 if value else None for value in values]
    if labels[-1] is None:
        labels[-1] = record["right"]
    return labels


def labels_of_all(records: Iterable[EpisodeRecord], by: str) -> list[Labels | None]:
    """Return the `step_labels` of each episode; raise ConfigError if no episode has labels."""
    labels = [step_labels(record, by) for record in records]
    if labels and all(each is None for each in labels):
        raise ConfigError(
            f"no episode has the step reward {by!r} in its turns; label by outcome, or train with that "
            "reward function first."
        )
    return labels


def written(record: EpisodeRecord) -> list[bool]:
    """Return, for each turn, whether the model wrote it; see `Episode.said`."""
    by_program = any(turn.get("action") == "reply" for turn in record["turns"])
    return [bool(turn["tokens"]) or not by_program for turn in record["turns"]]
