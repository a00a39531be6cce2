"""Start a process for each episode: `python -m trl_dbbench.harness.zygote HARNESS`.

A function is imported once, and each episode's process is forked, which takes milliseconds; a command is
started by the shell. Lines on standard input are JSON: `{"id", "task", "log"}` starts a process,
`{"id", "why"}` ends one. For each process that has ended, a line goes to standard output:
`{"id", "answer", "fault"}`. At the end of the input all processes are ended.

Apart from the user's module, only the standard library and small modules of this package are imported.
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
"""Seconds between two checks of the processes, while there are any."""

MAX_ANSWER = 1 << 20
"""Largest size of an answer, in bytes."""

MAX_FILE = 1 << 30
"""Largest size of a file that a program writes, its output included, in bytes."""

MAX_VARIABLE = 100_000
"""Bound of an environment variable's size, in bytes; Linux starts no process with one above 128 KiB."""

Start = Callable[[dict[str, Any], str], None]
"""Function that plays a task and writes the answer to a file."""


@dataclass
class Process:
    pid: int
    answer: str  # the file that it writes
    why: str | None = None
    """The reason, if it was ended."""


class Zygote:
    """A server that starts and watches processes."""

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
        """Fork a process for an episode, in its own process group."""
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
    """Kill a process and all others in its process group."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            end(process.pid, signal.SIGKILL)


def ended(process: Process) -> dict[str, Any] | None:
    """Return the answer or fault of a process that has ended, else `None`."""
    pid, status = os.waitpid(process.pid, os.WNOHANG)
    if pid == 0:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the processes that it left running
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


# --- starters -----------------------------------------------------------------------------------------


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

    The command's standard output is the answer; a JSON list there is a list of values or rows.

    Raises:
        ValueError: if the shell finds no program of that name.
    """
    from trl_dbbench.harness.answer import as_answer

    program = command.split()[0]
    plain = re.fullmatch(r"[\w./+-]+", program)  # leave others to the shell, such as `A=1 agent`
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
    """Return the environment variables that describe the task; the OpenAI SDK reads the first two itself.

    Args:
        file: file to write the task to, as variables that are too long are left out.
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
    os.dup2(2, 1)  # output of the user's module must not end up among the answers
    fault, start = None, None
    try:
        start = of_function(harness) if is_function(harness) else of_command(harness)
    except BaseException as error:
        fault = str(error)
    print(json.dumps({"fault": fault}), file=answers, flush=True)
    if start is not None:
        Zygote(start, sys.stdin.buffer, answers).serve()
    os._exit(0)  # without waiting for threads of the user's module


if __name__ == "__main__":
    main()
