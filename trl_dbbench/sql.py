"""MySQL's SQL for sqlglot, read in a time that grows with its length and no faster.

sqlglot's parser tries one reading after another and takes back what it read. Texts such as `FROM a,(FROM a,(...`
double its work at each bracket: 200 characters of them take hours, and an agent may write them.
"""

from __future__ import annotations

from typing import Any

from sqlglot.dialects.mysql import MySQL
from sqlglot.parsers.mysql import MySQLParser
from sqlglot.tokens import Token

STEPS_PER_TOKEN = 100
"""Statements that are meant to be read take 1 to 3."""


class BoundedMySQL(MySQL):
    """The dialect to parse what an agent wrote: raises RecursionError for what is too hard to read."""

    class Parser(MySQLParser):
        _steps_left = 0

        def _parse(self, parse_method: Any, raw_tokens: list[Token], sql: str | None = None) -> Any:
            self._steps_left = STEPS_PER_TOKEN * (len(raw_tokens) + 10)
            return super()._parse(parse_method, raw_tokens, sql)

        def _advance(self, *args: Any) -> None:
            self._steps_left -= 1
            if (
                self._steps_left < 0
            ):  # no ParseError, which means to sqlglot that it should try another reading
                raise RecursionError("the statement has too many readings")
            super()._advance(*args)
