"""Base class of engines that answer requests in another thread than the episodes' own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from trl_dbbench.episode.types import Completion, Request


class Asked(NamedTuple):
    """A request, and the future that its episode awaits."""

    request: Request
    turn: Future[Completion]

    def answer(self, completion: Completion) -> None:
        """Hand the turn to the episode; may be called in any thread."""
        if self.turn.set_running_or_notify_cancel():
            self.turn.set_result(completion)


class AskedEngine:
    """Queue of a rollout's unanswered requests; subclasses answer them."""

    def __init__(self) -> None:
        self._waiting: list[Asked] = []
        self._changed = threading.Condition()
        """Notified when an episode sends a request or ends; held while `_waiting` is read or changed."""

    async def generate(self, request: Request) -> Completion:
        asked = Asked(request, Future())
        with self._changed:
            self._waiting.append(asked)
            self._changed.notify()
        return await asyncio.wrap_future(asked.turn)

    def _watch(self, episodes: Sequence[Future]) -> None:
        """Notify `_changed` whenever an episode ends."""
        for episode in episodes:
            episode.add_done_callback(self._notify)

    def _notify(self, _: Future) -> None:
        with self._changed:
            self._changed.notify()


def bug_in(episodes: Sequence[Future]) -> BaseException | None:
    """Return an exception that an episode raised, if any: a bug, which ends the rollout."""
    return next((bug for each in episodes if each.done() and (bug := each.exception())), None)
