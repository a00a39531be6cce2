"""The words of a statement, one after another, for the reader of MySQL's grammar (`syntax`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from sqlglot.tokens import Token, TokenType

from trl_dbbench.mysqlite.errors import syntax_error
from trl_dbbench.mysqlite.names import ADJACENT, RESERVED

_T = TokenType
TEXTS = frozenset({_T.STRING, _T.NATIONAL_STRING})
CONSTANTS = TEXTS | {_T.NUMBER, _T.HEX_STRING, _T.BIT_STRING, _T.PLACEHOLDER, _T.INTRODUCER}
_QUOTED = frozenset({*CONSTANTS, _T.IDENTIFIER}) - {_T.INTRODUCER}
_END = ";"


class Words:
    """Where a reader stands in a statement. Its methods look at what comes next, and go on behind it."""

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self._sql = sql
        self._words: list[str] = []
        self._kinds: list[TokenType] = []
        self._starts: list[int] = []
        for token in tokens:
            if token.token_type == _T.HINT:  # `/*+ ... */`, which may say anything
                continue
            # what stands in quotes is no word; `GROUP BY` is one token of two words
            for word in [""] if token.token_type in _QUOTED else token.text.upper().split():
                self._words.append(word)
                self._kinds.append(token.token_type)
                self._starts.append(token.start)
        self._words += [_END] * 6
        self._kinds += [_T.SEMICOLON] * 6
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        """The word that comes next, or after that; empty for what stands in quotes and for numbers."""
        return self._words[self.at + ahead]

    def kind(self, ahead: int = 0) -> TokenType:
        return self._kinds[self.at + ahead]

    def accept(self, word: str, second: str = "") -> bool:
        """Goes behind a word, or two, if they come next."""
        if self._words[self.at] != word or (second and self._words[self.at + 1] != second):
            return False
        self.at += 2 if second else 1
        return True

    def accept_any(self, wanted: Collection[str]) -> bool:
        if self._words[self.at] not in wanted:
            return False
        self.at += 1
        return True

    def accept_kind(self, *kinds: TokenType) -> bool:
        if self._kinds[self.at] not in kinds:
            return False
        self.at += 1
        return True

    def expect(self, word: str, second: str = "") -> None:
        if not self.accept(word, second):
            self.fail()

    def expect_any(self, wanted: Collection[str]) -> None:
        if not self.accept_any(wanted):
            self.fail()

    def expect_kind(self, *kinds: TokenType) -> None:
        if not self.accept_kind(*kinds):
            self.fail()

    def end(self) -> None:
        """Only semicolons may come."""
        while self.at < len(self._starts) and self.accept(_END):
            pass
        if self.at < len(self._starts):
            self.fail()

    def fail(self) -> NoReturn:
        at = self._starts[self.at] if self.at < len(self._starts) else len(self._sql)
        raise syntax_error(self._sql[at:])

    # --- names --------------------------------------------------------------------------------------------

    def is_name(self) -> bool:
        """Whether a name comes next, and no word that must be in backticks."""
        word, kind = self._words[self.at], self._kinds[self.at]
        if kind == _T.IDENTIFIER:
            return True
        if not _is_word(word) or kind == _T.INTRODUCER:
            return False
        if (
            word in ADJACENT and self.peek(1) == "(" and self.touches()
        ):  # a function's, whatever stands before
            return False
        # the letters before a dot and another letter are a name, whatever they say
        dotted = self.peek(1) == "." and self.touches() and self.kind(2) != _T.IDENTIFIER
        return dotted or word.lower() not in RESERVED

    def touches(self) -> bool:
        """Whether nothing stands between the word that comes next and that after it."""
        if self.at + 1 >= len(self._starts):
            return False
        return self._starts[self.at] + len(self._words[self.at]) == self._starts[self.at + 1]

    def accept_name(self) -> bool:
        if not self.is_name():
            return False
        self.at += 1
        return True

    def name(self) -> None:
        if not self.accept_name():
            self.fail()

    def dotted(self, most: int) -> None:
        """A name and, behind dots, further ones, which may be any words, up to so many in all."""
        self.name()
        for _ in range(most - 1):
            if self.peek() != "." or self.peek(1) == "*":
                return
            self.at += 1
            if not (self.kind() in (_T.IDENTIFIER, _T.NUMBER) or _is_word(self.peek())):
                self.fail()
            self.at += 1

    def listed(self, read: Callable[[], object]) -> int:
        """One or more of something, with commas between; how many."""
        read()
        count = 1
        while self.accept(","):
            read()
            count += 1
        return count

    def names(self) -> None:
        """Names in brackets."""
        self.expect("(")
        self.listed(self.name)
        self.expect(")")


def _is_word(text: str) -> bool:
    first = text[:1]
    return first.isalpha() or first in ("_", "$") or (first.isdigit() and "." not in text)
