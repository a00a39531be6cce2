"""The rewards that a recipe can name. A new one is a function or class in this room, marked with `@named`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

R = TypeVar("R", bound=Callable)


class Named(NamedTuple):
    """A reward function, or a class whose objects are one.

    A class is made with a `Database` and a `Judge`, and its `__name__` is the reward's name.
    """

    make: Any
    gives_steps: bool


NAMED: dict[str, Named] = {}
"""Filled when the modules of this room are imported, which `registry` does."""


def named(name: str, *, steps: bool = False) -> Callable[[R], R]:
    """Register a reward under a name.

    Args:
        steps: whether it gives a value for each turn.
    """

    def register(reward: R) -> R:
        NAMED[name] = Named(reward, steps)
        return reward

    return register
