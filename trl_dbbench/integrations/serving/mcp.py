"""Tools of a Model Context Protocol server: three tools for tasks, and the texts that they return.

A call is recorded as the equivalent call of the protocol's own tool, so that a saved episode is one of that
protocol: `submit` becomes `commit_final_answer`, or `submit_sql` if answers are SQL.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib.metadata import version
from typing import Any, cast

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

from trl_dbbench.episode.protocol import PRODUCTS
from trl_dbbench.episode.tool_calls import as_list
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.integrations.calls import Refused, written
from trl_dbbench.integrations.serving.desk import ENDINGS, Desk, counted, ended
from trl_dbbench.integrations.serving.http import (
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    Address,
    monitoring_routes,
    serve_http,
)
from trl_dbbench.integrations.serving.stopping import Stop, until_stopped
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS

INSTRUCTIONS = (
    "Tasks on an SQL database. Call start_task for a task and the name of an episode, work on it with "
    "execute_sql, then call submit once. The number of calls is small: do not repeat one without need."
)

_EPISODE = {"type": "string", "description": "The episode that start_task has named."}
_TASK_ID = {"type": "string", "description": "The id of a task. Leave it out to get the next one."}
_SQL = {"type": "string", "description": "The SQL statement."}

_VALUES = {
    "type": "array",
    "items": {"type": "string"},
    "description": "The answer, each value or row as a string. After a change of the tables, any will do.",
}
_QUERY = {
    "type": "string",
    "description": "The SQL query whose rows are the answer. After a change of the tables, any will do.",
}

_START = (
    "Begins an episode: gives its name, a request, and the tables that it is about. Each episode has a "
    "database of its own."
)
_EXECUTE = (
    "Runs one SQL statement on the episode's database and returns its rows, an empty list if there are none, "
    "or its error. Names with blanks or special characters need backticks."
)
_SUBMIT = {
    "tools": "Ends the episode with the answer: each value as one string, as the database replied it; a row "
    "of several values as one string, such as ('pear', 2.5). If the request was to change the tables, do "
    "that first with execute_sql: the tables themselves are checked.",
    "tools_sql": "Ends the episode with one SQL query, which is executed on the tables as they were at the "
    "start; its rows are checked, and must have just the columns that were asked for. If the request was to "
    "change the tables, change them first with execute_sql: the tables themselves are checked.",
}


class Tools:
    """Tools of a desk; with `tell`, `submit` says whether the answer was right."""

    def __init__(self, desk: Desk, *, tell: bool) -> None:
        self._desk, self._tell = desk, tell
        self._protocol = desk.protocol.name
        answer = _QUERY if self._protocol == "tools_sql" else _VALUES
        self._tools = [
            _tool("start_task", _START, {"task_id": _TASK_ID}, ()),
            _tool("execute_sql", _EXECUTE, {"episode": _EPISODE, "sql": _SQL}),
            _tool("submit", _SUBMIT[self._protocol], {"episode": _EPISODE, "answer": answer}),
        ]

    def server(self) -> Server:
        """Return a server with these tools, for any number of connections."""

        async def listed(context: Any, params: Any) -> ListToolsResult:
            return ListToolsResult(tools=self._tools)

        return Server(
            "trl-dbbench",
            version=version("trl-dbbench"),
            instructions=INSTRUCTIONS,
            on_list_tools=listed,
            on_call_tool=self._call,
        )

    async def _call(self, context: Any, params: Any) -> CallToolResult:
        known = any(params.name == each.name for each in self._tools)
        try:
            with counted(params.name if known else "unknown") as call:
                given = self._checked(params.name, params.arguments or {})
                if params.name == "start_task":
                    result = self._start(given.get("task_id", ""), _client(context))
                else:
                    result = await (self._execute if params.name == "execute_sql" else self._submit)(**given)
                call.outcome = "error" if result.is_error else "ok"
                return result
        except Refused as refusal:
            return _said(str(refusal), error=True)

    def _checked(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments, checked against the tool's schema.

        Some clients send `null` for an argument that is left out, or a list as JSON text; both are accepted.
        """
        schemas = {tool.name: tool.input_schema for tool in self._tools}
        if name not in schemas:
            raise Refused(f"There is no tool {name!r}; there are {', '.join(schemas)}.")
        known = schemas[name]["properties"]
        given = {each: value for each, value in given.items() if value is not None}
        if missing := [each for each in schemas[name]["required"] if each not in given]:
            raise Refused(f"{name} needs {' and '.join(missing)}.")
        if unknown := [each for each in given if each not in known]:
            raise Refused(f"{name} knows no {unknown[0]!r}; it takes {' and '.join(known)}.")
        for each, value in given.items():
            if known[each]["type"] == "string" and not isinstance(value, str):
                raise Refused(f"{name}: {each} must be a string, is {json.dumps(value)[:80]}.")
            if known[each]["type"] == "array":
                value = given[each] = as_list(value)
            if known[each]["type"] == "array" and not isinstance(value, list):
                raise Refused(f"{name}: {each} must be a list of strings, is {json.dumps(value)[:80]}.")
            characters = len(value if isinstance(value, str) else json.dumps(value))
            if characters > MAX_STATEMENT_CHARACTERS:
                raise Refused(
                    f"{name}: {each} has {characters:,} characters; {MAX_STATEMENT_CHARACTERS:,} are "
                    "allowed. Nothing was executed: call again with a shorter one."
                )
        return given

    def _start(self, task_id: str, client: str) -> CallToolResult:
        name, task = self._desk.start(task_id, client)
        told = {
            "episode": name,
            "task_id": task.id,
            "request": task.prompt(),
            "database": PRODUCTS[task.dialect],
            "calls": f"{self._desk.rules.turns(task)} of execute_sql and submit together",
        }
        text = json.dumps(told, ensure_ascii=False)
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=told)

    async def _execute(self, episode: str, sql: str) -> CallToolResult:
        came = await self._desk.call(episode, written("execute_sql", query=sql))
        if isinstance(came, Episode):
            if came.status == Status.TURN_LIMIT:
                return _said(
                    "The statement was executed. It was the last call of this episode, which has ended "
                    "without an answer and is recorded.",
                    error=True,
                )
            return _said(ended(came), error=True)
        failed = came.result is None or came.result.error is not None
        return _said(came.observation or "", error=failed)

    async def _submit(self, episode: str, answer: str | list[Any]) -> CallToolResult:
        tool, argument = ENDINGS[self._protocol]
        came = await self._desk.call(episode, written(tool, **{argument: answer}))
        if not isinstance(came, Episode) or came.status != Status.ANSWERED:
            return _said(ended(came) if isinstance(came, Episode) else came.observation or "", error=True)
        if not self._tell:
            return _said("The answer is recorded.")
        return _said(f"The answer is recorded. It is {'right' if came.right else 'wrong'}.")


