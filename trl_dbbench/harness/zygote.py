"""Starts a process for each episode: `python -m trl_dbbench.harness.zygote HARNESS`.

Imports a function once and forks for each line on standard input, which takes milliseconds; a command is
started by the shell. Lines are JSON: `{"id", "task", "log"}` starts one, `{"id", "why"}` ends one. For each
process that has ended a line comes back: `{"id", "answer", "fault"}`. At the end of its input it ends all.

Loads nothing but the standard library and the user's module.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

POLL_SECONDS = 0.02
"""Seconds between two looks at the processes, while there are any."""

MAX_ANSWER = 1 << 20
"""Bytes of an answer at most."""

MAX_FILE = 1 << 30
"""Bytes of a file at most that a program writes, its output included."""

MAX_VARIABLE = 100_000
"""Bytes of an environment variable at most; Linux starts no process with a longer one than 128 KiB."""

Start = Callable[[dict[str, Any], str], None]
"""Plays a task, and writes the answer to a file."""


@dataclass
class Process:
    pid: int
    answer: str  # the file that it writes
    why: str | None = None
    """Why it was ended, if it was."""


class Zygote:
    """Starts and watches processes."""

    def __init__(self, start: Start, source: IO[bytes], sink: IO[str]):
        self._start, self._source, self._sink = start, source, sink
        self._running: dict[str, Process] = {}

    def serve(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._source, selectors.EVENT_READ)
                self._mine = [self._sink.fileno(), selector.fileno()]
                self._serve(selector)
        finally:
            for process in self._running.values():
                kill(process)

    def _serve(self, selector: selectors.BaseSelector) -> None:
        rest = b""
        while True:
            if selector.select(POLL_SECONDS if self._running else None):
                read = os.read(self._source.fileno(), 1 << 16)
                if not read:
                    return
                *lines, rest = (rest + read).split(b"\n")
                for asked in map(json.loads, lines):
                    self._do(asked)
            for name, process in list(self._running.items()):
                if (end := ended(process)) is not None:
                    del self._running[name]
                    self._say(name, **end)

    def _say(self, name: str, answer: Any = None, fault: str | None = None) -> None:
        print(json.dumps({"id": name, "answer": answer, "fault": fault}), file=self._sink, flush=True)

    def _do(self, asked: dict[str, Any]) -> None:
        name = asked["id"]
        if "task" not in asked:
            if name in self._running:
                self._running[name].why = asked["why"]
                kill(self._running[name])
            return
        try:
            self._running[name] = self._begin(asked)
        except OSError as error:
            self._say(name, fault=f"no process can be started: {error}")

    def _begin(self, asked: dict[str, Any]) -> Process:
        """Fork a process for an episode, in a group of its own."""
        answer = f"{asked['log']}.answer"
        if (pid := os.fork()) == 0:
            code = 1
            try:
                os.setsid()
                for each in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(each, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE, MAX_FILE))
                nothing = os.open(os.devnull, os.O_RDONLY)
                log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                for descriptor, stream in ((nothing, 0), (log, 1), (log, 2)):
                    os.dup2(descriptor, stream)
                for descriptor in (nothing, log, *self._mine):
                    os.close(descriptor)
                self._start(asked["task"], answer)
                code = 0
            except SystemExit as exit:
                code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(BaseException):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code & 255)
        return Process(pid, answer)


def kill(process: Process) -> None:
    """End a process and all that it has started in its group."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            end(process.pid, signal.SIGKILL)


def ended(process: Process) -> dict[str, Any] | None:
    """Return what a process has left, if it has ended."""
    pid, status = os.waitpid(process.pid, os.WNOHANG)
    if pid == 0:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it has started and left
    if process.why is not None:
        return {"fault": process.why}
    if status:
        code = os.waitstatus_to_exitcode(status)
        return {"fault": f"signal {-code}" if code < 0 else f"exit code {code}"}
    try:
        if Path(process.answer).stat().st_size > MAX_ANSWER:
            return {"fault": f"its answer is longer than {MAX_ANSWER} bytes"}
        answer = Path(process.answer).read_text(encoding="utf-8", errors="replace")
        return {"answer": json.loads(answer)}
    except (OSError, ValueError, RecursionError):
        return {}


