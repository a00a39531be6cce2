"""A Python program as on a machine of its own: `python on_host.py NAMESPACE -m accelerate.commands.launch ...`.

It has the network and, as its host's name, the name of a namespace that `ip netns add` made; so has what it starts.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import socket
import sys

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000  # Python has them from 3.12 on


def network(path: str) -> int:
    """A descriptor of a network namespace."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def enter(descriptor: int) -> None:
    """This thread, and what it starts, gets this network."""
    _checked(ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET))


def become_host(name: str) -> None:
    enter(network(f"/run/netns/{name}"))
    _checked(ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS))
    socket.sethostname(name)


def _checked(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    become_host(sys.argv[1])
    sys.argv = sys.argv[3:]  # after NAMESPACE -m
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
