"""A network that can be made to fail: a proxy between a database and its server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import make_url


class Proxy:
    """Passes packets on, both ways, except while they are held.

    `cut(packet)` says of each packet of a client whether its connection is lost instead. `delay`: for so many
    seconds each packet of a client is kept back.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self.cut: Callable[[bytes], bool] = lambda packet: False
        self.delay = 0.0
        self.connections = 0
        self._connect = connect
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self.release()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                try:
                    server = self._connect()
                except OSError:
                    client.close()
                    continue
                for source, target, asks in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=(source, target, asks), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while packet := source.recv(65536):
                if asks and self.delay:
                    time.sleep(self.delay)
                self._flows.wait()
                if asks and self.cut(packet):
                    break
                target.sendall(packet)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy in front of the server at the URL, and the URL that leads through it."""
    parsed = make_url(url)

    def connect() -> socket.socket:
        if "unix_socket" in parsed.query:
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(parsed.query["unix_socket"]))
            return server
        return socket.create_connection((parsed.host, parsed.port))

    proxy = Proxy(connect)
    through = parsed.set(host="127.0.0.1", port=proxy.port, query={})
    try:
        yield proxy, through.render_as_string(hide_password=False)
    finally:
        proxy.close()
