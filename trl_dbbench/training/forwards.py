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

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import DistributedType
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trl_dbbench.engines.policy import forward_is_collective
from trl_dbbench.engines.shared_prompts import Tokens
from trl_dbbench.episode.types import Episode
from trl_dbbench.training.memory import fitting
from trl_dbbench.training.packing import Part, Row, fit, pack, rows_of, tokens_of
from trl_dbbench.training.resume import replaced
from trl_dbbench.utils.ranks import Ranks

logger = logging.getLogger(__name__)

Values = tuple[Any, ...]
Run = Callable[[Tokens, int | None], Values]
"""Computes values of completions' tokens, (B, T), or one of all rows, or `None`, given the rows of a pass."""


MUCH_LESS = 2 / 3
"""Share of a checkpoint's bound: if that, or less, fits now, the device is another one."""


class Forwards:
    """Passes of a trainer's models, each of at most `bound` tokens. A checkpoint keeps the bound.

    Args:
        trainer: a `DBBenchGRPOTrainer`.
        bound: tokens at most; `None` for no bound until `settle`.
    """

    def __init__(self, trainer: Any, bound: int | None):
        self.trainer, self.bound = trainer, bound
        self.count_shared = True
        """Whether a prompt that a pass computes once is counted once."""
        self.by_advantages = True
        """Whether a loss is a row's advantage times something: without one a row has no gradient."""
        self._parts: list[Part] = []  # of the batch that is under way, if it is divided
        self._part: Part | None = None  # what goes through the model
        self._known: dict[tuple[str, int], torch.Tensor] = {}  # (B, T), of the parts before it

    def settle(self) -> None:
        """Choose the bound by the memory that is free, if none is set. All ranks call it.

        A checkpoint's stays, so that sums are rounded as before, unless much less fits here.
        """
        if self.trainer.args.max_tokens_per_forward is not None:
            return
        own = fitting(self.trainer)
        known = [bound for bound in Ranks().gather(own) if bound is not None]
        fits = min(known, default=None)
        if self.bound is not None and (fits is None or fits > MUCH_LESS * self.bound):
            return
        self.bound = fits
        if self.bound is not None:
            logger.info(
                "A forward and backward pass has at most %d tokens (max_tokens_per_forward).", self.bound
            )

    def state_dict(self) -> dict[str, int | None]:
        return {"bound": self.bound}

    def load_state_dict(self, state: dict[str, int | None]) -> None:
        self.bound = state["bound"]

    # --- the loss ---------------------------------------------------------------------------------

    def loss(
        self, model: nn.Module, batch: dict[str, Any], compute: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """Return the loss of a micro-batch. If it is divided, the gradients of all parts but the last are
        there; a backward pass of the loss adds the last one's.

        Args:
            compute: TRL's loss of the micro-batch, whose values are computed by `score`.
        """
        trainer = self.trainer
        shares = trainer.shares_prompts(model)
        tokens = Tokens.of(batch, shares)
        shared = shares and not trainer.aux_loss_enabled and tokens.follows is None
        with self._divided(tokens, None, shared, together=True, idle=self._idle(batch)) as parts:
            known = parts if trainer.top_entropy_quantile < 1 else [part for part in parts if part.idle]
            with torch.no_grad():  # the quantile is that of all rows
                for self._part in known:
                    trainer._get_per_token_logps_and_entropies(model, *tokens[:3], compute_entropy=True)
            taught = [part for part in parts if not part.idle]
            for self._part in taught[:-1]:
                with self._unfinished(model):
                    self._backward(compute())
            self._part = taught[-1] if taught else None
            return compute()

    def _idle(self, batch: dict[str, Any]) -> frozenset[int]:
        """Return the rows without an advantage, as those of a group whose rewards are equal.

        Their values are computed for the metrics, and nothing is kept of them for a backward pass.
        """
        trainer = self.trainer
        more = trainer.beta != 0 or trainer._entropy_bonus_enabled or trainer.aux_loss_enabled
        # ranks may need each other's passes
        if more or not self.by_advantages or trainer.accelerator.num_processes > 1:
            return frozenset()
        nothing = (batch["advantages"].reshape(len(batch["advantages"]), -1) == 0).all(dim=1)
        idle = nothing.nonzero()[:, 0].tolist()
        # one is there for the backward pass
        return frozenset(idle[1:] if len(idle) == len(nothing) else idle)

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
        self,
        tokens: Tokens,
        batch_size: int | None,
        shared: bool,
        together: bool,
        idle: frozenset[int] = frozenset(),
    ) -> Iterator[list[Part]]:
        """Give the parts that a batch goes through the model in; none if it can as it is.

        Args:
            together: whether all ranks must have as many.
            idle: rows that are in parts of their own.
        """
        shared = shared and self.count_shared
        bound = self.bound
        if idle:
            every = rows_of(tokens)
            two = [[row for row in every if (row.place in idle) == of] for of in (False, True)]
            rows = [part for some in two for part in pack(some, bound or tokens_of(some, shared), shared)]
        else:
            rows = [] if bound is None else self._rows(tokens, batch_size, shared, bound, together)
        device = tokens.input_ids.device
        self._parts = [Part.of(place, each, device, each[0].place in idle) for place, each in enumerate(rows)]
        try:
            yield self._parts
        finally:
            self._parts, self._part, self._known = [], None, {}

    def _rows(
        self, tokens: Tokens, batch_size: int | None, shared: bool, bound: int, together: bool
    ) -> list[list[Row]]:
        """Return the rows of each part."""
        accelerator = self.trainer.accelerator
        rows, fits = rows_of(tokens), fit(tokens, batch_size, shared, bound)
        if not together or accelerator.num_processes == 1:
            return [] if fits else pack(rows, bound, shared)
        own = [len(pack(rows, bound, shared)), not fits]
        counts, divided = accelerator.gather(torch.tensor([own], device=accelerator.device)).max(dim=0).values
        return pack(rows, bound, shared, int(counts)) if divided else []
