"""The parts of a training step, each alone: numbers in, numbers out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.training.assign_advantages import assign, note_rewards
from trl_dbbench.training.async_rollouts import AsyncRollouts, UnderWay, staleness
from trl_dbbench.training.dynamic_sampling import Batch, Chooser, put_columns, take_columns
from trl_dbbench.training.importance_sampling import known_logprobs
from trl_dbbench.training.kl import apply_kl
from trl_dbbench.training.loss import FAILED, SHARES, correct_means, mask_failed, note_shares

NAN = float("nan")


def alone(values: torch.Tensor) -> torch.Tensor:
    """What one rank gathers."""
    return values


@pytest.fixture
def played(late_orders):
    """Episodes with these statuses, without turns."""

    def make(*statuses: Status) -> list[Episode]:
        episodes = [Episode(late_orders, [1], None) for _ in statuses]
        for episode, status in zip(episodes, statuses, strict=True):
            episode.status = status
        return episodes

    return make


# --- loss and KL ----------------------------------------------------------------------------------


def scored(rows: int = 3, tokens: int = 2) -> dict[str, torch.Tensor]:
    return {
        "completion_mask": torch.ones(rows, tokens, dtype=torch.long),
        "tool_mask": torch.ones(rows, tokens, dtype=torch.long),
        "sampling_per_token_logps": torch.full((rows, tokens), -1.0),
        "ref_per_token_logps": torch.full((rows, tokens), -3.0),
    }


@pytest.mark.parametrize("mask_truncated", [False, True])
def test_failed_and_truncated_rows_are_masked(mask_truncated):
    output = scored()
    ended = (Status.ANSWERED, False), (Status.ENVIRONMENT_FAULT, False), (Status.OUT_OF_TOKENS, True)
    episodes = [SimpleNamespace(status=status, truncated=truncated) for status, truncated in ended]
    mask_failed(output, episodes, mask_truncated, alone)
    kept = [[1, 1], [0, 0], [0, 0] if mask_truncated else [1, 1]]
    assert output["tool_mask"].tolist() == kept
    assert output["num_items_in_batch"] == sum(map(sum, kept))
    assert output[FAILED].tolist() == [False, True, False]


def test_micro_batches_are_told_what_was_played():
    batches = [{FAILED: torch.tensor([False, True])}, {FAILED: torch.tensor([True, True])}]
    note_shares(batches, alone)
    assert batches == [{SHARES: (0.25, 0.5)}] * 2


@pytest.mark.parametrize(
    ("loss_type", "factor"), [("grpo", 2.0), ("dr_grpo", 2.0), ("dapo", 0.5), ("bnpo", 1.0)]
)
def test_means_are_over_what_was_played(loss_type, factor):
    assert correct_means(loss_type, (0.25, 0.5)) == (factor, 0.5)


def kl_settings(**settings) -> SimpleNamespace:
    return SimpleNamespace(**{"kl_reference": "base", "kl_in_reward": False, "beta": 0.5} | settings)


def test_the_kl_of_the_loss_is_trls():
    output = scored()
    assert apply_kl(output, output["tool_mask"], kl_settings(), alone, True) == 0.0
    assert (output["ref_per_token_logps"] == -3).all()


def test_the_rollout_is_the_reference():
    output = scored()
    assert apply_kl(output, output["tool_mask"], kl_settings(kl_reference="rollout"), alone, True) == 0.0
    assert (output["ref_per_token_logps"] == -1).all()


def test_a_greedy_rollout_is_no_reference():
    """At a temperature other than 1 its log-probabilities are not those of the policy."""
    output = scored()
    del output["ref_per_token_logps"]
    assert apply_kl(output, output["tool_mask"], kl_settings(kl_reference="rollout"), alone, False) == 0.0
    assert "ref_per_token_logps" not in output


def test_the_kl_in_the_reward_is_of_sampled_tokens():
    output = scored()
    mask = output["tool_mask"].clone()
    mask[1, 0] = mask[2] = 0
    penalties = apply_kl(output, mask, kl_settings(kl_in_reward=True), alone, True)
    assert penalties.tolist() == [0.5 * 4, 0.5 * 2, 0]
    assert "ref_per_token_logps" not in output


def test_unknown_log_probabilities_are_named():
    output = scored()
    output["sampling_per_token_logps"][0, 0] = NAN
    with pytest.raises(ConfigError, match="the engine 'mine' does not know them all"):
        known_logprobs(output, "mine", bool)
    output["tool_mask"][0, 0] = 0
    assert known_logprobs(output, "mine", bool) is output["sampling_per_token_logps"]


# --- rewards and advantages -----------------------------------------------------------------------


def test_rewards_are_noted_and_a_failed_episode_has_none(played):
    episodes = played(Status.ANSWERED, Status.ENVIRONMENT_FAULT)
    rewards = torch.tensor([[-0.8, NAN], [1.0, 1.0]])
    note_rewards(episodes, rewards, ["outcome", "mine"], alone)
    assert [e.rewards for e in episodes] == [
        {"outcome": -0.8, "mine": None},
        {"outcome": None, "mine": None},
    ]
    assert rewards.isnan().tolist() == [[False, True], [True, True]]


def test_advantages_are_less_their_penalties(played):
    episodes = played(Status.ANSWERED, Status.ANSWERED)
    own, of_all = assign(
        *("mine", lambda batch: batch.weighted, episodes),
        torch.tensor([[1.0], [3.0]]),
        torch.tensor([2.0]),
        group_size=2,
        width=4,
        penalties=torch.tensor([0.5, 0.0]),
    )
    assert own.tolist() == of_all == [e.advantage for e in episodes] == [1.5, 6.0]


# --- choosing -------------------------------------------------------------------------------------


class Numbered:
    """An order that goes on where it was."""

    def epoch(self, number: int) -> range:
        return range(6)

    def further(self, random):
        yield from range(6)


def chooser(rewards: dict[str, list[float]], played: list[list[str]], **settings) -> Chooser:
    """For tasks 0 to 5, two samples each, of which these are right."""
    known = {"num_generations": 2, "seed": 0, "advantage": "grpo", "dynamic_sampling": True}
    known |= {"dynamic_sampling_rounds": 5, "generation_batch_size": 4, "shuffle_dataset": True}
    args = SimpleNamespace(**known | settings, advantage_function=lambda: None)

    def score(batch: Batch, part: int) -> None:
        names = [row["task"] for row in batch.rows]
        played.append(names)
        batch.add([f"greedy {part}"], [SimpleNamespace(turns=[])] * len(names))
        batch.rewards = torch.tensor([[rewards[name][place % 2]] for place, name in enumerate(names)])
        batch.extra = [{"name": name} for name in names]

    dataset = [{"task": str(number)} for number in range(6)]
    return Chooser(args, dataset, Numbered(), None, torch.ones(1), score)


MIXED, FLAT = [0.0, 1.0], [1.0, 1.0]


def test_flat_groups_make_room():
    played: list[list[str]] = []
    rewards = {"0": FLAT, "1": MIXED, "2": FLAT, "3": MIXED, "4": MIXED, "5": MIXED}
    chosen = chooser(rewards, played)
    rows = [{"task": name} for name in ("0", "0", "1", "1")]
    batch = chosen.choose(rows, step=0)
    assert played == [["0", "0", "1", "1"], ["2", "2"], ["3", "3"]]
    assert [row["task"] for row in batch.rows] == ["3", "3", "1", "1"]
    assert [row["task"] for row in batch.left_out] == ["2", "2", "0", "0"]
    assert batch.rewards.tolist() == [[0], [1], [0], [1]]
    assert batch.greedy == ["greedy 0", "greedy 1", "greedy 2"]
    assert [logged["name"] for logged in batch.extra] == ["3", "3", "1", "1"]
    assert batch.played


def test_without_dynamic_sampling_rows_stay():
    rows = [{"task": "0"}] * 2
    batch = chooser({}, [], dynamic_sampling=False).choose(rows, step=0)
    assert batch.rows is rows and not batch.played and batch.rewards is None


def test_the_rows_of_a_generation_are_those_of_its_place_in_the_epoch():
    order = chooser({}, [])
    assert [row["task"] for row in order.rows_of(4)] == ["2", "2", "3", "3"]


def test_columns_go_with_their_rows():
    pending = {"a": [1, 2], "b": [3]}
    extra = take_columns(pending, 2)
    assert pending == {} and extra == [{"a": 1, "b": 3}, {"a": 2, "b": None}]
    pending = {"a": [], "b": [], "c": []}
    put_columns(pending, [extra[1], {"c": 5}])
    assert pending == {"a": [2, None], "b": [None, None], "c": [None, 5]}


# --- playing ahead --------------------------------------------------------------------------------


class Played:
    """Starts that are played at once."""

    def __init__(self, generation: int):
        self.generation = generation

    def play(self, player, engine):
        return [], [SimpleNamespace(generation=self.generation)]


def test_generations_are_begun_ahead_up_to_the_end():
    begun: list[tuple[int, int]] = []  # with the one trained on then

    def begin(generation: int, threads: ThreadPoolExecutor) -> UnderWay:
        begun.append((generation, now))
        return UnderWay(Played(generation), now, None, nullcontext(), threads)

    rollouts = AsyncRollouts(2, begin)
    with rollouts:
        for now in range(4):
            _, (episode,), waited = rollouts.next(now, end=4)
            assert episode.generation == now
            assert episode.policy_step == max(0, now - 2) and waited >= 0
    assert begun == [(0, 0), (1, 0), (2, 0), (3, 1)]


def test_staleness_is_of_tokens():
    episodes = [SimpleNamespace(policy_step=1, mask=[1, 0, 1]), SimpleNamespace(policy_step=3, mask=[1])]
    assert staleness(episodes, 3) == (4, 3)
