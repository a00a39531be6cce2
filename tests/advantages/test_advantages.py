"""Advantages: what a function of one's own is given, and that what it gives is what is trained and kept."""

from __future__ import annotations

import re

import pytest
import torch
from training import by_turn, episodes_in, make_trainer, train_and_look

from trl_dbbench import AdvantageBatch, ConfigError, DBBenchGRPOConfig
from trl_dbbench.advantages.registry import ADVANTAGES, compute, note
from trl_dbbench.episode.protocol import Answer, Operation
from trl_dbbench.episode.types import Completion, Episode, Sampling, Status, Turn


def episode(task, *turns: tuple[int, int], rewards=None, status=Status.ANSWERED) -> Episode:
    """`(2, 3)` is a turn of two sampled tokens and three of its observation."""
    played = [
        Turn(
            Completion([7] * sampled, [0.0] * sampled),
            "",
            Operation("SELECT 1") if seen else Answer("1"),
            observation_ids=[8] * seen,
        )
        for sampled, seen in turns
    ]
    return Episode(task, [1], Sampling(), played, status, rewards=rewards or {})


def batch_of(*episodes: Episode, rewards: list[list[float]], weights=(1.0, 1.0)) -> AdvantageBatch:
    groups = torch.arange(len(episodes)) // 2
    return AdvantageBatch(episodes, torch.tensor(rewards), torch.tensor(weights), groups)


NAN = float("nan")


def test_a_batch_says_which_tokens_are_of_which_turn(late_orders):
    batch = batch_of(
        episode(late_orders, (2, 3), (1, 0)), episode(late_orders, (2, 0)), rewards=[[1, 2], [NAN, NAN]]
    )
    #                                sampled  observed    sampled
    assert batch.mask.tolist() == [[1, 1, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0]]
    assert batch.turns.tolist() == [[0, 0, -1, -1, -1, 1], [0, 0, -1, -1, -1, -1]]
    assert batch.groups.tolist() == [0, 0]


def test_weighted_rewards_are_those_of_trl(late_orders):
    """A function without a reward counts as none; an episode without any has none."""
    episodes = [episode(late_orders, (1, 0))] * 3
    batch = batch_of(*episodes, rewards=[[1, 2], [NAN, 2], [NAN, NAN]], weights=(1.0, 0.5))
    assert batch.weighted[:2].tolist() == [2, 1]
    assert batch.weighted[2].isnan()


def test_step_rewards_are_by_turn_and_function(late_orders):
    played = episode(late_orders, (1, 1), (1, 0), rewards={"outcome": 1.0, "steps": 0.3})
    played.turns[0].rewards, played.turns[1].rewards = {"steps": 0.1}, {"steps": 0.2}
    other = episode(late_orders, (1, 0), rewards={"outcome": 1.0, "steps": None})
    steps = batch_of(played, other, rewards=[[1, 0.3], [1, NAN]]).step_rewards
    assert steps.shape == (2, 2, 2)
    assert steps[0, :, 1].tolist() == pytest.approx([0.1, 0.2])
    assert steps[:, :, 0].isnan().all() and steps[1].isnan().all()


def test_nothing_is_trained_where_nothing_was_sampled_or_the_environment_failed(late_orders):
    batch = batch_of(
        episode(late_orders, (1, 1), (1, 0)),
        episode(late_orders, (1, 0), status=Status.ENVIRONMENT_FAULT),
        rewards=[[1, 1], [1, 1]],
    )
    tokens = compute("mine", lambda batch: torch.tensor([[1.0, 2.0, NAN], [4.0, 5.0, 6.0]]), batch)
    assert tokens.tolist() == [[1, 0, 0], [0, 0, 0]]
    assert compute("mine", lambda batch: torch.tensor([NAN, 5.0]), batch).tolist() == [0, 0]


def test_a_division_by_zero_trains_nothing(late_orders):
    """Infinity would be trained as the largest number that fp32 has, and leave no weight but NaN."""
    batch = batch_of(episode(late_orders, (1, 0)), episode(late_orders, (1, 0)), rewards=[[1, 0], [0, 1]])
    given = compute("mine", lambda batch: batch.rewards[:, 0] / batch.rewards[:, 1], batch)
    assert given.tolist() == [0, 0]
    assert compute("mine", lambda batch: torch.tensor([-torch.inf, 2.0]), batch).tolist() == [0, 2]


