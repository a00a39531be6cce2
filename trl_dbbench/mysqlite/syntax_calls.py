"""MySQL's functions that have a grammar of their own, and windows; see `syntax_expressions`."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot.tokens import TokenType

from trl_dbbench.mysqlite.kinds import words
from trl_dbbench.mysqlite.syntax_keywords import ARGUMENTS, NO_FUNCTIONS
from trl_dbbench.mysqlite.syntax_words import TEXTS, Words

_T = TokenType
_OVER_ONLY = words(
    "ROW_NUMBER RANK DENSE_RANK PERCENT_RANK CUME_DIST NTILE LAG LEAD FIRST_VALUE LAST_VALUE NTH_VALUE"
)
_AGGREGATES = words(
    """
    SUM AVG MIN MAX STD STDDEV STDDEV_POP STDDEV_SAMP VARIANCE VAR_POP VAR_SAMP BIT_AND BIT_OR BIT_XOR
    JSON_ARRAYAGG JSON_OBJECTAGG COUNT GROUP_CONCAT
    """
)
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
"""The types of CAST, and how many numbers each may have in brackets."""


MAX_ARGUMENTS = 10_000


class Calls(Words):
    """Reads functions; the class that is made of this one reads what stands in them."""

    expression: Callable[[], None]
    operand: Callable[[], None]
    """Reads what may stand on one side of a comparison."""
    interval: Callable[[], bool]
    """Reads what stands behind INTERVAL: an amount and its unit, or a function's arguments; whether it is the
    first."""

    def arguments(self) -> int:
        """Those of a function that has no grammar of its own, in brackets; how many."""
        self.expect("(")
        if self.accept(")"):
            return 0
        count = self.listed(self.expression)
        self.expect(")")
        return count

    def call(self) -> None:
        """A function that has none."""
        word = self.peek()
        if self.kind() != _T.IDENTIFIER and word in NO_FUNCTIONS:
            self.fail()
        self.at += 1
        fewest, most = ARGUMENTS.get(word, (0, MAX_ARGUMENTS))
        if not fewest <= self.arguments() <= most:
            self.fail()

    def special(self) -> None:
        """A function that has one."""
        word = self.peek()
        self.at += 2
        SPECIAL[word](self)
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

    def number(self) -> None:
        """A number, or what stands for one."""
        if not self.accept_kind(_T.NUMBER, _T.PLACEHOLDER):
            self.name()

    def _one(self) -> None:
        self.expression()

    def _lagged(self) -> None:
        self.expression()
        if self.accept(","):
            self.number()
            if self.accept(","):
                self.expression()

    def _nth(self) -> None:
        self.expression()
        self.expect(",")
        self.number()

    def _none(self) -> None:
        pass

    def _aggregated(self) -> None:
        self.accept_any(("DISTINCT", "ALL"))
        self.expression()

    def _counted(self) -> None:
        if self.accept("DISTINCT"):
            self.listed(self.expression)
        else:
            self.accept("ALL")
            if not self.accept("*"):
                self.expression()

    def _concatenated(self) -> None:
        self.accept("DISTINCT")
        self.listed(self.expression)
        if self.accept("ORDER", "BY"):
            self.sort_keys()
        if self.accept("SEPARATOR"):
            self.expect_kind(_T.STRING, _T.HEX_STRING)

    def _cast(self) -> None:
        self.expression()
        self.expect("AS")
        self._type()
        self.accept("ARRAY")

    def _converted(self) -> None:
        self.expression()
        if self.accept("USING"):
            self._character_set()
        else:
            self.expect(",")
            self._type()

    def _type(self) -> None:
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
                self._character_set()
            else:
                self.accept_any(("ASCII", "UNICODE", "BYTE", "BINARY"))

    def _character_set(self) -> None:
        if not (self.accept_kind(*TEXTS) or self.accept("BINARY")):
            self.name()

    def _characters(self) -> None:
        self.listed(self.expression)
        if self.accept("USING"):
            self._character_set()

    def _extracted(self) -> None:
        self.expect_any(UNITS)
        self.expect("FROM")
        self.expression()

    def _trimmed(self) -> None:
        sided = self.accept_any(("LEADING", "TRAILING", "BOTH"))
        if sided and self.accept("FROM"):
            self.expression()
            return
        self.expression()
        if self.accept("FROM"):
            self.expression()
        elif sided:
            self.fail()

    def _substring(self) -> None:
        self.expression()
        if self.accept("FROM"):
            self.expression()
            if self.accept("FOR"):
                self.expression()
        else:
            self.expect(",")
            if self.listed(self.expression) > 2:
                self.fail()

    def _position(self) -> None:
        self.operand()
        self.expect("IN")
        self.expression()

    def _moved(self) -> None:
        self.expression()
        self.expect(",")
        self.expect("INTERVAL")
        if not self.interval():
            self.fail()

    def _moved_or_days(self) -> None:
        self.expression()
        self.expect(",")
        if not (self.accept("INTERVAL") and self.interval()):
            self.expression()

    def _between_dates(self) -> None:
        self.expect_any(UNITS)
        for _ in range(2):
            self.expect(",")
            self.expression()

    def _format(self) -> None:
        self.expect_any(("DATE", "TIME", "DATETIME", "TIMESTAMP"))
        self.expect(",")
        self.expression()

    def _column(self) -> None:
        self.dotted(3)

    def _row(self) -> None:
        if self.listed(self.expression) < 2:
            self.fail()

    # --- windows ------------------------------------------------------------------------------------------

    def window(self) -> None:
        """A window in brackets."""
        self.expect("(")
        if self.peek() not in ("ROWS", "RANGE", "GROUPS", "PARTITION", "ORDER", ")"):
            self.name()
        if self.accept("PARTITION", "BY"):
            self.listed(self.expression)
        if self.accept("ORDER", "BY"):
            self.sort_keys()
        if self.accept_any(("ROWS", "RANGE", "GROUPS")):
            if self.accept("BETWEEN"):
                self._bound()
                self.expect("AND")
                self._bound()
            else:
                self._bound()
                if self.peek(-1) == "FOLLOWING":
                    self.fail()
        self.expect(")")

    def _bound(self) -> None:
        if self.accept("CURRENT", "ROW"):
            return
        if self.accept("INTERVAL"):
            self.interval()
        elif not self.accept("UNBOUNDED"):
            self.expect_kind(_T.NUMBER, _T.PLACEHOLDER)
        self.expect_any(("PRECEDING", "FOLLOWING"))

    def sort_keys(self) -> None:
        """Behind ORDER BY."""
        self.listed(self._sort_key)

    def _sort_key(self) -> None:
        self.expression()
        self.accept_any(("ASC", "DESC"))


SPECIAL: dict[str, Callable[[Calls], None]] = {
    **dict.fromkeys(_AGGREGATES - words("COUNT GROUP_CONCAT JSON_OBJECTAGG"), Calls._aggregated),
    **dict.fromkeys(("ROW_NUMBER", "RANK", "DENSE_RANK", "PERCENT_RANK", "CUME_DIST"), Calls._none),
    **dict.fromkeys(("LAG", "LEAD"), Calls._lagged),
    **dict.fromkeys(("FIRST_VALUE", "LAST_VALUE"), Calls._one),
    "NTILE": Calls.number,
    "NTH_VALUE": Calls._nth,
    "JSON_OBJECTAGG": Calls._row,
    "COUNT": Calls._counted,
    "GROUP_CONCAT": Calls._concatenated,
    "CAST": Calls._cast,
    "CONVERT": Calls._converted,
    "CHAR": Calls._characters,
    "EXTRACT": Calls._extracted,
    "TRIM": Calls._trimmed,
    **dict.fromkeys(("SUBSTRING", "SUBSTR", "MID"), Calls._substring),
    "POSITION": Calls._position,
    **dict.fromkeys(("DATE_ADD", "DATE_SUB"), Calls._moved),
    **dict.fromkeys(("ADDDATE", "SUBDATE"), Calls._moved_or_days),
    **dict.fromkeys(("TIMESTAMPDIFF", "TIMESTAMPADD"), Calls._between_dates),
    "GET_FORMAT": Calls._format,
    **dict.fromkeys(("VALUES", "DEFAULT"), Calls._column),
    "ROW": Calls._row,
}
"""Functions with a grammar of their own: what reads their arguments."""
