"""Models set beside each other on the same tasks: pairs, flips, `trl-dbbench compare`, and its page in a browser."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import BrokenDatabase, play_script
from peft import LoraConfig, get_peft_model
from saved_runs import FORGOT_WHERE, LOOK, answer, count_task
from test_judging import AS_THE_QUICKSTART, TINY, record
from test_report import ATTACK, assert_quiet, blocks, browser, chips, episode, facts, write_run
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from trl_dbbench.data.audit import Audited, Finding
from trl_dbbench.data.audit.page import write_page
from trl_dbbench.database import Database
from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.compare.arms import Arm, Sampling, gold_of, mcnemar, portable_digests_of
from trl_dbbench.evaluation.compare.comparison import Pairing, compare_arms, comparison_text
from trl_dbbench.evaluation.compare.page import write_arm, write_comparison
from trl_dbbench.evaluation.compare.saved import arm_dict
from trl_dbbench.evaluation.report.page import write_report
from trl_dbbench.evaluation.report.run import read_run
from trl_dbbench.runs.records import EpisodeRecord, episode_record
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Task, load_tasks

__all__ = ["browser"]


def arm(name: str, rights: Sequence[bool | None], **more: Any) -> Arm:
    """Task n right, wrong, or (`None`) with a failed environment."""
    episodes = [
        record(
            n,
            bool(right),
            "3" if right else "4",
            **({"status": "environment_fault"} if right is None else {}),
        )
        for n, right in enumerate(rights)
    ]
    return Arm(name, episodes, **more)


# --- pairs ------------------------------------------------------------------------------------------------


def test_pairs_by_hand() -> None:
    """Ten tasks: 6 won, 1 lost, 2 right in both, 1 wrong in both."""
    base = arm("base", [False] * 6 + [True] + [True] * 2 + [False])
    other = arm("tuned", [True] * 6 + [False] + [True] * 2 + [False])
    (pairing,) = compare_arms([base, other]).pairings
    assert (pairing.wins, pairing.losses, pairing.both_right, pairing.both_wrong) == (6, 1, 2, 1)
    assert pairing.p == mcnemar(6, 1) == 2 * (1 + 7) / 128
    difference = pairing.differences["greedy"]
    assert (difference.value, difference.tasks) == (0.5, 10)
    assert 0 <= difference.low < 0.5 < difference.high <= 1
    assert pairing.verdict == "No difference shown between tuned and base (p = 0.125)."
    assert [flip.first["task_id"] for flip in pairing.flips] == [f"task-{n}" for n in range(7)]
    assert [flip.won for flip in pairing.flips] == [True] * 6 + [False]

    # what is won here is lost there
    (back,) = compare_arms([other, base]).pairings
    assert (back.wins, back.losses, back.p) == (1, 6, pairing.p)
    assert back.differences["greedy"].value == -0.5


@pytest.mark.parametrize(
    ("wins", "losses", "verdict"),
    [
        (42, 25, "b is right more often than a (p = 0.0498)."),
        (150, 117, "b is right more often than a (p = 0.04998)."),
        (229, 188, "No difference shown between b and a (p = 0.05)."),  # 0.050005
    ],
)
def test_no_p_contradicts_its_verdict(wins: int, losses: int, verdict: str) -> None:
    assert Pairing("a", "b", wins, losses, 0, 0, {}).verdict == verdict


def test_what_is_better_is_said_to_be() -> None:
    (pairing,) = compare_arms([arm("base", [False] * 8), arm("tuned", [True] * 8)]).pairings
    assert pairing.verdict == "tuned is right more often than base (p = 0.008)."
    (pairing,) = compare_arms([arm("base", [True] * 8), arm("tuned", [False] * 8)]).pairings
    assert pairing.verdict == "tuned is right less often than base (p = 0.008)."


def test_the_same_model_claims_nothing() -> None:
    rights = [n % 3 == 0 for n in range(40)]
    comparison = compare_arms([arm("base", rights), arm("copy", rights)])
    (pairing,) = comparison.pairings
    assert (pairing.wins, pairing.losses, pairing.p, pairing.flips) == (0, 0, 1, [])
    difference = pairing.differences["greedy"]
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)
    assert "No difference shown between copy and base (p = 1)." in comparison_text(comparison)


def test_a_fault_in_one_arm_drops_the_pair() -> None:
    base, other = arm("base", [True, None, False, None, True]), arm("tuned", [True, True, None, None, False])
    comparison = compare_arms([base, other])
    (pairing,) = comparison.pairings
    assert (pairing.wins, pairing.losses, pairing.both_right, pairing.faults) == (0, 1, 1, 3)
    assert pairing.differences["greedy"].tasks == 2
    assert "3 more left out: the environment failed in one of the two" in comparison_text(comparison)


def test_with_void_episodes_counted_as_wrong_the_other_arm_wins(tmp_path: Path) -> None:
    """5 of 20 are right and 15 void where the base does 12 of 20: it is right more often only at first sight."""
    base, other = arm("base", [True] * 12 + [False] * 8), arm("tuned", [True] * 5 + [None] * 15)
    comparison = compare_arms([base, other])
    (pairing,) = comparison.pairings
    assert (pairing.wins, pairing.losses, pairing.both_right, pairing.faults) == (0, 0, 5, 15)
    wrong = pairing.void_wrong
    assert wrong is not None
    assert (wrong.wins, wrong.losses, wrong.both_right, wrong.both_wrong) == (0, 7, 5, 8)
    assert (wrong.p, wrong.differences["greedy"].value) == (mcnemar(0, 7), -0.35)
    text = comparison_text(comparison)
    for line in (
        "greedy              60.0 % [38.7, 78.1]  100.0 % [56.6, 100.0] (15 void, 25.0 % with those counted wrong)",
        "  15 more left out: the environment failed in one of the two",
        "    task-5: void in tuned, no reason recorded",
        "    10 other tasks; the file of --json has all",
        "  with void episodes counted as wrong, 20 tasks",
        "    wins 0, losses 7, ties 13 (5 both right, 8 both wrong)",
        "    tuned is right less often than base (p = 0.016).",
    ):
        assert line in text.splitlines(), text
    said = json.loads(json.dumps(comparison.to_dict()))["pairings"][0]
    assert said["void"][0] == {
        **{"task_id": "task-5", "question": base.greedy[5]["question"]},
        **{"arms": ["tuned"], "reason": "no reason recorded"},
    }
    assert (len(said["void"]), said["void_wrong"]["losses"], said["void_wrong"]["mcnemar_p"]) == (
        15,
        7,
        wrong.p,
    )
    page = write_comparison(comparison, tmp_path / "c.html").read_text()
    assert "With void episodes counted as wrong: 0 wins, 7 losses, 13 ties" in page
    assert "<dd>100.0 % [56.6, 100.0] (15 void, 25.0 % with those counted wrong)" in page
    assert "<small>5 of 5; 15 void, 25.0 % with those counted wrong</small>" in page
    assert "task-19: void in tuned" in page


def test_where_every_environment_failed_nothing_is_said(tmp_path: Path) -> None:
    comparison = compare_arms([arm("base", [None, None]), arm("tuned", [True, False])])
    (pairing,) = comparison.pairings
    assert (pairing.faults, pairing.differences, pairing.p) == (2, {}, 1)
    assert "No difference shown between tuned and base (p = 1)." in comparison_text(comparison)
    assert "2 more whose environment failed" in write_comparison(comparison, tmp_path / "c.html").read_text()


def test_only_tasks_that_all_have_are_compared() -> None:
    comparison = compare_arms([arm("base", [True] * 5), arm("a", [True] * 3), arm("b", [False] * 4)])
    assert [len(each.greedy) for each in comparison.arms] == [3, 3, 3]
    assert comparison.notes == ["2 tasks not played by all were left out."]
    assert [(p.first, p.other, p.losses) for p in comparison.pairings] == [("base", "a", 0), ("base", "b", 3)]
    with pytest.raises(ConfigError, match="base, none have no task in common"):
        compare_arms([arm("base", [True]), Arm("none", [])])


def test_samples_are_paired_too() -> None:
    """Of two tasks, the base has 1 and 0 of 2 samples right, the other 2 and 1."""

    def sampled(name: str, rights: list[tuple[bool, bool]], temperature: float = 1.0) -> Arm:
        samples = [record(n, right, str(n)) for n, both in enumerate(rights) for right in both]
        return arm(name, [True, True], samples=samples, sampling=Sampling(2, temperature))

    base, other = (
        sampled("base", [(True, False), (False, False)]),
        sampled("o", [(True, True), (True, False)]),
    )
    comparison = compare_arms([base, other])
    (pairing,) = comparison.pairings
    assert {measure: each.value for measure, each in pairing.differences.items()} == {
        **{"greedy": 0, "pass@1": 0.5, "pass@2": 0.5, "majority@2": 0.5}
    }
    assert comparison.notes == []
    colder = compare_arms([base, sampled("o", [(True, True), (True, False)], 0.5)])
    assert (
        "The samples were drawn differently (base: 2 samples a task, temperature 1, seed 0; o: "
        in colder.notes[0]
    )


# --- what was saved ---------------------------------------------------------------------------------------


def saved(folder: Path, name: str, rights: Sequence[bool]) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"episodes": list(arm(name, rights).greedy)}))
    return path


def test_saved_evaluations(command: Callable, tmp_path: Path) -> None:
    files = saved(tmp_path, "before", [False] * 9), saved(tmp_path, "after", [True] * 8 + [False])
    code, out = command("compare", *files, "--json", tmp_path / "c.json")
    assert code == 0, code
    assert "after against before, 9 tasks" in out
    assert "wins 8, losses 0, ties 1 (0 both right, 1 both wrong)" in out
    assert "greedy: +88.9 points [+66.7, +100.0], 95 % paired bootstrap" in out
    assert "after is right more often than before (p = 0.008)." in out
    assert "now right: 8, the first 3 of them" in out
    assert out.count("      before, wrong, answered\n        answer: 4\n") == 3
    assert out.count("      after, right, answered\n        answer: 3\n") == 3
    said = json.loads((tmp_path / "c.json").read_text())
    (pairing,) = said["pairings"]
    assert (pairing["wins"], pairing["mcnemar_p"], len(pairing["flips"])) == (8, 2 / 256, 8)
    assert pairing["flips"][0]["first"]["turns"][0]["answer"] == "4"


def shared_tasks(folder: Path, rows: int = 1, schema: str = "names") -> list[Task]:
    """Three questions over a SQLite file in this folder, which another machine may have elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / "shop.sqlite")) as made, made:
        made.execute("CREATE TABLE orders (id INTEGER)")
        made.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(rows)])
    entry = {"database": {"path": str(folder / "shop.sqlite")}, "grader": "strict", "schema": schema}
    return [
        Task.from_entry(
            {**entry, "id": f"q{n}", "question": "How many?", "sql": f"SELECT COUNT(*) + {n} FROM orders"}
        )
        for n in range(3)
    ]


