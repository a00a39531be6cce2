"""Large linear layers on CPUs, with weights laid out as oneDNN reads them.

PyTorch leaves float32 to MKL, which on AMD's processors uses half the width of their vector units. oneDNN
uses all of it, for weights that it may lay out first. In bfloat16, oneDNN would lay them out at each call.
Doing it once is worth it where they stay for a whole rollout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

PACK_MIN_WEIGHTS = {torch.float32: 65_536, torch.bfloat16: 16_384}
"""By the type that a layer computes in. Smaller layers gain nothing from the other layout."""

PACK_MAX_BYTES = 4 * 1024**3
"""Memory that the copies may take; layers beyond it are computed as usual."""

PACKED_BATCH_ROWS = 32
"""Batch size that oneDNN's weight layout is chosen for."""

Weights = tuple[torch.Tensor, torch.Tensor | None]
"""Laid out, and the bias."""


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Compute without gradients, with copies of the weights that lie on a CPU, as they are now.

    Where PyTorch has no oneDNN or would not ask MKL, nothing changes.
    """
    # how Inductor calls oneDNN; there is no public name for it
    available = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    layers = list(_layers(model)) if available else []
    for layer in layers:
        layer.forward = partial(_forward, layer, {})  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _packs(layer: nn.Linear, dtype: torch.dtype) -> bool:
    """Return whether a layer that computes in this type is worth another layout."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return dtype in PACK_MIN_WEIGHTS and layer.weight.numel() >= PACK_MIN_WEIGHTS[dtype]


def _layers(model: nn.Module) -> Iterator[nn.Linear]:
    left = PACK_MAX_BYTES
    for layer in model.modules():
        if (
            type(layer) is nn.Linear
            and type(layer.weight) is nn.Parameter  # neither quantized nor sharded
            and "forward" not in vars(layer)  # nor brought by a hook
            and layer.weight.device.type == "cpu"
            and any(_packs(layer, dtype) for dtype in PACK_MIN_WEIGHTS)
            and layer.weight.nbytes <= left
        ):
            left -= layer.weight.nbytes
            yield layer


def _forward(layer: nn.Linear, kept: dict[torch.dtype, Weights | None], input: torch.Tensor) -> torch.Tensor:
    cast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if cast else input.dtype
    if not (cast or dtype == layer.weight.dtype):
        return nn.Linear.forward(layer, input)
    if dtype not in kept:
        kept[dtype] = _laid_out(layer, dtype) if _packs(layer, dtype) else None
    if (weights := kept[dtype]) is None:
        return nn.Linear.forward(layer, input)
    return torch.ops.mkldnn._linear_pointwise.default(input.to(dtype), *weights, "none", [], "")


def _laid_out(layer: nn.Linear, dtype: torch.dtype) -> Weights:
    weight = layer.weight.detach().to(dtype)
    bias = None if layer.bias is None else layer.bias.detach().to(dtype)
    return torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_BATCH_ROWS), bias
