"""Batches that are played while an earlier one is trained on: `rollouts_ahead`.

```
rollouts_ahead: 0   play 0, train 0, play 1, train 1, ...        each batch by the weights that it trains
rollouts_ahead: 1   play 0, train 0      train 1      train 2
                            play 1.....  play 2.....  play 3...  by weights that are a generation older
```

While a batch is trained on, the next ones are played in threads, on servers, with the weights of when they
began. So a batch is of weights that are `rollouts_ahead` generations older than those that it trains. The
log-probabilities of its tokens are known from the rollout, and the loss goes by them (`training/importance_sampling.py`).

A batch's tasks and random numbers are those of a run without it. The batches under way lie in no checkpoint:
a run that was killed plays them again, with the weights that it has then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Completion, Engine, Episode, Request, Start
from trl_dbbench.errors import ConfigError
from trl_dbbench.training.dynamic_sampling import DynamicGRPOTrainer, Row


@dataclass(frozen=True)
class Batch:
    """What this rank plays at once: its rows, and each prompt once greedily.

    `greedy` is `None`, on all ranks, where nothing is; `greedy_first` has it in a pass of its own.
    """

    starts: Sequence[Start]
    greedy: Sequence[Start] | None
    greedy_first: bool = False

    def play(self, player: Player, engine: Engine) -> tuple[list[Episode], list[Episode]]:
        """The greedy episodes and those of the rows."""
        if self.greedy is not None and self.greedy_first:
            first = player.play_all(self.greedy, engine)
            return first, player.play_all(self.starts, engine)
        both = player.play_all([*(self.greedy or ()), *self.starts], engine)
        return both[: -len(self.starts)], both[-len(self.starts) :]


class _Stoppable:
    """An engine whose episodes can be given up from another thread."""

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


class _UnderWay:
    """A batch that is being played.

    Args:
        rows: this rank's.
        policy_step: updates of the weights that play it.
        engine: gives what plays; entered here, and left when the episodes are asked for.
        threads: where it is played.
    """

    def __init__(
        self,
        rows: list[Row],
        batch: Batch,
        policy_step: int,
        player: Player,
        engine: AbstractContextManager[Engine],
        threads: ThreadPoolExecutor,
    ):
        self.rows, self.policy_step = rows, policy_step
        self._stack = ExitStack()
        self._engine = _Stoppable(self._stack.enter_context(engine))
        self._played = threads.submit(batch.play, player, self._engine)

    def episodes(self) -> tuple[list[Episode], list[Episode]]:
        """Waits for the greedy episodes and those of the rows. To be called on all ranks."""
        with self._stack:
            greedy, episodes = self._played.result()
        for episode in (*greedy, *episodes):
            episode.policy_step = self.policy_step
        return greedy, episodes

    def give_up(self) -> None:
        """Ends it without its episodes, and without the other ranks."""
        self._engine.stop()
        if not self._played.cancel():
            wait([self._played])
        self._stack.pop_all()  # and not left: the other ranks need not come here


class AheadGRPOTrainer(DynamicGRPOTrainer):
    """A trainer with `rollouts_ahead`. Its subclass says what a batch is and gives the engine."""

    backend: Any

    def __init__(self, *args: Any, **kwargs: Any):
        self._greedy: list[Episode] = []  # of the batch that is scored
        self._under_way: deque[_UnderWay] = deque()
        self._threads: ThreadPoolExecutor | None = None
        super().__init__(*args, **kwargs)

    def _batch(self, rows: Sequence[Row], step: int, part: int = 0) -> Batch:
        """What is played of these rows.

        Args:
            step: the micro-step at which the batch is trained on; it chooses the random numbers.
            part: of the rollout, as in `_play`.
        """
        raise NotImplementedError

    def engine(self) -> AbstractContextManager[Engine]:
        """What plays with the current weights. All ranks enter and leave it together."""
        raise NotImplementedError

    def _check_ahead(self) -> None:
        if self.args.rollouts_ahead and not getattr(self.backend, "detached", False):
            raise ConfigError(
                f"rollouts_ahead: {self.args.rollouts_ahead} needs an engine that goes on with older weights "
                "while the model is trained: LoRA on vLLM servers (vllm_server_urls), or a backend of your "
                "own that is `detached`. Leave it out, or name servers."
            )

    def train(self, *args: Any, **kwargs: Any):
        if not self.args.rollouts_ahead:
            return super().train(*args, **kwargs)
        with ThreadPoolExecutor(self.args.rollouts_ahead, "dbbench-ahead") as self._threads:
            try:
                return super().train(*args, **kwargs)
            finally:
                while self._under_way:
                    self._under_way.popleft().give_up()
                self._threads = None

    def _rows_to_play(self, rows: list[Row]) -> list[Row]:
        rows = super()._rows_to_play(rows)
        if not self.args.rollouts_ahead or not self.model.training or self._threads is None:
            return rows
        generation = self._step // self._micro_steps
        if not self._under_way:  # the first batch of the process
            self._begin(generation, rows)
        began = time.perf_counter()
        batch = self._under_way.popleft()
        self._greedy, episodes = batch.episodes()
        self._note_ahead(episodes, time.perf_counter() - began)
        for row, episode in zip(batch.rows, episodes, strict=True):
            row["episode"] = episode
        self._played_already = True
        while len(self._under_way) < self.args.rollouts_ahead:
            following = generation + len(self._under_way) + 1
            if following * self._micro_steps >= self.state.max_steps * self.args.gradient_accumulation_steps:
                break
            self._begin(following, self._rows_of(following))
        return batch.rows

    def _begin(self, generation: int, rows: list[Row]) -> None:
        assert self._threads is not None
        batch = self._batch(rows, generation * self._micro_steps)
        step = self.state.global_step
        self._under_way.append(_UnderWay(rows, batch, step, self.player, self.engine(), self._threads))

    def _note_ahead(self, episodes: Sequence[Episode], waited: float) -> None:
        """Logged, with `rollouts_ahead`:

        - `ahead/staleness`: updates since the weights that sampled a token, the mean over the tokens of a
          batch when its training begins.
        - `ahead/waited_seconds`: for a batch that was still being played.
        """
        step = self.state.global_step
        stale = [(step - (e.policy_step or 0), sum(e.mask)) for e in episodes]
        sums = [sum(updates * tokens for updates, tokens in stale), sum(tokens for _, tokens in stale)]
        every = self.accelerator.gather(torch.tensor([*sums, waited], device=self.accelerator.device)).view(
            -1, 3
        )
        updates, tokens, _ = every.sum(dim=0).tolist()
        self._metrics["train"]["ahead/staleness"].append(updates / max(tokens, 1))
        self._metrics["train"]["ahead/waited_seconds"].append(every[:, 2].max().item())

    def _rows_of(self, generation: int) -> list[Row]:
        """This rank's rows of a generation, as the data loader will give them."""
        prompts = self.args.generation_batch_size // self.num_generations
        places = len(self.train_dataset)
        epoch, number = divmod(generation, places // prompts)
        order = self._order.epoch(epoch) if self.args.shuffle_dataset else range(places)
        chosen = order[number * prompts : (number + 1) * prompts]
        return self._share([self.train_dataset[row] for row in chosen])