def played(tasks: Sequence[Task], rights: Sequence[bool]) -> list[EpisodeRecord]:
    return [
        record(n, right, task_digest=task.digest)
        for n, (task, right) in enumerate(zip(tasks, rights, strict=True))
    ]


def saved_over(path: Path, tasks: Sequence[Task], rights: Sequence[bool]) -> Path:
    """A file of `eval --json`."""
    arm = Arm("m", played(tasks, rights), gold=gold_of(tasks), portable_digests=portable_digests_of(tasks))
    path.write_text(json.dumps({"episodes": arm.greedy, **arm_dict(arm)}))
    return path


def run_over(folder: Path, tasks: Sequence[Task], rights: Sequence[bool]) -> Path:
    folder.mkdir()
    (folder / "episodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in played(tasks, rights)))
    (folder / "tasks.jsonl").write_text("".join(task.to_json() + "\n" for task in tasks))
    return folder


def test_a_shared_database_may_lie_at_another_path(command: Callable, tmp_path: Path) -> None:
    """Evaluations of two machines, and the run folder of a third one whose database is not here."""
    here, there, gone = (shared_tasks(tmp_path / name) for name in ("here", "there", "gone"))
    assert len({each[0].digest for each in (here, there, gone)}) == 3
    base = saved_over(tmp_path / "base.json", here, [False, False, True])
    other = saved_over(tmp_path / "other.json", there, [True, True, True])
    run = run_over(tmp_path / "run", gone, [True, False, True])
    shutil.rmtree(tmp_path / "gone")
    code, out = command("compare", base, other, run)
    assert code == 0, code
    assert "other against base, 3 tasks\n  wins 2, losses 0, ties 1" in out
    assert "run, 0 updates against base, 3 tasks\n  wins 1, losses 0, ties 2" in out


def test_other_contents_and_other_schemas_are_other_tasks(command: Callable, tmp_path: Path) -> None:
    base = saved_over(tmp_path / "base.json", shared_tasks(tmp_path / "here"), [True] * 3)
    for name, more in (("rows", {"rows": 2}), ("schema", {"schema": "full"})):
        other = saved_over(tmp_path / f"{name}.json", shared_tasks(tmp_path / name, **more), [True] * 3)
        code, _ = command("compare", base, other)
        assert "have no task in common" in str(code)


def test_a_file_of_an_earlier_version_matches_at_the_same_path(command: Callable, tmp_path: Path) -> None:
    tasks = shared_tasks(tmp_path / "here")
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({"episodes": played(tasks, [False] * 3), "gold": gold_of(tasks)}))
    code, out = command("compare", earlier, saved_over(tmp_path / "now.json", tasks, [True] * 3))
    assert code == 0 and "now against earlier, 3 tasks\n  wins 3" in out


