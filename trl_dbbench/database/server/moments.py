"""Fixes a statement's clock and random numbers, so that it does the same when it is executed again.

As in MySQL's replication of statements: the session variables `timestamp`, `rand_seed1` and `rand_seed2` are
set before it. What UUID() gives, and names of the server's own, cannot be fixed.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from trl_dbbench.database.dialect import Dialect, Kind
from trl_dbbench.database.server.connections import is_from_server
from trl_dbbench.database.server.session import Session
from trl_dbbench.tasks import Task

_OWN_CLOCK = re.compile(r"\bSET\b.*\b(?:timestamp|rand_seed[12])\b", re.IGNORECASE | re.DOTALL)
_DIAGNOSTICS = re.compile(
    r"\b(?:ROW_COUNT|FOUND_ROWS|WARNINGS|ERRORS|DIAGNOSTICS|warning_count|error_count)\b", re.IGNORECASE
)
"""Words that read the previous statement's diagnostics, which a SET would clear."""


@dataclass(frozen=True)
class Moment:
    """`timestamp`: seconds since 1970. `seeds`: of RAND()."""

    timestamp: float
    seeds: tuple[int, int]

    def __str__(self) -> str:
        first, second = self.seeds
        return f"SET timestamp = {self.timestamp:.6f}, rand_seed1 = {first}, rand_seed2 = {second}"


class Moments:
    """The moments of an episode's statements in a slot.

    Args:
        ahead: seconds by which the server's clock is ahead of ours.
    """

    def __init__(self, dialect: Dialect, task: Task, ahead: float) -> None:
        self._dialect = dialect
        self._ahead = ahead
        types = [column.type for table in task.tables for column in table.columns]
        self._hidden = any(dialect.varies(each) or "TIMESTAMP" in each.upper() for each in types)
        """Whether any statement may read the clock, or draw, in what the agent or the task has made."""
        self._agents = False
        """The agent has set the clock itself."""

    def fix(self, session: Session, sql: str, kind: Kind, again: Moment | None) -> Moment | None:
        """Fixes the statement's moment, if it may matter.

        Args:
            again: the moment of the same statement, executed before.
        """
        self._agents = self._agents or (kind == "other" and _OWN_CLOCK.search(sql) is not None)
        varies = self._dialect.varies(sql)
        needed = (varies or self._hidden) and not self._agents and not _DIAGNOSTICS.search(sql)
        self._hidden = self._hidden or needed  # or a later one would find the clock where it was set
        self._hidden = self._hidden or (varies and kind not in ("reads", "plain"))
        if not needed:
            return None
        seeds = random.SystemRandom().getrandbits(30), random.SystemRandom().getrandbits(30)
        moment = again or Moment(time.time() + self._ahead, seeds)
        try:
            session.connection.exec_driver_sql(str(moment))
        except DBAPIError as error:
            if not is_from_server(error.orig):
                raise
            return None  # as after SET PASSWORD on an expired account; the statement itself will say so
        return moment
