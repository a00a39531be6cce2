"""A killed run ends as the unbroken one would have: the same weights, bit for bit, and the same episodes.

The runs here have three micro-steps a step, and generations of four: two batches, each trained on twice. A
generation's steps and the episodes that are played for them look so (`|` a checkpoint, `.` a micro-step):

    generation    0 . . . . 1 . . . . 2 . . . .     and so on in the next epoch
    step          0 . . . | 1 . . . | 2 . . . | 3 . . . |
"""

from __future__ import annotations

import inspect
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from forking import Forked
from launching import RECIPE, ROOT, children_of, fork_ranks, launch, small
from required import LONG
from safetensors.torch import load_file
from training import LORA, adapter_of, episodes_in, equal, kill, make_trainer
from transformers import Trainer, TrainerCallback, TrainerState
from trl import GRPOTrainer

from trl_dbbench import ConfigError, DBBenchGRPOConfig
from trl_dbbench.errors import DatabaseError
from trl_dbbench.runs.checkpoints import RUN_ID, SIZES, UNFINISHED, begin_run, find_checkpoint, flaw
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.training.critic import WEIGHTS
from trl_dbbench.training.resume import STATES_FILE, ResumableGRPOTrainer
from trl_dbbench.training.stopping import StopSignal

# 6 tasks, 2 a generation: 3 generations and 4 steps an epoch
STEPS = {
    "per_device_train_batch_size": 2,
    "num_generations": 2,
    "gradient_accumulation_steps": 3,
    "steps_per_generation": 2,
    "num_iterations": 2,
    "max_steps": 6,
    "task_sampling": "skill",
    "save_strategy": "steps",
    "save_steps": 1,
}
EVALUATED = {"eval_strategy": "epoch", "eval_on_start": True, "per_device_eval_batch_size": 2}


@pytest.fixture(scope="module")
def trainer_of(tiny_model, sqlite_database, demo_tasks):
    def make(output_dir: Path, tasks: int = 6, **settings):
        settings = {"protocol": "text", **STEPS, **settings}
        return make_trainer(tiny_model, sqlite_database, demo_tasks[:tasks], output_dir, **settings)

    return make


@pytest.fixture(scope="module")
def unbroken(trainer_of, tmp_path_factory):
    """The trainer of a run that nothing broke."""
    trainer = trainer_of(tmp_path_factory.mktemp("runs") / "unbroken", **EVALUATED)
    trainer.train()
    return trainer


def timeless(value):
    """Without the times that it took."""
    if isinstance(value, dict):
        return {key: timeless(each) for key, each in value.items() if not key.endswith("seconds")}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def episodes_of(output_dir: str | Path) -> list[dict]:
    return timeless(episodes_in(output_dir))


def as_it_was(run: str | Path, step: int, copy: Path) -> Path:
    """A copy of a run's folder, killed after its checkpoint of `step`: later episodes are in the log."""
    copy.mkdir()
    shutil.copytree(Path(run, f"checkpoint-{step}"), copy / f"checkpoint-{step}")
    for name in ("episodes.jsonl", "tasks.jsonl"):
        shutil.copy(Path(run, name), copy)
    return copy


def timeless_metrics(entries: list[dict]) -> list[dict]:
    """What was logged at each step, without what is measured in seconds."""
    clocks = ("seconds", "runtime", "per_second", "step_time", "profiling")
    return [
        {name: value for name, value in entry.items() if not any(clock in name for clock in clocks)}
        for entry in entries
        if "train_loss" not in entry  # of the process, not of the run
    ]


def metrics_file(output_dir: str | Path) -> list[dict]:
    lines = Path(output_dir, "metrics.jsonl").read_text().splitlines()
    return timeless_metrics([json.loads(line) for line in lines])


# --- from every checkpoint ------------------------------------------------------------------------


def same(resumed, unbroken) -> bool:
    """The weights, the episodes and the greedy record of two runs."""
    return (
        equal(adapter_of(resumed), adapter_of(unbroken))
        and episodes_of(resumed.args.output_dir) == episodes_of(unbroken.args.output_dir)
        and resumed.greedy_eval.accuracy.counts == unbroken.greedy_eval.accuracy.counts
        and resumed.state.num_input_tokens_seen == unbroken.state.num_input_tokens_seen
    )


@pytest.mark.slow
def test_from_every_saved_step(trainer_of, unbroken, tmp_path):
    """Checkpoints within a generation and at its end, within an epoch and at its end, and the last."""
    episodes = episodes_of(unbroken.args.output_dir)
    assert [e["step"] for e in episodes if e["phase"] == "eval"] == [0, 0, 4, 4, 6, 6]
    greedy = [0, 0, 1, 1, 2, 2, 4, 4, 5, 5]  # of two prompts a generation; see the figure above
    assert [e["step"] for e in episodes if e["phase"] == "greedy"] == greedy

    for step in range(1, 7):
        folder = as_it_was(unbroken.args.output_dir, step, tmp_path / str(step))
        resumed = trainer_of(folder, **EVALUATED)
        resumed.train(resume_from_checkpoint=True)

        assert resumed.state.global_step == 6
        assert same(resumed, unbroken), step
        assert timeless_metrics(resumed.state.log_history) == timeless_metrics(unbroken.state.log_history), (
            step
        )
        assert metrics_file(folder) == metrics_file(unbroken.args.output_dir), step
        within_generation = (folder / f"checkpoint-{step}" / "rollouts_0.pt").exists()
        assert within_generation == (step != 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        # an epoch's 12 micro-steps are steps of 5, 5 and 2
        {"gradient_accumulation_steps": 5, "max_steps": 5},
        {"gradient_accumulation_steps": 1, "max_steps": 5, "num_iterations": 1, "steps_per_generation": 3},
        {"gradient_accumulation_steps": 4, "max_steps": 3, "num_iterations": 1},
    ],
    ids=["ragged", "several steps a generation", "several generations a step"],
)
def test_other_rhythms(trainer_of, tmp_path, settings):
    unbroken = trainer_of(tmp_path / "unbroken", logging_steps=2, **settings)
    unbroken.train()
    for step in range(1, settings["max_steps"]):
        folder = as_it_was(tmp_path / "unbroken", step, tmp_path / str(step))
        resumed = trainer_of(folder, logging_steps=2, **settings)
        resumed.train(resume_from_checkpoint=True)
        assert same(resumed, unbroken), step


