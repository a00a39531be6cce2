"""`trl-dbbench`: its commands in groups, in the order of use, and what it says of one that does not exist."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from launching import ROOT

from trl_dbbench.cli import COMMANDS

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


@pytest.mark.parametrize(("word", "nearest"), [("trian", "train"), ("exprt", "export"), ("Eval", "eval")])
def test_an_unknown_command_names_the_nearest(command: Callable, word: str, nearest: str) -> None:
    said = command(word, "--tasks", "t.jsonl")[0]
    assert said.startswith(f"error: unknown command '{word}'; allowed: recipes, doctor, train, ")
    assert said.endswith(f"; nearest: {nearest}.")
