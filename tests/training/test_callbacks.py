"""The greedy record and the episode log, through checkpoints and kills."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from trl_dbbench.runs.metrics import episode_metrics
from trl_dbbench.runs.records import Accuracy, commonest, void_reasons
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.training.callbacks import (
    EpisodeLogCallback,
    GreedyEvalCallback,
    HeldOutCallback,
    PlainProgressCallback,
    before_and_after,
)


def played(right: bool, operation: str = "SELECT", *skills: str, status: str = "answered") -> dict[str, Any]:
    """What the callbacks read of `Episode.to_dict`."""
    return {"status": status, "right": right, "operation": operation, "skills": skills}


BATCH = [
    played(True, "SELECT", "select", "limit_only"),
    played(False, "SELECT", "select"),
    played(True, "UPDATE", "update"),
    played(False, "UPDATE", "update", status="turn_limit"),
    played(False, "UPDATE", "update", status="environment_fault"),  # not counted
]


# --- accuracy -----------------------------------------------------------------------------------------


def test_counts_overall_per_operation_and_per_skill() -> None:
    accuracy = Accuracy().add(BATCH)
    assert dict(accuracy.counts) == {
        "overall": [2, 4],
        "operation/SELECT": [1, 2],
        "operation/UPDATE": [1, 2],
        "skill/select": [1, 2],
        "skill/limit_only": [1, 1],
        "skill/update": [1, 2],
    }
    assert accuracy.rate() == 0.5
    assert accuracy.rate("skill/limit_only") == 1.0
    assert accuracy.rate("skill/delete") is None


def test_wilson_intervals() -> None:
    accuracy = Accuracy({"overall": [31, 48], "skill/select": [0, 10]})
    assert accuracy.describe() == "31/48 = 64.6 % [50.4, 76.6]"
    assert accuracy.describe("skill/select") == "0/10 = 0.0 % [0.0, 27.8]"
    assert accuracy.describe("skill/update") == "0/0 = none judged"
    assert accuracy.metrics() == {
        "accuracy": 31 / 48,
        "accuracy_low": pytest.approx(0.504, abs=1e-3),
        "accuracy_high": pytest.approx(0.766, abs=1e-3),
        "accuracy_void_wrong": 31 / 48,
        "void": 0.0,
        "skill/select": 0.0,
    }
    nothing = {"accuracy": 0.0, "accuracy_low": 0.0, "accuracy_high": 1.0}
    assert Accuracy().metrics() == nothing | {"accuracy_void_wrong": 0.0, "void": 0.0}


def test_table_is_overall_then_operations_then_skills() -> None:
    assert [group for group, _ in Accuracy().add(BATCH).table()] == [
        "overall",
        "operation/SELECT",
        "operation/UPDATE",
        "skill/limit_only",
        "skill/select",
        "skill/update",
    ]


def test_looking_does_not_count() -> None:
    accuracy = Accuracy()
    accuracy.rate("skill/select")
    accuracy.describe()
    assert dict(accuracy.counts) == {}


def test_only_faults_are_void() -> None:
    void = "0/0 = none judged (1 void, 0.0 % with those counted wrong)"
    groups = ("overall", "operation/UPDATE", "skill/update")
    assert Accuracy().add([BATCH[-1]]).table() == [(group, void) for group in groups]


MOSTLY_VOID = [
    *(played(True, "SELECT", "select") for _ in range(5)),
    *(
        played(False, "SELECT", "select")
        | {"status": "environment_fault", "fault": "2003: cannot connect; waited"}
        for _ in range(15)
    ),
]
"""5 of 20 are right, and the others void."""


def test_void_episodes_stand_beside_the_accuracy() -> None:
    accuracy = Accuracy().add(MOSTLY_VOID)
    said = "5/5 = 100.0 % [56.6, 100.0] (15 void, 25.0 % with those counted wrong)"
    assert accuracy.table() == [("overall", said), ("operation/SELECT", said), ("skill/select", said)]
    assert accuracy.metrics() == {
        "accuracy": 1.0,
        "accuracy_low": pytest.approx(0.566, abs=1e-3),
        "accuracy_high": 1.0,
        "accuracy_void_wrong": 0.25,
        "void": 0.75,
        "operation/SELECT": 1.0,
        "skill/select": 1.0,
        "void_wrong/operation/SELECT": 0.25,
        "void_wrong/skill/select": 0.25,
    }
    assert (accuracy.share().void_wrong, accuracy.share().counts) == (
        0.25,
        "5 of 5; 15 void, 25.0 % with those counted wrong",
    )


def test_what_makes_episodes_void_is_counted_by_its_first_clause() -> None:
    others = [
        played(False) | {"status": "environment_fault", "fault": fault} for fault in ("a\x1b[2J\nb", None)
    ]
    reasons = void_reasons([*MOSTLY_VOID, *others])
    assert reasons == {"2003: cannot connect": 15, "a [2J": 1, "no reason recorded": 1}
    assert commonest(reasons) == "2003: cannot connect (15 of 17)"
    assert commonest(void_reasons(MOSTLY_VOID[:5])) == ""


# --- the greedy record ------------------------------------------------------------------------------------


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")


def test_record_prints_a_line_and_returns_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    callback = GreedyEvalCallback()
    callback.record(0, [played(False), played(False)])
    metrics = callback.record(1, BATCH[:-1])
    assert capsys.readouterr().out.splitlines() == [
        "step 0: greedy 0 of 2 right; so far 0/2 = 0.0 % [0.0, 65.8]",
        "step 1: greedy 2 of 4 right; so far 2/6 = 33.3 % [9.7, 70.0]",
    ]
    assert metrics["greedy/accuracy_void_wrong"] == metrics["greedy/accuracy"]
    assert not any(name.startswith("greedy/void_wrong/") for name in metrics)
    assert metrics["greedy/batch_accuracy"] == 0.5
    assert metrics["greedy/accuracy"] == pytest.approx(1 / 3)
    assert metrics["greedy/operation/UPDATE"] == 0.5
    assert metrics["greedy/skill/limit_only"] == 1.0


def test_a_batch_of_faults_has_no_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = GreedyEvalCallback().record(3, [BATCH[-1]])
    assert "greedy/batch_accuracy" not in metrics
    assert (metrics["greedy/batch_accuracy_void_wrong"], metrics["greedy/void"]) == (0.0, 1.0)
    assert "step 3: greedy 0 of 0 right, 1 void" in capsys.readouterr().out


def test_the_greedy_record_counts_void_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = GreedyEvalCallback().record(3, MOSTLY_VOID)
    assert capsys.readouterr().out.splitlines() == [
        "step 3: greedy 5 of 5 right, 15 void, most often 2003: cannot connect (15 of 15); so far "
        "5/5 = 100.0 % [56.6, 100.0] (15 void, 25.0 % with those counted wrong)"
    ]
    both = [
        (metrics[f"greedy/{name}"], metrics[f"greedy/{void_wrong}"])
        for name, void_wrong in (
            ("accuracy", "accuracy_void_wrong"),
            ("batch_accuracy", "batch_accuracy_void_wrong"),
            ("skill/select", "void_wrong/skill/select"),
        )
    ]
    assert both == [(1.0, 0.25)] * 3
    assert metrics["greedy/void"] == 0.75


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ([1.0] * 20, "100.0 %"),
        ([1.0] * 5 + [None] * 15, "100.0 % (75.0 % void, 25.0 % with those counted wrong)"),
        ([None] * 4, "none judged (100.0 % void, 0.0 % with those counted wrong)"),
    ],
)
def test_a_held_out_evaluation_counts_void_episodes(
    rights: list[float | None], said: str, arguments: TrainingArguments, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the metrics that the trainer logs, and in the line that it prints."""
    fault = {"status": "environment_fault"}
    of_an_episode = {"turns": [], "retries": 0}
    episodes = [played(bool(right)) | of_an_episode | (fault if right is None else {}) for right in rights]
    logs = {f"eval_{name}": mean(values) for name, values in episode_metrics(episodes).items()}
    assert logs["eval_accuracy_void_wrong"] == mean(right or 0.0 for right in rights)
    state = TrainerState(global_step=7, is_world_process_zero=True)
    PlainProgressCallback().on_log(arguments, state, TrainerControl(), logs=logs)
    assert capsys.readouterr().out == f"step 7: held-out greedy accuracy {said}\n"


