"""Estimators against tables that were computed by hand, with their edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trl_dbbench import AdvantageBatch, ConfigError
from trl_dbbench.advantages.estimators import (
    ProcessAvgUnique,
    TurnReturns,
    grpo,
    normalised,
    reinforce_pp,
    rloo,
    token_wise,
    weighted,
)
from trl_dbbench.advantages.gae import GAE
from trl_dbbench.advantages.prime import Prime
from trl_dbbench.advantages.registry import ADVANTAGES, check_needs, compute, get_advantage
from trl_dbbench.advantages.reinforce import Reinforce
from trl_dbbench.advantages.state import StateGroups, StateTree
from trl_dbbench.advantages.vine import Vine, differences
from trl_dbbench.episode.protocol import Answer, Operation
from trl_dbbench.episode.types import Completion, Episode, Sampling, Status, Turn

NAN = math.nan


@pytest.fixture
def played(late_orders):
    """An episode of turns with so many sampled tokens, each but the last with one observed token."""

    def play(
        *tokens: int, steps=None, states=None, seen=None, values=None, status=Status.ANSWERED
    ) -> Episode:
        turns = [
            Turn(
                Completion([7] * count, [0.0] * count),
                "",
                Operation("SELECT 1") if number + 1 < len(tokens) else Answer("1"),
                observation=None if seen is None else seen[number],
                observation_ids=[8] if number + 1 < len(tokens) else [],
                rewards={} if steps is None or steps[number] is None else {"steps": steps[number]},
                state=None if states is None else states[number],
                value=None if values is None else values[number],
            )
            for number, count in enumerate(tokens)
        ]
        return Episode(late_orders, [1], Sampling(), turns, status, rewards={"outcome": 0.0, "steps": 0.0})

    return play


def batch_of(*episodes: Episode, outcomes: list[float], size: int | None = None, weights=(1.0, 1.0)):
    """Rewards of two functions: `outcome`, one for an episode, and `steps`, the sum of its turns'."""
    sums = [
        sum(turn.rewards["steps"] for turn in e.turns if turn.rewards)
        if any(turn.rewards for turn in e.turns)
        else NAN
        for e in episodes
    ]
    return AdvantageBatch(
        episodes,
        torch.tensor([outcomes, sums]).T,
        torch.tensor(weights),
        torch.arange(len(episodes)) // (size or len(episodes)),
    )


def outcomes(played, *rewards: float, size: int | None = None) -> AdvantageBatch:
    return batch_of(*[played(1)] * len(rewards), outcomes=list(rewards), size=size)


S = 2 / math.sqrt(3)  # the sample standard deviation of 1, 1, -1, -1

