"""What statements gave on tables that nobody changes.

The episodes of a group often look at their tables with the same words, and those of the next epoch or
evaluation do so again. Such a statement is executed once; of those that come meanwhile, each waits for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import replace

from trl_dbbench.database.sandbox import QueryResult

MAX_ANSWERS = 2_048
"""Beyond that, those that nobody has asked for the longest are forgotten."""

MAX_ROWS = 200
"""Of an answer that is kept. With the limit on characters of a result, this bounds the memory."""


class Answers:
    """Answers by statement and database, for statements that give the same each time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Future[QueryResult]] = OrderedDict()

    def ask(self, question: Hashable, execute: Callable[[], QueryResult]) -> QueryResult:
        """The answer, for which `execute` is called unless it is known or somebody else is executing it.

        `seconds` are those of the execution, whoever's it was. An error is told to all who wait for it, and
        not kept.

        Raises:
            EnvironmentFault: from `execute`. If it fails for one, the others do not wait for the next.
        """
        with self._lock:
            answer = self._known.get(question)
            if mine := answer is None:
                answer = self._known[question] = Future()
            else:
                self._known.move_to_end(question)
        assert answer is not None
        if mine:
            return self._execute(question, answer, execute)
        if answer.exception() is not None:
            return execute()
        return _own(answer.result())

    def _execute(
        self, question: Hashable, answer: Future[QueryResult], execute: Callable[[], QueryResult]
    ) -> QueryResult:
        keep = False
        try:
            result = execute()
            keep = result.error is None and result.rows is not None and len(result.rows) <= MAX_ROWS
            answer.set_result(result)
        except BaseException as error:
            answer.set_exception(error)
            raise
        finally:
            with self._lock:
                if not keep and self._known.get(question) is answer:
                    del self._known[question]
                while len(self._known) > MAX_ANSWERS:
                    self._known.popitem(last=False)
        return _own(result)


def _own(result: QueryResult) -> QueryResult:
    """With a list of rows that its receiver may change."""
    return result if result.rows is None else replace(result, rows=list(result.rows))
