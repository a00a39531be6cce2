"""Training data for reward models, from the episodes of runs or from files.

```
chosen, rejected   (and prompt)   for a reward model: texts, or chat messages
input, label                      for a process reward model: a text with a placeholder after each step, and
                                  one of the reward tokens for each; or, as in Math-Shepherd's files, the same
                                  text with the reward tokens in place of the placeholders
```

A row of a file may name its own `placeholder_token` and `reward_tokens`. Rows with the same `task_id`, or
else with the same prompt or the same first line of `input`, count as one task.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from trl_dbbench.episode.templates import check_shows_episodes, own_template
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.rewards.learned import Reader
from trl_dbbench.rewards.process import StepReader, StepTokens, step_tokens
from trl_dbbench.runs.conversations import (
    Labels,
    Played,
    completion_messages,
    preference_pairs,
    prompt_messages,
    protocol_of,
    saved_episodes,
    written,
)
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks.entries import read_entries
from trl_dbbench.tasks.fields import check_text

Row = tuple[str, dict[str, list[int]]]
"""The task's name and the row as token ids."""


OF_A_READER = ("protocol", "observation_characters", "chat_template_kwargs")
"""Settings in which the runs of one reward model must agree, as they affect what its chat template shows."""

OF_STEPS = (*OF_A_READER, "system_prompt", "max_turns", "grader", "history")
"""Settings in which the runs of one process reward model must agree: the first run's are used for all."""


def read_settings(runs: Sequence[str], shared: Sequence[str] = OF_A_READER) -> RunSettings | None:
    """Return the first run's settings, `None` without runs; raise ConfigError if those in `shared` differ."""
    all_settings = [RunSettings.read(run) for run in runs]
    for run, settings in zip(runs[1:], all_settings[1:], strict=True):
        for name in shared:
            first, here = getattr(all_settings[0], name), getattr(settings, name)
            if here != first:
                raise ConfigError(
                    f"episodes: {runs[0]} and {run} differ in {name} ({first!r}, {here!r}). A reward model "
                    "reads what its policy read: train one for each."
                )
    return all_settings[0] if all_settings else None


def shown_by(settings: RunSettings | None) -> dict[str, Any]:
    """Return what the reward model's chat template gets besides the messages."""
    return {} if settings is None else {**settings.chat_template_kwargs, "tools": protocol_of(settings).tools}


def check_reader(reader: Reader, settings: RunSettings | None) -> None:
    """Raise ConfigError if the chat template of a reward model cannot show episodes with these settings."""
    if settings is not None:
        own_template(reader.tokenizer, protocol_of(settings).tools)
        name, role = reader.tokenizer.name_or_path, protocol_of(settings).observation_role
        remedy = "Name another with `chat_template:`, a jinja file or one of TRL's, such as qwen3."
        check_shows_episodes(name, reader.tokenizer, role, reader.shown, remedy=remedy)


# --- pairs --------------------------------------------------------------------------------------------


def pairs_of_runs(
    runs: Sequence[str], reader: Reader, *, per_task: int, seed: int, notes: list[str]
) -> Iterator[Row]:
    """Yield rows of `chosen_ids` and `rejected_ids`: a right and a wrong episode of the same task."""
    for run in runs:
        settings = RunSettings.read(run)
        for pair in preference_pairs(saved_episodes(run, notes), settings, per_task=per_task, seed=seed):
            yield pair["prompt"][-1]["content"], _pair_row(reader, pair)


def pairs_of_files(files: Sequence[str], reader: Reader) -> Iterator[Row]:
    """Yield the pairs in files; raise ConfigError if a file cannot be read, or a row is not a pair."""
    for place, fields in _entries(files):
        if not {"chosen", "rejected"} <= fields.keys():
            raise ConfigError(
                f"{place}: a pair needs 'chosen' and 'rejected'; there are {', '.join(fields)}."
            )
        prompt = fields.get("prompt")
        task = fields.get("task_id") or prompt or _opening(fields["chosen"])
        try:
            yield str(task), _pair_row(reader, fields)
        except TaskError as error:
            raise ConfigError(f"{place}: {error}") from None


def _opening(chosen: Any) -> Any:
    """Return the beginning of a conversation: its first message, or the first line of its text."""
    if isinstance(chosen, str):
        return chosen.lstrip().partition("\n")[0]
    return chosen[:1] if isinstance(chosen, list) else chosen


def _pair_row(reader: Reader, pair: dict[str, Any]) -> dict[str, list[int]]:
    ids = {}
    for side in ("chosen", "rejected"):
        prompt, said = pair.get("prompt"), pair[side]
        if isinstance(said, str) and isinstance(prompt, str | None):
            text, end = (prompt or "") + said, str(reader.tokenizer.eos_token or "")
            ids[f"{side}_ids"] = reader.ids_of(text if text.endswith(end) else text + end)
        else:
            before, messages = _messages("prompt", prompt or [], "user"), _messages(side, said, "assistant")
            whole = messages[: len(before)] == before  # UltraFeedback's sides begin with the prompt
            ids[f"{side}_ids"] = reader.conversation_ids([] if whole else before, messages)
    return ids


def _messages(field: str, said: Any, role: str) -> list[dict[str, Any]]:
    """Return a field's messages, or its text as one message with this role; else raise TaskError."""
    if isinstance(said, str):
        return [{"role": role, "content": said}]
    if not isinstance(said, list) or not all(isinstance(each, dict) and "role" in each for each in said):
        raise TaskError(
            f"'{field}' must be a text or a list of messages with 'role' and 'content', is "
            f"{str(said)[:80]!r}."
        )
    return said


