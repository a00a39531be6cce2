"""Prompts whose keys and values are kept once for all their episodes.

A copy per episode would take most of a rollout's memory, and of its time: every row reads all of its keys and
values at each token. Rows of the same prompt can read those of the prompt together: attention over two parts
of the past is the mean of the attention over each, weighted by each part's mass (the sum of its exponentiated
scores), as in the merge step of Flash-Decoding (Dao et al., 2023).

On a CPU, PyTorch's fused kernel returns that mass without storing the scores, which for an observation would
be many times as large as its keys. On a GPU the scores of a few queries at a time are stored, in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from itertools import repeat
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedConfig

from trl_dbbench.engines import shared_prompts
from trl_dbbench.engines.transformers.cache import Piece, RowCache, RowLayer
from trl_dbbench.utils.attention import PLAIN, fused, sees_all

ATTENTION = "dbbench_shared_prefix"
SHARE_PREFIX_MIN_TOKENS = 256
"""Fewest tokens of a prompt, counted once per row, at which sharing pays off."""

OWN_SPARE_COLUMNS = 32
"""Columns by which a full buffer of the rows' own past grows; few, since `_attend_one` reads them too."""

SCORES_AT_ONCE = 2**25
"""Most attention scores that are stored at once."""

HIDDEN_SCORE = -1e30
"""Score of a masked position: finite, so that a row with every position masked has no NaN."""

_active: ContextVar[SharedPrefix] = ContextVar("shared_prefix")


def can_share(config: PreTrainedConfig) -> bool:
    """Return whether a model can share prompts; otherwise each row gets a copy of its prompt."""
    return (
        config.model_type in PLAIN
        and sees_all(config)
        and config._attn_implementation in ("sdpa", "eager", shared_prompts.ATTENTION)
    )


