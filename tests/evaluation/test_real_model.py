"""The chain of `benchmarks/real_model.py`: what is done is not done again, and what was stopped goes on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import real_model
from real_model import Chain, check_settings, line_of

from trl_dbbench.cli.arguments import RewardArguments
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Verdict
from trl_dbbench.episode.types import Episode, Sampling, Status
from trl_dbbench.tasks import Gold, Task


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the chain, which write what they would, but for the training itself."""
    commands: list[list[str]] = []

    def run(*words: str | Path, log: Path) -> None:
        commands.append([str(word) for word in words])
        if "--output_dir" in words:
            folder = Path(words[words.index("--output_dir") + 1])
            folder.mkdir(exist_ok=True)
            (folder / "adapter_model.safetensors").touch()
        if "--json" in words:
            episodes = [{"right": True}, {"right": False}]
            Path(words[words.index("--json") + 1]).write_text(json.dumps({"episodes": episodes}))

    monkeypatch.setattr(real_model, "run", run)
    return commands


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain("a-model", tmp_path / "real", None, "sqlite")


def test_another_setting_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    first = {"model": "a-model", "sft_steps": "600"}
    check_settings(tmp_path, first)
    check_settings(tmp_path, first)
    with pytest.raises(SystemExit, match=r"sft_steps 600, not 150\. Name another --out"):
        check_settings(tmp_path, {**first, "sft_steps": "150"})
    assert json.loads((tmp_path / "settings.json").read_text()) == first


def test_a_training_that_is_there_is_not_done_again(chain: Chain, ran: list[list[str]]) -> None:
    chain.sft()
    assert chain.sft() == chain.out / "sft"
    assert len(ran) == 1
    assert ran[0][0] == "train" and ran[0][1].endswith("smollm2_sft.yaml")
    assert "--resume_from_checkpoint" not in ran[0]


def test_a_training_that_was_stopped_goes_on_from_its_checkpoint(chain: Chain, ran: list[list[str]]) -> None:
    (chain.out / "grpo-1" / "checkpoint-20").mkdir(parents=True)
    chain.grpo("grpo-1", chain.out / "sft", "--seed", "1")
    assert ran[0][-2:] == ["--resume_from_checkpoint", "true"]


def test_one_that_was_stopped_before_a_checkpoint_begins_anew(chain: Chain, ran: list[list[str]]) -> None:
    (chain.out / "sft").mkdir()
    (chain.out / "sft" / "run.json").touch()
    chain.sft()
    assert not (chain.out / "sft" / "run.json").exists()
    assert "--resume_from_checkpoint" not in ran[0]


def test_standard_tasks_that_have_their_sql_are_demonstrated(tmp_path: Path, ran: list[list[str]]) -> None:
    """As AgentBench has them: a change with its SQL, a question with its answer alone."""
    change = {
        "description": "Set b to 5 where a is 1.",
        "label": ["UPDATE t SET b = '5' WHERE a = '1'"],
        "type": ["UPDATE"],
        "answer_md5": "[('" + "0" * 32 + "',)]",
        "table": {
            "table_name": "t",
            "table_info": {
                "columns": [{"name": "a", "type": "TEXT"}, {"name": "b", "type": "TEXT"}],
                "rows": [],
            },
        },
    }
    question = {**change, "description": "How many?", "label": ["0"], "type": ["counting"]}
    (tmp_path / "standard.jsonl").write_text(f"{json.dumps(change)}\n{json.dumps(question)}\n")
    chain = Chain("a-model", tmp_path / "real", tmp_path, "sqlite", sft_steps=2)
    tasks = chain._demonstrations()
    assert len(tasks) == 2 * 8  # two updates of eight demonstrations
    assert [task.gold.sql for task in tasks if task.id.startswith("standard")] == change["label"]
    chain.sft()
    assert ran[0][ran[0].index("--max_steps") + 1] == "2"


def test_all_are_measured_within_the_same_limits(chain: Chain, ran: list[list[str]]) -> None:
    assert chain.measure("base", None) == {"held_out": [True, False]}
    assert chain.measure("sft", chain.out / "sft") == {"held_out": [True, False]}
    for command in ran:
        assert command[command.index("--max-turn-tokens") + 1] == "96"
    assert "--system-prompt" in ran[0] and "--system-prompt" not in ran[1]  # the run's own
    chain.measure("sft", chain.out / "sft")
    assert len(ran) == 2


def test_an_evaluation_that_was_stopped_goes_on(chain: Chain, ran: list[list[str]]) -> None:
    """`eval` knows whether there is something to go on with."""
    chain.measure("base", None)
    chain.measure("sft", chain.out / "sft")
    assert ["--resume" in command for command in ran] == [True, True]


def test_the_control_deals_out_the_rewards_of_the_batch(sqlite_database: Database) -> None:
    """Found by its file, as the chain names it: the training's folder is another."""
    shuffled = f"{Path(real_model.__file__).resolve()}:shuffled_outcome"
    (reward,) = RewardArguments(reward_funcs=[shuffled]).load(sqlite_database)
    task = Task("t", "?", (), "SELECT", Gold(answer=("1",)))
    right = Episode(task, [], Sampling(), status=Status.ANSWERED, verdict=Verdict(True))
    wrong = Episode(task, [], Sampling(), status=Status.ANSWERED, verdict=Verdict(False))
    dealt = reward(episode=[right, *[wrong] * 7], trainer_state=SimpleNamespace(global_step=1))
    assert sorted(dealt) == [-0.1] * 7 + [1.0]


def test_a_line_of_the_table() -> None:
    """3 of 4 against 1 of 4: two won, none lost, by McNemar's exact test p = 0.5."""
    now: dict[str, Any] = {"held_out": [True, True, True, False]}
    before = {"held_out": [True, False, False, False]}
    assert line_of("sft", now, before).split() == [
        *("sft", "75.0", "%", "[30.1,", "95.4]", "+2", "-0", "p=0.5"),
    ]
