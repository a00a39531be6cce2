"""One stage of tasks after another: what is played, when a stage ends, what is measured, and a killed run."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from launching import ROOT, TWO_RANKS, fork_ranks, seen
from safetensors.torch import load_file
from training import adapter_of, episodes_in, equal, kill, quickstart_trainer, varied
from two_ranks import stages

from trl_dbbench import ConfigError, DBBenchGRPOConfig, load_tasks, to_dataset
from trl_dbbench.runs.stream import StreamRecord
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.training.stage_adapters import StageAdapters
from trl_dbbench.training.stream import Stream

TINY = ROOT / "recipes" / "tiny"
CONSTANT = {"lr_scheduler_type": "constant"}
OPERATIONS = ["SELECT", "DELETE", "INSERT"]

# two prompts of four samples a generation, and two updates on it
STREAM = {
    "stream": OPERATIONS,
    "stage_steps": 4,
    "per_device_train_batch_size": 4,
    "steps_per_generation": 2,
    "per_device_eval_batch_size": 8,
    "learning_rate": 1e-3,
    **CONSTANT,
}


ADAPTERS = {"more_rewards": [varied], "learning_rate": 1e-2}  # enough for the held-out accuracies to differ
EVERY_STEP = {
    **{"replay": 0.5, "replay_size": 3, "replay_by": "accuracy", "more_rewards": [varied]},
    **{"save_strategy": "steps", "save_steps": 1},
}
SETTINGS = {
    "plain": {},
    "an adapter each": {"stage_adapters": "each", **ADAPTERS},
    "resumable, reference": {"kl_reference": "stage", "beta": 0.1, **EVERY_STEP},
    "resumable, merged": {"stage_adapters": "ties", **EVERY_STEP},
    "resumable, an adapter each": {"stage_adapters": "each", **EVERY_STEP},
}
"""Settings of the streams that several tests look at, by name."""


@pytest.fixture(scope="module")
def rows():
    """Ten training tasks of each operation, and four held-out ones."""

    def some(file: str, number: int):
        tasks = load_tasks(TINY / file)
        chosen = [[t for t in tasks if t.operation == each][:number] for each in OPERATIONS]
        return to_dataset([t for each in chosen for t in each], "text", "Work on the MySQL database.")

    return SimpleNamespace(train=some("train.jsonl", 10), test=some("test.jsonl", 4))


@pytest.fixture(scope="module")
def trainer_of(sqlite_database, rows):
    def make(folder: Path, lora: bool = True, **settings):
        settings = {**STREAM, "eval_on_start": True, "eval_strategy": "steps", "eval_steps": 1000, **settings}
        datasets = {"dataset": rows.train, "held_out": rows.test}
        return quickstart_trainer(sqlite_database, folder, lora=lora, **datasets, **settings)

    return make


@pytest.fixture(scope="module")
def trained(trainer_of, tmp_path_factory):
    """The trainer of a whole stream with one of `SETTINGS`, and its folder."""

    @functools.cache
    def train(settings: str):
        folder = tmp_path_factory.mktemp("trained")
        trainer = trainer_of(folder, **SETTINGS[settings])
        trainer.train()
        return trainer, folder

    return train


def operations_by_step(folder: Path) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for episode in episodes_in(folder):
        if episode["phase"] == "train":
            found.setdefault(episode["step"], []).append(episode["operation"])
    return found


# --- a run ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stages_follow_one_another_and_each_is_measured(trained):
    trainer, folder = trained("plain")
    assert trainer.args.max_steps == 12
    assert operations_by_step(folder) == {
        step: 8 * [operation]
        for step, operation in zip(range(0, 12, 2), np.repeat(OPERATIONS, 2), strict=True)
    }
    record = StreamRecord.read(folder)
    assert [(s.name, s.tasks, s.first_step, s.last_step) for s in record.stages] == [
        ("SELECT", 10, 0, 4),
        ("DELETE", 10, 4, 8),
        ("INSERT", 10, 8, 12),
    ]
    # before the training and after each stage, the four held-out tasks of each operation
    played = [e for e in episodes_in(folder) if e["phase"] == "eval"]
    for row, step in zip(record.matrix, (0, 4, 8, 12), strict=True):
        assert row == [
            [sum(e["right"] for e in played if e["step"] == step and e["operation"] == each), 4]
            for each in OPERATIONS
        ]
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [each for each in logged if "stream/average_accuracy" in each][-1]
    assert last["step"] == 12
    assert last["stream/average_accuracy"] == pytest.approx(np.mean(record.accuracies[-1]))
    assert last["stream/forgetting"] == pytest.approx(record.measures.forgetting)
    assert {each["stream/stage"] for each in logged if "stream/stage" in each} == {1, 2, 3}


@pytest.mark.slow
def test_the_matrix_begins_before_the_training_whatever_the_evaluation_strategy(trainer_of, tmp_path):
    trainer_of(tmp_path, eval_on_start=False, eval_strategy="no").train()
    assert len(StreamRecord.read(tmp_path).matrix) == 4
    assert {e["step"] for e in episodes_in(tmp_path) if e["phase"] == "eval"} == {0, 4, 8, 12}


@pytest.mark.slow
def test_the_prequential_accuracy_is_of_the_greedy_run_before_each_update(trained):
    _, folder = trained("plain")
    episodes = episodes_in(folder)
    shares = StreamRecord.read(folder).prequential(episodes)
    greedy = [e for e in episodes if e["phase"] == "greedy"]
    assert [share.judged for share in shares] == [4, 4, 4]
    assert [share.right for share in shares] == [
        sum(e["right"] for e in greedy if e["operation"] == each) for each in OPERATIONS
    ]


@pytest.mark.slow
def test_replayed_tasks_are_of_earlier_stages(trainer_of, tmp_path):
    trainer_of(tmp_path, replay=0.5).train()
    played = operations_by_step(tmp_path)
    assert {*played[0], *played[2]} == {"SELECT"}
    assert sorted({*played[4], *played[6]}) == ["DELETE", "SELECT"]
    for step in (4, 6, 8, 10):  # one prompt of the two
        assert played[step].count("SELECT") + played[step].count("DELETE") in (4, 8)


@pytest.mark.slow
def test_mixed_has_as_many_updates_and_all_operations(trainer_of, tmp_path):
    trainer = trainer_of(tmp_path, stream_order="mixed")
    assert trainer.args.max_steps == 12
    trainer.train()
    record = StreamRecord.read(tmp_path)
    assert [len(record.matrix), record.groups, record.measures.forgetting] == [2, OPERATIONS, None]
    assert len({o for each in operations_by_step(tmp_path).values() for o in each}) > 1


@pytest.mark.slow
def test_a_stage_ends_at_an_accuracy(trainer_of, tmp_path, monkeypatch):
    monkeypatch.setattr("trl_dbbench.training.stream.WINDOW", 2)
    settings = {"stage_accuracy": 0.01, "stage_steps": 40, "save_strategy": "steps", "save_steps": 1000}
    trainer = trainer_of(tmp_path, **settings)
    trainer.train()
    stages = StreamRecord.read(tmp_path).stages
    assert stages[-1].last_step is not None and stages[-1].last_step < 120
    assert trainer.state.global_step == stages[-1].last_step
    again = trainer_of(tmp_path, **settings)
    again.train(resume_from_checkpoint=True)  # from its end, which it has saved
    assert again.state.global_step == stages[-1].last_step
    assert equal(adapter_of(again), adapter_of(trainer))


@pytest.mark.slow
def test_a_file_in_its_own_order(trainer_of, tmp_path):
    trainer = trainer_of(tmp_path, stream="file", stage_steps=None, stage_tasks=10)
    trainer.train()
    played = [e["question"] for e in episodes_in(tmp_path) if e["phase"] == "greedy"]
    assert played == [json.loads(line)["question"] for line in trainer.train_dataset["task"]]
    record = StreamRecord.read(tmp_path)
    assert [stage.name for stage in record.stages] == ["tasks 1 to 10", "tasks 11 to 20", "tasks 21 to 30"]
    assert record.groups == ["all"]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [True, False])
def test_the_reference_is_the_policy_before_the_stage(trainer_of, tmp_path, lora):
    """So its KL begins at 0 in each stage."""
    trainer = trainer_of(
        tmp_path, lora, kl_reference="stage", beta=0.1, logging_steps=1, more_rewards=[varied]
    )
    trainer.train()
    kl = [log["kl"] for log in trainer.state.log_history if "kl" in log]
    assert [kl[step] for step in (0, 4, 8)] == [0, 0, 0]
    assert all(kl[step] > 0 for step in (1, 3, 5, 7))


# --- an adapter a stage ---------------------------------------------------------------------------


@pytest.mark.slow
def test_an_adapter_for_each_stage_forgets_nothing(trained):
    """When a stage has ended, its held-out tasks are always played by its own adapter."""
    _, folder = trained("an adapter each")

    def played(step: int, operation: str) -> list:
        return [
            [turn["text"] for turn in e["turns"]]
            for e in episodes_in(folder)
            if e["phase"] == "eval" and e["step"] == step and e["operation"] == operation
        ]

    assert played(4, "SELECT") == played(8, "SELECT") == played(12, "SELECT")
    assert played(8, "DELETE") == played(12, "DELETE")
    assert any(played(0, each) != played(12, each) for each in OPERATIONS)
    assert sorted(each.name for each in (folder / "stages").iterdir()) == [
        "1-SELECT",
        "2-DELETE",
        "3-INSERT",
    ]
    first, second = (
        load_file(folder / "stages" / name / "adapter_model.safetensors") for name in ("1-SELECT", "2-DELETE")
    )
    assert first.keys() == second.keys() and not equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["linear", "ties", "dare_linear"])
def test_merged_adapters_are_saved_as_the_runs_own(trainer_of, tmp_path, way):
    trainer = trainer_of(tmp_path, stage_adapters=way, **ADAPTERS)
    trainer.train()
    assert [*trainer.model.peft_config] == ["default"]
    of_stages = trainer.stage_adapters
    assert equal(adapter_of(trainer), of_stages._merged)
    if way == "linear":
        for name, merged in of_stages._merged.items():
            mean = sum(weights[name] for weights in of_stages._ended) / 3
            assert torch.allclose(merged, mean, atol=1e-6)


@pytest.mark.parametrize("way", ["linear", "ties"])
def test_stages_that_learned_the_same_merge_to_the_same(trainer_of, tmp_path, way):
    """TIES keeps the larger half of each factor's weights, as they are."""
    trainer = trainer_of(tmp_path, stage_adapters=way, **ADAPTERS)
    trainer.create_optimizer()
    for _ in range(3):
        varied_start = {
            n: torch.linspace(-1, 1, w.numel()).view_as(w) for n, w in adapter_of(trainer).items()
        }
        trainer.stage_adapters._put(varied_start)
        trainer.stage_adapters.end_stage(last=False)
    ended = trainer.stage_adapters._ended[0]
    for name, merged in trainer.stage_adapters._merged.items():
        kept = merged != 0
        assert torch.allclose(merged[kept], ended[name][kept], atol=1e-6)
        assert kept.float().mean() == pytest.approx(1.0 if way == "linear" else 0.5, abs=0.1)


