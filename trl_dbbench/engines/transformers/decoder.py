"""The forward of Llama, Mistral, Qwen2 and Qwen3 on a CPU, in fewer operations.

A rollout feeds a token for each of a few dozen rows. To a small model that is so little to compute that
starting an operation takes about as long, and transformers' forward has a hundred of them a layer, views
included. Here layers that read the same input are one product, queries and keys are rotated together, what
transformers does around the layers for other uses is left out, and the last layer computes the last token
alone, since a rollout asks for no other's logits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from peft.tuners import lora
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import output_capturing

from trl_dbbench.engines import shared_prompts
from trl_dbbench.engines.transformers.cache import RowCache
from trl_dbbench.engines.transformers.models import CACHE_ARGUMENT
from trl_dbbench.utils.attention import sees_all

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
    if _has_any_global_hook():
        return
    for module in model.modules():
        if type(module).__name__ == MODELS.get(type(module).__module__) and _is_usual(module):
            yield module


def _is_usual(model: Any) -> bool:
    """Whether a model is transformers' own, with LoRA or without, and computes in fp32 on a CPU."""
    config, home = model.config, type(model).__module__
    return (
        all(_is_own(part, home) for part in (model, model.norm, model.rotary_emb))
        and sys.modules[home].apply_rotary_pos_emb.__module__ == home
        and len(model.layers[: config.num_hidden_layers]) > 0
        and all(_is_usual_layer(layer, home) for layer in model.layers)
        and all(map(is_plain_parameter, model.parameters()))
        and sees_all(config)
        and config._attn_implementation in ("sdpa", shared_prompts.ATTENTION)
        and not (config.output_attentions or config.output_hidden_states)
    )


def _is_usual_layer(layer: Any, home: str) -> bool:
    if not _is_own(layer, home):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    own = [attention, mlp, layer.input_layernorm, layer.post_attention_layernorm]
    own += [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    if not all(_is_own(part, home) for part in own):
        return False
    linear = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    linear += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return all(map(_is_linear, linear))


def _is_own(part: nn.Module, home: str) -> bool:
    """Whether a part is of a class of its model's module, and neither it nor the class is changed."""
    return type(part).__module__ == type(part).forward.__module__ == home and not _is_changed(part)


def _is_linear(layer: nn.Module) -> bool:
    """Whether a layer computes each token by itself."""
    if type(layer) is lora.Linear:  # whose variants may look at all tokens
        return (
            type(layer.base_layer) is nn.Linear
            and not layer.lora_variant
            and not any(map(_is_changed, layer.modules()))
        )
    return type(layer) is nn.Linear and not _is_changed(layer)


def _is_changed(part: nn.Module) -> bool:
    """Whether calling a part does more than its class says."""
    # once asked for hidden states, transformers leaves hooks that do nothing until they are asked for again
    hooks = [
        hook
        for hook in part._forward_hooks.values()
        if getattr(hook, "__module__", None) != output_capturing.__name__
    ]
    return "forward" in vars(part) or bool(hooks or part._forward_pre_hooks)


def is_plain_parameter(parameter: torch.Tensor) -> bool:
    """Whether a parameter is numbers in fp32 on a CPU, neither quantized nor sharded."""
    return (
        type(parameter) is nn.Parameter
        and parameter.device.type == "cpu"
        and parameter.dtype == torch.float32
    )


class Decoder:
    """Computes what a model of `MODELS` does of ids and a rollout's cache, without gradients.

    Args:
        model: is left as it is.
        join: makes one product of linear layers that read the same input.
    """

    def __init__(self, model: Any, join: Callable[..., Product]):
        self._model, self._usual = model, model.forward
        self._layers = [_Layer(layer, join) for layer in model.layers[: model.config.num_hidden_layers]]
        self._layers[-1].last_only = True
        self._norm = _norm(model.norm)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        *,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As the model's, but of ids (B, Q), their positions (B or 1, Q) and a rollout's cache it gives the
        hidden states of the last token only, (B, 1, E)."""
        cache = kwargs.get(CACHE_ARGUMENT)
        if (
            input_ids is None
            or position_ids is None
            or not isinstance(cache, RowCache)
            or any(value is not None and name != CACHE_ARGUMENT for name, value in kwargs.items())
            or self._model.training
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
        ):
            return self._usual(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                use_cache=use_cache,
                **kwargs,
            )
        config = self._model.config
        embedded = self._model.embed_tokens(input_ids)  # (B, Q, E)
        mask = create_causal_mask(
            config=config,
            inputs_embeds=embedded,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **{CACHE_ARGUMENT: cache},
        )
        rotation = self._model.rotary_emb(embedded, position_ids)
        cos, sin = (each.unsqueeze(2) for each in rotation)  # (B or 1, Q, 1, D)
        left, right = sin.chunk(2, dim=-1)
        sin = torch.cat((-left, right), dim=-1)
        attend = ALL_ATTENTION_FUNCTIONS[config._attn_implementation]
        batch = input_ids.shape[0]
        hidden = embedded.flatten(0, 1)  # (B * Q, E)
        for layer in self._layers:
            hidden = layer(hidden, batch, cos, sin, mask, cache, attend)
        hidden = _normed(hidden, *self._norm)  # (B, E)
        return BaseModelOutputWithPast(hidden.unsqueeze(1), cache)


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
        batch: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: Any,
        past: Cache,
        attend: Callable[..., tuple[torch.Tensor, Any]],
    ) -> torch.Tensor:
        """Of hidden states (B * Q, E) the next ones, or those of the last tokens, (B, E)."""
        attention, count = self._attention, cos.shape[1]
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
