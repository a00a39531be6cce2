"""Runs a server for as long as a parent process lives: `python guardian.py PARENT FOLDER COMMAND...`.

A process that starts a server directly leaves it behind when it is killed. PR_SET_PDEATHSIG alone does not
help: its signal comes when the *thread* that started the child ends, and a trainer may open its database in
a thread that ends early. This process, which has a single thread and imports little, therefore runs between
the two. It starts the server and watches the parent; when the parent ends, it ends the server and removes the
folder. PR_SET_PDEATHSIG ties the server to this process, so killing the guardian also ends the server.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1


def _die_with_guardian() -> None:
    with contextlib.suppress(OSError, AttributeError):  # only Linux has it; elsewhere polling has to suffice
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    parent, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    stop = False

    def ask_to_stop(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and decides
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_guardian)
    try:
        while server.poll() is None and not stop and os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        failed = server.poll() is not None and not stop
    finally:
        # the data is thrown away, so nothing needs an orderly shutdown
        server.kill()
        server.wait()
    if not failed or os.getppid() != parent:
        shutil.rmtree(folder, ignore_errors=True)
    return server.returncode if failed else 0


if __name__ == "__main__":
    sys.exit(main())
