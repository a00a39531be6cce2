"""`trl-dbbench`: its commands in groups, in the order of use, and what it says of one that does not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import ROOT
from typer.testing import CliRunner

from trl_dbbench.cli import COMMANDS, app
from trl_dbbench.tasks import Task

GROUPS = {
    "Train": ["recipes", "doctor", "train", "merge"],
    "Evaluate": ["eval", "compare", "report", "replay", "scores"],
    "Tasks": ["import", "generate", "convert", "validate", "audit", "skills", "split"],
    "Data": ["sample", "export"],
    "Serve": ["serve"],
}


def groups(page: str) -> dict[str, list[str]]:
    """The panels of a page of help and the commands in each, as they come."""
    panels = re.findall(r"^╭─ (\w+) ─+╮\n(.*?)^╰", page, re.MULTILINE | re.DOTALL)
    return {title: re.findall(r"^│ (\w+) ", body, re.MULTILINE) for title, body in panels}


@pytest.mark.parametrize("words", [["--help"], []])
def test_commands_come_in_groups_in_the_order_of_use(command: Callable, words: list[str]) -> None:
    shown = groups(command(*words)[1])
    shown.pop("Options")
    assert shown == GROUPS
    assert list(shown) == list(GROUPS) == list(COMMANDS)


def test_the_reference_has_the_same_groups() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    section = page.partition("## Commands\n")[2].partition("\n## ")[0]
    parts = re.split(r"^### (\w+)$", section, flags=re.MULTILINE)[1:]
    assert {
        title: re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
        for title, table in zip(parts[::2], parts[1::2], strict=True)
    } == GROUPS


@pytest.mark.parametrize(("cores", "workers"), [(2, 2), (64, 8)])
def test_processes_that_generate_tasks(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    asked: list[int] = []

    def iterate_tasks(num_tasks: int, request: object, workers: int) -> list[Task]:
        asked.append(workers)
        return []

    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("trl_dbbench.data.generate.iterate_tasks", iterate_tasks)
    command("generate", "--num-tasks", 1, "--out", tmp_path / "tasks.jsonl")
    assert asked == [workers]
    page = re.sub(r"[│\s]+", " ", command("generate", "--help")[1])
    assert "Processes; by default one per CPU core, and at most 8." in page


@pytest.mark.parametrize(("word", "nearest"), [("trian", "train"), ("exprt", "export"), ("Eval", "eval")])
def test_an_unknown_command_names_the_nearest(word: str, nearest: str) -> None:
    ended = CliRunner().invoke(app, [word, "--tasks", "t.jsonl"])
    assert ended.exit_code == 2
    assert f"No such command '{word}'. Did you mean '{nearest}'" in ended.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "report runs/a runs/b --figures f",
            "--figures has no effect: PNG files are drawn of one run alone.",
        ),
        (
            "report runs/a --figures f --no-figures",
            "--figures has no effect: --no-figures writes no PNG files.",
        ),
        (
            "export runs/a --to sft --label-by outcome",
            "--label-by has no effect: sft has no labels of turns.",
        ),
        (
            "export runs/a --to kto --model m",
            "--model has no effect: kto is text, which any tokenizer reads.",
        ),
        (
            "import t.csv --out o.jsonl --test-size 0.5",
            "--test-size has no effect: it goes with --test-out, .*",
        ),
        (
            "eval --endpoint http://a --model m --batch-size 64",
            "--batch-size has no effect: --concurrency .*",
        ),
    ],
)
def test_options_without_effect_are_refused(command: Callable, words: str, said: str) -> None:
    assert re.fullmatch(f"error: {said}", command(*words.split())[0])


@pytest.mark.parametrize(
    "words",
    [
        "compare run run2 --json run/episodes.jsonl",
        "compare run/checkpoint-5 --html run/episodes.jsonl",
        "report run --out run/episodes.jsonl",
        "eval run --json run/episodes.jsonl",
        "replay run --out run/episodes.jsonl",
        "export run --to sft --out run/episodes.jsonl",
        "export run --to sft --out run/shots.jsonl",
    ],
)
def test_what_a_run_has_recorded_is_not_replaced(
    command: Callable, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run/checkpoint-5").mkdir(parents=True)
    Path("run2").mkdir()
    for name in ("episodes.jsonl", "shots.jsonl"):
        Path("run", name).write_text("{}\n")
    out = words.split()[-1]
    assert f"'{out}' is the file to read; write to another." in command(*words.split())[0]
    assert Path(out).read_text() == "{}\n"
