"""Training forward passes that compute a prompt once for all its episodes.

TRL scores each completion in its own row, after its prompt: with eight samples, a prompt is computed eight
times. Here the tokens of a batch are laid out in one row:

```
prompt A less its last token | its last token, completion 1 | its last token, completion 2 | prompt B less ...
```

All layers except attention take that row as usual, since they look at one token at a time. Attention takes
two calls per prompt: the prompt attends to itself; each suffix attends to the prompt and itself. A suffix
starts with the prompt's last token, which predicts the first token of the completion. The output layer is
computed only for the tokens that are scored.

Log-probabilities and gradients equal those of the usual forward pass up to rounding. Dropout, such as
`lora_dropout`, is drawn once per prompt, not once per episode.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trl_dbbench.utils.attention import PLAIN, fused, fused_backward, sees_all

logger = logging.getLogger(__name__)

ATTENTION = "dbbench_shared_prompts"
"""Name of the attention implementation: transformers' `sdpa`, except in rows that share prompts."""

FAMILIES = PLAIN | {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe"}
"""Model types that can share prompts. Experts, too, look at one token at a time."""

WORTH = 0.9
"""Largest share of the usual forward pass's tokens at which sharing prompts is worth it."""


def reason_against(config: PreTrainedConfig, *, compiled: bool = False) -> str | None:
    """Return why a model's training forward cannot share prompts; `None` if it can."""
    if config.model_type not in FAMILIES:
        return f"it is not known to be right for models of the type {config.model_type}"
    if not sees_all(config):
        return "the model has layers that see a window of the past"
    if config._attn_implementation not in ("sdpa", ATTENTION):
        return f"it needs attn_implementation 'sdpa', not {config._attn_implementation!r}"
    if compiled:
        return "a compiled model would be compiled anew for each batch"
    return None


@dataclass(frozen=True)
class Group:
    """Location in the row of a prompt and the suffixes of its episodes."""

    start: int
    prefix: int  # tokens of the prompt without its last
    rows: int
    suffix: int  # tokens of the longest suffix; shorter ones are padded
    device: torch.device

    @property
    def end(self) -> int:
        return self.start + self.prefix + self.rows * self.suffix

    @cached_property
    def seen(self) -> torch.Tensor:
        """Mask (suffix, prefix + suffix) of the tokens of prompt and suffix that each suffix token sees."""
        places = torch.ones(self.suffix, self.prefix + self.suffix, dtype=torch.bool, device=self.device)
        return places.tril(self.prefix)

    def attend(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> list[torch.Tensor]:
        """Attend from this group's queries (1, H, S, D); return (1, S, H, D), in parts along S."""
        lengths, outputs = (self.prefix, self.rows * self.suffix), []
        (q, own_q), (k, own_k), (v, own_v) = (each.split(lengths, dim=2) for each in (query, key, value))
        if self.prefix:
            outputs.append(sdpa_attention_forward(module, q, k, v, None, **options)[0])
        own = [_by_row(each, self.rows) for each in (own_q, own_k, own_v)]  # (rows, H or K, suffix, D)
        in_two = query.device.type == "cpu" and not options.get("dropout") and fused and fused_backward
        if in_two and self.prefix:
            heads = query.shape[1] // key.shape[1]
            parts = [own[0], *(repeat_kv(each, heads) for each in (*own[1:], k, v))]
            # autocast leaves rotated queries and keys in another precision than the values
            output = _InTwo.apply(*(each.to(v.dtype) for each in parts), options["scaling"]).transpose(1, 2)
        else:
            own[1:] = (
                torch.cat((prefix.expand(self.rows, -1, -1, -1), each), dim=2)
                for prefix, each in zip((k, v), own[1:], strict=True)
            )
            seen = self.seen.expand(self.rows, 1, -1, -1)
            output, _ = sdpa_attention_forward(module, *own, seen, **options)  # (rows, suffix, H, D)
        return [*outputs, output.flatten(0, 1)[None]]


@dataclass(frozen=True)
class Tree:
    """Location in the row of an episode that is several sequences (see `token_trees`)."""

    start: int
    seen: torch.Tensor  # (tokens, tokens), the tokens that each sees

    @property
    def end(self) -> int:
        return self.start + len(self.seen)

    def attend(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> list[torch.Tensor]:
        """Attend from this tree's queries (1, H, tokens, D); return (1, tokens, H, D), in a list."""
        return [sdpa_attention_forward(module, query, key, value, self.seen[None, None], **options)[0]]


@dataclass(frozen=True)
class Layout:
    """A batch's rows laid out in one row of S tokens, M of which predict a completion token."""

    groups: tuple[Group | Tree, ...]  # parts of the row, which do not see one another
    input_ids: torch.Tensor  # (1, S)
    position_ids: torch.Tensor  # (1, S)
    predicts: torch.Tensor  # (M,), places in the row
    targets: torch.Tensor  # (1, M), the ids predicted there
    rows: torch.Tensor  # (M,), the targets' rows in the batch's completions
    columns: torch.Tensor  # (M,), their columns there

    @classmethod
    def of(
        cls,
        tokens: Tokens,
        groups: Sequence[Group | Tree],
        places: torch.Tensor,
        positions: torch.Tensor,
        predicts: torch.Tensor,
        targets: torch.Tensor,
    ) -> Layout:
        """Build a layout from the tokens of a batch.

        Args:
            places: (2, S), the row and column in the batch of each token.
            targets: (2, M), the row and column in its completions of each predicted token.
        """
        ids = tokens.input_ids
        (from_rows, from_columns), (rows, columns) = places.to(ids.device), targets.to(ids.device)
        return cls(
            groups=tuple(groups),
            input_ids=ids[from_rows, from_columns][None],
            position_ids=positions[None].to(ids.device),
            predicts=predicts.to(ids.device),
            targets=ids[rows, tokens.width + columns][None],
            rows=rows,
            columns=columns,
        )


FOLLOWS = "follows"
"""Key of `Tokens.follows` in a scored batch."""


class Tokens(NamedTuple):
    """A batch's rows: left-padded prompts and right-padded completions."""

    input_ids: torch.Tensor  # (B, L)
    attention_mask: torch.Tensor  # (B, L)
    completion: int  # T, columns of the completions
    follows: torch.Tensor | None = None  # (B, T), if a row is a tree; see `token_trees`
    apart: bool = False
    """True if the model computes each sequence of a tree as a separate row."""

    @classmethod
    def of(cls, batch: dict[str, Any], shares_prompts: bool = True) -> Tokens:
        """Return the tokens of a scored batch; a model that shares no prompts computes sequences `apart`."""
        ids, mask = (
            torch.cat([batch[f"prompt_{of}"], batch[f"completion_{of}"]], dim=1) for of in ("ids", "mask")
        )
        return cls(ids, mask, batch["completion_ids"].shape[1], batch.get(FOLLOWS), not shares_prompts)

    @property
    def width(self) -> int:
        """Columns of the prompts."""
        return self.input_ids.shape[1] - self.completion


def same_prompt(tokens: Tokens) -> list[list[int]]:
    """Return the row numbers of each prompt, in order of first appearance."""
    width = tokens.width
    ids = tokens.input_ids[:, :width].cpu().numpy()
    starts = (width - tokens.attention_mask[:, :width].sum(dim=1)).tolist()
    rows: dict[bytes, list[int]] = {}
    for row, start in enumerate(starts):
        rows.setdefault(ids[row, start:].tobytes(), []).append(row)
    return [*rows.values()]


def lay_out(tokens: Tokens, prompts: Iterable[Sequence[int]]) -> Layout:
    """Lay out some rows of a batch in one row; `prompts` holds the wanted row numbers of each prompt."""
    width, device = tokens.width, tokens.input_ids.device
    shown = tokens.attention_mask[:, :width].sum(dim=1).tolist()
    lengths = tokens.attention_mask[:, width:].sum(dim=1).tolist()
    groups: list[Group] = []
    pieces: list[torch.Tensor] = []  # (2, tokens): the row and column in the batch of each token
    predicts: list[torch.Tensor] = []
    targets: list[torch.Tensor] = []  # (2, tokens): the row and column of each predicted token
    start = 0
    for rows in prompts:
        prefix, suffix = shown[rows[0]] - 1, 1 + max(lengths[row] for row in rows)
        pieces.append(_places(rows[0], width - 1 - prefix, prefix))
        for place, row in enumerate(rows):
            pieces.append(_places(row, width - 1, suffix))
            predicts.append(start + prefix + place * suffix + torch.arange(lengths[row]))
            targets.append(_places(row, 0, lengths[row]))
        groups.append(Group(start, prefix, len(rows), suffix, device))
        start = groups[-1].end
    places = torch.cat(pieces, dim=1)
    return Layout.of(tokens, groups, places, places[1], torch.cat(predicts), torch.cat(targets, dim=1))


def _places(row: int, first: int, count: int) -> torch.Tensor:
    return torch.stack((torch.full((count,), row), torch.arange(first, first + count)))


@contextmanager
def sharing(backbone: PreTrainedModel, layout: Layout) -> Iterator[dict[str, Any]]:
    """Yield the arguments for the model's call, which then returns hidden states of the M predicting tokens.

    The model's attention stays `ATTENTION` afterwards, since gradient checkpointing computes it again in the
    backward pass.
    """
    backbone.config._attn_implementation = ATTENTION

    def select(module: nn.Module, args: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, layout.predicts]  # (1, M, D)
        return output

    hook = backbone.register_forward_hook(select)
    try:
        yield {
            "input_ids": layout.input_ids,
            # transformers passes on a mask of four dimensions unchanged, and `_attention` uses its own
            "attention_mask": layout.input_ids.new_ones(1, 1, 1, 1, dtype=torch.bool),
            "position_ids": layout.position_ids,
            "shift_labels": layout.targets,
            "shared_prompts": layout,
        }
    finally:
        hook.remove()


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    shared_prompts: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from queries (1, H, S, D) to a layout's keys, values (1, K, S, D); without one, as `sdpa`."""
    if shared_prompts is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    outputs = []  # (1, tokens, H, D)
    for group in shared_prompts.groups:
        states = (each[:, :, group.start : group.end] for each in (query, key, value))
        outputs += group.attend(module, *states, **kwargs)
    return torch.cat(outputs, dim=1), None


class _InTwo(torch.autograd.Function):
    """Attention of suffixes to their prompt and themselves, without copies of the prompt.

    Given the output and the mass of both parts together (see `utils/attention.py`), the kernel's own backward
    gives the gradients of each part, as in Ring Attention (Liu et al., 2023).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,  # (R, H, Q, D)
        key: torch.Tensor,
        value: torch.Tensor,
        prefix_key: torch.Tensor,  # (1, H, P, D)
        prefix_value: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        rows = len(query)
        common, common_mass = fused(_in_one(query), prefix_key, prefix_value, scale=scaling)
        own, own_mass = fused(query, key, value, is_causal=True, scale=scaling)
        common, common_mass = _by_row(common, rows), _by_row(common_mass, rows)
        mass = torch.logaddexp(common_mass, own_mass)  # (R, H, Q)
        output = own.lerp(common, torch.exp(common_mass - mass)[..., None].to(own.dtype))
        ctx.save_for_backward(query, key, value, prefix_key, prefix_value, output, mass)
        ctx.scaling = scaling
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, prefix_key, prefix_value, output, mass = ctx.saved_tensors
        scale = {"dropout_p": 0.0, "scale": ctx.scaling}
        common, common_key, common_value = fused_backward(
            *(_in_one(grad), _in_one(query), prefix_key, prefix_value, _in_one(output), _in_one(mass)),
            **scale,
            is_causal=False,
        )
        own, own_key, own_value = fused_backward(
            *(grad, query, key, value, output, mass), **scale, is_causal=True
        )
        return own + _by_row(common, len(query)), own_key, own_value, common_key, common_value, None


def _by_row(states: torch.Tensor, rows: int) -> torch.Tensor:
    """Reshape (1, H, rows * suffix, ...) to (rows, H, suffix, ...)."""
    return states[0].unflatten(1, (rows, -1)).transpose(0, 1)


def _in_one(states: torch.Tensor) -> torch.Tensor:
    """Reshape (rows, H, suffix, ...) to (1, H, rows * suffix, ...)."""
    return states.transpose(0, 1).flatten(1, 2)[None]


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class SharedPrompts:
    """Scorer of a batch's completions that computes each prompt once."""

    def __init__(self, accelerator: Accelerator, *, compiled: bool = False):
        self._accelerator, self._compiled = accelerator, compiled
        self._told = False

    def _backbone(self, model: nn.Module) -> PreTrainedModel:
        """Return the model's layers without the output layer and the wrappers of PEFT and accelerate."""
        whole = self._accelerator.unwrap_model(model)
        return (whole.get_base_model() if hasattr(whole, "get_base_model") else whole).base_model

    def possible(self, model: nn.Module) -> bool:
        """Return whether the model's forward can share prompts; log once if not."""
        reason = reason_against(self._backbone(model).config, compiled=self._compiled)
        if reason and not self._told:
            logger.warning("Training computes each episode's prompt anew (shared_prefix: auto): %s.", reason)
            self._told = True
        return reason is None

    def score(
        self,
        model: nn.Module,
        tokens: Tokens,
        batch_size: int | None = None,
        compute_entropy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Return the log-probabilities and entropies of the completion tokens, both (B, T) with 0 on padding;
        `None` if sharing is not worth it.

        Args:
            batch_size: rows per forward pass; by default all. There are as many passes as usual, so ranks
                that shard the weights stay in step.
        """
        layouts = layouts_of(tokens, batch_size)
        if not layouts:
            return None
        shape = len(tokens.input_ids), tokens.completion
        return self.forward(model, layouts, shape, compute_entropy)

    def forward(
        self, model: nn.Module, layouts: Sequence[Layout], shape: tuple[int, int], compute_entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute layouts one after another; return the same as `score`, with this shape (B, T)."""
        outputs = []
        backbone = self._backbone(model)
        for layout in layouts:
            with sharing(backbone, layout) as inputs, self._accelerator.autocast():
                outputs.append(model(**inputs, fused_lm_head=True))
        places = tuple(torch.cat([getattr(each, of) for each in layouts]) for of in ("rows", "columns"))

        def in_place(values: list[torch.Tensor]) -> torch.Tensor:
            """Scatter the values (M,) of all layouts into (B, T)."""
            together = torch.cat(values)
            return together.new_zeros(shape).index_put(places, together)

        logps = in_place([each.log_probs[0] for each in outputs])
        return logps, in_place([each.entropy[0] for each in outputs]) if compute_entropy else None


def layouts_of(tokens: Tokens, batch_size: int | None) -> list[Layout]:
    """Return the layout of each forward pass; none if one predicts nothing or sharing saves too little."""
    rows = [(number, row) for number, rows in enumerate(same_prompt(tokens)) for row in rows]
    layouts = []
    for start in range(0, len(rows), batch_size or len(rows)):
        of_pass = groupby(rows[start : start + (batch_size or len(rows))], key=itemgetter(0))
        layouts.append(lay_out(tokens, [[row for _, row in each] for _, each in of_pass]))
    computed = sum(layout.input_ids.numel() for layout in layouts)
    predicting = all(layout.targets.numel() for layout in layouts)
    return layouts if predicting and computed <= WORTH * tokens.input_ids.numel() else []
