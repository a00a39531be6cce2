"""MySQL's grammar of queries and row changes, checked on the words of a statement.

sqlglot accepts what MySQL refuses, such as `a = NOT b`, and SQLite would answer it. Each method of the reader
reads one part of the grammar, or raises. Of other statements, only brackets, quotes and commas are checked.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from trl_dbbench.mysqlite.dates import is_date
from trl_dbbench.mysqlite.errors import StatementError, fail_if, refuse_if, syntax_error, unsupported
from trl_dbbench.mysqlite.kinds import words
from trl_dbbench.mysqlite.names import ADJACENT, RESERVED, check_spaces
from trl_dbbench.mysqlite.parse import text_of

NO_FUNCTIONS = words(Path(__file__).with_name("keywords.txt").read_text())
"""Keywords that MySQL 9.7 does not reserve, and that cannot be the names of functions."""

ARGUMENTS = {
    name: bounds
    for names, bounds in (
        ("DATABASE SCHEMA USER ROW_COUNT CURDATE CURRENT_DATE UTC_DATE CURRENT_USER", (0, 0)),
        ("NOW CURTIME SYSDATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP", (0, 1)),
        ("UTC_TIME UTC_TIMESTAMP", (0, 1)),
        ("ASCII CHARSET COLLATION DATE DAY HOUR MICROSECOND MINUTE MONTH QUARTER REVERSE SECOND", (1, 1)),
        ("TIME YEAR", (1, 1)),
        ("LOG TIMESTAMP WEEK", (1, 2)),
        ("LEFT MOD REPEAT RIGHT TRUNCATE", (2, 2)),
        ("COALESCE GROUPING", (1, 1_000)),
        ("FORMAT", (2, 3)),
        ("IF REPLACE", (3, 3)),
        ("INSERT", (4, 4)),
    )
    for name in names.split()
}
"""Functions in MySQL's grammar, with the fewest and the most arguments of each."""

MAX_ARGUMENTS = 10_000
"""Most arguments of any other function."""

