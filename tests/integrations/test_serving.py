"""Tasks served to MCP clients: the official SDK's client plays them, over standard input and output and over HTTP,
in both versions of the protocol: with the handshake ("legacy") and without ("2026-07-28")."""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pymysql
import pytest
from databases import connect_arguments, owned, processes
from launching import ROOT
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_agents import (
    CHANGE,
    DEMO,
    ENVIRONMENT,
    MEDALS,
    NEWEST,
    QUESTION,
    TOKEN,
    Agent,
    command,
    http_server,
    stdio,
)
from required import lacking
from test_docs import COMMANDS
from waiting import wait_until

from trl_dbbench.cli import main
from trl_dbbench.database import Database, open_database
from trl_dbbench.database.server.local import start_local
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer, get_protocol
from trl_dbbench.episode.types import Episode, Rules, Sampling
from trl_dbbench.errors import ConfigError, DatabaseError, StorageError
from trl_dbbench.evaluation.report.run import read_run
from trl_dbbench.integrations.serving.desk import Desk
from trl_dbbench.integrations.serving.folder import Folder
from trl_dbbench.integrations.serving.http import Address
from trl_dbbench.integrations.serving.mcp import Tools
from trl_dbbench.runs.records import EpisodeRecord
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Gold, Task, load_tasks

