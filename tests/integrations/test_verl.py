"""verl on the parquet that `trl-dbbench convert` writes: our tools in its own agent loop and our reward function in
its own reward manager, in the Python of `TRL_DBBENCH_VERL` (`.ci/trainer-venv` makes it).

What is right and what it is worth is what our own player says of the same turns.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from apart import in_python_of
from fakes import RULES, play_script
from launching import ROOT
from mcp_agents import ENVIRONMENT
from test_rollout import call
from transformers import PreTrainedTokenizerBase

from trl_dbbench import OutcomeReward
from trl_dbbench.data.convert import convert
from trl_dbbench.database import Database
from trl_dbbench.episode.protocol import Answer, Operation, get_protocol
from trl_dbbench.episode.types import Episode
from trl_dbbench.errors import ConfigError, EnvironmentFault
from trl_dbbench.integrations.verl.reward import compute_score, failed
from trl_dbbench.tasks import Task, load_tasks

PAGE = ROOT / "docs" / "integrations.md"
Calls = list[tuple[str, dict[str, Any]]]


def trajectory(task: Task, number: int) -> Calls:
    """Calls of one of five kinds; the first two are as they should be."""
    values = [
        str(value) for row in task.gold.answer or () for value in (row if isinstance(row, tuple) else (row,))
    ]
    look = ("execute_sql", {"query": task.gold.sql})
    answer = ("commit_final_answer", {"answers": values})
    return [
        [look, answer],
        [("execute_sql", {"query": "SELECT"}), look, answer],
        [("commit_final_answer", {"answers": ["no idea"]})],
        [look, look, look],
        [("execute_sql", {"sql": "SELECT 1"}), look],
    ][number % 5]


def with_us(
    task: Task, calls: Calls, tokenizer: PreTrainedTokenizerBase, database: Database, protocol: str = "tools"
) -> Episode:
    """The same calls in our own player; a model that makes no more calls gives up."""
    turns = [call(name, **arguments) for name, arguments in calls]
    return play_script(task, [*turns, *["I give up."] * 3], tokenizer, database, protocol, RULES)


def test_200_trajectories_of_verls_agent_loop(
    tokenizer: PreTrainedTokenizerBase, sqlite_database: Database, tmp_path: Path
) -> None:
    convert(ROOT / "recipes" / "tiny" / "test.jsonl", tmp_path / "tasks.parquet", protocol="tools")
    tasks = load_tasks(tmp_path / "tasks.parquet")
    assert len(tasks) == 200 and {"SELECT", "INSERT", "UPDATE", "DELETE"} == {
        each.operation for each in tasks
    }
    _, tools = yaml_blocks()
    (tmp_path / "tools.yaml").write_text(re.sub(r'database: ".*?"', "database: sqlite", tools))
    calls = [trajectory(task, number) for number, task in enumerate(tasks)]
    asked = {"parquet": str(tmp_path / "tasks.parquet"), "tools": str(tmp_path / "tools.yaml")}
    *played, left = with_verl(asked | {"database": "sqlite", "calls": calls, "cache": str(tmp_path)})
    ours = [with_us(*each, tokenizer, sqlite_database) for each in zip(tasks, calls, strict=True)]
    assert [each.get("score") for each in played] == OutcomeReward()(ours)
    assert [each["acc"] for each in played] == [float(each.right) for each in ours]
    assert {1.0, -1.0, -0.8} == {each["score"] for each in played}, "all three ways to end were seen"
    for each, episode in zip(played, ours, strict=True):
        seen = [turn.observation for turn in episode.turns if turn.observation is not None]
        assert each["texts"][:-1] == seen[: len(each["texts"]) - 1], "the model reads what it reads with us"
    assert left == {"open": 0}, "verl has let go of all trajectories"


def test_arguments_that_are_no_object_are_read_as_our_protocol_reads_them(
    late_orders: Task, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text(late_orders.to_json() + "\n")
    convert(tmp_path / "tasks.jsonl", tmp_path / "tasks.parquet", protocol="tools")
    (tmp_path / "tools.yaml").write_text(re.sub(r'database: ".*?"', "database: sqlite", yaml_blocks()[1]))
    given = ['{"query": "SELECT 1"}', "SELECT 1", None]  # the first was encoded twice
    asked = {"parquet": str(tmp_path / "tasks.parquet"), "tools": str(tmp_path / "tools.yaml")}
    asked |= {"database": "sqlite", "cache": str(tmp_path)}
    played, left = with_verl(asked | {"calls": [[("execute_sql", each) for each in given]]})
    refused = "Error: the arguments of a tool call must be a JSON object."
    assert played["texts"] == ["[(1,)]", refused, "No call is left. The session is over."]
    assert (played["score"], left) == (-0.8, {"open": 0}), "a fault would end the training"


@pytest.mark.slow
def test_200_answers_without_a_tool(tokenizer: PreTrainedTokenizerBase, sqlite_database: Database) -> None:
    """Answers of one turn, which the reward function executes itself. It needs nothing of verl."""
    write, seen = get_protocol("text_sql").write, set()
    for number, task in enumerate(load_tasks(ROOT / "recipes" / "tiny_sql" / "test.jsonl")):
        sql = str(task.gold.sql) if number % 2 else "SELECT 'no idea'"
        text = str([write(Answer(sql)), write(Operation(sql)), "I give up."][number % 3])
        info = {"task": task.to_json()}
        scored = compute_score("trl_dbbench", text, "", info, database="sqlite", protocol="text_sql")
        ours = play_script(task, [text], tokenizer, sqlite_database, "text_sql", replace(RULES, max_turns=1))
        (worth,) = OutcomeReward()([ours])
        assert scored == {"score": worth, "acc": float(ours.right), "void": 0.0}, task.id
        seen.add(worth)
    assert number == 199 and seen == {1.0, -1.0, -0.8, -0.2}, "all four ways to end were seen"


def test_the_row_says_what_protocol_its_prompt_is_of(late_orders: Task, tmp_path: Path) -> None:
    """So single-turn training needs no `protocol` in its configuration."""
    (tmp_path / "tasks.jsonl").write_text(late_orders.to_json() + "\n")
    convert(tmp_path / "tasks.jsonl", tmp_path / "tasks.parquet", protocol="text_sql")
    (row,) = pq.read_table(tmp_path / "tasks.parquet").to_pylist()
    right = get_protocol("text_sql").write(Answer(str(late_orders.gold.sql)))
    scored = compute_score("trl_dbbench", right, "", row["extra_info"], database="sqlite")
    assert scored == {"score": 1.0, "acc": 1.0, "void": 0.0}


def test_settings_that_it_does_not_have(late_orders: Task) -> None:
    info = {"task": late_orders.to_json()}
    compute_score("trl_dbbench", "", "", info, database="sqlite", reward_router_address="of verl")
    with pytest.raises(TypeError, match=r"compute_score\(\) got an unexpected keyword argument 'wrongg'"):
        compute_score("trl_dbbench", "", "", info, database="sqlite", wrongg=-9)


def test_an_answer_that_nobody_can_judge(late_orders: Task) -> None:
    info = {"task": replace(late_orders, grader="bird_ex").to_json(), "protocol": "text"}
    with pytest.raises(ConfigError, match="bird_ex"):
        compute_score("trl_dbbench", "Action: Answer", "", info, database="sqlite")


def with_verl(asked: dict[str, Any]) -> list[dict[str, Any]]:
    words = in_python_of("verl", ROOT / "tests" / "verl_agent.py")
    done = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def yaml_blocks() -> list[str]:
    """What the page tells to write into verl's configuration: the reward function, and the tools."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## verl\n")[2]
    return re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)


