"""Base class of both kinds of embedded sandboxes: closing, results and faults."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from trl_dbbench.database.sandbox import Limits, QueryResult, Sandbox
from trl_dbbench.errors import DatabaseError, EnvironmentFault

MAX_MESSAGE_CHARACTERS = 512
"""Most characters of an error that the agent is shown, as in MySQL."""


class EmbeddedSandbox(Sandbox):
    """Sandbox whose database runs in this process."""

    _connection: Any
    """Connection of `sqlite3` or `mysqlite`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._connection.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise DatabaseError("The sandbox is closed. Take another from Database.sandbox().")

    @staticmethod
    def _fail(error: BaseException) -> EnvironmentFault:
        """Return an error as an EnvironmentFault."""
        return EnvironmentFault(f"SQLite failed: {error!r}")

    @staticmethod
    def _shown(result: QueryResult, start: float) -> QueryResult:
        """Return a result as shown to the agent: with a shortened error and the seconds since `start`."""
        error = result.error and result.error[:MAX_MESSAGE_CHARACTERS]
        return replace(result, error=error, seconds=time.monotonic() - start)
