"""The time that the statement which this thread executes has left.

SQLite calls our functions one by one, and nothing can interrupt a call. A function that loops over texts asks
for the time in its loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTime(Exception):
    """The statement has used up its time."""


class _Deadline(threading.local):
    at = float("inf")


_deadline = _Deadline()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """A block in which this thread runs out of time after so many seconds."""
    _deadline.at = time.monotonic() + seconds
    try:
        yield
    finally:
        _deadline.at = float("inf")


def is_late(grace: float = 0.0) -> bool:
    """Whether the time is over, and so many more seconds have passed."""
    return time.monotonic() >= _deadline.at + grace


def check_time() -> None:
    """Raises OutOfTime if the time is over."""
    if is_late():
        raise OutOfTime
