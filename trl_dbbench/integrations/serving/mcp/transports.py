"""How clients reach the tools: standard input and output of this process, or HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from trl_dbbench.integrations.serving import monitoring
from trl_dbbench.integrations.serving.desk import Desk
from trl_dbbench.integrations.serving.http import MAX_CONNECTIONS, MAX_REQUEST_BYTES, Address, serve_http
from trl_dbbench.integrations.serving.stopping import Stop, until_stopped

logger = logging.getLogger(__name__)

PATH = "/mcp"
READ_BYTES = 65_536


async def serve_stdio(server: Server, desk: Desk, stop: Stop, drain_seconds: float) -> None:
    """Serves the one client that has started this process, until it leaves or a signal comes.

    Args:
        drain_seconds: for so long after a signal, open episodes may go on.
    """

    async def talk() -> None:
        # the SDK's own reader waits in a thread, which no signal would end
        lines = cast("anyio.AsyncFile[str]", _Lines())
        try:
            async with stdio_server(stdin=lines) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        except* OSError as gone:
            logger.info("The client has gone: %s.", gone.exceptions[0])

    talking = asyncio.create_task(talk())
    await until_stopped(talking, desk, stop, drain_seconds, talking.cancel)


class _Lines:
    """The lines of standard input."""

    async def __aiter__(self) -> AsyncIterator[str]:
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
    """Serves any number of clients over streamable HTTP; see `serve_http`."""
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        host=address.host,
        max_request_body_size=MAX_REQUEST_BYTES,
        max_sessions=MAX_CONNECTIONS,
        session_idle_timeout=desk.idle_seconds,  # its episodes have ended by then
        custom_starlette_routes=monitoring.routes(desk),
    )
    await serve_http(app, desk, stop, drain_seconds, address, name="MCP", path=PATH)
