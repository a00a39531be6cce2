"""Watchdog that stops statements that run too long, with one thread for all statements of a database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

LOOK_SECONDS = 0.05
"""Seconds between checks of the running statements."""

HANG_UP_SECONDS = 0.4
"""Seconds to wait for a killed statement to end before its connection is closed. Undoing a large change takes
about as long as making it did, so we do not wait for that."""


class Watchdog:
    """Thread that kills statements over their time limit.

    ```python
    with watchdog(Watch(left, kill, hang_up)) as watch:
        ...
    watch.fired  # whether kill was called
    watch.heard  # whether the server accepted it
    watch.hung_up  # whether that did not help, and hang_up was called
    ```

    `left` returns the seconds for which the block may still run; it is called repeatedly.
    """

    def __init__(self) -> None:
        self._watches: set[Watch] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def __call__(self, watch: Watch) -> Watch:
        with self._lock:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dbbench-watchdog", daemon=True)
                self._thread.start()
        return watch

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with self._lock:
                self._watches = {watch for watch in self._watches if not watch.done}
                late = {watch for watch in self._watches if watch.left() <= 0}
                self._watches -= late
            for watch in late:
                # a kill waits for the server; in its own thread it does not delay the others
                try:
                    threading.Thread(target=watch.fire, daemon=True).start()
                except RuntimeError:  # the process cannot start more threads
                    watch.fire()


@dataclass(eq=False)
class Watch:
    """Watch over one statement. Its kill is never sent after the block has ended."""

    left: Callable[[], float]
    kill: Callable[..., bool]
    hang_up: Callable[[], None]
    fired: bool = False
    heard: bool = False
    hung_up: bool = False
    done: bool = False
    _ends: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        with self._ends:
            self.done = True
            self._ends.notify()

    def fire(self) -> None:
        with self._ends:
            if self.done:
                return
            self.fired = True
            self.heard = self.kill()
            # a server that does not accept the kill has failed; the connection's own time limit will notice
            if not self.heard or self._ends.wait_for(lambda: self.done, HANG_UP_SECONDS):
                return
            self.hung_up = True
            self.hang_up()
        self.kill("CONNECTION")  # an agent's code can handle the error of a KILL QUERY and continue
