"""What one client of `serve --http` can take from the others: connections, time, memory.

Clients write bytes to a socket here: no HTTP library sends half a request, or one with two lengths.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from mcp_agents import DEMO, TOKEN, health, http_server, page, started

from trl_dbbench.integrations.serving.http import MAX_CONNECTIONS, MAX_REQUEST_BYTES, MAX_STRANGERS

JSON = b"Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
AUTHORIZED = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with http_server("--database", "sqlite", token=TOKEN) as (_, address):
        yield address


def connected(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").removesuffix("/mcp").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def head(method: str = "POST", path: str = "/mcp", more: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + JSON + more + b"\r\n"


def answered(address: str, *parts: bytes) -> bytes:
    """All that the server says until it hangs up or has nothing more to say for a second."""
    with closing(connected(address)) as client:
        for part in parts:
            client.sendall(part)
        return heard(client)


def heard(client: socket.socket) -> bytes:
    said = b""
    client.settimeout(60)
    try:
        while part := client.recv(65_536):
            said += part
            client.settimeout(1)
    except TimeoutError:
        assert said, "no answer"
    return said


def status(said: bytes) -> int:
    return int(said.split(b" ", 2)[1])


def in_chunks(size: int) -> Iterator[bytes]:
    """A body that does not say how long it is."""
    block = b" " * 65_536
    while size > 0:
        yield b"%x\r\n%s\r\n" % (len(block), block)
        size -= len(block)
    yield b"0\r\n\r\n"


# --- connections ------------------------------------------------------------------------------------------


STARTED = {
    "nothing": b"",
    "half of a line": b"POST /mc",
    "half of the headers": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: ",
    "half of a body": head(more=b"Content-Length: 100\r\n") + b"{",
    "half of a chunk": head(more=b"Transfer-Encoding: chunked\r\n") + b"ff\r\n{",
    "what everybody may ask": head("GET", "/health"),
}


@pytest.mark.parametrize("sent", STARTED.values(), ids=STARTED)
def test_strangers_keep_nobody_out(service: str, sent: bytes) -> None:
    """More connections without the token than the server has room for."""
    with ExitStack() as opened:
        for _ in range(MAX_CONNECTIONS + MAX_STRANGERS + 20):
            opened.enter_context(closing(connected(service))).sendall(sent)
        assert health(service)[0] == 200
        assert page(service, "/metrics", Authorization=f"Bearer {TOKEN}").status_code == 200


def test_who_has_shown_the_token_is_not_put_out_by_strangers(service: str) -> None:
    """A request of theirs is half sent while strangers come; it is answered when it is whole."""
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
    with ExitStack() as opened, closing(connected(service)) as client:
        client.sendall(head(more=AUTHORIZED + b"Content-Length: %d\r\n" % len(body)) + body[:5])
        for _ in range(2 * MAX_STRANGERS):
            opened.enter_context(closing(connected(service))).sendall(b"POST /mc")
        assert health(service)[0] == 200
        client.sendall(body[5:])
        assert status(heard(client)) != 401


# --- time -------------------------------------------------------------------------------------------------


@contextmanager
def hurried() -> Iterator[str]:
    """A server that gives a request one second."""
    program = (
        "import sys, trl_dbbench.integrations.serving.http as connections; connections.REQUEST_SECONDS = 1; "
        "from trl_dbbench.cli import main; main()"
    )
    words = [
        sys.executable,
        "-c",
        program,
        "serve",
        "--mcp",
        str(DEMO),
        "--http",
        "0",
        "--database",
        "sqlite",
    ]
    with started(words, TOKEN) as (_, address):
        yield address


UNENDED = STARTED | {
    "half of a body, with the token": head(more=AUTHORIZED + b"Content-Length: 100\r\n") + b"{",
    "an answer to the first and half of a second": head("GET", "/health") + b"GET /hea",
    "a refused body": head(more=b"Content-Length: 100\r\n") + b"{",
}


def test_a_request_has_its_time() -> None:
    """The server hangs up on each of these, also when a byte comes now and then."""
    with hurried() as address:
        for sent in UNENDED.values():
            with closing(connected(address)) as client:
                client.sendall(sent)
                ended = False
                for _ in range(120):
                    client.settimeout(0.5)
                    try:
                        if ended := not client.recv(65_536):
                            break
                        client.sendall(b"x" * (sent == UNENDED["half of the headers"]))
                    except TimeoutError:
                        continue
                    except ConnectionError:
                        ended = True
                        break
                assert ended, sent


@pytest.mark.slow
def test_who_reads_no_answers_is_hung_up_on() -> None:
    with hurried() as address, closing(connected(address)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(0.5)
        asked = head("GET", "/metrics", AUTHORIZED)
        deadline = time.monotonic() + 60
        with pytest.raises(ConnectionError):
            while time.monotonic() < deadline:
                try:
                    client.sendall(asked * 20)
                except TimeoutError:
                    time.sleep(0.2)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/mcp", "/metrics", "/health", "/no-such-page"])
def test_a_body_that_does_not_say_how_long_it_is_has_the_same_limit(service: str, path: str) -> None:
    said = answered(
        service,
        head(path=path, more=AUTHORIZED + b"Transfer-Encoding: chunked\r\n"),
        *in_chunks(MAX_REQUEST_BYTES + 65_536),
    )
    assert status(said) in ((413,) if path == "/mcp" else (404, 405))
    assert health(service)[0] == 200


def test_a_body_is_not_read_without_the_token(service: str) -> None:
    """The refusal comes before the body, and one without an end is not listened to."""
    with closing(connected(service)) as client:
        client.sendall(head(more=b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n"))
        assert status(client.recv(65_536)) == 401
        with pytest.raises(ConnectionError):
            for part in in_chunks(1024 * MAX_REQUEST_BYTES):
                client.sendall(part)


LENGTHS = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"
REFUSED = {
    "two ways to say where it ends": (head(more=AUTHORIZED + LENGTHS) + b"0\r\n\r\n", 400),
    "two lengths": (head(more=AUTHORIZED + b"Content-Length: 5\r\nContent-Length: 6\r\n"), 400),
    "a length of many digits": (head(more=AUTHORIZED + b"Content-Length: " + b"9" * 5000 + b"\r\n"), 400),
    "a long length": (head(more=AUTHORIZED + b"Content-Length: " + b"9" * 19 + b"\r\n"), 413),
    "long headers": (head(more=AUTHORIZED + b"X: " + b"x" * 20_000 + b"\r\n")[:-2], 400),
    "a long line": (b"GET /" + b"x" * 20_000, 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 600, 400),
    "HEAD": (head("HEAD", "/mcp"), 401),
    "OPTIONS": (head("OPTIONS", "*"), 401),
    "no such page": (head("GET", "/x"), 401),
    "a WebSocket": (
        head(
            "GET",
            more=b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        ),
        401,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), REFUSED.values(), ids=REFUSED)
def test_refused(service: str, sent: bytes, code: int) -> None:
    said = answered(service, sent)
    assert status(said) == code
    assert said.count(b"HTTP/1.1 ") == 1, said
