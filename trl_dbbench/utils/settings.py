"""Declaration of settings, and the ranges of numeric ones.

A name has the same range everywhere: in a recipe, a config made in Python, and a command. A number out of
range is an error before anything is opened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import field
from numbers import Integral, Real
from typing import Any, NamedTuple

from trl_dbbench.errors import ConfigError


def option(default: Any, help: str, choices: Iterable[str] = ()) -> Any:
    """Return a dataclass field of a config, described for `--help` and docs/reference.md.

    A callable `default` is called to make the value.
    """
    metadata = {"help": help} | ({"choices": list(choices)} if choices else {})
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


class Range(NamedTuple):
    """Range of allowed numbers: in words, for error messages, and as a predicate."""

    words: str
    holds: Callable[[float], bool]


AT_LEAST_1 = Range("at least 1", lambda value: value >= 1)
AT_LEAST_0 = Range("0 or more", lambda value: value >= 0)
ABOVE_0 = Range("above 0", lambda value: value > 0)
ABOVE_0_TO_1 = Range("above 0 and at most 1", lambda value: 0 < value <= 1)
SHARE = Range("a share from 0 to 1", lambda value: 0 <= value <= 1)
BELOW_1 = Range("a share from 0 on and below 1", lambda value: 0 <= value < 1)

ALARMS = ("invalid_actions", "answers_without_query", "groups_without_spread", "errors", "void")
RANGES: dict[str, Range] = {
    **dict.fromkeys(
        (
            # batches
            *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
            *("steps_per_generation", "generation_batch_size", "num_generations", "num_generations_eval"),
            *("num_iterations", "max_tokens_per_forward", "max_concurrent_episodes"),
            # episodes
            *("max_turns", "max_turn_tokens", "max_completion_length", "compaction_tokens", "max_length"),
            # tasks
            *("min_tasks_per_skill", "dynamic_sampling_rounds", "stage_steps", "stage_tasks", "replay_size"),
            *("greedy_eval_every", "alarm_window", "n", "max_per_task", "continuations", "pairs_per_task"),
            # models
            *("vllm_max_model_length", "vllm_tensor_parallel_size", "lora_r", "lora_alpha"),
            "advantage_args.continuations",
        ),
        AT_LEAST_1,
    ),
    **dict.fromkeys(
        (
            *("learning_rate", "weight_decay", "adam_epsilon", "beta", "epsilon", "epsilon_high", "top_k"),
            *("few_shot", "observation_characters", "alarm_entropy", "value_clip", "database_patience"),
            *("vllm_server_timeout", "vllm_importance_sampling_clip_min", "dataloader_num_workers"),
            "advantage_args.omega",
        ),
        AT_LEAST_0,
    ),
    **dict.fromkeys(
        (
            *("temperature", "delta", "num_train_epochs", "harness_seconds", "critic_learning_rate"),
            *("value_loss_weight", "vllm_importance_sampling_clip_max", "sapo_temperature_neg"),
            *("sapo_temperature_pos", "advantage_args.beta", "advantage_args.learning_rate"),
        ),
        ABOVE_0,
    ),
    **dict.fromkeys(
        ("top_p", "top_entropy_quantile", "stage_accuracy", "vllm_gpu_memory_utilization"), ABOVE_0_TO_1
    ),
    **dict.fromkeys((f"alarm_{name}" for name in (*ALARMS, "distinct_sql")), SHARE),
    **dict.fromkeys(("held_out_share", "mistakes", "advantage_args.gamma", "advantage_args.lam"), SHARE),
    **dict.fromkeys(("replay", "adam_beta1", "adam_beta2", "lora_dropout"), BELOW_1),
    "max_steps": Range("at least 1, or -1 to go by num_train_epochs", lambda value: value == -1 or value > 0),
    "rollouts_ahead": Range("0, 1 or 2", lambda value: value in (0, 1, 2)),
    "seed": Range("from 0 to 4294967295", lambda value: 0 <= value < 2**32),
}

ADVICE = {
    **dict.fromkeys((f"alarm_{name}" for name in ALARMS), "1 disables the alarm."),
    **dict.fromkeys(("alarm_distinct_sql", "alarm_entropy"), "0 disables the alarm."),
    **dict.fromkeys(
        ("max_tokens_per_forward", "max_concurrent_episodes", "vllm_max_model_length"),
        "Leave it out for what fits into the memory that is free.",
    ),
    "beta": "Below, a KL would be paid for.",
    "compaction_tokens": "Leave it out to show all turns.",
    "dynamic_sampling_rounds": "To play no further prompts, leave dynamic_sampling out.",
    "temperature": "Training and samples need episodes that differ.",
    "vllm_importance_sampling_clip_max": "No token would be trained, or against its advantage.",
}
"""Setting -> advice at the end of its error message."""

ENDLESS = (
    *("max_grad_norm", "delta", "epsilon_high", "database_patience", "harness_seconds"),
    *("vllm_server_timeout", "vllm_importance_sampling_clip_max", "off_policy_mask_threshold"),
)
"""Settings that may be infinite, which means no bound."""


def written_types(kind: type) -> dict[str, str]:
    """Return the types of a class's fields as written in the source, such as `int | None`.

    transformers' parser removes the None from `Field.type`.
    """
    return {
        name: str(of)
        for base in reversed(kind.__mro__)
        for name, of in vars(base).get("__annotations__", {}).items()
    }


def only_type(written: str) -> type | None:
    """Return `int`, `float` or `str` if a setting takes only such values, or lists of them."""
    words = {*re.findall(r"\w+", written)} - {"None", "Optional", "list", "class", "typing"}
    if words == {"str"}:
        return str
    return int if words == {"int"} else float if words and words <= {"int", "float"} else None


def as_list(names: str | list[str]) -> list[str]:
    """Return the names as a list; a YAML file may give a single one."""
    return [names] if isinstance(names, str) else names


def check_numbers(settings: Any, kind: type) -> None:
    """Raise ConfigError for a numeric setting of the dataclass `kind` that `check_number` refuses."""
    for name, written in written_types(kind).items():
        if (only := only_type(written)) in (int, float):
            given = getattr(settings, name, None)  # a parser's result lacks fields with init=False
            for value in given if isinstance(given, list) and "list" in written else [given]:
                if value is not None:
                    check_number(name, value, whole=only is int)


def check_number(name: str, value: Any, *, whole: bool = False) -> None:
    """Raise ConfigError for a value that is not a number or is outside the range of the setting `name`."""
    kind: Any = Integral if whole else Real
    if isinstance(value, bool) or not isinstance(value, kind) or value != value:
        raise ConfigError(f"{name} must be a {'whole ' if whole else ''}number, is {value!r}.")
    if abs(value) == math.inf and name not in ENDLESS:
        raise ConfigError(f"{name} must be a finite number, is {value}.")
    if name in RANGES and not RANGES[name].holds(value):
        advice = f" {ADVICE[name]}" if name in ADVICE else ""
        raise ConfigError(f"{name} must be {RANGES[name].words}, is {value}.{advice}")