def test_one_stage_merged_is_that_stage(trainer_of, tmp_path):
    trainer = trainer_of(tmp_path, stage_adapters="linear", **ADAPTERS)
    trainer.create_optimizer()
    trainer.stage_adapters.end_stage(last=False)
    merged, [ended] = trainer.stage_adapters._merged, trainer.stage_adapters._ended
    assert all(torch.allclose(merged[name], ended[name], atol=1e-6) for name in ended)


def test_experts_cannot_be_merged(trainer_of, tmp_path):
    """PEFT adapts them as parameters, and merges only linear layers."""
    trainer = trainer_of(tmp_path)
    trainer.model.peft_config["default"].target_parameters = ["mlp.experts.gate_up_proj"]
    StageAdapters(trainer, "each")
    with pytest.raises(ConfigError, match=r"ties: PEFT cannot merge adapters of mlp\.experts\.gate_up_proj"):
        StageAdapters(trainer, "ties")


@pytest.mark.slow
def test_a_stages_adapter_is_played_as_the_run_was(trained):
    trainer, folder = trained("an adapter each")
    trainer.save_model()
    run, stage = find_trained(folder), find_trained(folder / "stages" / "1-SELECT")
    assert stage.settings == run.settings
    assert stage.settings.system_prompt == "Work on the MySQL database."
    assert f"They are the last stage's; those of each stage are in {folder / 'stages'}." in run.said
    assert "last stage's" not in stage.said
    trainer.create_model_card()
    assert "These weights are the last stage's alone" in (folder / "README.md").read_text()


