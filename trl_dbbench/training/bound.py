"""The longest forward and backward pass that fits into memory, where `max_tokens_per_forward` is left out."""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from torch.distributed.tensor import DTensor

from trl_dbbench.training.memory import Batch, Load, Sizes, optimizer_bytes, tokens_within, update_budget
from trl_dbbench.utils.memory import free_memory


def fitting(trainer: Any) -> int | None:
    """Return the tokens of a pass that fits into the memory that is free; `None` if that is not known."""
    args, model, device = trainer.args, trainer.model, trainer.accelerator.device
    critic = getattr(trainer, "critic", None)
    weights = [*model.parameters(), *(() if critic is None else critic.parameters())]
    free = free_memory(device)
    if free is not None:
        # gradients and the optimizer's moments are still to come, unless a checkpoint has brought the moments
        trained = [weight for weight in weights if weight.requires_grad]
        kept = optimizer_bytes(getattr(args.optim, "value", args.optim))
        moments = sum(2 * _bytes(each) if kept is None else kept * _numbers(each) for each in trained)
        to_come = sum(map(_bytes, trained)) + max(0, moments - _moments(trainer.optimizer))
        free = max(0, free - to_come)
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
        models=2 if getattr(critic, "trunk", None) is not None else 1,
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
    return _numbers(weight) * weight.element_size()


def _numbers(weight: torch.Tensor) -> int:
    """Return how many of a weight's numbers this rank has."""
    return (weight.to_local() if isinstance(weight, DTensor) else weight).numel()