def test_a_step_says_how_many_episodes_are_void(
    arguments: TrainingArguments, capsys: pytest.CaptureFixture[str]
) -> None:
    state = TrainerState(global_step=1, max_steps=1, is_world_process_zero=True)
    logs = {"reward": 0.5, "status/environment_fault": 0.75}
    PlainProgressCallback().on_log(arguments, state, TrainerControl(), logs=logs)
    assert "reward 0.500, 75.0 % of the episodes void, " in capsys.readouterr().out


def test_the_record_goes_on_after_a_resume(tmp_path: Path) -> None:
    before = GreedyEvalCallback()
    before.record(0, BATCH)
    torch.save(before.state_dict(), tmp_path / "state.pt")
    before.record(1, BATCH)  # played after the checkpoint, lost with the kill

    after = GreedyEvalCallback()
    after.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert after.accuracy.counts == Accuracy().add(BATCH).counts
    assert after.accuracy.void == Accuracy().add(BATCH).void
    after.record(1, BATCH)
    assert after.accuracy.counts["overall"] == before.accuracy.counts["overall"] == [4, 8]
    assert after.accuracy.void["overall"] == 2


def test_the_end_of_a_run_prints_the_table(
    arguments: TrainingArguments, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = GreedyEvalCallback()
    callback.on_train_end(arguments, TrainerState(), TrainerControl())
    assert capsys.readouterr().out == ""  # nothing was played
    callback.accuracy.add(BATCH[:1])
    callback.on_train_end(arguments, TrainerState(is_world_process_zero=False), TrainerControl())
    assert capsys.readouterr().out == ""  # the main process speaks for all
    callback.on_train_end(arguments, TrainerState(), TrainerControl())
    assert capsys.readouterr().out == (
        "Greedy accuracy over the run, each prompt played before its update:\n"
        "  overall           1/1 = 100.0 % [20.7, 100.0]\n"
        "  operation/SELECT  1/1 = 100.0 % [20.7, 100.0]\n"
        "  skill/limit_only  1/1 = 100.0 % [20.7, 100.0]\n"
        "  skill/select      1/1 = 100.0 % [20.7, 100.0]\n"
    )


# --- the episode log ---------------------------------------------------------------------------------------


def line(step: int, phase: str, **fields: Any) -> dict[str, Any]:
    return {"phase": phase, "step": step, **fields}


def steps(path: Path) -> list[tuple[int, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(episode["step"], episode["phase"]) for episode in map(json.loads, lines)]


def begin(
    log: EpisodeLogCallback,
    arguments: TrainingArguments,
    step: int,
    main: bool = True,
    evaluated: tuple[int, ...] = (),
) -> None:
    state = TrainerState(global_step=step, is_world_process_zero=main)
    state.log_history = [{"step": each, "eval_accuracy": 0.5} for each in evaluated]
    log.on_train_begin(arguments, state, TrainerControl())


def test_episodes_are_lines(tmp_path: Path) -> None:
    log = EpisodeLogCallback(tmp_path / "new" / "folder")
    log.write([line(0, "train", text="é🍐\n\u2028"), line(0, "greedy")])
    log.write([])
    log.write([line(1, "train")])
    assert log.path == tmp_path / "new" / "folder" / "episodes.jsonl"
    assert log.path.read_text(encoding="utf-8").split("\n") == [
        '{"phase": "train", "step": 0, "text": "é🍐\\n\u2028"}',
        '{"phase": "greedy", "step": 0}',
        '{"phase": "train", "step": 1}',
        "",
    ]


def test_half_a_surrogate_pair_is_written_as_json_escapes_it(tmp_path: Path) -> None:
    log = EpisodeLogCallback(tmp_path)
    log.write([line(0, "train", text="\ud83c")])
    assert json.loads(log.path.read_text(encoding="utf-8"))["text"] == "\ud83c"


def test_a_resumed_run_drops_what_its_checkpoint_does_not_know(
    tmp_path: Path, arguments: TrainingArguments
) -> None:
    """Episodes of step 2 lead to step 3; the evaluation at step 2 came before checkpoint 2 was saved."""
    log = EpisodeLogCallback(tmp_path)
    log.write([line(0, "greedy"), line(0, "train"), line(1, "greedy"), line(1, "train"), line(2, "eval")])
    log.write([line(2, "greedy"), line(2, "train"), line(3, "eval"), line(3, "train")])
    begin(log, arguments, step=2, evaluated=(0, 2))
    assert steps(log.path) == [(0, "greedy"), (0, "train"), (1, "greedy"), (1, "train"), (2, "eval")]
    log.write([line(2, "train")])
    assert steps(log.path)[-1] == (2, "train")


def test_an_evaluation_that_its_checkpoint_does_not_know_is_dropped(
    tmp_path: Path, arguments: TrainingArguments
) -> None:
    """The last one the checkpoint knows is of step 1."""
    log = EpisodeLogCallback(tmp_path)
    log.write([line(0, "train"), line(1, "eval"), line(1, "train"), line(2, "eval")])
    begin(log, arguments, step=2, evaluated=(1,))
    assert steps(log.path) == [(0, "train"), (1, "eval"), (1, "train")]


def test_a_task_that_a_kill_cut_is_written_again(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_bytes('{"id": "a"}\n{"id": "é"}'.encode()[:-3])
    EpisodeLogCallback(tmp_path).write([], ['{"id": "a"}', '{"id": "é"}'])
    assert tasks.read_text(encoding="utf-8") == '{"id": "a"}\n{"id": "é"}\n'


def test_a_line_that_a_kill_cut_is_dropped_wherever_it_was_cut(
    tmp_path: Path, arguments: TrainingArguments
) -> None:
    """Within a character, within a string, or right before its end."""
    whole = (json.dumps(line(1, "train", text="é🍐"), ensure_ascii=False) + "\n").encode()
    first = (json.dumps(line(0, "train")) + "\n").encode()
    log = EpisodeLogCallback(tmp_path)
    for cut in range(len(whole) + 1):
        log.path.write_bytes(first + whole[:cut])
        begin(log, arguments, step=2)
        log.write([line(2, "train")])
        complete = [(1, "train")] if cut >= len(whole) - 1 else []
        assert steps(log.path) == [(0, "train"), *complete, (2, "train")], cut


def test_tasks_that_are_written_are_not_kept_in_memory(tmp_path: Path) -> None:
    """A run on generate:// meets a new one for each prompt, some hundred thousand of them."""
    log = EpisodeLogCallback(tmp_path)
    log.write([], ["begin"])
    tracemalloc.start()
    for number in range(200):
        log.write([], [f"{number} {'a' * 20_000}", f"{number} {'a' * 20_000}"])
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len((tmp_path / "tasks.jsonl").read_text().splitlines()) == 201
    assert kept < 1e6


def test_tasks_are_written_anew_where_a_run_begins(tmp_path: Path, arguments: TrainingArguments) -> None:
    log = EpisodeLogCallback(tmp_path)
    log.write([line(0, "eval")], ['{"id": "a"}'])
    for name in ("episodes.jsonl", "tasks.jsonl"):
        (tmp_path / name).unlink()  # `begin_run` sets them aside
    begin(log, arguments, step=0)
    log.write([line(0, "train")], ['{"id": "a"}'])
    assert steps(log.path) == [(0, "train")]
    assert (tmp_path / "tasks.jsonl").read_text() == '{"id": "a"}\n'


def test_a_run_that_goes_on_with_other_settings_says_which(
    tmp_path: Path, arguments: TrainingArguments, caplog: pytest.LogCaptureFixture
) -> None:
    before = RunSettings("text", 800, max_turns=3, task_files={"eval": {"test.jsonl": {"checksum": "a"}}})
    before.write(tmp_path)
    begin(EpisodeLogCallback(tmp_path, before), arguments, step=2)
    assert caplog.text == ""
    begin(EpisodeLogCallback(tmp_path, replace(before, max_turns=2, task_files={})), arguments, step=2)
    assert "the run goes on with other settings: max_turns, task_files." in caplog.text


def test_other_processes_leave_the_file_alone(tmp_path: Path, arguments: TrainingArguments) -> None:
    log = EpisodeLogCallback(tmp_path)
    log.write([line(0, "train")])
    begin(log, arguments, step=0, main=False)
    assert steps(log.path) == [(0, "train")]


def evaluated(folder: Path, step: int, right: int, of: str = "ab") -> None:
    """Append a held-out evaluation of the tasks `of`, the first `right` of which are right."""
    with (folder / "episodes.jsonl").open("a") as log:
        for place, task in enumerate(of):
            episode = line(step, "eval", task_digest=task, **played(place < right))
            log.write(json.dumps(episode) + "\n")


def last_line(
    arguments: TrainingArguments, capsys: pytest.CaptureFixture[str], kept: int | None = None
) -> str:
    """Return the line that a run prints at its end. It keeps the weights after step `kept`, or the last ones."""
    state = TrainerState(is_world_process_zero=True)
    HeldOutCallback(lambda: kept).on_train_end(arguments, state, TrainerControl())
    printed = capsys.readouterr()
    return (printed.out + printed.err).strip()


def test_a_training_ends_with_its_held_out_accuracy_before_and_after(
    arguments: TrainingArguments, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(arguments.output_dir)
    evaluated(folder, 0, 0)
    assert last_line(arguments, capsys) == ""
    evaluated(folder, 20, 2)
    evaluated(folder, 40, 1)
    first = "Held-out greedy accuracy: 0.0 % before the training -> "
    assert last_line(arguments, capsys) == first + "50.0 % after step 40."
    best = "100.0 % after step 20, whose weights were the best and are kept."
    assert last_line(arguments, capsys, kept=20) == first + best


def test_held_out_episodes_are_counted_one_by_one(arguments: TrainingArguments) -> None:
    """A run with many evaluations has gigabytes of them, and its model is not saved yet."""
    record = {"phase": "eval", "status": "answered", "right": True, "operation": "SELECT", "skills": []}
    with Path(arguments.output_dir, "episodes.jsonl").open("w") as file:
        for step in range(20):
            for task in range(10):
                episode = {
                    **record,
                    "step": step,
                    "task_digest": f"{task}",
                    "turns": [{"text": "a" * 50_000}],
                }
                file.write(json.dumps(episode) + "\n")
    tracemalloc.start()
    found = before_and_after(Path(arguments.output_dir))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {step: of.share().right for step, of in found.items()} == {0: 10, 19: 10}
    assert peak < 1e6


def test_held_out_tasks_that_changed_on_the_way_are_not_compared(
    arguments: TrainingArguments, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run was given other eval_tasks."""
    folder = Path(arguments.output_dir)
    evaluated(folder, 0, 0)
    evaluated(folder, 20, 1, of="cd")
    assert last_line(arguments, capsys) == ""
    evaluated(folder, 40, 2, of="cd")
    assert last_line(arguments, capsys) == (
        "Held-out greedy accuracy: 50.0 % at step 20 -> 100.0 % after step 40."
    )
