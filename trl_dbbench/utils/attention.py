"""Model types with plain attention, and CPU attention that also returns its mass.

Attention over two parts of the past is the mean of the attention over each part, weighted by the part's mass
(the sum of its exponentiated scores). Rollouts and training attend to a shared prompt this way.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig

PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "olmo2", "granite"})
"""Model types whose attention is a plain softmax through transformers' attention interface, with positions
from `position_ids` and without attention sinks or capped scores."""

# PyTorch has no public names for these; None if it lacks them
fused: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""CPU attention that also returns the logarithm of its mass."""

fused_backward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
"""The derivative of `fused`."""


def sees_all(config: PreTrainedConfig) -> bool:
    """Return whether every layer attends to all earlier tokens, without a sliding window."""
    if hasattr(type(config), "layer_types"):  # the window is per layer
        return set(config.layer_types) == {"full_attention"}
    # one window for all layers; `use_sliding_window` is ignored, as in Mistral's model
    return getattr(config, "sliding_window", None) is None
