"""HTTP server of an application: address, access control, connection limits, and monitoring routes.

`/health` is for load balancers, `/metrics` for Prometheus.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trl_dbbench.errors import ConfigError
from trl_dbbench.integrations.serving.desk import Desk
from trl_dbbench.integrations.serving.stopping import Stop, until_stopped

HEALTH = "/health"


def monitoring_routes(desk: Desk) -> list[Route]:
    """Return the routes `/health` and `/metrics`."""

    async def health(request: Request) -> Response:
        ready = desk.ready
        told = {
            "status": "stopping" if desk.closing else "healthy" if ready else "the database does not answer",
            "episodes_open": desk.open,
            "tasks_left": desk.left,
        }
        return JSONResponse(told, status_code=200 if ready else 503)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return [Route(HEALTH, health), Route("/metrics", metrics)]


MAX_STRANGERS = 512
"""Largest number of connections not yet admitted. A client sends its token with its first bytes."""

BACKLOG = 128
"""Connections accepted at once: fewer than `MAX_STRANGERS`, so that earlier ones are read before later ones
push them out."""

REQUEST_SECONDS = 20
"""Seconds from the last response, or the start of a connection, to the end of a request; also how long a
client may leave a response unread."""

REFUSED_BYTES = 2 * 1024**2
"""Largest number of bytes of an already answered request to read and drop: many clients read no response
before they have sent everything."""

CONNECTION = "dbbench_connection"
"""The key in a request's `scope["state"]` that holds its `BoundedHTTP`."""

_COMING = (h11.IDLE, h11.SEND_BODY)


class BoundedHTTP(H11Protocol):
    """uvicorn's HTTP protocol with limits; by itself it waits forever for the rest of a request."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self.stranger = True
        self._began = time.monotonic()
        self._end_of_request: asyncio.TimerHandle | None = None
        self._end_of_answer: asyncio.TimerHandle | None = None
        self._dropped = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        known = (each for each in self.connections if isinstance(each, BoundedHTTP))
        strangers = [each for each in known if each.stranger and not each.transport.is_closing()]
        if len(strangers) > MAX_STRANGERS:
            min(strangers, key=lambda each: each._began).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(self._end_of_request)
        self._end(self._end_of_answer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            self._dropped += len(data)
            if self._dropped > REFUSED_BYTES:
                self.transport.abort()
                return
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._await_request()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self.stranger = False  # uvicorn's WebSocket responds at once, and has time limits of its own
        self._end(self._end_of_request)
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        self._end_of_answer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._end(self._end_of_answer)
        super().resume_writing()

    def _await_request(self) -> None:
        """Start the time limit of a request unless it is running; stop it when the request is complete."""
        if self.transport.get_protocol() is not self:  # a WebSocket by now
            return
        if self.conn.their_state not in _COMING:
            self._end(self._end_of_request)
            self._end_of_request, self._dropped = None, 0
        elif self._end_of_request is None:
            self._end_of_request = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    @staticmethod
    def _end(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


logger = logging.getLogger(__name__)

CLOSING_SECONDS = 3
"""Seconds to wait for open streams of HTTP clients at shutdown."""

MAX_REQUEST_BYTES = 1024**2
"""Largest size of a request, in bytes: room for the longest statement with each character written as two
escapes."""

_TOO_LARGE = f"A request has at most {MAX_REQUEST_BYTES:,} bytes."

MAX_CONNECTIONS = 1024
"""Largest number of connections, and of clients' sessions. Further clients are told to come later."""


@dataclass(frozen=True)
class Address:
    """Address of the HTTP server, and the token that clients have to send, if any."""

    host: str
    port: int
    token: str | None

    @classmethod
    def of(cls, text: str, token: str | None) -> Address:
        """Parse `HOST:PORT`, or a port of 127.0.0.1; raise ConfigError if other machines could reach it
        without a token."""
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
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise ConfigError(f"--http {self.host}:{self.port} cannot be listened on: {error}.") from None


