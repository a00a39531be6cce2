"""Decision on who is to blame if SQLite gives no proper answer to a statement.

```
memory or file space is short, and also for our probe   -> the environment: EnvironmentFault
                               but not for our probe    -> the statement, which hit a limit
any other unforeseen failure                            -> a bug of ours: the statement is refused
```

An agent can write statements that trigger a bug, so a bug must not end an episode.
"""

from __future__ import annotations

import logging
import sqlite3
import time
import traceback
from contextlib import closing

from trl_dbbench.mysqlite.guard import BROKEN, SHORTAGES, primary_code

logger = logging.getLogger("trl_dbbench.database")

REFUSED = "This statement cannot be executed here"
"""Error that the agent reads if its statement met a bug of ours."""

PROBE_BYTES = 4 * 1024 * 1024
"""Bytes of memory and of temporary file space that a probe asks for."""

CHECK_SECONDS = 5.0
"""Seconds that checking an apparently corrupt file may take."""

_met: set[tuple[str, ...]] = set()


def is_shortage(error: BaseException | None) -> bool:
    """Return whether memory or file space was short. Exceeding our own limits is reported the same way."""
    return isinstance(error, MemoryError) or primary_code(error) in SHORTAGES


def is_broken(error: BaseException | None) -> bool:
    """Return whether SQLite found the database corrupt.

    No statement can corrupt it, except for virtual tables, which do not count here: they break if a statement
    writes to their shadow tables.
    """
    virtual = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CORRUPT_VTAB
    return primary_code(error) in BROKEN and not virtual


def all_are_short() -> bool:
    """Return whether a probe is also short of memory or temporary file space."""
    try:
        with closing(sqlite3.connect("")) as probe:  # moves to a temporary file once its cache is full
            probe.execute("PRAGMA cache_size = 1")
            probe.execute("CREATE TABLE probe (bytes)")
            probe.execute("INSERT INTO probe VALUES (?)", (bytes(PROBE_BYTES),))
    except (MemoryError, sqlite3.Error):
        return True
    return False


def is_file_broken(uri: str) -> bool:
    """Return whether a probe also finds the file corrupt, as far as it gets in `CHECK_SECONDS`."""
    end = time.monotonic() + CHECK_SECONDS
    try:
        with closing(sqlite3.connect(uri, uri=True)) as probe:
            probe.set_progress_handler(lambda: int(time.monotonic() > end), 10_000)
            return probe.execute("PRAGMA quick_check(1)").fetchone() != ("ok",)
    except sqlite3.Error as error:
        return primary_code(error) != sqlite3.SQLITE_INTERRUPT


def report(error: BaseException, whose: str, sql: str) -> None:
    """Log a bug with its traceback, the first time that it occurs at its place in the code."""
    frames = traceback.extract_tb(error.__traceback__)
    place = (type(error).__name__, getattr(error, "sqlite_errorname", ""), *map(str, frames[-1:]))
    if place not in _met:
        _met.add(place)
        logger.error(
            "%s failed on %r. The agent is told that it cannot be executed; the metric "
            "database/emulation_mistakes counts this and what fails at the same place",
            whose,
            sql,
            exc_info=error,
        )