def test_a_checkpoint_without_its_rollouts_plays_them_again(trainer_of, unbroken, tmp_path, caplog):
    """As one of an older version: the rest of the generation is played with newer weights, then all is in phase."""
    folder = as_it_was(unbroken.args.output_dir, 1, tmp_path / "run")
    for name in ("rollouts_0.pt", SIZES):
        (folder / "checkpoint-1" / name).unlink()
    resumed = trainer_of(folder, max_steps=4)
    resumed.train(resume_from_checkpoint=True)

    assert "checkpoint-1 lies within the steps of a generation and has no rollouts" in caplog.text
    # step 1 has the micro-steps 3, 4 and 5, and is of two generations
    assert [e["step"] for e in episodes_in(folder) if e["phase"] == "greedy"] == [0, 0, 1, 1, 1, 1, 2, 2]
    assert resumed._step == 12


def test_rollouts_of_another_batch_size_are_not_used(trainer_of, unbroken, tmp_path, caplog):
    folder = as_it_was(unbroken.args.output_dir, 1, tmp_path / "run")
    settings = {"per_device_train_batch_size": 4, "steps_per_generation": 1, "num_iterations": 4}
    trainer_of(folder, **settings, max_steps=2).train(resume_from_checkpoint=True)
    assert "has no rollouts for the rest of them that fit this run" in caplog.text


# --- a checkpoint in the middle of a step ---------------------------------------------------------


class Outage(Exception):
    """What a trainer meets in the middle of a step."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "generations"),
    [
        # steps of the micro-steps 0 1 2, 3 4 5, 6 7 8; generations at 0, 4 and 8
        ({"max_steps": 3}, (0, 1, 2)),
        # steps of 0 to 4 and 5 to 9; generations at 0, 2, 4, 6, 8: the second step begins with rollouts of the third
        ({"max_steps": 2, "tasks": 10, "gradient_accumulation_steps": 5, "num_iterations": 1}, (1, 3, 4)),
    ],
)
def test_a_checkpoint_in_the_middle_of_a_step_starts_it_again(trainer_of, tmp_path, settings, generations):
    """A rollout fails at the start of a step, or after some of its micro-steps or its other rollouts."""
    settings = {**EVALUATED, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "no", **settings}
    unbroken = trainer_of(tmp_path / "unbroken", **settings)
    unbroken.train()

    for generation in generations:
        folder = tmp_path / str(generation)
        stopped = trainer_of(folder, **settings)
        rollout, played = stopped._rollout, []

        def fails_at_last(prompts, trainer, rollout=rollout, played=played, generation=generation):
            if trainer.model.training:
                if len(played) == generation:
                    trainer._save_checkpoint(trainer.model, trial=None)
                    raise Outage
                played.append(prompts)
            return rollout(prompts, trainer)

        stopped.rollout_func = fails_at_last
        with pytest.raises(Outage):
            stopped.train()

        resumed = trainer_of(folder, **settings)
        resumed.train(resume_from_checkpoint=True)
        assert same(resumed, unbroken), generation


@pytest.mark.slow
def test_training_goes_on_after_a_checkpoint_in_the_middle_of_a_step(trainer_of, unbroken, tmp_path):
    class SaveInTheMiddle(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            saving._save_checkpoint(saving.model, trial=None)

    settings = {**EVALUATED, "save_strategy": "no"}
    saving = trainer_of(tmp_path / "saving", **settings)
    saving.add_callback(SaveInTheMiddle())
    saving.train()

    assert same(saving, unbroken)
    for step in (0, 3, 4):
        folder = as_it_was(tmp_path / "saving", step, tmp_path / str(step))
        resumed = trainer_of(folder, **settings)
        resumed.train(resume_from_checkpoint=True)
        assert same(resumed, unbroken), step


@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_a_database_that_stays_away_in_an_evaluation(trainer_of, tmp_path, strategy):
    """The steps since the last checkpoint were lost, and no line said how to resume."""
    settings = {**EVALUATED, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 4}
    settings |= {"save_strategy": strategy, "save_steps": 2}
    settings |= {} if strategy == "no" else {"load_best_model_at_end": True}
    unbroken = trainer_of(tmp_path / "unbroken", **settings)
    unbroken.train()
    stopped = trainer_of(tmp_path / "run", **settings)
    rollout = stopped._rollout

    def gone(prompts, trainer):
        away = trainer.state.global_step == 2 and not trainer.model.training
        trainer._stop_without_database("it is gone" if away else None)
        return rollout(prompts, trainer)

    stopped.rollout_func = gone
    with pytest.raises(DatabaseError, match=r"is still away\. Step 2 is saved in .*run: start again with"):
        stopped.train()
    resumed = trainer_of(tmp_path / "run", **settings)
    resumed.train(resume_from_checkpoint=True)

    assert same(resumed, unbroken)
    assert metrics_file(tmp_path / "run") == metrics_file(tmp_path / "unbroken")
    assert resumed.state.best_global_step == unbroken.state.best_global_step
    assert not resumed.flow.evaluation_due


# --- checkpoints that a kill cut short ------------------------------------------------------------


class Killed(BaseException):
    """Ends the process's training as a kill would."""


