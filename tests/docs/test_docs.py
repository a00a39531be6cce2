"""README and docs/: what they link to is there, what they tell to type is understood, and what is made from the
code is as the code is."""

from __future__ import annotations

import fnmatch
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from launching import ROOT
from training import quickstart_trainer

from trl_dbbench.cli import app
from trl_dbbench.database import Database

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
REFERENCE = ROOT / "docs" / "reference.md"


def commands() -> Iterator[tuple[str, str]]:
    """(page, command line) of every line in a `bash` block; a line that ends in a backslash goes on."""
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip() and not line.startswith("#"):
                    yield page.name, line.strip()


COMMANDS = list(commands())


def of_program(name: str) -> list:
    """The lines that call this program, each a list of words."""
    split = [(page, shlex.split(line, comments=True)) for page, line in COMMANDS]
    return [
        pytest.param(words[words.index(each) + 1 :], id=f"{page}: {' '.join(words)}"[:120])
        for page, words in split
        for each in words
        if each.split("/")[-1] == name
    ]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    plain = [
        re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", each)
        for each in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        file, _, heading = target.partition("#")
        linked = page.parent / file if file else page
        if not target.startswith("http"):
            assert linked.exists(), target
            assert not heading or linked.suffix != ".md" or heading in anchors(linked), target


@pytest.mark.parametrize("words", of_program("trl-dbbench"))
def test_a_command_line_is_understood(words: list[str]) -> None:
    """Its command exists, and so do its options; their values are not looked at."""
    command = typer.main.get_command(app).commands[words[0]]
    command.make_context(words[0], words[1:])


@pytest.mark.parametrize("words", of_program("accelerate"))
def test_a_launch_names_files_that_are_there(words: list[str]) -> None:
    files = [word for word in words if word.endswith((".py", ".yaml")) and "/" in word]
    assert files
    for file in files:
        assert (ROOT / file).exists(), file


@pytest.mark.parametrize("words", of_program("make"))
def test_a_target_of_make_exists(words: list[str]) -> None:
    (target,) = [word for word in words if "=" not in word]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 1200


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.parent == ROOT or page.name == "README.md" or f"]({page.name})" in index


def test_the_reference_is_what_the_code_says() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))["reference"]()
    assert made == REFERENCE.read_text(encoding="utf-8"), "run `python docs/make_reference.py`"


def test_every_metric_of_ours_is_in_the_reference(sqlite_database: Database, tmp_path: Path) -> None:
    """What a step of training logs, but for what TRL logs itself."""
    trainer = quickstart_trainer(sqlite_database, tmp_path, max_steps=1, logging_steps=1)
    trainer.train()
    logged = {name.removeprefix("eval_") for line in trainer.state.log_history for name in line}
    trls = {"loss", "grad_norm", "learning_rate", "epoch", "step", "entropy", "num_tokens", "step_time"}
    trls |= {"reward", "reward_std", "runtime", "samples_per_second", "steps_per_second", "total_flos"}
    trls |= {"train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second"}
    ours = {name for name in logged - trls if not name.startswith(("rewards/", "clip_ratio/"))}
    section = REFERENCE.read_text(encoding="utf-8").split("## Metrics")[1]
    documented = [
        name.replace("...", "*") for name in re.findall(r"`([^` ]+)`(?=[,\s]*(?:`[^`]+`)?[, ]*\|)", section)
    ]
    assert {"accuracy", "turns/mean"} <= ours
    assert {name for name in ours if not any(fnmatch.fnmatch(name, each) for each in documented)} == set()