BY_HAND = [
    # (r - mean) / (std + 1e-4)
    (grpo, [1, 1, -1, -1], [1 / (S + 1e-4)] * 2 + [-1 / (S + 1e-4)] * 2),
    # r - mean of the other three: 1 - (1 - 1 - 1) / 3
    (rloo, [1, 1, -1, -1], [4 / 3, 4 / 3, -4 / 3, -4 / 3]),
    (rloo, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
    # (r - mean) / (std + 1e-6) times 1 for the best, 0.5 for the worst
    (weighted, [1, 1, -1, -1], [1 / S, 1 / S, -0.5 / S, -0.5 / S]),
    # mean 0.5, std of 0, 0.5, 1: 0.5; weights 0.5, 0.75, 1
    (weighted, [0, 0.5, 1], [-0.5, 0, 1]),
]


@pytest.mark.parametrize("estimator, rewards, expected", BY_HAND)
def test_one_group_by_hand(played, estimator, rewards, expected):
    assert estimator(outcomes(played, *rewards)).tolist() == pytest.approx(expected, abs=1e-5)


def test_reinforce_pp_takes_the_groups_means_and_the_batchs_deviation(played):
    """Groups (1, -1) and (3, 1) are (1, -1) and (1, -1) about their means: std of these four is 1.1547."""
    given = reinforce_pp(outcomes(played, 1, -1, 3, 1, size=2))
    assert given.tolist() == pytest.approx([1 / S, -1 / S, 1 / S, -1 / S], abs=1e-5)
    # a flat group counts as zeros in the batch's deviation: of 1, -1, 0, 0 it is 0.8165
    given = reinforce_pp(outcomes(played, 1, -1, 5, 5, size=2))
    assert given.tolist() == pytest.approx([1 / 0.816497, -1 / 0.816497, 0, 0], abs=1e-5)


OF_GROUPS = [grpo, rloo, reinforce_pp, weighted]


@pytest.mark.parametrize("estimator", OF_GROUPS)
def test_flat_groups_lone_survivors_and_single_samples_get_exactly_nothing(played, estimator):
    third = 1 / 3  # whose mean of three is not always itself in floats
    assert estimator(outcomes(played, third, third, third)).tolist() == [0, 0, 0]
    lone = estimator(outcomes(played, 0.7, NAN, NAN))
    assert lone[0] == 0 and lone[1:].isnan().all()
    assert estimator(outcomes(played, 1, 0, 5, size=1)).abs().max() == 0
    assert estimator(outcomes(played, NAN, NAN)).isnan().all()
    # beside groups whose means are rounded
    others = estimator(outcomes(played, 1, -1, -0.8, -0.2, 1, 1, 1, 1, 0.7, NAN, NAN, NAN, size=4))
    assert others[4:9].tolist() == [0] * 5


@pytest.mark.parametrize("estimator", OF_GROUPS)
def test_episodes_whose_environment_failed_are_out_of_every_mean(played, estimator):
    with_it = estimator(outcomes(played, 1, NAN, -1, 0.5))
    without = estimator(outcomes(played, 1, -1, 0.5))
    assert with_it[[0, 2, 3]].tolist() == pytest.approx(without.tolist(), abs=1e-6)
    assert with_it[1].isnan()


@given(st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=8))
def test_rloo_is_trls_unscaled_advantage_times_g_over_g_minus_1(rewards):
    """And so needs nothing of `scale_rewards: none` but a larger learning rate."""
    values = torch.tensor(rewards, dtype=torch.float64)
    batch = AdvantageBatch([], values[:, None], torch.ones(1, dtype=torch.float64), torch.zeros(len(rewards)))
    size = len(rewards)
    expected = (values - values.mean()) * size / (size - 1)
    assert torch.allclose(rloo(batch), expected, atol=1e-9)


# --- REINFORCE ------------------------------------------------------------------------------------------


def test_reinforce_takes_the_reward_as_it_is_of_one_sample(played):
    given = compute("reinforce", get_advantage("reinforce"), outcomes(played, 1, -0.1, NAN, size=1))
    assert given.tolist() == pytest.approx([1, -0.1, 0])


def test_reinforce_less_the_mean_of_all_rewards_before_the_batch(played):
    function = get_advantage("reinforce", {"baseline": "running"})
    assert function(outcomes(played, 1, 0, NAN))[:2].tolist() == [1, 0]  # nothing came before
    assert function(outcomes(played, 1, -1)).tolist() == [0.5, -1.5]  # less (1 + 0) / 2
    assert function(outcomes(played, 0)).tolist() == [-0.25]  # less (1 + 0 + 1 - 1) / 4
    other = get_advantage("reinforce", {"baseline": "running"})
    other.load_state_dict(function.state_dict())
    assert other(outcomes(played, 0)).tolist() == pytest.approx([-0.2])


# --- by turn and by token -------------------------------------------------------------------------------


def test_process_avg_unique_by_hand(played):
    """Two episodes of two turns (2 tokens and 1); u is the mean of the distinct nonzero step rewards."""
    batch = batch_of(
        played(2, 1, steps=[0.5, 0.5]),  # u = 0.5
        played(2, 1, steps=[-0.5, 2.0]),  # u = 0.75
        played(2, 1, steps=[0.0, 0.0]),  # u = 0: none is nonzero
        outcomes=[1.0, 1.0, 1.0],  # rewards of whole episodes do not count
    )
    mean, std = 1.25 / 3, torch.tensor([0.5, 0.75, 0.0]).std().item()
    better, best, worst = (0.5 - mean) / std, (0.75 - mean) / std, (0 - mean) / std
    #           sampled  last sampled   observed  last sampled
    expected = [
        [0, better * 0.5, 0, better * 0.5],  # A > 0, x <= 1: A x
        [0, best * -0.5, 0, best * (2.0 - 1)],  # A > 0, x > 1: A (x - 1)
        [0, worst * 1, 0, worst * 1],  # A <= 0: A (1 - x), also where x = 0, which is a reward
    ]
    assert torch.allclose(ProcessAvgUnique()(batch), torch.tensor(expected), atol=1e-5)


