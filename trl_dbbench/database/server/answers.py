"""What statements gave on tables that nobody changes.

The episodes of a group often look at their tables with the same words, and those of the next epoch or
evaluation do so again. Such a statement is executed once. Whoever asks for it meanwhile waits for its result.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from trl_dbbench.database.sandbox import QueryResult

MAX_ANSWERS = 2_048
"""If there are more, those asked for longest ago are dropped."""

MAX_ROWS = 200
MAX_CHARACTERS = 8_192
"""Of a statement and of all texts in its result together, if it is to be kept."""


class Answers:
    """Results by database and statement, for statements that give the same each time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Future[QueryResult]] = OrderedDict()

    def ask(self, database: str, sql: str, execute: Callable[[], QueryResult]) -> QueryResult:
        """The known result, or what `execute` returns, which is called once for all who ask meanwhile.

        `seconds` is the time of that one execution. A failure is not passed on: those who waited for it
        execute the statement themselves.

        Raises:
            EnvironmentFault: from `execute`.
        """
        question = (database, sql)
        with self._lock:
            known = self._known.get(question)
            if known is None:
                answer = self._known[question] = Future()
            else:
                self._known.move_to_end(question)
        if known is None:
            return self._execute(question, answer, execute)
        if known.exception() is not None or known.result().error is not None:
            return execute()
        return _own(known.result())

    def _execute(
        self, question: tuple[str, str], answer: Future[QueryResult], execute: Callable[[], QueryResult]
    ) -> QueryResult:
        keep = False
        try:
            result = execute()
            keep = _is_small(question[1], result)
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


def _is_small(sql: str, result: QueryResult) -> bool:
    if result.error is not None or result.rows is None or len(result.rows) > MAX_ROWS:
        return False
    texts = (len(cell) for row in result.rows for cell in row if isinstance(cell, str | bytes))
    return len(sql) + sum(texts) <= MAX_CHARACTERS


def _own(result: QueryResult) -> QueryResult:
    """With a list of rows that its receiver may change."""
    return result if result.rows is None else replace(result, rows=list(result.rows))
