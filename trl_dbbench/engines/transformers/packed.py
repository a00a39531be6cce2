"""Large linear layers on CPUs, with weights packed in oneDNN's layout.

PyTorch leaves float32 to MKL, which uses only half the width of the vector units of AMD's processors. oneDNN
uses all of it if the weights are packed first. In bfloat16, oneDNN would pack them at each call. Packing them
once pays off, since they stay the same for a whole rollout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

PACK_MIN_WEIGHTS = {torch.float32: 65_536, torch.bfloat16: 16_384}
"""Fewest weights of a layer that is packed, by the dtype it computes in; smaller layers gain nothing."""

PACK_MAX_BYTES = 4 * 1024**3
"""Most bytes of weights that are packed; layers beyond that are computed as usual."""

PACKED_BATCH_ROWS = 32
"""Batch size that oneDNN's weight layout is chosen for."""

Weights = tuple[torch.Tensor, torch.Tensor | None]
"""A layer's packed weights and its bias."""


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Compute with packed copies of the weights on the CPU, as they are now; without gradients.

    Nothing changes if PyTorch has no oneDNN or would not use MKL.
    """
    # as Inductor calls oneDNN; there is no public name for it
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
    """Return whether packing pays off for a layer that computes in this dtype."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return dtype in PACK_MIN_WEIGHTS and layer.weight.numel() >= PACK_MIN_WEIGHTS[dtype]


def _layers(model: nn.Module) -> Iterator[nn.Linear]:
    left = PACK_MAX_BYTES
    for layer in model.modules():
        if (
            type(layer) is nn.Linear
            and type(layer.weight) is nn.Parameter  # neither quantized nor sharded
            and "forward" not in vars(layer)  # nor loaded by a hook
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