def test_a_report_of_two_runs_knows_tasks_at_other_paths(tmp_path: Path) -> None:
    runs = [
        read_run(run_over(tmp_path / name, shared_tasks(tmp_path / f"of-{name}"), rights))
        for name, rights in (("a", [False] * 3), ("b", [True] * 3))
    ]
    html = write_report(runs[0], tmp_path / "both.html", runs[1]).read_text()
    assert len(blocks(html, "tasks")) == 3 and "<small>3 of 3</small>" in html


def test_a_run_alone_is_compared_with_its_own_beginning(command: Callable, tmp_path: Path) -> None:
    lines = [
        *(episode("eval", 0, n, n < 2) for n in range(12)),
        *(episode("eval", 20, n, n < 11) for n in range(12)),
        episode("eval", 30, 0, False),  # cut short
    ]
    code, out = command("compare", write_run(tmp_path / "first", lines))
    assert code == 0, code
    assert "first, 20 updates against first, 0 updates, 12 tasks" in out
    assert "wins 9, losses 0, ties 3" in out
    assert "SQL> SELECT COUNT(*) FROM orders WHERE item = 'item 2'" in out

    other = write_run(tmp_path / "second", [episode("eval", 5, n, n == 0) for n in range(12)])
    code, out = command("compare", tmp_path / "first", other)
    assert "second, 5 updates against first, 20 updates, 12 tasks" in out
    assert "wins 0, losses 10" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say what to compare: --adapter (with --model for its base), or files of eval --json, or runs."),
        (("a.json",), "'a.json' alone has nothing to be compared with."),
        (("a.json", "a.json"), "an evaluation is named twice: a.json, a.json."),
        (("a.json", "nowhere.json"), "'nowhere.json' cannot be read as a saved evaluation"),
        (("a.json", "b.json"), "'b.json' cannot be read as a saved evaluation: no 'episodes'."),
        (("run",), "'run' has only one whole held-out evaluation (run, 0 updates)."),
        (
            ("a.json", "run", "--samples", "4"),
            "what was saved is not played again: leave out --samples, or SAVED.",
        ),
        (
            ("a.json", "run", "--limit", "2", "--html", "c.html"),
            "not played again: leave out --limit, or SAVED.",
        ),
        (("--adapter", "x", "--adapter", "x"), "an adapter is named twice: x, x."),
    ],
)
def test_what_compare_refuses(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, "a", [True])
    (tmp_path / "b.json").write_text("{}")
    write_run(tmp_path / "run", [episode("eval", 0, 1, True)], log=False)
    if "x" in arguments:
        arguments = (*arguments, "--model", str(TINY / "model"))
    code, _ = command("compare", *arguments)
    assert message in str(code) and "\n" not in str(code)