@pytest.mark.parametrize("given", [None, [[1.0], [1.0, 2.0]]])
def test_what_is_no_tensor_is_refused(late_orders, given):
    """As a function gives that forgets its `return`."""
    batch = batch_of(episode(late_orders, (1, 1), (1, 0)), episode(late_orders, (1, 0)), rewards=[[1, 1]] * 2)
    with pytest.raises(ConfigError, match=rf"'mine' gave {re.escape(str(given))}; allowed are tensors"):
        compute("mine", lambda batch: given, batch)


@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (2, 3, 1)])
def test_a_wrong_shape_is_refused(late_orders, shape):
    batch = batch_of(episode(late_orders, (1, 1), (1, 0)), episode(late_orders, (1, 0)), rewards=[[1, 1]] * 2)
    with pytest.raises(ConfigError, match=r"'mine' gave the shape .* allowed are .* \(2,\).* and \(2, 3\)"):
        compute("mine", lambda batch: torch.zeros(shape), batch)


def test_episodes_and_turns_are_told_what_they_were_given(late_orders):
    differs, same = episode(late_orders, (2, 1), (1, 0)), episode(late_orders, (1, 1), (1, 0))
    values = torch.tensor([[1.0, 3.0, 9.0, 5.0], [2.0, 9.0, 2.0, 9.0]])
    assert note([differs, same], values) == [3, 2]  # means over sampled tokens
    assert [turn.advantage for turn in differs.turns] == [2, 5]
    assert [turn.advantage for turn in same.turns] == [None, None]  # both as the episode


def test_what_is_trained_is_what_is_recorded(tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch):
    """By token: the loss, `episodes.jsonl` and TRL's completions table say the same."""
    monkeypatch.setitem(ADVANTAGES, "by_turn", by_turn)
    trainer = make_trainer(
        tiny_model, sqlite_database, demo_tasks[:4], tmp_path, advantage="by_turn", max_steps=1
    )
    (trained,) = train_and_look(trainer, lambda batch: (batch["advantages"].clone(), batch["tool_mask"]))
    values, mask = trained
    assert values.shape == mask.shape

    played = [each for each in episodes_in(tmp_path) if each["phase"] == "train"]
    rewards = [sum(each["rewards"].values()) for each in played]
    expected = [reward - sum(rewards) / 4 for reward in rewards]
    for row, (each, centred) in enumerate(zip(played, expected, strict=True)):
        turns = [turn["advantage"] for turn in each["turns"]]
        assert turns == pytest.approx([centred * (number + 1) for number in range(3)], abs=1e-5)
        sampled = values[row][mask[row].bool()]
        assert each["advantage"] == pytest.approx(sampled.mean().item(), abs=1e-5)
    assert list(trainer._logs["advantages"]) == pytest.approx([each["advantage"] for each in played])


def test_advantages_by_token_are_padded_as_the_completions(
    tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch
):
    monkeypatch.setitem(ADVANTAGES, "by_turn", by_turn)
    settings = {"advantage": "by_turn", "pad_to_multiple_of": 64, "max_steps": 1}
    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path, **settings)
    ((values, mask),) = train_and_look(trainer, lambda batch: (batch["advantages"], batch["tool_mask"]))
    assert values.shape == mask.shape and mask.shape[1] % 64 == 0
    turns = episodes_in(tmp_path)[-1]["turns"]
    used = sum(turn["tokens"] + turn["observation_tokens"] for turn in turns)
    assert values[-1, used - 1] != 0 and not values[-1, used:].any()


def test_trls_own_is_the_default_and_left_as_it_is(tiny_model, sqlite_database, demo_tasks, tmp_path):
    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path, max_steps=1)
    (values,) = train_and_look(trainer, lambda batch: batch["advantages"].tolist())
    played = [each for each in episodes_in(tmp_path) if each["phase"] == "train"]
    rewards = torch.tensor([sum(each["rewards"].values()) for each in played])
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert values == pytest.approx(expected.tolist(), abs=1e-5)
    assert [each["advantage"] for each in played] == values


@pytest.mark.parametrize("name", ["luck", "no_such_module.luck"])
def test_an_unknown_name_is_refused_before_anything_starts(name, tmp_path):
    with pytest.raises(ConfigError, match="advantage"):
        DBBenchGRPOConfig(str(tmp_path), advantage=name, use_cpu=True, bf16=False)


def test_step_rewards_must_be_one_for_each_turn(tiny_model, sqlite_database, demo_tasks, tmp_path):
    def two_for_all(episode, **kwargs):
        return [[1.0, 2.0] for _ in episode]

    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path, reward_funcs=[two_for_all])
    with pytest.raises(ConfigError, match=r"'two_for_all' gave 2 step rewards for an episode of 3 turns"):
        trainer.train()
