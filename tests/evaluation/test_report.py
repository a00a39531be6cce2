"""The report of a run: what it shows, what it does with half a run, and how it fares in a real browser."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image
from required import lacking

from trl_dbbench.cli import main
from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.compare.saved import saved_arms
from trl_dbbench.evaluation.report.curves import Chart, Series, charts, compare, y_range
from trl_dbbench.evaluation.report.figures import write_figures
from trl_dbbench.evaluation.report.page import compare_runs, write_report
from trl_dbbench.evaluation.report.run import Run, read_run
from trl_dbbench.tasks import Task

ATTACK = "<script>alert(1)</script></script><img src=x onerror=alert(2)>\u2028{{ 7*7 }}"
SKILLS = ("select", "where_single_condition", "order_by_single_column", "update")
TABLE = {
    "name": "orders",
    "columns": [{"name": "id", "type": "INT"}, {"name": "item", "type": "TEXT"}],
    "rows": [[i, f"item {i}" if i % 3 else None] for i in range(12)],
}


def task(number: int, question: str | None = None) -> dict[str, Any]:
    return {
        "id": f"task-{number}",
        "question": question or f"How many orders of item {number} are there?",
        "tables": [TABLE],
        "sql": f"SELECT COUNT(*) FROM orders WHERE item = 'item {number}'",
        "answer": [[number % 2]],
    }


@cache
def digest(number: int, question: str | None = None) -> str:
    return Task.from_json(json.dumps(task(number, question))).digest


def turn(text: str, **more: Any) -> dict[str, Any]:
    said = {"text": text, "observation": None, "limit": None, "affected": None, "tokens": 20}
    return said | {"observation_tokens": 0, "seconds": 0.21, "sql_seconds": None} | more


def episode(phase: str, step: int, number: int, right: bool, **more: Any) -> dict[str, Any]:
    """A line of `episodes.jsonl`: a statement, its result, an answer."""
    sql = f"SELECT COUNT(*) FROM orders WHERE item = 'item {number}'"
    seen: dict[str, Any] = {"observation": "[(1,)]", "observation_tokens": 9, "sql_seconds": 0.0004}
    seen["affected"] = 3 if number == 7 else None
    return {
        "phase": phase,
        "step": step,
        "task_id": f"task-{number}",
        "task_digest": digest(number),
        "question": task(number)["question"],
        "operation": "SELECT",
        "skills": [SKILLS[0], SKILLS[1 + number % 3]],
        "greedy": phase != "train",
        "status": "answered",
        "right": right,
        "verdict": {"right": right, "published_right": None},
        "fault": None,
        "rewards": {"outcome": 1.0 if right else -1.0, "format_reward": 0.5} if phase != "greedy" else {},
        "advantage": (0.75 if right else -0.75) if phase == "train" else None,
        "seed": 7,
        "prompt_tokens": 250,
        "turns": [
            turn(f"Action: Operation\n```sql\n{sql}\n```", action="operation", sql=sql, **seen),
            turn("Action: Answer\nFinal Answer: [(1,)]", action="answer", answer="[(1,)]"),
        ],
        **more,
    }


def episodes(steps: int, samples: int = 4, held_out: int = 20) -> list[dict[str, Any]]:
    """A run that learns: a greedy and some sampled episodes a step, an evaluation every 20 steps."""
    chance = random.Random(1)
    lines = []
    for step in range(steps + 1):
        skill = 0.25 + 0.6 * step / max(steps, 1)
        if step % 20 == 0 or step == steps:
            lines += [episode("eval", step, 1000 + i, chance.random() < skill) for i in range(held_out)]
        if step == steps:
            break
        lines.append(episode("greedy", step, step, chance.random() < skill))
        for _ in range(samples):
            lines.append(episode("train", step, step, chance.random() < skill))
            if chance.random() > 0.5 + skill / 2:
                bad = turn("hm", action="invalid", reason="no 'Action: Operation' or 'Action: Answer'")
                ended = chance.choice(["invalid_action", "turn_limit", "out_of_tokens"])
                lines[-1] |= {"status": ended, "right": False, "turns": [bad]}
    return lines


def write_run(folder: Path, lines: list[dict[str, Any]], log: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    numbers = {int(line["task_id"][5:]): line["question"] for line in lines}
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task(*item)) + "\n" for item in numbers.items()))
    if log:
        steps = max(line["step"] for line in lines)
        write_log(
            folder,
            [
                {"step": s, "reward": -0.5 + s / steps, "kl": 1e-4 * s, "loss": float("nan")}
                for s in range(1, steps + 1)
            ],
        )
    return folder


def write_log(folder: Path, entries: list[dict[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in entries))


def blocks(html: str, kind: str) -> list[Any]:
    """What the page's script unpacks."""
    packed = re.findall(rf'id="{kind}-\d+">([^<]*)<', html)
    return [entry for block in packed for entry in json.loads(gzip.decompress(base64.b64decode(block)))]


def of(run: Path, chart: str) -> dict[str, Any]:
    """Series of a chart by name."""
    return {s.name: s for c in charts(read_run(run)) if c.id == chart for s in c.series}


def test_a_report_is_of_the_weights_that_are_in_the_folder(tmp_path: Path) -> None:
    """After step 20 all four are right, after step 40 none: the run has kept the weights of step 20."""
    rights = {0: (0, 0, 0, 0), 20: (1, 1, 1, 1), 40: (0, 0, 0, 0)}
    lines = [
        episode("eval", step, n, bool(right)) for step, of in rights.items() for n, right in enumerate(of)
    ]
    run = write_run(tmp_path / "run", lines)
    settings = {"best_step": 20, "training": {"metric_for_best_model": "eval_accuracy"}}
    (run / "run.json").write_text(json.dumps(settings))
    compared = compare(read_run(run))
    assert compared is not None
    assert (compared.before, compared.after) == ("held-out, 0 updates", "held-out, 20 updates")
    html = write_report(read_run(run), tmp_path / "page.html").read_text()
    assert re.search(r"after 20 updates.*the best by eval_accuracy", html, re.DOTALL)
    assert re.search(r"held-out, 20 updates: 4 of 4 episodes", html)
    assert "held-out, 40 updates" not in html
    other = write_run(tmp_path / "other", lines)
    between = compare_runs((read_run(run), read_run(other)))
    assert between is not None
    assert (between.before, between.after) == ("held-out, 20 updates", "held-out, 40 updates")
    before, after = saved_arms([run])
    assert (before.name, after.name) == ("run, 0 updates", "run, 20 updates")