# --- a killed run ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "settings"),
    [
        *((step, "resumable, reference") for step in (3, 4, 6)),
        (4, "resumable, merged"),
        (5, "resumable, an adapter each"),
    ],
)
def test_a_killed_stream_ends_as_the_unbroken_one(trainer_of, trained, tmp_path, step, settings):
    """Within a generation, at the end of a stage, and within a stage."""
    whole, folder = trained(settings)
    kill(trainer_of(tmp_path, **SETTINGS[settings]), at=step)
    resumed = trainer_of(tmp_path, **SETTINGS[settings])
    resumed.train(resume_from_checkpoint=True)
    assert equal(adapter_of(resumed), adapter_of(whole))
    assert operations_by_step(tmp_path) == operations_by_step(folder)
    assert StreamRecord.read(tmp_path) == StreamRecord.read(folder)


# --- two ranks ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_go_through_the_stages_as_one_with_the_double_batch(tiny_model, tmp_path):
    """The held-out rows of a rank may be of one stage alone, and each rank comes to each adapter."""
    status, output = fork_ranks(TWO_RANKS, "stages", tiny_model, tmp_path)
    assert status == 0, output
    first, second = seen(tmp_path, "stages")
    alone = json.loads(json.dumps(stages(tiny_model, tmp_path / "alone", 0)))
    assert first == second == alone
    assert [len(alone["record"]["matrix"]), alone["stage"]] == [3, 2]
    assert operations_by_step(tmp_path / "stages") == operations_by_step(tmp_path / "alone")


