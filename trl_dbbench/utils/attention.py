"""Which models see other tokens in plain attention alone, and attention that also gives its mass.

Attention over two parts of the past is the mean of the attention over each, weighted by the mass of each part
(the sum of its exponentiated scores). Rollouts read a prompt together that way, and so does training.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig

PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "olmo2", "granite"})
"""Types of models with plain softmax attention through transformers' attention interface, without sinks or
capped scores, that tell a token's place by its `position_ids`."""

# PyTorch has no public names for them; None where it lacks them
fused: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""Attention on a CPU, and the logarithm of its mass."""

fused_backward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
"""The derivative of `fused`."""


def sees_all(config: PreTrainedConfig) -> bool:
    """Whether each layer sees all that came before, and none a window of it."""
    if hasattr(type(config), "layer_types"):  # a window is of the layers that say so
        return set(config.layer_types) == {"full_attention"}
    # of all layers, whatever else such a config says: Mistral's model knows no `use_sliding_window`
    return getattr(config, "sliding_window", None) is None
