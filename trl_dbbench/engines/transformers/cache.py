"""A KV cache for episodes: it grows in place, and its rows stay aligned from turn to turn.

transformers' own dynamic cache is concatenated at every token, which copies all of it each time. Here a token
is written into a buffer with spare columns.

Between turns rows come and go, and all rows are right-aligned, so that new tokens are fed to all of them in
the same columns. That is the layout of a left-padded prefill, so positions, causal masks and sliding windows
come out as if nothing had been cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

GROW_BY_COLUMNS = 256
"""Columns by which a full buffer grows."""


def can_keep(config: PreTrainedConfig) -> bool:
    """Return whether a model's past is keys and values only, so that its rows can be moved and cut.

    A linear-attention layer's state is a sum over the whole past, padding included, and allows neither.
    """
    layers = DynamicCache(config=config).layers
    # the last layers of Gemma 3n and Gemma 4 E2B reuse another layer's keys and values and have none of their
    # own; transformers before 5.24 has no such class and does not list them
    while layers and type(layers[-1]).__name__ == "DummyLayer":
        layers.pop()
    return bool(layers) and all(type(each) in (DynamicLayer, DynamicSlidingWindowLayer) for each in layers)


class RowLayer(DynamicLayer):
    """One layer's keys and values, each (rows, heads, columns, head size) and filled up to `length`.

    The spare columns beyond it, at most `room`, hold arbitrary numbers.
    """

    def __init__(self, room: int = GROW_BY_COLUMNS) -> None:
        super().__init__()
        self.room = room
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]  # (rows, heads, 0, head size)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, end = key_states.shape[0], self.length + key_states.shape[2]
        if end > self.keys.shape[2]:
            self.keys, self.values = (self._moved(old, end + self.room) for old in (self.keys, self.values))
        self.keys[:rows, :, self.length : end] = key_states
        self.values[:rows, :, self.length : end] = value_states
        self.length = end
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def get_seq_length(self) -> int:
        return self.length

    def _moved(self, old: torch.Tensor, columns: int) -> torch.Tensor:
        new = _buffer(old, old.shape[0], self.length, columns - self.length)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new


class Piece(NamedTuple):
    """Columns of a row, to be moved to another cache."""

    cache: RowCache
    row: int
    start: int
    columns: int


class RowCache(Cache):
    """Cache of some rows in all layers. A full buffer grows by `room` columns; `len()` counts layers."""

    layers: list[RowLayer]

    def __init__(self, room: int = GROW_BY_COLUMNS) -> None:
        super().__init__(layer_class_to_replicate=partial(RowLayer, room))

    @classmethod
    def of(cls, pieces: Sequence[Piece | None], edge: int, room: int = GROW_BY_COLUMNS) -> RowCache:
        """Return a cache with a row for each piece, right-aligned at column `edge`; `None` is an empty row.

        The pieces' caches are used up layer by layer, so that there is never a second copy of the whole.
        """
        new = cls(room)
        sources = list({id(piece.cache): piece.cache for piece in pieces if piece is not None}.values())
        for number in range(len(sources[0].layers) if sources else 0):
            layers = [source.layers[number] for source in sources]
            new.layers.append(layer := RowLayer(room))
            layer.lazy_initialization(layers[0].keys, layers[0].values)
            layer.length = edge
            for name in ("keys", "values"):
                buffer = _buffer(getattr(layers[0], name), len(pieces), edge, room)
                for to, piece in zip(buffer, pieces, strict=True):
                    count = 0 if piece is None else piece.columns
                    to[:, : edge - count] = 0
                    if piece is not None and count:
                        old = getattr(piece.cache.layers[number], name)[piece.row]
                        to[:, edge - count : edge] = old[:, piece.start : piece.start + count]
                setattr(layer, name, buffer)
                for each in layers:
                    setattr(each, name, None)
        return new

    def swap_rows(self, one: int, other: int) -> None:
        for layer in self.layers:
            for tensor in (layer.keys[:, :, : layer.length], layer.values[:, :, : layer.length]):
                kept = tensor[one].clone()
                tensor[one] = tensor[other]
                tensor[other] = kept


def _buffer(like: torch.Tensor, rows: int, length: int, room: int) -> torch.Tensor:
    """Return a buffer of `length` columns to be written and `room` of zeros: NaN would pass any mask."""
    _, heads, _, size = like.shape
    new = like.new_empty(rows, heads, length + room, size)
    new[:, :, length:] = 0
    return new
