"""Division of a batch's rows into parts, so that no forward pass exceeds a bound of tokens.

```
row  prompt  completion      part, of at most 20 tokens
b    4       26              b: 30, alone
e    4       6               e, d: 2 * (4 + 6), d with one token of padding
d    4       5
a    4       4               a, c: 2 * (6 + 4)
c    6       1
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch

from trl_dbbench.engines.shared_prompts import WORTH, Tokens, same_prompt
from trl_dbbench.engines.token_trees import paths, places_of


class Row(NamedTuple):
    """Index (`place`) and size of a row: its prompt's number, equal for equal prompts, and its tokens."""

    place: int
    prompt: int
    prompt_tokens: int
    completion_tokens: int
    apart_tokens: int = 0
    """Tokens of its sequences, padding included, if each is computed as a separate row; otherwise 0."""


def rows_of(tokens: Tokens) -> list[Row]:
    """Return the rows of a batch, grouped by prompt."""
    width, mask = tokens.width, tokens.attention_mask
    prompts, completions = (each.sum(dim=1).tolist() for each in (mask[:, :width], mask[:, width:]))
    apart = [0] * len(mask)
    if tokens.apart and tokens.follows is not None:
        lengths = [[len(path) for path in paths(before)] for _, before in places_of(tokens)]
        apart = [len(each) * max(each) for each in lengths]
    return [
        Row(row, number, prompts[row], completions[row], apart[row])
        for number, rows in enumerate(same_prompt(tokens))
        for row in rows
    ]


def tokens_of(rows: Sequence[Row], shared: bool) -> int:
    """Return the tokens that a forward pass computes, padding included.

    Args:
        shared: whether consecutive rows of one prompt share it, if that saves enough.
    """
    longest = _longest(rows, "prompt_tokens") + _longest(rows, "completion_tokens")
    padded = len(rows) * max(longest, _longest(rows, "apart_tokens"))
    return in_one_row(rows) if shared and in_one_row(rows) <= WORTH * padded else padded


def in_one_row(rows: Sequence[Row]) -> int:
    """Return the tokens of rows that share prompts, as `lay_out` puts them into one row."""
    tokens = 0
    for _, group in groupby(rows, key=lambda row: row.prompt):
        episodes = list(group)
        suffix = 1 + _longest(episodes, "completion_tokens")
        tokens += episodes[0].prompt_tokens - 1 + len(episodes) * suffix
    return tokens


def _longest(rows: Sequence[Row], of: str) -> int:
    return max(getattr(row, of) for row in rows)


def pack(rows: Sequence[Row], bound: int, shared: bool, count: int = 1) -> list[list[Row]]:
    """Divide rows into parts of at most `bound` tokens; a longer row is a part by itself.

    Rows are sorted by length, the longest first, and with `shared` kept together by prompt.

    Args:
        shared: as in `tokens_of`.
        count: minimum number of parts; at most the number of rows.
    """
    longest: dict[int, int] = defaultdict(int)
    for row in rows:
        key = row.prompt if shared else row.place
        longest[key] = max(longest[key], row.prompt_tokens + row.completion_tokens)

    def order(row: Row) -> tuple[int, ...]:
        key = row.prompt if shared else row.place
        return -longest[key], key, -row.completion_tokens, row.place

    parts: list[list[Row]] = []
    for row in sorted(rows, key=order):
        if parts and tokens_of([*parts[-1], row], shared) <= bound:
            parts[-1].append(row)
        else:
            parts.append([row])
    while len(parts) < count:
        place = max(
            range(len(parts)), key=lambda each: (len(parts[each]) > 1, tokens_of(parts[each], shared))
        )
        half = len(parts[place]) // 2
        parts[place : place + 1] = [parts[place][:half], parts[place][half:]]
    return parts


def fit(tokens: Tokens, batch_size: int | None, shared: bool, bound: int) -> bool:
    """Return whether a batch's forward passes stay within a bound without division.

    Args:
        batch_size: rows per pass; all if left out.
        shared: as in `tokens_of`.
    """
    count = min(batch_size or len(tokens.input_ids), len(tokens.input_ids))
    if tokens.apart and tokens.follows is not None:
        rows = rows_of(tokens)
        return all(tokens_of(rows[at : at + count], False) <= bound for at in range(0, len(rows), count))
    if count * tokens.input_ids.shape[1] <= bound:
        return True
    if not shared:
        return False
    rows = rows_of(tokens)
    computed = [in_one_row(rows[at : at + count]) for at in range(0, len(rows), count)]
    return max(computed) <= bound and sum(computed) <= WORTH * tokens.input_ids.numel()


@dataclass(frozen=True)
class Part:
    """Some rows of a micro-batch, and the columns that they use."""

    number: int
    rows: torch.Tensor  # (n,)
    prompt: int  # columns of prompts, which are padded on the left
    completion: int  # columns of completions, which are padded on the right
    idle: bool = False
    """True if its rows have no gradient."""

    @classmethod
    def of(cls, number: int, rows: Sequence[Row], device: torch.device, idle: bool = False) -> Part:
        places = torch.tensor([row.place for row in rows], device=device)
        columns = _longest(rows, "prompt_tokens"), _longest(rows, "completion_tokens")
        return cls(number, places, *columns, idle)

    def cut(self, tokens: Tokens) -> Tokens:
        columns = slice(tokens.width - self.prompt, tokens.width + self.completion)
        ids, mask = (each[self.rows, columns] for each in tokens[:2])
        follows = None if tokens.follows is None else tokens.follows[self.rows, : self.completion]
        return Tokens(ids, mask, self.completion, follows, tokens.apart)
