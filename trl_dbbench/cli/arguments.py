"""Recipe settings besides the trainer's own, grouped in dataclasses for TRL's `TrlParser`."""

# ruff: noqa: RUF009 - `option` makes a field
from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from trl_dbbench.data.generate.fresh import SCHEME, FreshTasks
from trl_dbbench.database import Database, database_for, open_database
from trl_dbbench.episode.dataset import note_source, to_dataset, to_fresh_dataset
from trl_dbbench.episode.prompts import MODES, Opening, opening, read_messages
from trl_dbbench.episode.protocol import AgentProtocol, get_protocol
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.outcome import OUTCOME_PRESETS, OutcomeReward
from trl_dbbench.rewards.registry import RewardFunction, load_reward_functions
from trl_dbbench.tasks import Task, load_tasks
from trl_dbbench.tasks.load import with_schema
from trl_dbbench.tasks.model import SCHEMAS
from trl_dbbench.utils.lookup import check_choice
from trl_dbbench.utils.settings import as_list, check_number, option


@dataclass
class TaskArguments:
    """Tasks, and the chat messages before their questions."""

    tasks: str = field(
        metadata={"help": "Training tasks: a file, a folder of parquet files, a hub id, or generate://full."}
    )
    tasks_split: str | None = option(None, "The split of a hub id or folder.")
    eval_tasks: str | None = option(
        None,
        "Held-out tasks, played as eval_strategy says; without it, before and after the training.",
    )
    eval_tasks_split: str | None = option(None, "The split of eval_tasks.")
    tasks_format: str | None = option(
        None, "The format of tasks and eval_tasks: a name or a dotted path; left out, recognised."
    )
    schema: str | None = option(
        None,
        "How the prompt shows tables: names (of columns), full (with keys and first rows), or none; left "
        "out, as each task says.",
        SCHEMAS,
    )
    system_prompt: str | None = option(
        None,
        "Replaces the protocol's system prompt: a text, a file (.txt, .md) that holds it, or a .json file of "
        "all messages before the question.",
    )
    system_prompt_mode: str = option(
        "replace", "With system_prompt: replace the protocol's, or prepend to it.", MODES
    )
    prelude: str | None = option(
        None, "A JSON file of messages that stand between system prompt and question."
    )

    def __post_init__(self) -> None:
        if self.eval_tasks is None and self.eval_tasks_split is not None:
            raise ConfigError(
                f"eval_tasks_split: {self.eval_tasks_split} is a split of eval_tasks, which is not set. For "
                f"a split of the training tasks, set eval_tasks: {self.tasks}, too."
            )

    def opening(self, protocol: AgentProtocol, tasks: Sequence[Task]) -> Opening | None:
        """Return the messages before each question, the same for all these tasks; `None` for the protocol's
        own.

        Raises:
            ConfigError: if they include the protocol's own prompt, and that differs between the tasks.
        """
        some = tasks if self.system_prompt_mode == "prepend" or self.prelude is not None else tasks[:1]
        of_protocol = {json.dumps(protocol.messages(task)[:-1]) for task in some}
        given = read_system_prompt(self.system_prompt)
        first, *others = (
            opening(json.loads(own), given, self.system_prompt_mode, self.prelude)
            for own in sorted(of_protocol)
        )
        if any(other != first for other in others):
            name = "system_prompt_mode: prepend" if self.system_prompt_mode == "prepend" else "prelude"
            raise ConfigError(
                f"{name} puts the protocol's system prompt before every question, and these tasks have "
                f"{len(of_protocol)} of them: their graders read answers of different forms, or their "
                "databases differ. Set grader to one for all, or write the whole system_prompt "
                "(system_prompt_mode: replace)."
            )
        return first

    def load(self) -> list[Task]:
        """Return the training tasks."""
        if self.tasks.startswith(SCHEME):
            raise ConfigError(
                f"{self.tasks} has no end, and only a training by reward can use it. Write a file of tasks "
                "with trl-dbbench generate."
            )
        return self.read(self.tasks, self.tasks_split)

    def read(self, source: str, split: str | None) -> list[Task]:
        """Return the tasks of a source, with the setting `schema` applied."""
        return with_schema(load_tasks(source, split, self.tasks_format), self.schema)

    def fresh(self) -> FreshTasks:
        """Return the endless tasks of a `generate://...` source."""
        if self.tasks_split is not None:
            raise ConfigError(f"tasks_split: {self.tasks} has no splits. Leave it out.")
        return FreshTasks.of(self.tasks, self.schema)

    def datasets(self, protocol: str, grader: str | None = None) -> tuple[Dataset, Dataset | None]:
        """Return the rows for training and, if `eval_tasks` is set, for evaluation.

        Args:
            protocol, grader: the run's; see `get_protocol`.
        """
        asked = get_protocol(protocol, grader=grader)
        held_out = self.read(self.eval_tasks, self.eval_tasks_split) if self.eval_tasks is not None else []
        if self.tasks.startswith(SCHEME):
            fresh = self.fresh()
            opening = self.opening(asked, [fresh.task(0), *held_out])
            train = to_fresh_dataset(fresh.task, asked, opening)
        else:
            tasks = self.load()
            opening = self.opening(asked, [*tasks, *held_out])
            train = to_dataset(tasks, asked, opening)
        note_source(train, self.tasks, self.schema)
        if self.eval_tasks is None:
            return train, None
        evaluation = to_dataset(held_out, asked, opening)
        note_source(evaluation, self.eval_tasks, self.schema)
        return train, evaluation


