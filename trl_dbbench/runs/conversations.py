"""Saved episodes as chat messages: as the policy read them, and as training data.

```
run.json       the protocol: roles, tools, system prompt      ─┐
tasks.jsonl    the task: what the prompt asks                  │
shots.jsonl    earlier episodes that it showed, where it did   ├─> prompt, completion
episodes.jsonl the record: turns, and the observations read   ─┘
```

An observation that no turn followed is left out, as in `Episode.messages`. Prompts from a user's own dataset
are not in a run's folder: they are rebuilt as the protocol makes them.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
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
"""For each turn, whether it was a good step; `None` if unknown."""


def saved_episodes(
    run: str | Path, notes: list[str], phases: Sequence[Phase] = OF_TRAINING_TASKS
) -> Iterator[Played]:
    """Yield a run's episodes with their tasks, in the order of its log.

    Left out, with a note: episodes whose environment failed, without turns, without their task, or whose
    prompt showed episodes that are lost. `notes` are complete at the end.
    """
    folder = Path(run)
    tasks = tasks_by_digest(folder / TASKS_FILE, notes)
    shown = shown_in(folder)
    lost = without_shots = void = 0
    for _, record in read_episodes(folder / EPISODES_FILE, notes, check_turns):
        if record["phase"] not in phases:
            continue
        if is_void(record):
            void += 1
            continue
        task = tasks.get(str(record.get("task_digest")))
        if task is None or not record["turns"]:
            lost += 1
        elif not all(id in shown for id in record.get("shots", ())):
            without_shots += 1
        else:
            if "shots" in record:
                record["shown"] = [shown[id] for id in record["shots"]]
            yield record, task
    if void:
        notes.append(
            f"{folder}: {void:,} void episode{'s' * (void > 1)} left out: the environment had failed."
        )
    if without_shots:
        notes.append(
            f"{folder}: {without_shots} episode{'s' * (without_shots > 1)} left out: what the prompt showed "
            f"is not in {SHOTS_FILE}."
        )
    if lost:
        notes.append(f"{folder}: {lost} episode{'s' * (lost > 1)} without turns or task left out.")


# --- as the policy read it ----------------------------------------------------------------------------


def prompt_messages(record: EpisodeRecord, task: Task, settings: RunSettings) -> list[Message]:
    """Return the prompt, with the earlier episodes that it showed."""
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
        # 0 tokens can mean uncounted: an observation before another turn was read anyway
        read = turn.get("observation_tokens") or turn is not record["turns"][-1]
        if turn.get("observation") is not None and read:
            messages.append({"role": role, "content": str(turn["observation"])})
    return messages


def template_columns(settings: RunSettings) -> dict[str, Any]:
    """Return the columns by which TRL renders messages as the policy did: `tools` (JSON) and
    `chat_template_kwargs`, if the run had them."""
    columns: dict[str, Any] = {}
    if tools := protocol_of(settings).tools:
        columns["tools"] = json.dumps(tools)
    if settings.chat_template_kwargs:
        columns["chat_template_kwargs"] = settings.chat_template_kwargs
    return columns


def protocol_of(settings: RunSettings) -> AgentProtocol:
    """Return the protocol of the run's episodes."""
    return _protocol(settings.protocol, settings.observation_characters or None, settings.grader)


_protocol = lru_cache(maxsize=16)(get_protocol)


# --- as data ------------------------------------------------------------------------------------------


def preference_pairs(
    episodes: Iterable[Played], settings: RunSettings, *, per_task: int = 8, seed: int = 0
) -> list[dict[str, Any]]:
    """Return rows for TRL's trainers, in the order of the tasks: a right and a wrong episode of one prompt.

    Rows have `prompt`, `chosen` and `rejected` as messages, the columns of `template_columns`, and `task_id`.
    Episodes of a prompt with the same messages count once. A task gets at most `per_task` pairs, drawn at
    random; other tasks do not change its draw.
    """
    said_by: dict[str, dict[bool, dict[str, list[Message]]]] = {}  # prompt, as JSON -> by verdict
    prompts: dict[str, tuple[Task, dict[str, list[Message]]]] = {}  # task's digest -> its prompts
    for record, task in episodes:
        prompt, said = prompt_messages(record, task, settings), completion_messages(record, settings)
        key = json.dumps(prompt)
        prompts.setdefault(task.digest, (task, {}))[1][key] = prompt
        by_verdict = said_by.setdefault(f"{task.digest}/{key}", {True: {}, False: {}})
        by_verdict[record["right"]][json.dumps(said)] = said
    rows = []
    for digest, (task, of_task) in prompts.items():
        pairs = []
        for key, prompt in of_task.items():
            right, wrong = (said_by[f"{digest}/{key}"][verdict].values() for verdict in (True, False))
            pairs += [(prompt, *pair) for pair in product(right, wrong)]
        if len(pairs) > per_task:
            pairs = random.Random(f"{seed}/{digest}").sample(pairs, per_task)
        shared = {**template_columns(settings), "task_id": task.id}
        rows += [
            {"prompt": prompt, **shared, "chosen": right, "rejected": wrong} for prompt, right, wrong in pairs
        ]
    return rows


def step_labels(record: EpisodeRecord, by: str = "outcome") -> Labels | None:
    """Label each turn as a good step or not, from the record alone; `None` if no turn has such a reward, as
    in greedy episodes.

    Args:
        by: `outcome` gives every turn the episode's outcome. The name of a recorded step reward labels turns
            above 0 good and below 0 bad; at 0 or without a value a turn has no label, except the last,
            which has the outcome.
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
    """Return the `step_labels` of each episode.

    Raises:
        ConfigError: if there are episodes, and none has labels.
    """
    labels = [step_labels(record, by) for record in records]
    if labels and all(each is None for each in labels):
        raise ConfigError(
            f"no episode has the step reward {by!r} in its turns; label by outcome, or train with that "
            "reward function first."
        )
    return labels


def written(record: EpisodeRecord) -> list[bool]:
    """For each turn, whether the model wrote it; see `Episode.said`."""
    by_program = any(turn.get("action") == "reply" for turn in record["turns"])
    return [bool(turn["tokens"]) or not by_program for turn in record["turns"]]


def split_by_task(
    rows: Iterable[tuple[str, Any]], share: float, seed: int = 0
) -> tuple[list[Any], list[Any]]:
    """Split (name of the task, row) into training and held-out rows, with each task on one side only.

    `share` is that of held-out tasks, 0 to 1; at least one is held out if it is above 0 and there are two.
    """
    of_task: defaultdict[str, list[Any]] = defaultdict(list)
    for task, row in rows:
        of_task[task].append(row)
    names = sorted(of_task)
    random.Random(seed).shuffle(names)
    count = 0 if share == 0 or len(names) < 2 else min(max(1, round(share * len(names))), len(names) - 1)
    held_out = {*names[:count]}
    return (
        [row for name, group in of_task.items() if name not in held_out for row in group],
        [row for name, group in of_task.items() if name in held_out for row in group],
    )
