"""Gradients of weights that TRL's trainer does not train: a critic's, a second adapter's."""

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
    """Give all ranks the sum or the mean of their gradients, scaled down to a norm. All ranks call it.

    Args:
        max_norm: of all these weights' gradients together; 0 scales nothing.
    """
    for weight in weights:
        own = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad = accelerator.reduce(own, reduction=reduction)
    if max_norm > 0:
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
