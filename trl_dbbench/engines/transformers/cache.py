"""A KV cache for episodes: it grows in place, and its rows stay aligned from turn to turn.

transformers' own dynamic cache is concatenated anew at every token, which copies all of it each time. Here a
token is written into a buffer with room to spare.

Between turns every row is pushed against one right edge, so that what follows is fed to all rows in the same
columns. That is the layout of a left-padded prefill, with which positions, causal masks and sliding windows
come out as if nothing had been cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

GROW_BY_COLUMNS = 256
"""Columns by which a full buffer grows."""


def can_keep(config: PreTrainedConfig) -> bool:
    """Return whether a model's past is keys and values only, by which rows can be moved and cut.

    A linear-attention layer's state is a sum over all the past, pads included: it can be neither.
    """
    return all(
        type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
        for layer in DynamicCache(config=config).layers
    )


class RowLayer(DynamicLayer):
    """One layer's keys and values, each (rows, heads, columns, head size) and filled up to `length`.

    The columns beyond, `room` at most, hold numbers that mean nothing.
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

    def empty_copy(self) -> RowLayer:
        """As long as this one; its keys and values are the caller's to set."""
        copy = RowLayer(self.room)
        copy.dtype, copy.device, copy.is_initialized = self.dtype, self.device, self.is_initialized
        copy.length = self.length
        return copy

    def cut(self, rows: int, columns: int) -> None:
        """Forget all but the first rows and columns."""
        self.length = columns
        self.keys, self.values = self.keys[:rows], self.values[:rows]
        if self.keys.shape[2] > columns + self.room:
            self.keys, self.values = (
                self._moved(old, columns + self.room) for old in (self.keys, self.values)
            )

    def _moved(self, old: torch.Tensor, columns: int) -> torch.Tensor:
        new = _buffer(old, old.shape[0], self.length, columns - self.length)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new


class RowCache(Cache):
    """All layers of some rows. `len()` of it is the number of layers, as transformers has it.

    Args:
        room: columns by which a full buffer grows.
    """

    layers: list[RowLayer]

    def __init__(self, room: int = GROW_BY_COLUMNS) -> None:
        super().__init__(layer_class_to_replicate=partial(RowLayer, room))

    @classmethod
    def joined(cls, parts: Sequence[RowCache]) -> RowCache:
        """A cache of the rows of all of these, which are equally wide; the parts themselves if there is only
        one."""
        if len(parts) == 1:
            return parts[0]
        new = cls()
        for same in zip(*(part.layers for part in parts), strict=True):
            new.layers.append(joined := same[0].empty_copy())
            joined.keys = torch.cat([layer.keys[:, :, : layer.length] for layer in same])
            joined.values = torch.cat([layer.values[:, :, : layer.length] for layer in same])
        return new

    def spread(self, sources: Sequence[int]) -> RowCache:
        """A cache whose row i is a copy of this one's row `sources[i]`."""
        new = RowCache()
        for layer in self.layers:
            new.layers.append(copy := layer.empty_copy())
            copy.keys, copy.values = (
                _buffer(old, len(sources), layer.length, layer.room) for old in (layer.keys, layer.values)
            )
            for row, source in enumerate(sources):
                copy.keys[row, :, : layer.length] = layer.keys[source, :, : layer.length]
                copy.values[row, :, : layer.length] = layer.values[source, :, : layer.length]
        return new

    def push(self, row: int, start: int, count: int, edge: int) -> None:
        """Move a row's `count` columns from `start` on against the column `edge`."""
        to = edge - count
        if start == to:
            return
        for tensor in self._tensors():
            # a copy in between, since the two places may overlap
            tensor[row, :, to:edge] = tensor[row, :, start : start + count].clone()
            tensor[row, :, start:to] = 0

    def swap_rows(self, one: int, other: int) -> None:
        for tensor in self._tensors():
            kept = tensor[one].clone()
            tensor[one] = tensor[other]
            tensor[other] = kept

    def cut(self, rows: int, columns: int) -> None:
        """Forget all but the first `rows` rows and `columns` columns."""
        for layer in self.layers:
            layer.cut(rows, columns)

    def _tensors(self) -> Iterator[torch.Tensor]:
        for layer in self.layers:
            yield layer.keys[:, :, : layer.length]
            yield layer.values[:, :, : layer.length]


def _buffer(like: torch.Tensor, rows: int, length: int, room: int) -> torch.Tensor:
    """`length` columns to be written, and `room` more of zeros: a NaN would pass any mask."""
    _, heads, _, size = like.shape
    new = like.new_empty(rows, heads, length + room, size)
    new[:, :, length:] = 0
    return new