def test_axes_do_not_dramatise() -> None:
    """A share's axis has 0 and 100 %, whatever it shows; all others have 0, a reward's also 1."""

    def axis(*values: float, **more: Any) -> tuple[float, float]:
        low, high = y_range(Chart("x", "", "", [Series("s", 0, [0.0] * len(values), list(values))], **more))
        return round(low, 3), round(high, 3)

    assert axis(0.62, 0.81, percent=True) == axis(0.985, 0.99, percent=True) == (0, 1)
    assert axis(0.02, kind="shares", percent=True) == (0, 1)
    assert axis(2.0, 2.1) == (0, 2.226), "turns: from 0, with room above"
    assert axis(-0.3, -0.2) == (-0.318, 0), "a reward below 0"
    assert axis(0.01, 0.02, reach=1.0) == (0, 1.06)
    assert axis() == axis(0.0) == (0, 1)


def test_settings_of_the_run_are_in_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", episodes(2))
    (folder / "run.json").write_text(
        json.dumps(
            {"protocol": "tools", "grader": None, "limits": {"rows": 9}, "system_prompt": "<b>Be brief."}
        )
    )
    html = write_report(read_run(folder), tmp_path / "r.html").read_text()
    rows = re.findall(r"<code>(\w+)</code></th><td>(.*?)</td>", html)
    assert rows == [
        ("protocol", "tools"),
        ("limits", "{&#34;rows&#34;: 9}"),
        ("system_prompt", "&lt;b&gt;Be brief."),
    ]
    (folder / "run.json").write_text("{")
    read = read_run(folder)
    assert read.notes == ["run.json cannot be read: the settings of the run are not shown."]
    assert "All settings" not in write_report(read, tmp_path / "r.html").read_text()


def facts(html: str) -> dict[str, tuple[str, str]]:
    """Name -> (value, remark) at the head of a page, in its order."""
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)(?:<span>(.*?)</span>)?</dd>", html)
    return {name: (value, remark) for name, value, remark in found}


TRAINING = {
    "lora": {"r": 16},
    **{"learning_rate": 2e-5, "lr_scheduler_type": "cosine", "loss_type": "dapo", "beta": 0.04},
    **{"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "world_size": 2},
}


def test_settings_come_first(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", episodes(2))
    settings = {"protocol": "tools", "model": "/models/here/qwen", "training": TRAINING}
    (folder / "run.json").write_text(json.dumps(settings))
    html = write_report(read_run(folder), tmp_path / "r.html").read_text()
    assert list(facts(html).items())[:6] == [
        ("Model", ("/models/here/qwen", "LoRA r 16")),
        ("Learning rate", ("2e-05", "schedule: cosine")),
        (
            "Batch",
            (
                "64 episodes an update",
                "8 a device \N{MULTIPLICATION SIGN} 2 devices \N{MULTIPLICATION SIGN} 4 accumulated",
            ),
        ),
        ("Loss", ("dapo", "beta 0.04")),
        ("Updates", ("2", "")),
        ("Episodes", ("50", "40 held-out, 2 greedy, 8 sampled")),
    ]
    rows = re.findall(r"<code>(\w+)</code></th><td>(.*?)</td>", html)
    assert [name for name, _ in rows] == [*TRAINING, "protocol", "model"]


def test_episodes_of_sample_are_no_update(tmp_path: Path) -> None:
    """Its run.json names no training; one of a run does, from its first version on."""
    folder = write_run(tmp_path / "sampled", [episode("train", 0, 1, True)], log=False)
    assert read_run(folder).steps == 1
    (folder / "run.json").write_text(json.dumps({"model": "tiny", "training": {}, "id": None}))
    assert read_run(folder).steps == 0


# --- curves -------------------------------------------------------------------------------------------


def test_curves_count_what_was_played(tmp_path: Path) -> None:
    fault = episode("greedy", 1, 0, False, status="environment_fault")
    run = write_run(
        tmp_path,
        [
            *(episode("eval", 0, i, i == 0) for i in range(4)),
            episode("greedy", 0, 0, True),
            episode("train", 0, 0, True),
            episode("train", 0, 0, False, status="turn_limit", turns=[turn("hm", action="invalid")] * 3),
            episode("greedy", 1, 1, False),
            fault,
            *(episode("train", 1, 1, True) for _ in range(2)),
            *(episode("eval", 2, i, i < 3) for i in range(4)),
            *(episode("eval", 2, i, i < 3) for i in range(4)),  # evaluated again: counted once
        ],
    )
    accuracy = of(run, "accuracy")
    assert (accuracy["held-out"].x, accuracy["held-out"].y) == ([0, 2], [0.25, 0.75])
    assert accuracy["held-out"].detail == ["1 of 4", "3 of 4"]
    assert accuracy["held-out"].low[0] == pytest.approx(0.0456, abs=1e-4)  # Wilson for 1 of 4
    assert accuracy["greedy, running"].detail == [
        "1 of 1",
        "1 of 2; 1 void, 33.3 % with those counted wrong",
    ]
    assert accuracy["greedy, running, void counted wrong"].y == [1.0, 1 / 3]
    assert "held-out, void counted wrong" not in accuracy

    assert of(run, "reward")["outcome"].y == [0.0, 1.0]
    assert of(run, "reward")["total, as weighted"].x == [0, 1]  # logged at 1 and 2, after the update
    statuses = of(run, "status")
    assert statuses["answered, right"].y == [0.5, 1.0]
    assert statuses["turn limit"].y == [0.5, 0.0]
    assert "invalid action" not in statuses
    assert of(run, "turns")["turns"].y == [2.5, 2.0]
    assert of(run, "tokens")["written by the agent"].y == [50.0, 40.0]
    assert of(run, "tokens")["observations"].y == [4.5, 9.0]
    assert of(run, "kl")["KL to the reference"].y == pytest.approx([1e-4, 2e-4])


def evaluated(step: int, rights: list[bool | None]) -> list[dict[str, Any]]:
    """A held-out evaluation: task n right, wrong, or (`None`) void."""
    fault = {"status": "environment_fault", "fault": "2003: cannot connect"}
    return [
        episode("eval", step, n, bool(right), **(fault if right is None else {}))
        for n, right in enumerate(rights)
    ]


MOSTLY_VOID: list[bool | None] = [True] * 5 + [None] * 15
VOID = "15 void, 25.0 % with those counted wrong"


def test_void_episodes_stand_beside_every_accuracy(tmp_path: Path) -> None:
    lines = [
        *evaluated(0, [True] * 10 + [False] * 10),
        *evaluated(3, MOSTLY_VOID),
        *evaluated(6, [None] * 20),
    ]
    folder = write_run(tmp_path / "two", lines[:40])
    run, accuracy = read_run(folder), of(folder, "accuracy")
    assert (accuracy["held-out"].x, accuracy["held-out"].y) == ([0, 3], [0.5, 1.0])
    assert accuracy["held-out"].detail == ["10 of 20", f"5 of 5; {VOID}"]
    counted = accuracy["held-out, void counted wrong"]
    assert (counted.x, counted.y, counted.detail) == ([0, 3], [0.5, 0.25], ["10 of 20", "5 of 20"])

    compared = compare(run)
    assert compared is not None
    assert str(compared.rows[0][2]) == f"100.0 % [56.6, 100.0] ({VOID})"
    page = write_report(run, tmp_path / "report.html").read_text()
    assert f"<dd>100.0 % [56.6, 100.0] ({VOID})" in page, "at the head"
    assert f"<small>5 of 5; {VOID}</small>" in page, "in the table of skills"
    assert "+50.0<small>\N{MINUS SIGN}25.0 with void counted wrong</small>" in page

    # an evaluation of void episodes only has no accuracy, and does not vanish
    accuracy = of(write_run(tmp_path / "three", lines), "accuracy")
    assert (accuracy["held-out"].x, accuracy["held-out, void counted wrong"].x) == ([0, 3], [0, 3, 6])


def test_one_evaluation_has_its_void_episodes_at_the_head(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, evaluated(0, MOSTLY_VOID), log=False))
    page = write_report(run, tmp_path / "report.html").read_text()
    assert facts(page)["Accuracy"] == (
        f"100.0 % [56.6, 100.0] ({VOID})",
        "held-out, 0 updates: 5 of 5 episodes",
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (evaluated(0, [True]), {"Accuracy": "held-out, 0 updates"}),
        (
            [*evaluated(0, [False]), *evaluated(3, [True])],
            {"Accuracy at the start": "held-out, 0 updates", "Accuracy at the end": "held-out, 3 updates"},
        ),
        ([episode("greedy", 0, 0, True)], {"Accuracy": "greedy, running, 0 updates"}),
        (
            [episode("greedy", step, step, step == 2) for step in range(3)],
            {
                "Accuracy at the start": "first third of the greedy runs, to 0 updates",
                "Accuracy at the end": "last third of the greedy runs, from 2 updates",
            },
        ),
        (evaluated(0, [True, None, None]), {"Accuracy": "held-out, 0 updates"}),
    ],
)
def test_one_episode_makes_no_headline(tmp_path: Path, lines: list, expected: dict[str, str]) -> None:
    html = write_report(read_run(write_run(tmp_path, lines, log=False)), tmp_path / "r.html").read_text()
    shown = {name: fact for name, fact in facts(html).items() if name.startswith("Accuracy")}
    assert shown == {
        name: ("one episode only", f"{where}: too few for an accuracy") for name, where in expected.items()
    }
    assert "+100.0" not in html, "no change from one episode to one other"


