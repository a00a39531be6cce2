"""Which rows are in the loss: TRL's loss, over the episodes whose environment did not fail.

A failed row is masked, so that it adds nothing to any sum; with `mask_truncated_completions` a truncated one
too, by `Episode.truncated`. TRL's divisor may still count a failed row, by `loss_type`:

```
grpo, sapo, dr_grpo, luspo   rows                  counts a failed row
bnpo, and the entropy bonus  rows' tokens, and     counts a micro-batch whose rows all failed
                             then micro-batches
dapo, cispo, vespo           tokens                right as it is
```

Rows and micro-batches are counted over a whole generation, on all ranks, as TRL counts tokens. Divided by the
share of them that was played, the means are over those alone. The gradients are those of a batch that never
had the failed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trl_dbbench.episode.types import Episode, Status

FAILED = "environment_failed"
"""(B,) of a scored batch: the rows whose environment failed."""
SHARES = "played_shares"
"""Of a micro-batch: the shares of its generation's rows and micro-batches that were played."""

OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
OVER_TOKENS = ("dapo", "cispo", "vespo")

Gather = Callable[[torch.Tensor], torch.Tensor]
"""Concatenates the tensors of all ranks."""


def mask_failed(
    output: dict[str, Any], episodes: Sequence[Episode], mask_truncated: bool, gather: Gather
) -> None:
    """Mask the rows of a scored batch that are not in the loss, and count the tokens that are.

    Args:
        episodes: of this rank's rows; an environment may also have failed under a reward function.
        mask_truncated: truncated rows are not in the loss either.
    """
    device = output["tool_mask"].device
    failed = torch.tensor([e.status == Status.ENVIRONMENT_FAULT for e in episodes], device=device)
    truncated = torch.tensor([e.truncated and mask_truncated for e in episodes], device=device)
    output["tool_mask"] = output["tool_mask"].masked_fill((failed | truncated)[:, None], 0)
    output["num_items_in_batch"] = gather((output["completion_mask"] * output["tool_mask"]).sum()).sum()
    output[FAILED] = failed


def note_shares(batches: Sequence[dict[str, Any]], gather: Gather) -> None:
    """Tell the micro-batches of a generation which share of it was played."""
    shares = played_shares(gather(torch.stack([batch.pop(FAILED) for batch in batches])))
    for batch in batches:
        batch[SHARES] = shares


def played_shares(failed: torch.Tensor) -> tuple[float, float]:
    """Return the shares of the rows (M, B) and of the M micro-batches of a generation that were played; 1 if
    none was, which trains nothing."""
    played = ~failed
    if not played.any():
        return 1.0, 1.0
    return played.float().mean().item(), played.any(dim=1).float().mean().item()


def correct_means(loss_type: str, shares: tuple[float, float]) -> tuple[float, float]:
    """Return what makes TRL's means those over the played rows, by `played_shares`: a factor for advantages
    and beta, to which the two terms of the loss are proportional, and one for the number of micro-batches, by
    which all means are divided."""
    rows, batches = shares
    factors = {**dict.fromkeys(OVER_ROWS, batches / rows), **dict.fromkeys(OVER_TOKENS, batches)}
    return factors.get(loss_type, 1.0), batches
