"""Greedy evaluation of a model, through what training itself uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tqdm.auto import tqdm

from trl_dbbench.engines.base import Backend
from trl_dbbench.errors import DatabaseError
from trl_dbbench.player import Player
from trl_dbbench.rollout import Episode, Sampling
from trl_dbbench.runs.records import Accuracy, episode_record
from trl_dbbench.tasks import Task


@dataclass(frozen=True)
class Evaluation:
    """A greedy run over tasks."""

    episodes: list[Episode]

    @property
    def accuracy(self) -> Accuracy:
        """Overall, per operation and per skill."""
        return Accuracy().add(episode_record(episode, "eval", 0) for episode in self.episodes)

    @property
    def statuses(self) -> dict[str, float]:
        """The share of each status that occurred."""
        counts = Counter(str(episode.status) for episode in self.episodes)
        return {status: count / len(self.episodes) for status, count in sorted(counts.items())}

    def to_dict(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy.metrics(),
            "counts": dict(self.accuracy.counts),
            "statuses": self.statuses,
            "episodes": [episode_record(episode, "eval", 0) for episode in self.episodes],
        }

    def __str__(self) -> str:
        rows = [
            *self.accuracy.table(),
            *((f"status/{s}", f"{100 * share:.1f} %") for s, share in self.statuses.items()),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def evaluate(
    tasks: Sequence[Task],
    player: Player,
    backend: Backend,
    *,
    system_prompt: str | None = None,
    batch_size: int = 16,
    progress: bool = True,
) -> Evaluation:
    """Plays every task once, greedily, and judges it.

    ```python
    policy = Policy(model, tokenizer)
    player = Player.of(tokenizer, database, eos_token_ids=policy.eos_token_ids)
    print(evaluate(tasks, player, TransformersBackend(policy)))
    ```

    Args:
        player: what the episodes are played with.
        backend: where the model generates: `TransformersBackend`, `VLLMBackend` or what `open_backend` gives.
        system_prompt: replaces the protocol's own.
        batch_size: episodes that run side by side.

    Raises:
        ConfigError: if a prompt does not fit the model.
        DatabaseError: if the database stays away.
        EngineError: if servers are to generate and none answers.
    """
    context = min([*backend.contexts, *filter(None, [player.rules.context])], default=None)
    player = replace(player, rules=replace(player.rules, context=context))
    starts = [player.start(task, Sampling(greedy=True), system_prompt) for task in tasks]
    for start in starts:
        player.rules.check_length(len(start.prompt_ids), partial(getattr, start.task, "id"))
    episodes: list[Episode] = []
    database = player.database
    with (
        backend.engine() as engine,
        tqdm(total=len(tasks), desc="greedy evaluation", unit="task", disable=not progress) as bar,
    ):
        for first in range(0, len(starts), batch_size):
            batch = starts[first : first + batch_size]
            episodes += player.play_all(batch, engine)
            if database.gave_up is not None:
                raise DatabaseError(
                    f"{database.gave_up}. It was waited for, {database.patience:g} s, and is still away; "
                    f"{len(episodes) - len(batch)} of {len(tasks)} tasks were played."
                )
            bar.update(len(batch))
            bar.set_postfix_str(f"{sum(episode.right for episode in episodes)} right")
    return Evaluation(episodes)