@pytest.mark.slow
def test_a_checkpoint_that_was_cut_short_is_passed_over(trainer_of, unbroken, tmp_path, caplog, monkeypatch):
    """Whatever the last file is that was written, and with a limit that lets only one checkpoint stay."""
    settings = {**EVALUATED, "save_total_limit": 1}
    for last in ("save_model", "_save_rng_state", "create_model_card", "_save_rollouts"):
        folder = as_it_was(unbroken.args.output_dir, 4, tmp_path / last)
        killed = trainer_of(folder, **settings)
        write = getattr(killed, last)

        def write_and_die(*args, write=write, killed=killed, **kwargs):
            write(*args, **kwargs)
            if killed.state.global_step == 5:
                raise Killed

        monkeypatch.setattr(killed, last, write_and_die)
        with pytest.raises(Killed):
            killed.train(resume_from_checkpoint=True)
        assert sorted(each.name for each in folder.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-5"]

        caplog.clear()
        resumed = trainer_of(folder, **settings)
        resumed.train(resume_from_checkpoint=True)
        assert "checkpoint-5 is passed over: it was not written to its end." in caplog.text
        assert same(resumed, unbroken)
        assert [each.name for each in folder.glob("checkpoint-*")] == ["checkpoint-6"]
        assert flaw(folder / "checkpoint-6") is None


def checkpoint_at(folder: Path, state: str = '{"global_step": 1}') -> Path:
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(state)
    (folder / "rng_state.pth").touch()
    return folder


def test_which_checkpoint_is_taken(tmp_path):
    assert find_checkpoint(tmp_path / "nowhere", True) is None
    assert find_checkpoint(tmp_path, "true") is None
    for number in (9, 10, 100):
        checkpoint_at(tmp_path / f"checkpoint-{number}")
    checkpoint_at(tmp_path / "checkpoint-900-old")
    assert find_checkpoint(tmp_path, True) == str(tmp_path / "checkpoint-100")
    (tmp_path / "checkpoint-100" / UNFINISHED).touch()
    assert find_checkpoint(tmp_path, True) == str(tmp_path / "checkpoint-10")
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text(
        '{"global'
    )  # by a trainer without the mark
    assert find_checkpoint(tmp_path, "True") == str(tmp_path / "checkpoint-9")
    for nothing in (None, False, "false"):
        assert find_checkpoint(tmp_path, nothing) is None
    assert find_checkpoint(tmp_path, str(tmp_path / "checkpoint-900-old")) == str(
        tmp_path / "checkpoint-900-old"
    )


def test_a_checkpoint_of_weights_alone_is_refused(trainer_of, tmp_path):
    """The optimizer would begin anew, and the learning rate at the start of its schedule."""
    trainer_of(tmp_path, save_only_model=True).train()
    for asked in (True, str(tmp_path / "checkpoint-6")):
        with pytest.raises(ConfigError, match="checkpoint-6' has weights and no state of a training"):
            find_checkpoint(tmp_path, asked)


def test_a_folder_that_is_no_checkpoint_is_refused(trainer_of, tmp_path):
    checkpoint_at(tmp_path / "run" / "checkpoint-5")
    cut = checkpoint_at(tmp_path / "run" / "checkpoint-6", state="")
    trainer = trainer_of(tmp_path / "run")
    for folder, wrong in ((cut, "was not written to its end"), (tmp_path / "no", "does not exist")):
        with pytest.raises(
            ConfigError,
            match=f"'{folder}' {wrong}. Whole checkpoints in {tmp_path / 'run'}: checkpoint-5. Name one of them",
        ):
            trainer.train(resume_from_checkpoint=str(folder))


DAMAGES = {
    "adapter_model.safetensors": "has 100 bytes instead of",
    "optimizer.pt": "has 100 bytes instead of",
    "rollouts_0.pt": "has 100 bytes instead of",
    "scheduler.pt": "is missing",
    "rng_state.pth": "is missing",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(trainer_of, unbroken, tmp_path, caplog, name):
    """A copy that broke off, a disk that lost a file: with what is left the run would end with other weights."""
    folder = as_it_was(unbroken.args.output_dir, 2, tmp_path / "run")
    shutil.copytree(Path(unbroken.args.output_dir, "checkpoint-5"), folder / "checkpoint-5")
    damaged = folder / "checkpoint-5" / name
    if DAMAGES[name] == "is missing":
        damaged.unlink()
    else:
        os.truncate(damaged, 100)

    with pytest.raises(ConfigError, match=f"checkpoint-5' is damaged: {name} {DAMAGES[name]}"):
        find_checkpoint(folder, str(folder / "checkpoint-5"))
    resumed = trainer_of(folder, **EVALUATED)
    resumed.train(resume_from_checkpoint=True)
    assert f"checkpoint-5 is passed over: it is damaged: {name} {DAMAGES[name]}" in caplog.text
    assert same(resumed, unbroken)
    assert flaw(folder / "checkpoint-5") is None, "it was written anew"


def test_a_checkpoint_without_a_list_of_its_files_is_taken(trainer_of, unbroken, tmp_path):
    """As earlier versions wrote them."""
    folder = as_it_was(unbroken.args.output_dir, 5, tmp_path / "run")
    (folder / "checkpoint-5" / SIZES).unlink()
    resumed = trainer_of(folder, **EVALUATED)
    resumed.train(resume_from_checkpoint=True)
    assert same(resumed, unbroken)
    assert len(episodes_in(folder)) == len(episodes_in(unbroken.args.output_dir))


# --- whose checkpoint it is -----------------------------------------------------------------------


def run_id(folder: Path) -> str | None:
    return json.loads((folder / "run.json").read_text())["id"]


@pytest.mark.slow
def test_a_run_that_starts_in_a_used_folder_takes_nothing_of_the_earlier_one(trainer_of, tmp_path, caplog):
    folder = tmp_path / "used"
    trainer_of(folder, max_steps=3).train()
    earlier = run_id(folder)

    trainer_of(folder, learning_rate=1e-4, save_strategy="no", max_steps=1).train()  # killed after one step
    assert run_id(folder) not in (earlier, None)
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == []
    assert find_checkpoint(folder, True) is None, "it has none of its own yet"
    aside = folder / "_earlier.1"
    assert run_id(aside) == earlier and flaw(aside / "checkpoint-3") is None
    assert "checkpoint-3 are in _earlier.1 now" in caplog.text

    resumed = trainer_of(folder, learning_rate=1e-4)
    resumed.train(resume_from_checkpoint=True)
    alone = trainer_of(tmp_path / "alone", learning_rate=1e-4)
    alone.train()
    assert same(resumed, alone)
    assert metrics_file(folder) == metrics_file(tmp_path / "alone")


def test_a_checkpoint_of_another_run_is_not_gone_on_from(trainer_of, unbroken, tmp_path, caplog):
    """Copied there, for example."""
    folder = as_it_was(unbroken.args.output_dir, 2, tmp_path / "copy")
    (folder / "run.json").write_text(json.dumps({"id": "0123456789abcdef"}))
    why = "is of another run than the run.json beside it"
    with pytest.raises(ConfigError, match=f"checkpoint-2' {why}"):
        find_checkpoint(folder, str(folder / "checkpoint-2"))
    assert find_checkpoint(folder, True) is None
    assert f"checkpoint-2 is passed over: it {why}" in caplog.text


def test_another_runs_checkpoint_that_is_named_brings_its_own_log(trainer_of, unbroken, tmp_path):
    folder = tmp_path / "other"
    trainer_of(folder, max_steps=3).train()
    resumed = trainer_of(folder, **EVALUATED)
    resumed.train(resume_from_checkpoint=str(Path(unbroken.args.output_dir, "checkpoint-2")))
    assert run_id(folder) == run_id(Path(unbroken.args.output_dir))
    assert {path.name for path in (folder / "_earlier.1").iterdir()} >= {"checkpoint-3", "episodes.jsonl"}
    assert metrics_file(folder) == metrics_file(unbroken.args.output_dir)
    assert equal(adapter_of(resumed), adapter_of(unbroken))


def test_a_run_of_the_version_before_has_no_id_and_goes_on(trainer_of, unbroken, tmp_path):
    folder = as_it_was(unbroken.args.output_dir, 3, tmp_path / "before")
    settings = json.loads(Path(unbroken.args.output_dir, "run.json").read_text())
    del settings["id"]
    (folder / "run.json").write_text(json.dumps(settings))
    (folder / "checkpoint-3" / RUN_ID).unlink()
    sizes = json.loads((folder / "checkpoint-3" / SIZES).read_text())
    del sizes[RUN_ID]
    (folder / "checkpoint-3" / SIZES).write_text(json.dumps(sizes))

    resumed = trainer_of(folder, **EVALUATED)
    resumed.train(resume_from_checkpoint=True)
    assert same(resumed, unbroken)
    assert metrics_file(folder) == metrics_file(unbroken.args.output_dir)
    assert run_id(folder) is None, "its first checkpoints have none"
    assert find_checkpoint(folder, True) == str(folder / "checkpoint-6")


def test_a_checkpoint_that_a_run_is_trained_further_from_stays(tmp_path):
    for name in ("checkpoint-4", "checkpoint-8"):
        (tmp_path / name).mkdir()
    begin_run(tmp_path, None, reads=[None, str(tmp_path / "checkpoint-4")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_earlier.1", "checkpoint-4"]


def test_weights_of_an_earlier_end_are_not_those_of_a_run_that_goes_on(tmp_path):
    """Until it ends again, its last checkpoint is the newest."""
    for name in ("run.json", "stream.json", "adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text('{"id": "a"}')
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / RUN_ID).write_text("a")
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 4}')
    assert begin_run(tmp_path, str(tmp_path / "checkpoint-4")) == "a"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "_earlier.1",
        "checkpoint-4",
        "run.json",
        "stream.json",
    ]


def test_a_run_that_goes_back_leaves_its_later_checkpoints(tmp_path):
    """The next start with `true` goes on with the branch that was chosen."""
    (tmp_path / "run.json").write_text('{"id": "a"}')
    for step in (2, 4, 6):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / RUN_ID).write_text("a")
        (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
        (folder / "rng_state.pth").touch()
    (tmp_path / "checkpoint-6" / UNFINISHED).touch()  # of a kill: it is overwritten when its step comes
    begin_run(tmp_path, str(tmp_path / "checkpoint-2"))
    assert find_checkpoint(tmp_path, True) == str(tmp_path / "checkpoint-2")
    assert [path.name for path in (tmp_path / "_earlier.1").iterdir()] == ["checkpoint-4"]
    assert (tmp_path / "checkpoint-6").exists()


def test_the_logs_of_a_run_go_where_its_checkpoints_go(tmp_path):
    """Aside when another run begins there, and back when the first goes on."""
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    (folder / RUN_ID).write_text("a")
    (folder / "trainer_state.json").write_text('{"global_step": 2}')
    (folder / "rng_state.pth").touch()
    (tmp_path / "run.json").write_text('{"id": "a"}')
    logs = ("episodes.jsonl", "tasks.jsonl", "metrics.jsonl", "shots.jsonl")
    for name in logs:
        (tmp_path / name).write_text("of a\n")
    assert begin_run(tmp_path, None) != "a"
    assert [path.name for path in tmp_path.iterdir()] == ["_earlier.1"]
    for name in ("run.json", *logs):
        (tmp_path / name).write_text('{"id": "b"}\n')
    assert begin_run(tmp_path, str(tmp_path / "_earlier.1" / "checkpoint-2")) == "a"
    assert [(tmp_path / name).read_text() for name in logs] == ["of a\n"] * len(logs)
    assert sorted(path.name for path in (tmp_path / "_earlier.2").iterdir()) == sorted(["run.json", *logs])


def test_tables_of_completions_are_not_those_of_another_run(tmp_path, caplog):
    """TRL names them by step, so those of a longer run stayed among those of the next."""
    tables = tmp_path / "completions"
    tables.mkdir()
    begin_run(tmp_path, None)
    assert [path.name for path in tmp_path.iterdir()] == ["completions"], "TRL's, made for this run"
    for step in (1, 2):
        (tables / f"completions_{step:05d}.parquet").touch()
    begin_run(tmp_path, None)
    assert list(tables.iterdir()) == []
    aside = tmp_path / "_earlier.1" / "completions"
    assert sorted(path.name for path in aside.iterdir()) == [
        "completions_00001.parquet",
        "completions_00002.parquet",
    ]
    assert "does not go on with: completions are in _earlier.1 now" in caplog.text


def test_weights_that_a_run_reads_from_its_own_folder_stay(tmp_path):
    """A model that is trained further where it lies."""
    for name in ("run.json", "config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert begin_run(tmp_path, None, reads=[str(tmp_path)]) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "_earlier.1",
        "config.json",
        "model.safetensors",
    ]
    begin_run(tmp_path, None)
    begin_run(tmp_path, None)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == [
        "config.json",
        "model.safetensors",
        "run.json",
    ]


def test_a_checkpoint_is_on_the_disk_before_its_mark_goes(trainer_of, tmp_path, monkeypatch):
    """And its mark before anything else of it, so that a crash of the machine never leaves half of it unmarked."""
    synced, sync = [], os.fsync

    def note(number):
        path = Path(f"/proc/self/fd/{number}").readlink()
        synced.append((path.name, (tmp_path / "checkpoint-1" / UNFINISHED).exists()))
        sync(number)

    monkeypatch.setattr(os, "fsync", note)
    trainer_of(tmp_path, max_steps=1).train()
    assert synced[:3] == [(UNFINISHED, True), ("checkpoint-1", True), (tmp_path.name, True)]
    assert synced[-1] == ("checkpoint-1", False)
    files = {path.name for path in (tmp_path / "checkpoint-1").iterdir()}
    assert files <= {name for name, marked in synced[3:-1] if marked}
    sizes = json.loads((tmp_path / "checkpoint-1" / SIZES).read_text())
    assert sizes.keys() == files - {SIZES}


# --- one run in a folder --------------------------------------------------------------------------

HOLDS_THE_LOCK = """
import sys, time
from pathlib import Path
from trl_dbbench.utils.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_runs_in_one_folder_are_refused(trainer_of, tmp_path):
    """Until the other process has ended, however it does: here by SIGKILL."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_LOCK, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        trainer = trainer_of(tmp_path, max_steps=1)
        with pytest.raises(
            ConfigError,
            match=rf"another run trains in '{tmp_path}': process {other.pid} on .+\. Give this one an "
            r"output_dir of its own, or start it when that one has ended\.",
        ):
            trainer.train()
        assert [path.name for path in tmp_path.iterdir()] == ["_lock"], "it has written nothing"
    finally:
        other.kill()
        other.wait()
    trainer.train()
    assert trainer.state.global_step == 1


def test_a_training_that_failed_lets_go_of_its_folder(trainer_of, tmp_path):
    failed = trainer_of(tmp_path, max_steps=1)
    kill(failed, at=0)
    trainer_of(tmp_path, max_steps=1).train()


# --- other settings at the next start ---------------------------------------------------------------


@pytest.mark.slow
def test_settings_may_change_from_one_start_to_the_next(trainer_of, tmp_path):
    """The moments and the place in the schedule are the checkpoint's; rates and rhythms are those of the start."""
    first = trainer_of(tmp_path, learning_rate=1e-2, save_steps=2)
    kill(first, at=2)
    changed = {"weight_decay": 0.5, "adam_beta2": 0.9, "adam_epsilon": 1e-6}
    second = trainer_of(tmp_path, learning_rate=1e-3, save_steps=3, logging_steps=2, **changed)
    second.train(resume_from_checkpoint=True)
    assert {(group["betas"], group["eps"]) for group in second.optimizer.param_groups} == {((0.9, 0.9), 1e-6)}
    assert {group["weight_decay"] for group in second.optimizer.param_groups} == {0.0, 0.5}
    rates = {each["step"]: each["learning_rate"] for each in second.state.log_history if "loss" in each}
    assert rates == pytest.approx({1: 1e-2, 2: 1e-2 * 5 / 6, 4: 1e-3 * 3 / 6, 6: 1e-3 * 1 / 6})
    assert sorted(each.name for each in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-3",
        "checkpoint-6",
    ]


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        (
            {"target_modules": ["q_proj", "k_proj"]},
            "'k_proj', 'q_proj'. in the settings and .'q_proj', 'v_proj'",
        ),
        ({"r": 2}, "another shape: r is 2 in the settings and 4 in the adapter"),
        ({"lora_alpha": 64}, "another shape: lora_alpha is 64 in the settings and 8 in the adapter"),
        (None, "and the settings train all weights"),
    ],
)
def test_a_checkpoint_of_an_adapter_of_another_shape_is_refused(
    trainer_of, tmp_path, monkeypatch, lora, said
):
    """PEFT would load q_proj and initialise k_proj, whose moments would be those of v_proj: the shapes agree."""
    trainer_of(tmp_path, max_steps=1).train()
    monkeypatch.setitem(LORA, "lora_dropout", 0.1)  # may change
    trainer_of(tmp_path, max_steps=2).train(resume_from_checkpoint=True)
    for name, value in (lora or {}).items():
        monkeypatch.setitem(LORA, name, value)
    other = trainer_of(tmp_path, max_steps=3, lora=lora is not None)
    with pytest.raises(ConfigError, match=f"checkpoint-2' holds an adapter.*{said}.* to begin another"):
        other.train(resume_from_checkpoint=True)


