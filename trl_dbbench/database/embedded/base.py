"""The parts that both kinds of sandboxes in this process share: results, faults and their end."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from trl_dbbench.database.sandbox import Limits, QueryResult, Sandbox
from trl_dbbench.errors import DatabaseError, EnvironmentFault

MAX_MESSAGE_CHARACTERS = 512
"""Characters of an error that the agent is shown, as in MySQL."""


class EmbeddedSandbox(Sandbox):
    """A sandbox with a connection in this process."""

    _connection: Any
    """A connection of `sqlite3` or of `mysqlite`."""

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
        """Return the fault that this error means."""
        return EnvironmentFault(f"SQLite failed: {error!r}")

    @staticmethod
    def _shown(result: QueryResult, start: float) -> QueryResult:
        """Return a result as the agent is shown it: its error cut, with the seconds since `start`."""
        error = result.error and result.error[:MAX_MESSAGE_CHARACTERS]
        return replace(result, error=error, seconds=time.monotonic() - start)
