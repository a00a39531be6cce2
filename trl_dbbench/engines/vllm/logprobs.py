"""When the log-probabilities that vLLM gives are the policy's."""

from __future__ import annotations

from trl_dbbench.episode.types import Sampling

PROCESSED_MIN_TEMPERATURE = 0.01
"""vLLM takes any lower temperature for this one."""


def policys_logprobs(sampling: Sampling, processed: bool) -> bool:
    """Return whether vLLM's log-probabilities are the policy's: of the logits / temperature, whatever top-p
    and top-k.

    Args:
        processed: whether it gives those after temperature, top-p and top-k (`processed_logprobs`), and not
            those of temperature 1 (`raw_logprobs`).
    """
    if processed and not sampling.greedy:
        unrestricted = sampling.top_p == 1 and sampling.top_k == 0
        return unrestricted and sampling.temperature >= PROCESSED_MIN_TEMPERATURE
    return sampling.temperature == 1
