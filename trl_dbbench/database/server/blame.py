"""Which episode's statement has ended a server: one that no kill stops, or one that a fatal signal met."""

from __future__ import annotations

import re
from collections.abc import Iterable
from weakref import WeakValueDictionary

from trl_dbbench.database.sandbox import Sandbox
from trl_dbbench.database.server.session import Session

_CRASHED = re.compile(
    r"^(?:Connection ID \(thread ID\): |\S+ +(?:\S+ )?(?=\d+ \[ERROR\] (?:\[FATAL\]|.*Assertion failure)))"
    r"([1-9]\d*)",
    re.MULTILINE,
)


def crashed(log: str) -> list[int]:
    """The connections whose statements met a fatal signal or a failed assertion, as a server's log says."""
    return [int(number) for number in _CRASHED.findall(log)]


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
