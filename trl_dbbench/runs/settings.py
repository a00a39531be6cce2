"""`run.json`: the settings with which a run's episodes were played and rewarded.

```
run.json        this
episodes.jsonl  every episode, one a line (`records.EpisodeRecord`)
tasks.jsonl     their tasks, each once
```
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trl_dbbench.database import Limits
from trl_dbbench.database.dialect import SQLITE
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.types import Rules
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.records import EPISODES_FILE, TASKS_FILE
from trl_dbbench.utils.files import found_from_everywhere, write_json

SETTINGS_FILE = "run.json"
TRAINING = (
    *("learning_rate", "lr_scheduler_type", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("world_size", "num_generations", "num_iterations", "loss_type", "beta", "epsilon", "scale_rewards"),
    *("importance_sampling_level", "num_train_epochs", "max_steps", "seed"),
)
"""Recorded training settings, named as in a recipe's YAML; `world_size` is the number of devices."""

CHANGED = (
    *("optim", "weight_decay", "max_grad_norm", "warmup_steps", "warmup_ratio", "steps_per_generation"),
    *("epsilon_high", "delta", "entropy_coef", "top_entropy_quantile", "off_policy_mask_threshold"),
    *("mask_truncated_completions", "reward_weights", "kl_in_reward", "kl_reference", "rollout_correction"),
    *("dynamic_sampling", "dynamic_sampling_rounds", "task_sampling", "sampled_skills"),
    *("greedy_eval", "greedy_eval_every", "load_best_model_at_end", "metric_for_best_model"),
    *("adapter_name_or_path", "reference_model_name_or_path", "min_tasks_per_skill", "single_skill"),
    *("rollouts_ahead", "critic", "critic_learning_rate", "value_clip", "value_loss_weight"),
)
"""Training settings that are recorded only if they are not the defaults."""

OF_LORA = (
    *("r", "lora_alpha", "lora_dropout", "target_modules", "target_parameters", "modules_to_save"),
    *("use_dora", "use_rslora"),
)
"""Recorded settings of an adapter, named as in PEFT."""

OF_STREAMS = (
    *("stream", "stream_order", "stage_steps", "stage_tasks", "stage_accuracy", "kl_reference"),
    *("replay", "replay_size", "replay_by", "stage_adapters"),
)
"""Training settings that are recorded only if the run has a stream."""