# --- what is kept for replay ----------------------------------------------------------------------


def stream_of(rows, **settings) -> Stream:
    args = DBBenchGRPOConfig(
        **{
            **{"output_dir": "unused", "use_cpu": True, "bf16": False, "num_generations": 2},
            **{"per_device_train_batch_size": 4, "stream": OPERATIONS, "stage_steps": 5},
            **settings,
        }
    )
    return Stream(rows.train, None, args)


def play(stream: Stream, prompts: int, right: bool = True) -> list[str]:
    """Draw and record generations of two prompts; return the questions' operations."""
    rows: list[int] = []
    while len(rows) < prompts:
        rows += stream.further(np.random.default_rng(stream._generations))
        digests = list(stream._drawn)
        stream.record([{"task_digest": each, "status": "answered", "right": right} for each in digests])
    return [json.loads(stream._dataset[row]["task"])["operation"] for row in rows]


def test_the_sample_is_fair(rows):
    """Three of a stage's ten tasks are kept, and all ten have the same chance."""
    counts = np.zeros(10)
    for seed in range(300):
        stream = stream_of(rows, seed=seed, replay=0.5, replay_size=3)
        play(stream, 10)
        assert len(stream._kept) == 3
        for row, _ in stream._kept:
            counts[row] += 1
    assert counts.sum() == 900
    assert np.all(abs(counts - 90) < 5 * np.sqrt(300 * 0.3 * 0.7))


def test_replay_by_accuracy_prefers_what_was_not_solved(rows):
    stream = stream_of(rows, replay=0.5, replay_by="accuracy")
    stream._kept = [[0, 0], [1, 0]]
    stream._accuracy = {0: 1.0, 1: 0.0}
    stream.end_stage(5)
    assert stream._weights([0, 1]) == pytest.approx([0.05 / 1.1, 1.05 / 1.1])


