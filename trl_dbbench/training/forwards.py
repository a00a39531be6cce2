"""Forward passes of bounded size: the rows of a micro-batch go through the model a few at a time.

A row's activations stay in memory until its backward pass. With `max_tokens_per_forward` a micro-batch is
divided into parts, and each part goes forward and backward by itself:

```
the part's rows  computed by the model, with gradients   \\
earlier rows     as computed in their parts; constants    > loss of the whole micro-batch
later rows       0; constants                            /
```

TRL's loss is computed once per part, always over all rows. So every mean has the right divisor, whatever the
loss type, and the gradients of all parts add up to those of the undivided micro-batch: a row's gradient
depends on its own tokens and on counts of masks. The last part's loss sees the values of all rows, and only
that one is logged. The load-balancing loss of experts alone differs: it is the mean over the parts, just as
it is over micro-batches.
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
"""Function of tokens and the rows per pass. Each value is (B, T), for completions' tokens; a scalar for all
rows; or `None`."""


MUCH_LESS = 2 / 3
"""Share of a checkpoint's bound: if no more fits now, the device is a different one."""


class Forwards:
    """Passes of a trainer's models, each of at most `bound` tokens. Checkpoints keep the bound.

    Args:
        trainer: a `DBBenchGRPOTrainer`.
        bound: maximum number of tokens; `None` for no bound until `settle`.
    """

    def __init__(self, trainer: Any, bound: int | None):
        self.trainer, self.bound = trainer, bound
        self.count_shared = True
        """True to count a prompt once if a pass computes it once."""
        self.by_advantages = True
        """True if the loss is proportional to a row's advantage, so that a row with 0 has no gradient."""
        self._parts: list[Part] = []  # of the current batch, if it is divided
        self._part: Part | None = None  # the one that goes through the model
        self._known: dict[tuple[str, int], torch.Tensor] = {}  # (B, T), values of the earlier parts

    def settle(self) -> None:
        """Choose the bound by the free memory, if the config sets none. All ranks must call it.

        A checkpoint's bound is kept, so that sums are rounded as before, unless much less fits here.
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
        """Return the loss of a micro-batch.

        If the micro-batch is divided, this makes the backward passes of all parts but the last; the caller's
        backward pass adds the last part's gradients.

        Args:
            compute: computes TRL's loss of the micro-batch, with values from `score`.
        """
        trainer = self.trainer
        shares = trainer.shares_prompts(model)
        tokens = Tokens.of(batch, shares)
        shared = shares and not trainer.aux_loss_enabled and tokens.follows is None
        with self._divided(tokens, None, shared, together=True, idle=self._idle(batch)) as parts:
            known = parts if trainer.top_entropy_quantile < 1 else [part for part in parts if part.idle]
            with torch.no_grad():  # the entropy quantile is over all rows
                for self._part in known:
                    trainer._get_per_token_logps_and_entropies(model, *tokens[:3], compute_entropy=True)
            taught = [part for part in parts if not part.idle]
            for self._part in taught[:-1]:
                with self._unfinished(model):
                    self._backward(compute())
            self._part = taught[-1] if taught else None
            return compute()

    def _idle(self, batch: dict[str, Any]) -> frozenset[int]:
        """Return the rows whose advantages are 0, as in a group with equal rewards.

        Their values are computed for the metrics only, without activations for a backward pass.
        """
        trainer = self.trainer
        more = trainer.beta != 0 or trainer._entropy_bonus_enabled or trainer.aux_loss_enabled
        # with several ranks, all may have to make the same passes
        if more or not self.by_advantages or trainer.accelerator.num_processes > 1:
            return frozenset()
        nothing = (batch["advantages"].reshape(len(batch["advantages"]), -1) == 0).all(dim=1)
        idle = nothing.nonzero()[:, 0].tolist()
        # the backward pass needs at least one row
        return frozenset(idle[1:] if len(idle) == len(nothing) else idle)

    @contextmanager
    def _unfinished(self, model: nn.Module) -> Iterator[None]:
        """Drop the metrics of a loss computed in the block, and defer the ranks' exchange of gradients."""
        trainer = self.trainer
        state = trainer.accelerator.gradient_state
        unlogged: dict[str, Any] = {phase: defaultdict(list) for phase in trainer._metrics}
        # under FSDP each part's gradients are exchanged: deferring that would keep them whole on each rank
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
        """Divide episodes into the passes of a loss other than TRL's."""
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

    # --- values for the loss ----------------------------------------------------------------------

    def score(
        self, name: str, run: Run, tokens: Tokens, batch_size: int | None = None, *, shared: bool = False
    ) -> Values:
        """Return values (B, T) of the completions' tokens.

        Within `loss`, only the current part's rows are computed. Without gradients, all parts are computed
        one after another; if forward passes are collective, all ranks have the same number of parts.

        Args:
            name: distinguishes these values from others of the same micro-batch.
            batch_size: rows per forward pass, if they fit; all if left out.
            shared: as in `packing.tokens_of`.
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
        """Put a part's values (n, t) among the batch's known ones (B, T); average scalars over the parts."""
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
        """Yield the parts in which a batch goes through the model; none if it fits undivided.

        Args:
            together: whether all ranks must have the same number of parts.
            idle: rows without a gradient, which get separate parts.
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
        """Return the rows of each part; an empty list if the batch fits undivided."""
        accelerator = self.trainer.accelerator
        rows, fits = rows_of(tokens), fit(tokens, batch_size, shared, bound)
        if not together or accelerator.num_processes == 1:
            return [] if fits else pack(rows, bound, shared)
        own = [len(pack(rows, bound, shared)), not fits]
        counts, divided = accelerator.gather(torch.tensor([own], device=accelerator.device)).max(dim=0).values
        return pack(rows, bound, shared, int(counts)) if divided else []
