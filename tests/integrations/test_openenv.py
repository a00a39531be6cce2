"""Tasks served as an OpenEnv environment: OpenEnv's own client plays them, and its own validation looks at them.

Server and client run in the Python of `TRL_DBBENCH_OPENENV`, since what OpenEnv needs excludes what our MCP server
needs; `.ci/openenv-venv` makes it.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from apart import in_python_of
from databases import owned
from launching import ROOT
from mcp_agents import DEMO, ENVIRONMENT, TOKEN, figures, health, started
from test_serving import TWENTY, _is_read_by_the_other_commands, _run, _sleeps, check_saved, saved, url
from waiting import wait_until

from trl_dbbench.database import Database
from trl_dbbench.episode.types import Rules

__all__ = ["url"]  # a fixture


def served(*options: object, token: str = "") -> Any:
    words = in_python_of(
        "openenv", ROOT / "trl_dbbench" / "__main__.py", "serve", "--openenv", DEMO, *options
    )
    return started([*words, "--http", "0"], token)


@contextmanager
def agent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        in_python_of("openenv", ROOT / "tests" / "openenv_agent.py"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def tell(process: subprocess.Popen[str], do: str, **arguments: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"do": do} | arguments) + "\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture(scope="module")
def staying() -> Iterator[subprocess.Popen[str]]:
    """One agent for all that do not kill it."""
    with agent() as process:
        yield process


@pytest.fixture(scope="module")
def client(staying: subprocess.Popen[str]) -> Any:
    """Lets the agent do something, and gives what came of it."""

    def does(do: str, **arguments: Any) -> Any:
        tell(staying, do, **arguments)
        return json.loads(heard(staying))

    return does


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("openenv") / "saved"


@pytest.fixture(scope="module")
def before(url: str) -> int:
    """What stands on the database server that is not the served one's."""
    return owned(url)