PAGE = ROOT / "docs" / "integrations.md"
TWENTY = load_tasks(DEMO)[-20:]  # questions, insertions, updates, deletions
MODES = ("legacy", NEWEST)
BOTH = [MODES[1], pytest.param(MODES[0], marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a MariaDB or MySQL server that is not the served one's own."""
    try:
        server = start_local()
    except DatabaseError as error:
        lacking("local", f"no 'local' database here: {error}")
    yield server.url
    server.stop()


def saved(folder: Path) -> list[EpisodeRecord]:
    return read_run(folder).episodes


# --- twenty tasks -----------------------------------------------------------------------------------------


def check_saved(folder: Path, url: str) -> None:
    """All were played, every other one rightly, and are judged as our own judge does on the same statements."""
    episodes = {episode["task_id"]: episode for episode in saved(folder)}
    assert len(saved(folder)) == len(episodes) == len(TWENTY)
    with open_database(url) as database:
        judge = Judge(database)
        for number, task in enumerate(TWENTY):
            episode = episodes[task.id]
            sql, answer = episode["turns"]
            assert (sql["action"], answer["action"], episode["status"]) == ("operation", "answer", "answered")
            with database.sandbox(task) as sandbox:
                sandbox.execute(sql["sql"])
                values = json.loads(answer["text"].removeprefix("<tool_call>").removesuffix("</tool_call>"))
                given = Answer(answer["answer"], tuple(values["arguments"]["answers"]))
                verdict = judge(task, given, sandbox, "agentbench_fc")
            assert episode["right"] is verdict.right is (number % 2 == 0), task.id


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_twenty_tasks_over_stdio(url: str, tmp_path: Path, mode: str) -> None:
    async def play() -> None:
        async with stdio("--database", url, "--save", tmp_path / "saved", mode=mode) as client:
            assert client.protocol_version == {"legacy": "2025-11-25"}.get(mode, mode)
            agent = Agent(client)
            for number, task in enumerate(TWENTY):
                assert await agent.play(task, right=number % 2 == 0) == "The answer is recorded."

    before = owned(url)
    asyncio.run(play())
    assert owned(url) == before
    check_saved(tmp_path / "saved", url)


@pytest.mark.slow
def test_twenty_tasks_over_http_by_five_clients_side_by_side(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "saved"

    async def play(first: int) -> None:
        async with Client(address, mode=MODES[first % 2]) as client:
            for number in range(first, len(TWENTY), 5):
                right = number % 2 == 0
                said = await Agent(client).play(TWENTY[number], right=right)
                assert said == f"The answer is recorded. It is {'right' if right else 'wrong'}."

    async def play_all() -> None:
        await asyncio.gather(*map(play, range(5)))

    before = owned(url)
    with http_server("--database", url, "--save", folder, "--tell") as (_, address):
        asyncio.run(play_all())
    assert owned(url) == before
    check_saved(folder, url)
    _is_read_by_the_other_commands(folder, capsys)


def _is_read_by_the_other_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("report", folder, "--no-figures")
    assert "20 episodes" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        _run("replay", folder, "--database", "sqlite")
    assert "20 of 20 episodes came out equal" in capsys.readouterr().out
    _run("export", folder, "--to", "kto", "--phases", "eval")
    rows = [json.loads(line) for line in (folder / "kto.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows].count(True) == 10
    roles = [message["role"] for message in rows[0]["completion"]]
    assert roles == ["assistant", "tool", "assistant"]  # with the observation that the agent read


def _run(*words: object) -> None:
    """A command, in this process."""
    argv, sys.argv = sys.argv, ["trl-dbbench", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        if end.code or words[0] == "replay":
            raise SystemExit(str(end.code)) from None
    finally:
        sys.argv = argv


# --- isolation --------------------------------------------------------------------------------------------


def test_episodes_of_one_task_do_not_see_each_other(url: str) -> None:
    async def play() -> None:
        async with Client(address) as one, Client(address, mode="legacy") as other:
            first, second = Agent(one), Agent(other)
            mine, yours = [(await agent.start("orders-insert"))["episode"] for agent in (first, second)]
            assert await first.sql(mine, "DROP TABLE orders") == "[]"
            assert await second.sql(yours, "SELECT COUNT(*) FROM orders") == "[(8,)]"
            assert "doesn't exist" in await first.sql(mine, "SELECT COUNT(*) FROM orders")
            assert "denied" in await second.sql(yours, "SELECT * FROM mysql.user")

    with http_server("--database", url) as (_, address):
        asyncio.run(play())


# --- clients that are killed ------------------------------------------------------------------------------

KILLED = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters

async def main(where, mode):
    where = where if isinstance(where, str) else StdioServerParameters(command=where[0], args=where[1:])
    async with Client(where, mode=mode) as client:
        for wait in (0, 2):
            task = await client.call_tool("start_task", {"task_id": "orders-insert"})
            episode = task.structured_content["episode"]
            sql = "DELETE FROM orders" if not wait else f"SELECT SLEEP({wait})"
            print("calls", flush=True)
            await client.call_tool("execute_sql", {"episode": episode, "sql": sql})

asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))
"""


def killed_in_a_statement(where: str | list[str], mode: str, folder: Path) -> None:
    """A client that is killed while its second episode's statement runs."""
    client = subprocess.Popen(
        [sys.executable, "-c", KILLED, json.dumps(where), mode], stdout=subprocess.PIPE, env=ENVIRONMENT
    )
    assert client.stdout is not None
    assert client.stdout.readline() == client.stdout.readline() == b"calls\n"
    client.kill()
    client.wait()
    wait_until(lambda: (folder / "episodes.jsonl").read_text().count("\n") == 2)


@pytest.mark.parametrize("mode", BOTH)
def test_a_killed_client_of_stdio_leaves_nothing(url: str, tmp_path: Path, mode: str) -> None:
    folder, before = tmp_path / "saved", owned(url)
    pids = tmp_path / "pid"
    # a shell that says who the server is: its client is gone before anybody could ask
    words = ["sh", "-c", f'echo $$ > {pids}; exec "$0" "$@"', *command("--database", url, "--save", folder)]
    killed_in_a_statement(words, mode, folder)
    wait_until(lambda: not Path(f"/proc/{pids.read_text().strip()}").exists())
    assert owned(url) == before
    assert [(each["status"], each["right"]) for each in saved(folder)] == [("out_of_tokens", False)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", BOTH)
def test_a_killed_client_of_http_leaves_nothing(url: str, tmp_path: Path, mode: str) -> None:
    folder, before = tmp_path / "saved", owned(url)

    async def warm(address: str) -> None:
        async with Client(address, mode="2026-07-28") as client:
            one, two = [(await Agent(client).start("orders-insert"))["episode"] for _ in range(2)]
            for episode in (one, two):
                await Agent(client).sql(episode, "DELETE FROM orders")
                await Agent(client).submit(episode, "done")

    with http_server("--database", url, "--save", folder, "--idle-seconds", 0.5) as (process, address):
        asyncio.run(warm(address))  # connections that are kept for later episodes are there now
        (folder / "episodes.jsonl").write_text("")
        wait_until(lambda: not _sockets(process.pid, address))
        databases, descriptors = owned(url), _descriptors(process.pid)
        killed_in_a_statement(address, mode, folder)
        wait_until(lambda: _descriptors(process.pid) <= descriptors)
        assert owned(url) <= databases
        assert [(each["status"], each["right"]) for each in saved(folder)] == [("out_of_tokens", False)] * 2
    assert owned(url) == before


@pytest.mark.slow
@pytest.mark.parametrize("version", [None, "2026-07-28"])
def test_a_client_that_is_gone_in_the_middle_of_a_request_is_no_error(version: str | None) -> None:
    """`http_server` wants no traceback in the log."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if version is not None:
        headers |= {"MCP-Protocol-Version": version, "Mcp-Method": "tools/list"}
    with http_server() as (_, address):
        host, port = address.split("/")[2].split(":")
        lines = ["POST /mcp HTTP/1.1", f"Host: {host}:{port}", "Content-Length: 100"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n{").encode())
            time.sleep(0.5)
        time.sleep(0.5)
        assert asyncio.run(_tools(address)) == ["start_task", "execute_sql", "submit"], "others are served on"


async def _tools(address: str) -> list[str]:
    async with Client(address) as client:
        return [tool.name for tool in (await client.list_tools()).tools]


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _sockets(pid: int, address: str) -> bool:
    """Whether HTTP connections to the server are open."""
    port = f":{int(address.split(':')[2].split('/')[0]):04X} "
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[3] == "01" and port in line for line in lines)


# --- SIGTERM ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", BOTH)
def test_sigterm_lets_statements_end_and_leaves_nothing_over_http(
    url: str, tmp_path: Path, mode: str
) -> None:
    folder, before = tmp_path / "saved", owned(url)

    async def play() -> str:
        async with Client(address, mode=mode) as client:
            agent = Agent(client)
            idle, busy = [(await agent.start("orders-insert"))["episode"] for _ in range(2)]
            await agent.sql(idle, "DELETE FROM orders")
            # for longer than the server waits for its connections
            running = asyncio.create_task(agent.sql(busy, "SELECT SLEEP(4)"))
            await asyncio.to_thread(wait_until, lambda: _sleeps(url))
            process.send_signal(signal.SIGTERM)
            return await running

    with http_server("--database", url, "--save", folder) as (process, address):
        assert asyncio.run(play()) == "[(0,)]"
    assert owned(url) == before
    check_stopped(folder, turns=[1, 1])


def check_stopped(folder: Path, turns: list[int]) -> None:
    """What is saved of episodes that were open when the server was stopped. They count neither way."""
    episodes = saved(folder)
    assert [len(each["turns"]) for each in episodes] == turns
    assert {each["status"] for each in episodes} == {"environment_fault"}
    assert {each["fault"] for each in episodes} == {"the server was stopped before the episode ended"}


def _sleeps(url: str) -> bool:
    """Whether the statement runs."""
    with pymysql.connect(**connect_arguments(url)) as admin, admin.cursor() as cursor:
        return any("SLEEP" in str(process[7]) for process in processes(cursor))


def test_sigterm_ends_a_server_of_stdio_whose_client_stays(url: str, tmp_path: Path) -> None:
    folder, before = tmp_path / "saved", owned(url)
    process = subprocess.Popen(
        command("--database", url, "--save", folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdin is not None and process.stdout is not None

    def send(method: str, params: dict[str, Any], **more: Any) -> None:
        line = {"jsonrpc": "2.0", "method": method, "params": params, **more}
        process.stdin.write(json.dumps(line).encode() + b"\n")
        process.stdin.flush()

    def reply() -> dict[str, Any]:
        return json.loads(process.stdout.readline())["result"]

    client = {"name": "by hand", "version": "1"}
    send("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}, id=1)
    assert reply()["serverInfo"]["name"] == "trl-dbbench"
    send("notifications/initialized", {})
    send("tools/call", {"name": "start_task", "arguments": {}}, id=2)
    episode = reply()["structuredContent"]["episode"]
    arguments = {"episode": episode, "sql": "SELECT SLEEP(2)"}
    send("tools/call", {"name": "execute_sql", "arguments": arguments}, id=3)
    wait_until(lambda: _sleeps(url))
    process.send_signal(signal.SIGTERM)
    assert reply()["content"][0]["text"] == "[(0,)]"
    assert process.wait(60) == 0
    assert owned(url) == before
    check_stopped(folder, turns=[1])
    assert saved(folder)[0]["endpoint"] == "by hand 1 (MCP)"
    process.stdin.close()
    process.stdout.close()


# --- what an agent is told --------------------------------------------------------------------------------


@asynccontextmanager
async def agent_of(
    database: Database, tasks: list[Task], tell: bool = False, **more: Any
) -> AsyncIterator[Agent]:
    """An agent whose server is in this process."""
    protocol = get_protocol(more.pop("protocol", "tools"))
    options = {"rules": Rules(3), "idle_seconds": 60.0} | more
    desk = Desk(tasks, database, Judge(database), protocol, **options)
    async with Client(Tools(desk, tell=tell).server()) as client:
        yield Agent(client)
    await desk.close()


def test_an_episode_as_the_agent_reads_it(sqlite_database: Database) -> None:
    async def play() -> None:
        async with agent_of(sqlite_database, [QUESTION, CHANGE]) as agent:
            task = await agent.start()
            assert task.pop("episode")
            assert task == {
                "task_id": "how-many",
                "request": "How many has Peru?\nThe table is named medals and has these columns: nation, gold",
                "database": "MySQL",
                "calls": "3 of execute_sql and submit together",
            }
            assert (await agent.start())["task_id"] == "one-more"
            assert await agent.call("start_task") == (
                False,
                "All tasks have been handed out. By its task_id one can be had again.",
            )
            episode = (await agent.start("how-many"))["episode"]
            assert await agent.call("execute_sql", episode=episode, sql="SELECT gold FROM medals") == (
                True,
                "[(1,), (22,)]",
            )
            assert await agent.call("execute_sql", episode=episode, sql="SELECT silver FROM medals") == (
                False,
                "1054 (42S22): Unknown column 'silver' in 'field list'",
            )
            assert await agent.call("submit", episode=episode, answer=["22"]) == (
                True,
                "The answer is recorded.",
            )

    asyncio.run(play())


def test_arguments_as_some_clients_send_them(sqlite_database: Database) -> None:
    """`null` for what is left out, and a list as JSON text."""

    async def play() -> None:
        async with agent_of(sqlite_database, [QUESTION], tell=True) as agent:
            begun, task = await agent.call("start_task", task_id=None)
            assert begun, task
            episode = json.loads(task)["episode"]
            assert await agent.call("execute_sql", episode=episode, sql=None) == (
                False,
                "execute_sql needs sql.",
            )
            assert await agent.call("submit", episode=episode, answer='["22"]') == (
                True,
                "The answer is recorded. It is right.",
            )

    asyncio.run(play())


WRONG = {
    "a task that is not there": (
        "start_task",
        {"task_id": "how-may"},
        "There is no task 'how-may'; nearest: 'how-many'. Leave task_id out to get the next one.",
    ),
    "a statement before the start": (
        "execute_sql",
        {"episode": "e1", "sql": "SELECT 1"},
        "There is no episode 'e1'. Begin one, which gives its name.",
    ),
    "a statement too long": (
        "execute_sql",
        {"episode": "EPISODE", "sql": "x" * 65_537},
        "execute_sql: sql has 65,537 characters; 65,536 are allowed. Nothing was executed: call again with a shorter one.",
    ),
    "no statement": ("execute_sql", {"episode": "EPISODE"}, "execute_sql needs sql."),
    "another argument": (
        "execute_sql",
        {"episode": "EPISODE", "sql": "SELECT 1", "limit": 3},
        "execute_sql knows no 'limit'; it takes episode and sql.",
    ),
    "a number": ("execute_sql", {"episode": "EPISODE", "sql": 1}, "execute_sql: sql must be a string, is 1."),
    "an answer that is not a list": (
        "submit",
        {"episode": "EPISODE", "answer": "22"},
        'submit: answer must be a list of strings, is "22".',
    ),
    "a tool that is not there": (
        "query",
        {},
        "There is no tool 'query'; there are start_task, execute_sql, submit.",
    ),
}


@pytest.mark.parametrize(("tool", "arguments", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_is_told_and_is_no_turn(
    sqlite_database: Database, tmp_path: Path, tool: str, arguments: dict[str, Any], told: str
) -> None:
    async def play() -> None:
        async with agent_of(sqlite_database, [QUESTION], folder=folder) as agent:
            episode = (await agent.start())["episode"]
            given = {key: episode if value == "EPISODE" else value for key, value in arguments.items()}
            assert await agent.call(tool, **given) == (False, told)
            await agent.submit(episode, "22")

    folder = Folder(tmp_path / "saved", RunSettings("tools", 800, 3))
    asyncio.run(play())
    (played,) = saved(tmp_path / "saved")
    assert played["right"] and len(played["turns"]) == 1


def test_nothing_more_can_be_done_in_an_episode_that_has_ended(
    sqlite_database: Database, tmp_path: Path
) -> None:
    async def play() -> None:
        folder = Folder(tmp_path / "saved", RunSettings("tools", 800, 2))
        async with agent_of(sqlite_database, [QUESTION], folder=folder, tell=True, rules=Rules(2)) as agent:
            episode = (await agent.start())["episode"]
            assert await agent.submit(episode, "21") == "The answer is recorded. It is wrong."
            again = (
                False,
                "This episode has ended: its answer was submitted. Begin another one.",
            )
            assert await agent.call("submit", episode=episode, answer=["22"]) == again
            assert await agent.call("execute_sql", episode=episode, sql="SELECT 1") == again
            episode = (await agent.start("how-many"))["episode"]
            await agent.sql(episode, "SELECT 1")
            assert "last call of this episode" in await agent.sql(episode, "SELECT 2")
            assert "no turn left" in await agent.submit(episode, "22")

    asyncio.run(play())
    assert [(each["status"], each["right"]) for each in saved(tmp_path / "saved")] == [
        ("answered", False),
        ("turn_limit", False),
    ]


def test_calls_that_come_at_once_are_turns_one_after_another(sqlite_database: Database) -> None:
    async def play() -> None:
        async with agent_of(sqlite_database, [CHANGE], rules=Rules(10)) as agent:
            episode = (await agent.start())["episode"]
            more = agent.sql(episode, "UPDATE medals SET gold = gold + 1")
            calls = [more, *(agent.sql(episode, "SELECT SUM(gold) FROM medals") for _ in range(3))]
            assert await asyncio.gather(*calls) == ["[]", *["[(25,)]"] * 3]

    asyncio.run(play())


def test_no_more_episodes_are_open_than_the_limit(sqlite_database: Database) -> None:
    async def play() -> None:
        async with agent_of(sqlite_database, [QUESTION], most_open=1) as agent:
            episode = (await agent.start("how-many"))["episode"]
            assert await agent.call("start_task", task_id="how-many") == (
                False,
                "1 episodes are open, and no more are played at once. Submit one, or wait: one that is not used ends after 60 seconds.",
            )
            await agent.submit(episode, "22")
            await agent.start("how-many")

    asyncio.run(play())


def test_answers_that_are_sql(sqlite_database: Database) -> None:
    gold = Gold(sql="SELECT gold FROM medals WHERE nation = 'Peru'")
    task = Task("sql", "How many has Peru?", (MEDALS,), "SELECT", gold, grader="strict")

    async def play() -> None:
        async with agent_of(sqlite_database, [task], protocol="tools_sql", tell=True) as agent:
            for sql, verdict in (("SELECT 22", "right"), ("SELECT 21", "wrong")):
                episode = (await agent.start("sql"))["episode"]
                _, said = await agent.call("submit", episode=episode, answer=sql)
                assert said == f"The answer is recorded. It is {verdict}."

    asyncio.run(play())
    with pytest.raises(ConfigError, match="Set protocol: text_sql or tools_sql"):
        Desk([task], sqlite_database, Judge(sqlite_database), get_protocol("tools"), Rules(3), 60)


# --- the folder -------------------------------------------------------------------------------------------


def test_another_server_goes_on_in_the_folder(sqlite_database: Database, tmp_path: Path) -> None:
    """A task that has an episode there is not handed out again, unless it is asked for."""
    folder, settings = tmp_path / "saved", RunSettings("tools", 800, 3)

    async def play(expected: str) -> None:
        async with agent_of(sqlite_database, [QUESTION, CHANGE], folder=Folder(folder, settings)) as agent:
            task = await agent.start()
            assert task["task_id"] == expected
            await agent.submit(task["episode"], "22")

    asyncio.run(play("how-many"))
    with (folder / "episodes.jsonl").open("a") as file:
        file.write('{"phase": "ev')  # a server was killed
    asyncio.run(play("one-more"))
    assert [(each["task_id"], each["right"]) for each in saved(folder)] == [
        ("how-many", True),
        ("one-more", False),
    ]
    assert len(read_run(folder).tasks) == 2


def test_servers_add_to_a_folder_one_after_another(tmp_path: Path) -> None:
    """Each opens the folder for itself, as the servers of a client's windows do."""
    folders = [Folder(tmp_path / "saved", RunSettings("tools", 800, 3)) for _ in range(4)]
    lines = tmp_path / "saved" / "episodes.jsonl"
    with lines.open("a") as file, ThreadPoolExecutor(len(folders)) as threads:
        fcntl.flock(file, fcntl.LOCK_EX)  # another server writes
        for folder in folders:
            threads.submit(folder.add, Episode(QUESTION, [], Sampling()))
        file.write('{"phase": "eval", "step": 0, "task_id"')
        file.flush()
        time.sleep(0.5)
        file.write(': "others", "status": "answered", "turns": []}\n')
        file.flush()
        fcntl.flock(file, fcntl.LOCK_UN)
    assert [each["task_id"] for each in saved(tmp_path / "saved")] == ["others", *["how-many"] * 4]
    assert {task.digest for task in read_run(tmp_path / "saved").tasks} == {QUESTION.digest}


def test_what_a_full_disk_cut_short_spoils_no_later_episode(tmp_path: Path) -> None:
    """The server goes on: when there is room again, the next line is one of its own."""
    folder, episodes = Folder(tmp_path, RunSettings("tools", 800, 3)), tmp_path / "episodes.jsonl"
    folder.add(Episode(QUESTION, [], Sampling()))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (20, 200):
        resource.setrlimit(resource.RLIMIT_FSIZE, (episodes.stat().st_size + room, hard))
        try:
            with pytest.raises(StorageError, match="cannot be saved"):
                folder.add(Episode(CHANGE, [], Sampling()))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    folder.add(Episode(CHANGE, [], Sampling()))
    assert [each["task_id"] for each in saved(tmp_path)] == ["how-many", "one-more"]
    assert [task.id for task in read_run(tmp_path).tasks] == ["how-many", "one-more"]


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    Folder(tmp_path / "saved", RunSettings("tools", 800, 3))
    with pytest.raises(ConfigError, match=r"holds episodes of other settings: max_turns 3\. Give the same"):
        Folder(tmp_path / "saved", RunSettings("tools", 800, 4))
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds something else\. Name a new folder by --save"):
        Folder(tmp_path / "others", RunSettings("tools", 800, 3))
    assert [path.name for path in (tmp_path / "others").iterdir()] == ["notes.txt"]


def test_a_folder_that_another_server_is_about_to_begin(tmp_path: Path) -> None:
    """Two windows at once: the other process holds the lock, and has not written its settings yet."""
    (tmp_path / "episodes.jsonl").touch()
    Folder(tmp_path, RunSettings("tools", 800, 3))
    assert {path.name for path in tmp_path.iterdir()} == {"episodes.jsonl", "run.json", "tasks.jsonl"}


# --- who may connect --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_token_is_asked_for(mode: str) -> None:
    async def play(token: str) -> str:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(address, http_client=http), mode=mode) as client,
        ):
            return (await Agent(client).start())["task_id"]

    with http_server("--database", "sqlite", token=TOKEN) as (_, address):
        for wrong in ("", "another-token-of-it"):
            headers = {"Authorization": f"Bearer {wrong}"} if wrong else {}
            assert httpx2.post(address, headers=headers, json={}).status_code == 401
            with pytest.raises(BaseExceptionGroup):
                asyncio.run(play(wrong))
        assert asyncio.run(play(TOKEN)) == "orders-count-lamps"


def test_a_page_of_another_site_is_not_served() -> None:
    """A browser that shows it would send its requests from here."""
    with http_server("--database", "sqlite") as (_, address):
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        accept = {"Accept": "application/json, text/event-stream"}
        assert (
            httpx2.post(address, headers=accept | {"Origin": "http://evil.example"}, json=body).status_code
            == 403
        )
        assert httpx2.post(address, headers=accept | {"Host": "evil.example"}, json=body).status_code == 421


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8808", "127.0.0.1", 8808),
        (":8808", "127.0.0.1", 8808),
        ("[::1]:80", "::1", 80),
        ("localhost:0", "localhost", 0),
    ],
)
def test_an_address_of_this_machine_needs_no_token(text: str, host: str, port: int) -> None:
    assert Address.of(text, None) == Address(host, port, None)


@pytest.mark.parametrize(
    ("text", "token", "told"),
    [
        ("0.0.0.0:8808", None, "can be reached from other machines: set a token"),
        ("db.example:8808", None, "can be reached from other machines: set a token"),
        ("localhost", None, "must be HOST:PORT or PORT, as in 127.0.0.1:8808"),
        ("127.0.0.1:70000", None, "must be HOST:PORT or PORT"),
        ("0.0.0.0:8808", "short", "at least 16 characters"),
    ],
)
def test_an_address_that_is_refused(text: str, token: str | None, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Address.of(text, token)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--mcp", "--protocol", "text"], "--protocol text cannot be served; allowed: tools, tools_sql."),
        ([], "say how to serve: --mcp or --openenv."),
        (["--mcp", "--http", "0.0.0.0:8808"], "can be reached from other machines"),
        (["--mcp", "--token-env", "PATH"], "--token-env PATH is for --http. Clients would need no token."),
        (
            ["--mcp", "--http", "8808", "--token-env", "MY_TOKN"],
            "--token-env MY_TOKN names no environment variable that has a value.",
        ),
    ],
)
def test_options_that_are_refused(options: list[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRL_DBBENCH_MCP_TOKEN", raising=False)
    with pytest.raises(SystemExit, match=re.escape(told)):
        _run("serve", DEMO, "--database", "sqlite", *options)


# --- docs/integrations.md --------------------------------------------------------------------------------


def test_what_a_clients_configuration_names_is_a_server(tmp_path: Path) -> None:
    (block,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (config,) = json.loads(block)["mcpServers"].values()
    real = {"/path/to/tasks.jsonl": str(DEMO), "/path/to/episodes": str(tmp_path / "saved"), "auto": "sqlite"}
    assert config["command"] == "/path/to/.venv/bin/trl-dbbench"
    program = [sys.executable, "-m", "trl_dbbench"]
    words = [*program, *(real.get(word, word) for word in config["args"])]

    async def play() -> None:
        server = StdioServerParameters(command=words[0], args=words[1:], env=dict(ENVIRONMENT))
        async with Client(server) as client:
            assert await Agent(client).play(TWENTY[0], right=True) == "The answer is recorded."

    asyncio.run(play())
    assert [each["right"] for each in saved(tmp_path / "saved")] == [True]


@pytest.mark.slow
def test_the_lines_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")

    async def play(address: str) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(address, http_client=http)) as client,
        ):
            for right in (True, False):
                await Agent(client).play(TWENTY[0], right=right)

    served = []
    lines = [line for page, line in COMMANDS if page == PAGE.name and line.startswith("trl-dbbench")]
    for words in (shlex.split(line) for line in lines if "--openenv" not in line):
        if words[1] == "serve":
            place = words.index("--http") + 1
            served.append(words[place])
            options = [*words[4:place], words[place].replace("8808", "0"), *words[place + 1 :]]
            with http_server(*options, "--database", "sqlite", tasks=Path(words[3]), token=TOKEN) as (
                _,
                address,
            ):
                asyncio.run(play(address))
        else:
            with suppress(SystemExit):
                _run(*words[1:])
    assert served == ["8808", "0.0.0.0:8808"]
    said = capsys.readouterr().out
    assert "report.html: 4 episodes" in said
    assert "4 of 4 episodes came out equal" in said
    assert "kto.jsonl: 2 rows of 1 tasks" in said
