"""Forward passes of bounded size: the rows of a micro-batch go through the model a few at a time.

Activations of a row stay in memory until its backward pass. With `max_tokens_per_forward` a micro-batch is
divided into parts, and each part goes forward and backward on its own:

```
part's rows     through the model; their log-probabilities lead back to it  \\
rows before it  as computed then; constants                                  > loss of the whole micro-batch
rows after it   0; constants                                                /
```

The loss is TRL's, once for each part, and always over all rows. So every mean has its right divisor, whatever
the loss type, and the gradients of all parts add up to those of the undivided micro-batch: a row's gradient
depends on its own tokens and on counts of masks. The last part's loss sees the values of all rows; it is the
one that is logged. Only the load-balancing loss of experts is another: the mean over the parts, as it is over
micro-batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from accelerate.utils import DistributedType
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trl_dbbench.engines.policy import forward_is_collective
from trl_dbbench.engines.shared_prompts import WORTH, same_prompt
from trl_dbbench.episode.types import Episode
from trl_dbbench.training.resume import replaced


class Tokens(NamedTuple):
    """Rows of a batch: prompts, padded on the left, and completions, padded on the right."""

    input_ids: torch.Tensor  # (B, L)
    attention_mask: torch.Tensor  # (B, L)
    completion: int  # T, columns of the completions

    @classmethod
    def of(cls, batch: dict[str, Any]) -> Tokens:
        """Take them from a scored batch."""
        ids, mask = (
            torch.cat([batch[f"prompt_{of}"], batch[f"completion_{of}"]], dim=1) for of in ("ids", "mask")
        )
        return cls(ids, mask, batch["completion_ids"].shape[1])


Values = tuple[Any, ...]
Run = Callable[[Tokens, int | None], Values]
"""Computes values of completions' tokens, (B, T), or one of all rows, or `None`, given the rows of a pass."""


class Row(NamedTuple):
    """Size of a row: a prompt, whose number equal prompts share, and a completion."""

    place: int
    prompt: int
    prompt_tokens: int
    completion_tokens: int


def rows_of(tokens: Tokens) -> list[Row]:
    """Return the rows of a batch, those of one prompt one after the other."""
    width = tokens.input_ids.shape[1] - tokens.completion
    mask = tokens.attention_mask
    prompts, completions = (each.sum(dim=1).tolist() for each in (mask[:, :width], mask[:, width:]))
    return [
        Row(row, number, prompts[row], completions[row])
        for number, rows in enumerate(same_prompt(*tokens))
        for row in rows
    ]


def tokens_of(rows: Sequence[Row], shared: bool) -> int:
    """Return the tokens that a forward pass computes, padding included.

    Args:
        shared: whether rows one after the other share their prompt, where that is worth it.
    """
    padded = len(rows) * (_longest(rows, "prompt_tokens") + _longest(rows, "completion_tokens"))
    return in_one_row(rows) if shared and in_one_row(rows) <= WORTH * padded else padded


def in_one_row(rows: Sequence[Row]) -> int:
    """Return the tokens of rows that share prompts, as `lay_out` puts them into one."""
    tokens = 0
    for _, group in groupby(rows, key=lambda row: row.prompt):
        episodes = list(group)
        suffix = 1 + _longest(episodes, "completion_tokens")
        tokens += episodes[0].prompt_tokens - 1 + len(episodes) * suffix
    return tokens


def _longest(rows: Sequence[Row], of: str) -> int:
    return max(getattr(row, of) for row in rows)