def test_a_headline_says_of_how_many_episodes_it_is(tmp_path: Path) -> None:
    lines = [*evaluated(0, [False] * 4), *evaluated(3, [True, True, True, False])]
    html = write_report(read_run(write_run(tmp_path, lines)), tmp_path / "r.html").read_text()
    assert facts(html)["Accuracy at the start"][1] == "held-out, 0 updates: 0 of 4 episodes"
    assert facts(html)["Accuracy at the end"] == (
        "75.0 % [30.1, 95.4]",
        "held-out, 3 updates: 3 of 4 episodes",
    )


def test_void_episodes_of_two_runs_are_counted_for_each(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / name, evaluated(0, rights), log=False))
        for name, rights in (("a", [True] * 10 + [False] * 10), ("b", MOSTLY_VOID))
    ]
    page = write_report(runs[0], tmp_path / "both.html", runs[1]).read_text()
    assert "<small>10 of 20</small>" in page and f"<small>5 of 5; {VOID}</small>" in page


def test_a_mean_reward_says_how_many_episodes_have_none(tmp_path: Path) -> None:
    fault = {"status": "environment_fault", "rewards": {"outcome": None}}
    lines = [
        *(episode("train", 0, n, True) for n in range(5)),
        *(episode("train", 0, n, False, **fault) for n in range(15)),
    ]
    assert of(write_run(tmp_path, lines, log=False), "reward")["outcome"].detail == ["5 episodes; 15 void"]


def test_compares_the_first_and_the_last_whole_evaluation(tmp_path: Path) -> None:
    lines = [
        *(episode("eval", 0, i, False) for i in range(3)),
        *(episode("eval", 5, i, True) for i in range(3)),
        episode("eval", 9, 0, False),  # killed in the middle of it
    ]
    compared = compare(read_run(write_run(tmp_path, lines)))
    assert compared is not None
    assert (compared.before, compared.after) == ("held-out, 0 updates", "held-out, 5 updates")
    rows = {name: (str(before.right), after.right, after.judged) for name, before, after in compared.rows}
    assert rows["overall"] == ("0", 3, 3)
    assert rows["where_single_condition"] == ("0", 1, 1)


def test_evaluations_on_other_tasks_are_not_compared(tmp_path: Path) -> None:
    """The run went on with other held-out tasks after step 2."""
    run = write_run(
        tmp_path,
        [
            *(episode("eval", 0, i, False) for i in range(4)),
            *(episode("eval", 2, i, True) for i in range(4, 8)),
            *(episode("eval", 4, i, i < 6) for i in range(4, 8)),
            *(episode("eval", 6, i, False) for i in range(4, 6)),  # cut short
        ],
    )
    comparison = compare(read_run(run))
    assert comparison is not None
    assert (comparison.before, comparison.after) == ("held-out, 2 updates", "held-out, 4 updates")
    assert [(before.right, after.right) for _, before, after in comparison.rows[:1]] == [(4, 2)]


def test_a_log_of_the_first_evaluation_alone_is_a_log(tmp_path: Path) -> None:
    run = write_run(tmp_path, [episode("eval", 0, 0, True)], log=False)
    (run / "metrics.jsonl").write_text('{"step": 0, "eval_accuracy": 1.0}\n')
    assert not [note for note in read_run(run).notes if "metrics.jsonl" in note]


def test_compares_thirds_of_the_greedy_runs_without_evaluations(tmp_path: Path) -> None:
    lines = [episode("greedy", step, step, step >= 6) for step in range(9)]
    compared = compare(read_run(write_run(tmp_path, lines)))
    assert compared is not None
    assert compared.before == "first third of the greedy runs, to 2 updates"
    assert compared.after == "last third of the greedy runs, from 6 updates"
    assert [str(of_all) for of_all in compared.rows[0][1:]] == ["0.0 % [0.0, 56.2]", "100.0 % [43.8, 100.0]"]


def test_long_runs_are_averaged_over_neighbouring_steps(tmp_path: Path) -> None:
    lines = [episode("train", step, step, True) for step in range(1000)]
    run = read_run(write_run(tmp_path, lines))
    turns = next(chart for chart in charts(run) if chart.id == "turns")
    assert len(turns.series[0].x) <= 60
    assert turns.series[0].x[0] == 8.0  # of steps 0 to 16
    assert "A point is the mean of 17 steps." in turns.note