def test_the_state_of_a_stream_can_be_loaded_as_a_checkpoint_is(rows, tmp_path):
    """`torch.load` reads plain values alone."""
    stream = stream_of(rows, replay=0.5)
    play(stream, 4)
    stream.end_stage(5)
    torch.save(stream.state_dict(), tmp_path / "state.pt")
    other = stream_of(rows, replay=0.5)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.state_dict() == stream.state_dict()
    assert play(other, 4) == play(stream, 4)


def test_another_stream_does_not_go_on_with_a_checkpoint(rows):
    """Its rows and the columns of its matrix would mean other tasks."""
    state = stream_of(rows, stream=["SELECT", "DELETE"]).state_dict()
    other = stream_of(rows)
    said = r"another value of stages \(SELECT \(10\), DELETE \(10\), now .*, INSERT \(10\)\)"
    with pytest.raises(ConfigError, match=said):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"replay": 0.25}, r"another value of replay \(0.5, now 0.25\)"),
        ({"replay_by": "accuracy"}, r"another value of replay_by \(uniform, now accuracy\)"),
        ({"seed": 7}, r"another value of seed \(42, now 7\)"),
        ({"stage_adapters": "each"}, r"another value of stage_adapters \(one, now each\)"),
    ],
)
def test_other_settings_do_not_go_on_with_a_checkpoint(rows, settings, said):
    state = stream_of(rows, replay=0.5, **CONSTANT).state_dict()
    with pytest.raises(ConfigError, match=said):
        stream_of(rows, **{"replay": 0.5, **CONSTANT, **settings}).load_state_dict(state)


def test_other_tasks_do_not_go_on_with_a_checkpoint(rows):
    """As many of each stage, in another order."""
    stream = stream_of(rows)
    other = Stream(rows.train.select([1, 0, *range(2, 30)]), None, stream._args)
    with pytest.raises(ConfigError, match="another value of the contents of tasks"):
        other.load_state_dict(stream.state_dict())


def test_checkpoints_of_earlier_versions_go_on(rows):
    state = stream_of(rows).state_dict()
    del state["fixed"]
    stream_of(rows).load_state_dict(state)


def test_every_task_comes_once_before_any_comes_again(rows):
    stream = stream_of(rows, per_device_train_batch_size=20)
    for _ in range(2):
        assert sorted(stream.further(np.random.default_rng(0))) == list(range(10))
        stream._drawn.clear()


def generations(stream: Stream) -> Iterator[list[int]]:
    """Draw and record generations until the stream ends; yield the rows of each."""
    random = np.random.default_rng(0)
    while not stream.finished:
        rows = [*stream.further(random)]
        digests = list(stream._drawn)
        stream.record([{"task_digest": each, "status": "answered", "right": True} for each in digests])
        yield rows
        if stream.ended:
            stream.end_stage(0)


def test_every_task_of_a_stage_is_played_beside_replayed_ones(rows):
    """One prompt a generation, every second one replayed."""
    settings = {"stream": ["file"], "stage_tasks": 10, "stage_steps": None, "replay": 0.5}
    stream = stream_of(rows, per_device_train_batch_size=2, **settings)
    drawn = [*generations(stream)]
    assert {row for each in drawn for row in each} == set(range(30))
    assert len(drawn) == 10 + 19 + 19, "a stage begins and ends with a task of its own"


@pytest.mark.parametrize("replay, most", [(0.8, 5 + 25), (0.5, 5 + 10), (0.0, 5 + 5)])
def test_shares_are_not_rounded_up(rows, replay, most):
    """Ten tasks, two of a generation; 2 x (1 - 0.8) is a little less than 0.4."""
    stream = stream_of(rows, stream=["SELECT", "DELETE"], stage_tasks=10, stage_steps=None, replay=replay)
    assert stream.max_steps == most