def test_a_checkpoint_of_all_weights_is_none_of_an_adapter(trainer_of, tmp_path):
    trainer_of(tmp_path, max_steps=1, lora=False).train()
    trainer_of(tmp_path, max_steps=2, lora=False).train(resume_from_checkpoint=True)
    with pytest.raises(
        ConfigError, match=r"checkpoint-2' holds all weights, and the settings train an adapter"
    ):
        trainer_of(tmp_path, max_steps=3).train(resume_from_checkpoint=True)


def test_a_checkpoint_of_another_optimizer_is_refused(trainer_of, tmp_path):
    """torch would load its settings, and end the first step in `KeyError: 'momentum'`."""
    trainer_of(tmp_path, max_steps=1).train()
    trainer_of(tmp_path, max_steps=2, optim="adamw_torch").train(resume_from_checkpoint=True)
    with pytest.raises(
        ConfigError, match=r"checkpoint-2' holds the state of another optimizer than optim: sgd"
    ):
        trainer_of(tmp_path, max_steps=3, optim="sgd").train(resume_from_checkpoint=True)


def test_shares_of_the_steps_are_of_this_starts_steps(trainer_of, tmp_path, caplog):
    """As the last step, where held-out tasks are played if nothing says when."""
    shares = {"eval_strategy": "steps", "eval_steps": 0.9999999, "logging_steps": 0.5}
    trainer_of(tmp_path, max_steps=1, **shares).train()
    ended = trainer_of(tmp_path, max_steps=1, **shares)
    ended.train(resume_from_checkpoint=True)
    assert (ended.state.eval_steps, ended.state.logging_steps) == (1, 1)
    assert "do not match" not in caplog.text
    longer = trainer_of(tmp_path, max_steps=2, **shares)
    longer.train(resume_from_checkpoint=True)
    assert (longer.state.eval_steps, longer.state.logging_steps) == (2, 1)


