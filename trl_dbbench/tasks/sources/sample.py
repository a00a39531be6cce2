"""A sample of rows that are seen once, one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any


class Sample:
    """At most `size` of the rows that are added, each as likely as the others."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self.size = size
        self.seen = 0
        self.kept: list[tuple[int, Any]] = []
        self._rng = rng

    def add(self, row: Any) -> None:
        self.seen += 1
        if len(self.kept) < self.size:
            self.kept.append((self.seen, row))
        elif (place := self._rng.randrange(self.seen)) < self.size:
            self.kept[place] = (self.seen, row)

    def drop(self, unwanted: Callable[[Any], bool]) -> None:
        """Forgets the rows that are not wanted any more."""
        gone = [each for each in self.kept if unwanted(each[1])]
        self.seen -= len(gone)
        self.kept = [each for each in self.kept if each not in gone]

    def in_order(self) -> list[Any]:
        """The rows that were kept, in the order in which they were seen."""
        return [row for _, row in sorted(self.kept, key=lambda each: each[0])]
