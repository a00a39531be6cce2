"""Health checks of the server, so that no statement is blamed for a standstill or failure of its server.

A server, its network or this process can stand still for seconds (a stopped process, a paused container, a
lost route) and then continue as if nothing had happened. Neither the statement's own error nor the server's
clock distinguishes this from a slow statement.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from trl_dbbench.database.error_numbers import NO_ANSWER
from trl_dbbench.database.server.connections import MAX_INSERT_BYTES, error_code, error_text, hang_up
from trl_dbbench.errors import DatabaseError

PULSE_SECONDS = 0.2
"""Seconds between an answer and the next query."""

STILL_SECONDS = 0.6
"""Seconds without an answer after which the server counts as having stood still. A query takes less than a
millisecond on an idle server, and tens of milliseconds on a busy one."""

SILENT_SECONDS = 5.0
"""Seconds of silence after which a server gets no new episodes while other servers answer. Answers are also
late when hundreds of threads of this process are busy."""

_REMEMBERED = 256
"""Number of standstills remembered; no statement lasts long enough to overlap more of them."""


class Pulse:
    """Thread that checks on its own connection whether the server answers.

    Args:
        engine: connects as an account that agents cannot affect, with time limits of a few seconds.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answered = time.monotonic()
        self._standstills: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dbbench-pulse", daemon=True)
        self._thread.start()

    def stood_still(self, since: float) -> float:
        """Return the seconds after `since` (by `time.monotonic`) in which the server stood still."""
        now = time.monotonic()
        with self._lock:
            silences = [*self._standstills, (self._answered, now)]
        return sum(
            max(0.0, end - max(start, since)) for start, end in silences if end - start > STILL_SECONDS
        )

    @property
    def silent(self) -> bool:
        """Return whether the server has not answered for `SILENT_SECONDS`."""
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
            except (SQLAlchemyError, DatabaseError) as error:  # the latter: too many open files
                # a server that refuses the query does answer
                answered = isinstance(error, DBAPIError) and error_code(error) not in NO_ANSWER
                hang_up(connection)
                connection = None
            if answered:
                now = time.monotonic()
                with self._lock:
                    if now - self._answered > STILL_SECONDS:
                        self._standstills.append((self._answered, now))
                    self._answered = now
        hang_up(connection)
        self._engine.dispose()


PROBE_SECONDS = 10
"""Seconds that the server may take to answer one of the probe's statements."""

PROBE_BYTES = 8 * 1024 * 1024
"""Bytes that a probe writes: more than failing statements free on a full disk."""

BEAT_SECONDS = 1.0
"""Seconds between uses of the probe's connection, so that its loss is noticed."""

_ROWS = PROBE_BYTES // MAX_INSERT_BYTES
_NUMBERS = " UNION ALL ".join(["SELECT 1"] * _ROWS)


class Probe:
    """Probe that runs our own statements on a server, shared by all of its sandboxes. Thread-safe.

    Args:
        engine: opens connections to a database that only the probe uses.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = engine.connect()
        self._asking = threading.Lock()
        self._closed = False
        self._failed, self._why = -1.0, ""
        self._passed = -1.0
        """End of the last failed probe in `_failed`, start of the last passed one in `_passed`."""
        self._ended = threading.Event()
        threading.Thread(target=self._beat, name="dbbench-probe", daemon=True).start()

    def failing(self, since: float) -> str | None:
        """Return the error of a probe that has failed since `since` (by `time.monotonic`) or fails now.

        Return `None` if all is well.
        """
        asked = time.monotonic()
        with self._asking:
            if self._failed >= since or self._closed:
                return self._why
            began = time.monotonic()
            if self._passed < asked and self._try(self._write):  # no other thread has probed meanwhile
                self._passed = began
            return self._why if self._failed >= since else None

    def close(self) -> None:
        self._ended.set()
        with self._asking:
            self._closed, self._why = True, "The database was closed"
            hang_up(self._connection)
            self._engine.dispose()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with self._asking:
                if not self._closed:
                    self._try(lambda connection: connection.exec_driver_sql("DO 0"))

    def _try(self, statements: Callable[[Connection], object]) -> bool:
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            statements(self._connection)
            return True
        except (SQLAlchemyError, DatabaseError) as error:
            self._why = error_text(error)
            self._failed = time.monotonic()
            hang_up(self._connection)
            self._connection = None
            with contextlib.suppress(SQLAlchemyError, DatabaseError):
                # reconnect at once: a second failure shows itself by breaking this connection
                self._connection = self._engine.connect()
            return False

    def _write(self, connection: Connection) -> None:
        connection.exec_driver_sql("DROP TABLE IF EXISTS probe")
        # with a primary key, which some servers require
        connection.exec_driver_sql("CREATE TABLE probe (number INT AUTO_INCREMENT KEY, text LONGTEXT)")
        text = f"SELECT REPEAT('x', {MAX_INSERT_BYTES}) FROM ({_NUMBERS}) AS numbers"
        connection.exec_driver_sql(f"INSERT INTO probe (text) {text}")
        connection.exec_driver_sql("DROP TABLE probe")
