"""Turns from a transformers model in this process.

All episodes that wait for a turn are answered as one batch, begun when no episode could join it any more:
every one that is still playing is waiting. That keeps the make-up of each batch, and with it the numbers, the
same from run to run however long the statements took.

What has been computed is not computed again: each distinct prompt goes through the model once, for all its
episodes, and a later turn feeds only what is new, the last token and the observation. Rows leave the batch as
they finish, and their statements run while the others go on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from trl_dbbench.engines.transformers.cache import RowCache, can_keep
from trl_dbbench.engines.transformers.models import CACHE_ARGUMENT, cache_argument
from trl_dbbench.engines.transformers.packed import packed
from trl_dbbench.engines.transformers.prefix import (
    OWN_SPARE_COLUMNS,
    SHARE_PREFIX_MIN_TOKENS,
    SharedPrefix,
    can_share,
)
from trl_dbbench.engines.transformers.sampling import TokenChooser
from trl_dbbench.episode.types import Completion, Request, Sampling

logger = logging.getLogger(__name__)

COMPACT_BELOW_SHARE = 0.5
"""Finished rows are dropped from the batch when at most this share of its rows still generates."""

PREFILL_TOKENS = 16_384
PREFILL_TOKENS_ON_CPU = 1_024
"""Prefill chunk size, in tokens: a layer's intermediate results take memory for each token and, on a CPU,
time as well once they no longer fit into its caches."""


@dataclass
class _Row:
    """An episode's row of the batch and of the cache, from its first turn to its last."""

    request: Request
    cached: tuple[int, ...] = ()
    """Ids whose keys and values are known: the first `shared` of them with the prompt `source`, which other
    rows share, the others in the cache, from the column `start` on."""
    start: int = 0
    shared: int = 0
    source: int = 0
    ids: list[int] = field(default_factory=list)
    """Sampled in this turn, with their `logprobs`."""
    logprobs: list[float] = field(default_factory=list)
    done: bool = False

    @property
    def own(self) -> Sequence[int]:
        """The ids that are not shared."""
        return self.request.ids[self.shared :]

    def begin(self, request: Request) -> None:
        self.request, self.ids, self.logprobs, self.done = request, [], [], False

    def is_continued_by(self, request: Request) -> bool:
        return request.ids[: len(self.cached)] == self.cached and len(request.ids) > len(self.cached)

    @property
    def completion(self) -> Completion:
        return Completion(self.ids, self.logprobs)

    def write(self, id: int, logprob: float, eos_token_ids: frozenset[int]) -> bool:
        """Add a token; returns whether the turn is done."""
        self.ids.append(id)
        self.logprobs.append(logprob)
        self.done = id in eos_token_ids or len(self.ids) == self.request.max_new_tokens
        if self.done:  # all but the last id have gone through the model
            self.cached = (*self.request.ids, *self.ids[:-1])
        return self.done


