"""Large linear layers on CPUs, with weights laid out as oneDNN reads them.

PyTorch leaves them to MKL, which on AMD's processors uses half the width of their vector units. oneDNN uses
all of it, for weights that it may lay out first; that is worth it where they stay for a whole rollout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

PACK_MIN_WEIGHTS = 65_536
"""Smaller layers gain nothing from the other layout."""

PACK_MAX_BYTES = 4 * 1024**3
"""Memory that the copies may take; layers beyond it are computed as usual."""

PACKED_BATCH_ROWS = 32
"""Batch size that oneDNN's weight layout is chosen for."""


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """The model computes without gradients, with its weights as they are now; meanwhile it holds copies of
    them.

    Only fp32 layers on a CPU are concerned, and where PyTorch has no oneDNN or would not ask MKL, none.
    """
    layers = list(_layers(model)) if _available() else []
    for layer in layers:
        weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), PACKED_BATCH_ROWS)
        layer.forward = partial(_forward, layer, weight)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _available() -> bool:
    # how Inductor calls oneDNN; there is no public name for it
    return torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def _layers(model: nn.Module) -> Iterator[nn.Linear]:
    left = PACK_MAX_BYTES
    for layer in model.modules():
        if (
            type(layer) is nn.Linear
            and type(layer.weight) is nn.Parameter  # neither quantized nor sharded
            and "forward" not in vars(layer)  # nor brought by a hook
            and layer.weight.device.type == "cpu"
            and layer.weight.dtype == torch.float32
            and layer.weight.numel() >= PACK_MIN_WEIGHTS
            and layer.weight.nbytes <= left
        ):
            left -= layer.weight.nbytes
            yield layer


def _forward(layer: nn.Linear, weight: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    if torch.is_autocast_enabled("cpu") or input.dtype != torch.float32:
        return nn.Linear.forward(layer, input)
    return torch.ops.mkldnn._linear_pointwise.default(input, weight, layer.bias, "none", [], "")
