"""Runs with streams beside each other, and in a report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from trl_dbbench import ConfigError
from trl_dbbench.evaluation.compare.streams import stream_figures, streams_text
from trl_dbbench.evaluation.report.page import write_report
from trl_dbbench.evaluation.report.run import read_run
from trl_dbbench.grading.statistics import Share, mean_interval
from trl_dbbench.runs.stream import StageRecord, StreamRecord, matrix_text

MATRIX = [[[1, 10], [2, 10]], [[8, 10], [3, 10]], [[5, 10], [9, 10]]]
"""Forgetting 30 points, average accuracy 70, forward transfer 10."""


def run_in(folder: Path, seed: int = 1, replay: float = 0.0, matrix=MATRIX) -> Path:
    """A run of two stages of two updates, with a greedy and a sampled episode for each update."""
    folder.mkdir()
    stages = [StageRecord("SELECT", 20, 0, 2), StageRecord("INSERT", 20, 2, 4)]
    StreamRecord("operations", "fixed", stages, ["SELECT", "INSERT"], matrix).write(folder)
    turn = {
        "text": "...",
        "action": "answer",
        "observation": None,
        "limit": None,
        "affected": None,
        "tokens": 7,
    }
    turn |= {"observation_tokens": 0, "seconds": 0.1, "sql_seconds": None}
    episode = {"task_id": "a", "question": "?", "operation": "SELECT", "skills": [], "status": "answered"}
    episode |= {"retries": 0, "rewards": {}, "turns": [turn]}
    played = [
        {
            **{**episode, "phase": phase, "step": step, "right": step > 0, "verdict": {"right": step > 0}},
            "task_digest": str(step),
        }
        for step in range(4)
        for phase in ("greedy", "train")
    ]
    played += [
        {
            **episode,
            "phase": "eval",
            "step": step,
            "right": step > 0,
            "greedy": True,
            "verdict": {"right": step > 0},
        }
        for step in (0, 4)
    ]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in played))
    training = {"seed": seed, "stream": ["operations"], "replay": replay}
    (folder / "run.json").write_text(
        json.dumps({"protocol": "text", "training": training, "id": str(folder)})
    )
    log = [{"step": step, "step_time": 1.5} for step in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in log))
    return folder


def test_what_a_run_says(tmp_path):
    [figures] = stream_figures([run_in(tmp_path / "run")], ["run"])
    assert asdict(figures.measures) == {
        "average_accuracy": pytest.approx(0.7),
        "forgetting": pytest.approx(0.3),
        "backward_transfer": pytest.approx(-0.3),
        "forward_transfer": pytest.approx(0.1),
    }
    assert figures.prequential == pytest.approx(3 / 4)
    assert figures.tokens == 8 * 7
    assert figures.seconds == pytest.approx(6)


def test_a_log_entry_is_the_mean_of_its_steps(tmp_path):
    """As with `logging_steps: 2`."""
    run = run_in(tmp_path / "run")
    log = [{"step": 2, "step_time": 1.5}, {"step": 4, "step_time": 2.5}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in log))
    [figures] = stream_figures([run], ["run"])
    assert figures.seconds == pytest.approx(2 * 1.5 + 2 * 2.5)


def test_runs_that_differ_in_the_seed_are_one_way(tmp_path):
    worse = [MATRIX[0], MATRIX[1], [[3, 10], [9, 10]]]
    folders = [
        run_in(tmp_path / "plain-1"),
        run_in(tmp_path / "plain-2", seed=2, matrix=worse),
        run_in(tmp_path / "replayed", replay=0.5),
    ]
    first, second = streams_text(stream_figures(folders, ["plain-1", "plain-2", "replayed"])).splitlines()[1:]
    middle, half = mean_interval([30.0, 50.0])
    assert first.startswith("plain-1 (2 seeds)") and f"{middle:.1f} ± {half:.1f}" in first
    assert second.startswith("replayed") and " 30.0 " in second


def test_a_seed_counts_once(tmp_path):
    """Two runs of one seed may differ in a setting that run.json lacks. They are not two seeds of one way."""
    folders = [run_in(tmp_path / "first"), run_in(tmp_path / "again"), run_in(tmp_path / "other", seed=2)]
    lines = streams_text(stream_figures(folders, ["first", "again", "other"])).splitlines()[1:]
    assert [line.split("  ")[0] for line in lines] == ["first (2 seeds)", "again"]


def test_a_task_that_was_learned_from_at_once_is_not_measured_later(tmp_path):
    """With `greedy_eval_every: 2`, half of the tasks are trained on without a greedy run."""
    stages = [StageRecord("SELECT", 2, 0, 2)]
    record = StreamRecord("operations", "fixed", stages, ["SELECT"])
    played = [
        {"phase": phase, "step": step, "task_digest": task, "right": True, "status": "answered"}
        for phase, step, task in (
            ("greedy", 0, "a"),
            ("train", 0, "a"),
            ("train", 1, "b"),
            ("greedy", 2, "b"),
        )
    ]
    stages[0].last_step = 3
    assert record.prequential(played) == [Share(1, 1)]


def test_the_interval_is_students():
    assert mean_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == (
        3.0,
        pytest.approx(2.776 * (2.5 / 5) ** 0.5, rel=1e-3),
    )
    # 20 values have a quantile of 2.0930
    values = [float(value) for value in range(20)]
    assert mean_interval(values)[1] == pytest.approx(2.0930 * (35 / 20) ** 0.5, rel=1e-3)


def test_the_matrix_as_text():
    stages = [StageRecord("SELECT", 20), StageRecord("INSERT", 20)]
    without = [MATRIX[0], [[8, 10], [0, 0]]]
    assert matrix_text(
        StreamRecord("operations", "fixed", stages, ["SELECT", "INSERT"], without)
    ).splitlines() == [
        "                     SELECT  INSERT",
        "before the training    10.0    20.0",
        "after SELECT           80.0       -",
    ]


def test_a_report_shows_the_matrix(tmp_path):
    page = write_report(read_run(run_in(tmp_path / "run")), tmp_path / "report.html").read_text()
    assert '<h2 id="stages">Stages</h2>' in page
    assert "average accuracy 70.0, forgetting 30.0, backward transfer -30.0, forward transfer 10.0" in page
    assert ">80.0<small>10</small>" in page
    assert "SELECT 50.0 %" in page and "INSERT 100.0 %" in page


def test_a_report_does_without_a_damaged_stream(tmp_path):
    run = run_in(tmp_path / "run")
    (run / "stream.json").write_text('{"by": "oper')
    read = read_run(run)
    assert "stream.json is damaged" in read.notes[-1]
    assert '<h2 id="stages">' not in write_report(read, tmp_path / "report.html").read_text()


def test_compare_prints_what_the_runs_kept(tmp_path, command):
    folders = [str(run_in(tmp_path / name, seed)) for seed, name in enumerate(("plain", "again"))]
    status, shown = command("compare", *folders)
    assert status in (0, None)
    table = shown.partition("Streams, in points of 100")[2].splitlines()
    assert table[1].split()[:5] == ["stream", "average", "accuracy", "forgetting", "backward"]
    shown = " ".join(table[2].split())
    assert shown.startswith("plain (2 seeds) 70.0 ± 0.0 30.0 ± 0.0 -30.0 ± 0.0 10.0 ± 0.0")
    assert shown.endswith("75.0 ± 0.0 56 ± 0 6 ± 0")


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "stream.json").write_text('{"by": 3}')
    with pytest.raises(ConfigError, match=r"stream\.json is damaged"):
        StreamRecord.read(tmp_path)