# --- adapters on one model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes an adapter of the tiny model: 0 changes nothing, more spoils it."""
    folder = tmp_path_factory.mktemp("adapters")

    def make(name: str, change: float, **settings: Any) -> Path:
        config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], **settings)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(TINY / "model"), config)
        torch.manual_seed(1)
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.data = change * torch.randn_like(parameter)
        model.save_pretrained(folder / name)
        return folder / name

    return make


@pytest.mark.slow
def test_adapters_are_compared_with_their_base(
    command: Callable, adapters: Callable[[str, float], Path], tmp_path: Path
) -> None:
    """What each arm plays is what `eval` plays of it, though all share one model."""
    same, spoilt = adapters("same", 0.0), adapters("spoilt", 0.3)
    tasks = ("--tasks", TINY / "test.jsonl", "--limit", "10", *AS_THE_QUICKSTART)
    figures = {}
    for name, adapter in (("base", ()), ("spoilt", ("--adapter", spoilt))):
        file = tmp_path / f"{name}.json"
        code, _ = command("eval", "--model", TINY / "model", *adapter, *tasks, "--json", file)
        assert code == 0, code
        figures[name] = json.loads(file.read_text())

    files = ("--json", tmp_path / "c.json", "--html", tmp_path / "c.html")
    both = (
        "--adapter",
        spoilt,
        "--adapter",
        same,
    )  # the spoilt one is loaded first, and must be switched off
    code, out = command("compare", "--model", TINY / "model", *both, *tasks, "--samples", "2", *files)
    assert code == 0, code
    said = json.loads((tmp_path / "c.json").read_text())
    assert [each["name"] for each in said["arms"]] == ["base", "spoilt", "same"]
    greedy = [each["figures"]["shares"]["overall"]["greedy"]["rate"] for each in said["arms"]]
    alone = {name: each["accuracy"]["accuracy"] for name, each in figures.items()}
    assert greedy == [alone["base"], alone["spoilt"], alone["base"]]
    assert alone["spoilt"] < alone["base"]

    to_spoilt, to_same = said["pairings"]
    assert (to_same["wins"], to_same["losses"], to_same["mcnemar_p"]) == (0, 0, 1)
    assert {each["value"] for each in to_same["differences"].values()} == {
        0.0
    }  # the samples are the same, too
    assert "No difference shown between same and base (p = 1)." in out

    texts = {
        name: {e["task_id"]: [turn["text"] for turn in e["turns"]] for e in each["episodes"]}
        for name, each in figures.items()
    }
    assert to_spoilt["losses"] > 0
    for flip in to_spoilt["flips"]:
        for side, name in (("first", "base"), ("other", "spoilt")):
            assert [turn["text"] for turn in flip[side]["turns"]] == texts[name][flip[side]["task_id"]]
        assert flip["gold"]["sql"]
    assert "Gold solution" in (tmp_path / "c.html").read_text()

    # the two files say the same
    code, out = command("compare", tmp_path / "base.json", tmp_path / "spoilt.json")
    assert f"wins {to_spoilt['wins']}, losses {to_spoilt['losses']}, " in out