def _tool(name: str, does: str, takes: dict[str, Any], needed: tuple[str, ...] | None = None) -> Tool:
    required = list(takes if needed is None else needed)
    schema = {"type": "object", "properties": takes, "required": required, "additionalProperties": False}
    return Tool(name=name, description=does, input_schema=schema)


def _said(text: str, *, error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=error)


def _client(context: Any) -> str:
    params = context.session.client_params
    if params is None:
        return "an MCP client"
    return f"{params.client_info.name} {params.client_info.version} (MCP)".strip()


logger = logging.getLogger(__name__)

PATH = "/mcp"
READ_BYTES = 65_536


async def serve_stdio(server: Server, desk: Desk, stop: Stop, drain_seconds: float) -> None:
    """Serve the one client that has started this process, until it leaves or a signal arrives."""

    async def talk() -> None:
        # the SDK's own reader blocks in a thread, which no signal would end
        lines = cast("anyio.AsyncFile[str]", _lines())
        try:
            async with stdio_server(stdin=lines) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        except* OSError as gone:
            logger.info("The client has gone: %s.", gone.exceptions[0])

    talking = asyncio.create_task(talk())
    await until_stopped(talking, desk, stop, drain_seconds, talking.cancel)


async def _lines() -> AsyncIterator[str]:
    """Yield the lines of standard input."""
    number, parts = sys.stdin.fileno(), [b""]
    while True:
        with suppress(PermissionError):  # a file: there is nothing to wait for
            await anyio.wait_readable(number)
        block = os.read(number, READ_BYTES)
        if not block:
            return
        *ended, rest = block.split(b"\n")
        for line in ended:
            yield b"".join([*parts, line]).decode("utf-8", "replace")
            parts = []
        parts.append(rest)


async def serve_streamable_http(
    server: Server, desk: Desk, stop: Stop, drain_seconds: float, address: Address
) -> None:
    """Serve any number of clients over streamable HTTP; see `serve_http`."""
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        host=address.host,
        max_request_body_size=MAX_REQUEST_BYTES,
        max_sessions=MAX_CONNECTIONS,
        session_idle_timeout=desk.idle_seconds,  # its episodes have ended by then
        custom_starlette_routes=monitoring_routes(desk),
    )
    await serve_http(app, desk, stop, drain_seconds, address, name="MCP", path=PATH)
