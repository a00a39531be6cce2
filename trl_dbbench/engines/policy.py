"""The weights that a backend serves, and the settings it needs to serve them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from peft import PeftConfig, PeftModel
from torch import nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from trl.models import unwrap_model_for_generation

from trl_dbbench.episode.types import Sampling

if TYPE_CHECKING:
    from trl import GRPOTrainer


class Precision(NamedTuple):
    """Data type that a model computes in, such as bfloat16, and the quantization method of its weights."""

    dtype: str
    quantization: str | None = None

    def __str__(self) -> str:
        weights = f"weights quantized by {self.quantization}" if self.quantization else "unquantized weights"
        return f"{self.dtype} on {weights}"

    def agrees_with(self, other: Precision) -> bool:
        """Return whether two precisions agree. vLLM has its own names, such as awq_marlin for awq."""
        short, long = sorted((self.quantization or "", other.quantization or ""), key=len)
        return self.dtype == other.dtype and short in long and bool(short) == bool(long)


AUTO = Precision("auto")
"""The precision that the model's own config names."""


def quantization_of(config: Any) -> dict[str, Any] | None:
    """Return a model's `quantization_config` as in config.json; `None` if it is not quantized."""
    rounded = getattr(config, "quantization_config", None)
    if rounded is None or isinstance(rounded, dict):
        return rounded
    found = rounded.to_dict()
    method = found["quant_method"]
    return found | {"quant_method": getattr(method, "value", method)}


NOT_OF_THE_MODEL = ("dtype", "torch_dtype", "attn_implementation", "quantization_config", "trust_remote_code")
"""Arguments of `from_pretrained` that are also config attributes but do not change the model itself."""


def config_changes(given: Mapping[str, Any] | None, config: Any) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that change a model's config, such as `rope_parameters`."""
    kept = ((name, value) for name, value in (given or {}).items() if name not in NOT_OF_THE_MODEL)
    return {name: value for name, value in kept if hasattr(config, name)}


INTO_THE_BASE = ("pissa", "olora", "corda", "loftq")
"""Prefixes of `init_lora_weights` values that move a part of the base weights into the adapter."""


def changes_base(config: PeftConfig) -> str | None:
    """Return the setting by which an adapter changes the base weights, so that switching the adapter off does
    not restore the base model; `None` if there is none."""
    begun, bias = getattr(config, "init_lora_weights", None), getattr(config, "bias", "none")
    if isinstance(begun, str) and begun.lower().startswith(INTO_THE_BASE):
        return f"init_lora_weights: {begun}"
    return None if bias == "none" else f"bias: {bias}"


def keep_one_hook(model: nn.Module) -> None:
    """Keep transformers from adding another hook to the embeddings whenever checkpointing is switched on.

    TRL switches it off and on around each rollout and each scoring pass, and every hook is called at every
    token.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    add = base.enable_input_require_grads

    def add_once() -> None:
        base.disable_input_require_grads()
        add()

    base.enable_input_require_grads = add_once


def longrope_context(config: Any) -> int | None:
    """Return the length up to which longrope (Phi-3, Phi-4-mini) uses its short factors, in tokens, if any.

    A longer forward pass uses the long factors for all its positions.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("original_max_position_embeddings") if rope.get("rope_type") == "longrope" else None


def count_positions_by_row(model: nn.Module) -> None:
    """Count positions from each row's first token, if the largest position decides on the rope's factors.

    TRL pads prompts on the left, so a batch can be wider than its longest row, and counts columns.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    rope = getattr(base.config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") in ("longrope", "dynamic"):
        base.base_model.register_forward_pre_hook(_with_positions_of_rows, with_kwargs=True)


def _with_positions_of_rows(
    module: nn.Module, args: Any, given: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    positions: Any = given.get("position_ids")
    mask = given.get("attention_mask")
    if (layout := given.get("shared_prompts")) is not None:
        positions = positions.clone()
        for part in layout.groups:
            positions[:, part.start : part.end] -= positions[0, part.start].item()
    elif positions is None and mask is not None and mask.dim() == 2:
        positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
    return args, {**given, "position_ids": positions}


def autocast_of(accelerator: Accelerator) -> str | None:
    """Return the autocast dtype of a trainer's forward passes; `None` if they compute in the weights' own."""
    return {"bf16": "bfloat16", "fp16": "float16"}.get(accelerator.mixed_precision)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Keep a model in eval mode, without dropout, inside the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


class Policy:
    """A model in this process, with or without an adapter, whose weights do not change.

    It computes in `precision`, by default the dtype of its weights.
    """

    version: Hashable = None
    """Value that differs whenever the weights have changed."""
    any_rank: Callable[[bool], bool] | None = None
    """Function that tells all ranks whether any of them passed `True`; `None` unless a forward pass is a
    collective operation."""
    config_changes: Mapping[str, Any] | None = None
    """Changes that a run made to its model's config; see the function `config_changes`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        precision: torch.dtype | None = None,
    ):
        self.model, self.tokenizer, self.precision = model, tokenizer, precision

    @property
    def name_or_path(self) -> str:
        return self.model.config.name_or_path

    @property
    def computes_in(self) -> Precision:
        """The precision that an engine needs to generate as this policy."""
        dtype = str(self.precision or self.model.dtype).removeprefix("torch.")
        return Precision(dtype, (quantization_of(self.model.config) or {}).get("quant_method"))

    @property
    def eos_token_ids(self) -> list[int]:
        return eos_token_ids(self.model.generation_config, self.tokenizer)

    @property
    def pad_token_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.eos_token_ids[0] if pad is None else pad

    @property
    def context(self) -> int | None:
        """Context length in tokens, prompt and completion together; `None` if the config does not say.

        With longrope it is `longrope_context`: a longer pass would disagree with what was computed before.
        """
        config = self.model.config.get_text_config()
        return self.longrope_context or getattr(config, "max_position_embeddings", None)

    @property
    def longrope_context(self) -> int | None:
        return longrope_context(self.model.config.get_text_config())

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def ready_to_generate(self) -> AbstractContextManager[PreTrainedModel]:
        """Return a context manager that yields the model, with all weights here that its forward pass does
        not gather itself."""
        return nullcontext(self.model)

    def autocast(self) -> AbstractContextManager:
        """Return the autocast context that the model computes in."""
        return torch.autocast(self.device.type, self.precision) if self.precision else nullcontext()


