"""A line for a run that the kernel kills for memory.

The kernel ends such a process by SIGKILL, which no process can handle, and launchers only tell the signal's
number. So a run has a witness, a small process beside it:

```
run ── text about its memory ──> witness, which reads the run's peak every second
  x killed by the kernel           └── the counter of such kills has risen: prints the line
```

It prints nothing after any other end. It runs this file as a program, which must not import the package:
importing takes longer than some runs live.
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
"""Its line `oom_kill` counts the processes that the kernel has killed for memory, in all control groups."""

SECONDS = 1.0
"""Time between two looks at the run's peak and at the counter."""

LOOKS = 30
"""Looks at the counter, up to the last one, within which it must have risen: a large process takes a while to
end."""

END = "\0"
_witness: subprocess.Popen | None = None


@contextmanager
def witnessed() -> Iterator[None]:
    """Have a witness during the block, on Linux."""
    global _witness
    if not COUNTER.exists():
        yield
        return
    command = [sys.executable, "-I", __file__, str(os.getpid()), str(COUNTER)]
    # a session of its own: Ctrl-C is for the run
    _witness = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True, text=True)
    try:
        yield
    finally:
        tell(END)
        witness, _witness = _witness, None
        with suppress(OSError):
            witness.communicate()


def tell(text: str) -> None:
    """Set what the line goes on with after the process's peak."""
    if _witness is not None and _witness.stdin is not None:
        with suppress(OSError):  # a witness that has ended cannot be told
            _witness.stdin.write(text)
            _witness.stdin.flush()


def _watch(process: int, counter: Path) -> None:
    """Wait until a process has ended; print the line if the kernel killed it for memory."""
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
        if said == "":  # the process has closed it by its end
            break
        text = said or text
        peak = max(peak, _peak(process))
    if kills[-1] > kills[0]:
        print(f"{name} was killed by the kernel for memory; it had {peak / 1e9:.1f} GB. {text}", flush=True)


def _kills(counter: Path) -> int:
    return int(dict(line.split() for line in counter.read_text().splitlines()).get("oom_kill", 0))


def _peak(process: int) -> int:
    """Return the most bytes that a process has had; 0 if it is gone, or has given its memory back."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text()
        return 1024 * int((status.partition("VmHWM:")[2].split() or ["0"])[0])
    return 0


if __name__ == "__main__":
    _watch(int(sys.argv[1]), Path(sys.argv[2]))
