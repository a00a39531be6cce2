"""Shutdown of a server, for every transport.

```
the transport ends      open episodes end; the server ends
SIGTERM, Ctrl-C         no new episodes; after --drain-seconds, or at a second signal, running statements
                        end, then episodes, as environment faults; the server ends
```
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from trl_dbbench.integrations.serving.desk import STOPPED, Desk

logger = logging.getLogger(__name__)

REPLY_SECONDS = 0.5
"""Seconds to send the replies to the last calls, after all episodes have ended."""


class Stop:
    """Handler of SIGTERM and Ctrl-C, from before the database is opened until it is closed.

    Before serving, a signal ends the program; while serving, it asks the server to stop; afterwards it has no
    effect: a client may send one if closing takes long, and a half-closed database would leave something
    behind.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()
        self.urged = asyncio.Event()
        """Set by a second signal, which ends the wait for open episodes."""

    @contextmanager
    def taken(self) -> Iterator[Stop]:
        """Handle the signals within this block."""
        earlier = {number: signal.signal(number, self._came) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    async def wait(self) -> None:
        """Wait until a signal asks the server to stop."""
        self._loop = asyncio.get_running_loop()
        await self._asked.wait()

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None:
            raise SystemExit(128 + number)
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._note)

    def _note(self) -> None:
        (self.urged if self._asked.is_set() else self._asked).set()


async def until_stopped(
    serving: asyncio.Task[None], desk: Desk, stop: Stop, drain_seconds: float, end: Callable[[], object]
) -> None:
    """Wait until the transport ends or a signal arrives; then end all episodes and the transport."""
    asked = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    if asked.done() and drain_seconds and desk.open:
        logger.info(
            "Stopping: %d episodes may go on for %g s. The same signal again ends them.",
            desk.open,
            drain_seconds,
        )
        ways = [serving, *map(asyncio.create_task, (desk.drain(drain_seconds), stop.urged.wait()))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for each in ways[1:]:
            each.cancel()
    await desk.close(STOPPED if asked.done() else None)
    if asked.done():  # the last replies are being sent
        await asyncio.wait({serving}, timeout=REPLY_SECONDS)
    asked.cancel()
    end()
    with suppress(asyncio.CancelledError):
        await serving
