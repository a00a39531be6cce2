"""Training forward passes of episodes that are several sequences (see `episode.token_tree`).

A row of the batch holds each token once, however many sequences contain it, and is computed in one pass. A
mask lets each token see only the tokens before it in its sequences, and its position is its place in them.
Log-probabilities and gradients equal those of one forward pass per sequence up to rounding. Models that
cannot share prompts compute each sequence separately instead.

Shapes: B rows of L columns; the last T columns are completions. For each of their tokens, `follows` (B, T)
has the column of the token before it, counted from the first completion column: -1 is the last token of the
prompt. `NOTHING_BEFORE` means that there is no such token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from trl_dbbench.engines.shared_prompts import Layout, Tokens, Tree
from trl_dbbench.episode.token_tree import NOTHING, paths
from trl_dbbench.episode.types import Episode

NOTHING_BEFORE = torch.iinfo(torch.long).min


def follows_of(episodes: Sequence[Episode], columns: int) -> torch.Tensor | None:
    """Return `follows` (B, T) of a batch's episodes; `None` if each is a single sequence."""
    known = [episode.follows for episode in episodes]
    if all(places is None for places in known):
        return None
    rows = []
    for episode, places in zip(episodes, known, strict=True):
        prompt = len(episode.prompt_ids)
        row = [NOTHING_BEFORE if place == NOTHING else place - prompt for place in places or ()]
        rows.append([*row, *range(len(row) - 1, columns - 1)])
    return torch.tensor(rows)


def places_of(tokens: Tokens) -> list[tuple[list[int], list[int]]]:
    """Return, for each row, the columns of its tokens and, for each token, the index in that list of the
    token before it."""
    assert tokens.follows is not None
    width, rows = tokens.width, []
    for mask, after in zip(tokens.attention_mask.tolist(), tokens.follows.tolist(), strict=True):
        columns = [column for column, shown in enumerate(mask) if shown]
        prompt = sum(mask[:width])
        before = [
            # `NOTHING_BEFORE` is less than any column
            place - 1 if place < prompt else max(NOTHING, prompt + after[column - width])
            for place, column in enumerate(columns)
        ]
        rows.append((columns, before))
    return rows


def lay_out_trees(tokens: Tokens, rows: Sequence[int]) -> Layout:
    """Lay out some rows of a batch, each a tree, in one row."""
    width, device = tokens.width, tokens.input_ids.device
    trees, ids, positions, predicts, targets = [], [], [], [], []
    assert tokens.follows is not None
    start, chosen = 0, [*rows]
    wanted = tokens._replace(attention_mask=tokens.attention_mask[chosen], follows=tokens.follows[chosen])
    for row, (columns, before) in zip(rows, places_of(wanted), strict=True):
        seen = torch.zeros(len(columns), len(columns), dtype=torch.bool)
        for place, earlier in enumerate(before):
            if earlier != NOTHING:
                seen[place] = seen[earlier]
            seen[place, place] = True
        trees.append(Tree(start, seen.to(device)))
        ids += [(row, column) for column in columns]
        positions.append(seen.sum(dim=1) - 1)
        scored = [
            (start + earlier, row, column - width)
            for column, earlier in zip(columns, before, strict=True)
            if column >= width and earlier != NOTHING
        ]
        predicts += [place for place, *_ in scored]
        targets += [target for _, *target in scored]
        start += len(columns)
    places, targeted = (torch.tensor(each).T for each in (ids, targets))
    return Layout.of(tokens, trees, places, torch.cat(positions), torch.tensor(predicts), targeted)


Usual = Callable[[torch.Tensor, torch.Tensor, int, int | None], tuple[torch.Tensor, torch.Tensor | None]]
"""The usual forward pass: log-probabilities and entropies (B, T) of the completion tokens, given ids, mask, T
and the rows per pass."""


def score_sequences(
    usual: Usual, tokens: Tokens, batch_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log-probabilities and entropies (B, T) of the completion tokens; each sequence gets a row."""
    input_ids, width = tokens.input_ids, tokens.width
    sequences = [
        (row, [columns[place] for place in path])
        for row, (columns, before) in enumerate(places_of(tokens))
        for path in paths(before)
    ]
    longest = max(len(columns) for _, columns in sequences)
    ids, mask = input_ids.new_zeros(2, len(sequences), longest)
    for number, (row, columns) in enumerate(sequences):
        ids[number, longest - len(columns) :] = input_ids[row, columns]
        mask[number, longest - len(columns) :] = 1
    # a token's value is taken from the first sequence that has it
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for number, (row, columns) in enumerate(sequences):
        for place, column in enumerate(columns):
            if place and column >= width:
                first.setdefault((row, column - width), (number, longest - len(columns) + place - 1))
    to, source = (torch.tensor(list(each), device=ids.device).T for each in (first.keys(), first.values()))

    def placed(computed: torch.Tensor) -> torch.Tensor:
        values = computed.new_zeros(len(input_ids), tokens.completion)
        return values.index_put(tuple(to), computed[tuple(source)])

    logps, entropies = usual(ids, mask, longest - 1, batch_size)
    return placed(logps), None if entropies is None else placed(entropies)