@dataclass
class DatabaseArguments:
    """Database that runs the agent's SQL."""

    # on the command line, transformers' parser uses the second type; a list needs a default factory
    database: dict[str, int] | list[str] | str = option(
        lambda: "auto",
        "auto, docker, local, sqlite or mysql+pymysql://user:password@host:port; several servers as a list "
        "of URLs, or as {local: 2} (on the command line local:2); or the dotted path of a class.",
    )
    docker_image: str | None = option(
        None, "The image that docker and auto start; $TRL_DBBENCH_DOCKER_IMAGE, else mysql:8.4."
    )
    database_patience: float = option(
        Database.patience,
        "Seconds to wait for a database that does not answer; then the run saves a checkpoint and ends.",
    )
    require_accounts: bool = option(
        False, "Refuse a server on which agents cannot have accounts of their own."
    )

    def open(self, tasks: Iterable[Task] = ()) -> AbstractContextManager[Database]:
        """Open the database, on every rank; `auto` chooses by `tasks`. See `open_database`."""
        return open_database(
            database_for(tasks, self.database),
            docker_image=self.docker_image,
            patience=self.database_patience,
            require_accounts=self.require_accounts,
        )


@dataclass
class RewardArguments:
    """Rewards of an episode."""

    reward_funcs: list[str] = option(
        lambda: ["outcome"],
        "outcome, execution, efficiency, query_cost, format, executes, state_progress, answer_seen, "
        "model:PATH, prm:PATH, or dotted paths of functions that take `episode`.",
    )
    outcome_preset: str = option("greedy_then_grpo", "Values of the outcome reward.", OUTCOME_PRESETS)
    outcome: dict[str, Any] | str | None = option(
        None, "Replaces values of the preset: {wrong: -0.5}; on the command line '{\"wrong\": -0.5}'."
    )

    def load(self, database: Database) -> list[RewardFunction]:
        """Return the reward functions."""
        names = as_list(self.reward_funcs)
        return load_reward_functions(names, database=database, outcome=self.outcome_reward())

    def outcome_reward(self) -> OutcomeReward:
        """Return the outcome reward; raise ConfigError for values of it that no reward function would use."""
        names = as_list(self.reward_funcs)
        if _from_json(self.outcome) is not None and "outcome" not in names:
            raise ConfigError(
                f"outcome sets values of the reward 'outcome', but reward_funcs are {', '.join(names)}. Add "
                "outcome to reward_funcs, or set outcome: null."
            )
        return outcome_reward(self.outcome_preset, self.outcome)


def outcome_reward(preset: str, values: dict[str, Any] | str | None = None) -> OutcomeReward:
    """Return a preset's reward, with these values replaced."""
    check_choice("outcome_preset", preset, OUTCOME_PRESETS)
    read = _from_json(values)
    if read is None:
        return OUTCOME_PRESETS[preset]
    known = [each.name for each in fields(OutcomeReward)]
    if not isinstance(read, dict) or not {*read} <= {*known}:
        raise ConfigError(
            f"outcome must give numbers for some of {', '.join(known)}, as in {{wrong: -0.5}}; given is "
            f"{values!r}."
        )
    for name, value in read.items():
        check_number(f"outcome: {name}", value)
    return replace(OUTCOME_PRESETS[preset], **{name: float(value) for name, value in read.items()})


def read_template_kwargs(values: dict[str, Any] | str | None) -> dict[str, Any]:
    """Return the settings for the chat template, parsed if they are given as JSON."""
    values = _from_json(values)
    if not isinstance(values, dict | None):
        raise ConfigError(
            "chat_template_kwargs must be names with values, as in {enable_thinking: false}; on the command "
            f"line '{{\"enable_thinking\": false}}'. Given is {values!r}."
        )
    return values or {}


def _from_json(value: Any) -> Any:
    """Parse a text that is JSON; return any other value unchanged."""
    if isinstance(value, str):
        with suppress(ValueError):
            return json.loads(value)
    return value


def read_system_prompt(text_or_file: str | None) -> Opening | None:
    """Return the given text, or the contents of the file that it names: a text (`.txt` or `.md`), or all
    messages before a question (`.json`; see `prompts.read_messages`)."""
    if text_or_file and "\n" not in text_or_file and text_or_file.endswith(".json"):
        return read_messages(text_or_file)
    if text_or_file and "\n" not in text_or_file and text_or_file.endswith((".txt", ".md")):
        try:
            return Path(text_or_file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the system prompt cannot be read: {error}") from None
    return text_or_file