# --- steps --------------------------------------------------------------------------------------------


def played_in(runs: Sequence[str], notes: list[str]) -> list[Played]:
    """Return the episodes of the runs without duplicates; of equal ones, one with step rewards is kept."""
    seen: dict[tuple[str, ...], Played] = {}
    for run in runs:
        for record, task in saved_episodes(run, notes):
            said = (task.digest, *(turn["text"] for turn in record["turns"]))
            if said not in seen or any("rewards" in turn for turn in record["turns"]):
                seen[said] = (record, task)
    return list(seen.values())


def steps_of_runs(
    played: Iterable[Played], labels: Iterable[Labels | None], settings: RunSettings, reader: StepReader
) -> Iterator[Row]:
    """Yield rows of `input_ids` and `labels` for TRL's SFTTrainer; episodes without labels are left out."""
    for (record, task), label in zip(played, labels, strict=True):
        if label is not None:
            prompt = prompt_messages(record, task, settings)
            ids, places = reader.encode(prompt, completion_messages(record, settings))
            label = list(compress(label, written(record)))
            yield str(prompt[-1]["content"]), reader.training_row(ids, places, label)


def steps_of_files(files: Sequence[str], reader: StepReader, tokens: StepTokens) -> Iterator[Row]:
    """Yield the rows in files; raise ConfigError for an unreadable file or a row without a label per step."""
    for place, fields in _entries(files):
        text = fields.get("input")
        if not isinstance(text, str) or "label" not in fields:
            raise ConfigError(
                f"{place}: a row needs 'input', a text, and 'label'; there are {', '.join(fields)}."
            )
        # a row of a parquet file has all columns, with nulls for missing values
        said = vars(tokens) | {name: fields[name] for name in fields if fields[name] is not None}
        try:
            own = step_tokens(said["placeholder_token"], said["reward_tokens"])
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
        parts = text.split(own.placeholder_token)
        labels = _labels(fields["label"], parts, own)
        if labels is None:
            raise ConfigError(
                f"{place}: 'label' must have one of {list(own.reward_tokens)} for each of the "
                f"{len(parts) - 1} placeholders {own.placeholder_token!r} in 'input'."
            )
        # with the tokenizer's special tokens, unless the text begins with them already
        begins = parts[0].startswith(reader.tokenizer.bos_token or "\0")
        begin = reader.tokenizer(parts[0], add_special_tokens=not begins)["input_ids"]
        ids, places = reader.spliced([begin, *map(reader.ids_of, parts[1:])])
        task = str(fields.get("task_id") or _opening(text))
        yield task, reader.training_row(ids, places, labels)


def _labels(label: Any, parts: list[str], tokens: StepTokens) -> list[bool | None] | None:
    """Return True (good) or False (bad) for each step; `None` if the labels do not fit the input."""
    good, bad = tokens.reward_tokens
    if isinstance(label, str):  # the input with the answers in place of the placeholders
        answer = f"({re.escape(good)}|{re.escape(bad)})"
        read = re.match(answer.join(map(re.escape, parts)), label)
        label = read and [*read.groups()]
    if not isinstance(label, list) or not label or len(label) != len(parts) - 1:
        return None
    return [each == good for each in label] if all(each in (good, bad) for each in label) else None


def _entries(files: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, for error messages; fields) of each row."""
    for file in files:
        if not Path(file).is_file():
            raise ConfigError(f"no file at '{file}'. Give a .jsonl, .json or .parquet file.")
        try:
            for entry in read_entries(Path(file)):
                try:
                    check_text(json.dumps(entry.fields, ensure_ascii=False, default=str))
                except TaskError as error:
                    raise ConfigError(f"{file}, {entry.place}: {error}.") from None
                yield f"{file}, {entry.place}", entry.fields
        except TaskError as error:
            raise ConfigError(str(error)) from None


def fitting(rows: Iterable[Row], max_length: int | None, notes: list[str]) -> list[Row]:
    """Return the rows whose texts have at most `max_length` tokens; `notes` gets the number of the others."""
    rows = list(rows)
    fit = [each for each in rows if max_length is None or max(map(len, each[1].values())) <= max_length]
    if lost := len(rows) - len(fit):
        notes.append(f"{lost} of {len(rows)} rows are longer than max_length {max_length}, and left out.")
    return fit


@dataclass(frozen=True)
class Rows:
    """Rows for training and for evaluation, and the task of each held-out row."""

    train: list[dict[str, list[int]]]
    held_out: list[dict[str, list[int]]]
    tasks: list[str]

    @classmethod
    def of(cls, rows: Sequence[Row], held_out_share: float, seed: int) -> Rows:
        """Hold out the rows of a share of the tasks (0 to 1).

        A share above 0 holds out at least one task, but never the last one for training.
        """
        of_task: defaultdict[str, list[Row]] = defaultdict(list)
        for row in rows:
            of_task[row[0]].append(row)
        names = sorted(of_task)
        random.Random(seed).shuffle(names)
        count = min(max(1, round(held_out_share * len(names))), len(names) - 1) if held_out_share else 0
        chosen = set(names[:count])
        held_out = [row for task in of_task if task in chosen for row in of_task[task]]
        train = [row for task in of_task if task not in chosen for _, row in of_task[task]]
        return cls(train, [row for _, row in held_out], [task for task, _ in held_out])