def _is_local(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """Middleware that admits requests with the token or, if none is set, requests to a local host name.

    This keeps out pages of other sites that are open in a browser on this machine. `/health` is open to all.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._expected = None if token is None else f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if (refusal := self._refusal(scope["path"], Headers(scope=scope))) is not None:
            await refusal(scope, receive, send)
            return
        if scope["path"] != HEALTH and (connection := scope.get("state", {}).get(CONNECTION)) is not None:
            connection.stranger = False
        exchange = _Exchange(receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            # a client that is killed during its call, or sends too much, is not an error
            if not (exchange.gone or exchange.too_large):
                raise
        if exchange.too_large and not exchange.answering:
            await PlainTextResponse(_TOO_LARGE, 413)(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        if path == HEALTH:
            return None
        if self._expected is not None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            given = f"{scheme.lower()} {token}".encode("utf-8", "replace")
            if not hmac.compare_digest(given, self._expected):
                return PlainTextResponse(
                    "The token is missing or wrong.", 401, {"WWW-Authenticate": "Bearer"}
                )
        elif not _is_local(_host(f"//{headers.get('host', '')}")):
            return PlainTextResponse("This server is not the one that was asked for.", 421)
        elif (origin := headers.get("origin")) is not None and not _is_local(_host(origin)):
            return PlainTextResponse("Pages of other sites are not served.", 403)
        if int(headers.get("content-length", 0)) > MAX_REQUEST_BYTES:
            return PlainTextResponse(_TOO_LARGE, 413)
        if "content-length" in headers and "transfer-encoding" in headers:
            why = "A request has a Content-Length or a Transfer-Encoding, not both."
            return PlainTextResponse(why, 400, {"Connection": "close"})
        return None


class _Exchange:
    """Request and response as they pass the gate."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.answering = False
        self.too_large = False
        """True once the body is too large; the app's response is dropped."""
        self.gone = False
        """True once the client has stopped reading the response."""
        self._receive, self._send = receive, send
        self._left = MAX_REQUEST_BYTES

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self.too_large = self.too_large or self._left < 0
        return {"type": "http.disconnect"} if self.too_large else message

    async def send(self, message: Message) -> None:
        if self.too_large and not self.answering:
            return
        self.answering = True
        try:
            await self._send(message)
        except OSError:
            self.gone = True
            raise


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # such as an unclosed bracket
        return None


class _HTTPServer(uvicorn.Server):
    """uvicorn's server without its signal handlers, which would end the process before the database is
    closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _is_told(record: logging.LogRecord) -> bool:
    """Return whether to log a record. A client that is killed while it sends a request is not an error."""
    return not (record.exc_info and isinstance(record.exc_info[1], ClientDisconnect))


async def serve_http(
    app: ASGIApp, desk: Desk, stop: Stop, drain_seconds: float, address: Address, *, name: str, path: str = ""
) -> None:
    """Serve any number of clients until a signal arrives; open episodes then have `drain_seconds` to end.

    Args:
        name, path: name and path of the service, for the log.
    """
    for handler in logging.getLogger().handlers:  # a logger's own filter would not see its children's lines
        handler.addFilter(_is_told)
    with address.listen() as listening:
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        http = _HTTPServer(
            uvicorn.Config(
                Gate(app, address.token),
                http=BoundedHTTP,
                backlog=BACKLOG,
                ws_max_size=MAX_REQUEST_BYTES,
                log_config=None,
                access_log=False,
                limit_concurrency=MAX_CONNECTIONS + MAX_STRANGERS,
                timeout_graceful_shutdown=CLOSING_SECONDS,
            )
        )

        def end() -> None:
            http.should_exit = True

        serving = asyncio.create_task(http.serve(sockets=[listening]))
        logger.info("%s server: %s%s%s.", name, url, path, ", with a token" if address.token else "")
        await until_stopped(serving, desk, stop, drain_seconds, end)
