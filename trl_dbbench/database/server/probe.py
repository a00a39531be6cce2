"""Asks whether the server itself fails, where an agent's statement met an error that looks like it.

An agent can raise any error (SIGNAL), end its own connection, and use up what its session may have. So the
server is at fault only if statements of our own failed at the same time. They run under an account such as
agents have, on a connection that is kept open: a server or a network that drops connections drops it, too.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from trl_dbbench.database.server.connections import MAX_INSERT_BYTES, error_text
from trl_dbbench.errors import DatabaseError

PROBE_SECONDS = 10
"""How long the server may take to answer one of the probe's statements."""

PROBE_BYTES = 8 * 1024 * 1024
"""Bytes that are written: more than what statements that fail on a full disk give back to it."""

BEAT_SECONDS = 1.0
"""How often the connection is used, so that one that was dropped says when."""

_ROWS = PROBE_BYTES // MAX_INSERT_BYTES
_NUMBERS = " UNION ALL ".join(["SELECT 1"] * _ROWS)


class Probe:
    """Statements of our own, asked for by all sandboxes of a server together. Thread-safe.

    Args:
        engine: opens connections to a database of the probe's own.

    Raises:
        DBAPIError: it cannot be connected to.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = engine.connect()
        self._asking = threading.Lock()
        self._closed = False
        self._failed, self._why = -1.0, ""
        self._passed = -1.0
        """When the last probe that failed ended, and when the last one that passed began."""
        self._ended = threading.Event()
        threading.Thread(target=self._beat, name="dbbench-probe", daemon=True).start()

    def failing(self, since: float) -> str | None:
        """What has failed since a moment (by `time.monotonic`), or fails now; `None` if all is well."""
        asked = time.monotonic()
        with self._asking:
            if self._failed >= since or self._closed:
                return self._why
            if self._passed < asked:  # nobody else has asked meanwhile
                self._ask()
            return self._why if self._failed >= since else None

    def close(self) -> None:
        self._ended.set()
        with self._asking:
            self._closed, self._why = True, "The database was closed"
            self._hang_up()
            self._engine.dispose()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with self._asking:
                if not self._closed:
                    self._try(lambda connection: connection.exec_driver_sql("DO 0"))

    def _ask(self) -> None:
        began = time.monotonic()
        if self._try(self._write):
            self._passed = began

    def _try(self, statements: Callable[[Connection], object]) -> bool:
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            statements(self._connection)
            return True
        except (SQLAlchemyError, DatabaseError) as error:
            self._why = error_text(error) if isinstance(error, SQLAlchemyError) else str(error)
            self._failed = time.monotonic()
            self._hang_up()
            return False

    def _write(self, connection: Connection) -> None:
        connection.exec_driver_sql("DROP TABLE IF EXISTS probe")
        connection.exec_driver_sql("CREATE TABLE probe (text LONGTEXT)")
        text = f"SELECT REPEAT('x', {MAX_INSERT_BYTES}) FROM ({_NUMBERS}) AS numbers"
        connection.exec_driver_sql(f"INSERT INTO probe {text}")
        connection.exec_driver_sql("DROP TABLE probe")

    def _hang_up(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                self._connection.invalidate()
                self._connection.close()
            self._connection = None