PACKAGES = ("trl-dbbench", "trl", "transformers", "peft", "accelerate", "torch", "sqlglot")


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run's episodes and rewards.

    Args:
        observation_characters: length that observations were cut to; 0 if they were not cut.
        max_turns, max_completion_length, context, max_turn_tokens, compaction_tokens: see `Rules`.
        rewards: reward name -> its `rewards.registry.describe_reward`.
        grader: the grader that judged the answers of all tasks, if one was set.
        few_shot: earlier episodes per prompt, drawn by `few_shot_by` with `few_shot_seed` from
            `few_shot_memory`; with `few_shot_update` the run's own episodes joined it. `None` without any.
        model: the trained model, or an adapter's base model: a folder, or a hub id with `model_revision`. It
            and the four fields after it are `None` in files of early versions.
        model_config: what the run changed in the config of its base model, such as `rope_parameters`.
        dtype: dtype of the weights; `autocast` is the dtype of the computation, if another, and `quantized`
            the `quantization_config` of quantised weights.
        system_prompt: start of every prompt; a list holds all messages before the question.
        schema: replaces the `schema` of each task, if the recipe sets one.
        chat_template, chat_template_kwargs, history: see `ChatFormat`.
        harness, harness_seconds: the program that plays the episodes; see `harness.player`.
        training, sampling, task_files, versions: for information only; `task_files` has sizes and SHA-256.
        id: the run's id, as in its checkpoints; `None` without training and in early versions.
        best_step: number of updates of the weights in the folder, if `load_best_model_at_end` selected them.
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
    schema: str | None = None
    chat_template: str | dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    harness: str | None = None
    harness_seconds: float | None = None
    history: str = "kept"
    compaction_tokens: int | None = None
    compaction: str | None = None
    max_turn_tokens: int | None = None
    quantized: dict[str, Any] | None = None
    model_config: dict[str, Any] | None = None
    training: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, float] = field(default_factory=dict)
    task_files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    id: str | None = None
    best_step: int | None = None

    @classmethod
    def of(cls, trainer: Any, rewards: dict[str, dict[str, Any] | None]) -> RunSettings:
        """Return the settings of a `DBBenchGRPOTrainer`, with the `describe_reward` of each reward."""
        from datasets import Dataset  # slow to import, and not needed to read a run.json

        from trl_dbbench.engines.policy import autocast_of, config_changes, quantization_of  # import torch
        from trl_dbbench.episode.dataset import rows_to_check

        args, player, model = trainer.args, trainer.player, trainer.model
        name = model.config.name_or_path
        task_files = {
            name: dataset.info.download_checksums or {}
            for name, dataset in (("train", trainer.train_dataset), ("eval", trainer.eval_dataset))
            if isinstance(dataset, Dataset)
        }
        return cls(
            protocol=args.protocol,
            observation_characters=args.observation_characters,
            **asdict(player.rules) | ({} if player.rules.compaction_tokens else {"compaction": None}),
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
            autocast=autocast_of(trainer.accelerator),
            system_prompt=opening_of(rows_to_check(trainer.train_dataset)["prompt"]),
            schema=next((of.get("schema") for of in task_files.get("train", {}).values()), None),
            chat_template=player.chat.chat_template,
            chat_template_kwargs=args.chat_template_kwargs or {},
            harness=args.harness,
            harness_seconds=args.harness_seconds if args.harness else None,
            history=args.history,
            quantized=quantization_of(model.config),
            model_config=config_changes(args.model_init_kwargs, model.config) or None,
            training=training_of(args, model),
            sampling={"temperature": args.temperature, "top_p": args.top_p, "top_k": args.top_k or 0},
            task_files=task_files,
            versions=versions(),
        )

    @property
    def rules(self) -> Rules:
        """The limits of an episode, without the model's context."""
        names = ("max_turn_tokens", "max_completion_length", "compaction_tokens", "compaction")
        known = {name: limit for name in names if (limit := getattr(self, name)) is not None}
        return Rules(self.max_turns, **known)

    @property
    def rewrites(self) -> bool:
        """Return whether an episode may consist of several token sequences."""
        return bool(self.harness or self.history != "kept" or self.compaction_tokens)

    @property
    def database_spec(self) -> str:
        """The argument of `open_database` for a database like the run's."""
        return "sqlite" if self.dialect == SQLITE.name else "auto"

    def write(self, folder: Path) -> None:
        write_json(folder / SETTINGS_FILE, asdict(self))

    @classmethod
    def read(cls, folder: str | Path, **given: Any) -> RunSettings:
        """Read the settings of a run's folder; values in `given` override them, unless `None`. Raise
        ConfigError if it is not a run's folder, or required settings are missing."""
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
        """Read a run.json; raise ConfigError if it cannot be read."""
        try:
            known = json.loads(path.read_bytes())
            return cls(**known | {"limits": Limits(**known["limits"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"'{path}' cannot be read: {error}. Move it away and say in options how the run was played."
            ) from None


def training_of(args: Any, model: Any) -> dict[str, Any]:
    """Return the training settings that affect what is learned, with the adapter's under `lora`."""
    names = TRAINING + (OF_STREAMS if getattr(args, "stream", None) else ())
    defaults = {each.name: each.default for each in fields(args)}
    names += tuple(name for name in CHANGED if getattr(args, name, None) != defaults.get(name))
    known = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    found = {name: getattr(value, "value", value) for name, value in known.items()}
    adapter = getattr(model, "peft_config", {}).get("default")
    if adapter is not None:
        own = {name: getattr(adapter, name, None) for name in OF_LORA}
        found["lora"] = {
            name: sorted(value) if isinstance(value, set) else value for name, value in own.items() if value
        }
    return found


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a run's results."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def few_shot_settings(args: Any) -> dict[str, Any]:
    """Return the recorded few-shot settings; empty without few-shot."""
    if not args.few_shot:
        return {}
    return {
        "few_shot": args.few_shot,
        "few_shot_memory": args.few_shot_memory and found_from_everywhere(args.few_shot_memory),
        "few_shot_by": args.few_shot_by,
        "few_shot_update": args.few_shot_update or None,
        "few_shot_seed": args.seed,
    }


def opening_of(prompts: Iterable[list[dict[str, str]]]) -> Opening | None:
    """Return the messages before the question if all prompts share them; a lone system prompt as text."""
    found = {json.dumps(prompt[:-1]) for prompt in prompts}
    if len(found) != 1:
        return None
    messages = json.loads(found.pop())
    if len(messages) == 1 and messages[0]["role"] == "system":
        return messages[0]["content"]
    return messages