# --- what can go wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda run: None, "is not there. Give the output_dir"),
        (lambda run: run.write_text("x"), "is a file. Give the output_dir"),
        (lambda run: run.mkdir(), "nothing of a run can be read"),
        (lambda run: (run.mkdir(), (run / "episodes.jsonl").touch()), "episodes.jsonl is empty"),
        (
            lambda run: (run.mkdir(), (run / "episodes.jsonl").write_text("{}\n")),
            "line 1 (no usable 'phase')",
        ),
    ],
)
def test_nothing_to_read_is_one_clear_line(make, message, tmp_path, monkeypatch, capsys) -> None:
    make(tmp_path / "run")
    monkeypatch.setattr("sys.argv", ["trl-dbbench", "report", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert message in str(stopped.value)
    assert "\n" not in str(stopped.value)
    assert not list(tmp_path.rglob("*.html"))


def test_an_episode_file_cut_in_mid_line_shows_the_rest(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", episodes(3))
    whole = (run / "episodes.jsonl").read_bytes()
    (run / "episodes.jsonl").write_bytes(whole + '{"phase": "train", "text": "é'.encode()[:-1])
    read = read_run(run)
    assert len(read.episodes) == whole.count(b"\n")
    assert any("ends in the middle of line" in note for note in read.notes)
    assert "ends in the middle of line" in write_report(read, tmp_path / "report.html").read_text()


def test_what_the_alarms_watch_is_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path, episodes(2), log=False)
    logged = {
        "reward": 0.1,
        "entropy": 0.4,
        "entropy_coef": 0.1,
        "alarm/invalid_actions": 0.25,
        "error/denied": 0.0,
    }
    history = [{"step": step, **logged, "error/syntax": 0.1 * step} for step in (1, 2)]
    write_log(run, history)
    assert {name: line.y for name, line in of(run, "alarms").items()} == {"invalid actions": [0.25, 0.25]}
    assert {name: line.y for name, line in of(run, "errors").items()} == {"syntax": [0.1, 0.2]}
    assert {name: line.y for name, line in of(run, "entropy").items()} == {"entropy": [0.4, 0.4]}


def test_which_tasks_are_trained_on_is_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path, episodes(2), log=False)
    logged = {"reward": 0.1, "frontier/expected": 0.5, "dynamic/left_out": 0.25}
    history = [{"step": step, **logged} for step in (1, 2)]
    write_log(run, history)
    assert {name: line.y for name, line in of(run, "tasks").items()} == {
        "drawn tasks: expected accuracy": [0.5, 0.5],
        "groups without spread, left out": [0.25, 0.25],
    }


def test_broken_lines_are_left_out_and_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, episodes(3))
    lines = (run / "episodes.jsonl").read_text().splitlines()
    broken = [
        "[1]",
        "not json",
        '{"phase": "nap"}',
        json.dumps(episode("train", 0, 0, True) | {"turns": [3]}),
    ]
    (run / "episodes.jsonl").write_text("\n".join([lines[0], *broken, *lines[1:]]) + "\n")
    (run / "tasks.jsonl").write_text((run / "tasks.jsonl").read_text() + '{"id": "cut')
    read = read_run(run)
    assert len(read.episodes) == len(lines)
    notes = " ".join(read.notes)
    assert "line 2 (not an object), line 3 (" in notes
    assert "and 1 more" in notes
    assert "tasks.jsonl has lines that were left out: line 24 (not JSON" in notes


def test_tasks_of_one_id_and_question_keep_their_own_tables(tmp_path: Path) -> None:
    tasks = [task(1), {**task(1), "tables": [{**TABLE, "rows": [[99, "kiwi"]]}]}]
    digests = [Task.from_json(json.dumps(each)).digest for each in tasks]
    run = write_run(
        tmp_path / "run", [episode("train", 0, 1, True, task_digest=digest) for digest in digests]
    )
    (run / "tasks.jsonl").write_text("".join(json.dumps(each) + "\n" for each in tasks))
    html = write_report(read_run(run), tmp_path / "r.html").read_text()
    assert [each["tables"][0]["count"] for each in blocks(html, "tasks")] == [12, 1]


def test_a_run_without_episodes_shows_the_trainers_log(tmp_path: Path) -> None:
    write_log(tmp_path, [{"step": step, "reward": 0.1 * step, "kl": 0.01} for step in range(1, 5)])
    read = read_run(tmp_path)
    html = write_report(read, tmp_path / "report.html").read_text()
    assert "No episode could be read." in html
    assert "episodes.jsonl is not there" in html
    assert of(tmp_path, "reward")["total, as weighted"].x == [0, 1, 2, 3]
    assert of(tmp_path, "kl")["KL to the reference"].y == [0.01] * 4


def test_the_log_of_a_killed_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, episodes(20))
    log = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(log[:12]) + log[12][:20])
    (run / "run.json").write_text(json.dumps({"training": {"max_steps": 40}}))
    read = read_run(run)
    assert (len(read.log), read.steps, read.notes) == (12, 20, [])
    assert facts(write_report(read, tmp_path / "r.html").read_text())["Updates"] == ("20", "of 40")


