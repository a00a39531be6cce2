"""Whether the server answers, asked all the time: a statement is not to blame while its server stands still.

A server, its network or this process can stand still for seconds (a stopped process, a paused container, a
lost route) and then go on as if nothing had been. Neither a statement's own error nor the server's clock
tells that from a statement that takes long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from trl_dbbench.database.dialect import Dialect
from trl_dbbench.database.server.connections import error_code

PULSE_SECONDS = 0.2
"""Between an answer and the next question."""

STILL_SECONDS = 0.6
"""From here on, a time without an answer counts as one in which the server stood still. A question takes less
than a thousandth of a second on an idle server, and tens of them on a busy one."""

SILENT_SECONDS = 5.0
"""A server that has not answered for so long is no place for new episodes, if there are other servers. The
answers come late as well where hundreds of threads of this process work."""

_REMEMBERED = 256
"""Standstills; a statement that overlaps with more of them is long over."""


class Pulse:
    """Asks the server whether it is there, in a thread and on a connection of its own.

    Args:
        engine: of an account that agents cannot touch, with time limits of a few seconds.
    """

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect
        self._answered = time.monotonic()
        self._standstills: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dbbench-pulse", daemon=True)
        self._thread.start()

    def stood_still(self, since: float) -> float:
        """Seconds after `since`, by `time.monotonic`, in which the server did not answer."""
        now = time.monotonic()
        with self._lock:
            silences = [*self._standstills, (self._answered, now)]
        return sum(
            max(0.0, end - max(start, since)) for start, end in silences if end - start > STILL_SECONDS
        )

    @property
    def silent(self) -> bool:
        """Whether the server has not answered for `SILENT_SECONDS`."""
        with self._lock:
            return time.monotonic() - self._answered > SILENT_SECONDS

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        connection: Connection | None = None
        while not self._closed.wait(PULSE_SECONDS):
            try:
                connection = connection or self._engine.connect()
                connection.exec_driver_sql("DO 0")
                answered = True
            except SQLAlchemyError as error:
                # a server that refuses is there
                answered = isinstance(error, DBAPIError) and not self._dialect.is_silence(error_code(error))
                if connection is not None:
                    with contextlib.suppress(SQLAlchemyError):
                        connection.invalidate()
                        connection.close()
                    connection = None
            if answered:
                self._note()
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                connection.close()
        self._engine.dispose()

    def _note(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._answered > STILL_SECONDS:
                self._standstills.append((self._answered, now))
            self._answered = now