def test_adapters_of_two_models_are_refused(
    command: Callable, adapters: Callable[[str, float], Path], tmp_path: Path
) -> None:
    one, other = adapters("one", 0.0), adapters("other", 0.0)
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "else/where"}))
    tasks = ("--tasks", TINY / "test.jsonl", *AS_THE_QUICKSTART)
    code, _ = command("compare", "--adapter", one, "--adapter", other, *tasks)
    assert f"'{one}' is an adapter of '{TINY / 'model'}', '{other}' of 'else/where'." in str(code)
    assert "name one of them by --model" in str(code)


@pytest.mark.parametrize("settings", [{"init_lora_weights": "pissa"}, {"bias": "all"}], ids=str)
def test_an_adapter_that_changes_its_base_is_refused(
    command: Callable, adapters: Callable[..., Path], settings: dict[str, str]
) -> None:
    """Switched off it leaves another model than the base, which would be played for it."""
    into_the_base = adapters("into_the_base", 0.0, **settings)
    code, _ = command(
        "compare", "--adapter", into_the_base, "--tasks", TINY / "test.jsonl", *AS_THE_QUICKSTART
    )
    [(name, value)] = settings.items()
    assert f"changes the weights of '{TINY / 'model'}' itself ({name}: {value})" in str(code)


# --- the document -----------------------------------------------------------------------------------------