def test_process_avg_unique_turns_around_where_a_reward_above_1_meets_a_negative_advantage(played):
    batch = batch_of(
        played(1, steps=[3.0]), played(1, steps=[-1.0]), played(1, steps=[9.0]), outcomes=[0] * 3
    )
    low = (3 - 11 / 3) / torch.tensor([3.0, -1.0, 9.0]).std().item()
    given = ProcessAvgUnique()(batch)[:, 0]
    assert given[0] == pytest.approx(low * (1 - 3), abs=1e-5) and given[0] > 0
    assert given[1] < 0  # 1 - x is 2: twice the advantage


def test_process_avg_unique_over_all_tokens_of_a_turn_and_never_where_no_reward_is(played):
    batch = batch_of(played(2, 2, steps=[0.5, None]), played(2, steps=[0.0]), outcomes=[0, 0])
    high = normalised(torch.tensor([0.5, 0.0]), torch.zeros(2))[0].item()
    spread = ProcessAvgUnique(step_spread="turn")(batch)
    assert spread[0].tolist() == pytest.approx([high / 2, high / 2, 0, 0, 0], abs=1e-5)
    assert ProcessAvgUnique()(batch)[0].tolist() == pytest.approx([0, high / 2, 0, 0, 0], abs=1e-5)


def test_token_wise_compares_what_stands_at_the_same_place(played):
    """Token rewards: 0 but at the last sampled token of a turn."""
    batch = batch_of(
        played(1, 1, steps=[0.25, 0.0]),  # 0.25 _ 1.0: the outcome at the end
        played(1, 1, steps=[0.75, 0.0]),  # 0.75 _ 0.0
        played(2, steps=[0.5]),  # 0 0.5
        outcomes=[1.0, 0.0, 0.0],
    )
    given = token_wise(batch)
    first = torch.tensor([0.25, 0.75, 0.0])
    assert given[:, 0].tolist() == pytest.approx(((first - 1 / 3) / first.std()).tolist(), abs=1e-5)
    assert given[:, 1].nan_to_num().tolist() == [0, 0, 0]  # two observe there, one is alone
    assert given[:2, 2].tolist() == pytest.approx([0.5 / 0.5**0.5, -0.5 / 0.5**0.5], abs=1e-5)
    assert given[2, 2].isnan()


def test_turn_normalises_what_is_earned_from_a_turn_on_among_those_who_have_it(played):
    batch = batch_of(
        played(1, 1, 1, steps=[0.1, 0.2, 0.0]),  # returns with gamma 0.5: 0.45, 0.7, 1.0
        played(2, 1, steps=[0.0, 0.4]),  # 0.2, 0.4
        played(1, steps=[0.3]),  # 0.3
        outcomes=[1.0, 0.0, 0.0],
    )
    assert batch.returns(0.5).nan_to_num(-9).tolist() == [
        pytest.approx([0.45, 0.7, 1.0]),
        pytest.approx([0.2, 0.4, -9]),
        pytest.approx([0.3, -9, -9]),
    ]
    given = TurnReturns(gamma=0.5)(batch)
    first = torch.tensor([0.45, 0.2, 0.3])
    one, two, three = ((first - first.mean()) / first.std()).tolist()
    high = 0.15 / (0.3 / 2**0.5)  # of 0.7 and 0.4
    assert given[0].tolist() == pytest.approx([one, 0, high, 0, 0], abs=1e-4)  # alone in the third turn: 0
    assert given[1].tolist() == pytest.approx([two, two, 0, -high, 0], abs=1e-4)
    assert given[2].tolist() == pytest.approx([three, 0, 0, 0, 0], abs=1e-4)


def test_turn_with_an_outcome_alone_is_the_episodes_advantage(played):
    batch = batch_of(*[played(1, 1)] * 3, outcomes=[1.0, 0.0, NAN])
    assert TurnReturns()(batch)[:2].tolist() == [
        pytest.approx([0.5**0.5, 0, 0.5**0.5], abs=1e-5),
        pytest.approx([-(0.5**0.5), 0, -(0.5**0.5)], abs=1e-5),
    ]
    assert compute("turn", TurnReturns(), batch)[2].tolist() == [0, 0, 0]