def test_out_that_cannot_be_written(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", episodes(2)))
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report(run, tmp_path / "nowhere" / "report.html")


# --- the files ----------------------------------------------------------------------------------------


def test_command_writes_page_and_figures(tmp_path, monkeypatch, capsys) -> None:
    run = write_run(tmp_path / "run", episodes(20))
    (run / "run.json").write_text(json.dumps({"model": "Qwen/Qwen2.5-0.5B-Instruct", "training": TRAINING}))
    monkeypatch.setattr("sys.argv", ["trl-dbbench", "report", str(run)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    names = {"accuracy", "reward", "status", "kl", "turns", "tokens"}
    assert {path.stem for path in (run / "figures").iterdir()} == names
    for path in (run / "figures").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert f"{run}/report.html: 140 episodes" in printed
    html = (run / "report.html").read_text()
    assert "Qwen/Qwen2.5-0.5B-Instruct" in html and "LoRA r 16" in html
    assert len(blocks(html, "episodes")) == 140


def test_a_folder_whose_name_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a terminal of en_US.UTF-8 has it, Python's output takes no bytes that are no UTF-8."""
    run = write_run(tmp_path / os.fsdecode(b"run\xff"), episodes(2))
    terminal = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict")
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.argv", ["trl-dbbench", "report", str(run), "--no-figures"])
    with pytest.raises(SystemExit) as stopped:
        main()
    terminal.flush()
    assert not stopped.value.code
    assert rb"run\udcff/report.html: 50 episodes" in terminal.buffer.getvalue()


def test_a_figures_text_is_no_formula(tmp_path: Path) -> None:
    line = episode("train", 0, 0, True) | {"rewards": {"a$\\b$": 1.0, "c": 0.0}}
    assert write_figures(read_run(write_run(tmp_path, [line])), tmp_path / "figures")


def hostile(folder: Path) -> Path:
    line = episode(
        "train",
        0,
        0,
        False,
        question=ATTACK,
        task_digest=digest(0, ATTACK),
        skills=[ATTACK],
        status=ATTACK,
        fault=ATTACK,
        rewards={ATTACK: 1.0, "other": float("nan")},
        turns=[
            turn(ATTACK, action="operation", sql=ATTACK, observation=ATTACK, limit=ATTACK),
            turn(ATTACK + "\ud800", action="answer", answer=ATTACK),
            turn(ATTACK, action="invalid", reason=ATTACK),
        ],
    )
    # the page opens on the first episode of the file
    return write_run(folder, [line, line | {"phase": "greedy"}], log=False)


def test_hostile_text_is_no_markup(tmp_path: Path) -> None:
    run = hostile(tmp_path / "<b>run")
    html = write_report(read_run(run), tmp_path / "report.html").read_text()
    assert "<script>alert" not in html
    assert "<img" not in html
    assert "<b>run" not in html and "&lt;b&gt;run" in html
    assert "{{ 7*7 }}" in html  # the template's language is not read in what it shows
    assert not any("\u2028" in script for script in re.findall(r"<script.*?</script>", html, re.DOTALL))
    assert html.count("<script") == html.count("</script>") == 4  # data, episodes, tasks, the page's own
    assert blocks(html, "episodes")[0]["turns"][0]["sql"] == ATTACK


def test_the_page_builds_no_markup_from_text() -> None:
    templates = list(Path(__file__).parents[2].glob("trl_dbbench/evaluation/report/templates/*.j2"))
    assert len(templates) > 5
    for maker in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert [path.name for path in templates if maker in path.read_text()] == []


# --- in a browser -------------------------------------------------------------------------------------


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Headless Chromium; `browser.problems()` are the console's errors, `browser.requests()` all requests."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        lacking("chromium", "chromium and chromedriver are not on the PATH")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-dev-shm-usage"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
        f"user-data-dir={tmp_path / 'chromium'}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()


def open_page(browser: Any, page: Path, width: int = 1280, height: int = 1000) -> float:
    """Opens the page at a width of the view and waits for its first transcript; seconds until that is there."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    browser.get_log("performance")  # of the page that Chromium starts with
    started = time.perf_counter()
    browser.get(page.as_uri())
    while not browser.execute_script("return document.querySelector('#episode article') !== null"):
        assert time.perf_counter() - started < 20, browser.get_log("browser")
        time.sleep(0.01)
    return time.perf_counter() - started


def listed(browser: Any) -> list[str]:
    return [row.text for row in browser.find_elements("css selector", "#list .row")]


def choose(browser: Any, **filters: str) -> str:
    """Sets filters as a user does; returns the line that counts what is left."""
    from selenium.webdriver.support.select import Select

    browser.execute_script("document.getElementById('filters').scrollIntoView()")  # from under the bar
    browser.find_element("css selector", "#filters [type=reset]").click()
    time.sleep(0.1)
    for name, value in filters.items():
        field = browser.find_element("name", name)
        if field.tag_name == "select":
            Select(field).select_by_value(value)
        elif field.get_attribute("type") == "checkbox":
            field.click()
        else:
            field.send_keys(value)
    while browser.find_elements("css selector", "#filters[aria-busy]"):
        time.sleep(0.01)
    return browser.find_element("id", "count").text


@pytest.mark.slow
def test_in_chromium(browser: Any, tmp_path: Path) -> None:
    lines = episodes(40)
    page = write_report(read_run(write_run(tmp_path / "run", lines)), tmp_path / "report.html")
    open_page(browser, page)

    # curves are drawn and say their values, to the pointer and to the keyboard
    assert len(browser.find_elements("css selector", ".plot svg")) == 6
    picture = browser.find_element("css selector", "#plot-accuracy svg")
    assert "At the end: held-out" in picture.get_attribute("aria-label")
    picture.send_keys("\ue010")  # End
    assert re.search(
        r"updates done: 40\nheld-out: \d+\.0 % \[.*\] \(\d+ of 20\)",
        browser.find_element("css selector", "#plot-accuracy .tip").text,
    )

    # every filter, and all of them together, leaves what fits
    def fitting(**wanted: Any) -> int:
        return sum(all(line[key] == value for key, value in wanted.items()) for line in lines)

    def left(**filters: str) -> int:
        return int(choose(browser, **filters).split()[0].replace(",", ""))

    assert left() == len(lines)
    assert len(browser.find_elements("css selector", "#list .task")) == 50, "tasks of a page"
    assert left(status="turn_limit") == fitting(status="turn_limit")
    assert left(kind="eval") == fitting(phase="eval")
    assert left(result="right") == fitting(right=True)
    assert left(skill="update") == sum("update" in line["skills"] for line in lines)
    assert left(**{"from": "3", "to": "4"}) == sum(3 <= line["step"] <= 4 for line in lines)
    assert left(text="ITEM 1001 ") == fitting(task_id="task-1001")
    assert left(kind="train", result="wrong", to="9") == sum(
        line["phase"] == "train" and not line["right"] and line["step"] <= 9 for line in lines
    )
    assert choose(browser, kind="greedy", status="turn_limit") == "No episode fits these filters."
    assert listed(browser) == []
    left()
    browser.find_element("id", "on").click()
    assert browser.find_element("id", "page").text == "2 of 2"
    assert len(browser.find_elements("css selector", "#list .task")) == 40 + 20 - 50

    # a sampled episode stands beside the greedy one of its task and step
    assert left(kind="train", **{"from": "7", "to": "7"}) == 4
    browser.find_elements("css selector", "#list .row")[1].click()
    time.sleep(0.3)
    heads = [head.text for head in browser.find_elements("css selector", "#episode h4")]
    assert [head.lstrip("✓✗") for head in heads] == ["Greedy, step 7", "Sample 2, step 7"]
    assert len(browser.find_elements("css selector", "#episode .chip")) == 5
    shown = browser.find_element("id", "episode").text
    for part in (
        "How many orders of item 7",
        "12 rows",
        "NULL",
        "executed in 0.4 ms, 3 rows changed",
        "Result, 9 tokens",
    ):
        assert part in shown
    for part in ("Reward outcome", "Advantage", "Agent, 20 tokens", "Gold solution"):
        assert part in shown
    browser.find_element("css selector", "#episode details button").click()
    assert len(browser.find_elements("css selector", "#episode .data tbody tr")) == 12
    assert len(browser.find_elements("css selector", "article.trained pre.sampled")) in (1, 2)

    assert_quiet(browser, page)


def assert_quiet(browser: Any, page: Path) -> None:
    """No message on the console; no request but the page's own."""
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert {url for url in urls if not url.startswith("data:")} == {page.as_uri()}
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_hostile_text_is_shown_as_text_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_report(read_run(hostile(tmp_path / "run")), tmp_path / "report.html")
    open_page(browser, page)
    assert browser.find_elements("css selector", "img") == []
    assert len(browser.find_elements("css selector", "script")) == 4
    assert browser.find_element("css selector", "article pre.sql").text.startswith(
        "<script>alert(1)</script>"
    )
    assert ATTACK[:40] in browser.find_element("css selector", "#episode h3").text
    assert_quiet(browser, page)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("runs", [1, 2])
def test_fits_the_width_in_chromium(browser: Any, tmp_path: Path, width: int, scheme: str, runs: int) -> None:
    folders = [write_run(tmp_path / f"run-{n}", episodes(40 + 20 * n)) for n in range(runs)]
    for n, folder in enumerate(folders):
        (folder / "run.json").write_text(json.dumps({"protocol": "text", "max_turns": 3 + n}))
    page = write_report(*map(read_run, folders[:1]), tmp_path / "report.html", *map(read_run, folders[1:]))
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    open_page(browser, page, width)
    browser.find_element("css selector", "#settings summary").click()
    # no scrolling sideways
    root = "document.documentElement"
    assert browser.execute_script(f"return {root}.scrollWidth == {root}.clientWidth")
    color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert color == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    assert_quiet(browser, page)
    if folder := os.environ.get("TRL_DBBENCH_SCREENSHOTS"):  # to look at
        high = browser.execute_script("return document.documentElement.scrollHeight")
        size = {"width": width, "height": high, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        time.sleep(0.3)
        browser.save_screenshot(str(Path(folder) / f"report-{runs}-{width}-{scheme}.png"))


def mended(folder: Path) -> Path:
    """Three held-out tasks, of which the second is wrong at first and right in the end, with turns of known worth."""
    ends = {0: (True, False, False), 10: (True, True, False)}
    lines = [
        episode("eval", step, 1000 + n, right)
        for step, rights in ends.items()
        for n, right in enumerate(rights)
    ]
    lines.append(episode("train", 3, 1, True))
    lines[-1]["turns"][0] |= {"advantage": 0.25, "value": 0.125, "state": "0123456789abcdef"}
    return write_run(folder, lines)


def heads(browser: Any) -> list[str]:
    return [head.text for head in browser.find_elements("css selector", "#episode h4")]


def test_opens_on_an_episode_that_changed_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_report(read_run(mended(tmp_path / "run")), tmp_path / "report.html")
    open_page(browser, page)
    assert "item 1001 " in browser.find_element("css selector", "#episode h3").text
    assert heads(browser) == ["✗Held-out, step 0", "✓Held-out, step 10"]


def test_the_address_holds_the_view_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_report(read_run(mended(tmp_path / "run")), tmp_path / "report.html")
    open_page(browser, page)
    assert browser.current_url == page.as_uri(), "nothing was chosen yet"
    assert choose(browser, kind="eval", result="wrong").startswith("3 of 7 episodes")
    browser.find_elements("css selector", "#list .row")[2].click()
    time.sleep(0.2)
    shared = browser.current_url
    assert shared == f"{page.as_uri()}#result=wrong&kind=eval&episode=5%3Atask-1002"

    open_page(browser, Shared(shared))
    assert browser.find_element("id", "count").text.startswith("3 of 7 episodes")
    assert "item 1002 " in browser.find_element("css selector", "#episode h3").text
    assert not browser.find_element("id", "stale").is_displayed()
    assert browser.current_url == shared

    for gone in ("99:task-1", "5:task-7", "x"):
        open_page(browser, Shared(f"{page.as_uri()}#skill=no_such&result=wrong&episode={gone}"))
        assert browser.find_element("id", "stale").is_displayed()
        assert browser.find_element("id", "count").text.startswith("3 of 7 episodes")
        assert heads(browser) == ["✗Held-out, step 0", "✓Held-out, step 10"]
        assert browser.current_url == f"{page.as_uri()}#result=wrong"
    assert browser.get_log("browser") == []


def statement(sql: str, observation: str, **more: Any) -> dict[str, Any]:
    text = f"Action: Operation\n```sql\n{sql}\n```"
    seen = {"observation": observation, "observation_tokens": 5, "sql_seconds": 0.001}
    return turn(text, action="operation", sql=sql, **seen | more)


def answered(text: str) -> dict[str, Any]:
    return turn(f"Action: Answer\nFinal Answer: {text}", action="answer", answer=text)


def searched(folder: Path) -> Path:
    """Four tasks: 1 and 2 in two evaluations each, 3 greedily and sampled, 4 void in one of two evaluations.

    Task 1 is wrong with a statement that fails, then right. Task 2 stays right. Task 3's samples differ.
    """
    unknown = statement(
        "SELECT Cuonty FROM orders", "Unknown column 'Cuonty' in 'field list'", error_code=1054
    )
    slow = statement("SELECT SLEEP(9)", "The statement was stopped after 5 seconds", limit="time")
    long = statement("SELECT item\n  FROM orders", "[('kiwi',), ...", limit="rows", error_code=None)
    void = {"status": "environment_fault", "fault": "2003: cannot connect"}
    return write_run(
        folder,
        [
            episode("eval", 0, 1, False, turns=[unknown, answered("[('pear',)]")]),
            episode("eval", 0, 2, True, turns=[long, answered("[('kiwi',)]")]),
            episode("eval", 0, 4, False, **void),
            episode("greedy", 0, 3, False, turns=[slow]),
            episode("train", 0, 3, True),
            episode("train", 0, 3, False),
            episode(
                "eval", 5, 1, True, turns=[statement("SELECT County FROM orders", "[(1,)]"), answered("9")]
            ),
            episode("eval", 5, 2, True, turns=[long, answered("[('kiwi',)]")]),
            episode("eval", 5, 4, True),
        ],
    )


def chips(browser: Any) -> list[str]:
    """The chips of the filters, each with its number."""
    labels = browser.find_elements("css selector", "#filters .chip")
    return [" ".join(label.text.split()) for label in labels]


def grouped(browser: Any) -> dict[str, list[str]]:
    """The rows of episodes below each task in the list. A closed task has none."""
    tasks = browser.find_elements("css selector", "#list .task")
    return {
        task.find_element("css selector", ".what").text.removesuffix(" are there?").split()[-1]: [
            row.text for row in task.find_elements("css selector", ".row")
        ]
        for task in tasks
    }


def test_episodes_stand_under_their_task_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_report(read_run(searched(tmp_path / "run")), tmp_path / "report.html")
    open_page(browser, page)
    assert choose(browser) == "9 of 9 episodes, 5 right, 1 void, of 4 tasks"
    assert grouped(browser) == {
        "1": ["✗\nheld-out, step 0, answered, failing SQL", "✓\nheld-out, step 5, answered"],
        "2": ["✓\nheld-out, step 0, answered", "✓\nheld-out, step 5, answered"],
        "4": ["!\nheld-out, step 0, environment fault", "✓\nheld-out, step 5, answered"],
        "3": [
            "✗\ngreedy, step 0, answered, failing SQL",
            "✓\nsampled, step 0, answered",
            "✗\nsampled, step 0, answered",
        ],
    }
    metas = [meta.text for meta in browser.find_elements("css selector", "#list summary .meta")]
    assert metas == [
        "task-1, 1 of 2 episodes right, flipped",
        "task-2, 2 of 2 episodes right",
        "task-4, 1 of 2 episodes right",
        "task-3, 1 of 3 episodes right",
    ]
    # the arrow keys go through tasks and episodes; Enter closes and opens a task
    browser.find_element("css selector", "#list summary").send_keys("\ue015\ue015\ue015")
    assert "item 2 " in browser.switch_to.active_element.text
    browser.switch_to.active_element.send_keys("\ue007")
    assert grouped(browser)["2"] == ["", ""], "they are there, and not displayed"
    browser.switch_to.active_element.send_keys("\ue015")
    assert "item 4 " in browser.switch_to.active_element.text, "the rows of a closed task are passed over"
    browser.switch_to.active_element.send_keys("\ue013")
    assert "item 2 " in browser.switch_to.active_element.text
    # Next goes on to the next task, and opens it
    assert heads(browser) == ["✗Held-out, step 0", "✓Held-out, step 5"]
    browser.find_element("xpath", "//button[starts-with(., 'Next ')]").click()
    time.sleep(0.2)
    assert "item 2 " in browser.find_element("css selector", "#episode h3").text
    assert grouped(browser)["2"] == ["✓\nheld-out, step 0, answered", "✓\nheld-out, step 5, answered"]
    assert_quiet(browser, page)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("cuonty", ["1"]),  # SQL of a statement that failed
        ("COUNTY FROM", ["1"]),
        ("item from orders", ["2"]),  # over the end of a line
        ("'kiwi'", ["2"]),  # an answer
        ("pear", ["1"]),
        ("item 3' ", ["3"]),
        ("task-4", ["4"]),
        ("many orders of item 2", ["2"]),  # a question
        ("unknown column", []),  # a result: neither SQL nor answer
    ],
)
def test_sql_and_answers_are_searched_in_chromium(
    browser: Any, tmp_path: Path, text: str, tasks: list[str]
) -> None:
    page = write_report(read_run(searched(tmp_path / "run")), tmp_path / "report.html")
    open_page(browser, page)
    choose(browser, text=text)
    assert list(grouped(browser)) == tasks
    assert_quiet(browser, page)


def test_flipped_tasks_and_failing_sql_are_filtered_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_report(read_run(searched(tmp_path / "run")), tmp_path / "report.html")
    open_page(browser, page)
    assert chips(browser) == ["flipped 1", "failing SQL 2"], "tasks, and episodes"
    choose(browser, flipped="")
    assert {task: len(rows) for task, rows in grouped(browser).items()} == {"1": 2}
    choose(browser, failing="")
    assert {task: len(rows) for task, rows in grouped(browser).items()} == {"1": 1, "3": 1}, (
        "a time limit is an error, a result that was cut is none"
    )
    assert choose(browser, failing="", kind="greedy") == "1 of 9 episodes, 0 right, of 1 task"
    assert browser.current_url == f"{page.as_uri()}#failing=1&kind=greedy"
    open_page(browser, Shared(browser.current_url))
    assert list(grouped(browser)) == ["3"]
    # by the keyboard
    choose(browser)
    browser.find_element("name", "flipped").send_keys(" ")
    assert list(grouped(browser)) == ["1"]
    assert browser.get_log("browser") == []


def test_tasks_that_flip_from_run_to_run_in_chromium(browser: Any, tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / name, evaluated(4, rights), log=False))
        for name, rights in (("a", [True, True, None]), ("b", [True, False, True]))
    ]
    open_page(browser, write_report(runs[0], tmp_path / "both.html", runs[1]))
    assert choose(browser, flipped="") == "2 of 6 episodes, 1 right, of 1 task"
    assert list(grouped(browser)) == ["1"]


