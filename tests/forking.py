"""Python programs as processes of their own that begin with torch, transformers and TRL imported.

Importing them takes a process five seconds. `Forked` is a `subprocess.Popen` whose process is forked from a server
that has imported them; what that starts of the like is forked from it in turn:

```
tests ── server                       imports, starts no thread, forks what it is asked for
  ├───── a recipe                     a child of the tests, with its own session, folder, environment and streams
  └───── accelerate launch
           └── a recipe
```

xdist's workers are forked, too. Before such a worker does anything, a server of its own is forked from it:

```
pytest -n 4 ── server
  └─────────── a worker ── server
                 └──────── a recipe
```

Programs that use DeepSpeed are forked from a second server, which has imported it as well. It starts with the first of
them, in that one's environment. A program whose environment differs from the server's in what imports read is started as usual, and so is
one that is neither a script nor a module. Tests of what happens while a program imports should start it as usual themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import io
import logging
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from execnet.gateway_io import popen_bootstrapline
from tqdm import tqdm

PRELOADED = (
    "trl_dbbench.training.trainer",
    "trl_dbbench.training.ppo",
    "trl_dbbench.cli.start",
    "accelerate.commands.launch",
)
PRELOADED += ("peft.tuners.lora", "sqlglot.optimizer", "tqdm.contrib.logging")
BESIDE = {"DS_ACCELERATOR": "deepspeed"}
"""Environment variable -> the package that a separate server, for programs with that variable, imports as well."""
READ_BY_IMPORTS = ("PYTHONHASHSEED", "OMP_", "MKL_", "HF_", "TRANSFORMERS_", "TORCH_HOME", "XDG_", "HOME")
PR_SET_CHILD_SUBREAPER = 36
MESSAGE_BYTES = 1 << 17
WORKER = ["-u", "-c", popen_bootstrapline]
"""The words after Python's name of what xdist starts."""
WORKERS_SERVER = "FORKING_SERVER"
"""The environment's name for the descriptor by which a worker reaches its server."""
ROOM = "-" * 8_000
"""Where the system keeps the server's command line and environment, those of what is forked are to fit in."""

Popen = subprocess.Popen  # where tests put `Forked` in its place
INIT = Popen.__init__
PATH = [each for each in sys.path[1:] if each not in os.environ.get("PYTHONPATH", "").split(":")]

origin: dict[str, str] = {}
"""The server's environment."""
set_by_imports: dict[str, str] = {}
"""What of it was set by what the server imported."""


def can_be_forked(command: object, env: Mapping[str, str]) -> bool:
    """Return whether a fork comes to the same: for a script or module of this Python, or a worker of xdist, in whose
    environment imports do the same."""
    if not isinstance(command, list | tuple) or str(command[0]) != sys.executable:
        return False
    program = next((str(word) for word in command[1:] if word != "-u"), "")
    if program != "-m" and not program.endswith(".py") and command[1:] != WORKER:
        return False
    env = set_by_imports | dict(env)
    names = (name for name in {*env, *origin} if name.startswith(READ_BY_IMPORTS))
    return all(env.get(name) == origin.get(name) for name in names)


# --- in the tests ---------------------------------------------------------------------------------

_asks = threading.Lock()
"""One asks at a time: the server answers in the order in which it was asked."""


_servers: dict[tuple[str, ...], tuple[socket.socket, Popen | None]] = {}


def server(env: Mapping[str, str] = os.environ) -> tuple[socket.socket, Popen | None]:
    """The way to the server for programs with this environment, and its process if this one has started it. It ends
    with this one."""
    beside = tuple(package for name, package in BESIDE.items() if name in env)
    if beside not in _servers:
        _servers[beside] = _reach_or_start(beside, env)
    return _servers[beside]


def _reach_or_start(beside: Sequence[str], env: Mapping[str, str]) -> tuple[socket.socket, Popen | None]:
    if not beside:
        origin.update(os.environ)
        if WORKERS_SERVER in os.environ:
            return socket.socket(fileno=int(os.environ.pop(WORKERS_SERVER))), None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno()), *beside, ROOM]
        env = {**env, "ROOM": ROOM}
        return ours, Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env)


class Forked(Popen):
    """`subprocess.Popen`, by a fork of the server where that comes to the same."""

    def _execute_child(self, *arguments: Any) -> None:
        start = super()._execute_child
        given = inspect.signature(start).bind(*arguments).arguments
        env = os.environ if given["env"] is None else given["env"]
        with _asks:
            way, _ = server(env)
        usual = given["preexec_fn"] or given["pass_fds"]
        if usual or not can_be_forked(given["args"], env):
            start(*arguments)
            return
        pipes = [
            given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        ]
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        asked = {
            "words": [str(word) for word in given["args"][1:]],
            "env": dict(env),
            "folder": os.path.abspath(given["cwd"] or "."),  # noqa: PTH100 - it may be a text
            "session": given["start_new_session"],
        }
        fds = [own if fd == -1 else fd for own, fd in enumerate(streams)]
        with _asks:
            _adopts(True)
            socket.send_fds(way, [pickle.dumps(asked)], fds)
            self.pid = int(way.recv(MESSAGE_BYTES))
            _adopts(False)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _adopts(orphans: bool) -> None:
    """Make this process the parent of its descendants whose own parents end, or no longer."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans))


# --- in the server --------------------------------------------------------------------------------


def serve(channel: socket.socket, *beside: str) -> None:
    """Forks what it is asked for, until nobody is left who could ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C that is meant for the tests
    del os.environ["ROOM"]
    before = dict(os.environ)
    for name in (*PRELOADED, *beside):
        importlib.import_module(name)
    origin.update(os.environ)
    set_by_imports.update(origin.items() - before.items())
    gc.collect()
    gc.freeze()  # what is imported is neither looked through again nor copied
    _fork_what_is_asked_for(channel)