@pytest.mark.slow
def test_a_log_of_several_steps_is_of_those_before_a_stop_too(trainer_of, tmp_path):
    settings = {"logging_steps": 4, "max_steps": 4, "save_steps": 3}
    unbroken = trainer_of(tmp_path / "unbroken", **settings)
    unbroken.train()
    killed = trainer_of(tmp_path / "killed", **settings)
    kill(killed, at=3)
    resumed = trainer_of(tmp_path / "killed", **settings)
    resumed.train(resume_from_checkpoint=True)
    (of_unbroken,), (of_resumed,) = (timeless_metrics(each.state.log_history) for each in (unbroken, resumed))
    assert of_resumed | {"loss": of_unbroken["loss"]} == of_unbroken


# --- the best checkpoint ----------------------------------------------------------------------------


def is_best(metrics: dict[str, float | None], measure: str, tmp_path: Path) -> bool:
    """Return whether an evaluation with these metrics is the best so far."""
    trainer = ResumableGRPOTrainer.__new__(ResumableGRPOTrainer)
    trainer.args = DBBenchGRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, metric_for_best_model=measure
    )
    trainer.state = TrainerState(global_step=5)
    return trainer._determine_best_metric(metrics=metrics, trial=None)


def test_an_evaluation_that_judged_nothing_is_not_the_best(tmp_path):
    """Its database was away; a run ended with a KeyError, or a comparison with None."""
    assert is_best({"eval_accuracy": 0.5, "eval_status/environment_fault": 0.0}, "accuracy", tmp_path)
    assert not is_best({"eval_status/environment_fault": 1.0}, "accuracy", tmp_path)
    assert not is_best({"eval_reward": None, "eval_status/environment_fault": 1.0}, "eval_reward", tmp_path)


