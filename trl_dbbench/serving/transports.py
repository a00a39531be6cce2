"""How clients reach the tools: standard input and output of this process, or HTTP; and how serving ends.

```
the client closes the pipe   its episodes end; the server ends
SIGTERM, Ctrl-C              no new episodes; after --drain-seconds, or the same again, statements that run
                             end, then episodes, as environment faults; the server ends
```
"""

from __future__ import annotations

import asyncio
import ctypes
import hmac
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

import anyio
import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from starlette.requests import ClientDisconnect

from trl_dbbench.errors import ConfigError
from trl_dbbench.serving import monitoring
from trl_dbbench.serving.desk import STOPPED, Desk

logger = logging.getLogger(__name__)

PATH = "/mcp"
CLOSING_SECONDS = 3
"""For how long open streams of HTTP clients are waited for."""

REPLY_SECONDS = 0.5
"""How long after the end of all episodes the replies to their last calls may take."""

READ_BYTES = 65_536

MAX_REQUEST_BYTES = 1024**2
"""A statement of the longest kind has room, with each of its characters written as two escapes."""

TRIM_SECONDS = 30
"""How often memory that is free is given back to the system."""

MAX_CONNECTIONS = 1024
"""At a time, and as many sessions of clients that keep one. Who comes then is told to come later."""


class Stop:
    """SIGTERM and Ctrl-C, from before the database is opened until it is closed.

    Before serving they end the program, while serving they ask it to end, and afterwards they change nothing:
    a client sends one if closing takes long, and a database that is half closed leaves something behind.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked, self._urged = asyncio.Event(), asyncio.Event()

    @contextmanager
    def taken(self) -> Iterator[Stop]:
        """Takes the signals for this block."""
        earlier = {number: signal.signal(number, self._came) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    async def wait(self) -> None:
        """Returns when serving is to end."""
        self._loop = asyncio.get_running_loop()
        await self._asked.wait()

    async def wait_again(self) -> None:
        """Returns when a second signal says that it is urgent."""
        await self._urged.wait()

    def _note(self) -> None:
        (self._urged if self._asked.is_set() else self._asked).set()

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None:
            raise SystemExit(128 + number)
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._note)


# --- standard input and output ------------------------------------------------------------------------


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
    await _until_stopped(talking, desk, stop, drain_seconds, talking.cancel)


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


# --- HTTP ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Address:
    """Where HTTP is served, and the token that clients have to send, if they have to."""

    host: str
    port: int
    token: str | None

    @classmethod
    def of(cls, text: str, token: str | None) -> Address:
        """Reads `HOST:PORT`, or a port alone, which is one of 127.0.0.1.

        Raises:
            ConfigError: if it is none, or other machines could reach it without a token.
        """
        host, _, port = text.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        if not (port.isascii() and port.isdigit() and int(port) < 65536):
            raise ConfigError(f"--http {text} must be HOST:PORT or PORT, as in 127.0.0.1:8808.")
        if token is not None and not (token.isascii() and token.isprintable() and len(token) >= 16):
            raise ConfigError(
                "the token must have at least 16 characters, all of them ASCII that can be printed."
            )
        if token is None and not _is_local(host):
            raise ConfigError(
                f"--http {text} can be reached from other machines: set a token in the environment "
                "variable that --token-env names, or leave the host out."
            )
        return cls(host, int(port), token)

    def listen(self) -> socket.socket:
        """Raises ConfigError if the address cannot be had."""
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise ConfigError(f"--http {self.host}:{self.port} cannot be listened on: {error}.") from None


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Token:
    """Lets in who has the token; see `mcp.server.auth.provider.TokenVerifier`."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token):
            return None
        return AccessToken(token=token, client_id="the holder of the token", scopes=[])


class _HTTPServer(uvicorn.Server):
    """Leaves signals to `Stop`: its own way would end the process before the database is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _is_told(record: logging.LogRecord) -> bool:
    """Whether a line is of use. A client may be killed while it sends a request; that is no error here."""
    return not (record.exc_info and isinstance(record.exc_info[1], ClientDisconnect))


async def serve_http(server: Server, desk: Desk, stop: Stop, drain_seconds: float, address: Address) -> None:
    """Serves any number of clients, until a signal comes.

    Args:
        drain_seconds: for so long after a signal, open episodes may go on.

    Raises:
        ConfigError: if the address cannot be had.
    """
    for handler in logging.getLogger().handlers:  # a logger's own filter would not see its children's lines
        handler.addFilter(_is_told)
    with address.listen() as listening:
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        secured: dict[str, Any] = {}
        if address.token is not None:
            settings = AuthSettings(issuer_url=cast(Any, url), resource_server_url=None)
            secured = {"auth": settings, "token_verifier": _Token(address.token)}
        app = server.streamable_http_app(
            streamable_http_path=PATH,
            host=address.host,
            max_request_body_size=MAX_REQUEST_BYTES,
            max_sessions=MAX_CONNECTIONS,
            session_idle_timeout=desk.idle_seconds,  # its episodes have ended by then
            custom_starlette_routes=monitoring.routes(desk, with_token=address.token is not None),
            **secured,
        )
        http = _HTTPServer(
            uvicorn.Config(
                app,
                ws="none",
                log_config=None,
                access_log=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=CLOSING_SECONDS,
            )
        )

        def end() -> None:
            http.should_exit = True

        serving = asyncio.create_task(http.serve(sockets=[listening]))
        returning = asyncio.create_task(_return_memory())
        logger.info("MCP server: %s%s%s.", url, PATH, ", with a token" if address.token else "")
        await _until_stopped(serving, desk, stop, drain_seconds, end)
        returning.cancel()


async def _return_memory() -> None:
    """Gives the system back what is free, now and then. glibc would keep it, in pieces: 20 MB more after
    3,000 episodes of clients that come and go (`benchmarks/soak.py`)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
    while trim is not None:
        await asyncio.sleep(TRIM_SECONDS)
        trim(0)


# --- the end ------------------------------------------------------------------------------------------


async def _until_stopped(
    serving: asyncio.Task[None], desk: Desk, stop: Stop, drain_seconds: float, end: Callable[[], object]
) -> None:
    """Ends all episodes, then the transport, when either it has ended or a signal has come."""
    asked = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    if asked.done() and drain_seconds and desk.open:
        logger.info(
            "Stopping: %d episodes may go on for %g s. The same signal again ends them.",
            desk.open,
            drain_seconds,
        )
        ways = [serving, *map(asyncio.create_task, (desk.drain(drain_seconds), stop.wait_again()))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for each in ways[1:]:
            each.cancel()
    await desk.close(STOPPED if asked.done() else None)
    if asked.done():  # the last replies are on their way
        await asyncio.wait({serving}, timeout=REPLY_SECONDS)
    asked.cancel()
    end()
    with suppress(asyncio.CancelledError):
        await serving
