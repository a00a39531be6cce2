"""Waiting for what another thread, or another process, brings about."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], bool], what: str = "what was waited for", seconds: float = 60.0
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.01)
