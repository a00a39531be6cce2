"""Gradients of weights beside the policy's: a critic's, or a second adapter's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from accelerate import Accelerator

from trl_dbbench.errors import ConfigError


def reduce_gradients(
    weights: Sequence[torch.nn.Parameter],
    accelerator: Accelerator,
    reduction: Literal["sum", "mean"],
    max_norm: float,
) -> None:
    """Replace gradients by their sum or mean over all ranks, then clip their joint norm to `max_norm`.

    A `max_norm` of 0 clips nothing. All ranks must call it.
    """
    for weight in weights:
        own = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad = accelerator.reduce(own, reduction=reduction)
    if max_norm > 0:
        torch.nn.utils.clip_grad_norm_(weights, max_norm)


def check_whole_weights(trainer: Any, what: str) -> None:
    """Raise ConfigError, saying that `what` needs all weights on each rank, under FSDP or DeepSpeed."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise ConfigError(
            f"{what} needs all weights on each rank, and FSDP and DeepSpeed divide them. Start with "
            "accelerate_configs/single_gpu.yaml or multi_gpu.yaml, or leave it out."
        )
