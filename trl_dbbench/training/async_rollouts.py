"""`rollouts_ahead`: batches are played while an earlier one is trained on.

```
rollouts_ahead: 0   play 0, train 0, play 1, train 1, ...        each batch by the weights that it trains
rollouts_ahead: 1   play 0, train 0      train 1      train 2
                            play 1.....  play 2.....  play 3...  by weights that are a generation older
```

Servers play the batches, asked from threads, with the weights of the moment they began. The loss corrects for
their age (`training/importance_sampling.py`).

Tasks and random numbers are those of a run without it. Checkpoints do not hold the batches under way: a
resumed run plays them again, with the weights it resumes with.
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
    """The episodes that a rank plays at once: its rows as samples, and each prompt once greedily.

    `greedy` is `None`, on all ranks, if no greedy run is due; `greedy_first` plays it in a pass of its own.
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
    """An engine whose episodes another thread can cancel."""

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
    """A batch that is being played.

    Args:
        starts: this rank's.
        policy_step: updates of the weights that play it.
        engine: entered here, left when the episodes are asked for.
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
        """Wait for the greedy episodes and the samples. All ranks call it."""
        with self._stack:
            greedy, samples = self._played.result()
        for episode in (*greedy, *samples):
            episode.policy_step = self.policy_step
        return greedy, samples

    def give_up(self) -> None:
        """End it without its episodes and without the other ranks."""
        self._engine.stop()
        if not self._played.cancel():
            wait([self._played])
        self._stack.pop_all()  # not left: that would need the other ranks


class AsyncRollouts:
    """The batches under way, the oldest first. They end with its `with` block.

    Args:
        ahead: batches played ahead of the one that is trained on.
        begin: starts to play this rank's rows of a generation in the given threads.
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

        Those that follow, before `end`, are then begun with the weights as they are.
        """
        if not self._under_way:  # the first one of the process
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
    """Return the updates since the weights that sampled each token, summed over tokens, and the tokens."""
    ages = [(step - (e.policy_step or 0), sum(e.mask)) for e in episodes]
    return sum(age * tokens for age, tokens in ages), sum(tokens for _, tokens in ages)
