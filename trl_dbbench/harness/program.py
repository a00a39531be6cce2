"""The programs that play the episodes, each in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_dbbench.errors import ConfigError

OUTPUT_CHARACTERS = 4_000
"""Characters kept of a program's output, its last ones."""


@dataclass(frozen=True)
class End:
    """How a program ended: its answer, or what went wrong with it, and what it printed."""

    answer: Any
    fault: str | None
    output: str


class Programs:
    """The processes of a harness, for one event loop. Started by the first one, ended by `close`.

    Args:
        harness: the dotted path of a function, `file.py:name`, or a command line.
        seconds: time limit of a process.
    """

    def __init__(self, harness: str, seconds: float):
        self._harness, self._seconds = harness, seconds
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._zygote: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="dbbench-harness-")

    async def run(self, task: dict[str, Any]) -> End:
        """Run the program of an episode to its end.

        Raises:
            ConfigError: if the harness cannot be imported.
        """
        zygote = await self._started()
        name = str(next(self._numbers))
        log = Path(self._folder.name) / name
        self._waiting[name] = asyncio.get_running_loop().create_future()
        self._ask(zygote, {"id": name, "task": task, "log": str(log), "seconds": self._seconds})
        try:
            end = await self._waiting[name]
        except asyncio.CancelledError:
            self._ask(zygote, {"id": name})
            raise
        finally:
            self._waiting.pop(name, None)
        output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        for file in Path(self._folder.name).glob(f"{name}*"):
            file.unlink(missing_ok=True)
        return End(end["answer"], end["fault"], output[-OUTPUT_CHARACTERS:])

    def _ask(self, zygote: asyncio.subprocess.Process, line: dict[str, Any]) -> None:
        assert zygote.stdin is not None
        if not zygote.stdin.is_closing():
            zygote.stdin.write(json.dumps(line).encode() + b"\n")

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._zygote is None:
                here = str(Path(__file__).parents[2])
                path = os.pathsep.join(filter(None, [str(Path.cwd()), here, os.environ.get("PYTHONPATH")]))
                self._zygote = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "trl_dbbench.harness.zygote", self._harness),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": path},
                    limit=1 << 24,
                )
                assert self._zygote.stdout is not None
                first = await self._zygote.stdout.readline()
                fault = json.loads(first)["fault"] if first else "its process ended at once"
                if fault is not None:
                    raise ConfigError(f"the harness {self._harness!r} cannot be started: {fault}")
                self._reading = asyncio.create_task(self._read(self._zygote.stdout))
            return self._zygote

    async def _read(self, ends: asyncio.StreamReader) -> None:
        while line := await ends.readline():
            end = json.loads(line)
            waiting = self._waiting.get(end["id"])
            if waiting is not None and not waiting.done():
                waiting.set_result(end)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(
                    {"answer": None, "fault": "the process that starts the programs was killed"}
                )

    async def close(self) -> None:
        """End all processes."""
        if self._zygote is not None and self._zygote.stdin is not None:
            self._zygote.stdin.close()
            await self._zygote.wait()
        if self._reading is not None:
            await self._reading
        self._folder.cleanup()
