"""Backend that generates with the policy's own model, so no weights have to be sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trl_dbbench.engines.policy import Policy
from trl_dbbench.engines.transformers.engine import TransformersEngine
from trl_dbbench.engines.transformers.models import check_model


class TransformersBackend:
    """Backend that uses the model in this process. See `engines.base.Backend` and `TransformersEngine`."""

    detached = False  # it generates with the model that is trained

    def __init__(self, policy: Policy, max_concurrent_episodes: int | None = None):
        check_model(policy.model)
        self._policy = policy
        self._max_concurrent_episodes = max_concurrent_episodes

    @property
    def contexts(self) -> Sequence[int]:
        return [self._policy.context] if self._policy.context else []

    @property
    def collective(self) -> bool:
        return self._policy.any_rank is not None

    @contextmanager
    def engine(self) -> Iterator[TransformersEngine]:
        policy = self._policy
        with policy.ready_to_generate() as model:
            yield TransformersEngine(
                model,
                policy.eos_token_ids,
                policy.pad_token_id,
                autocast=policy.autocast,
                device=policy.device,
                any_rank=policy.any_rank,
                max_concurrent_episodes=self._max_concurrent_episodes,
            )

    def close(self) -> None:
        """Do nothing: the backend holds no resources of its own."""