def lines_of_the_document() -> list[str]:
    text = (TINY.parents[1] / "docs" / "evaluate.md").read_text(encoding="utf-8")
    lines = [
        line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    return [
        line for line in lines if not line.startswith("trl-dbbench scores ")
    ]  # `test_docs_run.py` has those


@pytest.mark.slow
def test_the_lines_of_the_document_run(
    command: Callable, adapters: Callable[[str, float], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a run that has an adapter, a checkpoint and two evaluations, and on two tasks, with few samples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(TINY.parent)
    tasks = load_tasks(TINY / "test.jsonl")[:2]
    run = tmp_path / "runs" / "quickstart"
    run.mkdir(parents=True)
    lines = [
        episode("eval", step, n, bool(step), task_id=task.id, task_digest=task.digest)
        for step in (0, 40)
        for n, task in enumerate(tasks)
    ]
    (run / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "tasks.jsonl").write_text("".join(task.to_json() + "\n" for task in tasks))
    settings = {
        "model": str(TINY / "model"),
        "system_prompt": "Work on the MySQL database.",
        "dialect": "sqlite",
    }
    limits = {"max_turns": 2, "max_turn_tokens": 48, "max_completion_length": 128}
    RunSettings(protocol="text", observation_characters=800, **settings, **limits).write(run)
    for place, change in ((run / "checkpoint-20", 0.0), (run, 0.01)):
        shutil.copytree(adapters(f"document{change}", change), place, dirs_exist_ok=True)
    (run / "checkpoint-20" / "trainer_state.json").write_text('{"global_step": 20}')

    commands = lines_of_the_document()
    assert len(commands) == 11 and all(line.startswith("trl-dbbench ") for line in commands)
    for line in commands:
        arguments = shlex.split(re.sub(r"--samples \d+", "--samples 2", line))[1:]
        saved_only = arguments[0] == "compare" and "--adapter" not in arguments
        code, out = command(*arguments, *(() if saved_only else ("--limit", "2", "--database", "sqlite")))
        assert code == 0, (line, code)
        assert "overall" in out or "McNemar's exact test: p = " in out, line
    assert {path.name for path in tmp_path.iterdir()} >= {
        "sampled.html",
        "comparison.html",
        "comparison.json",
    }


# --- the page ---------------------------------------------------------------------------------------------


def comparison_of(database: Database, tokenizer: PreTrainedTokenizerBase, tasks: int = 12) -> list[Arm]:
    """Arms that were played: the base forgets the WHERE of most tasks, the other of one."""

    def played(name: str, forgets: Callable[[int], bool]) -> Arm:
        episodes: list[EpisodeRecord] = []
        for number in range(1, tasks + 1):
            look = FORGOT_WHERE if forgets(number) else LOOK
            found = number + 1 if forgets(number) else number
            turns = [look, answer(f"[({found},)]")]
            episodes.append(
                episode_record(play_script(count_task(number), turns, tokenizer, database), "eval", 0)
            )
        broken = play_script(count_task(99), [LOOK], tokenizer, BrokenDatabase(at_start=True))
        return Arm(name, [*episodes, episode_record(broken, "eval", 0)], model="tiny")

    return [played("base", lambda n: n > 2), played("quickstart", lambda n: n == 1)]


def test_the_page_says_what_the_text_says(
    sqlite_database: Database, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    comparison = compare_arms(comparison_of(sqlite_database, tokenizer))
    html = write_comparison(comparison, tmp_path / "c.html").read_text()
    for part in (
        "quickstart against base",
        "quickstart: 10 now right",
        "quickstart: 1 now wrong",
        "p = 0.012",
    ):
        assert part in html
    assert (
        html.count("SELECT COUNT(*) FROM orders\n```") == 11
    )  # of those that flipped, the one that was wrong
    assert html.count("<script") == 1 and "http" not in html.replace("http-equiv", "")


def hostile(name: str, right: bool) -> Arm:
    turns = [
        {"text": ATTACK, "action": "operation", "sql": ATTACK, "observation": ATTACK, "tokens": 2},
        {"text": ATTACK + "\ud800", "action": "invalid", "reason": ATTACK, "observation": None, "tokens": 2},
    ]
    more: dict[str, Any] = {"question": ATTACK, "skills": [ATTACK], "turns": turns, "rewards": {ATTACK: 1.0}}
    return Arm(name, [record(1, right, "3", **more)], gold={"d1": {"sql": ATTACK, "answer": [ATTACK]}})


def test_what_a_model_says_to_a_program_is_no_unreadable_turn(tmp_path: Path) -> None:
    """As with `harness`, and as a summary of earlier turns (`compaction: summary`)."""
    said: Any = {"text": "I would look at the fruits.", "action": "reply", "observation": None, "tokens": 7}
    arms = []
    for name, right in (("base", False), ("tuned", True)):
        played = record(0, right)
        arms.append(Arm(name, [{**played, "turns": [said, *played["turns"]]}]))
    comparison = compare_arms(arms)
    assert "reply: I would look at the fruits." in comparison_text(comparison)
    page = write_comparison(comparison, tmp_path / "page.html").read_text()
    assert "Turn 1: reply<" in page


def test_hostile_text_is_no_markup(tmp_path: Path) -> None:
    comparison = compare_arms([hostile("<b>base", False), hostile("other", True)])
    html = write_comparison(comparison, tmp_path / "c.html").read_text()
    assert "<script>alert" not in html and "<img" not in html and "<b>base" not in html
    assert html.count("<script") == html.count("</script>") == 1
    assert "&lt;script&gt;alert(1)" in html and "{{ 7*7 }}" in html
    assert "\x1b" not in comparison_text(compare_arms([hostile("a", False), hostile("b\x1b", True)])).replace(
        "b\x1b", ""
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_chromium(
    browser: Any,
    sqlite_database: Database,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    width: int,
    scheme: str,
) -> None:
    """It fits, in both schemes; opens the tasks that flipped; says nothing on the console; asks for nothing."""
    page = write_comparison(compare_arms(comparison_of(sqlite_database, tokenizer)), tmp_path / "c.html")
    open_as(browser, page, width, scheme)
    entries = browser.find_elements("css selector", "details.entry")
    assert len(entries) == 11
    assert not browser.find_element("css selector", ".entry article").is_displayed()
    for opened in (entries[0], entries[-1]):
        opened.find_element("css selector", "summary").click()
    first, second = entries[0].find_elements("css selector", "article")
    assert "base, answered" in first.text and "Final Answer: [(4,)]" in first.text
    assert "quickstart, answered" in second.text and "Final Answer: [(3,)]" in second.text
    beside = second.location["x"] > first.location["x"]
    assert beside == (width == 1280)

    assert_fits(browser, page, f"compare-{width}-{scheme}")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_the_page_of_an_evaluation_in_chromium(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """Two tasks, four samples each; the one that was done wrong comes first."""
    samples = [
        record(n, n == i, str(i), rewards={"outcome": float(n == i)}) for n in (1, 2) for i in range(4)
    ]
    greedy = [record(1, True, "1"), record(2, False, None, skills=["a_skill_with_a_very_long_name_" * 3])]
    page = write_arm(Arm("tuned", greedy, samples, Sampling(4, 1.0, scorer="outcome")), tmp_path / "e.html")
    open_as(browser, page, width, scheme)
    assert "4 samples a task, temperature 1, seed 0, the best by outcome" in browser.page_source
    table = {row.text.split("\n")[0] for row in browser.find_elements("css selector", ".figures tbody tr")}
    assert {"greedy 50.0 % [9.5, 90.5]", "pass@1 25.0 % [2.7, 80.2]", "pass@4 100.0 % [34.2, 100.0]"} <= table
    entries = browser.find_elements("css selector", "details.entry")
    assert [entry.text for entry in entries] == ["✗✗✗✓✗ ? task-2", "✓✗✓✗✗ ? task-1"]
    entries[0].find_element("css selector", "summary").click()
    assert len(entries[0].find_elements("css selector", "article")) == 5
    assert_fits(browser, page, f"eval-{width}-{scheme}")


def test_models_are_named_by_their_paths(tmp_path: Path) -> None:
    """Two checkpoints of the same name, and an adapter on one of them."""
    first = arm("base", [True, False], model="/runs/a/checkpoint-20")
    other = arm("other", [True, True], model="/runs/b/checkpoint-20")
    tuned = arm("tuned", [True, True], model="/runs/a/checkpoint-20", adapter="/runs/c")
    shown = facts(write_comparison(compare_arms([first, other, tuned]), tmp_path / "c.html").read_text())
    assert shown["Model, base"] == ("/runs/a/checkpoint-20", "")
    assert shown["Model, other"] == ("/runs/b/checkpoint-20", "")
    assert shown["Model, tuned"] == ("/runs/a/checkpoint-20", "adapter: /runs/c")
    shown = facts(write_arm(first, tmp_path / "e.html").read_text())
    assert shown["Model"] == ("/runs/a/checkpoint-20", "")


def test_one_task_makes_no_headline(tmp_path: Path) -> None:
    shown = facts(write_arm(arm("tuned", [True]), tmp_path / "e.html").read_text())
    assert shown["Greedy accuracy, tuned"] == ("one episode only", "greedy: too few for an accuracy")
    shown = facts(write_arm(arm("tuned", [True, False]), tmp_path / "e.html").read_text())
    assert shown["Greedy accuracy, tuned"] == ("50.0 % [9.5, 90.5]", "greedy: 1 of 2 episodes")


def flipping() -> list[Arm]:
    """Two arms on four tasks: `tuned` wins tasks 0 and 1 and loses task 2. The base's statement fails in task 1."""
    arms = []
    for name, rights in (("base", [False, False, True, True]), ("tuned", [True, True, False, True])):
        episodes = [
            record(n, right, f"answer {n} of {name}", skills=[f"skill_{n % 2}"])
            for n, right in enumerate(rights)
        ]
        arms.append(Arm(name, episodes))
    failed = {
        **{"text": "SELECT Cuonty", "action": "operation", "sql": "SELECT Cuonty", "tokens": 3},
        **{"observation": "Unknown column 'Cuonty'", "error_code": 1054},
    }
    arms[0].greedy[1]["turns"].insert(0, failed)  # type: ignore[arg-type]
    return arms


def left(browser: Any) -> list[str]:
    """The ids of the tasks that the filters leave, as their count says too."""
    entries = browser.find_elements("css selector", ".entry")
    shown = [entry.text.split()[-1] for entry in entries if entry.is_displayed()]
    assert browser.find_element("id", "count").text.startswith(f"{len(shown)} of {len(entries)} task")
    return shown


def press(browser: Any, chip: str) -> None:
    browser.find_element("xpath", f"//label[contains(@class, 'chip')][contains(., '{chip}')]").click()


@pytest.mark.slow
def test_flips_are_filtered_and_searched_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_comparison(compare_arms(flipping()), tmp_path / "c.html")
    open_as(browser, page, 1280, "light")
    assert chips(browser) == ["tuned: now right 2", "tuned: now wrong 1", "failing SQL 1"]
    assert left(browser) == ["task-0", "task-1", "task-2"]
    press(browser, "now wrong")
    assert left(browser) == ["task-2"]
    press(browser, "now right")
    assert left(browser) == ["task-0", "task-1", "task-2"], "either of one kind"
    press(browser, "failing SQL")
    assert left(browser) == ["task-1"], "and both of two kinds"
    assert browser.current_url.endswith("#flip=tuned%3A+now+right&flip=tuned%3A+now+wrong&sql=failing+SQL")
    browser.find_element("css selector", "[type=reset]").click()
    time.sleep(0.1)
    search = browser.find_element("name", "text")
    for text, tasks in (("select cuonty", ["task-1"]), ("Answer 2 of BASE", ["task-2"]), ("nothing", [])):
        search.clear()
        search.send_keys(text)
        assert left(browser) == tasks
    search.clear()
    browser.find_element("name", "skill").send_keys("skill 1")
    assert left(browser) == ["task-1"]

    # a shared address has the same view, and a link of the bar leaves it as it is
    shared = browser.current_url
    browser.get("about:blank")
    browser.get(shared)
    assert left(browser) == ["task-1"]
    browser.find_element("link text", "Figures").click()
    time.sleep(0.1)
    assert browser.current_url == shared
    assert browser.execute_script("return document.querySelector('.parts').getBoundingClientRect().top") == 0
    assert browser.get_log("browser") == []


def test_tasks_of_an_evaluation_are_filtered_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_arm(arm("tuned", [True, False, None, True]), tmp_path / "e.html")
    open_as(browser, page, 400, "light")
    assert chips(browser) == ["right 2", "void 1", "wrong 1"]
    press(browser, "void")
    assert left(browser) == ["task-2"]
    assert_fits(browser, page, "eval-filtered")


def test_without_scripts_all_tasks_are_there_in_chromium(browser: Any, tmp_path: Path) -> None:
    page = write_comparison(compare_arms(flipping()), tmp_path / "c.html")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(page.as_uri())
    assert not browser.find_element("id", "filters").is_displayed()
    entries = browser.find_elements("css selector", ".entry")
    assert [entry.text.split()[-1] for entry in entries] == ["task-0", "task-1", "task-2"]
    entries[1].find_element("css selector", "summary").click()
    assert "SELECT Cuonty" in entries[1].text and "answer 1 of tuned" not in entries[0].text


def test_an_audit_is_filtered_in_chromium(browser: Any, tmp_path: Path) -> None:
    tasks = [count_task(n) for n in range(4)]
    weak, unnamed = Finding("weak", "also right: SELECT 1"), Finding("not named", "'Oslo'")
    audited = [
        Audited(tasks[0], [weak, weak], "faulty", tasks[0]),
        Audited(tasks[1], [weak, unnamed], "dropped", None),
        Audited(tasks[2], [unnamed], "sound", tasks[2]),
        Audited(tasks[3], [], "sound", tasks[3]),
    ]
    page = write_page(audited, "tasks.jsonl", tmp_path / "audit.html")
    open_as(browser, page, 1280, "light")
    assert browser.find_element("css selector", "h1").text == "tasks.jsonl: audit"
    assert chips(browser) == ["Dropped 1", "Sound, with doubts 1", "With faults 1", "not named 2", "weak 2"]
    ids = [task.id for task in tasks]
    assert left(browser) == [ids[1], ids[0], ids[2]]
    press(browser, "weak")
    assert left(browser) == [ids[1], ids[0]]
    press(browser, "With faults")
    assert left(browser) == [ids[0]]
    titles = browser.find_elements("css selector", "h3")
    assert [title.text for title in titles if title.is_displayed()] == ["With faults: 1"]
    browser.find_element("css selector", "[type=reset]").click()
    time.sleep(0.1)
    browser.find_element("name", "text").send_keys("oslo")
    assert left(browser) == [ids[1], ids[2]]
    assert_fits(browser, page, "audit")


def test_an_audit_without_findings_in_chromium(browser: Any, tmp_path: Path) -> None:
    task = count_task(1)
    page = write_page([Audited(task, [], "sound", task)], "tasks.jsonl", tmp_path / "audit.html")
    open_as(browser, page, 400, "dark")
    assert not browser.find_element("id", "filters").is_displayed()
    assert_fits(browser, page, "audit-sound")


def open_as(browser: Any, page: Path, width: int, scheme: str) -> None:
    """Opens the page at a width of the view, for a reader who likes it light or dark."""
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get(page.as_uri())
    look = "const seen = getComputedStyle(document.body); return [seen.backgroundColor, seen.color]"
    background, ink = ([int(n) for n in color[4:-1].split(",")] for color in browser.execute_script(look))
    assert (sum(background) > sum(ink)) == (scheme == "light")


def assert_fits(browser: Any, page: Path, name: str) -> None:
    """No scrolling sideways, nothing on the console, no request."""
    root = "document.documentElement"
    assert browser.execute_script(f"return {root}.scrollWidth == {root}.clientWidth")
    assert_quiet(browser, page)
    if folder := os.environ.get("TRL_DBBENCH_SCREENSHOTS"):  # to look at
        width, high = browser.execute_script(f"return [innerWidth, {root}.scrollHeight]")
        size = {"width": width, "height": high, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        time.sleep(0.3)
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))
