"""Whose failure it is when a statement ends in no answer of SQLite's.

```
memory or room for files is short, also for a probe of ours -> the environment's: EnvironmentFault
                                   and a probe has enough   -> a limit that the statement hit
anything else that nobody foresaw                           -> a mistake of ours: the statement is refused
```

An agent can write what meets a mistake, so a mistake is no way out of an episode.
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
"""Error that the agent reads where the emulation made a mistake."""

PROBE_BYTES = 4 * 1024 * 1024
"""Bytes that a probe asks for, of memory and of room for temporary files."""

CHECK_SECONDS = 5.0
"""Seconds for which a file is examined that seems to be broken."""

_met: set[tuple[str, ...]] = set()


def is_shortage(error: BaseException | None) -> bool:
    """Return whether memory or room for files was short. Our own limits are reported so, too."""
    return isinstance(error, MemoryError) or primary_code(error) in SHORTAGES


def is_broken(error: BaseException | None) -> bool:
    """Return whether SQLite found the database broken, which no statement does to it, but for virtual tables:
    they break where a statement writes to the tables that they are made of."""
    virtual = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CORRUPT_VTAB
    return primary_code(error) in BROKEN and not virtual


def all_are_short() -> bool:
    """Return whether a probe lacks memory or room for temporary files as well."""
    try:
        with closing(sqlite3.connect("")) as probe:  # in a temporary file, as soon as its cache is full
            probe.execute("PRAGMA cache_size = 1")
            probe.execute("CREATE TABLE probe (bytes)")
            probe.execute("INSERT INTO probe VALUES (?)", (bytes(PROBE_BYTES),))
    except (MemoryError, sqlite3.Error):
        return True
    return False


def is_file_broken(uri: str) -> bool:
    """Return whether a probe finds the file broken as well, as far as it gets in `CHECK_SECONDS`."""
    end = time.monotonic() + CHECK_SECONDS
    try:
        with closing(sqlite3.connect(uri, uri=True)) as probe:
            probe.set_progress_handler(lambda: int(time.monotonic() > end), 10_000)
            return probe.execute("PRAGMA quick_check(1)").fetchone() != ("ok",)
    except sqlite3.Error as error:
        return primary_code(error) != sqlite3.SQLITE_INTERRUPT


def report(error: BaseException, whose: str, sql: str) -> None:
    """Log a mistake with its traceback, the first time that it is met at its place in the code."""
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
