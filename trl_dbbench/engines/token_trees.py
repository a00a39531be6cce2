"""Training forwards of episodes that are several sequences (see `episode.token_tree`).

A row of the batch holds each token once, however many sequences it is in. It goes through the model as it
is: a token sees those before it in its sequences, by a mask, and its position is its place in them.
Log-probabilities and gradients are those of one forward a sequence up to rounding. Models whose forward
cannot share prompts get just that: one forward a sequence.

Shapes: B rows of L columns; the last T columns are completions. For each of their tokens, `follows` (B, T)
has the column of the token before it. Columns are counted from the first completion's: -1 is the last token
of the prompt. `NOTHING_BEFORE` stands for none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from trl_dbbench.engines.shared_prompts import Layout, Tokens, Tree
from trl_dbbench.episode.token_tree import NOTHING, paths
from trl_dbbench.episode.types import Episode

NOTHING_BEFORE = torch.iinfo(torch.long).min


def follows_of(episodes: Sequence[Episode], columns: int) -> torch.Tensor | None:
    """Return (B, T) of a batch's episodes; `None` if all are plain."""
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
    """Return the columns that each row's tokens lie in, and the place, among them, of the one before each."""
    assert tokens.follows is not None
    width, rows = tokens.width, []
    for mask, after in zip(tokens.attention_mask.tolist(), tokens.follows.tolist(), strict=True):
        columns = [column for column, shown in enumerate(mask) if shown]
        prompt = sum(mask[:width])
        before = [
            place - 1 if place < prompt else _place(after[column - width], prompt)
            for place, column in enumerate(columns)
        ]
        rows.append((columns, before))
    return rows


def _place(after: int, prompt: int) -> int:
    return NOTHING if after == NOTHING_BEFORE else prompt + after


def lay_out_trees(tokens: Tokens, rows: Sequence[int]) -> Layout:
    """Put some rows of a batch into one, each a tree."""
    input_ids, width, device = tokens.input_ids, tokens.width, tokens.input_ids.device
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
    from_rows, from_columns = torch.tensor(ids, device=device).T
    of_rows, of_columns = torch.tensor(targets, device=device).T
    return Layout(
        groups=tuple(trees),
        input_ids=input_ids[from_rows, from_columns][None],
        position_ids=torch.cat(positions)[None].to(device),
        predicts=torch.tensor(predicts, device=device),
        targets=input_ids[of_rows, width + of_columns][None],
        rows=of_rows,
        columns=of_columns,
    )


Usual = Callable[[torch.Tensor, torch.Tensor, int, int | None], tuple[torch.Tensor, torch.Tensor | None]]
"""The usual forward: values (B, T) of completions' tokens, given ids, mask, T and the rows of a pass."""


def score_sequences(
    usual: Usual, tokens: Tokens, batch_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the values (B, T) of the completions' tokens, by one forward a sequence."""
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
    values = usual(ids, mask, longest - 1, batch_size)
    # a token's value is taken from the first sequence that has it
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for number, (row, columns) in enumerate(sequences):
        for place, column in enumerate(columns):
            if place and column >= width:
                first.setdefault((row, column - width), (number, longest - len(columns) + place - 1))
    to, source = (torch.tensor(list(each), device=ids.device).T for each in (first.keys(), first.values()))

    def placed(computed: torch.Tensor | None) -> torch.Tensor | None:
        if computed is None:
            return None
        return computed.new_zeros(len(input_ids), tokens.completion).index_put(
            tuple(to), computed[tuple(source)]
        )

    logps = placed(values[0])
    assert logps is not None
    return logps, placed(values[1])
