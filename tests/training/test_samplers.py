"""The order of tasks: which skill, which task, the same on every rank and after a resume."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from training import adapter_of, episodes_in, equal, kill, make_trainer
from transformers import Trainer
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from trl_dbbench import ConfigError, DBBenchGRPOConfig
from trl_dbbench.training.samplers import BySkill, Shuffled, TaskSampler, skill_pools

# 90 tasks select, 9 of them limit too, 3 delete, one of unknown skill
SKEWED = [["select", "limit_only"]] * 9 + [["select"]] * 81 + [["delete"]] * 3 + [[]]


def skill_of(row: int) -> str:
    return "delete" if 90 <= row < 93 else "limit_only" if row < 9 else "select"


# --- too few tasks --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["shuffle", "skill"])
def test_fewer_tasks_than_a_batch_has_prompts_are_refused(
    tiny_model, sqlite_database, demo_tasks, tmp_path, sampling
):
    """TRL drops a batch that is not full; with none left an epoch would be empty."""
    settings = {"per_device_train_batch_size": 8, "num_generations": 4, "gradient_accumulation_steps": 2}
    settings["task_sampling"] = sampling
    with pytest.raises(ConfigError) as raised:
        make_trainer(tiny_model, sqlite_database, demo_tasks[:3], tmp_path, **settings)
    assert str(raised.value) == (
        "3 training tasks are fewer than the 4 prompts of a batch, which are per_device_train_batch_size (8) x "
        "processes (1) x steps_per_generation (2, by default gradient_accumulation_steps) / num_generations "
        "(4). Give more tasks, or lower these until it is at most 3."
    )
    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path, **settings, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1


# --- a skill, then a task of it -------------------------------------------------------------------


def test_every_skill_is_as_likely_as_another_however_many_tasks_it_has():
    pools = {"select": list(range(9, 90)), "limit_only": list(range(9)), "delete": [90, 91, 92]}
    drawn = Counter(skill_of(row) for epoch in range(100) for row in BySkill(pools, 94, seed=0).epoch(epoch))
    for count in drawn.values():  # 9,400 draws: a share of 1/3 has a standard deviation of 0.0049
        assert count / 9400 == pytest.approx(1 / 3, abs=0.02)


def test_a_task_is_in_the_pool_of_each_of_its_skills():
    pools = skill_pools(SKEWED)
    assert {name: len(rows) for name, rows in pools.items()} == {"delete": 3, "limit_only": 9, "select": 90}


def test_the_tasks_of_a_skill_each_come_once_before_one_comes_again():
    order = BySkill(skill_pools(SKEWED, ["delete"]), 94, seed=3).epoch(0)
    rounds = [order[start : start + 3] for start in range(0, 93, 3)]
    assert all(sorted(rows) == [90, 91, 92] for rows in rounds)
    assert len({tuple(rows) for rows in rounds}) == 6  # and in changing order


def test_min_tasks_per_skill_leaves_out_the_small_ones(caplog):
    with caplog.at_level("INFO"):
        assert set(skill_pools(SKEWED, min_tasks=4)) == {"select", "limit_only"}
    assert caplog.messages == [
        "Task sampling: 2 skills are drawn: limit_only (9), select (90). Left out for having too few tasks: "
        "delete (3). 4 tasks have none of the drawn skills and are never trained on."
    ]


def test_a_skill_that_no_task_has_is_left_out_and_counted(caplog):
    with caplog.at_level("INFO"):
        assert set(skill_pools(SKEWED, ["delete", "update"])) == {"delete"}
    assert "too few tasks: update (0)." in caplog.text


@pytest.mark.parametrize(
    ("sampled", "min_tasks", "message"),
    [
        (
            None,
            91,
            r"min_tasks_per_skill is 91, .* not given, .*: delete \(3\), limit_only \(9\), select \(90\)\.",
        ),
        (["update"], 1, r"sampled_skills is \['update'\].*Lower the one, widen the other"),
    ],
)
def test_no_skill_left(sampled, min_tasks, message):
    with pytest.raises(ConfigError, match=f"no skill is left to draw: .*{message}"):
        skill_pools(SKEWED, sampled, min_tasks)


def test_only_tasks_with_one_skill():
    skills = [["select"], ["select", "limit_only"], ["delete"], ["select"], []]
    pools = skill_pools(skills, single=True)
    assert pools == {"delete": [2], "select": [0, 3]}
    assert set(BySkill(pools, 40, seed=1).epoch(0)) == {0, 2, 3}
    with pytest.raises(
        ConfigError, match=r"the tasks with one skill have these skills: delete \(1\), select \(2\)"
    ):
        skill_pools(skills, ["limit_only"], single=True)


def test_tasks_without_skills_leave_none_to_draw():
    with pytest.raises(ConfigError, match="the tasks have these skills: none"):
        skill_pools([[], []])


def test_the_order_hangs_on_seed_and_epoch_only():
    pools = skill_pools(SKEWED)
    turned = dict(reversed(pools.items()))
    first = BySkill(pools, 50, seed=1).epoch(2)
    assert first == BySkill(turned, 50, seed=1).epoch(2)
    assert first != BySkill(pools, 50, seed=2).epoch(2)
    assert first != BySkill(pools, 50, seed=1).epoch(1)


# --- over TRL's repetitions -----------------------------------------------------------------------


def repeats(tasks: int, shuffle: bool = True) -> RepeatSampler:
    return RepeatSampler(range(tasks), 2, batch_size=3, repeat_count=2, shuffle=shuffle, seed=5)


def test_shuffled_is_the_order_of_trl_in_every_epoch():
    trl, epoch = repeats(7), 0
    ours = TaskSampler(repeats(7), Shuffled(7, 5), lambda: epoch)
    for epoch in range(3):  # noqa: B007 - the sampler reads it
        assert list(ours) == list(trl)
    assert len(ours) == len(trl) == 24


def test_groups_and_repetitions_stay_those_of_trl():
    """Two samples of a prompt, three prompts a generation batch, each batch twice."""
    ours = TaskSampler(repeats(94), BySkill(skill_pools(SKEWED), 94, 5), lambda: 0)
    rows = list(ours)
    assert len(rows) == len(ours) == 31 * 3 * 2 * 2  # the 94th place fills no batch
    assert all(rows[i] == rows[i + 1] for i in range(0, len(rows), 2))
    batches = [rows[i : i + 6] for i in range(0, len(rows), 6)]
    assert all(batches[i] == batches[i + 1] for i in range(0, len(batches), 2))


# --- in a training run ----------------------------------------------------------------------------


@pytest.fixture
def tasks(demo_tasks):
    """Eight tasks: six that select, two that delete."""
    selects = [task for task in demo_tasks if "select" in task.skills][:6]
    deletes = [task for task in demo_tasks if "delete" in task.skills][:2]
    assert (len(selects), len(deletes)) == (6, 2)
    return [*selects, *deletes]


@pytest.fixture
def trainer_of(tiny_model, sqlite_database, tasks, tmp_path):
    """Episodes of one short turn: what counts here is which tasks they are of."""

    def make(output_dir: Path = tmp_path / "run", tasks=tasks, **settings):
        settings = {"max_turns": 1, "max_turn_tokens": 3, "num_generations": 2} | settings
        settings["per_device_train_batch_size"] = settings["num_generations"]
        return make_trainer(tiny_model, sqlite_database, tasks, output_dir, **settings)

    return make


def ids(output_dir: Path, phase: str = "train") -> list[str]:
    return [episode["task_id"] for episode in episodes_in(output_dir) if episode["phase"] == phase]


def test_a_run_that_draws_skills(trainer_of, tasks, tmp_path, caplog):
    settings = {"task_sampling": "skill", "sampled_skills": ["select", "delete"], "max_steps": 3}
    with caplog.at_level(logging.INFO, "trl_dbbench"):
        trainer = trainer_of(**settings)
    trainer.train()

    assert caplog.text.count("2 skills are drawn: delete (2), select (6)") == 1
    drawn = ids(tmp_path / "run")
    assert len(drawn) == 6
    assert drawn[0::2] == drawn[1::2]  # each pair of samples is one task's
    pools = skill_pools([task.skills for task in tasks], ["select", "delete"])
    expected = [tasks[row].id for row in BySkill(pools, 8, trainer.args.seed).epoch(0)[:3]]
    assert drawn[0::2] == ids(tmp_path / "run", "greedy") == expected


def test_a_run_of_one_skill(trainer_of, tasks, tmp_path):
    trainer_of(task_sampling="skill", sampled_skills=["delete"], max_steps=4).train()
    assert set(ids(tmp_path / "run")) == {task.id for task in tasks[6:]}


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{}, {"task_sampling": "skill"}], ids=["shuffle", "skill"])
@pytest.mark.parametrize("saved_at", [4, 5], ids=["between two epochs", "within an epoch"])
def test_resuming_in_a_later_epoch_goes_on_in_its_order(trainer_of, tasks, tmp_path, sampling, saved_at):
    """Four prompts make an epoch; TRL's own sampler would begin again with the first epoch's."""
    settings = {
        "max_steps": 8,
        "save_strategy": "steps",
        "save_steps": saved_at,
        "tasks": tasks[3:7],
        **sampling,
    }
    unbroken = trainer_of(tmp_path / "unbroken", **settings)
    unbroken.train()
    killed = trainer_of(tmp_path / "killed", **settings)
    kill(killed, at=saved_at + 1)
    resumed = trainer_of(tmp_path / "killed", **settings)
    resumed.train(resume_from_checkpoint=True)

    epochs = [ids(tmp_path / "unbroken")[i : i + 8] for i in (0, 8)]
    assert epochs[0] != epochs[1]
    assert ids(tmp_path / "killed") == [*epochs[0], *epochs[1]]
    assert equal(adapter_of(resumed), adapter_of(unbroken))


def test_data_in_its_own_order(trainer_of, tasks, tmp_path):
    trainer_of(shuffle_dataset=False, max_steps=3).train()
    assert ids(tmp_path / "run")[::2] == [task.id for task in tasks[:3]]


def test_no_skill_left_is_found_before_training(trainer_of, tasks):
    with pytest.raises(ConfigError, match="no skill is left to draw"):
        trainer_of(task_sampling="skill", min_tasks_per_skill=9)
    with pytest.raises(ConfigError, match="the tasks have these skills: none"):
        trainer_of(tasks=[replace(task, skills=()) for task in tasks], task_sampling="skill")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_sampling": "random"}, "unknown task_sampling 'random'; allowed: shuffle, skill"),
        (
            {"task_sampling": "skill", "sampled_skills": ["select", "selct"]},
            "unknown skill 'selct' in sampled_skills; allowed: select, insert, delete, .*, subquery_nested",
        ),
        ({"task_sampling": "skill", "sampled_skills": []}, "sampled_skills is empty"),
        (
            {"task_sampling": "skill", "min_tasks_per_skill": 0},
            "min_tasks_per_skill must be at least 1, is 0",
        ),
        ({"task_sampling": "skill", "shuffle_dataset": False}, "shuffle_dataset: false exclude each other"),
        ({"min_tasks_per_skill": 2}, "used only with task_sampling: skill"),
        ({"sampled_skills": ["select"]}, "used only with task_sampling: skill"),
    ],
)
def test_settings_that_cannot_work(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)


@pytest.mark.slow
def test_the_seams_of_trl_and_transformers_are_where_they_were():
    assert list(inspect.signature(GRPOTrainer._get_train_sampler).parameters) == ["self", "dataset"]
    assert "if self.shuffle:" in inspect.getsource(RepeatSampler.__iter__)
    # on this the number of the epoch is read
    assert "self.state.epoch = epoch + (step + 1) / steps_in_epoch" in inspect.getsource(Trainer._run_epoch)
