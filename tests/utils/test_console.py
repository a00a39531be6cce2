"""Plain lines where no terminal is: no warning twice, and an outage of the hub in one line."""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace

from trl_dbbench.utils import console
from trl_dbbench.utils.console import HUB_REQUESTS, SaidOnce


def said(*warnings: tuple[str, str]) -> list[str]:
    """What a handler with the filter writes of warnings by these loggers."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(SaidOnce())
    for name, text in warnings:
        handler.handle(logging.LogRecord(name, logging.WARNING, "", 0, text, None, None))
    return stream.getvalue().splitlines()


def test_a_library_warns_once_and_this_package_each_time():
    """What this package says again has happened again."""
    library, ours = ("transformers.modeling_utils", "old"), ("trl_dbbench.database", "the server is away")
    assert said(library, library, ours, ours) == ["old", "the server is away", "the server is away"]
    assert said(library, ("transformers.modeling_utils", "new")) == ["old", "new"]


def test_an_outage_of_the_hub_is_one_line(monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 600.0])
    # threads of servers, which other tests leave, read the real clock
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    failed = (HUB_REQUESTS, "'[Errno 111] Connection refused' thrown while requesting HEAD https://hub/model")
    retry = (HUB_REQUESTS, "Retrying in 1s [Retry 1/5].")
    line = f"The hub does not answer and is asked again: {failed[1]}"
    assert said(failed, retry, failed, failed) == [line, line], "the last is ten minutes later"