def test_state_adds_what_turns_from_the_same_tables_and_observations_earn(played):
    """Three episodes: all start from tables A; two go on from B after the same observation."""
    batch = batch_of(
        played(1, 1, states=["A", "B"], seen=["1 row", None]),
        played(1, 1, states=["A", "B"], seen=["1 row", None]),
        played(1, 1, states=["A", "B"], seen=["2 rows", None]),  # read something else: alone
        outcomes=[1.0, 0.0, 0.0],
    )
    own = normalised(torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3))
    # returns with gamma 0.5: 0.5, 0, 0 in the first turns, and 1, 0 in the second ones
    first = normalised(torch.tensor([0.5, 0.0, 0.0]), torch.zeros(3))
    second = [0.5**0.5, -(0.5**0.5), 0.0]
    given = StateGroups(omega=0.5, gamma=0.5)(batch)
    for row in range(3):
        expected = [own[row] + 0.5 * first[row], 0, own[row] + 0.5 * second[row]]
        assert given[row].tolist() == pytest.approx([float(each) for each in expected], abs=1e-4)


def test_state_parts_what_other_groups_do(played):
    batch = batch_of(*[played(1, states=["A"])] * 4, outcomes=[1.0, 0.0, 5.0, 5.0], size=2)
    given = StateGroups()(batch)[:, 0]
    assert given[:2].tolist() == pytest.approx([2 * 0.5**0.5, -2 * 0.5**0.5], abs=1e-4)
    assert given[2:].tolist() == [0, 0]


@pytest.fixture
def parted(played) -> AdvantageBatch:
    """Three episodes: all start from tables A, two go on from B after the same observation; one is right."""
    return batch_of(
        played(2, 1, states=["A", "B"], seen=["1 row", None]),
        played(1, 1, states=["A", "B"], seen=["1 row", None]),
        played(1, 1, states=["A", "B"], seen=["2 rows", None]),  # read something else: alone
        outcomes=[1.0, 0.0, 0.0],
    )


def test_tree_gives_a_turn_what_it_changes_in_the_mean_of_those_who_went_there(parted):
    """V: 1/3 at the start, 1/2 and 0 after the first turn, 1, 0 and 0 at the end."""
    unit = 3**0.5  # of 1, 0 and 0 the standard deviation is 1 / 3**0.5
    given = StateTree()(parted)
    assert given[0].tolist() == pytest.approx([unit / 6, unit / 6, 0, unit / 2], abs=1e-5)
    assert given[1].tolist() == pytest.approx([unit / 6, 0, -unit / 2, 0], abs=1e-5)
    assert given[2].tolist() == pytest.approx([-unit / 3, 0, 0, 0], abs=1e-5)


def test_a_statement_that_ended_the_server_is_worth_less_than_the_groups_mean(played):
    """Its tables are not read again, but it started from those of the others: V is 0 at the start."""
    batch = batch_of(
        played(1, 1, states=["A", "A"], seen=["1 row", None]),
        played(1, 1, status=Status.SERVER_CRASH),
        outcomes=[1.0, -1.0],
    )
    right, crash = StateTree()(batch).sum(dim=1).tolist()
    assert (right, crash) == pytest.approx((0.5**0.5, -(0.5**0.5)), abs=1e-4)


def test_tree_hands_back_a_share_of_what_later_turns_changed(parted):
    unit = 3**0.5
    half = StateTree(lam=0.5)(parted)
    assert half[1].tolist() == pytest.approx([unit / 6 - unit / 4, 0, -unit / 2, 0], abs=1e-5)
    whole = StateTree(lam=1.0)(parted)  # the reward less V of the turn's start
    assert whole[1].tolist() == pytest.approx([-unit / 3, 0, -unit / 2, 0], abs=1e-5)


def test_tree_counts_step_rewards_where_they_are_earned(played):
    """0.5 for the first turn of one of two that end alike: V is 0.25 at the start, 0 after the turn."""
    batch = batch_of(
        played(1, 1, steps=[0.5, 0.0], states=["A", "A"], seen=["ok", None]),
        played(1, 1, steps=[0.0, 0.0], states=["A", "A"], seen=["ok", None]),
        outcomes=[0.0, 0.0],
    )
    assert StateTree()(batch).tolist() == [
        pytest.approx([0.5**0.5, 0, 0], abs=1e-5),
        pytest.approx([-(0.5**0.5), 0, 0], abs=1e-5),
    ]


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_the_turns_of_a_tree_sum_up_to_the_episodes_advantage(played, lam):
    """Without what later turns hand back. A failed episode counts for nobody."""
    batch = batch_of(
        played(1, 1, 1, states=["A", "A", "B"], seen=["x", "y", None]),
        played(1, 1, states=["A", "A"], seen=["x", None]),
        played(1, states=["A"]),
        played(1, 1, states=["A", "A"], seen=["x", None]),
        outcomes=[1.0, 0.25, 0.0, NAN],
    )
    given = StateTree(lam)(batch)
    if not lam:
        own = normalised(batch.weighted, batch.groups)
        assert torch.allclose(given.sum(dim=1)[:3], own[:3], atol=1e-4)
    first = {round(row[0].item(), 6) for row in given[:3]}
    assert len(first) == (3 if lam else 2), "two read the same first, and went apart after it"
    assert not given[3].any()


