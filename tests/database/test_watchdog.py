"""Statements that take too long are stopped, whatever else the process lacks."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from trl_dbbench.database.server.watchdog import Watch, Watchdog


def test_a_process_that_may_start_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's limit on processes, met once, ended the watchdog: no statement was stopped any more."""
    killed = threading.Event()

    def kill(what: str = "QUERY") -> bool:
        killed.set()
        return True

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(Watchdog()) as watchdog:
        with watchdog(Watch(lambda: 60.0, kill, lambda: None)):
            monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with watchdog(Watch(lambda: 0.0, kill, lambda: None)) as watch:
                assert killed.wait(60)
                killed.clear()
            assert watch.fired and watch.heard
