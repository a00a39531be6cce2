"""Old log-probabilities of the loss, for batches played by another policy than the trained one.

The two differ if older weights played the batch (`rollouts_ahead`), if the engine computes differently
(vLLM), and from the second update of a generation on.

```
rollout_correction  old log-probabilities      factor of a token's loss
none                TRL's; the rollout's with  1: the loss clips its ratio to them by epsilon
                    `use_rollout_logprobs`
                    or `rollouts_ahead`
token_tis           the trainer's, scored      r = old / rollout's, clipped to C_min ... C_max
token_mask          before the update          r, or 0 if r is outside C_min ... C_max
sequence_tis                                   the product of r over a row's sampled tokens, clipped likewise
sequence_mask                                  that product, or 0 for the whole row if it is outside
```

C_max and C_min are `vllm_importance_sampling_clip_max` (3.0) and `vllm_importance_sampling_clip_min` (none).
This is TRL's correction for its vLLM rollouts (truncated importance sampling; Ionides, 2008; Yao et al.,
2025), applied to the log-probabilities of our rollouts; its `sampling/...` metrics are logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trl_dbbench.errors import ConfigError

MODES = {
    "token_tis": "token_truncate",
    "token_mask": "token_mask",
    "sequence_tis": "sequence_truncate",
    "sequence_mask": "sequence_mask",
}
"""Values of `rollout_correction` -> TRL's values of `vllm_importance_sampling_mode`."""

NO_CORRECTION = "none"


def compares_with_rollout(args: Any) -> bool:
    """Return whether the loss's old log-probabilities are the rollout's."""
    return args.use_rollout_logprobs or (args.rollouts_ahead > 0 and args.rollout_correction == NO_CORRECTION)


def known_logprobs(output: dict[str, Any], engine: str, any_rank: Callable[[bool], bool]) -> torch.Tensor:
    """Return the rollout's log-probabilities (B, T) of a scored batch; raise ConfigError if any is NaN."""
    logprobs = output["sampling_per_token_logps"]
    sampled = (output["completion_mask"] * output["tool_mask"]).bool()
    if any_rank(bool(logprobs[sampled].isnan().any())):
        raise ConfigError(
            f"the update is to use the rollout's log-probabilities, and the engine {engine!r} does not know "
            "them all (NaN). Leave use_rollout_logprobs, rollouts_ahead, rollout_correction, "
            "off_policy_mask_threshold, kl_reference: rollout and kl_in_reward out, or let the engine tell "
            "them."
        )
    return logprobs
