"""Evaluation of a model behind an endpoint: the figures of `evaluation`, and what it took to get them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from trl_dbbench.endpoints.play import EndpointPlayer
from trl_dbbench.evaluation import Evaluation, so_far
from trl_dbbench.rollout import Episode, Status
from trl_dbbench.tasks import Task


@dataclass(frozen=True)
class EndpointEvaluation(Evaluation):
    """A greedy run of an endpoint over tasks, which may have ended early.

    Args:
        endpoint: the model and the server's address.
        planned: the tasks that were to be played; those of `episodes` were.
        requests: how many were sent, repeated ones too.
        left_out: the settings that the server did not take.
        stopped: why it ended early.
    """

    endpoint: str = ""
    planned: int = 0
    requests: int = 0
    left_out: Sequence[str] = ()
    stopped: str | None = None

    @property
    def ended_early(self) -> str | None:
        if self.stopped is None:
            return None
        return f"{self.stopped.rstrip('.')}. {len(self.episodes)} of {self.planned} tasks were played."

    @property
    def tokens(self) -> dict[str, int]:
        """What the endpoint counted: tokens read and written, and the turns of which it said nothing."""
        usages = [turn.usage for episode in self.episodes for turn in episode.turns]
        counted = [usage for usage in usages if usage is not None]
        return {
            "read": sum(usage.read for usage in counted),
            "written": sum(usage.written for usage in counted),
            "uncounted_turns": len(usages) - len(counted),
        }

    def to_dict(self) -> dict[str, Any]:
        how = {"endpoint": self.endpoint, "planned": self.planned, "stopped": self.stopped}
        how |= {"requests": self.requests, "tokens": self.tokens, "left_out": list(self.left_out)}
        return {**super().to_dict(), **how}

    def __str__(self) -> str:
        tokens = self.tokens
        said = f"{self.endpoint}: {self.requests:,} requests, "
        said += f"{tokens['read']:,} tokens read, {tokens['written']:,} written"
        if tokens["uncounted_turns"]:
            said += f" ({tokens['uncounted_turns']:,} turns not counted)"
        return f"{super().__str__()}\n{said}" if self.episodes else said


def evaluate_endpoint(
    tasks: Sequence[Task], player: EndpointPlayer, *, progress: bool = True
) -> EndpointEvaluation:
    """Plays every task once, greedily, and judges it. What was played before it was stopped is kept."""
    played: dict[int, Episode] = {}
    right = void = 0
    interrupted = False
    with tqdm(total=len(tasks), desc="greedy evaluation", unit="episode", disable=not progress) as bar:

        def keep(place: int, episode: Episode) -> None:
            nonlocal right, void
            played[place] = episode
            right += episode.right
            void += episode.status == Status.ENVIRONMENT_FAULT
            bar.update()
            bar.set_postfix_str(so_far(right, void))

        try:
            player.play_all(tasks, keep)
        except KeyboardInterrupt:
            interrupted = True
    endpoint, database = player.endpoint, player.database
    stopped = endpoint.gave_up or database.gave_up or ("interrupted" if interrupted else None)
    return EndpointEvaluation(
        [played[place] for place in sorted(played)],
        endpoint=str(endpoint),
        planned=len(tasks),
        requests=endpoint.requests,
        left_out=sorted(endpoint.left_out),
        stopped=stopped,
    )