class TransformersEngine:
    """An engine around a model.

    Args:
        model: a causal language model; is put in eval mode while it generates, so that dropout is off in
            rollouts.
        eos_token_ids: ids that end a turn.
        pad_token_id: fills the left side of shorter rows.
        autocast: makes the context that the model computes in. PEFT's forward is not covered by
            accelerate's own wrapping, so without it LoRA rollouts run in another precision than training.
        device: that the model computes on, which is not where parameters lie that are offloaded. By default
            the first parameter's.
        any_rank: says whether any rank has work, given whether this one has. For models whose forward is
            a collective (FSDP, ZeRO-3): ranks that are done keep feeding a token along with the others,
            which would hang otherwise. `None` where ranks are independent.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_token_ids: Sequence[int],
        pad_token_id: int,
        *,
        autocast: Callable[[], AbstractContextManager] = nullcontext,
        device: torch.device | None = None,
        any_rank: Callable[[bool], bool] | None = None,
    ):
        self.model = model
        self._eos_token_ids = frozenset(eos_token_ids)
        self._pad_token_id = pad_token_id
        self._autocast = autocast
        self._device = device or next(model.parameters()).device
        self._any_rank = any_rank or bool
        self._in_step = any_rank is not None
        # inference mode is the faster one, but what FSDP2 gathers in it cannot be trained with afterwards
        self._without_gradients = torch.inference_mode if any_rank is None else torch.no_grad
        self._config = model.config.get_text_config()
        self._keeps_cache = can_keep(self._config)
        if not self._keeps_cache:
            logger.info(
                "%s has layers whose past cannot be kept from turn to turn; each turn is prefilled again.",
                type(self._config).__name__.removesuffix("Config"),
            )
        # the vocabulary's logits of a whole prompt are not needed; a few models cannot leave them out
        accepted = inspect.signature(getattr(model, "get_base_model", lambda: model)().forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        # a wrapper, such as FSDP's, does not say what it passes on
        self._cache_argument = cache_argument(model) or CACHE_ARGUMENT
        self._cache = RowCache()
        self._rows: list[_Row] = []  # in the order of the cache
        self._prompts: SharedPrefix | None = None
        self._waiting: list[tuple[Request, asyncio.Future, asyncio.AbstractEventLoop]] = []
        self._asked: dict[int, tuple[asyncio.Future, asyncio.AbstractEventLoop]] = {}  # by row
        self._changed = threading.Condition()

    async def generate(self, request: Request) -> Completion:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        with self._changed:
            self._waiting.append((request, future, loop))
            self._changed.notify()
        return await future

    def serve(self, episodes: Sequence[Future]) -> None:
        for episode in episodes:
            episode.add_done_callback(self._notify)
        training = self.model.training
        self.model.eval()
        try:
            # what ranks gather at each layer cannot be laid out beforehand
            laid_out = nullcontext() if self._in_step else packed(self.model)
            # a model that is compiled would be compiled again and again for a cache that grows
            with laid_out, torch.compiler.set_stance("force_eager"):
                while True:
                    batch = self._next_batch(episodes)
                    busy = bool(batch)
                    if not self._any_rank(busy):
                        return
                    self._asked = {request.row: (future, loop) for request, future, loop in batch}
                    self.complete([request for request, _, _ in batch] or [_DUMMY], self._answer)
        finally:
            self._cache, self._rows, self._prompts = RowCache(), [], None
            self.model.train(training)

    def _answer(self, request: Request, completion: Completion) -> None:
        if request is not _DUMMY:
            future, loop = self._asked[request.row]
            loop.call_soon_threadsafe(_resolve, future, completion)

    def _notify(self, _: Future) -> None:
        with self._changed:
            self._changed.notify()

    def _next_batch(
        self, episodes: Sequence[Future]
    ) -> list[tuple[Request, asyncio.Future, asyncio.AbstractEventLoop]]:
        """All waiting requests, once every unfinished episode waits; empty when all are done."""
        with self._changed:
            while len(self._waiting) < sum(not episode.done() for episode in episodes):
                if any(episode.done() and episode.exception() for episode in episodes):
                    break
                self._changed.wait()
            for episode in episodes:
                if episode.done():
                    episode.result()  # a bug in an episode ends the rollout here
            batch, self._waiting = sorted(self._waiting, key=lambda item: item[0].row), []
            return batch

    # --- a turn of a batch --------------------------------------------------------------------------

    def complete(
        self,
        requests: Sequence[Request],
        finished: Callable[[Request, Completion], None] = lambda request, completion: None,
    ) -> list[Completion]:
        """Generate a turn for each request, the distinct `row`s of one rollout; tells `finished` as soon as
        one is."""
        # no generator: leaving inference mode at a yield and entering it again would end autocast
        with self._without_gradients(), self._autocast():
            rows, cache, width = self._continue(requests) if self._keeps_cache else self._begin(requests)
            # a row's own ids lie in the columns from `start` to `width`, the last `fed` of them are not in
            # the cache
            fed = width - cache.get_seq_length()
            ids = self._padded([row.own[-fed:] for row in rows], fed).to(self._device)  # (B, fed)
            start = torch.tensor([[row.start] for row in rows], device=self._device)  # (B, 1)
            shared = torch.tensor([[row.shared] for row in rows], device=self._device)  # (B, 1)
            chooser = TokenChooser([row.request for row in rows], self._device)
            asked = {row.request.row: row for row in rows}
            with self._attending():
                while True:
                    chosen, logprobs = chooser(self._forward(ids, start, width, cache, shared))
                    live = []
                    tokens = zip(rows, chosen.tolist(), logprobs.tolist(), strict=True)
                    for place, (row, id, logprob) in enumerate(tokens):
                        if row.done:
                            continue
                        if row.write(id, logprob, self._eos_token_ids):
                            finished(row.request, row.completion)
                        else:
                            live.append(place)
                    if not self._any_rank(bool(live)):
                        return [asked[request.row].completion for request in requests]
                    if self._keeps_cache and 0 < len(live) <= COMPACT_BELOW_SHARE * len(rows):
                        order = torch.tensor(self._to_front(live), device=self._device)
                        rows = self._rows[: len(live)]
                        chosen, start, shared = chosen[order], start[order], shared[order]
                        chooser.select(order)
                        self._arrange(rows)
                    ids, width = chosen[:, None], width + 1

    def _attending(self) -> AbstractContextManager:
        """Tokens are fed that go on from shared prompts, if there are any."""
        return nullcontext() if self._prompts is None else self._prompts.active(self._config, self._cache)

    def _forward(
        self,
        ids: torch.Tensor,
        start: torch.Tensor,
        width: int,
        cache: Cache,
        shared: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Feed ids (B, fed) in the columns before `width`; the logits (B, V) after the last one.

        `start` (B, 1) is a row's first column, `shared` (B, 1) how many ids lie before it in a shared prompt.
        """
        columns = torch.arange(width, device=ids.device)
        fed = columns[-ids.shape[1] :]
        positions = (fed - start).clamp_(min=0)
        if self._prompts is not None and shared is not None:
            positions += shared
            hidden = None
            if len(fed) > 1 or start.any():
                hidden = (columns < start)[:, None] | (columns > fed[:, None])  # (B, fed, width)
                hidden = hidden.unsqueeze(1)
            self._prompts.hide(hidden)
        output = self.model(
            input_ids=ids,
            attention_mask=(columns >= start).long(),
            position_ids=positions,
            use_cache=True,
            **{self._cache_argument: cache},
            **self._last_only,
        )
        return output.logits[:, -1]

    def _padded(self, rows: Sequence[Sequence[int]], width: int) -> torch.Tensor:
        return torch.tensor([[self._pad_token_id] * (width - len(ids)) + list(ids) for ids in rows])

    def _begin(self, requests: Sequence[Request]) -> tuple[list[_Row], Cache, int]:
        """Return rows without cached ids, an empty cache, and the column after their ids."""
        width = max(len(request.ids) for request in requests)
        rows = [_Row(request, start=width - len(request.ids)) for request in requests]
        return rows, DynamicCache(config=self._config), width

    def _continue(self, requests: Sequence[Request]) -> tuple[list[_Row], Cache, int]:
        """Rows that hold what is known of the requests' ids, their cache, and the column after their ids."""
        asked = {request.row: request for request in requests}
        known = {
            row.request.row
            for row in self._rows
            if row.request.row in asked and row.is_continued_by(asked[row.request.row])
        }
        missing = known != asked.keys()
        if self._any_rank(missing):
            self._prefill(requests if missing else [])
        self._to_front([place for place, row in enumerate(self._rows) if row.request.row in asked])
        rows = self._rows = self._rows[: len(requests)]  # the others are done for good
        for row in rows:
            row.begin(asked[row.request.row])
        self._arrange(rows)

        # as many are fed to each row as the row with the most new ones needs
        fed = max(len(row.request.ids) - len(row.cached) for row in rows)
        kept = [max(0, len(row.own) - fed) for row in rows]
        edge = max(row.start + keep for row, keep in zip(rows, kept, strict=True))
        if edge > 1.25 * max(kept):  # rows that reached further left have gone
            edge = max(kept)
        for place, (row, keep) in enumerate(zip(rows, kept, strict=True)):
            self._cache.push(place, row.start, keep, edge)
            row.start = edge + fed - len(row.own)
        self._cache.cut(len(rows), edge)
        return rows, self._cache, edge + fed

    def _prefill(self, requests: Sequence[Request]) -> None:
        """Compute all but the last id of each prompt, once for equal ones, and starts the rows after
        them."""
        known = [tuple(request.ids[:-1]) for request in requests]
        prompts = list(dict.fromkeys(known)) or [()]
        width = max(
            1, *map(len, prompts)
        )  # one pad where there is nothing to compute, for the other ranks' sake
        start = torch.tensor([[width - len(prompt)] for prompt in prompts], device=self._device)  # (U, 1)
        ids = self._padded(prompts, width).to(self._device)
        most = PREFILL_TOKENS_ON_CPU if self._device.type == "cpu" else PREFILL_TOKENS
        size = len(prompts) if self._in_step else max(1, most // width)
        caches = []
        for part in range(0, len(prompts), size):
            caches.append(RowCache())
            self._forward(ids[part : part + size], start[part : part + size], width, caches[-1])
        cache = RowCache.joined(caches)
        if not requests:
            return
        place = {prompt: number for number, prompt in enumerate(prompts)}
        rows = [
            _Row(request, prompt, source=place[prompt])
            for request, prompt in zip(requests, known, strict=True)
        ]
        rows.sort(key=lambda row: row.source)  # those of a prompt side by side
        self._prompts = None
        if (
            len(prompts) < len(rows)
            and width * len(rows) >= SHARE_PREFIX_MIN_TOKENS * len(prompts)
            and can_share(self._config, self._device)
        ):
            self._prompts, self._cache = SharedPrefix(cache, start), RowCache(OWN_SPARE_COLUMNS)
            for row in rows:
                row.shared = len(row.cached)
        else:
            self._cache = cache.spread([row.source for row in rows])
            for row in rows:
                row.start = width - len(row.cached)
        self._rows = rows

    def _arrange(self, rows: Sequence[_Row]) -> None:
        if self._prompts is not None:
            self._prompts.arrange([row.source for row in rows])

    def _to_front(self, places: Sequence[int]) -> list[int]:
        """Move these rows to the front of the cache, by exchange; returns where the first rows were
        before."""
        order = list(range(len(self._rows)))
        gaps = sorted(set(range(len(places))) - set(places))
        for gap, place in zip(gaps, (place for place in places if place >= len(places)), strict=True):
            self._cache.swap_rows(gap, place)
            self._rows[gap], self._rows[place] = self._rows[place], self._rows[gap]
            order[gap], order[place] = order[place], order[gap]
        return order[: len(places)]


# what a rank feeds that only keeps the others company
_DUMMY = Request(ids=(0,), max_new_tokens=1, sampling=Sampling(greedy=True), row=-1, turn=0)


def _resolve(future: asyncio.Future, completion: Completion) -> None:
    if not future.cancelled():
        future.set_result(completion)
