"""The transformers engine: which tokens it chooses, and what it says of their probabilities."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from trl_dbbench.engines.transformers.engine import TransformersEngine
from trl_dbbench.engines.transformers.sampling import TokenChooser
from trl_dbbench.episode.types import Completion, Request, Sampling
from trl_dbbench.errors import EngineError

EOS = 2


@pytest.fixture(scope="module")
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model).eval()


def complete(model, *requests: Request) -> list[Completion]:
    """The requests' turns, each of an episode of its own, in their order."""
    rows = [replace(request, row=row) for row, request in enumerate(requests)]
    return TransformersEngine(model, [EOS], 0).complete(rows)


def request(ids=(5, 6, 7), new=12, turn=0, **sampling) -> Request:
    return Request(tuple(ids), new, Sampling(**sampling), row=0, turn=turn)


@torch.no_grad()
def scored(model, ids: tuple[int, ...], completion: Completion, temperature: float) -> list[float]:
    """What a forward pass over prompt and completion says of each sampled token."""
    logits = model(torch.tensor([[*ids, *completion.ids]])).logits[0, len(ids) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0].tolist()


def test_greedy_takes_the_arg_max_of_a_full_forward(model):
    ids = [5, 6, 7]
    (completion,) = complete(model, request(ids, greedy=True))
    for id in completion.ids:
        assert model(torch.tensor([ids])).logits[0, -1].argmax() == id
        ids.append(id)


def test_log_probabilities_are_the_policys_own_despite_top_p(model):
    ids = (5, 6, 7, 8)
    (completion,) = complete(model, request(ids, temperature=0.8, top_p=0.95, top_k=50, seed=3))
    assert completion.logprobs == pytest.approx(scored(model, ids, completion, 0.8), abs=1e-4)


def test_rows_of_unequal_length_and_kind_share_a_batch(model):
    """Each row gets what it gets alone: left padding, the neighbours and their random numbers do not matter."""
    rows = [
        request((5, 6, 7), greedy=True),
        request((9,) * 40, temperature=0.8, seed=1),
        request((11, 12), temperature=1.2, top_p=0.9, seed=2),
    ]
    for alone, together in zip(
        (complete(model, row)[0] for row in rows), complete(model, *rows), strict=True
    ):
        assert together.ids == alone.ids
        assert together.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_row_stops_at_its_own_budget_and_at_the_end_of_turn(model):
    short, long = complete(model, request(new=3, seed=1), request(new=9, seed=2))
    assert len(short.ids) == 3
    assert len(long.ids) <= 9

    anything_ends_a_turn = TransformersEngine(model, range(model.config.vocab_size), 0)
    (completion,) = anything_ends_a_turn.complete([request(new=9, seed=1)])
    assert completion.ids == short.ids[:1], "the token that ended the turn is kept"


def test_seed_and_turn_choose_the_random_numbers(model):
    first, again, other_seed, other_turn = complete(
        model, request(seed=1), request(seed=1), request(seed=2), request(seed=1, turn=1)
    )
    assert first == again
    assert len({tuple(c.ids) for c in (first, other_seed, other_turn)}) == 3


def test_global_generators_are_left_alone(model):
    before = torch.random.get_rng_state()
    complete(model, request(seed=1))
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_models_own_generation_settings_do_not_reach_the_policy(model, tiny_model):
    meddling = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    meddling.generation_config.update(repetition_penalty=5.0, temperature=0.1, top_k=1, min_new_tokens=12)
    assert complete(meddling, request(seed=4)) == complete(model, request(seed=4))


def choose(logits: list[float], draws: int, **sampling) -> torch.Tensor:
    """How often each token is chosen, as shares."""
    requests = [Request((0,), 1, Sampling(**sampling, seed=seed), 0, 0) for seed in range(draws)]
    chooser = TokenChooser(requests, torch.device("cpu"))
    ids, _ = chooser(torch.tensor([logits]).expand(draws, -1))
    return torch.nn.functional.one_hot(ids, len(logits)).float().mean(0)


def test_tokens_come_as_often_as_the_policy_says():
    logits = [0.0, 1.0, 2.0, -1.0]
    shares = choose(logits, 4000, temperature=0.7)
    # four standard deviations of a share over 4,000 draws are below 0.032
    assert torch.allclose(shares, torch.softmax(torch.tensor(logits) / 0.7, -1), atol=0.032)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    shares = choose(logits, 1000, top_p=0.7)  # 0.5 does not reach 0.7, 0.5 + 0.3 does
    assert torch.allclose(shares, torch.tensor([0.625, 0.375, 0.0, 0.0]), atol=0.065)


def test_top_p_is_a_share_of_what_top_k_leaves():
    """As in transformers and vLLM: of 0.5 and 0.3, the first has 0.625 of the mass, which reaches 0.6."""
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert (choose(logits, 500, top_k=2, top_p=0.6) > 0).tolist() == [True, False, False, False]


def test_top_k_keeps_the_k_most_likely():
    assert (choose([0.0, 0.1, 0.2, 0.3], 500, top_k=2) > 0).tolist() == [False, False, True, True]


@pytest.mark.parametrize("top_p", [1e-6, 0.5, 1.0])
def test_an_impossible_token_is_never_chosen(top_p):
    assert choose([0.0, -torch.inf, 0.0, -torch.inf], 500, top_p=top_p)[[1, 3]].sum() == 0


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(greedy=True), Sampling(1.0, top_p=0.5)], ids=str
)
def test_weights_that_are_broken_end_in_one_line(tiny_model, sampling):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.get_input_embeddings().weight.data.fill_(torch.nan)
    with pytest.raises(EngineError, match="log-probabilities are NaN: its weights are broken"):
        TransformersEngine(model, [EOS], 0).complete([Request((5, 6), 3, sampling, row=0, turn=0)])


def test_dropout_is_off_while_generating_and_back_on_after(model):
    model.train()
    TransformersEngine(model, [EOS], 0).serve([])
    assert model.training
    model.eval()