def test_a_measure_that_no_evaluation_has(tmp_path):
    message = "metric_for_best_model: an evaluation has no 'eval_acuracy'; nearest: eval_accuracy."
    with pytest.raises(ConfigError, match=message):
        is_best({"eval_accuracy": 0.5, "eval_status/environment_fault": 0.0}, "acuracy", tmp_path)


# --- SIGTERM --------------------------------------------------------------------------------------


class Terminate(TrainerCallback):
    """Sends SIGTERM in the middle of a step."""

    def __init__(self, step: int, times: int = 1):
        self.step, self.times = step, times

    def on_substep_end(self, args, state, control, **kwargs):
        if state.global_step == self.step and self.times:
            self.times -= 1
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def terminated():
    """The signals that reach the handlers that were there before."""
    received, numbers = [], (signal.SIGTERM, signal.SIGINT)
    earlier = {n: signal.signal(n, lambda number, frame: received.append(number)) for n in numbers}
    yield received
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["epoch", "steps", "no"])
def test_sigterm_saves_at_the_end_of_the_step_and_ends(trainer_of, tmp_path, terminated, strategy, capfd):
    settings = {**EVALUATED, "eval_strategy": strategy, "eval_steps": 2, "save_strategy": strategy}
    settings |= {"save_steps": 4}
    unbroken = trainer_of(tmp_path / "unbroken", **settings)
    unbroken.train()
    assert not unbroken.stopped
    for step in (1, 3):  # 3 is an epoch's last
        folder = tmp_path / str(step)
        stopped = trainer_of(folder, **settings)
        stopped.add_callback(
            Terminate(step, times=2)
        )  # a launcher sends it on, the scheduler has sent it to all
        stopped.train()
        assert (stopped.stopped, stopped.state.global_step) == (True, step + 1)
        assert find_checkpoint(folder, True) == str(folder / f"checkpoint-{step + 1}")
        assert "SIGTERM: the run ends after this step" in capfd.readouterr().err
        assert not terminated

        signal.raise_signal(signal.SIGTERM)
        assert terminated.pop() == signal.SIGTERM, "the earlier handler is back"

        resumed = trainer_of(folder, **settings)
        resumed.train(resume_from_checkpoint=True)
        assert not resumed.stopped
        assert same(resumed, unbroken)


@pytest.mark.slow
def test_a_stopped_run_keeps_the_checkpoint_that_it_goes_on_from(trainer_of, tmp_path, terminated):
    """An untaught model is never right, so its first checkpoint stays the best."""
    settings = {**EVALUATED, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 4}
    settings |= {"load_best_model_at_end": True, "save_total_limit": 1}
    stopped = trainer_of(tmp_path, **settings)
    stopped.add_callback(Terminate(2))
    stopped.train()
    assert stopped.state.best_global_step == 1
    assert find_checkpoint(tmp_path, True) == str(tmp_path / "checkpoint-3")
    resumed = trainer_of(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=True)
    assert [each.name for each in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]
    assert resumed.best_step == 1
    assert RunSettings.of_file(tmp_path / "run.json").best_step == 1


def test_the_best_checkpoint_of_a_run_whose_folder_has_moved(trainer_of, tmp_path):
    """transformers looks for it where it was, and would keep the last weights."""
    settings = {**EVALUATED, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 2}
    best = {"load_best_model_at_end": True}
    trainer_of(tmp_path / "before", **settings, **best).train()
    moved = (tmp_path / "before").rename(tmp_path / "after")
    aside = moved / "_earlier.1"
    for place, asked in ((moved, True), (aside, str(aside / "checkpoint-2"))):
        resumed = trainer_of(moved, **settings, **best)
        resumed.train(resume_from_checkpoint=asked)
        assert (resumed.best_step, resumed.state.best_model_checkpoint) == (1, str(place / "checkpoint-1"))
        if place == moved:
            trainer_of(moved, **settings | {"max_steps": 1, "save_strategy": "no"}).train()