def test_an_evaluation_that_was_played_twice_is_no_flip(tmp_path: Path) -> None:
    run = write_run(tmp_path, [episode("eval", 4, 1, False), episode("eval", 4, 1, True)])
    html = write_report(read_run(run), tmp_path / "report.html").read_text()
    index = json.loads(re.findall(r'id="data">(.*?)</script>', html)[0])
    assert [task["flipped"] for task in index["tasks"]] == [False]


def test_the_bar_stays_in_sight_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_report(read_run(searched(tmp_path / "run")), tmp_path / "report.html")
    open_page(browser, page)
    choose(browser, failing="")
    links = browser.find_elements("css selector", ".parts a")
    assert [link.text for link in links] == [
        *("Settings", "Results", "Curves", "Accuracy per skill", "Transcripts")
    ]
    high = browser.find_element("css selector", ".parts").size["height"]
    for link in links[1:]:
        link.send_keys("\ue007")  # Enter
        time.sleep(0.1)
        top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
        assert browser.execute_script(top, ".parts") == 0
        target = "#" + link.get_attribute("href").rpartition("#")[2]
        at_the_end = browser.execute_script(
            "return innerHeight + scrollY >= document.documentElement.scrollHeight - 1"
        )
        assert browser.execute_script(top, target) >= high - 1, "not under the bar"
        assert at_the_end or browser.execute_script(top, target) < high + 60
        assert browser.current_url == f"{page.as_uri()}#failing=1", "the view's address stays"
    assert_quiet(browser, page)