@dataclass(eq=False)
class ServedPolicy:
    """Weights that vLLM has already or loads itself; this process holds the tokenizer and settings only.

    Args:
        name_or_path: the model's folder or hub id.
        adapter: a LoRA adapter's folder, which the servers see under the same path, or its hub id. With vLLM
            in process, it may be set to another of `adapters`, or to `None`, between rollouts.
        adapters: the adapters that `adapter` may be set to besides its own.
        computes_in: precision of the training that made the adapter; "auto" is what the model's config says.
        revision: the model's, for vLLM in process.
        config_changes: changes to the model's config. vLLM in process applies them; servers must be started
            with them.
    """

    name_or_path: str
    tokenizer: PreTrainedTokenizerBase
    adapter: str | Path | None = None
    _: KW_ONLY
    adapters: Sequence[str | Path] = ()
    computes_in: Precision = AUTO
    revision: str | None = None
    config_changes: Mapping[str, Any] | None = None
    context: ClassVar[int | None] = None  # vLLM reports it

    @property
    def longrope_context(self) -> int | None:
        try:
            config = AutoConfig.from_pretrained(self.name_or_path, revision=self.revision or "main")
        except (OSError, ValueError):  # the model may exist on the servers only
            return None
        return longrope_context(config.get_text_config())

    @property
    def eos_token_ids(self) -> list[int]:
        try:
            declared = GenerationConfig.from_pretrained(self.name_or_path, revision=self.revision or "main")
        except OSError:  # not every model has one
            declared = None
        return eos_token_ids(declared, self.tokenizer)


class TrainedPolicy(Policy):
    """The model of a TRL trainer, which may be sharded over ranks and changes with every update."""

    def __init__(self, trainer: GRPOTrainer):
        autocast = autocast_of(trainer.accelerator)
        super().__init__(trainer.model, trainer._tokenizer, getattr(torch, autocast) if autocast else None)
        self.trainer = trainer
        self.sampling = Sampling(trainer.temperature, trainer.top_p, trainer.top_k or 0)
        self.any_rank = trainer._any_rank if forward_is_collective(trainer.accelerator) else None
        self.config_changes = config_changes(trainer.args.model_init_kwargs, self.model.config)
        self.revision: str | None = (trainer.args.model_init_kwargs or {}).get("revision")

    @property
    def version(self) -> Hashable:  # type: ignore[override]
        # the tensors' version counters show changes within a step, as when the best checkpoint is loaded
        weights = (weight for weight in self.model.parameters() if weight.requires_grad)
        return self.trainer.state.global_step, tuple(weight._version for weight in weights)

    @property
    def eos_token_ids(self) -> list[int]:
        return self.trainer.eos_token_ids

    @property
    def device(self) -> torch.device:
        return self.trainer.accelerator.device  # offloaded parameters are elsewhere

    @contextmanager
    def ready_to_generate(self) -> Iterator[PreTrainedModel]:
        trainer = self.trainer
        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
                gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
            ) as model,
            trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
        ):
            yield model

    def autocast(self) -> AbstractContextManager:
        return self.trainer.accelerator.autocast()

    @property
    def adapter_type(self) -> str | None:
        """PEFT's type of the adapter being trained; `None` if the full weights are."""
        config = getattr(self.model, "active_peft_config", None)
        return None if config is None else config.peft_type.value

    @property
    def sharded(self) -> bool:
        """Return whether the weights are sharded, so that no rank has all of them."""
        return self.trainer._dist.is_fsdp or self.trainer._dist.is_zero3

    def save_adapter(self, folder: Path) -> Path:
        """Save the adapter; return `folder` or the subfolder that holds it."""
        model = self.trainer.accelerator.unwrap_model(self.trainer.model_wrapped)
        name = model.active_adapter
        # the default, "auto", asks the hub each time, and vLLM takes no embeddings from an adapter
        model.save_pretrained(folder, selected_adapters=[name], save_embedding_layers=False)
        return folder if name == "default" else folder / name


def forward_is_collective(accelerator: Accelerator) -> bool:
    """Return whether every forward pass gathers weights from all ranks, as under FSDP and ZeRO-3."""
    plugin = accelerator.state.deepspeed_plugin
    zero3 = plugin is not None and plugin.zero_stage == 3
    return accelerator.num_processes > 1 and (zero3 or accelerator.distributed_type == DistributedType.FSDP)


def eos_token_ids(settings: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return every id that ends a turn: the tokenizer's eos token and those of the generation config."""
    declared = settings.eos_token_id if settings else None
    ids = [tokenizer.eos_token_id, *([declared] if isinstance(declared, int) else declared or [])]
    return sorted({id for id in ids if id is not None})
