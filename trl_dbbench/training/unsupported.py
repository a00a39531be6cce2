"""Settings of TRL and transformers that rollouts cannot use, refused before anything is opened.

A setting silently without effect is worse than an error. So each field of TRL's `GRPOConfig` either works
here as TRL documents it, or is in `REFUSED_SETTINGS` (single values in `REFUSED_VALUES`).
`tests/training/test_unsupported.py` lists all fields, so that a new one of TRL's forces a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from peft import PeftConfig
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames
from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available
from trl import GRPOConfig

from trl_dbbench.engines.base import engine_of, in_process_vllm
from trl_dbbench.engines.transformers.models import check_adapter, check_model, class_of
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.adapters import check_is_model, check_switched_off
from trl_dbbench.utils.lookup import check_choice, unknown
from trl_dbbench.utils.settings import as_list


class Refusal(NamedTuple):
    """Reason for a refusal, and what to do instead."""

    why: str
    remedy: str = "Leave it out."


_CHOICE = Refusal(
    "has no effect on DB-Bench rollouts, which choose tokens by temperature, top_p and top_k alone"
)
_ENGINE = Refusal(
    "has no effect on DB-Bench rollouts, whose transformers engine has a cache and batches of its own",
    "Leave it out; set use_vllm: true to generate with vLLM.",
)
_CORRECTION = Refusal(
    "has no effect: TRL corrects only what its own vLLM integration has generated",
    "Leave it out; rollout_correction says how, bounded by vllm_importance_sampling_clip_max and _clip_min.",
)
_BATCHES = Refusal(
    "would divide the batches otherwise than into a group of num_generations samples for each prompt"
)

_FULL_EVAL = Refusal(
    "has no effect during the training, and an evaluation outside it casts the weights for good",
    "Leave it out; dtype says what the weights are loaded as.",
)

_SYNCED = Refusal("is a setting of sync_ref_model, which is refused")

REFUSED_SETTINGS: dict[str, Refusal] = {
    # how tokens are chosen
    "generation_kwargs": _CHOICE,
    "min_p": _CHOICE,
    "repetition_penalty": _CHOICE,
    "vllm_structured_outputs_regex": _CHOICE,
    # which engine generates them
    "cache_implementation": _ENGINE,
    "use_transformers_paged": _ENGINE,
    "use_transformers_continuous_batching": _ENGINE,
    "transformers_continuous_batching_config": _ENGINE,
    "vllm_importance_sampling_correction": _CORRECTION,
    "vllm_importance_sampling_mode": _CORRECTION,
    "vllm_importance_sampling_cap": _CORRECTION,  # checked before clip_max, to which TRL copies it
    # how long an episode is
    "max_tool_calling_iterations": Refusal(
        "has no effect on DB-Bench rollouts", "Set max_turns, the turns of an episode at most."
    ),
    # which rows come next
    "remove_unused_columns": Refusal(
        "would take away the column 'task', without which no episode can be played"
    ),
    "train_sampling_strategy": Refusal(
        "has no effect on the order of the tasks",
        "Set task_sampling, or shuffle_dataset: false for the order of the file.",
    ),
    "data_seed": Refusal("has no effect on the order of the tasks", "Set seed."),
    "dataloader_in_order": Refusal(
        "would train on some tasks twice and pass over others: each batch is read once for every step on it"
    ),
    "accelerator_config.split_batches": _BATCHES,
    "accelerator_config.dispatch_batches": _BATCHES,
    "accelerator_config.even_batches": Refusal(
        "would leave a rank without the last batch of an evaluation, for which the others wait"
    ),
    "dataloader_drop_last": Refusal("would leave held-out tasks out of an evaluation without a word"),
    # the loss
    "label_smoothing_factor": Refusal("has no effect: GRPO's loss has no labels to smooth"),
    "neftune_noise_alpha": Refusal(
        "would put noise into the embeddings that are trained with, and not into those of a rollout"
    ),
    # precision
    "bf16_full_eval": _FULL_EVAL,
    "fp16_full_eval": _FULL_EVAL,
    # counting, saving and resuming
    "sync_ref_model": Refusal(
        "moves the reference's weights, which checkpoints do not keep: a resumed run would start from others",
        "Leave it out; with stream, kl_reference: stage renews the reference at each stage, and is resumed.",
    ),
    "ref_model_mixup_alpha": _SYNCED,
    "ref_model_sync_steps": _SYNCED,
    "include_num_input_tokens_seen": Refusal(
        "has no effect: TRL counts all tokens of a rollout, whatever it says", "Read num_tokens in the log."
    ),
    "enable_jit_checkpoint": Refusal(
        "is not needed: SIGTERM always saves a checkpoint, at the end of the step and on all ranks together"
    ),
    "ignore_data_skip": Refusal(
        "would train a resumed run on tasks that it has trained on",
        "Leave it out; to skip them takes no time.",
    ),
}
"""Fields of `GRPOConfig` that must keep their defaults -> why."""

_IN_BACKWARD = Refusal(
    "updates weights in the backward pass: several times a step where a micro-batch is divided, and its "
    "state is not resumed",
    "Set another, such as adamw_torch.",
)

REFUSED_VALUES: dict[str, dict[str, Refusal]] = {
    "optim": {
        name.value: _IN_BACKWARD
        for name in OptimizerNames
        if "layerwise" in name.value or name.value in ("lomo", "adalomo")
    },
    "lr_scheduler_type": {
        "greedy": Refusal(
            "waits for a measure to fall, such as an evaluation's loss, which is 0 or the KL alone",
            "Set reduce_lr_on_plateau, which goes by the accuracy.",
        )
    },
}
"""Fields of `GRPOConfig` -> values that are refused -> why."""

VLLM_IN_PROCESS = (
    *("vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size"),
    *("vllm_enable_sleep_mode", "vllm_model_impl"),
)
"""Settings that only apply to vLLM in this process."""

_MASK = "TRL would then train on the observations too, as if the model had written them"
REFUSED_ARGUMENTS: dict[str, Refusal] = {
    "tools": Refusal(
        f"replaces the rollout's mask: {_MASK}",
        "The protocol brings its tools: set protocol: tools, or the dotted path of a protocol of your own.",
    ),
    "environment_factory": Refusal(
        f"replaces the rollout's mask: {_MASK}",
        "The environment is the database: give it as database=.",
    ),
    "rollout_func": Refusal(
        "replaces the rollout on the database",
        "To generate elsewhere, set engine to the dotted path of a backend of your own.",
    ),
}
"""Arguments of `GRPOTrainer` that are refused -> why."""


CHOICES_OF_TRL: dict[type, dict[str, tuple[object, ...]]] = {
    GRPOConfig: {
        "loss_type": ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
        "scale_rewards": ("group", "batch", "none", True, False),
        "importance_sampling_level": ("token", "sequence"),
        "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
        "vllm_mode": ("server", "colocate"),
        "vllm_model_impl": ("vllm", "transformers", "auto"),
    },
    TrainingArguments: {
        "optim": tuple(each.value for each in OptimizerNames),
        "lr_scheduler_type": tuple(each.value for each in SchedulerType),
        "eval_strategy": tuple(each.value for each in IntervalStrategy),
        "logging_strategy": tuple(each.value for each in IntervalStrategy),
        "save_strategy": tuple(each.value for each in SaveStrategy),
    },
}
"""Config class -> its settings with a fixed set of values. TRL checks some of them only in the update."""


BY_EVALUATIONS = {
    "load_best_model_at_end": True,
    "save_strategy": "best",
    "lr_scheduler_type": "reduce_lr_on_plateau",
}
"""Settings -> the value that requires evaluations during training."""


def check_values(args: Any, kind: type[TrainingArguments] | None = None) -> None:
    """Raise ConfigError for a value that TRL or transformers would refuse late or with an unclear error.

    `args` may be a parser's result for the config class `kind`.
    """
    for each in (kind or type(args)).__mro__:
        for name, allowed in CHOICES_OF_TRL.get(each, {}).items():
            check_choice(name, getattr(args, name), allowed)
    for name, value in BY_EVALUATIONS.items():
        if args.eval_strategy == "no" and getattr(args, name) == value:
            raise ConfigError(
                f"{name}: {str(value).lower()} goes by evaluations during the training, and eval_strategy is "
                "no. Set eval_strategy: steps, and eval_steps: the steps from one to the next."
            )
    if "trust_remote_code" in (getattr(args, "model_init_kwargs", None) or ()):
        raise ConfigError(
            "model_init_kwargs: trust_remote_code there would not count for the tokenizer and the config. "
            "Set trust_remote_code: true beside model_init_kwargs."
        )
    check_precision(args)
    check_trackers(args.report_to)


def wants_bf16(args: Any) -> bool:
    """Return whether settings ask for bfloat16, which is TRL's default."""
    asked = getattr(args, "bf16", None)
    return not getattr(args, "fp16", False) if asked is None else bool(asked)


