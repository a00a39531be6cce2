"""The programs that play the episodes, each in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_dbbench.errors import ConfigError, EnvironmentFault

OUTPUT_CHARACTERS = 4_000
"""Number of last characters kept of a program's output."""

END_SECONDS = 10
"""Seconds that the process which starts the programs gets to end them, before it is killed."""


@dataclass(frozen=True)
class End:
    """The end of a program: its answer, or the reason why it failed, and its output."""

    answer: Any
    fault: str | None
    output: str


class Running:
    """A running program. `end` waits for its end; `stop` ends it."""

    def __init__(self, programs: Programs, name: str, log: Path):
        self._programs, self._name, self._log = programs, name, log
        self._ended: Future[dict[str, Any] | None] = Future()  # `None`: unknown, as the zygote has died
        self._waiting: asyncio.Future[dict[str, Any] | None] | None = None

    def stop(self, why: str) -> None:
        """End the program and all processes that it has started; `why` becomes its fault."""
        self._programs.ask({"id": self._name, "why": why})

    async def end(self, seconds: float) -> End | None:
        """Wait for the program's end; return `None` if it has not ended after these seconds."""
        self._waiting = self._waiting or asyncio.wrap_future(self._ended)
        await asyncio.wait([self._waiting], timeout=seconds)
        return self._read(self._waiting.result()) if self._waiting.done() else None

    def _read(self, end: dict[str, Any] | None) -> End:
        if end is None:
            raise EnvironmentFault("the process that starts the programs of the harness is dead")
        output = ""
        with suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4 * OUTPUT_CHARACTERS))
            output = file.read().decode("utf-8", errors="replace")[-OUTPUT_CHARACTERS:]
        for ending in ("", ".answer", ".answer.text", ".answer.task"):
            Path(f"{self._log}{ending}").unlink(missing_ok=True)
        return End(end["answer"], end["fault"], output)


class Programs:
    """The processes of a harness. They end with `close`, with this object, and with this process."""

    def __init__(self, harness: str):
        if not harness.strip():
            raise ConfigError("harness is empty; name a function, such as my_agent:run, or a command line.")
        self._numbers = itertools.count()
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()  # for `_running`
        self._writing = threading.Lock()  # a second lock: a write may wait for `note`, which takes the first
        self._folder = tempfile.TemporaryDirectory(prefix="dbbench-harness-", ignore_cleanup_errors=True)
        path = os.pathsep.join(
            filter(None, [str(Path.cwd()), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
        )
        self._zygote = subprocess.Popen(
            (sys.executable, "-m", "trl_dbbench.harness.zygote", harness),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # a signal to the training is not for the programs
        )
        assert self._zygote.stdout is not None
        first = self._zygote.stdout.readline()
        fault = json.loads(first)["fault"] if first else "its process ended at once"
        if fault is not None:
            self._zygote.wait()
            raise ConfigError(f"the harness {harness!r} cannot be started: {fault}")
        self.close = weakref.finalize(self, _end, self._zygote, self._folder)
        threading.Thread(target=_read, args=(weakref.ref(self), self._zygote.stdout), daemon=True).start()

    def start(self, task: dict[str, Any]) -> Running:
        """Start the program of an episode."""
        name = str(next(self._numbers))
        running = Running(self, name, Path(self._folder.name) / name)
        with self._lock:
            self._running[name] = running
        self.ask({"id": name, "task": task, "log": str(running._log)})
        if self._zygote.poll() is not None:
            self.lose()
        return running

    def ask(self, line: dict[str, Any]) -> None:
        assert self._zygote.stdin is not None
        with self._writing, suppress(BrokenPipeError, ValueError):
            self._zygote.stdin.write(json.dumps(line).encode() + b"\n")
            self._zygote.stdin.flush()

    def note(self, end: dict[str, Any]) -> None:
        """Tell an episode how its program ended."""
        with self._lock:
            running = self._running.pop(end["id"], None)
        if running is not None and not running._ended.done():
            running._ended.set_result(end)

    def lose(self) -> None:
        """Tell all episodes that the process which starts the programs is dead."""
        with self._lock:
            lost, self._running = list(self._running.values()), {}
        for running in lost:
            if not running._ended.done():
                running._ended.set_result(None)


def _read(programs: weakref.ref[Programs], ends: Any) -> None:
    for line in ends:
        if (there := programs()) is None:
            return
        there.note(json.loads(line))
    if (there := programs()) is not None:
        there.lose()


def _end(zygote: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    assert zygote.stdin is not None
    with suppress(BrokenPipeError):
        zygote.stdin.close()
    try:
        zygote.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        zygote.kill()
        zygote.wait()
    folder.cleanup()
