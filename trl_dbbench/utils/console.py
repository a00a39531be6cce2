"""Console output: progress bars on a terminal, plain lines in a file or pipe, and no warning twice."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterable, Sequence

LIBRARIES = ("transformers", "datasets", "huggingface_hub", "trl", "accelerate", "peft")
"""Libraries whose warnings are shown once."""

NOT_OURS = (r"`is_gradient_checkpointing` is deprecated",)
"""Patterns of warnings that one library causes in another; neither users nor this package can avoid them."""

HUB_REQUESTS = "huggingface_hub.utils._http"
"""Name of the logger that warns about every failed request and every retry."""

HUB_OUTAGE_SECONDS = 60.0
"""Longest gap, in seconds, between retries of one outage."""


def printable(text: str) -> str:
    """Return an agent's text with spaces in place of control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text)


def columns(rows: Iterable[tuple[str, Sequence[str]]], numbers: bool = False) -> list[str]:
    """Return one line per row, with names and values in aligned columns; `numbers` right-aligns values."""
    table = [[name, *values] for name, values in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    align = str.rjust if numbers else str.ljust
    return [
        "  ".join([name.ljust(widths[0]), *map(align, values, widths[1:])]).rstrip()
        for name, *values in table
    ]


def on_terminal() -> bool:
    """Return whether stderr, where bars and warnings go, is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def shows_bars() -> bool:
    """Return whether progress bars are visible: on a terminal or in a notebook."""
    from transformers.utils import is_in_notebook

    return on_terminal() or is_in_notebook()


def plain_output(rank: int = 0) -> None:
    """Configure the output of this process's libraries; Python's warnings are shown on rank 0 only."""
    # importing them creates their handlers
    import datasets
    import huggingface_hub.utils
    import transformers.utils.logging

    if rank:
        warnings.simplefilter("ignore")
    for message in NOT_OURS:
        warnings.filterwarnings("ignore", message, FutureWarning)
    handlers = list(logging.getLogger().handlers)
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        handlers += logger.handlers
        if logger.handlers:
            logger.propagate = False  # otherwise the root's handler repeats every message
    for handler in handlers:
        if not any(isinstance(each, SaidOnce) for each in handler.filters):
            handler.addFilter(SaidOnce())
    if on_terminal() and not rank:
        return
    for library in (datasets.utils, huggingface_hub.utils):
        library.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # keeps stdout and stderr in order


class SaidOnce(logging.Filter):
    """Filter that passes each library warning once, and one line per outage of the hub.

    This package's own warnings always pass: a repeated warning reports a repeated event.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()
        self._outage = float("-inf")  # time.monotonic() of the hub's last failure

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING or record.name.partition(".")[0] == "trl_dbbench":
            return True
        text = record.getMessage()
        if record.name == HUB_REQUESTS:
            now = time.monotonic()
            begins, self._outage = now - self._outage > HUB_OUTAGE_SECONDS, now
            record.msg, record.args = "The hub does not answer and is asked again: %s", (text,)
            return begins
        new = text not in self._said
        self._said.add(text)
        return new