def test_axes_show_the_whole_scale_in_chromium(browser: Any, tmp_path: Path) -> None:
    """An accuracy that goes from 95 to 100 % is drawn on an axis of 0 to 100 %, 2.0 to 2.1 turns on one from 0."""
    lines = [
        *evaluated(0, [False] + [True] * 19),
        *(episode("train", step, step, True) for step in range(4)),
        *evaluated(4, [True] * 20),
    ]
    open_page(browser, write_report(read_run(write_run(tmp_path / "run", lines)), tmp_path / "report.html"))

    def axis(chart: str) -> list[str]:
        texts = browser.find_elements("css selector", f"#plot-{chart} text[text-anchor=end]")
        return [text.text for text in texts]

    assert [axis("accuracy")[place] for place in (0, -1)] == ["0 %", "100 %"]
    assert axis("turns")[0] == axis("tokens")[0] == "0"
    points = browser.find_elements("css selector", "#plot-accuracy circle")
    ups = [float(point.get_attribute("cy")) for point in points]
    assert ups[0] - ups[1] == pytest.approx(0.05 * (300 - 38 - 10)), "5 % of the axis"


def test_a_run_without_episodes_in_chromium(browser: Any, tmp_path: Path) -> None:
    log = [{"step": step, "reward": 0.1} for step in (1, 2)]
    page = write_report(Run("run", steps=2, log=log), tmp_path / "report.html")
    browser.get(page.as_uri())
    assert len(browser.find_elements("css selector", ".plot svg")) == 1
    browser.find_element("link text", "Transcripts").click()
    assert "No episode could be read." in browser.find_element("css selector", "main").text
    assert browser.get_log("browser") == []


