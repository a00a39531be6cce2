"""Dynamic sampling: groups whose rewards are all the same make room for further prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launching import TWO_RANKS, fork_ranks, seen
from test_advantages import episode
from test_resume import episodes_of
from training import adapter_of, episodes_in, equal, kill, quickstart_trainer
from two_ranks import chosen_prompts

from trl_dbbench import AdvantageBatch, ConfigError, DBBenchGRPOConfig, to_dataset
from trl_dbbench.training.dynamic_sampling import teaches

NAN = float("nan")
SIZE = 4  # samples of a prompt; two prompts a batch
DYNAMIC = {"dynamic_sampling": True, "dynamic_sampling_rounds": 20}


def groups_in(run: str | Path, step: int) -> tuple[list[list[dict]], list[list[dict]]]:
    """The groups of a step: those that were trained on, and those that were left out."""
    played = [e for e in episodes_in(run) if e["phase"] == "train" and e["step"] == step]
    groups = [played[start : start + SIZE] for start in range(0, len(played), SIZE)]
    assert all(len({e["task_id"] for e in group}) == 1 for group in groups)
    kept = [group for group in groups if not group[0].get("left_out")]
    gone = [group for group in groups if group[0].get("left_out")]
    assert all(e["left_out"] for group in gone for e in group)
    return kept, gone


def rewards(group: list[dict]) -> set[float]:
    return {e["rewards"]["outcome"] for e in group}


# --- which groups teach ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1.0, 1.0, 0.0], True),
        ([1.0, 1.0, 1.0], False),
        ([1.0, NAN, NAN], False),  # nothing to compare it with
        ([1.0, NAN, 0.0], True),
        ([1.0, NAN, 1.0], False),
        ([NAN, NAN, NAN], False),
        ([0.1 + 0.2, 0.3, 0.3], False),  # what rounding makes is no difference
    ],
)
def test_a_group_teaches_if_its_rewards_differ(late_orders, given, expected):
    episodes = [episode(late_orders, (1, 0)) for _ in given]
    batch = AdvantageBatch(episodes, torch.tensor(given)[:, None], torch.ones(1), torch.zeros(len(given)))
    assert teaches(batch) is expected


def test_weighted_sums_are_compared(late_orders):
    episodes = [episode(late_orders, (1, 0)) for _ in range(2)]
    values = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert not teaches(AdvantageBatch(episodes, values, torch.tensor([1.0, 0.5]), torch.zeros(2)))
    assert teaches(AdvantageBatch(episodes, values, torch.tensor([1.0, 1.0]), torch.zeros(2)))


def test_turns_count_where_the_advantage_goes_by_them(late_orders):
    """Both are worth 1; one earned it in its first turn, the other in its second."""
    early, late = (episode(late_orders, (1, 1), (1, 0)) for _ in range(2))
    for played, values in ((early, (1.0, 0.0)), (late, (0.0, 1.0))):
        for turn, value in zip(played.turns, values, strict=True):
            turn.rewards = {"steps": value}
        played.rewards = {"steps": 1.0}
    batch = AdvantageBatch([early, late], torch.ones(2, 1), torch.ones(1), torch.zeros(2))
    assert not teaches(batch)
    assert teaches(batch, by_steps=True)
    assert not teaches(batch, by_steps=False, by_totals=False)


def test_totals_do_not_count_where_the_advantage_passes_over_them(late_orders):
    """One is right, the other wrong, and their turns are worth the same."""
    right, wrong = (episode(late_orders, (1, 1), (1, 0)) for _ in range(2))
    for played in (right, wrong):
        played.turns[0].rewards = {"steps": 0.5}
    batch = AdvantageBatch([right, wrong], torch.tensor([[1.0], [0.0]]), torch.ones(1), torch.zeros(2))
    assert teaches(batch, by_steps=True)
    assert not teaches(batch, by_steps=True, by_totals=False)


# --- in a run -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_groups_that_teach_are_trained_on(sqlite_database, tmp_path):
    trainer = quickstart_trainer(sqlite_database, tmp_path, max_steps=4, **DYNAMIC)
    trainer.train()
    left_out = 0
    for step in range(4):
        kept, gone = groups_in(tmp_path, step)
        assert len(kept) == 2 and all(len(rewards(group)) > 1 for group in kept)
        assert all(len(rewards(group)) == 1 for group in gone)
        assert all(e["advantage"] is not None for group in kept for e in group)
        assert all(e["advantage"] is None for group in gone for e in group)
        tasks = [group[0]["task_id"] for group in (*kept, *gone)]
        assert len({*tasks}) == len(tasks), "a prompt comes once in a batch"
        left_out += len(gone)
        # every prompt that was sampled was played greedily, too
        greedy = [e for e in episodes_in(tmp_path) if (e["phase"], e["step"]) == ("greedy", step)]
        assert sorted(e["task_id"] for e in greedy) == sorted(tasks)
        logged = trainer.state.log_history[step]
        assert logged["dynamic/left_out"] == pytest.approx(len(gone) / len(tasks))
        sampled = sum(turn["tokens"] for group in gone for e in group for turn in e["turns"])
        assert logged["dynamic/left_out_tokens"] == sampled
        right = [e["right"] for group in (*kept, *gone) for e in group]
        assert logged["accuracy"] == pytest.approx(sum(right) / len(right))
        assert logged["frac_reward_zero_std"] == 0
    assert left_out > 0
    greedy = [e["right"] for e in episodes_in(tmp_path) if e["phase"] == "greedy"]
    assert trainer.greedy_eval.accuracy.counts["overall"] == [sum(greedy), len(greedy)]


def test_the_first_groups_that_teach_stay_where_they_are(sqlite_database, tmp_path):
    """The batch of the first step, but for its flat groups, is that of a run without."""
    for name, settings in (("plain", {}), ("dynamic", DYNAMIC)):
        quickstart_trainer(sqlite_database, tmp_path / name, max_steps=1, seed=5, **settings).train()
    plain, _ = groups_in(tmp_path / "plain", 0)
    kept, gone = groups_in(tmp_path / "dynamic", 0)
    for place, group in enumerate(plain):
        played = (
            kept[place]
            if len(rewards(group)) > 1
            else next(each for each in gone if each[0]["task_id"] == group[0]["task_id"])
        )
        assert [e["turns"][0]["text"] for e in played] == [e["turns"][0]["text"] for e in group]


def all_the_same(episode, **kwargs):
    return [1.0 for _ in episode]


def test_rounds_are_bounded(sqlite_database, tmp_path):
    """No group ever teaches: 2 prompts, and twice 2 further ones; then the first ones are trained on."""

    settings = {"dynamic_sampling": True, "dynamic_sampling_rounds": 2, "max_steps": 1}
    trainer = quickstart_trainer(sqlite_database, tmp_path / "run", **settings)
    trainer.reward_funcs = [all_the_same]
    trainer.train()
    kept, gone = groups_in(tmp_path / "run", 0)
    assert (len(kept), len(gone)) == (2, 4)
    plain = quickstart_trainer(sqlite_database, tmp_path / "plain", max_steps=1)
    plain.train()
    first = [group[0]["task_id"] for group in groups_in(tmp_path / "plain", 0)[0]]
    assert [group[0]["task_id"] for group in kept] == first


def test_a_dataset_with_no_further_tasks(sqlite_database, demo_tasks, tmp_path):
    """Three tasks, two of them in the batch: one further prompt, and then there is none."""
    dataset = to_dataset(demo_tasks[:3])
    trainer = quickstart_trainer(sqlite_database, tmp_path, dataset=dataset, max_steps=1, **DYNAMIC)
    trainer.reward_funcs = [all_the_same]
    trainer.train()
    kept, gone = groups_in(tmp_path, 0)
    assert (len(kept), len(gone)) == (2, 1)
    assert {group[0]["task_id"] for group in (*kept, *gone)} == {task.id for task in demo_tasks[:3]}


def extra_columns(database, folder: Path, reward) -> dict[str, list]:
    """What this reward logs in a step, beside the usual one."""
    settings = {"max_steps": 1, "more_rewards": [reward], "num_completions_to_print": 0}
    trainer = quickstart_trainer(database, folder, **settings, **DYNAMIC)
    trainer.train()
    return {name: list(values) for name, values in trainer._logs["extra"].items()}


def test_columns_that_a_reward_logs_are_those_of_the_rows_that_are_trained_on(sqlite_database, tmp_path):
    def with_column(episode, log_extra, **kwargs):
        log_extra("asked", [each.task.id for each in episode])
        return [0.0] * len(episode)

    logged = extra_columns(sqlite_database, tmp_path, with_column)
    kept, gone = groups_in(tmp_path, 0)
    assert gone
    assert logged["asked"] == [e["task_id"] for group in kept for e in group]


def test_a_reward_that_logs_too_little_ends_nothing(sqlite_database, tmp_path):
    def one_value(episode, log_extra, **kwargs):
        log_extra("first", [episode[0].task.id])
        return [0.0] * len(episode)

    assert len(extra_columns(sqlite_database, tmp_path, one_value)["first"]) == 2 * SIZE


def test_a_column_named_episode_is_nobodys_episode(sqlite_database, demo_tasks, tmp_path):
    dataset = to_dataset(demo_tasks[:4]).add_column("episode", ["mine"] * 4)
    quickstart_trainer(sqlite_database, tmp_path, dataset=dataset, max_steps=1).train()
    assert len(groups_in(tmp_path, 0)[0]) == 2


def test_turns_without_rewards_are_no_spread(late_orders):
    """Two turns, or one, and no reward for either."""
    episodes = [episode(late_orders, (1, 1), (1, 0)), episode(late_orders, (1, 0))]
    batch = AdvantageBatch(episodes, torch.ones(2, 1), torch.ones(1), torch.zeros(2))
    assert not teaches(batch, by_steps=True)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["frontier", "shuffle", "skill"])
def test_a_killed_run_goes_on_to_the_same_weights(sqlite_database, tmp_path, sampling):
    settings = {"task_sampling": sampling, "lora": True, "max_steps": 5, **DYNAMIC}
    settings |= {"save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}
    unbroken = quickstart_trainer(sqlite_database, tmp_path / "unbroken", **settings)
    unbroken.train()
    killed = quickstart_trainer(sqlite_database, tmp_path / "killed", **settings)
    kill(killed, at=3)
    resumed = quickstart_trainer(sqlite_database, tmp_path / "killed", **settings)
    resumed.train(resume_from_checkpoint=True)
    assert equal(adapter_of(resumed), adapter_of(unbroken))
    assert episodes_of(tmp_path / "killed") == episodes_of(tmp_path / "unbroken")
    assert any(e.get("left_out") for e in episodes_of(tmp_path / "killed"))


@pytest.mark.slow
def test_with_examples_of_other_tasks(sqlite_database, tmp_path):
    """Right episodes of groups that were left out join the memory, too."""
    settings = {"few_shot": 1, "few_shot_update": True, "max_completion_length": 96, **DYNAMIC}
    trainer = quickstart_trainer(sqlite_database, tmp_path, max_steps=3, **settings)
    trainer.train()
    kept, gone = groups_in(tmp_path, 2)
    assert any(e.get("shots") for group in (*kept, *gone) for e in group)
    learned = {example.task_digest for example in trainer.chooser.shots.memory}
    _, first_gone = groups_in(tmp_path, 0)
    assert {e["task_digest"] for group in first_gone for e in group if e["right"]} <= learned


@pytest.mark.slow
def test_two_ranks_choose_as_one_with_the_double_batch(tiny_model, sqlite_database, tmp_path):
    """Three groups of four samples on two ranks, one on both; further groups are shared, too."""
    status, output = fork_ranks(TWO_RANKS, "chosen_prompts", tiny_model, tmp_path)
    assert status == 0, output
    first, second = seen(tmp_path, "chosen_prompts")
    alone = chosen_prompts(tiny_model, tmp_path / "alone", 0)
    assert first["counts"] == second["counts"]
    shared = zip(first["trained"], second["trained"], strict=True)
    assert [[*one, *other] for one, other in shared] == alone["trained"]

    def played(run: Path) -> list[tuple]:
        return [
            (e["task_id"], e["step"], e.get("left_out"), e["right"])
            for e in episodes_in(run)
            if e["phase"] == "train"
        ]

    assert played(tmp_path / "chosen_prompts") == played(tmp_path / "alone")
    assert any(left_out for _, _, left_out, _ in played(tmp_path / "alone"))


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"dynamic_sampling": True, "num_generations": 1, "advantage": "reinforce"},
            "the advantage 'reinforce' learns from them too",
        ),
        (
            {"dynamic_sampling": True, "dynamic_sampling_rounds": 0},
            "dynamic_sampling_rounds must be at least 1, is 0",
        ),
        (
            {"task_sampling": "frontier", "shuffle_dataset": False},
            "shuffle_dataset: false exclude each other: the former draws at random",
        ),
    ],
)
def test_what_cannot_be(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=8, **settings)
