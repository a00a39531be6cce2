"""docs/extending.md: its files are put into an empty folder, and its recipe is run there."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml
from launching import QUICKSTART, RECIPE, ROOT, SMALL
from training import episodes_in

PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
TASK = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1]
DOORS = ["rewards", "advantages", "protocols", "graders", "formats", "databases", "engines"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the recipe for a step with some of the page's settings; returns the sampled episodes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    (tmp_path / "people.jsonl").write_text(TASK)
    (tmp_path / "tiny").symlink_to(ROOT / "recipes" / "tiny")  # the quickstart's own files

    def run(**settings: object) -> list[dict]:
        given = {**yaml.safe_load(QUICKSTART.read_text()), **settings}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(given))
        options = ["--config", "run.yaml", *SMALL, "--max_steps", "1", "--output_dir", "out"]
        monkeypatch.setattr(sys, "argv", [str(RECIPE), *options, "--disable_tqdm", "true"])
        runpy.run_path(str(RECIPE), run_name="__main__")
        return [episode for episode in episodes_in(tmp_path / "out") if episode["phase"] == "train"]

    yield run
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


def test_the_page_has_an_example_for_every_door():
    assert set(FILES) == {*(f"my_{door}.py" for door in DOORS), "my_recipe.yaml"}


@pytest.mark.parametrize("name", [f"my_{door}.py" for door in DOORS])
def test_an_example_is_short(name):
    two_classes = name == "my_databases.py"
    assert len(FILES[name].strip().splitlines()) < (50 if two_classes else 40)


def test_all_of_them_in_one_recipe(run):
    """The agent looks once, then answers in capitals, which only the page's grader takes for right."""
    episodes = run(**yaml.safe_load(FILES["my_recipe.yaml"]), system_prompt=None)
    assert len(episodes) == 4
    for episode in episodes:
        look, answer = episode["turns"]
        assert (look["sql"], look["observation"]) == (
            "SELECT name FROM people ORDER BY height + 0 DESC LIMIT 1",
            "[('Ann',)]",
        )
        assert (answer["answer"], episode["status"], episode["right"]) == ("ANN", "answered", True)
        assert episode["rewards"] == {"outcome": 1.0, "few_statements": 0.0, "readable_turns": 0.2}
        assert [turn["rewards"] for turn in episode["turns"]] == [{"readable_turns": 0.1}] * 2
        # what is still to come: 0.1 and 0.1, then 0.1
        assert [turn["advantage"] for turn in episode["turns"]] == pytest.approx([0.2, 0.1])
    settings = json.loads(Path("out/run.json").read_text())
    assert (settings["protocol"], settings["grader"]) == ("my_protocols.Tags", "my_graders.ignoring_case")
    assert settings["advantage"] == "my_advantages.reward_to_go"


def test_leave_one_out_is_what_is_recorded_and_trained(run):
    """With the tiny model and its own tasks. In a group the advantages add up to 0."""
    episodes = run(
        reward_funcs=["my_rewards.few_statements", "outcome"], advantage="my_advantages.leave_one_out"
    )
    rewards = [sum(episode["rewards"].values()) for episode in episodes]
    expected = [reward - (sum(rewards) - reward) / 3 for reward in rewards]
    assert [episode["advantage"] for episode in episodes] == pytest.approx(expected, abs=1e-6)
    assert not any("advantage" in turn for episode in episodes for turn in episode["turns"])
