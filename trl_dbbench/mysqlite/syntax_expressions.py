"""MySQL's grammar of expressions, read over the words of a statement.

sqlglot reads many dialects and lets pass what MySQL's grammar refuses, such as `a = NOT b` or `a NOT IS
NULL`. Nothing is built here: a method reads one thing of the grammar and goes on behind it, or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot.tokens import Token, TokenType

from trl_dbbench.mysqlite.kinds import words
from trl_dbbench.mysqlite.names import ADJACENT
from trl_dbbench.mysqlite.syntax_calls import SPECIAL, UNITS, Calls
from trl_dbbench.mysqlite.syntax_words import CONSTANTS, TEXTS

_T = TokenType
_NAMED_CONSTANTS = words(
    """
    NULL TRUE FALSE CURRENT_DATE CURRENT_TIME CURRENT_USER CURRENT_TIMESTAMP UTC_DATE UTC_TIME
    UTC_TIMESTAMP LOCALTIME LOCALTIMESTAMP
    """
)
_CALLED = _NAMED_CONSTANTS - words("NULL TRUE FALSE") | words(
    "IF LEFT RIGHT REPLACE REPEAT INSERT MOD DATABASE SCHEMA GROUPING"
)
"""Reserved words that are functions as well."""
_COMPARISONS = words("= < > <= >= <> !=")
_BINARY = words("+ - * / % DIV MOD | & ^ << >>")
_SIGNS = words("+ - ~ ! BINARY")
_AFTER_QUERY = words("UNION EXCEPT INTERSECT ORDER LIMIT FOR LOCK INTO )")


class Expressions(Calls):
    """Reads expressions; queries among them are read by the class that is made of this one."""

    query: Callable[[], None]
    """Reads a query."""
    rest_of_query: Callable[[], None]
    """Reads what follows the first part of a query."""

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        super().__init__(sql, tokens)
        self._begun = False
        """Whether the value that comes next has been read already, as brackets that began with another."""

    def begins_query(self, ahead: int = 0) -> bool:
        word = self.peek(ahead)
        return word in ("SELECT", "WITH", "TABLE") or (word == "VALUES" and self.peek(ahead + 1) == "ROW")

    def begins_query_in_brackets(self) -> bool:
        """The brackets of a generated column's expression, `AS (a + 1)`, are none."""
        ahead = 0
        while self.peek(ahead) == "(":
            ahead += 1
        return self.begins_query(ahead)

    # --- operators ----------------------------------------------------------------------------------------

    def expression(self) -> None:
        while True:
            while not self._begun and self.accept("NOT"):
                pass
            self._truth()
            if not self.accept_any(("AND", "OR", "XOR", "&&", "||")):
                return

    def _truth(self) -> None:
        self._predicate()
        while True:
            if self.accept("IS"):
                self.accept("NOT")
                if not self.accept("NULL"):
                    self.expect_any(("TRUE", "FALSE", "UNKNOWN"))
                    return
            elif self.accept("<=>"):
                self._predicate()
            elif self.accept_any(_COMPARISONS):
                if self.peek() in ("ANY", "ALL", "SOME") and self.peek(1) == "(":
                    self.at += 1
                    self._subquery()
                else:
                    self._predicate()
            else:
                return

    def _predicate(self) -> None:
        self.operand()
        negated = self.accept("NOT")
        if self.accept("IN"):
            self.brackets()
        elif self.accept("BETWEEN"):
            self.operand()
            self.expect("AND")
            self._predicate()
        elif self.accept("LIKE"):
            self._simple()
            if self.accept("ESCAPE"):
                self._simple()
        elif self.accept_any(("REGEXP", "RLIKE")):
            self.operand()
        elif negated:
            self.fail()
        elif self.accept("SOUNDS", "LIKE"):
            self.operand()
        elif self.accept("MEMBER", "OF") or (self.peek(1) == "(" and self.accept("MEMBER")):
            self.brackets()

    def operand(self) -> None:
        """What may stand on one side of a comparison."""
        self._simple()
        while True:
            word, after = self.peek(), self.peek(1)
            if word in ("+", "-") and after == "INTERVAL":
                self.at += 2
                self.interval()
            elif word in ("<", ">") and word == after and self.touches():  # of << and >>
                self.at += 2
                self._simple()
            elif self.accept_any(_BINARY):
                self._simple()
            else:
                return

    def interval(self) -> bool:
        """Behind INTERVAL: an amount and its unit, or else the arguments of the function; whether it is the
        first."""
        if self.peek() == "(":
            if self.brackets() > 1:
                return False
            self._begun = True
        self.expression()
        self.expect_any(UNITS)
        return True

    def _simple(self) -> None:
        while not self._begun and self.accept_any(_SIGNS):
            pass
        column = self.is_name() and self.peek(1) != "("
        self._value()
        while True:
            if self.accept("COLLATE"):
                if not (self.accept_kind(*TEXTS) or self.accept("BINARY")):
                    self.name()
            elif column and self.accept_any(("->", "->>")):
                self.expect_kind(_T.STRING)
            else:
                return

    # --- values -------------------------------------------------------------------------------------------

    def _value(self) -> None:
        word, called = self.peek(), self.peek(1) == "("
        if self._begun:
            self._begun = False
        elif self.peek(1) == "." and self.is_name():
            self._named()
        elif self.kind() in CONSTANTS:
            self._constant()
        elif word == "(":
            self.brackets()
        elif self.accept("@") or self.accept("@@"):
            self._variable()
        elif word == "." and self.kind(1) == _T.NUMBER:  # .5
            self.at += 2
        elif self.accept("{"):
            self.name()
            self.expression()
            self.expect("}")
        elif self.accept("CASE"):
            self._case()
        elif self.accept("INTERVAL"):
            if self.interval():
                self.expect("+")
                self.operand()
        elif word in ("DATE", "TIME", "TIMESTAMP") and self.kind(1) == _T.STRING:
            self.at += 2
        elif called and word in SPECIAL:
            self.special()
        elif called and self.accept("EXISTS"):
            self._subquery()
        elif called and (word in _CALLED or word in ADJACENT or self.is_name()):
            self.call()
        elif not self.accept_any(_NAMED_CONSTANTS):
            self._named()

    def _named(self) -> None:
        """A column, or a function of a database."""
        self.dotted(3)
        if self.peek() == "(":
            self.arguments()

    def _constant(self) -> None:
        introduced = self.accept_kind(_T.INTRODUCER)
        text = self.kind() in TEXTS
        if introduced:
            self.expect_kind(*TEXTS, _T.HEX_STRING, _T.BIT_STRING)
        else:
            self.at += 1
        while text and self.accept_kind(_T.STRING):
            pass

    def _variable(self) -> None:
        system = self.peek(-1) == "@@"
        if not self.accept_kind(_T.STRING):
            self.dotted(3)
        if not system and self.accept(":="):
            self.expression()

    def _subquery(self) -> None:
        if self.brackets():
            self.fail()

    def brackets(self) -> int:
        """What stands in brackets: how many expressions; 0 if it is a query."""
        self.expect("(")
        if self.begins_query():
            self.query()
            self.expect(")")
            return 0
        if self.peek() == "(":
            if not self.brackets() and self.peek() in _AFTER_QUERY:
                self.rest_of_query()
                self.expect(")")
                return 0
            self._begun = True
        count = self.listed(self.expression)
        self.expect(")")
        return count

    def _case(self) -> None:
        if self.peek() != "WHEN":
            self.expression()
        self.expect("WHEN")
        while True:
            self.expression()
            self.expect("THEN")
            self.expression()
            if not self.accept("WHEN"):
                break
        if self.accept("ELSE"):
            self.expression()
        self.expect("END")
