"""An agent with MCP's official client, and servers for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from databases import table
from launching import ROOT
from mcp import Client, StdioServerParameters
from prometheus_client.parser import text_string_to_metric_families

from trl_dbbench.tasks import Gold, Task

DEMO = ROOT / "recipes" / "demo_tasks.jsonl"
NEWEST = "2026-07-28"
TOKEN = "a-token-of-some-length"
ENVIRONMENT = os.environ | {"PYTHONUNBUFFERED": "1"}

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22))
QUESTION = Task("how-many", "How many has Peru?", (MEDALS,), "SELECT", Gold((("22",),)))
CHANGE = Task(
    "one-more",
    "Give Chad one more.",
    (MEDALS,),
    "UPDATE",
    Gold(sql="UPDATE medals SET gold = 2 WHERE nation = 'Chad'"),
)


class Agent:
    """What an agent does with the tools."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> tuple[bool, str]:
        """(whether it went well, what the agent reads)."""
        result = await self.client.call_tool(tool, arguments)
        return not result.is_error, result.content[0].text

    async def start(self, task_id: str = "") -> dict[str, Any]:
        result = await self.client.call_tool("start_task", {"task_id": task_id} if task_id else {})
        assert not result.is_error, result.content
        assert json.loads(result.content[0].text) == result.structured_content
        return result.structured_content

    async def sql(self, episode: str, sql: str) -> str:
        return (await self.call("execute_sql", episode=episode, sql=sql))[1]

    async def submit(self, episode: str, *values: str) -> str:
        return (await self.call("submit", episode=episode, answer=list(values)))[1]

    async def play(self, task: Task, *, right: bool) -> str:
        """Plays a task as it should be done, or leaves the tables as they are and answers nonsense."""
        episode = (await self.start(task.id))["episode"]
        assert task.gold.sql is not None
        await self.sql(episode, task.gold.sql if right else "SELECT 'no idea'")
        return await self.submit(episode, *(map(str, task.gold.answer or ()) if right else ["no idea"]))


def command(*options: object, tasks: Path = DEMO) -> list[str]:
    return [sys.executable, "-m", "trl_dbbench", "serve", "--mcp", str(tasks), *map(str, options)]


def stdio(*options: object, mode: str = NEWEST) -> Client:
    """A client that starts a server of its own."""
    program, *arguments = command(*options)
    return Client(StdioServerParameters(command=program, args=arguments, env=dict(ENVIRONMENT)), mode=mode)


@contextmanager
def http_server(
    *options: object, token: str = "", tasks: Path = DEMO
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a free port, and its URL. It must end well at SIGTERM."""
    if "--http" not in options:
        options = ("--http", "0", *options)
    with started(command(*options, tasks=tasks), token) as server:
        yield server


@contextmanager
def started(words: list[str], token: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server that these words start, and its URL. It must end well at SIGTERM."""
    environment = ENVIRONMENT | {"TRL_DBBENCH_MCP_TOKEN": token}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        while not (found := re.search(r" server: (http://[\d.]+:\d+[/mcp]*)", lines[-1] if lines else "")):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        yield process, found[1]
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 0, rest
        assert "Traceback" not in rest, rest
    finally:
        process.kill()
        process.wait()


def page(address: str, name: str, **headers: str) -> httpx2.Response:
    return httpx2.get(address.removesuffix("/mcp") + name, headers=headers)


def health(address: str) -> tuple[int, dict[str, object]]:
    answer = page(address, "/health")
    return answer.status_code, answer.json()


def figures(address: str, **headers: str) -> dict[tuple[str, ...], float]:
    """(name, values of its labels in the order of their names) -> value."""
    families = text_string_to_metric_families(page(address, "/metrics", **headers).text)
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, *(value for _, value in sorted(each.labels.items()))): each.value for each in samples}
