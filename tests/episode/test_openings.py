"""What stands before a question: system prompts that replace or come first, and messages from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from databases import table

from trl_dbbench.cli.arguments import TaskArguments, read_system_prompt
from trl_dbbench.episode.prompts import TEXT_SYSTEM_PROMPT
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.conversations import protocol_of
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Gold, Task

TASK = Task("1", "How many?", (table("pets", "name", ("Rex",)),), "SELECT", Gold(((1,),)))
QUESTION = {"role": "user", "content": TASK.prompt()}
LIFELONG = {
    "0": {"role": "user", "content": "I will ask you a question."},
    "1": {"role": "agent", "content": "Ok."},
}
PRELUDE = [{"role": "user", "content": "I will ask you a question."}, {"role": "assistant", "content": "Ok."}]


def prompt(tmp_path: Path, messages: Any = None, **settings: Any) -> list[dict[str, str]]:
    """The prompt that a training on the task has with these settings."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(TASK.to_json() + "\n")
    if messages is not None:
        settings["prelude"] = str(tmp_path / "prelude.json")
        Path(settings["prelude"]).write_text(json.dumps(messages))
    train, _ = TaskArguments(str(tasks), **settings).datasets("text")
    return train[0]["prompt"]


def test_a_system_prompt_replaces_the_protocols_or_comes_first(tmp_path: Path) -> None:
    replaced = prompt(tmp_path, system_prompt="Be quick.")
    assert replaced == [{"role": "system", "content": "Be quick."}, QUESTION]
    both = prompt(tmp_path, system_prompt="Be quick.", system_prompt_mode="prepend")
    assert both == [{"role": "system", "content": f"Be quick.\n\n{TEXT_SYSTEM_PROMPT}"}, QUESTION]


@pytest.mark.parametrize("messages", [LIFELONG, PRELUDE])
def test_a_prelude_stands_between_system_prompt_and_question(tmp_path: Path, messages: Any) -> None:
    own = {"role": "system", "content": TEXT_SYSTEM_PROMPT}
    assert prompt(tmp_path, messages) == [own, *PRELUDE, QUESTION]
    short = {"role": "system", "content": "Be quick."}
    assert prompt(tmp_path, messages, system_prompt="Be quick.") == [short, *PRELUDE, QUESTION]
    assert prompt(tmp_path, [short, *PRELUDE]) == [short, *PRELUDE, QUESTION]


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"system_prompt": "Be quick.", "system_prompt_mode": "prepend"}, "system_prompt_mode"),
        ({}, "prelude"),
    ],
)
def test_tasks_whose_answers_have_different_forms_share_no_prompt_of_the_protocol(
    tmp_path: Path, settings: dict[str, str], name: str, held_out: bool
) -> None:
    """The first task's example answer would be shown to all."""
    (tmp_path / "prelude.json").write_text(json.dumps(PRELUDE))
    settings |= {"prelude": str(tmp_path / "prelude.json")} if name == "prelude" else {}
    other = replace(TASK, id="2", grader="agentbench_text").to_json()
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(f"{replace(TASK, grader='lifelong').to_json()}\n" + ("" if held_out else f"{other}\n"))
    if held_out:
        settings["eval_tasks"] = str(tmp_path / "held_out.jsonl")
        Path(settings["eval_tasks"]).write_text(f"{other}\n")
    with pytest.raises(ConfigError, match=rf"^{name}.* these tasks have 2 of them: their graders"):
        TaskArguments(str(tasks), **settings).datasets("text")
    TaskArguments(str(tasks), **settings).datasets("text", "lifelong")
    TaskArguments(
        str(tasks), **{**settings, "system_prompt": "Be quick.", "system_prompt_mode": "replace"}
    ).datasets("text")


def test_the_prompt_asks_for_what_the_runs_grader_reads(tmp_path: Path) -> None:
    """In the dataset of a training, and in an evaluation of its run."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(TASK.to_json() + "\n")
    train, _ = TaskArguments(str(tasks)).datasets("text", "agentbench_text")
    assert "Final Answer: ['pear', 'plum']" in train[0]["prompt"][0]["content"]
    settings = RunSettings("text", 800, 3, grader="agentbench_text")
    assert protocol_of(settings).messages(TASK) == train[0]["prompt"]


def test_messages_as_a_system_prompt_are_all_that_stands_there(tmp_path: Path) -> None:
    """Which an evaluation takes, too: `--system-prompt opening.json`."""
    path = tmp_path / "opening.json"
    path.write_text(json.dumps(LIFELONG))
    assert prompt(tmp_path, system_prompt=str(path)) == [*PRELUDE, QUESTION]
    assert read_system_prompt(str(path)) == PRELUDE


def test_a_byte_order_mark_is_not_part_of_a_prompt(tmp_path: Path) -> None:
    """Windows' editors write it."""
    path = tmp_path / "prompt.txt"
    path.write_text("Work on it.", encoding="utf-8-sig")
    assert read_system_prompt(str(path)) == "Work on it."


@pytest.mark.parametrize(
    ("prelude", "settings", "message"),
    [
        (
            PRELUDE[:1],
            {},
            "have the roles user; after at most one of the system, user and assistant must take turns",
        ),
        ([], {}, "have the roles none"),
        ([{"role": "bot", "content": "Ok."}], {}, r"cannot be read \(KeyError: 'bot'\)"),
        ([{"role": "user", "content": 3}], {}, "the content 3 is not text"),
        ([{"role": "user", "content": "\ud83d"}], {}, "UnicodeEncodeError: .* surrogates not allowed"),
        ({"first": {}}, {}, "an object of such by number"),
        (
            [{"role": "system", "content": "a"}, *PRELUDE],
            {"system_prompt": "b"},
            "both system_prompt and the prelude",
        ),
        (None, {"prelude": "nowhere.json"}, "FileNotFoundError"),
        (None, {"system_prompt_mode": "prepend"}, "prepend needs a text as system_prompt"),
        (
            None,
            {"system_prompt_mode": "append"},
            "unknown system_prompt_mode 'append'; allowed: replace, prepend",
        ),
    ],
)
def test_openings_that_cannot_be(
    tmp_path: Path, prelude: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prompt(tmp_path, prelude, **settings)
