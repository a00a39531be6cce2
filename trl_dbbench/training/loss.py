"""Rows of the loss: TRL's loss is taken over the episodes whose environment did not fail.

A failed row is masked, so that it adds nothing to any sum; so is a truncated one (`Episode.truncated`) with
`mask_truncated_completions`. TRL's divisor may still count failed rows, depending on `loss_type`:

```
loss_type                    TRL's mean over       fault
grpo, sapo, dr_grpo, luspo   rows                  counts failed rows
bnpo, and the entropy bonus  tokens of a           counts micro-batches whose rows all failed
                             micro-batch, then
                             micro-batches
dapo, cispo, vespo           tokens                none
```

Rows and micro-batches are counted over a whole generation, on all ranks, as TRL counts tokens. Dividing the
means by the share of them that was played makes them means over the played ones. The gradients are those of a
batch without the failed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trl_dbbench.episode.types import Episode, Status

FAILED = "environment_failed"
"""Key in a scored batch: (B,), a mask of the rows whose environment failed."""
SHARES = "played_shares"
"""Key in a micro-batch: the shares of its generation's rows and micro-batches that were played."""

OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
OVER_TOKENS = ("dapo", "cispo", "vespo")

Gather = Callable[[torch.Tensor], torch.Tensor]
"""Function that concatenates the tensors of all ranks."""


def mask_failed(
    output: dict[str, Any], episodes: Sequence[Episode], mask_truncated: bool, gather: Gather
) -> None:
    """Mask the rows of a scored batch that are left out of the loss, and count the remaining tokens.

    Args:
        episodes: episodes of this rank's rows, after scoring: an environment may also fail during a reward
            function.
        mask_truncated: whether truncated rows are left out too.
    """
    device = output["tool_mask"].device
    failed = torch.tensor([e.status == Status.ENVIRONMENT_FAULT for e in episodes], device=device)
    truncated = torch.tensor([e.truncated and mask_truncated for e in episodes], device=device)
    output["tool_mask"] = output["tool_mask"].masked_fill((failed | truncated)[:, None], 0)
    output["num_items_in_batch"] = gather((output["completion_mask"] * output["tool_mask"]).sum()).sum()
    output[FAILED] = failed


def note_shares(batches: Sequence[dict[str, Any]], gather: Gather) -> None:
    """Store, in each micro-batch of a generation, the shares of it that were played."""
    shares = played_shares(gather(torch.stack([batch.pop(FAILED) for batch in batches])))
    for batch in batches:
        batch[SHARES] = shares


def played_shares(failed: torch.Tensor) -> tuple[float, float]:
    """Return the shares of a generation's rows (M, B), and of its M micro-batches, that were played.

    Both are 1 if none was played: then nothing is trained.
    """
    played = ~failed
    if not played.any():
        return 1.0, 1.0
    return played.float().mean().item(), played.any(dim=1).float().mean().item()


def correct_means(loss_type: str, shares: tuple[float, float]) -> tuple[float, float]:
    """Return two factors that turn TRL's means into means over the played rows, given `played_shares`.

    The first multiplies advantages and beta, to which the two terms of the loss are proportional. The second
    multiplies the number of micro-batches, by which all means are divided.
    """
    rows, batches = shares
    factors = {**dict.fromkeys(OVER_ROWS, batches / rows), **dict.fromkeys(OVER_TOKENS, batches)}
    return factors.get(loss_type, 1.0), batches
