"""A model's linear layers on a CPU while a rollout lasts: side by side, and laid out as oneDNN reads them.

PyTorch leaves large layers to MKL, which on AMD's processors uses half the width of their vector units.
oneDNN uses all of it, for weights that it may lay out first; that is worth it where they stay for a whole
rollout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import nn

from trl_dbbench.engines.transformers.decoder import Decoder, Product, decoders, is_plain_parameter

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

    Only fp32 layers on a CPU are concerned.
    """
    copies = _Copies()
    replaced: list[nn.Module] = []
    try:
        for decoder in decoders(model):
            decoder.forward = Decoder(decoder, copies.join).forward
            replaced.append(decoder)
        for layer in model.modules():
            if (
                _is_plain(layer)
                and layer not in copies.joined
                and copies.fit(layer)
                and _is_large(layer.weight)
            ):
                layer.forward = partial(_forward, layer, copies.laid_out(layer.weight))  # type: ignore[method-assign]
                replaced.append(layer)
        yield
    finally:
        for module in replaced:
            del module.forward


class _Copies:
    """Copies of weights, as many as PACK_MAX_BYTES allows."""

    def __init__(self) -> None:
        self.joined: set[nn.Module] = set()
        self._left = PACK_MAX_BYTES

    def fit(self, *layers: nn.Linear) -> bool:
        return sum(layer.weight.nbytes for layer in layers) <= self._left

    def laid_out(self, weight: torch.Tensor) -> torch.Tensor:
        self._left -= weight.nbytes
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_BATCH_ROWS)

    def join(self, *layers: nn.Module) -> Product:
        """One product of layers that read the same input."""
        plain = [layer for layer in layers if _is_plain(layer)]
        biases = [layer.bias for layer in plain if layer.bias is not None]
        if len(plain) < len(layers) or len(biases) not in (0, len(layers)) or not self.fit(*plain):
            return lambda input: torch.cat([layer(input) for layer in layers], dim=-1)
        self.joined.update(layers)
        weight = torch.cat([layer.weight.detach() for layer in plain])
        bias = torch.cat([each.detach() for each in biases]) if biases else None
        if _is_large(weight):
            return partial(_linear, weight=self.laid_out(weight), bias=bias)
        self._left -= weight.nbytes
        return partial(F.linear, weight=weight, bias=bias)


def _is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    return (
        type(layer) is nn.Linear
        and "forward" not in vars(layer)  # a hook brings one
        and is_plain_parameter(layer.weight)
    )


def _is_large(weight: torch.Tensor) -> bool:
    """Whether another layout helps; not where PyTorch has no oneDNN or would not ask MKL."""
    # how Inductor calls oneDNN; there is no public name for it
    available = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return available and weight.numel() >= PACK_MIN_WEIGHTS


def _forward(layer: nn.Linear, weight: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    if torch.is_autocast_enabled("cpu") or input.dtype != torch.float32:
        return nn.Linear.forward(layer, input)
    return _linear(input, weight, layer.bias)


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(input, weight, bias, "none", [], "")
