"""Generation of turns with a transformers model in this process.

All episodes that have a row of the cache are answered as one batch. A batch starts once every unfinished
episode is waiting, so its composition, and with it every number, is the same from run to run, however long
the SQL statements took. Free memory bounds the number of rows (`admission.py`); an episode that ends makes
room for the next.

Nothing is computed twice: each distinct prompt goes through the model once for all its episodes, and a later
turn feeds only what is new, the last token and the observation. Rows leave the batch as they finish, and
their statements run while the others continue.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from trl_dbbench.engines.asked import Asked, AskedEngine, bug_in
from trl_dbbench.engines.policy import evaluating
from trl_dbbench.engines.transformers.admission import FED_TOKENS, Admission, Costs
from trl_dbbench.engines.transformers.cache import GROW_BY_COLUMNS, Piece, RowCache, can_keep
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
from trl_dbbench.errors import EngineError
from trl_dbbench.utils.memory import free_memory

logger = logging.getLogger(__name__)

COMPACT_BELOW_SHARE = 0.5
"""Share of rows still generating at which, or below, finished rows are dropped from the batch."""

PREFILL_TOKENS_ON_CPU = 1_024
"""Prefill chunk size, in tokens, on a CPU; elsewhere it is `FED_TOKENS`. Larger chunks are slower there: a
layer's intermediate results no longer fit into the CPU's caches."""

NO_NUMBERS = (
    "the model's log-probabilities are NaN: its weights are broken, as by a learning rate that is too high, "
    "or float16 is too narrow for it. Go on from an earlier checkpoint with a lower learning_rate, or set "
    "dtype: bfloat16."
)


@dataclass
class _Row:
    """An episode's row of the batch and of the cache, from its first turn to its last."""

    request: Request
    cached: tuple[int, ...] = ()
    """Ids whose keys and values are known. They begin with the shared `prompt`, if any; those of the rest
    are in the row's cache, from column `start` on."""
    start: int = 0
    prompt: tuple[int, ...] = ()
    ids: list[int] = field(default_factory=list)
    """Ids sampled in this turn; `logprobs` has their log-probabilities."""
    logprobs: list[float] = field(default_factory=list)
    done: bool = False

    @property
    def own(self) -> Sequence[int]:
        """The request's ids after the shared prompt."""
        return self.request.ids[len(self.prompt) :]

    def begin(self, request: Request) -> None:
        self.request, self.ids, self.logprobs, self.done = request, [], [], False

    def is_continued_by(self, request: Request) -> bool:
        return request.ids[: len(self.cached)] == self.cached and len(request.ids) > len(self.cached)

    @property
    def completion(self) -> Completion:
        return Completion(self.ids, self.logprobs)

    def write(self, id: int, logprob: float, eos_token_ids: frozenset[int]) -> bool:
        """Add a token; return whether the turn is done."""
        self.ids.append(id)
        self.logprobs.append(logprob)
        self.done = id in eos_token_ids or len(self.ids) == self.request.max_new_tokens
        if self.done:  # all but the last id have gone through the model
            self.cached = (*self.request.ids, *self.ids[:-1])
        return self.done


