"""Which rows are in the loss: TRL's loss, over the episodes whose environment did not fail.

A row that failed is masked, so that it adds nothing to any sum; with `mask_truncated_completions` one that
was truncated too, by `Episode.truncated` instead of its last id. But in what the sum is divided by, a failed
row may still count, by TRL's `loss_type`:

```
grpo, sapo, dr_grpo, luspo   rows                  a failed row counts
bnpo, and the entropy bonus  rows' tokens, and     a micro-batch counts of which all rows failed
                             then micro-batches
dapo, cispo, vespo           tokens                right as it is
```

Rows and micro-batches are counted in a whole generation, on all ranks, as TRL counts tokens. Divided by the
share of them that was played, the means are over those alone, and the gradients are those of a batch that
never had the failed rows.
"""

from __future__ import annotations

from typing import Any

import torch

from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.training.importance_sampling import CorrectedGRPOTrainer

FAILED = "environment_failed"
"""(B,) of a scored batch: the rows whose environment failed."""
SHARES = "played_shares"
"""Of a micro-batch: which share of its generation's rows, and of its micro-batches, was played."""

OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
OVER_TOKENS = ("dapo", "cispo", "vespo")


class PlayedRowsGRPOTrainer(CorrectedGRPOTrainer):
    """A trainer that leaves failed episodes out of the loss. Its rollouts give an `episode` for each row."""

    beta: float
    current_gradient_accumulation_steps: float

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.mask_truncated_completions = False  # TRL would go by the last id

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        episodes: list[Episode] = [row["episode"] for row in inputs]
        failed = torch.tensor([e.status == Status.ENVIRONMENT_FAULT for e in episodes])
        truncated = torch.tensor([e.truncated for e in episodes]) & self.args.mask_truncated_completions
        # masked only now, for an environment may also fail under a reward function
        left_out = (failed | truncated).to(self.accelerator.device)
        output["tool_mask"] = output["tool_mask"].masked_fill(left_out[:, None], 0)
        tokens = (output["completion_mask"] * output["tool_mask"]).sum()
        output["num_items_in_batch"] = self.accelerator.gather(tokens).sum()
        output[FAILED] = failed.to(self.accelerator.device)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not before and self._buffered_inputs is not None:
            failed = torch.stack([batch.pop(FAILED) for batch in self._buffered_inputs])  # (M, B)
            shares = played_shares(self.accelerator.gather(failed))
            for batch in self._buffered_inputs:
                batch[SHARES] = shares
        return inputs

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        rows, batches = inputs.get(SHARES, (1.0, 1.0))
        if rows == 1:
            return super()._compute_loss(model, inputs)
        steps, beta = self.current_gradient_accumulation_steps, self.beta
        # All means are divided by the number of micro-batches, so that they are then over those played. What
        # is wrong for the loss type is put right in its two terms, which are proportional to the advantages
        # and to beta.
        factor = {**dict.fromkeys(OVER_ROWS, batches / rows), **dict.fromkeys(OVER_TOKENS, batches)}.get(
            self.loss_type, 1.0
        )
        self.current_gradient_accumulation_steps, self.beta = steps * batches, beta * factor
        try:
            return super()._compute_loss(model, inputs | {"advantages": inputs["advantages"] * factor})
        finally:
            self.current_gradient_accumulation_steps, self.beta = steps, beta


def played_shares(failed: torch.Tensor) -> tuple[float, float]:
    """The shares of rows and of micro-batches that were played; 1 where none was, which trains nothing.

    Args:
        failed: (M, B), the rows of all micro-batches of a generation.
    """
    played = ~failed
    if not played.any():
        return 1.0, 1.0
    return played.float().mean().item(), played.any(dim=1).float().mean().item()