def test_sigterm_in_the_last_step_stops_nothing(trainer_of, tmp_path):
    trainer = trainer_of(tmp_path, max_steps=2)
    trainer.add_callback(Terminate(1))
    trainer.train()
    assert (trainer.stopped, trainer.state.global_step) == (False, 2)


def test_a_second_sigterm_is_for_the_handler_that_was_there(terminated, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    stop = StopSignal()
    with stop.noted():
        for seconds, received in (
            (0.0, 0),
            (0.5, 0),
            (1.5, 1),
        ):  # after the first; so close it is the same one
            clock[0] = 100.0 + seconds
            signal.raise_signal(signal.SIGTERM)
            assert (stop.received, len(terminated)) == (True, received)
    with stop.noted():
        assert not stop.received


def test_ctrl_c_and_sigterm_are_one_wish(terminated, monkeypatch, capfd):
    """Ctrl-C at a terminal, which the launcher passes on; one that it has ended sends a SIGTERM when it is gone."""
    clock, parent = [100.0], [os.getppid()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(os, "getppid", lambda: parent[0])
    stop = StopSignal()
    with stop.noted():
        signal.raise_signal(signal.SIGINT)
        clock[0] = 100.9
        signal.raise_signal(signal.SIGTERM)
        clock[0], parent[0] = 130.0, 1
        signal.raise_signal(signal.SIGTERM)
        assert (stop.number, terminated) == (signal.SIGINT, [])
        signal.raise_signal(signal.SIGTERM)
        assert terminated == [signal.SIGTERM]
    assert capfd.readouterr().err.count("the run ends after this step") == 1


def test_a_signal_that_the_process_ignores_stays_ignored():
    """As under nohup, and in a shell's background."""
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignal().noted():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, earlier)


def test_outside_the_main_thread_signals_are_left_alone(terminated):
    handlers = []

    def train():
        with StopSignal().noted():
            handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert handlers == [before]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enable_jit_checkpoint": True}, "SIGTERM always saves a checkpoint"),
        ({"ignore_data_skip": True}, "would train a resumed run on tasks that it has trained on"),
    ],
)
def test_settings_that_stand_against_it(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)


# --- SIGKILL --------------------------------------------------------------------------------------


TELLS_WHEN_IT_TRAINS = """
import os, runpy, sys
from pathlib import Path
from trl_dbbench.training.resume import ResumableGRPOTrainer

run_epoch = ResumableGRPOTrainer._run_epoch

def tell_and_run(self, *args, **kwargs):
    Path(os.environ["TRAINS"]).touch()
    run_epoch(self, *args, **kwargs)

ResumableGRPOTrainer._run_epoch = tell_and_run
sys.argv.pop(0)
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def start(tmp_path):
    """`start(output_dir)`: the recipe's process, when its training begins."""
    tasks = (ROOT / "recipes" / "tiny" / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "tasks.jsonl").write_text("".join(tasks[:6]))
    (tmp_path / "eval.jsonl").write_text("".join(tasks[6:8]))
    options = {**STEPS, "tasks": tmp_path / "tasks.jsonl", "eval_tasks": tmp_path / "eval.jsonl"}
    options |= {"lora_dropout": 0.05, "eval_steps": 1, "per_device_eval_batch_size": 2, "disable_tqdm": True}
    options |= {"config": ROOT / "recipes" / "quickstart.yaml", "resume_from_checkpoint": True}
    tells, trains = tmp_path / "tells.py", tmp_path / "trains"
    tells.write_text(TELLS_WHEN_IT_TRAINS)
    processes = []

    def start(output_dir: Path, script: Path = RECIPE, **more: object) -> Forked:
        output_dir.mkdir(exist_ok=True)
        trains.unlink(missing_ok=True)
        command = [sys.executable, str(tells), str(script)]
        for name, value in {**options, **more, "output_dir": output_dir}.items():
            command += [f"--{name}", str(value)]
        with (output_dir / "log").open("a") as log:
            env = {**os.environ, "TRAINS": str(trains)}
            processes.append(Forked(command, cwd=ROOT, env=env, stdout=log, stderr=log))
        while processes[-1].poll() is None and not trains.exists():
            time.sleep(0.01)
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def log_of(output_dir: Path) -> str:
    return (output_dir / "log").read_text()


PPO = {"script": ROOT / "recipes" / "ppo_dbbench.py", "config": ROOT / "recipes" / "ppo_quickstart.yaml"}
RUNNING = {"advantage": "reinforce", "advantage_args": '{"baseline": "running"}', "num_generations": 1}
PRIME = {"advantage": "prime", "advantage_args": '{"beta": 0.5, "learning_rate": 0.01}'}


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        pytest.param(2, {"max_steps": 8}, marks=pytest.mark.short),
        pytest.param(3, {}, marks=pytest.mark.slow),
        pytest.param(1, PPO, marks=pytest.mark.slow),
        pytest.param(1, {**PPO, "critic": "model"}, marks=pytest.mark.slow),
        pytest.param(2, PRIME, marks=pytest.mark.slow),
        pytest.param(2, RUNNING, marks=pytest.mark.slow),
        pytest.param(20, {}, marks=LONG),
        pytest.param(10, PPO, marks=LONG),
    ],
    ids=[
        *("grpo", "grpo, often", "ppo", "ppo with a critic of its own", "prime", "a running baseline"),
        *("grpo, very often", "ppo, very often"),
    ],
)
def test_kills(start, tmp_path, wanted, options):
    """The recipe is killed at random moments of two or three epochs: while it plays, trains, evaluates or saves."""
    unbroken, options = tmp_path / "unbroken", {"max_steps": 12, **options}
    last = f"checkpoint-{options['max_steps']}"
    process = start(unbroken, **options)
    begin = time.monotonic()
    assert process.wait(timeout=200) == 0, log_of(unbroken)
    seconds = time.monotonic() - begin

    moments, kills, runs = random.Random(5), 0, []
    while kills < wanted:  # a run that comes to its end before is followed by another
        runs.append(tmp_path / f"killed-{len(runs)}")
        while True:
            process = start(runs[-1], **options)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=moments.uniform(0, 0.2 * seconds) if kills < wanted else 200)
                break
            process.kill()
            process.wait()
            kills += 1
        assert process.returncode == 0, log_of(runs[-1])

    for killed in runs:
        weights = [load_file(run / "adapter_model.safetensors") for run in (killed, unbroken)]
        assert equal(*weights)
        for name in (
            "optimizer.pt",
            STATES_FILE,
            WEIGHTS,
        ):  # of the policy; what PRIME and PPO have beside it
            files = [run / last / name for run in (killed, unbroken)]
            assert files[0].exists() == files[1].exists()
            if files[0].exists():
                states = [torch.load(file, weights_only=True) for file in files]
                torch.testing.assert_close(*states, rtol=0, atol=0)
        assert episodes_of(killed) == episodes_of(unbroken)
        assert (killed / "tasks.jsonl").read_text() == (unbroken / "tasks.jsonl").read_text()
        states = [
            TrainerState.load_from_json(run / last / "trainer_state.json") for run in (killed, unbroken)
        ]
        assert timeless_metrics(states[0].log_history) == timeless_metrics(states[1].log_history)
        assert metrics_file(killed) == metrics_file(unbroken)