def _fork_what_is_asked_for(channel: socket.socket) -> None:
    while True:
        message, fds, *_ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
        if not message:
            return
        reading, writing = os.pipe()
        if (between := os.fork()) == 0:  # whose end makes the tests adopt what it forks
            between = os.getpid()
            if (pid := os.fork()) == 0:
                while os.getppid() == between:
                    time.sleep(0.001)
                _begin(fds, **pickle.loads(message))
            os.write(writing, str(pid).encode())
            os._exit(0)
        pid = os.read(reading, 20)
        os.waitpid(between, 0)
        for fd in (reading, writing, *fds):
            os.close(fd)
        channel.send(pid)


def _begin(fds: list[int], words: list[str], env: dict[str, str], folder: str, session: bool) -> NoReturn:
    for own, fd in enumerate(fds):
        os.dup2(fd, own)
    if session:
        os.setsid()
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    become(words, env)


# --- in what is forked ----------------------------------------------------------------------------


def become(words: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Does in this process, and ends it, what `python *words` would do in one of its own."""
    _forget(env)
    _show([sys.executable, *words], [f"{name}={value}" for name, value in env.items()])
    if list(words) == WORKER:
        _leave_a_server()
    else:
        Popen.__init__ = _fork_or_start
    _open_streams(unbuffered=words[0] == "-u" or bool(env.get("PYTHONUNBUFFERED")))
    status = _status_of([word for place, word in enumerate(words) if place or word != "-u"])
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = 120  # as Python does
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    os._exit(status & 255)


def _forget(env: Mapping[str, str]) -> None:
    """What an exec would not have left of the process that this one was forked from."""
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - a path for each would be longer
        if fd > 2:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(fd)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger().handlers.clear()
    logging.getLogger().setLevel(logging.WARNING)
    np.random.seed()
    os.environ.clear()
    os.environ.update(set_by_imports | dict(env))
    tempfile.tempdir = None  # TMPDIR may be another
    if env.get("TQDM_DISABLE"):  # which tqdm reads when it is imported
        tqdm.__init__ = functools.partialmethod(tqdm.__init__, disable=True)
    sys.path[:] = [*filter(None, env.get("PYTHONPATH", "").split(":")), *PATH]
    gc.enable()  # which `subprocess` turns off


def _leave_a_server() -> None:
    """Forks the server that this process's tests will ask, while nothing else has happened in it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        os.dup2(2, 1)  # or xdist would not see the worker's end
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _fork_what_is_asked_for(theirs)
        os._exit(0)
    theirs.close()
    os.environ[WORKERS_SERVER] = str(ours.detach())


def _show(*texts: list[str]) -> None:
    """Puts the command line and the environment where /proc shows them, in the place of the server's."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    places = [int(address) for address in fields[45:49]]  # arg_start, arg_end, env_start, env_end
    for start, end, words in zip(places[::2], places[1::2], texts, strict=True):
        text = "\0".join(words).encode()[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _open_streams(unbuffered: bool) -> None:
    """As Python does for descriptors 0, 1 and 2."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    binary = os.fdopen(1, "wb", 0 if unbuffered else -1, closefd=False)
    stdout = io.TextIOWrapper(binary, write_through=unbuffered, line_buffering=os.isatty(1))
    sys.stdout = sys.__stdout__ = stdout
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)


def _fork_or_start(self: Popen, args: Any, *more: Any, **options: Any) -> None:
    """`subprocess.Popen.__init__` of what is forked: it forks itself for Python programs that can be."""
    env = os.environ if options.get("env") is None else options["env"]
    if not more and not options.keys() & {"preexec_fn", "pass_fds"} and can_be_forked(args, env):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or the child would write it as well
        # runs in the child when all is as asked for, in the place of the program that would follow
        options["preexec_fn"] = functools.partial(become, [str(word) for word in args[1:]], dict(env))
    INIT(self, args, *more, **options)


def _status_of(words: list[str]) -> int:
    """Runs the script, module or line; its exit status, negative for a signal."""
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, str(Path.cwd()))
            sys.modules.pop(words[1], None)  # it may be among what is preloaded
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = words[:1]
            sys.path.insert(0, "")
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(words[1], vars(sys.modules["__main__"]))
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:-1])
