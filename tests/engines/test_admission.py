"""Bounded rollouts: some episodes have a row of the cache, the others wait, and nobody's tokens change."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from anyio.from_thread import start_blocking_portal
from transformers import (
    Gemma3nTextConfig,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
)

from trl_dbbench.engines.transformers import admission
from trl_dbbench.engines.transformers.admission import Admission, Costs, cache_bytes_per_token
from trl_dbbench.engines.transformers.engine import TransformersEngine
from trl_dbbench.episode.types import Completion, Request, Sampling

VOCABULARY = 97
EOS = [3, 14]
PROMPTS = [(5, *[number] * (20 - number)) for number in range(6, 9)]
SAMPLES = 4


def model() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.4,
        )
    ).eval()


async def episode(engine: TransformersEngine, row: int, prompt: Sequence[int]) -> list[Completion]:
    """One to four turns, each followed by a few ids; the last rows are the greedy runs of the prompts."""
    rng, ids, turns = random.Random(row), list(prompt), list[Completion]()
    sampling = Sampling(seed=row, greedy=row >= len(PROMPTS) * SAMPLES)
    for turn in range(rng.randint(1, 4)):
        request = Request(tuple(ids), rng.randint(1, 9), sampling, row, turn, limit=len(prompt) + 80)
        turns.append(await engine.generate(request))
        ids += [*turns[-1].ids, *(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 9)))]
    return turns


def rollout(engine: TransformersEngine, rows: Sequence[int] | None = None) -> list[list[Completion]]:
    """The turns of each episode; and the rows of each batch in `engine.batches`."""
    engine.batches, complete = [], engine.complete

    def noted(requests, finished):
        engine.batches.append([request.row for request in requests])
        return complete(requests, finished)

    engine.complete = noted
    prompts = [prompt for prompt in PROMPTS for _ in range(SAMPLES)] + PROMPTS
    with start_blocking_portal() as portal:
        loop = portal.call(asyncio.get_running_loop)
        futures = [
            asyncio.run_coroutine_threadsafe(episode(engine, row, prompt), loop)
            for row, prompt in enumerate(prompts)
            if rows is None or row in rows
        ]
        engine.serve(futures)
        return [future.result() for future in futures]


@pytest.mark.parametrize("long", [1, 10_000], ids=["prompts-shared", "prompts-copied"])
@pytest.mark.parametrize("most", [1, 2, 4, 64])
def test_the_bound_changes_no_token(most, long, monkeypatch):
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", long)
    network = model()
    free = rollout(TransformersEngine(network, EOS, 0))
    engine = TransformersEngine(network, EOS, 0, max_concurrent_episodes=most)
    for mine, theirs in zip(rollout(engine), free, strict=True):
        for turn, other in zip(mine, theirs, strict=True):
            assert turn.ids == other.ids
            assert turn.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert max(map(len, engine.batches)) == min(most, 15)
    assert not engine._rows and not engine._cache.layers, "nothing is kept after the rollout"


def test_an_episode_that_ends_makes_room_for_the_next():
    engine = TransformersEngine(model(), EOS, 0, max_concurrent_episodes=4)
    rollout(engine)
    begun = set[int]()
    for batch in engine.batches:
        begun.update(batch)
        assert len(batch) == 4 or len(begun) == 15, "fewer only when nobody waits"


def test_a_prompt_is_computed_once_and_kept_for_samples_that_wait(monkeypatch):
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", 1)
    network, computed = model(), []
    network.register_forward_pre_hook(
        lambda _, args, kwargs: computed.append(kwargs["position_ids"].amin(dim=1).tolist()), with_kwargs=True
    )
    rollout(TransformersEngine(network, EOS, 0, max_concurrent_episodes=2))
    assert sum(positions.count(0) for positions in computed) == len(PROMPTS)


def test_what_is_free_bounds_a_rollout_and_it_says_so(monkeypatch, caplog):
    network = model()
    costs = Costs.of(network.config, torch.float32, shares=False)
    firsts = [Request(PROMPTS[0], 9, Sampling(), row, 0, limit=99) for row in range(3)]
    *_, three = costs.together(firsts)
    monkeypatch.setattr(admission, "TAKEN_SHARE", 1.0)
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.free_memory", lambda device: int(three) + 1)
    admission._tell.cache_clear()
    engine = TransformersEngine(network, EOS, 0)
    with caplog.at_level(logging.INFO, "trl_dbbench"):
        rollout(engine)
    assert max(map(len, engine.batches)) == 3
    assert "3 of 15 episodes play at a time, the others wait" in caplog.text
    assert "max_concurrent_episodes" in caplog.text


def test_the_largest_layer_counts_where_layers_differ():
    gemma4 = Gemma4TextConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        global_head_dim=16, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    assert cache_bytes_per_token(gemma4, 2) == 2 * 2 * (16 + 16) * 2  # layers, heads, keys and values, bytes
    gemma3n = Gemma3nTextConfig(num_hidden_layers=2, intermediate_size=[64, 256], hidden_size=32)
    assert admission.mlp_size(gemma3n) == 256


# --- ranks ----------------------------------------------------------------------------------------


class Ranks:
    """Threads that meet at every forward pass, as ranks under FSDP do; one that hangs breaks the barrier."""

    def __init__(self, count: int):
        self._barrier = threading.Barrier(count, timeout=60)
        self._said = [False] * count

    def any_rank(self, rank: int) -> Callable[[bool], bool]:
        def ask(own: bool) -> bool:
            self._said[rank] = own
            self._barrier.wait()
            answer = any(self._said)
            self._barrier.wait()
            return answer

        return ask

    def forward(self, *_) -> None:
        self._barrier.wait()


@pytest.mark.parametrize("long", [1, 10_000], ids=["prompts-shared", "prompts-copied"])
def test_ranks_with_different_bounds_do_not_wait_for_each_other_forever(long, monkeypatch):
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", long)
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.PREFILL_TOKENS_ON_CPU", 25)
    ranks = Ranks(2)
    engines = []
    for rank, most in enumerate((2, 5)):
        network = model()
        network.register_forward_pre_hook(ranks.forward)
        engines.append(
            TransformersEngine(network, EOS, 0, any_rank=ranks.any_rank(rank), max_concurrent_episodes=most)
        )
    own = [range(0, 9), range(9, 15)]
    with ThreadPoolExecutor(2) as threads:
        turns = [each for of_rank in threads.map(rollout, engines, own) for each in of_rank]
    alone = rollout(TransformersEngine(model(), EOS, 0))
    assert [[turn.ids for turn in each] for each in turns] == [[turn.ids for turn in each] for each in alone]


# --- who has a row --------------------------------------------------------------------------------

COSTS = Costs(token=1.0, row=0, fed=0, at_once=0, shares=True)


def first(row: int, prompt: int = 0, limit: int = 30) -> Request:
    return Request((prompt,) * 20, 5, Sampling(), row, 0, limit)


def test_episodes_of_a_prompt_come_one_after_the_other():
    """Rows 0 and 1 are the greedy runs of two prompts, the others their samples."""
    waiting = [first(row, prompt=(row, (row - 2) // 3)[row > 1]) for row in reversed(range(8))]
    entering = Admission(COSTS, 4, None)
    assert sorted(entering.admit(waiting)) == [0, 2, 3, 4]
    assert sorted(entering.admit([each for each in waiting if each.row not in (0, 2)])) == [1, 3, 4, 5]
    assert sorted(entering.admit([each for each in waiting if each.row in (5, 6, 7)])) == [5, 6, 7]


def test_who_has_a_row_keeps_it():
    entering = Admission(COSTS, 2, None)
    assert [*entering.admit([first(5), first(7)])] == [5, 7]
    assert [*entering.admit([first(3), first(5), first(7)])] == [5, 7]
    assert [*entering.admit([first(3), first(7)])] == [7, 3]


def test_one_plays_even_if_it_does_not_fit():
    assert [*Admission(COSTS, None, 0).admit([first(1), first(2)])] == [1]


def test_a_number_that_is_given_is_not_bounded_by_what_is_free():
    assert len(Admission(COSTS, 2, 0).admit([first(row) for row in range(5)])) == 2


def test_a_prompt_counts_once_for_its_episodes(monkeypatch):
    """10 tokens of each episode and 32 spare columns; 20 of each prompt."""
    assert [*COSTS.together([first(0), first(1), first(2, prompt=1)])] == [62, 104, 166]


def test_without_sharing_it_counts_for_each():
    """30 tokens of an episode and 256 spare columns; the longest one says how many columns all have."""
    costs = Costs(token=1.0, row=7, fed=0, at_once=0, shares=False)
    assert [*costs.together([first(0), first(1), first(2, limit=40)])] == [293, 586, 909]


def test_no_more_tokens_are_fed_together_than_may_be():
    costs = Costs(token=0.0, row=0, fed=2, at_once=70, shares=False)
    assert [*costs.together([first(0), first(1), first(2)])] == [60, 120, 140]


def test_bytes_of_a_token_in_the_cache():
    grouped = Qwen2Config(hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2)
    assert cache_bytes_per_token(grouped, 2) == 3 * 2 * 2 * 8 * 2, (
        "layers, keys and values, heads, size, bytes"
    )