# --- the reward function ----------------------------------------------------------------------------------


def test_an_episode_whose_database_failed(late_orders: Task) -> None:
    """No number is right for it; who wants one all the same names it."""
    info = {"task": late_orders.to_json(), "dbbench": failed("2013: lost connection")}
    with pytest.raises(
        EnvironmentFault, match=r"2013: lost connection \(reward_kwargs.fault: 0\.0 would go on"
    ):
        compute_score("trl_dbbench", "", "", info)
    assert compute_score("trl_dbbench", "", "", info, fault=0.0) == {"score": 0.0, "acc": 0.0, "void": 1.0}


def test_values_of_its_own(late_orders: Task) -> None:
    info = {"task": late_orders.to_json(), "dbbench": {"status": "answered", "right": False, "fault": None}}
    assert compute_score("trl_dbbench", "", "", info, wrong=-0.1) == {"score": -0.1, "acc": 0.0, "void": 0.0}


def test_rows_of_others_and_no_database(late_orders: Task) -> None:
    with pytest.raises(
        ConfigError, match="is for rows of `trl-dbbench convert`; this one is of 'openai/gsm8k'"
    ):
        compute_score("openai/gsm8k", "", "", {})
    with pytest.raises(ConfigError, match="name the database, in reward_kwargs and in the tools' config"):
        compute_score("trl_dbbench", "I give up.", "", {"task": late_orders.to_json()})
