"""Old log-probabilities of the loss, for batches that another policy played than the one trained.

The policies differ if older weights played the batch (`rollouts_ahead`), if the engine computes differently
(vLLM), and from the second update of a generation on.

```
rollout_correction  old log-probabilities      factor of a token's loss
none                TRL's; the rollout's with  1: the loss's own ratio to them is clipped, by epsilon
                    `use_rollout_logprobs`
                    or `rollouts_ahead`
token_tis           the trainer's, scored      r = old / rollout's, at most C_max and at least C_min
token_mask          before the update          r; 0 where it is not between C_min and C_max
sequence_tis                                   the product of r over the row's sampled tokens, bounded so
sequence_mask                                  that product; 0 for the whole row where it is not between them
```

C_max and C_min are `vllm_importance_sampling_clip_max` (3.0) and `vllm_importance_sampling_clip_min` (none).
This is TRL's correction of its vLLM rollouts (truncated importance sampling; Ionides, 2008; Yao et al.,
2025), applied to the log-probabilities of ours; its `sampling/...` metrics are logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trl_dbbench.errors import ConfigError
from trl_dbbench.training.unsupported import default_of

MODES = {
    "token_tis": "token_truncate",
    "token_mask": "token_mask",
    "sequence_tis": "sequence_truncate",
    "sequence_mask": "sequence_mask",
}
"""Values of `rollout_correction` -> TRL's of `vllm_importance_sampling_mode`."""

NO_CORRECTION = "none"
_BOUNDS = ("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min")


def check_correction(args: Any) -> None:
    """Raise ConfigError for settings of `rollouts_ahead` and `rollout_correction` that exclude each other."""
    if args.rollout_correction == NO_CORRECTION:
        for name in _BOUNDS:
            if getattr(args, name) != default_of(name):
                raise ConfigError(
                    f"{name} bounds what rollout_correction multiplies with, which is none; set it to one of "
                    f"{', '.join(MODES)}, or leave {name} out."
                )
    elif args.use_rollout_logprobs:
        raise ConfigError(
            f"rollout_correction: {args.rollout_correction} compares the trainer's log-probabilities before "
            "the update with the rollout's, and use_rollout_logprobs takes the rollout's for both; leave one "
            "of them out."
        )
    elif args.loss_type == "vespo" and args.rollout_correction.startswith("sequence"):
        raise ConfigError(
            f"rollout_correction: {args.rollout_correction} gives a row one weight, and loss_type vespo "
            "takes one for each token; set token_tis or token_mask."
        )
    if args.rollouts_ahead:
        _check_ahead(args)


def _check_ahead(args: Any) -> None:
    chosen_late = {
        "dynamic_sampling": args.dynamic_sampling,
        "task_sampling: frontier": args.task_sampling == "frontier",
        "few_shot": args.few_shot > 0,
    }
    for name in (name for name, given in chosen_late.items() if given):
        raise ConfigError(
            f"{name} chooses what is played by what the batches before have shown, and rollouts_ahead plays "
            "before that is known; leave one of them out."
        )
    if args.advantage == "vine":
        raise ConfigError(
            "the advantage vine plays on from the middle of episodes, with the weights that have played "
            "them, and rollouts_ahead has newer ones by then; leave one of them out."
        )


def compares_with_rollout(args: Any) -> bool:
    """Return whether the loss's old log-probabilities are the rollout's."""
    return args.use_rollout_logprobs or (args.rollouts_ahead > 0 and args.rollout_correction == NO_CORRECTION)


def known_logprobs(output: dict[str, Any], engine: str, any_rank: Callable[[bool], bool]) -> torch.Tensor:
    """Return the rollout's log-probabilities (B, T) of a scored batch.

    Args:
        engine: its name, for the error.
        any_rank: whether one of the ranks says `True`.

    Raises:
        ConfigError: if the engine does not know them all.
    """
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
