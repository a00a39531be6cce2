"""The forward of Llama, Mistral, Qwen2 and Qwen3 on a CPU, in fewer operations.

A rollout feeds a token for each of a few dozen rows. To a small model that is so little to compute that
starting an operation takes about as long, and transformers' forward has a hundred of them a layer, views
included. Here layers that read the same input are one product, queries and keys are rotated together, what
transformers does around the layers for other uses is left out, and the last layer computes the last token
alone, since a rollout asks for no other's logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trl_dbbench import shared_prompts
from trl_dbbench.attention import sees_all

MODELS = {
    f"transformers.models.{family}.modeling_{family}": f"{family.title()}Model"
    for family in ("llama", "mistral", "qwen2", "qwen3")
}
"""Models whose layers are a norm, attention with rotated queries and keys, a norm and a gated MLP: classes by
modules, which take long to import."""

Product = Callable[[torch.Tensor], torch.Tensor]
"""Of an input (N, I) the outputs (N, O) of several linear layers, side by side."""


def decoders(model: nn.Module) -> Iterator[nn.Module]:
    """The parts of a model that `Decoder` computes as they would themselves."""
    for module in model.modules():
        if type(module).__name__ == MODELS.get(type(module).__module__) and _is_usual(module):
            yield module


def _is_usual(model: Any) -> bool:
    """Whether a model is transformers' own but for its linear layers, and computes in fp32 on a CPU."""
    config, weight = model.config, model.norm.weight
    parts = [model, model.norm, model.rotary_emb]
    for layer in model.layers:
        parts += [layer, layer.input_layernorm, layer.self_attn, layer.post_attention_layernorm, layer.mlp]
    return (
        all(
            type(part).__module__ == type(model).__module__
            and "forward" not in vars(part)
            and not (part._forward_hooks or part._forward_pre_hooks)
            for part in parts
        )
        and sees_all(config)
        and config._attn_implementation in ("sdpa", shared_prompts.ATTENTION)
        and not (config.output_attentions or config.output_hidden_states)
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
    )


class Decoder:
    """Computes what a model of `MODELS` does of ids and a cache, without gradients.

    Args:
        model: is left as it is.
        join: makes one product of linear layers that read the same input.
    """

    def __init__(self, model: Any, join: Callable[..., Product]):
        self._usual, self._config = model.forward, model.config
        self._embed, self._rotation = model.embed_tokens, model.rotary_emb
        self._layers = [_Layer(layer, join) for layer in model.layers]
        self._layers[-1].last_only = True
        self._norm = _norm(model.norm)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """As the model's, of ids and positions (B, Q), but the last token's hidden states only, (B, 1, E)."""
        asked = input_ids is not None and position_ids is not None and past_key_values is not None
        if not asked or kwargs or torch.is_autocast_enabled("cpu"):
            return self._usual(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                inputs_embeds=inputs_embeds,
                use_cache=use_cache,
                **kwargs,
            )
        embedded = self._embed(input_ids)  # (B, Q, E)
        mask = create_causal_mask(
            config=self._config,
            inputs_embeds=embedded,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        cos, sin = (each.unsqueeze(2) for each in self._rotation(embedded, position_ids))  # (B, Q, 1, D)
        left, right = sin.chunk(2, dim=-1)
        sin = torch.cat((-left, right), dim=-1)
        attend = ALL_ATTENTION_FUNCTIONS[self._config._attn_implementation]
        hidden = embedded.flatten(0, 1)  # (B * Q, E)
        for layer in self._layers:
            hidden = layer(hidden, cos, sin, mask, past_key_values, attend)
        hidden = _normed(hidden, *self._norm)  # (B, E)
        return BaseModelOutputWithPast(hidden.unsqueeze(1), past_key_values)


class _Layer:
    last_only = False
    """Of the last tokens only: what the others were is kept, in the cache, but what comes of them is not."""

    def __init__(self, layer: Any, join: Callable[..., Product]):
        self._attention = attention = layer.self_attn
        self._head_size = attention.head_dim  # D
        self._heads = attention.config.num_attention_heads  # H
        self._kinds = attention.config.num_key_value_heads  # K
        self._states = join(attention.q_proj, attention.k_proj, attention.v_proj)
        self._head_norms = None
        if hasattr(attention, "q_norm"):  # Qwen3
            self._head_norms = _norm(attention.q_norm), _norm(attention.k_norm)
        self._output = attention.o_proj
        self._mlp = layer.mlp
        self._gate_up = join(layer.mlp.gate_proj, layer.mlp.up_proj)
        self._norms = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: Any,
        past: Cache,
        attend: Callable[..., tuple[torch.Tensor, Any]],
    ) -> torch.Tensor:
        batch, count = cos.shape[:2]
        attention = self._attention
        states = self._states(_normed(hidden, *self._norms[0])).view(batch, count, -1, self._head_size)
        turned, value = states[:, :, : -self._kinds], states[:, :, -self._kinds :]  # (B, Q, H + K or K, D)
        if self._head_norms is not None:
            parts = turned.split((self._heads, self._kinds), dim=2)
            norms = zip(parts, self._head_norms, strict=True)
            turned = torch.cat([_normed(part, *norm) for part, norm in norms], dim=2)
        left, right = turned.chunk(2, dim=-1)
        turned = torch.addcmul(turned * cos, torch.cat((right, left), dim=-1), sin).transpose(1, 2)
        query, key = turned[:, : self._heads], turned[:, self._heads :]  # (B, H or K, Q, D)
        key, value = past.update(key, value.transpose(1, 2), attention.layer_idx)
        if self.last_only and count > 1:
            query, mask = query[:, :, -1:], None if mask is None else mask[:, :, -1:]
            hidden, count = hidden.view(batch, count, -1)[:, -1], 1
        output, _ = attend(attention, query, key, value, mask, dropout=0.0, scaling=attention.scaling)
        hidden = hidden + self._output(output.reshape(batch * count, -1))
        gate, up = self._gate_up(_normed(hidden, *self._norms[1])).chunk(2, dim=-1)
        return hidden + self._mlp.down_proj(self._mlp.act_fn(gate) * up)


def _norm(norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What `_normed` makes of a norm: its weight times the root of its size, and that size times epsilon."""
    size = norm.weight.numel()
    return norm.weight.detach() * size**0.5, norm.weight.new_tensor(size * norm.variance_epsilon).sqrt_()


def _normed(input: torch.Tensor, weight: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """RMS norm, in half as many operations as PyTorch has for it on a CPU."""
    length = torch.linalg.vector_norm(input, dim=-1, keepdim=True)
    return (input / length.hypot_(least)).mul_(weight)
