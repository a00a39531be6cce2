"""A run's episodes as datasets for TRL's trainers.

| kind | columns | trainer |
|---|---|---|
| `sft` | `prompt`, `completion` (messages), `input_ids`, `labels` | SFTTrainer, which trains on the ids |
| `preference` | `prompt`, `chosen`, `rejected` (messages) | DPOTrainer, RewardTrainer |
| `kto` | `prompt`, `completion` (messages), `label` | KTOTrainer |
| `prm` | `input`, `label`, `placeholder_token`, `reward_tokens` | recipes/prm_dbbench.py |

Rows with messages also have `tools` and `chat_template_kwargs` if the policy's prompt had them; all have
`task_id`. Episodes of a task with the same actions count once; those whose environment failed are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.dataset import sft_row, sft_rows
from trl_dbbench.episode.protocol import PROTOCOLS, get_protocol
from trl_dbbench.episode.types import Episode
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.runs.conversations import (
    Played,
    completion_messages,
    labels_of_all,
    preference_pairs,
    prompt_messages,
    saved_episodes,
    template_columns,
)
from trl_dbbench.runs.records import PHASES, Phase, said_in, worth_learning
from trl_dbbench.runs.settings import RunSettings, opening_of
from trl_dbbench.runs.tokens import chat_of, chat_with, with_tokens
from trl_dbbench.tasks.entries import read_entries
from trl_dbbench.utils.lookup import check_choice

Rows = list[dict[str, Any]]

SFT_COLUMNS = ("input_ids", "labels")

SUFFIXES = (".jsonl", ".parquet")

REWARD_TOKENS = ("+", "-")
PLACEHOLDER = "<step_{}>"


def export(
    run: str | Path,
    kind: str,
    *,
    phases: Sequence[Phase] = ("train",),
    max_per_task: int | None = None,
    label_by: str = "outcome",
    model: str | None = None,
    notes: list[str] | None = None,
) -> Rows:
    """Return the rows of a dataset of a run, or of a folder of `trl-dbbench sample`.

    Args:
        kind: a kind in the table above.
        max_per_task: most rows per task; for `kto`, separately for right and wrong ones. Default: 8 pairs
            for `preference`, all rows otherwise.
        label_by: source of the labels of `prm`; see `step_labels`.
        model: folder or hub id of another model to train, whose tokenizer and chat template make the ids.
        notes: receives messages about unreadable or changed parts.

    Raises:
        ConfigError: if the run cannot be read, or has no episodes for this kind.
    """
    check_choice("kind", kind, NEEDED)
    for phase in phases:
        check_choice("phase", phase, PHASES)
    notes = [] if notes is None else notes
    settings = RunSettings.read(run)
    if settings.rewrites and kind in ("sft", "prm"):
        raise ConfigError(
            "a row has one sequence, and these episodes have several (history: template, compaction_tokens "
            "or harness). Fine-tune on their folder: recipes/sft_dbbench.py --episodes FOLDER."
        )
    if settings.harness:
        notes.append(
            "What the program (harness) asked the model is not saved: prompts are the protocol's, which the "
            "model has not read. DPO and KTO would train it on them."
        )
    chat = None if model is None else chat_of(settings, model)
    export = _Export(settings, notes, max_per_task, label_by, chat)
    episodes = list(distinct(saved_episodes(run, notes, phases), by_prompt=kind == "preference"))
    rows = getattr(export, kind)(episodes)
    if not rows:
        right = sum(record["right"] for record, _ in episodes)
        raise ConfigError(
            f"'{run}' has nothing for {kind}, which takes {NEEDED[kind]}: of the phases {', '.join(phases)} "
            f"it has {len(episodes)} different episodes, {right} of them right. `sample "
            f"--keep all` keeps wrong ones too. {' '.join(notes)}".rstrip()
        )
    return rows


def check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"'{path}' must end in {' or '.join(SUFFIXES)}.")


def distinct(episodes: Iterable[Played], by_prompt: bool = False) -> Iterator[Played]:
    """Yield the first of a task's episodes with equal actions; with `by_prompt`, the first per prompt."""
    seen = set()
    for record, task in episodes:
        shown = tuple(record.get("shots", ())) if by_prompt else ()
        if (key := (task.digest, shown, said_in(record))) not in seen:
            seen.add(key)
            yield record, task


@dataclass(frozen=True)
class _Export:
    """Maker of datasets, a method per kind. `chat` is for the model to train, if another one played."""

    settings: RunSettings
    notes: list[str]
    max_per_task: int | None
    label_by: str
    chat: ChatFormat | None

    def sft(self, episodes: Sequence[Played]) -> Rows:
        chosen = self._first(to_learn_from(episodes))
        tokens = with_tokens(chosen, self.settings, self.notes, self.chat)
        return [
            {**self._messages(played), **sft_row(episode)}
            for played, (_, episode) in zip(chosen, tokens, strict=True)
        ]

    def preference(self, episodes: Sequence[Played]) -> Rows:
        return preference_pairs(episodes, self.settings, per_task=self.max_per_task or 8)

    def kto(self, episodes: Sequence[Played]) -> Rows:
        chosen = self._first(episodes, by_verdict=True)
        if len({record["right"] for record, _ in chosen}) < 2:
            return []
        return [{**self._messages(played), "label": played[0]["right"]} for played in chosen]

    def prm(self, episodes: Sequence[Played]) -> Rows:
        chosen = self._first(episodes)
        chat = self.chat or chat_of(self.settings)
        tokens = with_tokens(chosen, self.settings, self.notes, self.chat)
        labels = labels_of_all((record for record, _ in chosen), self.label_by)
        return [
            {**_steps(episode, each, chat), "task_id": record["task_id"]}
            for (record, episode), each in zip(tokens, labels, strict=True)
            if each is not None
        ]

    def _messages(self, played: Played) -> dict[str, Any]:
        record, task = played
        return {
            "prompt": prompt_messages(record, task, self.settings),
            "completion": completion_messages(record, self.settings),
            **template_columns(self.settings),
            "task_id": task.id,
        }

    def _first(self, episodes: Iterable[Played], by_verdict: bool = False) -> list[Played]:
        """Return at most `max_per_task` episodes per task, or per task and verdict."""
        groups: dict[Any, list[Played]] = {}
        for record, task in episodes:
            groups.setdefault((task.digest, by_verdict and record["right"]), []).append((record, task))
        return [each for group in groups.values() for each in group[: self.max_per_task]]