def test_a_stage_of_one_task_is_replayed_by_its_share(rows):
    few = rows.train.select([*range(10), 10])
    args = stream_of(rows, stream=["SELECT", "DELETE"], replay=0.25, per_device_train_batch_size=8)._args
    stream = Stream(few, None, args)
    stream = Stream(few, None, args)
    counted = [sum(row == 10 for row in each) for each in [*generations(stream)][5:]]
    assert counted == [3] * 5, "three prompts of four, the fourth is an earlier task"


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"stage_steps": 5}, "stage_steps: 5 is used only with stream"),
        ({"replay": 0.5}, "replay: 0.5 is used only with stream"),
        ({"kl_reference": "stage", "beta": 0.1}, "kl_reference: stage is used only with stream"),
        ({"stream": ["skills"]}, "stream needs the length of a stage"),
        ({"stream": ["skills"], "stage_steps": 0}, "stage_steps must be at least 1, is 0"),
        ({"stream": ["file"], "stage_steps": 5}, "say with stage_tasks how many"),
        (
            {"stream": OPERATIONS, "stage_steps": 5, "stream_order": "random"},
            "comes in the list's order; leave stream_order: random out",
        ),
        ({"stream": ["skills"], "stage_steps": 5, "max_steps": 9}, r"leave max_steps \(9\) out"),
        (
            {"stream": ["skills"], "stage_steps": 5, "task_sampling": "frontier"},
            "task_sampling: frontier exclude each other: a stream says",
        ),
        (
            {"stream": ["skills"], "stage_steps": 5, "replay": 1.0},
            "replay must be a share from 0 on and below 1, is 1.0",
        ),
        (
            {"stream": ["skills"], "stage_steps": 5, "stage_accuracy": 0.9, "greedy_eval": "off"},
            "stage_accuracy: 0.9 and greedy_eval: off exclude each other",
        ),
        (
            {"stream": ["skills"], "stage_steps": 5, "stream_order": "mixed", "replay": 0.5},
            "stream_order: mixed and replay: 0.5 exclude each other",
        ),
        (
            {
                "stream": ["skills"],
                "stage_steps": 5,
                "gradient_accumulation_steps": 3,
                "steps_per_generation": 4,
            },
            "are not whole updates",
        ),
        ({"stream": ["skills"], "stage_steps": 5, "kl_reference": "stage"}, "only with beta; set that"),
        ({"replay_by": "accuracy"}, "replay_by: accuracy is used only with replay"),
        (
            {"stream": ["skills"], "stage_steps": 5, "replay_size": 9},
            "replay_size: 9 is used only with replay",
        ),
        (
            {
                "stream": ["skills"],
                "stage_steps": 5,
                "load_best_model_at_end": True,
                "eval_strategy": "steps",
            },
            "load_best_model_at_end: true exclude each other",
        ),
        ({"stream": [], "stage_steps": 5}, "stream is empty"),
        ({"stage_adapters": "each"}, "stage_adapters: each is used only with stream"),
        ({"few_shot_by": "skill"}, "few_shot_by: skill is used only with few_shot"),
        (
            {
                "stream": ["skills"],
                "stage_steps": 5,
                "stage_adapters": "each",
                "lr_scheduler_type": "constant",
                "kl_reference": "stage",
                "beta": 0.1,
            },
            "each stage starts from the same weights",
        ),
        (
            {"stream": ["skills"], "stage_steps": 5, "stage_adapters": "ties"},
            "lr_scheduler_type: linear leaves the last ones next to no learning rate; set .* constant",
        ),
        ({"stream": ["skils"], "stage_steps": 5}, "nearest: skills"),
        (
            {"stream": ["file"], "stage_tasks": 5, "stage_adapters": "each"},
            "with stream: file it belongs to none",
        ),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(output_dir="unused", use_cpu=True, bf16=False, **settings)


def test_held_out_tasks_that_share_a_table_do_not_count(rows, tmp_path):
    args = DBBenchGRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, stream=OPERATIONS, stage_steps=5
    )
    with pytest.raises(ConfigError, match="none of 30 held-out tasks can be measured: 30 ask a question"):
        Stream(rows.train, rows.train, args)


def test_an_accuracy_that_no_stage_is_long_enough_for(rows):
    with pytest.raises(ConfigError, match="over 32 greedy episodes, and a stage has 10"):
        stream_of(rows, stage_accuracy=0.9)


def test_a_file_named_on_the_command_line(rows):
    stream = stream_of(rows, stream=["file"], stage_tasks=10, stage_steps=None)
    assert [stage.name for stage in stream.stages.stages] == [
        "tasks 1 to 10",
        "tasks 11 to 20",
        "tasks 21 to 30",
    ]
