"""Finds the episode whose statement ended the server: it ignored its kill, or crashed it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from weakref import WeakValueDictionary

from trl_dbbench.database.error_numbers import is_full_disk
from trl_dbbench.database.sandbox import Sandbox
from trl_dbbench.database.server.session import Session

LAST_WORDS = 2_000
"""Characters before a fatal signal in which a server says why it ends."""

_SIGNAL = re.compile(r"got signal \d+")
_FAILED = re.compile(r"^\S+ +(?:\S+ )?([1-9]\d*) \[ERROR\] (?:\[FATAL\]|.*Assertion failure)", re.MULTILINE)
_CONNECTION = re.compile(r"^Connection ID \(thread ID\): (\d+)\nStatus: ", re.MULTILINE)


def crashed(log: str) -> set[int]:
    """Return the connections whose statements met a failed assertion or a fatal signal, by a server's log.

    The log quotes the statement after the signal and before its connection, so an agent cannot write these
    lines. Nobody is to blame for a full disk.
    """
    signals = [found.start() for found in _SIGNAL.finditer(log)]
    if not signals:
        return set()
    before, after = log[: signals[0]], log[signals[0] :]
    if is_full_disk(before[-LAST_WORDS:]):
        return set()
    numbers = {*_FAILED.findall(before), *_CONNECTION.findall(after)[-1:]}
    return {int(number) for number in numbers} - {0}


class Blame:
    """By the number of a connection, the sandbox whose statement ran there last. Thread-safe."""

    def __init__(self) -> None:
        self._users: WeakValueDictionary[int, Sandbox] = WeakValueDictionary()

    def uses(self, session: Session, sandbox: Sandbox) -> None:
        """Notes whose statements run on a session from now on."""
        self._users[session.number] = sandbox

    def lay_on(self, connections: Iterable[int]) -> None:
        """Notes that the statements of these connections have ended the server."""
        for number in connections:
            if (sandbox := self._users.get(number)) is not None:
                sandbox.brought_down = True
