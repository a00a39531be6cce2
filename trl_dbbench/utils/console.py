"""What a program writes: bars on a terminal, plain lines into a file or a pipe, and no warning twice."""

from __future__ import annotations

import logging
import sys
import time
import warnings

LIBRARIES = ("transformers", "datasets", "huggingface_hub", "trl", "accelerate", "peft")
"""Those with warnings, some of which have handlers of their own."""

NOT_OURS = (r"`is_gradient_checkpointing` is deprecated",)
"""Warnings of a library about another library, of which neither the user nor this package can be rid."""

HUB_REQUESTS = "huggingface_hub.utils._http"
"""Warns of every request that failed, and again of every retry."""

HUB_OUTAGE_SECONDS = 60.0
"""Retries that are closer than this are of one outage."""


def on_terminal() -> bool:
    """Whether somebody watches: progress bars and warnings go to stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def shows_bars() -> bool:
    """Whether a progress bar can be seen: on a terminal or in a notebook."""
    from transformers.utils import is_in_notebook

    return on_terminal() or is_in_notebook()


def plain_output(rank: int = 0) -> None:
    """Sets up what this process's libraries write.

    Args:
        rank: another than 0 leaves Python's warnings to the main process, which has the same.
    """
    # they make their handlers when they are imported
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
            logger.propagate = False  # or it says all twice: here, and by the root's handler
    for handler in handlers:
        if not any(isinstance(each, SaidOnce) for each in handler.filters):
            handler.addFilter(SaidOnce())
    if on_terminal() and not rank:
        return
    for library in (datasets.utils, huggingface_hub.utils):
        library.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # in order with what goes to stderr


class SaidOnce(logging.Filter):
    """Lets a library's warning pass once, and one line for all retries of an outage of the hub.

    This package's own warnings all pass: what it says again has happened again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()
        self._outage = float("-inf")  # when the hub last did not answer, time.monotonic()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING or record.name.partition(".")[0] == "trl_dbbench":
            return True
        text = record.getMessage()
        if record.name == HUB_REQUESTS:
            begins = time.monotonic() - self._outage > HUB_OUTAGE_SECONDS
            self._outage = time.monotonic()
            record.msg, record.args = "The hub does not answer and is asked again: %s", (text,)
            return begins
        new = text not in self._said
        self._said.add(text)
        return new