class SharedPrefix:
    """Keys and values of U prompts, and which rows of the batch continue which prompt.

    Args:
        prompts: the current location of each prompt's keys and values.
    """

    def __init__(self, prompts: Mapping[tuple[int, ...], Piece], device: torch.device):
        width = max([1, *map(len, prompts)])  # W
        self._cache = RowCache.of([*prompts.values()], width, room=0)
        self.places = {prompt: number for number, prompt in enumerate(prompts)}
        self._device = device
        self._bias = None
        if any(len(prompt) < width for prompt in prompts):
            start = torch.tensor([[width - len(prompt)] for prompt in prompts], device=device)  # (U, 1)
            hidden = torch.arange(width, device=device) < start
            self._bias = _bias(hidden[:, None, None])  # (U, 1, 1, W)

    def pieces(self) -> dict[tuple[int, ...], Piece]:
        """Return the location of each prompt's keys and values."""
        width = self._cache.get_seq_length()
        return {
            prompt: Piece(self._cache, place, width - len(prompt), len(prompt))
            for prompt, place in self.places.items()
        }

    def arrange(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Set which prompts the batch continues: row i continues `prompts[i]`."""
        sources = [self.places[prompt] for prompt in prompts]
        rows: list[list[int]] = [[] for _ in self.places]
        places = []
        for row, source in enumerate(sources):
            places.append((source, len(rows[source])))
            rows[source].append(row)
        most = self._group = max(map(len, rows))  # G
        # prompts with fewer rows are filled up with row 0, and nobody reads the result
        order = [row for each in rows for row in each + [0] * (most - len(each))]
        self._rows: torch.Tensor | None = None
        self._places: torch.Tensor | None = None
        if order != list(range(len(sources))):  # rows are not grouped by prompt yet, equally many each
            self._rows = torch.tensor(order, device=self._device)  # (U * G,)
            flat = [source * most + place for source, place in places]
            self._places = torch.tensor(flat, device=self._device)  # (B,)

    @contextmanager
    def active(self, config: PreTrainedConfig, own: RowCache) -> Iterator[None]:
        """Let the model of `config`, whose cache is `own`, attend to the prompts too."""
        usual = config._attn_implementation
        token = _active.set(self)
        self._own = own
        config._attn_implementation = ATTENTION
        try:
            yield
        finally:
            config._attn_implementation = usual
            _active.reset(token)

    def hide(self, hidden: torch.Tensor | None) -> None:
        """Set the mask (B, 1, Q, S) of what rows do not see of their own past; `None` if they see all."""
        self._own_bias = None if hidden is None else _bias(hidden)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Attend from queries (B, H, Q, D) to prompts and the rows' own keys (B, K, S, D).

        Returns (B, Q, H, D).
        """
        batch, heads, count, size = query.shape
        kinds = key.shape[1]  # query heads that share keys are put side by side: M = H / K * Q
        queries = query.reshape(batch, kinds, -1, size)  # (B, K, M, D)
        rows = queries if self._rows is None else queries[self._rows]
        together = rows.view(len(self.places), self._group, kinds, -1, size).transpose(1, 2).flatten(2, 3)
        past = self._cache.layers[layer]
        common, mass = _attend(together, past.keys, past.values, scaling, self._bias)  # (U, K, G * M, D or 1)
        common, mass = self._apart(common), self._apart(mass)  # (B, K, M, D or 1)
        bias = self._own_bias
        if bias is not None and count > 1:
            bias = bias.repeat(1, 1, heads // kinds, 1)  # (B, 1, M, S)
        if count == 1 and value.dtype == torch.float32 and query.device.type == "cpu":
            output = _attend_one(queries * scaling, self._own.layers[layer], bias, common, mass)
        else:
            own, own_mass = _attend(queries, key, value, scaling, bias)
            output = torch.lerp(own, common, torch.sigmoid(mass - own_mass).to(own.dtype))
        return output.reshape(batch, heads, count, size).transpose(1, 2)

    def _apart(self, together: torch.Tensor) -> torch.Tensor:
        """Split (U, K, G * M, ...) of all rows of a prompt into (B, K, M, ...) of each row."""
        rows = together.unflatten(2, (self._group, -1)).transpose(1, 2).flatten(0, 1)
        return rows if self._places is None else rows[self._places]


def _bias(hidden: torch.Tensor) -> torch.Tensor:
    """Return the bias to add to scores: `HIDDEN_SCORE` where `hidden`, else 0."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, HIDDEN_SCORE)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention of queries (B, K, M, D) to keys (B, K, S, D), and its log mass (B, K, M, 1), fp32."""
    if bias is not None:
        bias = bias.expand(-1, -1, query.shape[2], -1)
    if fused is None or query.device.type != "cpu":
        at_once = max(1, SCORES_AT_ONCE // (key.shape[0] * key.shape[1] * key.shape[2]))
        biases = repeat(None) if bias is None else bias.split(at_once, dim=2)
        parts = [
            _attend_in_fp32(some, key, value, scaling, bias)
            for some, bias in zip(query.split(at_once, dim=2), biases, strict=False)
        ]
        if len(parts) == 1:
            return parts[0]
        output, mass = (torch.cat(each, dim=2) for each in zip(*parts, strict=True))
        return output, mass
    # autocast leaves rotated queries and keys in another precision than the values
    output, mass = fused(query.to(value.dtype), key.to(value.dtype), value, attn_mask=bias, scale=scaling)
    return output, mass.unsqueeze(-1)


def _attend_in_fp32(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute what `_attend` returns, on any device."""
    kind = query.device.type
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    with torch.autocast(kind, enabled=False) if autocast else nullcontext():
        scores = torch.matmul(query.float() * scaling, key.float().transpose(2, 3))  # (B, K, M, S)
        if bias is not None:
            scores += bias
        weights = scores.softmax(dim=-1)
        # from the largest score: its weight is exp(score) / mass
        mass = scores.amax(dim=-1, keepdim=True) - weights.amax(dim=-1, keepdim=True).log()
        return torch.matmul(weights.to(value.dtype), value), mass


def _attend_one(
    query: torch.Tensor,
    past: RowLayer,
    bias: torch.Tensor | None,
    common: torch.Tensor,
    common_mass: torch.Tensor,
) -> torch.Tensor:
    """Return attention of one token's scaled queries (B, K, M, D) to its row's own past and its prompt.

    The prompt is one more column, whose score is its log mass and whose value is the attention to it. A
    buffer's spare columns are read and masked: skipping them would leave gaps between the heads, and a CPU
    takes twice as long for that as for reading everything in one go.
    """
    keys, values = past.keys[: len(query)], past.values[: len(query)]  # (B, K, C, D)
    scores = torch.matmul(query, keys.transpose(2, 3))  # (B, K, M, C)
    scores[..., past.length :] = HIDDEN_SCORE
    if bias is not None:
        scores[..., : past.length] += bias
    weights = torch.cat((scores, common_mass), dim=-1).softmax(dim=-1)
    return torch.addcmul(torch.matmul(weights[..., :-1], values), weights[..., -1:], common)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    return _active.get().attend(module.layer_idx, query, key, value, scaling), None  # type: ignore[arg-type]


AttentionInterface.register(ATTENTION, _attention)
