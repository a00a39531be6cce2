"""An explanation on the console for a run that the kernel's out-of-memory killer ends.

The kernel ends the process with SIGKILL, which cannot be handled, and launchers report only the signal's
number. So a run has a witness, a small process beside it:

```
run ── text about its memory ──> witness, which reads the run's peak every second
  x killed by the kernel           └── the counter of such kills has risen: prints the explanation
```

The witness prints nothing if the run ends in any other way. It runs this file as a program, which must not
import the package: importing takes longer than some runs live.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COUNTER = Path("/proc/vmstat")
"""File whose line `oom_kill` counts the out-of-memory kills in all control groups."""

SECONDS = 1.0
"""Seconds between two readings of the run's peak and of the counter."""

LOOKS = 30
"""Latest readings of the counter among which it must have risen; a large process takes a while to end."""

END = "\0"
_witness: subprocess.Popen | None = None


@contextmanager
def witnessed() -> Iterator[None]:
    """Run a witness during the block, on Linux."""
    global _witness
    if not COUNTER.exists():
        yield
        return
    command = [sys.executable, "-I", __file__, str(os.getpid()), str(COUNTER)]
    # its own session, so that Ctrl-C reaches only the run
    _witness = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True, text=True)
    try:
        yield
    finally:
        tell(END)
        witness, _witness = _witness, None
        with suppress(OSError):
            witness.communicate()


def tell(text: str) -> None:
    """Set the text that the witness prints after the peak."""
    if _witness is not None and _witness.stdin is not None:
        with suppress(OSError):  # the witness may have ended
            _witness.stdin.write(text)
            _witness.stdin.flush()


def _watch(process: int, counter: Path) -> None:
    """Wait until a process ends; print the explanation if the kernel killed it for memory."""
    words = Path(f"/proc/{process}/cmdline").read_text("ascii", "backslashreplace").split("\0")
    name = next((Path(word).name for word in words if word.endswith(".py")), "The training")
    text, peak = "", 0
    kills = deque([_kills(counter)], maxlen=LOOKS)
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], SECONDS)
        said = os.read(0, 65_536).decode() if ready else None
        if said is not None and END in said:
            return
        kills.append(_kills(counter))
        if said == "":  # end of file: the process has ended
            break
        text = said or text
        peak = max(peak, _peak(process))
    if kills[-1] > kills[0]:
        print(f"{name} was killed by the kernel for memory; it had {peak / 1e9:.1f} GB. {text}", flush=True)


def _kills(counter: Path) -> int:
    return int(dict(line.split() for line in counter.read_text().splitlines()).get("oom_kill", 0))


def _peak(process: int) -> int:
    """Return a process's peak memory in bytes; 0 if it is gone or has freed its memory."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text()
        return 1024 * int((status.partition("VmHWM:")[2].split() or ["0"])[0])
    return 0


if __name__ == "__main__":
    _watch(int(sys.argv[1]), Path(sys.argv[2]))