_T = TokenType
TEXTS = frozenset({_T.STRING, _T.NATIONAL_STRING})
CONSTANTS = TEXTS | {_T.NUMBER, _T.HEX_STRING, _T.BIT_STRING, _T.INTRODUCER}
_QUOTED = frozenset({*CONSTANTS, _T.IDENTIFIER}) - {_T.INTRODUCER}
_END = ";"
UNITS = words(
    """
    MICROSECOND SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR SECOND_MICROSECOND MINUTE_MICROSECOND
    MINUTE_SECOND HOUR_MICROSECOND HOUR_SECOND HOUR_MINUTE DAY_MICROSECOND DAY_SECOND DAY_MINUTE DAY_HOUR
    YEAR_MONTH SQL_TSI_SECOND SQL_TSI_MINUTE SQL_TSI_HOUR SQL_TSI_DAY SQL_TSI_WEEK SQL_TSI_MONTH
    SQL_TSI_QUARTER SQL_TSI_YEAR
    """
)
_SIZES = {
    **dict.fromkeys(("CHAR", "CHARACTER", "NCHAR", "BINARY", "DATETIME", "TIME", "FLOAT"), 1),
    **dict.fromkeys(("DECIMAL", "DEC"), 2),
    **dict.fromkeys(("SIGNED", "UNSIGNED", "DATE", "YEAR", "DOUBLE", "REAL", "JSON"), 0),
}
"""Types of CAST, with the count of numbers that each may have in brackets."""
_NAMED_CONSTANTS = words(
    """
    NULL TRUE FALSE CURRENT_DATE CURRENT_TIME CURRENT_USER CURRENT_TIMESTAMP UTC_DATE UTC_TIME UTC_TIMESTAMP
    LOCALTIME LOCALTIMESTAMP
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
_LISTED = words("UNION EXCEPT INTERSECT")
_OPTIONS = words(
    """
    ALL DISTINCT DISTINCTROW HIGH_PRIORITY STRAIGHT_JOIN SQL_SMALL_RESULT SQL_BIG_RESULT SQL_BUFFER_RESULT
    SQL_NO_CACHE SQL_CALC_FOUND_ROWS
    """
)

_OVER_ONLY = words(
    "ROW_NUMBER RANK DENSE_RANK PERCENT_RANK CUME_DIST NTILE LAG LEAD FIRST_VALUE LAST_VALUE NTH_VALUE"
)
_AGGREGATES = words(
    """
    SUM AVG MIN MAX STD STDDEV STDDEV_POP STDDEV_SAMP VARIANCE VAR_POP VAR_SAMP BIT_AND BIT_OR BIT_XOR
    JSON_ARRAYAGG JSON_OBJECTAGG COUNT GROUP_CONCAT
    """
)
SPECIAL = {
    **dict.fromkeys(_AGGREGATES, "[DISTINCT|ALL] expression"),
    **dict.fromkeys(("ROW_NUMBER", "RANK", "DENSE_RANK", "PERCENT_RANK", "CUME_DIST"), ""),
    **dict.fromkeys(("LAG", "LEAD"), "expression [, number [, expression]]"),
    **dict.fromkeys(("FIRST_VALUE", "LAST_VALUE"), "expression"),
    "NTILE": "number",
    "NTH_VALUE": "expression , number",
    "COUNT": "counted",
    "GROUP_CONCAT": "[DISTINCT] {expression} [ORDER BY {sort_key}] [SEPARATOR separator]",
    "CAST": "expression AS type [ARRAY]",
    "CONVERT": "expression converted",
    "CHAR": "{expression} [USING character_set]",
    "EXTRACT": "unit FROM expression",
    "TRIM": "trimmed",
    **dict.fromkeys(("SUBSTRING", "SUBSTR", "MID"), "expression part"),
    "POSITION": "operand IN expression",
    **dict.fromkeys(("DATE_ADD", "DATE_SUB"), "expression , INTERVAL amount"),
    **dict.fromkeys(("ADDDATE", "SUBDATE"), "expression , amount_or_days"),
    **dict.fromkeys(("TIMESTAMPDIFF", "TIMESTAMPADD"), "unit , expression , expression"),
    "GET_FORMAT": "DATE|TIME|DATETIME|TIMESTAMP , expression",
    **dict.fromkeys(("VALUES", "DEFAULT"), "column"),
    **dict.fromkeys(("ROW", "JSON_OBJECTAGG"), "expression , {expression}"),
}
"""Functions with a grammar of their own, with the pattern of their arguments."""

_PATTERNS = {
    "sort_key": "expression [ASC|DESC]",
    "named_query": "name [( {name} )] AS ( query )",
    "value_row": "ROW cells",
    "named_window": "name AS window",
    "assignment": "column =|:= cell",
    "rest_of_change": "[WHERE expression] [ORDER BY {sort_key}] [LIMIT number]",
    "unit": "|".join(sorted(UNITS)),
}
"""Patterns that other patterns refer to."""

_PART = re.compile(r"\]\*|[\[\]{}]|[^\s\[\]{}]+")
_KINDS = {"]": "optional", "]*": "repeated", "}": "listed"}


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> tuple[tuple[str, Any], ...]:
    """Return the parts of a pattern, each with its kind.

    `A|B` is one of these words, `name` a pattern or a method, `[A ...]` an optional part that begins with a
    word, `[A ...]*` the same any number of times, and `{...}` one or more, separated by commas.
    """
    stack: list[list[tuple[str, Any]]] = [[]]
    for part in _PART.findall(pattern):
        if part in "[{":
            stack.append([])
        elif part in _KINDS:
            items = tuple(stack.pop())
            stack[-1].append((_KINDS[part], items))
        else:
            stack[-1].append(("name", part) if part.islower() else ("words", frozenset(part.split("|"))))
    return tuple(stack[0])


def _is_word(text: str) -> bool:
    first = text[:1]
    return first.isalpha() or first in ("_", "$") or (first.isdigit() and "." not in text)


class _Reader:
    """A position in a statement. The methods read what comes next and advance past it, or raise."""

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self._sql = sql
        self._words: list[str] = []
        self._kinds: list[TokenType] = []
        self._starts: list[int] = []
        self._begun = False
        """True if the next value has been read already: brackets that turned out to begin an expression."""
        for token in tokens:
            if token.token_type == _T.HINT:  # `/*+ ... */`, which may contain anything
                continue
            # quoted text is not a word; `GROUP BY` is one token of two words
            for word in [""] if token.token_type in _QUOTED else token.text.upper().split():
                self._words.append(word)
                self._kinds.append(token.token_type)
                self._starts.append(token.start)
        self._words += [_END] * 6
        self._kinds += [_T.SEMICOLON] * 6
        self.at = 0

    def read(self, pattern: str) -> None:
        """Read what a pattern describes (see `_compiled`)."""
        self._follow(_compiled(pattern))

    def _follow(self, items: tuple[tuple[str, Any], ...]) -> None:
        for kind, what in items:
            if kind == "words":
                self.expect_any(what)
            elif kind == "name":
                self.read(_PATTERNS[what]) if what in _PATTERNS else getattr(self, what)()
            elif kind == "listed":
                self._follow(what)
                while self.accept(","):
                    self._follow(what)
            else:
                while self.peek() in what[0][1]:
                    self._follow(what)
                    if kind == "optional":
                        break

    def peek(self, ahead: int = 0) -> str:
        """Return the next word, or the one `ahead` of it; empty for quoted text and numbers."""
        return self._words[self.at + ahead]

    def kind(self, ahead: int = 0) -> TokenType:
        return self._kinds[self.at + ahead]

    def accept(self, word: str, second: str = "") -> bool:
        """Advance past a word, or two, if they come next; return whether they do."""
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
        """Read the end of the statement, before which only semicolons may come."""
        while self.at < len(self._starts) and self.accept(_END):
            pass
        if self.at < len(self._starts):
            self.fail()

    def fail(self) -> NoReturn:
        at = self._starts[self.at] if self.at < len(self._starts) else len(self._sql)
        raise syntax_error(self._sql, at)

    def is_name(self) -> bool:
        """Return whether a name comes next, not a word that needs backticks."""
        word, kind = self._words[self.at], self._kinds[self.at]
        if kind == _T.IDENTIFIER:
            return True
        if not _is_word(word) or kind == _T.INTRODUCER:
            return False
        if (
            word in ADJACENT and self.peek(1) == "(" and self.touches()
        ):  # a function, whatever comes before it
            return False
        # a word directly before a dot and another word is a name, even if it is reserved
        dotted = self.peek(1) == "." and self.touches() and self.kind(2) != _T.IDENTIFIER
        return dotted or word.lower() not in RESERVED

    def touches(self) -> bool:
        """Return whether nothing separates the next word from the one after it."""
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
        """Read a name and further ones after dots, which may be any words: at most `most` in all."""
        self.name()
        for _ in range(most - 1):
            if self.peek() != "." or self.peek(1) == "*":
                return
            self.at += 1
            if not (self.kind() in (_T.IDENTIFIER, _T.NUMBER) or _is_word(self.peek())):
                self.fail()
            self.at += 1

    def listed(self, read: Callable[[], object]) -> int:
        """Read one or more items, separated by commas; return their number."""
        read()
        count = 1
        while self.accept(","):
            read()
            count += 1
        return count

    def table_name(self) -> None:
        self.dotted(2)

    def column(self) -> None:
        self.dotted(3)

    def number(self) -> None:
        """Read a number, or a name in its place."""
        if not self.accept_kind(_T.NUMBER):
            self.name()

    def arguments(self) -> int:
        """Read the bracketed arguments of a function without a grammar of its own; return their number."""
        self.expect("(")
        if self.accept(")"):
            return 0
        count = self.listed(self.expression)
        self.expect(")")
        return count

    def call(self) -> None:
        """Read a function without a grammar of its own."""
        word = self.peek()
        if self.kind() != _T.IDENTIFIER and word in NO_FUNCTIONS:
            self.fail()
        self.at += 1
        fewest, most = ARGUMENTS.get(word, (0, MAX_ARGUMENTS))
        if not fewest <= self.arguments() <= most:
            self.fail()

    def special(self) -> None:
        """Read a function with a grammar of its own."""
        word = self.peek()
        self.at += 2
        self.read(SPECIAL[word])
        self.expect(")")
        if word in _OVER_ONLY:
            self.accept("FROM", "FIRST")
            if self.peek() in ("RESPECT", "IGNORE") and self.peek(1) == "NULLS":
                self.at += 2
            self.expect("OVER")
        elif word not in _AGGREGATES or not self.accept("OVER"):
            return
        if not self.accept_name():
            self.window()

    def counted(self) -> None:
        if self.accept("DISTINCT"):
            self.listed(self.expression)
        else:
            self.accept("ALL")
            if not self.accept("*"):
                self.expression()

    def separator(self) -> None:
        self.expect_kind(_T.STRING, _T.HEX_STRING)

    def converted(self) -> None:
        self.read("character_set" if self.accept("USING") else ", type")

    def type(self) -> None:
        self.accept("NATIONAL")
        type = self.peek()
        self.expect_any(_SIZES)
        if _SIZES[type] and self.accept("("):
            if self.listed(lambda: self.expect_kind(_T.NUMBER)) > _SIZES[type]:
                self.fail()
            self.expect(")")
        if type in ("SIGNED", "UNSIGNED"):
            self.accept_any(("INT", "INTEGER"))
        elif type == "DOUBLE":
            self.accept("PRECISION")
        elif type in ("CHAR", "CHARACTER", "NCHAR"):
            if self.accept("CHARACTER", "SET") or self.accept("CHAR", "SET") or self.accept("CHARSET"):
                self.character_set()
            else:
                self.accept_any(("ASCII", "UNICODE", "BYTE", "BINARY"))

    def character_set(self) -> None:
        if not (self.accept_kind(*TEXTS) or self.accept("BINARY")):
            self.name()

    def trimmed(self) -> None:
        if self.accept_any(("LEADING", "TRAILING", "BOTH")):
            self.read("FROM expression" if self.peek() == "FROM" else "expression FROM expression")
        else:
            self.read("expression [FROM expression]")

    def part(self) -> None:
        self.read("expression [FOR expression]" if self.accept("FROM") else ", expression [, expression]")

    def amount(self) -> None:
        if not self.interval():
            self.fail()

    def amount_or_days(self) -> None:
        if not (self.accept("INTERVAL") and self.interval()):
            self.expression()

    def window(self) -> None:
        """Read a window in brackets."""
        self.expect("(")
        if self.peek() not in ("ROWS", "RANGE", "GROUPS", "PARTITION", "ORDER", ")"):
            self.name()
        self.read("[PARTITION BY {expression}] [ORDER BY {sort_key}]")
        if self.accept_any(("ROWS", "RANGE", "GROUPS")):
            if self.accept("BETWEEN"):
                self.read("bound AND bound")
            else:
                self.bound()
                if self.peek(-1) == "FOLLOWING":
                    self.fail()
        self.expect(")")

    def bound(self) -> None:
        if self.accept("CURRENT", "ROW"):
            return
        if self.accept("INTERVAL"):
            self.interval()
        elif not self.accept("UNBOUNDED"):
            self.expect_kind(_T.NUMBER)
        self.expect_any(("PRECEDING", "FOLLOWING"))

    def expression(self) -> None:
        while True:
            while not self._begun and self.accept("NOT"):
                pass
            self._truth()
            if not self.accept_any(("AND", "OR", "XOR", "&&", "||")):
                return

    def _truth(self) -> None:
        self.predicate()
        while True:
            if self.accept("IS"):
                self.accept("NOT")
                if not self.accept("NULL"):
                    self.expect_any(("TRUE", "FALSE", "UNKNOWN"))
                    return
            elif self.accept("<=>"):
                self.predicate()
            elif self.accept_any(_COMPARISONS):
                if self.peek() in ("ANY", "ALL", "SOME") and self.peek(1) == "(":
                    self.at += 1
                    self._subquery()
                else:
                    self.predicate()
            else:
                return

    def predicate(self) -> None:
        self.operand()
        negated = self.accept("NOT")
        if self.accept("IN"):
            self.brackets()
        elif self.accept("BETWEEN"):
            self.read("operand AND predicate")
        elif self.accept("LIKE"):
            self.read("simple [ESCAPE simple]")
        elif self.accept_any(("REGEXP", "RLIKE")):
            self.operand()
        elif negated:
            self.fail()
        elif self.accept("SOUNDS", "LIKE"):
            self.operand()
        elif self.accept("MEMBER", "OF") or (self.peek(1) == "(" and self.accept("MEMBER")):
            self.brackets()

    def operand(self) -> None:
        """Read one operand of a comparison."""
        self.simple()
        while True:
            word, after = self.peek(), self.peek(1)
            if word in ("+", "-") and after == "INTERVAL":
                self.at += 2
                self.interval()
            elif word in ("<", ">") and word == after and self.touches():  # of << and >>
                self.at += 2
                self.simple()
            elif self.accept_any(_BINARY):
                self.simple()
            else:
                return

    def interval(self) -> bool:
        """Read an amount and its unit, or the arguments of INTERVAL(); return whether it was the former."""
        if self.peek() == "(":
            if self.brackets() > 1:
                return False
            self._begun = True
        self.expression()
        self.expect_any(UNITS)
        return True

    def simple(self) -> None:
        while not self._begun and self.accept_any(_SIGNS):
            pass
        column = self.is_name() and self.peek(1) != "("
        self._value()
        while True:
            if self.accept("COLLATE"):
                self.character_set()
            elif column and self.accept_any(("->", "->>")):
                self.expect_kind(_T.STRING)
            else:
                return

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
            self.read("name expression")
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
        """Read a column, or a call of a function that is qualified by its database."""
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
        """Read brackets; return the number of expressions in them, 0 for a query."""
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
        self.read("WHEN expression THEN expression [WHEN expression THEN expression]*")
        self.read("[ELSE expression] END")

    def statement(self) -> None:
        self.read("[WITH [RECURSIVE] {named_query}]")
        _STATEMENTS.get(self.peek(), _Reader.fail)(self)
        self.end()

    def creation(self) -> bool:
        """Read the query of CREATE VIEW ... AS or of CREATE TABLE; return whether it has one."""
        while self.peek() != _END:
            if self.accept("AS", _END):
                self.fail()
            begins = self.accept("AS") or self.peek() in ("SELECT", "(")
            if begins and self.begins_query_in_brackets():
                if self.peek(-1) != "AS" and self._words[1] == "VIEW":
                    self.fail()
                self.query()
                self.read("[WITH [CASCADED|LOCAL] CHECK OPTION]")
                self.end()
                return True
            self.at += 1
        return False

    def begins_query(self, ahead: int = 0) -> bool:
        word = self.peek(ahead)
        return word in ("SELECT", "WITH", "TABLE") or (word == "VALUES" and self.peek(ahead + 1) == "ROW")

    def begins_query_in_brackets(self) -> bool:
        """Return whether a query comes next, and not a generated column's expression, `AS (a + 1)`."""
        ahead = 0
        while self.peek(ahead) == "(":
            ahead += 1
        return self.begins_query(ahead)

    def query(self) -> None:
        self.read("[WITH [RECURSIVE] {named_query}] term")
        self.rest_of_query()

    def rest_of_query(self) -> None:
        self.read("[UNION|EXCEPT|INTERSECT [DISTINCT|ALL] term]* [ORDER BY {sort_key}]")
        self.read("[LIMIT number [,|OFFSET number]] [LOCK IN SHARE MODE]*")
        self.read("[FOR UPDATE|SHARE [OF {table_name}] [NOWAIT] [SKIP LOCKED]]* [INTO into]")

    def term(self) -> None:
        if self.accept("SELECT"):
            self.select()
        elif self.accept("VALUES"):
            self.read("{value_row}")
        elif self.accept("TABLE"):
            self.table_name()
        else:
            self.read("( query )")

    def into(self) -> NoReturn:
        raise unsupported("SELECT ... INTO")

    def select(self) -> None:
        while self.accept_any(_OPTIONS):
            pass
        self.read("[, {column_shown}]" if self.accept("*") else "{column_shown}")
        self.read("[INTO into] [FROM tables] [WHERE expression] [GROUP BY {expression} [WITH ROLLUP]]")
        self.read("[HAVING expression] [WINDOW {named_window}]")
        refuse_if(self.peek() == "QUALIFY", "QUALIFY")

    def column_shown(self) -> None:
        if self._starred():
            return
        self.expression()
        if self.accept("AS"):
            if not self.accept_kind(_T.STRING):
                self.name()
        elif not self.accept_kind(_T.STRING) and self.peek() != "MEMBER":
            self.accept_name()

    def _starred(self) -> bool:
        """Read `t.*` or `d.t.*`; return whether it comes next."""
        dots = 2 if self.peek(3) == "." else 1
        if self.peek(1) != "." or self.peek(2 * dots) != "*":
            return False
        self.dotted(dots)
        self.at += 2
        return True

    def tables(self) -> None:
        if not self.accept("DUAL"):
            self.listed(self.joined)

    def joined(self) -> int:
        """Read a table and its joins; return the number of tables."""
        self.source()
        return self._joins()

    def _joins(self) -> int:
        """Read the joins after a table; return the number of tables, including that one."""
        waiting: list[bool] = []  # for each join that may have ON or USING, whether it must
        count = 1
        while True:
            if waiting and self.peek() == "ON" and self.peek(1) != "DUPLICATE":
                self.read("ON expression")
                waiting.pop()
            elif waiting and self.accept("USING"):
                self.read("( {name} )")
                waiting.pop()
            elif self.accept("NATURAL"):
                self.read(
                    "INNER JOIN source" if self.peek() == "INNER" else "[LEFT|RIGHT [OUTER]] JOIN source"
                )
                count += 1
            elif self.peek() in ("JOIN", "STRAIGHT_JOIN", "INNER", "CROSS"):
                crossed = self.accept_any(("INNER", "CROSS"))
                self.read("JOIN source" if crossed else "JOIN|STRAIGHT_JOIN source")
                waiting.append(False)
                count += 1
            elif self.peek() in ("LEFT", "RIGHT"):
                self.read("LEFT|RIGHT [OUTER] JOIN source")
                waiting.append(True)
                count += 1
            else:
                break
        if any(waiting):
            self.fail()
        return count

    def source(self) -> None:
        if self.peek() == "(":
            if self._source_brackets():
                self.read("alias [( {name} )]")
            return
        if self.accept("LATERAL"):
            if not self._source_brackets():
                self.fail()
            self.alias()
            return
        refuse_if(self.peek() == "JSON_TABLE", "JSON_TABLE")
        self.read("table_name alias")
        refuse_if(self.peek() in ("USE", "IGNORE", "FORCE"), "USE INDEX and the like")

    def _source_brackets(self) -> bool:
        """Read brackets in FROM; return whether they contain a query."""
        self.expect("(")
        if self.begins_query():
            self.query()
            self.expect(")")
            return True
        count = 2
        if self.peek() != "(":
            count = self.joined() + 1
        elif self._source_brackets():
            if self.peek() in _LISTED or self.peek() in ("ORDER", "LIMIT", ")"):
                self.rest_of_query()
                self.expect(")")
                return True
            self.alias()
            count = self._joins()
        else:
            count = self._joins() + 1
        if self.accept(","):
            self.listed(self.joined)
            count += 1
        if count < 2:  # a query with an alias, and nothing else
            self.fail()
        self.expect(")")
        return False

    def alias(self) -> None:
        if self.accept("AS"):
            self.name()
        else:
            self.accept_name()

    def insert(self) -> None:
        self.at += 1
        self.read("[LOW_PRIORITY|DELAYED|HIGH_PRIORITY] [IGNORE] [INTO] table_name")
        if self.peek() == "(" and self.peek(1) not in ("SELECT", "WITH", "(", "VALUES", "TABLE"):
            self.at += 1
            if not self.accept(")"):
                self.read("{column} )")
        if self.accept("SET"):
            self.read("{assignment}")
        elif self.peek() == "VALUE" or (self.peek() == "VALUES" and self.peek(1) != "ROW"):
            self.at += 1
            self.read("{cells}")
        else:
            self.query()
        self.read("[AS name [( {name} )]] [ON DUPLICATE KEY UPDATE {assignment}]")

    def cells(self) -> None:
        self.expect("(")
        if not self.accept(")"):
            self.read("{cell} )")

    def cell(self) -> None:
        if self.peek(1) == "(" or not self.accept("DEFAULT"):
            self.expression()

    def update(self) -> None:
        self.at += 1
        self.read("[LOW_PRIORITY] [IGNORE] {joined} SET {assignment} rest_of_change")

    def delete(self) -> None:
        self.at += 1
        while self.accept_any(("LOW_PRIORITY", "QUICK", "IGNORE")):
            if self.peek() == "FROM":  # the parser would take the word for a table
                raise unsupported("DELETE with LOW_PRIORITY, QUICK or IGNORE")
        self.read("{target} [USING {joined}]" if self.accept("FROM") else "{target} FROM {joined}")
        self.read("rest_of_change")

    def target(self) -> None:
        self.table_name()
        if not self.accept(".", "*"):
            self.alias()


_STATEMENTS = {
    **dict.fromkeys(("SELECT", "WITH", "(", "VALUES", "TABLE"), _Reader.query),
    **dict.fromkeys(("INSERT", "REPLACE"), _Reader.insert),
    "UPDATE": _Reader.update,
    "DELETE": _Reader.delete,
}
"""Methods that read a whole statement, by its first word."""
_FIRST_WORDS = {_END, *_STATEMENTS} | words(
    """
    ALTER ANALYZE BEGIN CALL CHECK COMMIT CREATE DEALLOCATE DESC DESCRIBE DO DROP EXECUTE EXPLAIN FLUSH GRANT
    HANDLER HELP KILL LOAD LOCK OPTIMIZE PREPARE RELEASE RENAME REPAIR RESET REVOKE ROLLBACK SAVEPOINT SET
    SHOW START STOP TRUNCATE UNLOCK USE
    """
)
_BEFORE_AN_ITEM = frozenset({_T.L_PAREN, _T.COMMA})
_AFTER_AN_ITEM = frozenset({_T.R_PAREN, _T.COMMA, _T.SEMICOLON})

_TYPES = {"DATE": "DATE", "TIMESTAMP": "DATETIME"}
"""Types before a constant, and their names in the error for a wrong one."""


def check_grammar(sql: str, tokens: Sequence[Token]) -> bool:
    """Raise StatementError for a text that is not in MySQL's grammar; return whether it certainly is."""
    check_spaces(sql, tokens)
    refuse_if(any(each.startswith("!") for token in tokens for each in token.comments), "/*! ... */")
    reader = _Reader(sql, tokens)
    first = reader.peek()
    if first not in _FIRST_WORDS:
        reader.fail()
    refuse_if(first in ("DO", "FLUSH", "RELEASE", "SAVEPOINT"), first)
    if first in ("START", "BEGIN", "COMMIT", "ROLLBACK"):
        for token in tokens:
            refuse_if(token.text.upper() in ("CHAIN", "RELEASE", "SNAPSHOT"), f"{first} ... {token.text}")
    if certain := first in _STATEMENTS:
        reader.statement()
    else:
        certain = first == "CREATE" and reader.creation()
        _check_lists(sql, tokens)
    _check_dates(tokens)
    for token in _limits(tokens):
        fail_if(token.token_type == _T.VAR, 1327, f"Undeclared variable: {token.text}")
        if token.token_type != _T.NUMBER or not token.text.isdecimal():
            raise syntax_error(sql, token.start)
    return certain


def _check_dates(tokens: Sequence[Token]) -> None:
    """Raise StatementError for a date constant that is not a date, such as DATE 'x'."""
    for before, token in pairwise(tokens):
        word, written = before.text.upper(), token.text
        if token.token_type != _T.STRING or word not in _TYPES:
            continue
        if is_date(written) and (":" in written) == (word == "TIMESTAMP"):
            continue
        if written[-1:] in string.punctuation and is_date(written.rstrip(string.punctuation)):
            raise unsupported("a date with a sign behind it")
        raise StatementError(1525, f"Incorrect {_TYPES[word]} value: '{written}'")


def _limits(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens of the numbers in LIMIT and OFFSET."""
    for place, token in enumerate(tokens[:-1]):
        if token.token_type == _T.LIMIT:
            yield tokens[place + 1]
            if len(tokens) > place + 3 and tokens[place + 2].token_type in (_T.COMMA, _T.OFFSET):
                yield tokens[place + 3]


def _check_lists(sql: str, tokens: Sequence[Token]) -> None:
    """Raise StatementError for an unbalanced bracket or quote, and for a comma without an item beside it."""
    depth = 0
    for before, token in pairwise([*tokens, Token(_T.SEMICOLON, "", start=len(sql))]):
        kinds = (before.token_type, token.token_type)
        depth += {_T.L_PAREN: 1, _T.R_PAREN: -1}.get(kinds[1], 0)
        lacking = _T.COMMA in kinds and kinds[0] in _BEFORE_AN_ITEM and kinds[1] in _AFTER_AN_ITEM
        if lacking or depth < 0 or kinds[1] == _T.UNKNOWN or (depth and token.start == len(sql)):
            raise syntax_error(sql, token.start)


_AFTER_COLUMNS = {_T.FROM, _T.INTO, _T.WHERE, _T.GROUP_BY, _T.HAVING, _T.WINDOW, _T.ORDER_BY, _T.LIMIT}
_AFTER_COLUMNS |= {_T.FOR, _T.SEMICOLON, _T.UNION, _T.EXCEPT, _T.INTERSECT}


def shown_names(tree: exp.Expr, text: str, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return the names that MySQL gives a query's columns: aliases, or expressions as they are written.

    A `*` stays as it is. `text` and `tokens` are what `tokenize` returned for the statement.
    """
    select = tree
    while isinstance(select, exp.SetOperation | exp.Subquery):
        select = select.this
    if not isinstance(select, exp.Select):
        return ()
    pieces: list[list[Token]] = []
    depth = 0
    for token in tokens:
        kind = token.token_type
        depth += (kind == _T.L_PAREN) - (kind == _T.R_PAREN)
        if not pieces:
            pieces += [[]] if kind == _T.SELECT and depth == 0 else []
        elif depth == 0 and kind in _AFTER_COLUMNS:
            break
        elif depth == 0 and kind == _T.COMMA:
            pieces.append([])
        elif pieces[-1] or len(pieces) > 1 or token.text.upper() not in _OPTIONS:
            pieces[-1].append(token)
    if len(pieces) == len(select.expressions) and all(pieces):  # otherwise, they are in brackets
        written = [text[piece[0].start : piece[-1].end + 1] for piece in pieces]
    else:
        written = [*map(text_of, select.expressions)]
    plain = (exp.Alias, exp.Column, exp.Star, exp.Literal)
    return tuple(
        each.alias_or_name if isinstance(each, plain) else text
        for each, text in zip((each.unnest() for each in select.expressions), written, strict=True)
    )
