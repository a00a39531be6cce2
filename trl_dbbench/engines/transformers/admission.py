"""Which episodes of a rollout have a row of the cache, and which wait for one.

The memory of a rollout, for R episodes of U prompts that have a row:

```
cache     keys and values of a token * (R * tokens of the longest episode + U * tokens of the longest prompt)
logits    R * vocabulary * 5 numbers: the model's own, scaled, as weights, and copies
feeding   the tokens of all rows, FED_TOKENS at most * what a layer computes on the way
```

Where prompts are not shared, U is 0 and an episode's tokens include its prompt. Each episode counts at its
full length from the start, so one that has a row is never stopped. Episodes of one prompt come one after the
other, so that few prompts are kept at a time.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from operator import attrgetter

import torch
from transformers import PreTrainedConfig

from trl_dbbench.engines.transformers.cache import GROW_BY_COLUMNS
from trl_dbbench.engines.transformers.prefix import OWN_SPARE_COLUMNS
from trl_dbbench.episode.types import Request

logger = logging.getLogger(__name__)

FED_TOKENS = 8_192
"""Tokens that go through the model together at most: a layer's intermediate results take memory for each."""

FED_VALUES, FED_VALUES_OF_MLP = 8, 3
"""Numbers that a layer computes on the way for a token, in hidden sizes and in sizes of its MLP."""

LOGITS = 5
"""Numbers per token of the vocabulary while a row's next token is chosen."""

TAKEN_SHARE = 0.75
"""Largest share of the free memory that a rollout takes: libraries and other processes need some too."""


def _largest(text: PreTrainedConfig, name: str) -> int | None:
    """Return a size; the largest where layers differ: Gemma 3n lists sizes, Gemma 4 has a config a layer."""
    found = (getattr(layer, name, None) for layer in getattr(text, "per_layer_config", None) or [text])
    sizes = (size for each in found for size in (each if isinstance(each, list | tuple) else [each]))
    return max((size for size in sizes if size is not None), default=None)


def key_value_heads(text: PreTrainedConfig) -> int:
    """Return the number of heads of keys and values; a config without it has as many as of queries."""
    return _largest(text, "num_key_value_heads") or text.num_attention_heads


def head_size(text: PreTrainedConfig) -> int:
    """Return the values of a head."""
    return _largest(text, "head_dim") or text.hidden_size // text.num_attention_heads


def mlp_size(text: PreTrainedConfig) -> int:
    """Return the values between the two layers of an MLP; 4 times the hidden size where a config has none."""
    return _largest(text, "intermediate_size") or 4 * text.hidden_size


def cache_bytes_per_token(config: PreTrainedConfig, value_bytes: int) -> int:
    """Return the bytes of the keys and values of one token, in all layers; a number has `value_bytes`."""
    text = config.get_text_config()
    size = head_size(text)
    # multi-head latent attention has keys and values of its own sizes
    sizes = (getattr(text, "qk_head_dim", None) or size) + (getattr(text, "v_head_dim", None) or size)
    return text.num_hidden_layers * key_value_heads(text) * sizes * value_bytes


@dataclass(frozen=True)
class Costs:
    """Bytes that a rollout takes.

    Args:
        token: for each token in the cache.
        row: for each row.
        fed: for each token that goes through the model.
        at_once: tokens that go through it together at most.
        shares: whether the episodes of a prompt share its tokens in the cache.
    """

    token: float
    row: int
    fed: int
    at_once: float
    shares: bool

    @classmethod
    def of(cls, config: PreTrainedConfig, dtype: torch.dtype, *, shares: bool, keeps: bool = True) -> Costs:
        """Return those of a model that computes with numbers of this type.

        Unless it `keeps` its past from turn to turn, all of a turn's tokens are fed at once.
        """
        # the keys and values of a layer are repeated for the heads that share them
        groups = config.num_attention_heads / key_value_heads(config)
        cached = cache_bytes_per_token(config, dtype.itemsize) * (1 + groups / config.num_hidden_layers)
        fed = (FED_VALUES_OF_MLP * mlp_size(config) + FED_VALUES * config.hidden_size) * dtype.itemsize
        return cls(
            token=cached,
            row=LOGITS * config.vocab_size * torch.float32.itemsize,
            fed=fed,
            at_once=FED_TOKENS if keeps else math.inf,
            shares=shares,
        )

    def taken(self, rows: int, longest: int, prompts: int = 0, longest_prompt: int = 0) -> float:
        """Return what rows take.

        Args:
            longest: tokens of the longest row; without its prompt, if they share prompts.
            prompts, longest_prompt: different prompts, and tokens of the longest, if they share them.
        """
        room = OWN_SPARE_COLUMNS if self.shares else GROW_BY_COLUMNS
        cached = rows * (longest + room) + prompts * longest_prompt
        fed = min(self.at_once, max(rows * longest, longest_prompt))
        return cached * self.token + rows * self.row + fed * self.fed

    def together(self, firsts: Iterable[Request]) -> Iterator[float]:
        """Yield what the first episode takes, the first two, and so on, given their first requests."""
        prompts = set[Sequence[int]]()
        longest_prompt = longest = 0
        for rows, first in enumerate(firsts, 1):
            own = first.limit or len(first.ids) + first.max_new_tokens
            if self.shares:
                prompts.add(tuple(first.ids))
                longest_prompt = max(longest_prompt, len(first.ids))
                own -= len(first.ids)
            longest = max(longest, own)
            yield self.taken(rows, longest, len(prompts), longest_prompt)


class Admission:
    """The episodes of a rollout that have a row.

    Args:
        most: of them at a time; by default what fits into `free` bytes, if these are known.
    """

    def __init__(self, costs: Costs, most: int | None, free: int | None):
        self._costs = costs
        self._most = most or sys.maxsize
        self._memory = math.inf if most or free is None else TAKEN_SHARE * free
        self._held: dict[int, Request] = {}  # by row, the first request of each
        self._first_row: dict[tuple[int, ...], int] = {}  # of each prompt

    def admit(self, waiting: Sequence[Request]) -> Collection[int]:
        """Return the rows that are answered next: all that were before, and others where there is room."""
        asked = {request.row for request in waiting}
        held = [first for row, first in self._held.items() if row in asked]
        new = sorted((each for each in waiting if each.row not in self._held), key=attrgetter("row"))
        for each in new:
            self._first_row.setdefault(tuple(each.ids), each.row)
        queue = [*held, *sorted(new, key=lambda each: self._first_row[tuple(each.ids)])]
        fitting = sum(1 for _ in takewhile(lambda size: size <= self._memory, self._costs.together(queue)))
        count = max(1, len(held), min(self._most, fitting))
        if not held and count < min(self._most, len(queue)):
            _tell(count, len(queue))
        self._held = {first.row: first for first in queue[:count]}
        return self._held.keys()


@cache
def _tell(count: int, episodes: int) -> None:
    logger.info(
        "%d of %d episodes play at a time, the others wait: more could take over %.0f %% of the memory that "
        "is free. max_concurrent_episodes sets the number.",
        *(count, episodes, 100 * TAKEN_SHARE),
    )