@pytest.fixture(scope="module")
def server(url: str, before: int, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with served("--database", url, "--save", folder) as server:
        yield server
    assert owned(url) == before


@pytest.fixture(scope="module")
def address(server: tuple[subprocess.Popen[str], str]) -> str:
    return server[1]


# --- episodes ---------------------------------------------------------------------------------------------


def test_twenty_tasks_by_five_clients_side_by_side(
    client: Any, address: str, folder: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every other one is played rightly; the judge of `check_saved` is ours, on the same statements."""
    todo = []
    for number, task in enumerate(TWENTY):
        right = number % 2 == 0
        values = [str(value) for value in task.gold.answer or ()] if right else ["no idea"]
        todo.append([task.id, task.gold.sql if right else "SELECT 'no idea'", values])
    played = client("play", url=address, tasks=todo, clients=5)
    assert len(played) == 20
    by_id = {each["state"]["task_id"]: each for each in played}
    for number, task in enumerate(TWENTY):
        right = number % 2 == 0
        each = by_id[task.id]
        assert each["texts"][0] == task.prompt()
        assert each["texts"][2] == "The answer is recorded."
        turns = Rules.max_turns
        worth = 1.0 if right else -1.0
        assert each["told"] == [[None, False, turns], [0.0, False, turns - 1], [worth, True, turns - 2]]
        state = {"task_id": task.id, "step_count": 2, "status": "answered", "right": right}
        assert each["state"] == state
        assert each["metadata"] == {"status": "answered", "right": right}
    check_saved(folder, url)
    assert {json.loads(line)["rewards"]["outcome"] for line in (folder / "episodes.jsonl").open()} == {1, -1}
    _is_read_by_the_other_commands(folder, capsys)


@pytest.mark.parametrize(
    ("task_id", "answer", "reward"),
    [
        ("books-oldest-by-genre", ["('novel', 1885)", "('poetry', 1965)", "('science', 1962)"], 1.0),
        ("books-oldest-by-genre", [["novel", 1885], ["poetry", 1965], ["science", 1962]], 1.0),
        ("books-oldest-by-genre", [["novel", 1885], ["poetry", 1965], ["science", 1963]], -1.0),
        ("employees-above-average", [5], 1.0),
        ("employees-above-average", [[5]], 1.0),
        ("employees-above-average", [None], -1.0),
        ("loans-open", ["Aoife O'Neill", "Beatriz Gómez"], 1.0),
    ],
)
def test_rows_as_the_schema_wants_them_and_as_json(
    client: Any, address: str, task_id: str, answer: list[Any], reward: float
) -> None:
    ((_, came),) = client(
        "act", url=address, sessions=[[["reset", {"task_id": task_id}], ["step", {"answer": answer}]]]
    )
    assert came["reward"] == reward, came


def test_the_schema_says_how_rows_are_written(address: str) -> None:
    answer = httpx2.get(f"{address}/schema").json()["action"]["properties"]["answer"]
    assert "a row of several values as one string, such as ('pear', 2.5)" in answer["description"]
    assert {"type": "array", "items": {"type": "string", "maxLength": 65_536}, "maxItems": 65_536} in answer[
        "anyOf"
    ]


def test_sessions_of_one_task_do_not_see_each_other(client: Any, address: str) -> None:
    begin = ["reset", {"task_id": "orders-insert"}]
    count = ["step", {"sql": "SELECT COUNT(*) FROM orders"}]
    mine, yours = client(
        "act",
        url=address,
        sessions=[
            [begin, ["step", {"sql": "DROP TABLE orders"}], count],
            [begin, count, ["step", {"sql": "SELECT * FROM mysql.user"}]],
        ],
    )
    assert mine[1]["text"] == "[]" and "doesn't exist" in mine[2]["text"]
    assert yours[1]["text"] == "[(8,)]" and "denied" in yours[2]["text"]


def test_more_sessions_than_statements_at_once(client: Any, address: str) -> None:
    """A trainer opens one for each rollout of a batch, and steps through all of them side by side."""
    change = ["step", {"sql": "DELETE FROM orders WHERE id = 1"}]
    count = ["step", {"sql": "SELECT COUNT(*) FROM orders"}]
    session = [["reset", {"task_id": "orders-insert"}], change, count]
    came = client("act", url=address, sessions=[session] * 40)
    assert [each[2]["text"] for each in came] == ["[(7,)]"] * 40
    assert Database.statements_at_once == 32


def test_the_last_call_ends_an_episode(client: Any, address: str) -> None:
    """The limit on turns is one of training; what it is worth is what it is worth there."""
    (came,) = client(
        "act", url=address, sessions=[[["reset", {}], *[["step", {"sql": "SELECT 1"}]] * 4, ["state"]]]
    )
    assert [each["reward"] for each in came[:4]] == [None, 0.0, 0.0, -0.8]
    assert (came[3]["text"], came[3]["done"], came[3]["calls_left"]) == ("No call is left.", True, 0)
    assert came[4] == "Server error: No episode is open: call reset. (code: EXECUTION_ERROR)"
    assert (came[5]["status"], came[5]["right"], came[5]["step_count"]) == ("turn_limit", False, 3)


def test_a_task_is_chosen_by_id_by_place_or_by_seed(client: Any, address: str) -> None:
    tasks = [json.loads(line)["id"] for line in DEMO.open()]
    resets = [{"index": 3}, {"index": 3, "split": "train"}, {"seed": 7}, {"seed": 7}, {"seed": 8}]
    (came,) = client("act", url=address, sessions=[[["reset", each] for each in resets]])
    chosen = [each["task_id"] for each in came]
    assert chosen[:2] == [tasks[3]] * 2
    assert chosen[2] == chosen[3] != chosen[4]
    (named,) = client("act", url=address, sessions=[[["reset", {"episode_id": "mine"}], ["state"]]])
    assert named[1]["episode_id"] == "mine"


def test_tasks_are_listed_without_their_gold(address: str) -> None:
    def post(name: str, **body: Any) -> Any:
        return httpx2.post(f"{address}/trl_dbbench/{name}", json=body)

    assert httpx2.get(f"{address}/list_environments").json() == ["trl_dbbench"]
    assert httpx2.get(f"{address}/trl_dbbench/splits").json() == [{"name": "train", "type": "train"}]
    count = len(DEMO.read_text().splitlines())
    assert post("num_tasks", split="train").json() == {"num_tasks": count}
    task = post("task", split="train", index=0).json()["task"]
    assert task["id"] == "orders-count-lamps" and set(task) == {
        "index",
        "id",
        "request",
        "operation",
        "skills",
    }
    assert post("task_range", split="train", start=0, stop=1).json()["tasks"] == [task]
    assert len(post("tasks", split="train").json()["tasks"]) == count
    assert post("task", split="train", index=count).status_code == 400
    refused = post("num_tasks", split="test")
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "There is no split 'test'; all tasks are in 'train'.",
    )


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([["reset", {"task_id": "orders-count-lamp"}]], "There is no task 'orders-count-lamp'; nearest: 'orders-count-lamps'."),
        ([["reset", {"task": "x"}]], "reset knows no 'task'; it takes task_id, index (with or without split), seed and episode_id."),
        ([["reset", {"index": 1000}]], "There is no task 1000 in 'train'; it has 0 to "),
        ([["reset", {"index": 0, "task_id": "x"}]], "Name the task by task_id or by index, not by both."),
        ([["step", {"sql": "SELECT 1"}]], "No episode is open: call reset."),
        ([["reset", {}], ["step", {}]], "Invalid message (code: VALIDATION_ERROR)"),
        ([["reset", {}], ["step", {"sql": "SELECT 1", "answer": ["1"]}]], "Invalid message (code: VALIDATION_ERROR)"),
        ([["reset", {}], ["step", {"sql": "x" * 65_537}]], "Invalid message (code: VALIDATION_ERROR)"),
    ],
)  # fmt: skip
def test_what_is_refused_is_said_and_is_no_call(
    client: Any, address: str, steps: list[Any], told: str
) -> None:
    (came,) = client("act", url=address, sessions=[[*steps, ["reset", {}], ["step", {"sql": "SELECT 1"}]]])
    assert told in came[len(steps) - 1]
    assert came[-1]["text"] == "[(1,)]" and came[-1]["calls_left"] == Rules.max_turns - 1, (
        "the session goes on"
    )


# --- clients that are killed ------------------------------------------------------------------------------


def test_a_killed_client_leaves_nothing(client: Any, address: str, folder: Path, url: str) -> None:
    change = [["reset", {"task_id": "orders-insert"}], ["step", {"sql": "DELETE FROM orders"}]]
    client("act", url=address, sessions=[[*change, ["step", {"answer": ["done"]}]]] * 2)
    (folder / "episodes.jsonl").write_text("")
    kept = owned(url)  # for later episodes
    with agent() as process:
        tell(process, "ends_in_a_statement", url=address, seconds=1)
        assert heard(process) == "calls"
        wait_until(lambda: _sleeps(url))
    wait_until(lambda: (folder / "episodes.jsonl").read_text().count("\n") == 2)
    assert [(each["status"], each["right"]) for each in saved(folder)] == [("out_of_tokens", False)] * 2
    wait_until(lambda: health(address)[1]["episodes_open"] == 0)  # told of once it is written
    assert owned(url) <= kept


# --- the server ---------------------------------------------------------------------------------------------


def test_openenvs_own_validation_passes(client: Any, address: str) -> None:
    running, manifest, episode = client("validate", url=address, package=str(ROOT / "recipes" / "openenv"))
    assert running["passed"] and running["mode"] == "simulation", running
    assert running["summary"]["passed_count"] == running["summary"]["total_count"] == 6
    assert manifest == "pass"
    graded = ("reward_well_formed", "observation_schema", "state_contract")
    assert episode == {f"runtime.{each}": "pass" for each in graded}


def test_who_may_connect(client: Any) -> None:
    begin = [["reset", {"task_id": "orders-insert"}]]
    with served("--database", "sqlite", "--reward", "executes", token=TOKEN) as (_, address):
        assert health(address)[0] == 200
        assert (
            httpx2.get(f"{address}/metrics").status_code == httpx2.get(f"{address}/schema").status_code == 401
        )
        (came,) = client("act", url=address, sessions=[begin], headers={"Authorization": "Bearer another"})
        assert "HTTP 401" in came[0]
        mine = {"Authorization": f"Bearer {TOKEN}"}
        rewarded = [*begin, ["step", {"sql": "SELECT 1"}], ["step", {"answer": ["1"]}]]
        (came,) = client("act", url=address, sessions=[rewarded], headers=mine)
        assert came[-1]["reward"] == 1.0, "a reward that gives a value for each turn"
        read = figures(address, **mine)
        assert read["dbbench_call_seconds_count", "ok", "reset"] == 1
        assert read["dbbench_episodes_total", "False", "answered"] == 1


FAILING = """
from trl_dbbench.database.embedded.database import SQLiteDatabase
from trl_dbbench.errors import EnvironmentFault

class Failing(SQLiteDatabase):
    def fresh_sandbox(self, task):
        raise EnvironmentFault("2003: cannot connect", final=True)
"""


def test_a_fault_of_the_environment_is_counted_as_an_error(client: Any, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    steps = [["reset", {}], ["step", {"sql": "SELECT 1"}], ["step", {"sql": "SELECT 1"}]]
    with served("--database", f"{tmp_path / 'failing.py'}:Failing") as (_, address):
        (came,) = client("act", url=address, sessions=[steps])
        assert "The environment failed, and the episode has no reward: 2003: cannot connect" in came[1]
        assert "No episode is open" in came[2]
        read = figures(address)
    calls = {key[1:]: value for key, value in read.items() if key[0] == "dbbench_call_seconds_count"}
    assert calls == {("ok", "reset"): 1, ("error", "step"): 1}
    assert read["dbbench_episodes_total", "False", "environment_fault"] == 1


def test_a_page_of_another_site_is_not_served(address: str) -> None:
    for headers, code in (({"Origin": "http://evil.example"}, 403), ({"Host": "evil.example"}, 421)):
        assert httpx2.post(f"{address}/reset", headers=headers, json={}).status_code == code
    large = httpx2.post(f"{address}/step", content=b" " * (1024**2 + 1))
    assert large.status_code == 413


def test_the_example_of_the_page(client: Any, address: str) -> None:
    text = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    (code,) = (
        each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "GenericEnvClient" in each
    )
    printed = client("run", code=code.replace("http://127.0.0.1:8000", address))
    assert printed.endswith("\n[(2,)]\n1.0 True True\n"), printed


# --- in an environment that has not what it needs ------------------------------------------------------------


def test_the_extras_exclude_each_other() -> None:
    with pytest.raises(
        SystemExit, match=r"serve --openenv needs mcp 1, and mcp 2\.\d+\.\d+ is installed: the extras"
    ):
        _run("serve", DEMO, "--openenv", "--database", "sqlite")
    words = in_python_of(
        "openenv", ROOT / "trl_dbbench" / "__main__.py", "serve", "--mcp", DEMO, "--database", "sqlite"
    )
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode != 0
    assert "serve --mcp needs mcp 2.3 or later, and mcp 1." in done.stderr
    assert "pip install 'trl-dbbench[mcp]'" in done.stderr


# --- the end, after which the server is gone -------------------------------------------------------------------


def test_a_stopped_server_gives_no_reward(
    staying: subprocess.Popen[str],
    server: tuple[subprocess.Popen[str], str],
    folder: Path,
    url: str,
    before: int,
) -> None:
    """The statement that runs may end and is replied; the episode counts neither way."""
    process, address = server
    (folder / "episodes.jsonl").write_text("")
    tell(staying, "ends_in_a_statement", url=address, seconds=2)
    assert heard(staying) == "calls"
    wait_until(lambda: _sleeps(url))
    process.send_signal(signal.SIGTERM)
    assert json.loads(heard(staying))["text"] == "[(0,)]"
    assert process.wait(60) == 0
    assert [each["status"] for each in saved(folder)] == ["out_of_tokens", "environment_fault"]
    assert owned(url) == before
