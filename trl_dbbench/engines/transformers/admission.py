"""Which episodes of a rollout have rows of the cache, and which wait for one."""

from __future__ import annotations

from transformers import PreTrainedConfig


def cache_bytes_per_token(config: PreTrainedConfig, value_bytes: int) -> int:
    """Return the bytes of the keys and values of one token, in all layers.

    Args:
        value_bytes: of one number in the cache.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    # multi-head latent attention has keys and values of its own sizes
    sizes = (getattr(text, "qk_head_dim", None) or size) + (getattr(text, "v_head_dim", None) or size)
    return text.num_hidden_layers * heads * sizes * value_bytes