def test_without_scripts_in_chromium(browser: Any, tmp_path: Path) -> None:
    """Without a script, the page has its settings, results and skills, and no empty list of episodes."""
    folder = mended(tmp_path / "run")
    (folder / "run.json").write_text(json.dumps({"training": TRAINING}))
    page = write_report(read_run(folder), tmp_path / "report.html")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(page.as_uri())
    text = browser.find_element("css selector", "body").text
    for part in (
        "Learning rate\n2e-05",
        "Loss\ndapo",
        "66.7 %",
        "Curves and transcripts are drawn by a script",
    ):
        assert part in text


class Shared:
    """An address that somebody has sent."""

    def __init__(self, url: str):
        self.url = url

    def as_uri(self) -> str:
        return self.url


def test_what_was_trained_is_told_turn_by_turn_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_report(read_run(mended(tmp_path / "run")), tmp_path / "report.html")
    open_page(browser, Shared(f"{page.as_uri()}#episode=6:task-1"))
    text = browser.find_element("css selector", "#episode article").text
    assert "Token mask: 40 tokens trained (1), 259 context only (0)" in text
    assert "Agent, 20 tokens, advantage +0.25, value before it 0.125, tables 01234567" in text
    parts = browser.find_elements("css selector", ".mask rect")
    assert [part.get_attribute("class") for part in parts] == ["seen", "mask1", "seen", "mask1"]
    widths = [float(part.get_attribute("width").rstrip("%")) for part in parts]
    assert widths == pytest.approx([100 * tokens / 299 for tokens in (250, 20, 9, 20)])
    choose(browser, kind="eval")
    browser.find_element("css selector", "#list .row").click()
    time.sleep(0.2)
    assert "Tokens: 40 written, 259 read, none trained" in browser.find_element("id", "episode").text


@pytest.mark.slow
def test_a_view_is_taken_along_in_chromium(browser: Any, tmp_path: Path) -> None:
    lines = episodes(40)
    lines[0]["question"] = '=HYPERLINK("x"), or not'
    page = write_report(read_run(write_run(tmp_path / "run", lines)), tmp_path / "report.html")
    told = {"behavior": "allow", "downloadPath": str(tmp_path / "taken")}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", told)
    open_page(browser, page)
    for name in ("PNG", "CSV"):
        browser.find_element("css selector", f"[aria-label='{name} of Greedy accuracy']").click()
    choose(browser, kind="eval", to="0")
    browser.find_element("id", "take").click()
    names = [tmp_path / "taken" / f"run-{name}" for name in ("accuracy.png", "accuracy.csv", "episodes.csv")]
    until = time.monotonic() + 20
    while not all(path.exists() for path in names):
        assert time.monotonic() < until, list(tmp_path.glob("taken/*"))
        time.sleep(0.05)
    picture = image.imread(names[0])
    assert picture.shape[1] == 2 * browser.find_element("css selector", "#plot-accuracy svg").size["width"]
    assert len({tuple(pixel) for pixel in picture.reshape(-1, picture.shape[2])}) > 20, "something is drawn"
    held_out = of(tmp_path / "run", "accuracy")["held-out"]
    rows = list(csv.reader(names[1].open(newline="")))
    assert rows[0] == ["series", "updates done", "accuracy", "low", "high", "detail"]
    mine = [row for row in rows if row[0] == "held-out"]
    assert [(float(row[1]), float(row[2])) for row in mine] == list(zip(held_out.x, held_out.y, strict=True))
    rows = list(csv.reader(names[2].open(newline="")))
    assert len(rows) == 1 + 20
    assert rows[1][:6] == ["run", "0", "held-out", "0", "task-1000", '\'=HYPERLINK("x"), or not']
    assert browser.get_log("browser") == []


def test_two_runs_side_by_side_in_chromium(browser: Any, tmp_path: Path, command: Any) -> None:
    a = write_run(tmp_path / "a", [episode("eval", 0, 1000 + n, n == 0) for n in range(3)])
    b = write_run(tmp_path / "b", [episode("eval", 5, 1000 + n, n == 2) for n in range(4)])
    (a / "run.json").write_text(json.dumps({"protocol": "text", "max_turns": 3, "context": None}))
    (b / "run.json").write_text(json.dumps({"protocol": "text", "max_turns": 5}))
    code, out = command("report", a, b)
    page = a / "report-and-b.html"
    assert (code, out.splitlines()[-1].rpartition(",")[0]) == (0, f"{page}: 7 episodes")
    open_page(browser, page)

    assert browser.find_element("css selector", "h1").text == "a and b"
    browser.find_element("css selector", "#settings summary").click()
    assert [row.text.split() for row in browser.find_elements("css selector", ".settings tr")] == [
        ["Setting", "a", "b"],
        ["protocol", "text", "text"],
        ["max_turns", "3", "5"],
    ]
    assert [row.text for row in browser.find_elements("css selector", ".differs th")] == ["max_turns"]
    legend = browser.find_element("css selector", "#accuracy .legend").text
    assert "a: held-out" in legend and "b: held-out" in legend
    assert browser.find_element("css selector", ".skills tbody tr").text.startswith("overall 33.3 %"), (
        "on the three tasks that both have played"
    )
    # the task that b has right, and a wrong
    assert "item 1002 " in browser.find_element("css selector", "#episode h3").text
    assert "item 1002 " in browser.find_element("css selector", ".task:has([aria-current])").text
    assert heads(browser) == ["✗a, Held-out, step 0", "✓b, Held-out, step 5"]
    assert choose(browser, run="1").startswith("4 of 7 episodes, 1 right")
    assert_quiet(browser, page)


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / each / "quick", evaluated(0, [True, False]))) for each in "ab"]
    html = write_report(runs[0], tmp_path / "both.html", runs[1]).read_text()
    assert "<h1>a/quick and b/quick</h1>" in html
    html = write_report(runs[0], tmp_path / "both.html", runs[0]).read_text()
    assert "<h1>quick (1) and quick (2)</h1>" in html


@pytest.mark.slow
def test_two_thousand_episodes_open_within_two_seconds_in_chromium(browser: Any, tmp_path: Path) -> None:
    lines = episodes(372)
    assert len(lines) >= 2000
    page = write_report(read_run(write_run(tmp_path / "run", lines)), tmp_path / "report.html")
    seconds = open_page(browser, page)
    timing = browser.execute_script(
        "const t = performance.timing; return (t.loadEventEnd - t.navigationStart) / 1000"
    )
    print(
        f"{len(lines)} episodes, {page.stat().st_size / 1e6:.2f} MB: load {timing} s, transcript {seconds:.2f} s"
    )
    assert timing < 2
    assert choose(browser, skill="update", result="wrong").split()[2] == f"{len(lines):,}"
    assert choose(browser, text="where item = 'item 1003'").startswith("20 of "), "one for each evaluation"
    assert choose(browser).split()[0] == f"{len(lines):,}"
    made = browser.execute_script("return document.querySelectorAll('#list .row').length")
    assert made < 100, "rows are made when their task is opened"
    assert_quiet(browser, page)