def check_precision(args: Any) -> None:
    """Raise ConfigError if bf16 is asked for and no device supports it."""
    if not wants_bf16(args) or args.use_cpu or is_torch_bf16_gpu_available() or is_torch_xla_available():
        return
    if torch.accelerator.is_available():
        raise ConfigError("bf16: the device here does not compute in it. Set bf16: false and fp16: true.")
    raise ConfigError(
        "bf16: no GPU is seen here. Set use_cpu: true to train on the CPU; with a GPU, look at what "
        "nvidia-smi and torch.cuda.is_available() say."
    )


def use_new_names(args: Any) -> None:
    """Copy settings to their new names in transformers.

    transformers warns about the old names, which TRL still sets by default.
    """
    for name in ("gradient_checkpointing", "gradient_checkpointing_kwargs"):
        new = name.replace("gradient", "activation")
        if getattr(args, new, "absent") is None:
            setattr(args, new, getattr(args, name))


def check_settings(args: GRPOConfig) -> None:
    """Raise ConfigError for a setting that has no effect here, or a wrong effect."""
    for name, (why, remedy) in REFUSED_SETTINGS.items():
        value = attrgetter(name)(args)
        if value != default_of(name):
            raise ConfigError(f"{name}={value!r} {why}. {remedy}")
    for name, refused in REFUSED_VALUES.items():
        for value, (why, remedy) in refused.items():
            if getattr(args, name) == value:
                raise ConfigError(f"{name}: {value} {why}. {remedy}")
    for name in ("model_init_kwargs", "chat_template_kwargs"):
        if not isinstance(given := getattr(args, name) or {}, dict):
            raise ConfigError(f"{name} must be names with values, as in {{name: value}}; given is {given!r}.")
    kwargs = args.gradient_checkpointing_kwargs or {}
    if lost := [name for name in ("every_n_layers", "offload") if name in kwargs]:
        raise ConfigError(
            f"activation_checkpointing_kwargs: {lost[0]} would not outlast the first rollout, for which TRL "
            "switches checkpointing off and on again. Leave it out."
        )
    for name in ("scale_rewards", "multi_objective_aggregation"):
        if args.advantage != "grpo" and getattr(args, name) != default_of(name):
            raise ConfigError(
                f"{name} has no effect on advantage: {args.advantage}, which scales rewards in its own way; "
                "leave it out, or take advantage: grpo."
            )
    bounds = (args.vllm_importance_sampling_clip_max, args.vllm_importance_sampling_clip_min)
    if args.rollout_correction in ("token_tis", "sequence_tis") and bounds == (None, None):
        raise ConfigError(
            f"rollout_correction: {args.rollout_correction} needs a bound, and "
            "vllm_importance_sampling_clip_max and vllm_importance_sampling_clip_min are empty; set one of "
            "them, or leave both out for 3.0."
        )
    check_vllm(args)


