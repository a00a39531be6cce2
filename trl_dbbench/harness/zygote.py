"""Starts a process for each episode: `python -m trl_dbbench.harness.zygote HARNESS`.

Imports a function once and forks for each line on standard input, which takes milliseconds; a command is
started by the shell. Lines are JSON: `{"id", "task", "log", "seconds"}`, or `{"id"}` alone to end one. For
each process that has ended one comes back: `{"id", "answer", "fault"}`. At the end of its input it ends all
processes.

Loads nothing but the standard library and the user's module.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

POLL_SECONDS = 0.02
"""Seconds between two looks at the processes, while there are any."""


@dataclass
class Process:
    pid: int
    answer: str  # the file that it writes
    ends_by: float
    late: bool = False


def serve(start: Callable[[dict[str, Any], str], None], source: IO[bytes], sink: IO[str]) -> None:
    """Start and watch processes until the end of `source`."""
    running: dict[str, Process] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        rest = b""
        while True:
            if selector.select(POLL_SECONDS if running else None):
                read = os.read(source.fileno(), 1 << 16)
                if not read:
                    break
                *lines, rest = (rest + read).split(b"\n")
                for asked in map(json.loads, lines):
                    if "task" in asked:
                        running[asked["id"]] = begin(start, asked)
                    elif asked["id"] in running:
                        kill(running[asked["id"]])
            for name, process in list(running.items()):
                if (end := ended(process)) is not None:
                    del running[name]
                    print(json.dumps({"id": name, **end}), file=sink, flush=True)
    for process in running.values():
        kill(process)


def begin(start: Callable[[dict[str, Any], str], None], asked: dict[str, Any]) -> Process:
    """Fork a process for an episode, in a group of its own."""
    answer = f"{asked['log']}.answer"
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for descriptor, stream in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(descriptor, stream)
            os.closerange(3, 256)
            start(asked["task"], answer)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return Process(pid, answer, time.monotonic() + asked["seconds"])


def kill(process: Process) -> None:
    """End a process and all that it has started in its group."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            end(process.pid, signal.SIGKILL)


def ended(process: Process) -> dict[str, Any] | None:
    """Return what a process has left, if it has ended; end one whose time is over."""
    pid, status = os.waitpid(process.pid, os.WNOHANG)
    if pid == 0:
        if not process.late and time.monotonic() > process.ends_by:
            process.late = True
            kill(process)
        return None
    kill(process)  # what it has started and left
    if process.late:
        return {"answer": None, "fault": "it did not end in time"}
    if status:
        code = os.waitstatus_to_exitcode(status)
        return {"answer": None, "fault": f"signal {-code}" if code < 0 else f"exit code {code}"}
    with contextlib.suppress(FileNotFoundError):
        return {"answer": json.loads(read(process.answer)), "fault": None}
    return {"answer": None, "fault": None}


# --- what is started ----------------------------------------------------------------------------------


def of_function(name: str) -> Callable[[dict[str, Any], str], None]:
    """Return a starter that calls the function of this dotted path, or `file.py:name`, with the task."""
    from trl_dbbench.harness.task import HarnessTask
    from trl_dbbench.utils.lookup import look_up

    function: Any = look_up("harness", name, {})

    def start(task: dict[str, Any], answer: str) -> None:
        os.environ.update(environment(task))
        given = function(HarnessTask(**task))
        Path(answer).write_text(json.dumps(given, default=str), encoding="utf-8")

    return start


def of_command(command: str) -> Callable[[dict[str, Any], str], None]:
    """Return a starter of a shell command. What it writes to standard output is its answer."""

    def start(task: dict[str, Any], answer: str) -> None:
        said = f"{answer}.text"
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 1)
        child = os.spawnve(os.P_WAIT, "/bin/sh", ["sh", "-c", command], {**os.environ, **environment(task)})
        if child:
            os._exit(child if child > 0 else 128 - child)
        Path(answer).write_text(json.dumps(read(said).strip() or None), encoding="utf-8")

    return start


def read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")


def environment(task: dict[str, Any]) -> dict[str, str]:
    """Return the variables that a program finds its task by; the first two are the OpenAI SDK's own."""
    return {
        "OPENAI_BASE_URL": task["base_url"],
        "OPENAI_API_KEY": task["api_key"],
        "DBBENCH_SQL_URL": task["sql_url"],
        "DBBENCH_QUESTION": task["question"],
        "DBBENCH_TASK": json.dumps(task, ensure_ascii=False),
    }


def is_function(harness: str) -> bool:
    """Return whether a harness names a function, not a command: one word with a dot or a colon."""
    return (
        " " not in harness.strip()
        and ("." in harness or ":" in harness)
        and "/" not in harness.partition(":")[2]
    )


def main() -> None:
    harness = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the user's module prints is no answer
    try:
        start = of_function(harness) if is_function(harness) else of_command(harness)
    except BaseException as error:
        print(json.dumps({"id": None, "fault": str(error)}), file=answers, flush=True)
        return
    print(json.dumps({"id": None, "fault": None}), file=answers, flush=True)
    serve(start, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