def pack(rows: Sequence[Row], bound: int, shared: bool, count: int = 1) -> list[list[Row]]:
    """Divide rows into parts of at most `bound` tokens; a longer row is a part of its own.

    Rows of about one length come together, the longest first. With `shared`, those of a prompt do.

    Args:
        shared: as in `tokens_of`.
        count: parts at least; not more than there are rows.
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
    """Return whether a batch's forward passes are within a bound as they are.

    Args:
        batch_size: rows of a pass; all if left out.
        shared: as in `tokens_of`.
    """
    count = min(batch_size or len(tokens.input_ids), len(tokens.input_ids))
    if count * tokens.input_ids.shape[1] <= bound:
        return True
    if not shared:
        return False
    rows = rows_of(tokens)
    computed = [in_one_row(rows[at : at + count]) for at in range(0, len(rows), count)]
    return max(computed) <= bound and sum(computed) <= WORTH * tokens.input_ids.numel()


@dataclass(frozen=True)
class Part:
    """Rows of a micro-batch, and the columns that they use."""

    number: int
    rows: torch.Tensor  # (n,)
    prompt: int  # columns of prompts, which are padded on the left
    completion: int  # columns of completions, which are padded on the right

    @classmethod
    def of(cls, number: int, rows: Sequence[Row], device: torch.device) -> Part:
        places = torch.tensor([row.place for row in rows], device=device)
        return cls(number, places, _longest(rows, "prompt_tokens"), _longest(rows, "completion_tokens"))

    def cut(self, tokens: Tokens) -> Tokens:
        start = tokens.input_ids.shape[1] - tokens.completion
        columns = slice(start - self.prompt, start + self.completion)
        ids, mask = (each[self.rows, columns] for each in tokens[:2])
        return Tokens(ids, mask, self.completion)


class Forwards:
    """Passes of a trainer's models, each of at most `bound` tokens.

    Args:
        trainer: a `DBBenchGRPOTrainer`.
        bound: tokens at most; `None` for no bound.
    """

    def __init__(self, trainer: Any, bound: int | None):
        self.trainer, self.bound = trainer, bound
        self.count_shared = True
        """Whether a prompt that a pass computes once is counted once."""
        self._parts: list[Part] = []  # of the batch that is under way, if it is divided
        self._part: Part | None = None  # what goes through the model
        self._known: dict[tuple[str, int], torch.Tensor] = {}  # (B, T), of the parts before it

    # --- the loss ---------------------------------------------------------------------------------

    def loss(
        self, model: nn.Module, batch: dict[str, Any], compute: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """Return the loss of a micro-batch. If it is divided, the gradients of all parts but the last are
        there; a backward pass of the loss adds the last one's.

        Args:
            compute: TRL's loss of the micro-batch, whose values are computed by `score`.
        """
        tokens, trainer = Tokens.of(batch), self.trainer
        shared = trainer.shares_prompts(model) and not trainer.aux_loss_enabled
        with self._divided(tokens, None, shared, together=True) as parts:
            if parts and trainer.top_entropy_quantile < 1:
                with torch.no_grad():  # the quantile is that of all rows
                    for self._part in parts:
                        trainer._get_per_token_logps_and_entropies(model, *tokens, compute_entropy=True)
            for self._part in parts[:-1]:
                with self._unfinished(model):
                    self._backward(compute())
            self._part = parts[-1] if parts else None
            return compute()

    @contextmanager
    def _unfinished(self, model: nn.Module) -> Iterator[None]:
        """Compute a loss that is not logged, and whose gradients the ranks do not yet exchange."""
        trainer = self.trainer
        state = trainer.accelerator.gradient_state
        unlogged: dict[str, Any] = {phase: defaultdict(list) for phase in trainer._metrics}
        # FSDP would keep whole gradients until they are exchanged; there each part's are
        local = model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()
        entropies = trainer._entropy_window_stats
        with replaced(trainer, _metrics=unlogged, _entropy_window_stats=entropies), local:
            last = state.sync_gradients
            state._set_sync_gradients(False)
            try:
                yield
            finally:
                state._set_sync_gradients(last)

    def _backward(self, loss: torch.Tensor) -> None:
        accelerator = self.trainer.accelerator
        deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
        accelerator.backward(loss, **({"scale_wrt_gas": False} if deepspeed else {}))  # as in training_step

    def groups(self, episodes: Sequence[Episode]) -> list[list[Episode]]:
        """Divide episodes that another loss than TRL's is computed of into passes."""
        size, groups = self.trainer.args.per_device_train_batch_size, []
        for start in range(0, len(episodes), size):
            some = episodes[start : start + size]
            rows = [
                Row(place, place, len(each.prompt_ids), len(each.completion_ids))
                for place, each in enumerate(some)
            ]
            bound = self.bound or tokens_of(rows, shared=False)
            parts = pack(rows, bound, shared=False) if tokens_of(rows, shared=False) > bound else [rows]
            groups += [[some[row.place] for row in part] for part in parts]
        return groups

    # --- what it is computed from -----------------------------------------------------------------

    def score(
        self, name: str, run: Run, tokens: Tokens, batch_size: int | None = None, *, shared: bool = False
    ) -> Values:
        """Return values (B, T) of the completions' tokens.

        Within `loss`, only the rows of the part that is under way are computed. Without gradients the parts
        are computed one after the other, as many on all ranks where ranks need each other for it.

        Args:
            name: tells these values from others of the same micro-batch.
            batch_size: rows of a forward pass, if they fit; all if left out.
            shared: as in `tokens_of`.
        """
        if self._part is not None:
            values, shape = run(self._part.cut(tokens), None), (len(tokens.input_ids), tokens.completion)
            return tuple(self._placed((name, place), each, shape) for place, each in enumerate(values))
        if torch.is_grad_enabled():
            return run(tokens, batch_size)
        together = forward_is_collective(self.trainer.accelerator)
        with self._divided(tokens, batch_size, shared, together) as parts:
            values = () if parts else run(tokens, batch_size)
            for self._part in parts:
                values = self.score(name, run, tokens)
            return values

    def _placed(
        self, key: tuple[str, int], values: torch.Tensor | None, shape: tuple[int, int]
    ) -> torch.Tensor | None:
        """Put a part's values (n, t) among those known of the batch (B, T); one of all rows, into a mean."""
        if values is None or self._part is None:
            return None
        if values.dim() == 0:
            place = torch.tensor([self._part.number], device=values.device)
            return self._beside(key, (len(self._parts),), place, values[None]).mean()
        padded = F.pad(values, (0, shape[1] - values.shape[1]))
        return self._beside(key, shape, self._part.rows, padded)

    def _beside(
        self, key: tuple[str, int], shape: tuple[int, ...], places: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        known = self._known.get(key)
        together = (values.new_zeros(shape) if known is None else known).index_copy(0, places, values)
        self._known[key] = together.detach()
        return together

    @contextmanager
    def _divided(
        self, tokens: Tokens, batch_size: int | None, shared: bool, together: bool
    ) -> Iterator[list[Part]]:
        """Give the parts that a batch goes through the model in; none if it can as it is.

        Args:
            together: whether all ranks must have as many.
        """
        shared = shared and self.count_shared
        bound = self.bound
        rows = [] if bound is None else self._rows(tokens, batch_size, shared, bound, together)
        self._parts = [Part.of(place, each, tokens.input_ids.device) for place, each in enumerate(rows)]
        try:
            yield self._parts
        finally:
            self._parts, self._part, self._known = [], None, {}

    def _rows(
        self, tokens: Tokens, batch_size: int | None, shared: bool, bound: int, together: bool
    ) -> list[list[Row]]:
        """Return the rows of each part."""
        accelerator = self.trainer.accelerator
        fits = fit(tokens, batch_size, shared, bound)
        parts = [] if fits else pack(rows_of(tokens), bound, shared)
        if together and accelerator.num_processes > 1:
            own = torch.tensor([len(parts)], device=accelerator.device)
            if count := int(accelerator.gather(own).max()):
                parts = pack(rows_of(tokens), bound, shared, count)
        return parts