def check_vllm(args: Any) -> None:
    """Raise ConfigError for vLLM's settings without vLLM, and for settings without effect on vLLM."""
    if args.use_vllm and engine_of(args) != "vllm":
        raise ConfigError(
            f"use_vllm: true and engine: {args.engine} name two engines; leave one of them out."
        )
    in_process = in_process_vllm(args)
    for name in VLLM_IN_PROCESS:
        if not in_process and getattr(args, name) != default_of(name):
            raise ConfigError(
                f"{name} is a setting of vLLM in this process, which does not generate here. Set use_vllm: "
                "true with vllm_mode: colocate; or give it to `vllm serve`, whose address goes to "
                "vllm_server_urls."
            )
    if args.max_concurrent_episodes is not None and engine_of(args) == "vllm":
        raise ConfigError(
            f"max_concurrent_episodes={args.max_concurrent_episodes} has no effect on vLLM, which plays what "
            "fits into its own cache. Leave it out; `vllm serve --max-num-seqs` bounds it."
        )


TRACKERS = {
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "mlflow": ("mlflow",),
}
"""Values of `report_to` that this package has extras for -> modules, one of which must be installed."""


def check_trackers(report_to: str | list[str] | None) -> None:
    """Raise ConfigError for a tracker that is unknown or not installed, before anything is opened."""
    for name in as_list(report_to or []):
        if name not in (*INTEGRATION_TO_CALLBACK, "all", "none"):
            said = unknown("report_to", name, ["none", *TRACKERS])
            raise ConfigError(f"{said}. What transformers knows is allowed too.")
        if name in TRACKERS and not any(map(find_spec, TRACKERS[name])):
            raise ConfigError(
                f"report_to: {name} needs a package that is not there: pip install 'trl-dbbench[{name}]'. "
                "Without a tracker (report_to: none) all metrics are in metrics.jsonl of output_dir."
            )