class TransformersEngine(AskedEngine):
    """An engine around a causal language model, which is in eval mode while it generates.

    Args:
        autocast: returns the autocast context that the model computes in. accelerate's own wrapping does not
            cover PEFT's forward, so without it LoRA rollouts run in another precision than training.
        device: the device that the model computes on, by default the first parameter's. Offloaded parameters
            are on another.
        any_rank: returns whether any rank has work, given whether this one has. For models whose forward pass
            is a collective operation (FSDP, ZeRO-3): ranks that are done keep feeding a token, or the others
            would hang. `None` if ranks are independent.
        max_concurrent_episodes: most episodes that have a row of the cache at a time; by default as many as
            fit into free memory.
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
        max_concurrent_episodes: int | None = None,
    ):
        super().__init__()
        self.model = model
        self._eos_token_ids = frozenset(eos_token_ids)
        self._pad_token_id = pad_token_id
        self._autocast = autocast
        self._device = device or next(model.parameters()).device
        self._any_rank = any_rank or bool
        self._in_step = any_rank is not None
        # inference mode is faster, but weights that FSDP2 gathers in it cannot be trained afterwards
        self._without_gradients = torch.inference_mode if any_rank is None else torch.no_grad
        self._config = model.config.get_text_config()
        self._keeps_cache = can_keep(self._config)
        if not self._keeps_cache:
            logger.info(
                "%s has layers whose past cannot be kept from turn to turn; each turn is prefilled again.",
                type(self._config).__name__.removesuffix("Config"),
            )
        # only the last token's logits are needed; a few models cannot leave out the others
        accepted = inspect.signature(getattr(model, "get_base_model", lambda: model)().forward).parameters
        # an index, since it copies the last hidden states; given a slice, a CPU multiplies each row by a
        # separate copy of frozen vocabulary weights (7 GB for 128 rows of SmolLM2 in bf16)
        last = torch.tensor([-1], device=self._device)
        self._last_only = {"logits_to_keep": last} if "logits_to_keep" in accepted else {}
        # a wrapper such as FSDP's hides the arguments that it passes on
        self._cache_argument = cache_argument(model) or CACHE_ARGUMENT
        self._cache = RowCache()
        self._rows: list[_Row] = []  # in the order of the cache
        self._prompts: SharedPrefix | None = None
        self._shares: bool | None = None  # not decided yet
        self._most = max_concurrent_episodes
        self._admission: Admission | None = None
        self._asked: dict[int, Asked] = {}  # by row

    def serve(self, episodes: Sequence[Future]) -> None:
        self._watch(episodes)
        try:
            # weights that ranks gather layer by layer cannot be packed beforehand
            laid_out = nullcontext() if self._in_step else packed(self.model)
            # a compiled model would be compiled again and again as the cache grows
            with evaluating(self.model), laid_out, torch.compiler.set_stance("force_eager"):
                while True:
                    batch = self._next_batch(episodes)
                    if not self._any_rank(bool(batch)):
                        return
                    self._asked = {asked.request.row: asked for asked in batch}
                    self.complete([asked.request for asked in batch] or [_DUMMY], self._answer)
        finally:
            self._cache, self._rows, self._prompts = RowCache(), [], None
            self._shares = self._admission = None

    def _answer(self, request: Request, completion: Completion) -> None:
        if request is not _DUMMY:
            self._asked[request.row].answer(completion)

    def _next_batch(self, episodes: Sequence[Future]) -> list[Asked]:
        """Return the requests of admitted episodes once all unfinished ones wait; none if all are done."""
        with self._changed:
            while (bug := bug_in(episodes)) is None and len(self._waiting) < sum(
                not episode.done() for episode in episodes
            ):
                self._changed.wait()
            if bug is not None:
                raise bug
            rows = self._admitted([each.request for each in self._waiting])
            batch = [each for each in self._waiting if each.request.row in rows]
            self._waiting = [each for each in self._waiting if each.request.row not in rows]
            return sorted(batch, key=lambda each: each.request.row)

    def _admitted(self, requests: Sequence[Request]) -> Collection[int]:
        if not requests:
            return ()
        if self._admission is None:
            self._decide(requests)
            dtype = getattr(self.model, "dtype", torch.float32)  # a wrapper may not say
            costs = Costs.of(self._config, dtype, shares=bool(self._shares), keeps=self._keeps_cache)
            self._admission = Admission(costs, self._most, free_memory(self._device))
        return self._admission.admit(requests)

    # --- a turn of a batch --------------------------------------------------------------------------

    def complete(
        self,
        requests: Sequence[Request],
        finished: Callable[[Request, Completion], None] = lambda request, completion: None,
    ) -> list[Completion]:
        """Generate a turn for each request (their `row`s differ); call `finished` as each turn ends."""
        # not a generator: leaving inference mode at a yield and entering it again would end autocast
        with self._without_gradients(), self._autocast():
            rows, cache, width = self._continue(requests) if self._keeps_cache else self._begin(requests)
            # a row's own ids are in the columns from `start` to `width`; the last `fed` of them are not in
            # the cache yet
            fed = width - cache.get_seq_length()
            ids = self._padded([row.own[-fed:] for row in rows], fed).to(self._device)  # (B, fed)
            start = torch.tensor([[row.start] for row in rows], device=self._device)  # (B, 1)
            shared = torch.tensor([[len(row.prompt)] for row in rows], device=self._device)  # (B, 1)
            ragged = any(row.start for row in rows)
            chooser = TokenChooser([row.request for row in rows], self._device)
            asked = {row.request.row: row for row in rows}
            # the tokens fed continue shared prompts, if there are any
            shared_past = None if self._prompts is None else self._prompts.active(self._config, self._cache)
            with shared_past or nullcontext():
                while True:
                    chosen, logprobs = chooser(self._feed(ids, start, width, cache, shared, ragged))
                    live = []
                    # waits for a GPU once per token; fp64 holds both ids and log-probabilities exactly
                    tokens = torch.stack((chosen.double(), logprobs.double()), dim=1).tolist()
                    for place, (row, (id, logprob)) in enumerate(zip(rows, tokens, strict=True)):
                        if row.done:
                            continue
                        if math.isnan(logprob):
                            raise EngineError(NO_NUMBERS)
                        if row.write(int(id), logprob, self._eos_token_ids):
                            finished(row.request, row.completion)
                        else:
                            live.append(place)
                    if not self._any_rank(bool(live)):
                        return [asked[request.row].completion for request in requests]
                    live = live or [0]  # a finished row, to stay in step with the other ranks
                    if self._keeps_cache and len(live) <= COMPACT_BELOW_SHARE * len(rows):
                        order = torch.tensor(self._to_front(live), device=self._device)
                        rows = self._rows[: len(live)]
                        chosen, start, shared = chosen[order], start[order], shared[order]
                        chooser.select(order)
                        self._arrange(rows)
                    ids, width = chosen[:, None], width + 1

    def _feed(
        self,
        ids: torch.Tensor,
        start: torch.Tensor,
        width: int,
        cache: Cache,
        shared: torch.Tensor | None = None,
        ragged: bool = True,
    ) -> torch.Tensor:
        """Feed ids (B, fed) in the columns before `width`; return the logits (B, V) after the last one.

        `start` (B, 1) is each row's first column, `shared` (B, 1) the number of ids in its shared prompt. All
        rows start in the first column unless they are `ragged`.
        """
        end = width - ids.shape[1]
        # the number of parts would differ between ranks; a linear-attention layer's past cannot be extended
        whole = self._in_step or not self._keeps_cache
        for part in ids.split(ids.shape[1] if whole else max(1, FED_TOKENS // len(ids)), dim=1):
            end += part.shape[1]
            columns = torch.arange(end, device=ids.device)
            fed = columns[-part.shape[1] :]
            positions = (fed - start).clamp_(min=0)
            if self._prompts is not None and shared is not None:
                positions += shared
                hidden = None
                if len(fed) > 1 or ragged:
                    hidden = (columns < start)[:, None] | (columns > fed[:, None])  # (B, fed, end)
                    hidden = hidden.unsqueeze(1)
                self._prompts.hide(hidden)
            output = self.model(
                input_ids=part,
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
        """Return new rows, an empty cache, and the column after the rows' ids."""
        width = max(len(request.ids) for request in requests)
        rows = [_Row(request, start=width - len(request.ids)) for request in requests]
        return rows, DynamicCache(config=self._config), width

    def _continue(self, requests: Sequence[Request]) -> tuple[list[_Row], Cache, int]:
        """Return a row for each request, the rows' cache, and the column after their ids.

        Keys and values computed in earlier turns are kept. Rows without a request are dropped: their episodes
        have ended. With shared prompts, rows of the same prompt are adjacent.
        """
        self._decide(requests)
        asked = {request.row: request for request in requests}
        held, at = dict[int, _Row](), dict[int, Piece]()  # at: location of a row's own ids
        for place, row in enumerate(self._rows):
            number = row.request.row
            if number in asked and row.is_continued_by(asked[number]):
                held[number], at[number] = row, Piece(self._cache, place, row.start, 0)
        new = {request.row: self._begun(request) for request in requests if request.row not in held}
        if self._shares:
            self._share([*dict.fromkeys([*(row.prompt for row in held.values()), *new.values()])])
        else:
            prompts = self._prefill([*dict.fromkeys(new.values())])
            at |= {number: prompts[ids] for number, ids in new.items()}
        rows = []
        for number, request in asked.items():
            ids = new.get(number, ())
            row = held.get(number) or _Row(request, cached=ids, prompt=ids if self._shares else ())
            row.begin(request)
            rows.append(row)
        if self._prompts is not None:  # rows of the same prompt side by side
            places = self._prompts.places
            rows.sort(key=lambda row: places[row.prompt])

        # every row is fed as many ids as the row with the most new ones needs
        fed = max(len(row.request.ids) - len(row.cached) for row in rows)
        kept = [max(0, len(row.own) - fed) for row in rows]
        edge = max(kept)
        pieces = [
            at[row.request.row]._replace(columns=keep) if row.request.row in at else None
            for row, keep in zip(rows, kept, strict=True)
        ]
        room = GROW_BY_COLUMNS if self._prompts is None else OWN_SPARE_COLUMNS
        self._cache, self._rows = RowCache.of(pieces, edge, room), rows
        for row in rows:
            row.start = edge + fed - len(row.own)
        self._arrange(rows)
        return rows, self._cache, edge + fed

    def _begun(self, request: Request) -> tuple[int, ...]:
        """Return the ids whose keys and values a row without a past starts from: the longest kept prompt that
        the request begins with, as after a rewritten history, or else all ids but the last."""
        ids = tuple(request.ids[:-1])
        kept = () if self._prompts is None else self._prompts.places
        return max((each for each in kept if each and ids[: len(each)] == each), key=len, default=ids)

    def _decide(self, requests: Sequence[Request]) -> None:
        """Decide once per rollout whether its prompts are shared."""
        if self._shares is None:
            prompts = {tuple(request.ids[:-1]) for request in requests}
            self._shares = (
                len(prompts) < len(requests)
                and max(map(len, prompts)) * len(requests) >= SHARE_PREFIX_MIN_TOKENS * len(prompts)
                and can_share(self._config)
            )

    def _share(self, needed: Sequence[tuple[int, ...]]) -> None:
        """Keep the keys and values of these prompts and no others; compute those that are missing."""
        have = {} if self._prompts is None else self._prompts.pieces()
        if not have.keys() <= set(needed):
            have = {prompt: piece for prompt, piece in have.items() if prompt in needed}
            self._prompts = SharedPrefix(have, self._device) if have else None
            have = {} if self._prompts is None else self._prompts.pieces()
        if computed := self._prefill([prompt for prompt in needed if prompt not in have]):
            self._prompts = SharedPrefix(have | computed, self._device)

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Piece]:
        """Compute the keys and values of prompts, a few at a time; return the location of each."""
        most = PREFILL_TOKENS_ON_CPU if self._device.type == "cpu" else FED_TOKENS
        left, pieces = list(prompts), dict[tuple[int, ...], Piece]()
        while self._any_rank(bool(left)):
            part = left[:1] or [()]  # one padding token, to stay in step with the other ranks
            for prompt in left[1:]:
                if (len(part) + 1) * max(map(len, [*part, prompt])) > most:
                    break
                part.append(prompt)
            del left[: len(part)]
            width, cache = max([1, *map(len, part)]), RowCache(room=0)
            at = [Piece(cache, row, width - len(prompt), len(prompt)) for row, prompt in enumerate(part)]
            start = torch.tensor([[piece.start] for piece in at], device=self._device)  # (U, 1)
            self._feed(self._padded(part, width).to(self._device), start, width, cache)
            pieces |= zip(part, at, strict=True)
        return {prompt: pieces[prompt] for prompt in prompts}

    def _arrange(self, rows: Sequence[_Row]) -> None:
        if self._prompts is not None:
            self._prompts.arrange([row.prompt for row in rows])

    def _to_front(self, places: Sequence[int]) -> list[int]:
        """Swap these rows to the front of the cache; return the former places of the rows now there."""
        order = list(range(len(self._rows)))
        gaps = sorted(set(range(len(places))) - set(places))
        for gap, place in zip(gaps, (place for place in places if place >= len(places)), strict=True):
            self._cache.swap_rows(gap, place)
            self._rows[gap], self._rows[place] = self._rows[place], self._rows[gap]
            order[gap], order[place] = order[place], order[gap]
        return order[: len(places)]


# fed by a rank that has no work, to stay in step with the others
_DUMMY = Request(ids=(0,), max_new_tokens=1, sampling=Sampling(greedy=True), row=-1, turn=0)
