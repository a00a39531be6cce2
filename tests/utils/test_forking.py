"""A program that is forked does what it does when it is started, but for its imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forking import Forked

PROGRAM = """
import os, signal, subprocess, sys
from pathlib import Path

ours = ("A", "B", "TMPDIR")
print(sys.argv[2:], Path.cwd(), {name: os.environ.get(name) for name in ours}, os.getsid(0) == os.getpid())
print(sys.stdin.read(), sorted(map(int, os.listdir("/proc/self/fd")))[:3], os.isatty(1), sys.path[0])
print({number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)})
print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0"), b"\\0A=1" in Path("/proc/self/environ").read_bytes())
print(__name__, Path(sys.argv[0]).name, os.getppid() == int(sys.argv[1]), file=sys.stderr)
match sys.argv[2]:
    case "three":
        sys.exit(3)
    case "text":
        sys.exit("error: in one line")
    case "fails":
        raise RuntimeError("on its way")
    case "Ctrl-C":
        signal.raise_signal(signal.SIGINT)
    case "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "starts another":
        signal.signal(signal.SIGTERM, lambda *_: None)
        command = [sys.executable, "-u", __file__, str(os.getppid()), "three"]
        done = subprocess.run(command, env=os.environ | {"B": "2"}, input="inner", capture_output=True, text=True)
        print(done.returncode, done.stdout, done.stderr)
"""
LOADED = "import sys; print('torch' in sys.modules)"


def ends(
    start: type[subprocess.Popen], command: list[object], **options: object
) -> tuple[int, str, list[str]]:
    """The status, what was written to stdout, and to stderr but for the traceback's lines of code."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start([str(word) for word in command], text=True, **streams, **options)
    output, errors = process.communicate("a line", timeout=60)
    return process.returncode, output, [line for line in errors.splitlines() if not line.startswith("  ")]


@pytest.mark.parametrize(
    "program", ["ends", "three", "text", "fails", "Ctrl-C", "killed", "starts another", "in a session"]
)
def test_it_is_as_if_it_were_started(program: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    options = {
        "cwd": tmp_path,
        "env": os.environ | {"A": "1", "TMPDIR": str(tmp_path)},
        "start_new_session": program == "in a session",
    }
    command = [sys.executable, script, os.getpid(), program]
    forked = ends(Forked, command, **options)
    assert forked == ends(subprocess.Popen, command, **options)
    expected = {"three": 3, "text": 1, "fails": 1, "Ctrl-C": -signal.SIGINT, "killed": -signal.SIGKILL}
    assert forked[0] == expected.get(program, 0)


def test_it_has_everything_imported_where_imports_would_do_the_same(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(LOADED)
    assert ends(Forked, [sys.executable, script])[1] == "True\n"
    for other in ({"OMP_NUM_THREADS": "2"}, {"HF_HOME": str(tmp_path)}, {"HOME": str(tmp_path)}):
        assert ends(Forked, [sys.executable, script], env=os.environ | other)[1] == "False\n"
    assert ends(Forked, [sys.executable, "-c", LOADED])[1] == "False\n"


def test_a_signal_reaches_it(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import time; print('here', flush=True); time.sleep(60)")
    process = Forked([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.terminate()
    assert process.wait(timeout=60) == -signal.SIGTERM
    process.stdout.close()
