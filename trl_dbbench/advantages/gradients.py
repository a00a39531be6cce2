"""Gradients of weights outside TRL's optimizer: a critic's, or a second adapter's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from accelerate import Accelerator


def reduce_gradients(
    weights: Sequence[torch.nn.Parameter],
    accelerator: Accelerator,
    reduction: Literal["sum", "mean"],
    max_norm: float,
) -> None:
    """Replace gradients by their sum or mean over all ranks, clipped. All ranks must call it.

    Args:
        max_norm: bound on the norm of all these gradients together; 0 for none.
    """
    for weight in weights:
        own = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad = accelerator.reduce(own, reduction=reduction)
    if max_norm > 0:
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
