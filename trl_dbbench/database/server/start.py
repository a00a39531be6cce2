"""A server that a run owns, and waiting for one to come up. `docker.py` and `local.py` start them.

They end with the process that started them, however it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pymysql

from trl_dbbench.database.server.connections import BoundedConnection
from trl_dbbench.errors import DatabaseError

START_SECONDS = 120
"""How long a server may take to let us in, or a command that prepares it to end."""

SHOWN_CHARACTERS = 500
"""How much of a program's output an error quotes."""


LOG_CHARACTERS = 100_000
"""How much of a server's log is searched for what ended it."""


@dataclass(frozen=True)
class Server:
    """A running server: its URL, and `where` it runs in words.

    `stop` may be called repeatedly. `kill` ends it at once, as a failure would. `restart` replaces a server
    that has ended with an empty one at the same URL, and raises DatabaseError if that fails. `log` gives the
    last lines that it has written.
    """

    url: str
    where: str
    stop: Callable[[], None]
    kill: Callable[[], None]
    alive: Callable[[], bool]
    restart: Callable[[], None]
    log: Callable[[], str]


def wait_for(check: Callable[[], None], **where: Any) -> None:
    """Returns when the server lets us in; `check` raises when waiting has become pointless."""
    end = time.monotonic() + START_SECONDS
    while True:
        check()
        try:
            BoundedConnection(**where, connect_timeout=5, read_timeout=5).close()
            return
        except pymysql.MySQLError as error:
            if time.monotonic() > end:
                raise DatabaseError(
                    f"The server was started but lets nobody in after {START_SECONDS} s: {error.args[-1]}."
                ) from None
        time.sleep(0.1)


def once(function: Callable[[], None]) -> Callable[[], None]:
    called = False

    def call() -> None:
        nonlocal called
        if not called:
            called = True
            function()

    return call
