"""The longest forward and backward pass that fits into memory, where `max_tokens_per_forward` is left out."""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from torch.distributed.tensor import DTensor

from trl_dbbench.training.memory import Batch, Load, Sizes, tokens_within, update_budget
from trl_dbbench.utils.memory import free_memory


def fitting(trainer: Any) -> int | None:
    """Return the tokens of a pass that fits into the memory that is free; `None` if that is not known."""
    args, model, device = trainer.args, trainer.model, trainer.accelerator.device
    weights = [*model.parameters()]
    free = free_memory(device)
    if free is not None:
        # gradients and AdamW's two moments are still to come, unless a checkpoint has brought the moments
        to_come = 3 * sum(map(_bytes, filter(lambda weight: weight.requires_grad, weights)))
        free = max(0, free - max(0, to_come - _moments(trainer.optimizer)))
    on_cpu = device.type == "cpu"
    budget = update_budget(free, sum(map(_bytes, weights)), on_cpu)
    if budget is None:
        return None
    value_bytes = model.get_input_embeddings().weight.element_size()
    load = Load(
        value_bytes=value_bytes,
        computed_bytes=2 if args.bf16 or args.fp16 else value_bytes,
        lora=isinstance(model, PeftModel),
        bits=4 if getattr(model, "is_quantized", False) else None,
        update=Batch(shared=trainer.shares_prompts(model)),
        checkpointing=bool(getattr(args, "activation_checkpointing", args.gradient_checkpointing)),
        on_cpu=on_cpu,
    )
    try:
        return tokens_within(budget, Sizes.counted(model), load)
    except AttributeError:  # a config without the sizes of a transformer
        return None


def _moments(optimizer: Any) -> int:
    """Return the bytes that the optimizer keeps already."""
    states = [] if optimizer is None else optimizer.state.values()
    return sum(_bytes(each) for state in states for each in state.values() if isinstance(each, torch.Tensor))


def _bytes(weight: torch.Tensor) -> int:
    """Return what a weight takes on this rank."""
    own = weight.to_local() if isinstance(weight, DTensor) else weight
    return own.numel() * own.element_size()
