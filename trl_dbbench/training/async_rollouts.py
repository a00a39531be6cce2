"""Rollouts ahead of training (`rollouts_ahead`): batches are played while an earlier one is trained on.

```
rollouts_ahead: 0   play 0, train 0, play 1, train 1, ...        each batch with the weights that it trains
rollouts_ahead: 1   play 0, train 0      train 1      train 2
                            play 1.....  play 2.....  play 3...  with weights one generation older
```

Threads have the servers play each batch with the weights that are current when it begins. The loss corrects
for the weights' age (`training/importance_sampling.py`).

Tasks and random numbers are the same as without it. Checkpoints do not hold the batches under way: a resumed
run plays them again, with the weights that it resumes from.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Completion, Engine, Episode, Request, Start


@dataclass(frozen=True)
class Starts:
    """Starts of the episodes that a rank plays at once: its rows as samples, and each prompt once greedily.

    `greedy` is `None`, on all ranks, if no greedy run is due. With `greedy_first` the greedy episodes are
    played in a separate pass before the samples.
    """

    samples: Sequence[Start]
    greedy: Sequence[Start] | None
    greedy_first: bool = False

    def play(self, player: Player, engine: Engine) -> tuple[list[Episode], list[Episode]]:
        """Return the greedy episodes and the samples."""
        if self.greedy is not None and self.greedy_first:
            first = player.play_all(self.greedy, engine)
            return first, player.play_all(self.samples, engine)
        both = player.play_all([*(self.greedy or ()), *self.samples], engine)
        return both[: -len(self.samples)], both[-len(self.samples) :]


class _Stoppable:
    """Engine whose episodes another thread can cancel."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._episodes: Sequence[Future] = ()
        self._stopped = False

    async def generate(self, request: Request) -> Completion:
        return await self._engine.generate(request)

    def serve(self, episodes: Sequence[Future]) -> None:
        self._episodes = episodes
        if self._stopped:
            self.stop()
        self._engine.serve(episodes)

    def stop(self) -> None:
        self._stopped = True
        for episode in self._episodes:
            episode.cancel()


class UnderWay:
    """Batch that is being played.

    Args:
        starts: starts of this rank's episodes.
        policy_step: number of updates of the weights that play it.
        engine: context manager that is entered here, and left once `episodes` has waited for the batch.
    """

    def __init__(
        self,
        starts: Starts,
        policy_step: int,
        player: Player,
        engine: AbstractContextManager[Engine],
        threads: ThreadPoolExecutor,
    ):
        self.policy_step = policy_step
        self._stack = ExitStack()
        self._engine = _Stoppable(self._stack.enter_context(engine))
        self._played = threads.submit(starts.play, player, self._engine)

    def episodes(self) -> tuple[list[Episode], list[Episode]]:
        """Wait for the greedy episodes and the samples, and return them. All ranks must call it."""
        with self._stack:
            greedy, samples = self._played.result()
        for episode in (*greedy, *samples):
            episode.policy_step = self.policy_step
        return greedy, samples

    def give_up(self) -> None:
        """Stop playing and drop the episodes. Other ranks need not call it."""
        self._engine.stop()
        if not self._played.cancel():
            wait([self._played])
        self._stack.pop_all()  # does not leave the engine, for which the other ranks would be needed


class AsyncRollouts:
    """Queue of the batches under way, the oldest first. Leaving its `with` block stops them.

    Args:
        ahead: number of batches played ahead of the one that is trained on.
        begin: function that starts to play this rank's rows of a generation in the given threads.
    """

    def __init__(self, ahead: int, begin: Callable[[int, ThreadPoolExecutor], UnderWay]):
        self._ahead, self._begin = ahead, begin
        self._under_way: deque[UnderWay] = deque()

    def __enter__(self) -> AsyncRollouts:
        self._threads = ThreadPoolExecutor(self._ahead, "dbbench-ahead")
        return self

    def __exit__(self, *error: object) -> None:
        while self._under_way:
            self._under_way.popleft().give_up()
        self._threads.shutdown()

    def next(self, generation: int, end: int) -> tuple[list[Episode], list[Episode], float]:
        """Return a generation's greedy episodes and samples, and the seconds waited for them.

        Later generations, before `end`, are then started with the current weights, up to `ahead` of them.
        """
        if not self._under_way:  # the first generation of this process
            self._start(generation)
        began = time.perf_counter()
        greedy, samples = self._under_way.popleft().episodes()
        waited = time.perf_counter() - began
        while len(self._under_way) < self._ahead and (after := generation + len(self._under_way) + 1) < end:
            self._start(after)
        return greedy, samples, waited

    def _start(self, generation: int) -> None:
        self._under_way.append(self._begin(generation, self._threads))


def staleness(episodes: Sequence[Episode], step: int) -> tuple[int, int]:
    """Return the sum of the sampled tokens' ages, in updates until `step`, and the number of tokens."""
    ages = [(step - (e.policy_step or 0), sum(e.mask)) for e in episodes]
    return sum(age * tokens for age, tokens in ages), sum(tokens for _, tokens in ages)