# --- what is started ----------------------------------------------------------------------------------


def of_function(name: str) -> Start:
    """Return a starter that calls the function of this dotted path, or `file.py:name`, with the task."""
    from trl_dbbench.harness.answer import as_answer
    from trl_dbbench.harness.task import HarnessTask
    from trl_dbbench.utils.lookup import look_up

    function: Any = look_up("harness", name, {})

    def start(task: dict[str, Any], answer: str) -> None:
        os.environ.update(environment(task, f"{answer}.task"))
        given = function(HarnessTask(**task))
        if inspect.iscoroutine(given):
            given = asyncio.run(given)
        Path(answer).write_text(json.dumps(as_answer(given)), encoding="utf-8")

    return start


def of_command(command: str) -> Start:
    """Return a starter of a shell command.

    What it writes to standard output is its answer; a JSON list there is a list of values or rows.

    Raises:
        ValueError: if the shell knows no program of that name.
    """
    from trl_dbbench.harness.answer import as_answer

    program = command.split()[0]
    plain = re.fullmatch(r"[\w./+-]+", program)  # others are for the shell to read, such as `A=1 agent`
    look = ("/bin/sh", "-c", f"command -v {program}")
    if plain and subprocess.run(look, stdout=subprocess.DEVNULL).returncode:
        raise ValueError(
            f"there is no program {program!r}. Name one, or a function: module.name, or file.py:name."
        )

    def start(task: dict[str, Any], answer: str) -> None:
        said = f"{answer}.text"
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 1)
        told = environment(task, f"{answer}.task")
        child = os.spawnve(os.P_WAIT, "/bin/sh", ["sh", "-c", command], {**os.environ, **told})
        if child:
            os._exit(child if child > 0 else 128 - child)
        with Path(said).open("rb") as file:
            text = file.read(MAX_ANSWER + 1).decode("utf-8", errors="replace").strip()
        given: Any = text or None
        if text.startswith("["):
            with contextlib.suppress(ValueError, RecursionError):
                given = as_answer(json.loads(text))
        Path(answer).write_text(json.dumps(given), encoding="utf-8")

    return start


def environment(task: dict[str, Any], file: str) -> dict[str, str]:
    """Return the variables that a program finds its task by; the first two are the OpenAI SDK's own.

    Args:
        file: where the task is written, for variables that are too long.
    """
    here = ",".join(filter(None, ["127.0.0.1", *map(os.environ.get, ("no_proxy", "NO_PROXY"))]))
    told = json.dumps(task, ensure_ascii=False)
    Path(file).write_text(told, encoding="utf-8")
    variables = {
        "OPENAI_BASE_URL": task["base_url"],
        "OPENAI_API_KEY": task["api_key"],
        "DBBENCH_SQL_URL": task["sql_url"],
        "DATABASE_URL": task["database_url"],
        "DBBENCH_QUESTION": task["question"],
        "DBBENCH_TASK": told,
        "DBBENCH_TASK_FILE": file,
        "no_proxy": here,
        "NO_PROXY": here,
    }
    return {name: text for name, text in variables.items() if len(os.fsencode(text)) < MAX_VARIABLE}


def is_function(harness: str) -> bool:
    """Return whether a harness names a function: `module.name`, `module:name` or `file.py:name`."""
    place, sign, name = harness.rpartition(":") if ":" in harness else harness.rpartition(".")
    in_a_file = sign == ":" and place.endswith(".py")
    return name.isidentifier() and (in_a_file or all(part.isidentifier() for part in place.split(".")))


def main() -> None:
    for each in (signal.SIGINT, signal.SIGTERM):  # the training decides when it ends
        signal.signal(each, signal.SIG_IGN)
    harness = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the user's module prints is no answer
    fault, start = None, None
    try:
        start = of_function(harness) if is_function(harness) else of_command(harness)
    except BaseException as error:
        fault = str(error)
    print(json.dumps({"fault": fault}), file=answers, flush=True)
    if start is not None:
        Zygote(start, sys.stdin.buffer, answers).serve()
    os._exit(0)  # without the threads of the user's module


if __name__ == "__main__":
    main()
