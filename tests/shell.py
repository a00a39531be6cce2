"""A shell that runs one Python program, in the foreground of its terminal if it has one: `shell.py script.py ...`.

Stays as long as anything that the program has started is there, as the terminal would.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import termios

PR_SET_CHILD_SUBREAPER = 36

if os.isatty(1):
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, lambda number, frame: None)
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a launcher leaves behind comes here
status = subprocess.Popen([sys.executable, *sys.argv[1:]]).wait()
print(f"the prompt is back, status {status}", flush=True)
try:
    while True:
        os.wait()
except ChildProcessError:
    sys.exit(status & 255)