@pytest.mark.slow
def test_the_recipe_ends_in_order_on_sigterm(start, tmp_path):
    """With a message and an exit status, and without the final model of a run that has not ended."""
    process = start(tmp_path / "run")
    process.terminate()
    status, log = process.wait(timeout=200), log_of(tmp_path / "run")
    assert status == 143, log
    (step,) = (each.name.removeprefix("checkpoint-") for each in (tmp_path / "run").glob("checkpoint-*"))
    assert (
        f"SIGTERM ended the run after step {step} of 6. Start it again with --resume_from_checkpoint true"
        in log
    )
    assert "The model is in" not in log
    assert not (tmp_path / "run" / "adapter_model.safetensors").exists()

    assert start(tmp_path / "run").wait(timeout=200) == 0
    assert f"The run goes on from {tmp_path / 'run'}/checkpoint-{step}." in log_of(tmp_path / "run")
    assert (tmp_path / "run" / "adapter_model.safetensors").exists()


@pytest.mark.slow
def test_sigterm_to_the_launcher_reaches_the_run(tmp_path):
    """`accelerate launch` with one process would end alone."""
    process = launch("--max_steps", 40, "--output_dir", tmp_path)
    while not (tmp_path / "episodes.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    process.terminate()
    output, _ = process.communicate(timeout=200)  # to the end of the recipe's process, which writes there too
    assert "SIGTERM: the run ends after this step" in output
    assert "Start it again with --resume_from_checkpoint true" in output
    assert find_checkpoint(tmp_path, True)


@pytest.mark.slow
def test_two_ranks_end_together_on_sigterm_to_one(tmp_path):
    options = ("--database", "sqlite", "--per_device_train_batch_size", 2, "--output_dir", tmp_path)
    process = launch(*options, "--max_steps", 40, processes=2)
    while not (tmp_path / "episodes.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    os.kill(children_of(process.pid)[-1], signal.SIGTERM)
    output, _ = process.communicate(timeout=200)
    assert output.count("Start it again with --resume_from_checkpoint true") == 1
    assert find_checkpoint(tmp_path, True)


LISTS_THREADS = f"""
import contextlib, os, runpy, sys
runpy.run_path({str(RECIPE)!r}, run_name="__main__")
names = []
for id in os.listdir("/proc/self/task"):
    with contextlib.suppress(OSError):  # it ended just now
        names.append(open(f"/proc/self/task/{{id}}/comm").read())
sys.stdout.write(f"left: {{[name for name in names if 'gloo' in name]}}\\n")
"""
TWO_RANKS = ["--database", "sqlite", "--per_device_train_batch_size", 2, "--lora_dropout", 0.05]
TWO_RANKS += ["--save_steps", 1, "--steps_per_generation", 2, "--num_iterations", 2, "--max_steps", 4]


def train_two(folder: Path, *options: str, script: Path = RECIPE) -> str:
    """Two ranks of the recipe, and what they wrote."""
    status, output = fork_ranks(*small(script, *TWO_RANKS, "--output_dir", folder, *options))
    assert status == 0, output
    return output


@pytest.fixture(scope="module")
def unbroken_ranks(tmp_path_factory) -> tuple[Path, str]:
    """The run of two ranks that nothing broke, and what they wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "threads.py"
    script.write_text(LISTS_THREADS)
    run = folder / "unbroken"
    return run, train_two(run, script=script)


@pytest.mark.slow
def test_two_ranks_go_on_within_a_generation(unbroken_ranks, tmp_path):
    """Each rank has rollouts of its own, and they lie beside the checkpoint."""
    unbroken, _ = unbroken_ranks
    folder = as_it_was(unbroken, 3, tmp_path / "killed")
    assert sorted(each.name for each in folder.glob("*/rollouts_*")) == ["rollouts_0.pt", "rollouts_1.pt"]
    train_two(folder, "--resume_from_checkpoint", "true")

    weights = [load_file(run / "adapter_model.safetensors") for run in (unbroken, folder)]
    assert equal(*weights)
    assert episodes_of(folder) == episodes_of(unbroken)


def test_no_thread_of_the_ranks_outlives_the_run(unbroken_ranks):
    """Python's exit may abort on one: a run that has saved everything would look as if it had failed."""
    _, output = unbroken_ranks
    assert output.count("left: []") == 2, output


def test_the_seams_of_transformers_are_where_they_were():
    """Where a step starts, and what a checkpoint's last file is; a change here means to read `resume.py` again."""
    epoch = inspect.getsource(Trainer._run_epoch)
    assert epoch.count("self.get_batch_samples(") == 1
    assert epoch.index("self.get_batch_samples(") < epoch.index("self.training_step(")
    save = inspect.getsource(Trainer._save_checkpoint)
    assert (
        save.index("self._save_rng_state(") < save.index("self.state.save_to_json(") < save.index("rotate_")
    )
    prepare = inspect.getsource(Trainer._inner_training_loop)
    assert prepare.index("self._init_training_state(") < prepare.index("self._prepare_for_training(")
    assert "self._buffered_inputs[self._step % self.args.steps_per_generation]" in inspect.getsource(
        GRPOTrainer._prepare_inputs
    )
