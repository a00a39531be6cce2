"""Admission of a rollout's episodes to rows of the cache, as far as memory allows.

The memory of a rollout in which R episodes of U prompts have a row:

```
cache     bytes of a token's keys and values * (R * longest episode + U * longest prompt, in tokens)
logits    R * vocabulary * 5 numbers: the model's own, scaled, their softmax, and copies
feeding   tokens of all rows (FED_TOKENS at most) * a layer's intermediate results per token
```

Without shared prompts, U is 0 and an episode's tokens include its prompt. Each episode counts at its full
length from the start, so one that has a row is never stopped. Episodes of the same prompt are admitted one
after another, so that few prompts are kept at a time.
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
"""Most tokens fed through the model at once: each takes memory for a layer's intermediate results."""

FED_VALUES, FED_VALUES_OF_MLP = 8, 3
"""A layer's intermediate numbers per token, in multiples of the hidden size and of the MLP's size."""

LOGITS = 5
"""Numbers held per entry of the vocabulary while a row's next token is chosen."""

TAKEN_SHARE = 0.75
"""Largest share of free memory that a rollout takes: libraries and other processes need some too."""


def _largest(text: PreTrainedConfig, name: str) -> int | None:
    """Return a size, the largest if layers differ: Gemma 3n lists sizes, Gemma 4 has a config per layer."""
    found = (getattr(layer, name, None) for layer in getattr(text, "per_layer_config", None) or [text])
    sizes = (size for each in found for size in (each if isinstance(each, list | tuple) else [each]))
    return max((size for size in sizes if size is not None), default=None)


def key_value_heads(text: PreTrainedConfig) -> int:
    """Return the number of key-value heads; by default the number of query heads."""
    return _largest(text, "num_key_value_heads") or text.num_attention_heads


def head_size(text: PreTrainedConfig) -> int:
    """Return the dimension of an attention head."""
    return _largest(text, "head_dim") or text.hidden_size // text.num_attention_heads


def mlp_size(text: PreTrainedConfig) -> int:
    """Return the intermediate size of the MLP; 4 times the hidden size if the config has none."""
    return _largest(text, "intermediate_size") or 4 * text.hidden_size


def cache_bytes_per_token(config: PreTrainedConfig, value_bytes: int) -> int:
    """Return the bytes of one token's keys and values in all layers, at `value_bytes` per number."""
    text = config.get_text_config()
    size = head_size(text)
    # in multi-head latent attention, keys and values differ in size
    sizes = (getattr(text, "qk_head_dim", None) or size) + (getattr(text, "v_head_dim", None) or size)
    return text.num_hidden_layers * key_value_heads(text) * sizes * value_bytes


@dataclass(frozen=True)
class Costs:
    """Memory costs of a rollout.

    Args:
        token: bytes per token in the cache.
        row: bytes per row.
        fed: bytes per token that is fed through the model.
        at_once: most tokens that are fed through it at once.
        shares: whether the episodes of a prompt share its tokens in the cache.
    """

    token: float
    row: int
    fed: int
    at_once: float
    shares: bool

    @classmethod
    def of(cls, config: PreTrainedConfig, dtype: torch.dtype, *, shares: bool, keeps: bool = True) -> Costs:
        """Return the costs of a model that computes in this dtype.

        Unless the model `keeps` its past from turn to turn, all tokens of a turn are fed at once.
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
        """Return the bytes that this many rows take.

        Args:
            longest: tokens of the longest row, without its prompt if prompts are shared.
            prompts, longest_prompt: number of distinct prompts and tokens of the longest, if they are shared.
        """
        room = OWN_SPARE_COLUMNS if self.shares else GROW_BY_COLUMNS
        cached = rows * (longest + room) + prompts * longest_prompt
        fed = min(self.at_once, max(rows * longest, longest_prompt))
        return cached * self.token + rows * self.row + fed * self.fed

    def together(self, firsts: Iterable[Request]) -> Iterator[float]:
        """Yield the bytes that one, two, three, ... of these episodes take, given their first requests."""
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
    """The episodes of a rollout that have a row of the cache.

    Args:
        most: most episodes at a time; by default as many as fit into `free` bytes, or all if those are
            unknown.
    """

    def __init__(self, costs: Costs, most: int | None, free: int | None):
        self._costs = costs
        self._most = most or sys.maxsize
        self._memory = math.inf if most or free is None else TAKEN_SHARE * free
        self._held: dict[int, Request] = {}  # row -> its episode's first request
        self._first_row: dict[tuple[int, ...], int] = {}  # prompt -> its first row

    def admit(self, waiting: Sequence[Request]) -> Collection[int]:
        """Return the rows to answer next: those that were admitted before, and new ones if there is room."""
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