def test_vine_with_values_of_an_oracle_is_the_difference_of_values(played):
    """V of the start is the group's mean, V of the end the episode's own reward."""
    batch = batch_of(
        played(2, 1, 1, values=[None, 0.75, 0.25]),
        played(1, 1, values=[None, 0.5]),
        outcomes=[1.0, 0.0],
    )
    assert Vine()(batch).tolist() == [[0.25, 0.25, 0, -0.5, 0, 0.75], [0, 0, -0.5, 0, 0, 0]]


def test_vine_shares_a_difference_where_no_continuation_was_played(played):
    assert differences([0.5, None, None, 0.8]) == pytest.approx([0.1, 0.1, 0.1])
    assert differences([0.5, 0.25]) == [-0.25]
    batch = batch_of(played(1, 1, values=[None, None]), played(1), outcomes=[1.0, 0.0])
    assert Vine()(batch)[0].tolist() == [0.25, 0, 0.25]


def test_vine_gives_nothing_where_all_are_worth_the_same(played):
    batch = batch_of(played(1, 1, values=[None, 0.5]), played(1), outcomes=[1.0, 1.0])
    assert not Vine()(batch).any()


# --- what all have in common ----------------------------------------------------------------------------

OF_MODELS = ("gae", "prime")  # see test_ppo.py and test_prime.py
ALL = [name for name, function in ADVANTAGES.items() if function is not None and name not in OF_MODELS]


@pytest.mark.parametrize("name", ALL)
def test_failed_episodes_observations_and_padding_get_nothing(played, name):
    failed = played(2, 1, steps=[None, None], status=Status.ENVIRONMENT_FAULT)
    batch = batch_of(played(1, 2, steps=[0.5, 0.1]), failed, played(1, steps=[0.9]), outcomes=[1.0, NAN, 0.0])
    given = compute(name, get_advantage(name), batch)
    if given.dim() == 2:
        assert not given[batch.mask == 0].any()
    assert not given[1].any() and given[0].any() and not given.isnan().any()


@pytest.mark.parametrize("name", ["grpo", *(name for name in ALL if name != "reinforce_pp")])
@pytest.mark.parametrize("part", [slice(0, 2), slice(2, 4)])
def test_a_group_is_given_the_same_whoever_else_is_in_the_batch(played, name, part):
    episodes = [
        played(1, 2, steps=[0.5, 0.1], states=["A", "B"], seen=["x", None], values=[None, 0.3]),
        played(2, 1, steps=[0.2, 0.4], states=["A", "B"], seen=["x", None], values=[None, 0.6]),
        played(1, steps=[0.9]),
        played(3, 1, steps=[0.0, 0.4]),
    ]
    rewards = [1.0, 0.0, 0.25, 0.5]
    function = get_advantage(name) or grpo
    both = compute(name, function, batch_of(*episodes, outcomes=rewards, size=2))[part]
    alone = compute(name, function, batch_of(*episodes[part], outcomes=rewards[part], size=2))
    if both.dim() == 2:
        both = both[:, : alone.shape[1]]
    assert torch.allclose(both, alone, atol=1e-6)


def test_rewards_of_functions_are_weighted_by_turn_and_by_episode(played):
    batch = batch_of(played(1, 1, steps=[0.5, None]), outcomes=[1.0], weights=(2.0, 0.1))
    assert batch.weighted.tolist() == pytest.approx([2.05])
    assert batch.outcomes.tolist() == [2.0]
    assert batch.steps.nan_to_num(-9).tolist() == [pytest.approx([0.05, -9])]
    assert batch.token_rewards().tolist() == [pytest.approx([0.05, 0, 2.0])]


