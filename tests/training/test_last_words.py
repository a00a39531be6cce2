"""The line for a run that the kernel kills for memory, and the ends without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from trl_dbbench.training.last_words import COUNTER, _peak

GROUPS = Path("/sys/fs/cgroup")
LIMIT = 200_000_000
RUN = """
import os, signal, sys, time
from pathlib import Path
from trl_dbbench.training import last_words

counter = last_words.COUNTER = Path(sys.argv[1])
with last_words.witnessed():
    last_words.tell("It needs 7.0 GB.")
    time.sleep(1.5)  # until the witness has looked at its peak
    {end}
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def output_of(tmp_path: Path, end: str, counter: Path) -> str:
    """Return the output of a run that ends like this, and of its witness. One of its paths is no UTF-8."""
    script = tmp_path / "train.py"
    script.write_text(RUN.format(end=end))
    done = subprocess.run(
        [sys.executable, script, counter, b"runs/caf\xe9"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


@pytest.fixture
def counter(tmp_path) -> Path:
    path = tmp_path / "vmstat"
    path.write_text("nr_free_pages 5\noom_kill 3\n")
    return path


def test_a_kill_that_the_kernel_counts(tmp_path, counter):
    said = output_of(tmp_path, f"counter.write_text('oom_kill 4'); {KILL}", counter)
    assert re.fullmatch(
        r"train\.py was killed by the kernel for memory; it had 0\.\d GB\. It needs 7\.0 GB\.\n", said
    )


@pytest.mark.parametrize("end", [KILL, "pass", "sys.exit('error: no')", "os._exit(1)"])
def test_other_ends(tmp_path, counter, end):
    assert output_of(tmp_path, end, counter) == ("error: no\n" if "no" in end else "")


def test_a_kill_of_another_process_long_ago(tmp_path, counter):
    """Its own end is in order, so nothing is said of it."""
    assert output_of(tmp_path, "counter.write_text('oom_kill 4')", counter) == ""


def test_a_machine_that_does_not_count(tmp_path):
    assert output_of(tmp_path, KILL, tmp_path / "none") == ""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of at most `LIMIT` bytes, whose processes the kernel does kill."""
    first = GROUPS / "memory" if (GROUPS / "memory").is_dir() else GROUPS
    path = first / f"trl-dbbench-{os.getpid()}"
    try:
        path.mkdir()
        limit = "memory.limit_in_bytes" if first.name == "memory" else "memory.max"
        (path / limit).write_text(str(LIMIT))
    except OSError as error:
        with suppress(OSError):
            path.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield path
    path.rmdir()


def test_the_kernel_kills_a_run_for_memory(tmp_path, group):
    end = f"Path('{group}/cgroup.procs').write_text(str(os.getpid())); held = [bytes(10**7) for _ in range(100)]"
    said = output_of(tmp_path, end.replace("bytes(10**7)", "bytearray(os.urandom(10**7))"), COUNTER)
    assert "killed by the kernel for memory; it had 0." in said


def test_the_peak_of_a_process_that_has_given_its_memory_back():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        assert _peak(process.pid) > 0
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie
        assert _peak(process.pid) == 0