def to_learn_from(episodes: Iterable[Played]) -> list[Played]:
    """Return the episodes that ended right and were not cut off."""
    return [(record, task) for record, task in episodes if worth_learning(record)]


def _steps(episode: Episode, labels: Sequence[bool | None], chat: ChatFormat) -> dict[str, Any]:
    """Return the episode's text with a placeholder after each labelled turn, and the labels."""

    def text(ids: Sequence[int]) -> str:
        return chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    whole = text([*episode.prompt_ids, *episode.completion_ids])
    placeholder = next(mark for mark in map(PLACEHOLDER.format, count()) if mark not in whole)
    parts = [text(episode.prompt_ids)]
    for turn, label in zip(episode.turns, labels, strict=True):
        ids = turn.completion.ids
        end = len(ids) - (ids[-1] in chat.eos_token_ids)
        parts += [text(ids[:end]), "" if label is None else placeholder]
        parts.append(text([*ids[end:], *turn.observation_ids]))
    return {
        "input": "".join(parts),
        "label": [REWARD_TOKENS[not label] for label in labels if label is not None],
        "placeholder_token": placeholder,
        "reward_tokens": list(REWARD_TOKENS),
    }


NEEDED = {
    "sft": "right episodes",
    "preference": "right and wrong episodes of the same task",
    "kto": "right and wrong episodes",
    "prm": "episodes",
}
"""Kind (a method of `_Export`) -> episodes that it needs."""


# --- loading for SFT -----------------------------------------------------------------------------------


def sft_dataset(
    source: str | Path, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int], notes: list[str]
) -> Dataset:
    """Return rows of `input_ids` and `labels`, with the loss on sampled tokens.

    Args:
        source: the folder of a run or of `trl-dbbench sample`, for its right sampled episodes; or a file of
            `trl-dbbench export --to sft`.
        tokenizer, eos_token_ids: of the model to train. If the tokenizer decodes a folder's ids to other
            text, the saved texts are tokenised again; such a file is refused.
        notes: receives messages about unreadable or changed parts.
    """
    path = Path(source)
    if not path.is_dir():
        return Dataset.from_list(
            [{name: row[name] for name in SFT_COLUMNS} for row in _read_sft(path, tokenizer)]
        )
    settings = RunSettings.read(path)
    played = to_learn_from(distinct(saved_episodes(path, notes, ("train",))))
    if not played:
        raise ConfigError(f"'{source}' has no right episodes to learn from. {' '.join(notes)}".rstrip())
    chat = chat_with(settings, tokenizer, eos_token_ids)
    tokens = with_tokens(played, settings, notes, chat)
    return Dataset.from_list([row for _, episode in tokens for row in sft_rows(episode)])


def settings_of(source: str) -> RunSettings | None:
    """Return the run settings of `sft_dataset`'s source; `None` if it is a file."""
    return RunSettings.read(source) if Path(source).is_dir() else None


def told_by_rows(source: str | Path) -> dict[str, Any]:
    """Return the arguments of `played_as` that follow from a file of `export --to sft`."""
    rows = [dict(entry.fields) for entry in read_entries(Path(source))]
    told: dict[str, Any] = {}
    if all("prompt" in row for row in rows):
        told["system_prompt"] = opening_of(row["prompt"] for row in rows)
    if kwargs := rows[0].get("chat_template_kwargs"):
        told["chat_template_kwargs"] = kwargs
    if tools := rows[0].get("tools"):
        named = [name for name in PROTOCOLS if get_protocol(name).tools == json.loads(tools)]
        told |= {"protocol": named[0]} if named else {}
    told["turns"] = [sum(message["role"] == "assistant" for message in row["completion"]) for row in rows]
    return told


def _read_sft(path: Path, tokenizer: PreTrainedTokenizerBase) -> Rows:
    remedy = "Give the folder of a run, or a file of trl-dbbench export --to sft."
    if not path.is_file():
        raise ConfigError(f"no episodes at '{path}'. {remedy}")
    try:
        rows = [dict(entry.fields) for entry in read_entries(path)]
    except TaskError as error:
        raise ConfigError(f"{str(error).rstrip('.')}. {remedy}") from None
    if not rows:
        raise ConfigError(f"'{path}' is empty. {remedy}")
    for number, row in enumerate(rows, 1):
        if missing := [name for name in (*SFT_COLUMNS, "completion") if name not in row]:
            raise ConfigError(f"'{path}', row {number} has no {', '.join(missing)}. {remedy}")
        text = tokenizer.decode(row["input_ids"], clean_up_tokenization_spaces=False)
        said = [message["content"] for message in row["completion"] if message["role"] == "assistant"]
        if not all(each in text for each in said):
            raise ConfigError(
                f"'{path}', row {number}: its ids are of another tokenizer than that of "
                f"'{tokenizer.name_or_path}'. Name this model in trl-dbbench export --to sft --model."
            )
    return rows
