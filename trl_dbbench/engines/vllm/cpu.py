"""LoRA in vLLM's CPU build, for steps whose rows all have the same adapter or none.

vLLM has no LoRA kernel for CPUs. Instead it copies the adapter's weights for every token, even those of the
output layer, which takes most of a small model's step. With one adapter for all rows, two matrix products
suffice.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms.cpu import CpuPlatform


class OneAdapter(PunicaWrapperCPU):
    """LoRA as two matrix products. See `PunicaWrapperBase` for the arguments."""

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **_: Any,
    ) -> None:
        if self.no_lora:
            return
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            _add(y.view(-1, y.shape[-1])[:, start : start + width], x, a, b)
            start += width

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        **_: Any,
    ) -> None:
        if not self.no_lora:
            width = lora_b_stacked.shape[-2]
            _add(y.view(-1, y.shape[-1])[:, :width], x, lora_a_stacked, lora_b_stacked)


def _add(y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Add x Aᵀ Bᵀ to y; vLLM has already multiplied B by alpha / r.

    Args:
        y: (tokens, out), changed in place.
        x: (..., in).
        a: A, (1, 1, r, in).
        b: B, (1, 1, out, r).
    """
    y.addmm_(x.view(-1, x.shape[-1]) @ a[0, 0].t(), b[0, 0].t())


def use_one_adapter() -> None:
    """Make engines that are loaded from now on compute LoRA with `OneAdapter`."""
    CpuPlatform.get_punica_wrapper = classmethod(lambda cls: f"{__name__}.{OneAdapter.__name__}")