def test_penalties_are_taken_from_the_outcome(played):
    batch = batch_of(played(1, 1, steps=[0.5, 0.0]), outcomes=[1.0])
    batch = AdvantageBatch(batch.episodes, batch.rewards, batch.weights, batch.groups, torch.tensor([0.25]))
    assert batch.weighted.tolist() == [1.25]
    assert batch.outcomes.tolist() == [0.75]


# --- what is refused ------------------------------------------------------------------------------------


class Whitened(GAE):
    """A user's advantage."""


@pytest.mark.parametrize(
    "name, arguments, error",
    [
        ("turn", {"gama": 0.9}, "the advantage 'turn' cannot .* unexpected .* 'gama'; allowed are gamma"),
        ("turn", "0.9", "advantage_args must be names with values"),
        ("grpo", {"gamma": 0.9}, "'grpo' takes no advantage_args"),
        ("rloo", {"gamma": 0.9}, "'rloo' cannot be called .* argument 'gamma'; allowed are none"),
        ("reinforce", {"baseline": "mean"}, "unknown advantage_args.baseline 'mean'; allowed: none, running"),
        ("state", {"omega": -1}, "advantage_args.omega must be 0 or more, is -1"),
        ("state", {"omega": NAN}, "advantage_args.omega must be a number, is nan"),  # `.nan` in a YAML
        ("prime", {"beta": math.inf}, "advantage_args.beta must be a finite number, is inf"),
        ("state", {"gamma": 1.5}, "advantage_args.gamma must be a share from 0 to 1, is 1.5"),
        ("turn", {"gamma": 2}, "advantage_args.gamma must be a share from 0 to 1, is 2"),
        ("process_avg_unique", {"step_spread": "all"}, "unknown advantage_args.step_spread 'all'; allowed: "),
        ("tree", {"lam": -0.1}, "advantage_args.lam must be a share from 0 to 1, is -0.1"),
        ("vine", {"continuations": 0}, "advantage_args.continuations must be at least 1, is 0"),
        ("trl_dbbench.advantages.gae.GAE", {"lam": "0.9"}, "advantage_args.lam must be a number, is '0.9'"),
        (f"{__name__}.Whitened", {"whiten": "false"}, "whiten in advantage_args must be true or false"),
    ],
)
def test_arguments_that_cannot_be_used(name, arguments, error):
    with pytest.raises(ConfigError, match=error):
        get_advantage(name, arguments)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Reinforce("runing"), "unknown advantage_args.baseline 'runing'"),
        (lambda: Whitened(lam=1.5), "advantage_args.lam must be a share from 0 to 1, is 1.5"),
        (lambda: Prime(by="trun"), "unknown advantage_args.by 'trun'"),
        (lambda: ProcessAvgUnique("trun"), "unknown advantage_args.step_spread 'trun'"),
        (lambda: Vine(0), "advantage_args.continuations must be at least 1, is 0"),
    ],
)
def test_arguments_are_checked_where_a_class_is_called_too(make, error):
    with pytest.raises(ConfigError, match=error):
        make()


OWN = """
def scaled(batch, scale, **more):
    return batch.weighted * scale + more.get("offset", 0.0)

class Scaled:
    def __init__(self, scale, **more):
        self.arguments = scale, more

    def __call__(self, batch):
        return scaled(batch, self.arguments[0], **self.arguments[1])
"""


@pytest.mark.parametrize("name", ["scaled", "Scaled"])
def test_arguments_of_your_own_advantage_are_checked_before_anything_is_played(played, tmp_path, name):
    (tmp_path / "mine.py").write_text(OWN)
    own = f"{tmp_path / 'mine.py'}:{name}"
    given = get_advantage(own, {"scale": 2, "offset": 1})
    assert given is not None and given(outcomes(played, 1, 0)).tolist() == [3, 1]
    with pytest.raises(ConfigError, match="missing a required argument: 'scale'; allowed are scale, more"):
        get_advantage(own)


def test_a_batch_without_step_rewards_teaches_a_process_estimator_nothing(played):
    """As `state_progress` gives none for questions."""
    values = compute("process_avg_unique", ProcessAvgUnique(), outcomes(played, 1, 0))
    assert not values.any()


def test_a_process_estimator_is_refused_where_no_reward_is_for_turns():
    with pytest.raises(ConfigError, match=r"'process_avg_unique' goes by each turn's reward, and no reward"):
        check_needs("process_avg_unique", ProcessAvgUnique(), "step_rewards")