@contextmanager
def refused_by_trl() -> Iterator[None]:
    """Turn TRL's ValueError for a setting, such as three weights for two rewards, into a ConfigError."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


def default_of(setting: str) -> Any:
    """Return TRL's default of a setting, which those in `REFUSED_SETTINGS` must keep."""
    owner, _, name = setting.rpartition(".")
    kind = AcceleratorConfig if owner else GRPOConfig
    return kind.__dataclass_fields__[name].default


def check_positions(model: PreTrainedModel) -> None:
    """Raise ConfigError for a model with a table of learned positions, such as GPT-2.

    TRL pads prompts on the left and passes no positions, so such a model would see shifted ones.
    """
    if any(name.rpartition(".")[2] == "wpe" for name, _ in model.named_modules()):
        raise ConfigError(
            f"'{model.name_or_path}' has a table of learned positions (GPT-2, StarCoder), and TRL pads a "
            "batch's prompts on the left, so it would be trained at shifted positions. Take a model with "
            "rotary positions, such as Qwen's or Llama's."
        )


def check_arguments(
    model: str | PreTrainedModel,
    args: Any,
    train_dataset: Any,
    eval_dataset: Any,
    peft_config: PeftConfig | None,
    others: Mapping[str, Any],
) -> None:
    """Raise ConfigError for an argument that the trainer does not support, before it loads a model.

    `others` are the arguments passed on to TRL's trainer.
    """
    if args.n_gpu > 1:
        raise ConfigError(
            f"this process sees {args.n_gpu} GPUs, and a rollout needs the whole model on one. Start a "
            "process for each GPU by accelerate launch, or set CUDA_VISIBLE_DEVICES=0."
        )
    for name, (why, remedy) in REFUSED_ARGUMENTS.items():
        if others.get(name):
            raise ConfigError(f"{name}= cannot be given to DBBenchGRPOTrainer: it {why}. {remedy}")
    for name, dataset in (("train_dataset", train_dataset), ("eval_dataset", eval_dataset)):
        if not isinstance(dataset, Dataset) and (dataset is not None or name == "train_dataset"):
            raise ConfigError(
                f"{name} is a {type(dataset).__name__}; allowed is one datasets.Dataset, whose rows can be "
                "counted and read in any order. Make it with trl_dbbench.to_dataset(load_tasks(...)), and "
                "evaluate on several one after the other with trainer.evaluate."
            )
    for adapter in (peft_config, *getattr(model, "peft_config", {}).values()):
        check_adapter(adapter)
        if adapter is not None:
            check_switched_off(adapter, args)
    if isinstance(model, str):
        check_is_model(model)
    adapted = peft_config or args.adapter_name_or_path or getattr(model, "peft_config", None)
    if args.cast_lm_head_to_fp32 and adapted and _is_tied(model, args):
        raise ConfigError(
            "cast_lm_head_to_fp32: TRL cannot cast the output layer of a model with an adapter if it shares "
            "the input embeddings' weights, as this model's does. Leave it out."
        )
    if engine_of(args) == "transformers":
        found = _class_of(model, args) if isinstance(model, str) else model
        if found is not None:
            check_model(found)


def _class_of(name_or_path: str, args: GRPOConfig) -> type[PreTrainedModel] | None:
    """Return the class that TRL will load this model as; `None` if only loading it can tell."""
    config = _config_of(name_or_path, args)
    with suppress(OSError, ValueError):  # loading it will fail too, with a better error
        return class_of(config) if config is not None else None
    return None


def _config_of(name_or_path: str, args: GRPOConfig) -> PretrainedConfig | None:
    """Return the config of a model; `None` if it cannot be read: loading will fail, with a better error."""
    kwargs = args.model_init_kwargs if isinstance(args.model_init_kwargs, dict) else {}
    known = {"trust_remote_code": args.trust_remote_code, "revision": kwargs.get("revision") or "main"}
    with suppress(OSError, ValueError):
        return AutoConfig.from_pretrained(name_or_path, **known)
    return None


def _is_tied(model: str | PreTrainedModel, args: GRPOConfig) -> bool:
    config = _config_of(model, args) if isinstance(model, str) else model.config
    return getattr(config, "tie_word_embeddings", False)
