"""`run.json`: how a run's episodes were played and rewarded.

```
run.json        this
episodes.jsonl  every episode, one a line (`records.EpisodeRecord`)
tasks.jsonl     the tasks they played, each once
```
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trl_dbbench.database import Limits
from trl_dbbench.database.dialect import SQLITE
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.types import Rules
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.records import EPISODES_FILE, TASKS_FILE
from trl_dbbench.utils.files import found_from_everywhere, write_atomically

SETTINGS_FILE = "run.json"
TRAINING = (
    *("learning_rate", "lr_scheduler_type", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("world_size", "num_generations", "num_iterations", "loss_type", "beta", "epsilon", "scale_rewards"),
    *("importance_sampling_level", "num_train_epochs", "max_steps", "seed"),
)
"""Settings of a training, named as in a recipe's YAML; `world_size` is the number of devices."""

PACKAGES = ("trl-dbbench", "trl", "transformers", "peft", "accelerate", "torch", "sqlglot")


@dataclass(frozen=True)
class RunSettings:
    """How a run's episodes were played and rewarded.

    `observation_characters` is 0 if none were cut; `max_turns`, `max_completion_length` and `context` are
    those of `episode.types.Rules`; `database` and `dialect` name the database; `rewards` maps each reward's
    name to its `rewards.registry.describe_reward`; `grader` judged the answers of all tasks, if one was set;
    `advantage`, made with `advantage_args`, gave each episode its advantage. `few_shot` earlier episodes
    stood in each prompt, drawn by `few_shot_by` with `few_shot_seed` from `few_shot_memory`, which the run's
    own episodes joined with `few_shot_update`; `None` if there were none.

    An evaluation also needs the rest: `model`, a folder or a hub id with its `model_revision`, was trained,
    or its adapter was; its weights had the type `dtype`, were quantised by `quantized`, and computed in
    `autocast`, if those are set; `system_prompt` began every prompt (a list has all messages before the
    question); `chat_template` and `chat_template_kwargs` rendered it. Earlier versions wrote none of these:
    they are `None`.

    `id` is the run's, as in its checkpoints; `None` if an earlier version began it or nothing was trained.

    For readers only: `training`, the settings of `TRAINING`; `sampling` of the training's episodes;
    `task_files`, the files of training and held-out tasks, each with its size and sha256;
    `versions` of the packages.
    """

    protocol: str
    observation_characters: int
    max_turns: int
    max_completion_length: int | None = None
    context: int | None = None
    database: str | None = None
    dialect: str | None = None
    limits: Limits = field(default_factory=Limits)
    rewards: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    grader: str | None = None
    advantage: str = "grpo"
    advantage_args: dict[str, Any] | None = None
    few_shot: int | None = None
    few_shot_memory: str | None = None
    few_shot_by: str | None = None
    few_shot_update: bool | None = None
    few_shot_seed: int | None = None
    model: str | None = None
    model_revision: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    system_prompt: Opening | None = None
    chat_template: str | dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    max_turn_tokens: int | None = None
    quantized: str | None = None
    training: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, float] = field(default_factory=dict)
    task_files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    id: str | None = None

    @classmethod
    def of(cls, trainer: Any, rewards: dict[str, dict[str, Any] | None]) -> RunSettings:
        """Return those of a training.

        Args:
            trainer: a `DBBenchGRPOTrainer`.
            rewards: by name, their `rewards.registry.describe_reward`.
        """
        from datasets import Dataset  # which whoever reads a run.json need not wait for

        from trl_dbbench.episode.dataset import rows_to_check

        args, player, model = trainer.args, trainer.player, trainer.model
        name = model.config.name_or_path
        return cls(
            protocol=args.protocol,
            observation_characters=args.observation_characters,
            max_turns=player.rules.max_turns,
            max_completion_length=player.rules.max_completion_length,
            context=player.rules.context,
            database=player.database.describe(),
            dialect=player.database.dialect.name,
            limits=player.database.limits,
            rewards=rewards,
            grader=args.grader,
            advantage=args.advantage,
            advantage_args=args.advantage_args,
            **few_shot_settings(args),
            model=found_from_everywhere(name) if name else None,
            model_revision=(args.model_init_kwargs or {}).get("revision"),
            dtype=str(model.dtype).removeprefix("torch."),
            autocast={"bf16": "bfloat16", "fp16": "float16"}.get(trainer.accelerator.mixed_precision),
            system_prompt=_opening(rows_to_check(trainer.train_dataset)["prompt"]),
            chat_template=player.chat.chat_template,
            chat_template_kwargs=args.chat_template_kwargs or {},
            max_turn_tokens=player.rules.max_turn_tokens,
            quantized=quantization_of(model.config),
            training=training_of(args),
            sampling={"temperature": args.temperature, "top_p": args.top_p, "top_k": args.top_k or 0},
            task_files={
                name: dataset.info.download_checksums or {}
                for name, dataset in (("train", trainer.train_dataset), ("eval", trainer.eval_dataset))
                if isinstance(dataset, Dataset)
            },
            versions=versions(),
        )

    @property
    def rules(self) -> Rules:
        """Limits of an episode, without the model's context."""
        limits = {
            "max_turn_tokens": self.max_turn_tokens,
            "max_completion_length": self.max_completion_length,
        }
        return Rules(self.max_turns, **{name: limit for name, limit in limits.items() if limit is not None})

    @property
    def database_spec(self) -> str:
        """Specification of a database like the run's, for `open_database`."""
        return "sqlite" if self.dialect == SQLITE.name else "auto"

    def write(self, folder: Path) -> None:
        with write_atomically(folder / SETTINGS_FILE) as file:
            file.write(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: str | Path, **given: Any) -> RunSettings:
        """Read a run's folder; what is `given` (and not `None`) comes first.

        Raises:
            ConfigError: if it is no run's folder, or neither it nor the given values say how it was played.
        """
        for name in (EPISODES_FILE, TASKS_FILE):
            if not (Path(folder) / name).is_file():
                raise ConfigError(
                    f"'{folder}' has no {name}. Give the output_dir of a training run, a folder."
                )
        path = Path(folder) / SETTINGS_FILE
        known = {name: value for name, value in given.items() if value is not None}
        if path.exists():
            return replace(cls.of_file(path), **known)
        needed = ("protocol", "max_turns", "observation_characters")
        if missing := [f"--{name.replace('_', '-')}" for name in needed if name not in known]:
            raise ConfigError(
                f"'{path}' is not there, which later versions write. Say how the run's episodes were "
                "played, as in --protocol text --max-turns 3 --observation-characters 800; missing: "
                f"{', '.join(missing)}."
            )
        return cls(**known)

    @classmethod
    def of_file(cls, path: Path) -> RunSettings:
        """Read a run.json.

        Raises:
            ConfigError: if it cannot be read.
        """
        try:
            known = json.loads(path.read_bytes())
            return cls(**known | {"limits": Limits(**known["limits"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"'{path}' cannot be read: {error}. Move it away and say in options how the run was played."
            ) from None


def training_of(args: Any) -> dict[str, Any]:
    """Return the settings of `TRAINING` that a trainer's arguments have."""
    known = {name: value for name in TRAINING if (value := getattr(args, name, None)) is not None}
    return {name: getattr(value, "value", value) for name, value in known.items()}


def versions() -> dict[str, str]:
    """Return the versions of Python and of packages that may change results."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def few_shot_settings(args: Any) -> dict[str, Any]:
    """Return those of the settings that say which earlier episodes stand in a prompt, if any do."""
    if not args.few_shot:
        return {}
    memory = args.few_shot_memory
    return {
        "few_shot": args.few_shot,
        "few_shot_memory": None if memory is None else str(Path(memory).resolve()),
        "few_shot_by": args.few_shot_by,
        "few_shot_update": args.few_shot_update or None,
        "few_shot_seed": args.seed,
    }


def _opening(prompts: Iterable[list[dict[str, str]]]) -> Opening | None:
    """Return what precedes the question in all prompts, a lone system prompt as text; `None` if prompts
    differ.
    """
    found = {json.dumps(prompt[:-1]) for prompt in prompts}
    if len(found) != 1:
        return None
    messages = json.loads(found.pop())
    if len(messages) == 1 and messages[0]["role"] == "system":
        return messages[0]["content"]
    return messages


def quantization_of(config: Any) -> str | None:
    """Return how a model's weights were quantised, as bitsandbytes; `None` if they were not."""
    rounded = getattr(config, "quantization_config", None)
    if rounded is None:
        return None
    method = rounded.get("quant_method", "quantised") if isinstance(rounded, dict) else rounded.quant_method
    return str(getattr(method, "value", method))
