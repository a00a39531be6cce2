"""`serve --mcp --http` as a service: what monitors read, how it is emptied, and that nothing a client sends or leaves
undone harms it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import httpx2
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp_agents import DEMO, TOKEN, Agent, figures, health, http_server, page
from required import lacking
from waiting import wait_until

from trl_dbbench.database.server.local import start_local
from trl_dbbench.errors import DatabaseError
from trl_dbbench.evaluation.report.run import read_run
from trl_dbbench.integrations.serving.http import MAX_REQUEST_BYTES

# --- monitors ---------------------------------------------------------------------------------------------


def test_what_monitors_read() -> None:
    async def play(address: str) -> None:
        async with Client(address) as client:
            agent = Agent(client)
            first, second, _ = [(await agent.start())["episode"] for _ in range(3)]
            await agent.sql(first, "SELECT 1")
            await agent.sql(first, "SELEC 1")
            await agent.submit(first, "no idea")
            await agent.sql("no such episode", "SELECT 1")
            await agent.submit(second, "no idea")

    with http_server("--database", "sqlite") as (_, address):
        begin = health(address)[1]["tasks_left"]
        asyncio.run(play(address))
        assert health(address) == (200, {"status": "healthy", "episodes_open": 1, "tasks_left": begin - 3})
        read = figures(address)
        assert read["dbbench_episodes_total", "False", "answered"] == 2
        assert read["dbbench_episodes_open",] == 1
        assert read["dbbench_tasks_left",] == begin - 3
        assert read["dbbench_database_up",] == 1
        calls = {key[1:]: value for key, value in read.items() if key[0] == "dbbench_call_seconds_count"}
        assert calls == {
            ("ok", "start_task"): 3,
            ("ok", "execute_sql"): 1,
            ("error", "execute_sql"): 1,
            ("refused", "execute_sql"): 1,
            ("ok", "submit"): 2,
        }
        assert read["process_open_fds",] > 0 and read["process_resident_memory_bytes",] > 0


def test_figures_are_for_who_has_the_token() -> None:
    with http_server("--database", "sqlite", token=TOKEN) as (_, address):
        assert health(address)[0] == 200
        assert page(address, "/metrics").status_code == 401
        assert page(address, "/metrics", Authorization="Bearer another-token-of-it").status_code == 401
        assert figures(address, Authorization=f"Bearer {TOKEN}")["dbbench_episodes_open",] == 0


@pytest.mark.slow
def test_a_database_that_does_not_answer_is_told() -> None:
    try:
        server = start_local()
    except DatabaseError as error:
        lacking("local", f"no 'local' database here: {error}")
    number = int((Path(server.url.partition("unix_socket=")[2]).parent / "pid").read_text())
    try:
        with http_server("--database", server.url) as (_, address):
            assert health(address)[0] == 200
            os.kill(number, signal.SIGSTOP)
            wait_until(lambda: health(address)[0] == 503)
            assert health(address)[1]["status"] == "the database does not answer"
            assert figures(address)["dbbench_database_up",] == 0
            os.kill(number, signal.SIGCONT)
            wait_until(lambda: health(address)[0] == 200)
    finally:
        server.kill()
        server.stop()


# --- the end ----------------------------------------------------------------------------------------------


TASKS = len(DEMO.read_text().splitlines())


def test_open_episodes_may_end_after_a_signal(tmp_path: Path) -> None:
    async def play(process: subprocess.Popen[str], address: str) -> None:
        async with Client(address) as client:
            agent = Agent(client)
            episode = (await agent.start("orders-count-lamps"))["episode"]
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_until, lambda: health(address)[0] == 503)
            assert health(address)[1] == {"status": "stopping", "episodes_open": 1, "tasks_left": TASKS}
            assert await agent.call("start_task") == (False, "The server is stopping.")
            assert await agent.sql(episode, "SELECT 1") == "[(1,)]"
            assert await agent.submit(episode, "no idea") == "The answer is recorded."

    options = ("--database", "sqlite", "--save", tmp_path / "saved", "--drain-seconds", 600)
    with http_server(*options) as (process, address):
        asyncio.run(play(process, address))
        assert process.wait(60) == 0, "the last episode has ended"
    (episode,) = read_run(tmp_path / "saved").episodes
    assert (episode["status"], len(episode["turns"])) == ("answered", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "again"), [(600, True), (1, False)], ids=["the signal again", "no time left"]
)
def test_open_episodes_are_not_waited_for_for_ever(tmp_path: Path, seconds: float, again: bool) -> None:
    async def leave_open(address: str) -> None:
        async with Client(address) as client:
            await Agent(client).start()

    options = ("--database", "sqlite", "--save", tmp_path / "saved", "--drain-seconds", seconds)
    with http_server(*options) as (process, address):
        asyncio.run(leave_open(address))
        process.send_signal(signal.SIGTERM)
        if again:
            wait_until(lambda: health(address)[0] == 503)
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    (episode,) = read_run(tmp_path / "saved").episodes
    assert episode["fault"] == "the server was stopped before the episode ended"


# --- bad requests -----------------------------------------------------------------------------------------

BOTH_FORMS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
BAD = {
    "no such page": ("GET", "/", {}, b"", 404),
    "no such method": ("PUT", "/mcp", BOTH_FORMS, b"{}", 405),
    "what is only read": ("POST", "/metrics", {}, b"", 405),
    "only read, too": ("DELETE", "/health", {}, b"", 405),
    "nothing": ("POST", "/mcp", BOTH_FORMS, b"", 400),
    "no JSON": ("POST", "/mcp", BOTH_FORMS, b"{", 400),
    "no UTF-8": ("POST", "/mcp", BOTH_FORMS, b'{"jsonrpc": "\xff"}', 400),
    "no request": ("POST", "/mcp", BOTH_FORMS, b"[1, 2]", 400),
    "deeply nested": ("POST", "/mcp", BOTH_FORMS, b"[" * 100_000, 400),
    "another form": ("POST", "/mcp", BOTH_FORMS | {"Content-Type": "text/plain"}, b"{}", 400),
    "an answer in another form": ("POST", "/mcp", {"Accept": "text/html"}, json.dumps(PING).encode(), 400),
    "no such session": ("POST", "/mcp", BOTH_FORMS | {"Mcp-Session-Id": "x"}, json.dumps(PING).encode(), 404),
    "too large": ("POST", "/mcp", BOTH_FORMS, b" " * (MAX_REQUEST_BYTES + 1), 413),
}


@pytest.fixture(scope="module")
def service() -> str:
    with http_server("--database", "sqlite", "--idle-seconds", 5) as (_, address):
        yield address


@pytest.mark.parametrize(("method", "name", "headers", "body", "code"), BAD.values(), ids=BAD)
def test_bad_requests(
    service: str, method: str, name: str, headers: dict[str, str], body: bytes, code: int
) -> None:
    answer = httpx2.request(method, service.replace("/mcp", name), headers=headers, content=body)
    assert answer.status_code == code, answer.text
    assert len(answer.text.strip().splitlines()) <= 1, answer.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | json_values,
        "id": st.integers() | json_values,
        "method": st.sampled_from(["tools/call", "tools/list", "initialize", "ping"]) | st.text(),
        "params": st.fixed_dictionaries(
            {"name": st.sampled_from(["start_task", "execute_sql", "submit"]) | json_values},
            optional={"arguments": json_values},
        )
        | json_values,
    },
)


@pytest.mark.slow
@examples(100)
@given(body=st.binary() | st.builds(lambda value: json.dumps(value).encode(), json_values | requests))
def test_random_requests_never_fail_the_server(service: str, body: bytes) -> None:
    answer = httpx2.post(service, headers=BOTH_FORMS, content=body)
    assert answer.status_code < 500, (body, answer.text)


@pytest.mark.slow
def test_requests_without_an_end(service: str) -> None:
    """A client that sends half a request and no more keeps nobody else waiting."""
    host, port = service.removeprefix("http://").removesuffix("/mcp").split(":")
    half = b"POST /mcp HTTP/1.1\r\nHost: " + host.encode() + b"\r\nContent-Length: 100\r\n\r\n{"
    connections = [socket.create_connection((host, int(port)), timeout=60) for _ in range(200)]
    try:
        for each in connections:
            each.sendall(half)
        assert health(service)[0] == 200
    finally:
        for each in connections:
            each.close()
