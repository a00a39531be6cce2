"""The outcome reward: a value for how an episode ended. Needs no training library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trl_dbbench.episode.types import Episode, Status


@dataclass(frozen=True)
class OutcomeReward:
    """A value for each way an episode can end.

    Running out of tokens counts as running out of turns. An episode that ends the database server gets
    `server_crash`, or as much as a wrong answer if that is left out.
    """

    right: float = 1.0
    wrong: float = -1.0
    turn_limit: float = -0.8
    invalid_action: float = -0.2
    server_crash: float | None = None

    __name__ = "outcome"

    def __call__(self, episode: Sequence[Episode], **kwargs: object) -> list[float | None]:
        return [self._value(e) for e in episode]

    def _value(self, episode: Episode) -> float | None:
        match episode.status:
            case Status.ANSWERED:
                return self.right if episode.right else self.wrong
            case Status.SERVER_CRASH:
                return self.wrong if self.server_crash is None else self.server_crash
            case Status.TURN_LIMIT | Status.OUT_OF_TOKENS:
                return self.turn_limit
            case Status.INVALID_ACTION:
                return self.invalid_action
        return None


OUTCOME_PRESETS = {
    "greedy_then_grpo": OutcomeReward(right=1.0, wrong=-1.0, turn_limit=-0.8, invalid_action=-0.2),
    "reinforce": OutcomeReward(right=1.0, wrong=-0.1, turn_limit=-0.3, invalid_action=-0.1),
}
