"""Tables that fit statements: made of the names, the kinds of values and the constants that the statements show.

Statements of a benchmark whose databases are not at hand can be executed on them. Their rows are random, but hold
what the statements look for.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from sqlglot import exp
from sqlglot.errors import SqlglotError

from trl_dbbench.tasks import Column, Table
from trl_dbbench.utils.sql import parse_statements

ROWS = 12
MAX_COLUMNS = 40
_DAY = re.compile(r"\d{4}-\d\d?-\d\d?$")
_DATES = (
    exp.Year,
    exp.Month,
    exp.Day,
    exp.DateDiff,
    exp.TimestampDiff,
    exp.DateAdd,
    exp.DateSub,
    exp.TsOrDsToDate,
)
_DATE_CALLS = ("YEAR", "MONTH", "DAY", "DATE", "DATEDIFF", "TIMESTAMPDIFF", "DATE_FORMAT", "DAYOFWEEK")
_TEXTS = (exp.Like, exp.Concat, exp.Substring, exp.Lower, exp.Upper)
_NUMBERS = (exp.Sum, exp.Avg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Round)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between)


class _Seen:
    """What the statements show of one column."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()
        self.votes: Counter[str] = Counter()
        self.constants: list[str] = []

    def look(self, column: exp.Column) -> None:
        self.names[column.name] += 1
        above = column.parent
        while isinstance(above, exp.Paren | exp.Distinct | exp.Neg):
            above = above.parent
        if isinstance(above, _COMPARISONS):
            for each in above.iter_expressions():
                if isinstance(each, exp.Literal):
                    self._constant(each)
        elif isinstance(above, _DATES) or (
            isinstance(above, exp.Anonymous) and str(above.this).upper() in _DATE_CALLS
        ):
            self.votes["date"] += 1
        elif isinstance(above, _TEXTS):
            self.votes["text"] += 1
        elif isinstance(above, _NUMBERS):
            self.votes["number"] += 1

    def _constant(self, literal: exp.Literal) -> None:
        self.constants.append(literal.name[:60])
        kind = "number" if not literal.is_string else "date" if _DAY.match(literal.name) else "text"
        self.votes["decimal" if kind == "number" and "." in literal.name else kind] += 1

    def column(self) -> Column:
        kind = self.votes.most_common(1)[0][0] if self.votes else "number"
        type = {"number": "INT", "decimal": "DECIMAL(10,2)", "date": "DATE", "text": "VARCHAR(60)"}[kind]
        return Column(self.names.most_common(1)[0][0], type)


def fitted(statements: Iterable[str], rng: random.Random) -> tuple[Table, ...]:
    """Tables for these statements; what none of them names right is in none."""
    names: dict[str, Counter[str]] = defaultdict(Counter)
    seen: dict[str, dict[str, _Seen]] = defaultdict(lambda: defaultdict(_Seen))
    for tree in _trees(statements):
        made = {each.alias.lower() for each in tree.find_all(exp.CTE, exp.Subquery) if each.alias}
        sources = {}
        for table in tree.find_all(exp.Table):
            if table.name and table.name.lower() not in made:
                names[table.name.lower()][table.name] += 1
                sources[table.alias_or_name.lower()] = table.name.lower()
        for column in tree.find_all(exp.Column):
            owner = sources.get(column.table.lower())
            if not column.table and sources:  # of a table that is known to have it, else of the first
                known = [each for each in sources.values() if column.name.lower() in seen[each]]
                owner = [*known, *sources.values()][0]
            if owner and column.name and len(seen[owner]) < MAX_COLUMNS:
                seen[owner][column.name.lower()].look(column)
    spelled = {key: count.most_common(1)[0][0] for key, count in names.items()}
    return tuple(_table(spelled[key], columns, rng) for key, columns in sorted(seen.items()) if columns)


def _trees(statements: Iterable[str]) -> Iterator[exp.Expr]:
    for sql in statements:
        try:
            trees = parse_statements(sql)
        except (SqlglotError, RecursionError):
            continue
        if len(trees) == 1 and isinstance(trees[0], exp.Query):
            yield trees[0]


def _table(name: str, columns: dict[str, _Seen], rng: random.Random) -> Table:
    described = [each.column() for each in columns.values()]
    kinds = list(zip(columns.values(), described, strict=True))
    rows = [tuple(_cell(seen, column.type, rng) for seen, column in kinds) for _ in range(ROWS)]
    return Table(name, tuple(described), tuple(rows))


def _cell(seen: _Seen, type: str, rng: random.Random) -> str | int | None:
    if rng.random() < 0.08:
        return None
    planted = rng.choice(seen.constants) if seen.constants and rng.random() < 0.6 else None
    if type == "INT":
        whole = planted is not None and planted.isdecimal() and len(planted) < 9
        return int(planted or 0) if whole else rng.randint(1, 8)
    if type.startswith("DECIMAL"):
        number = planted is not None and re.fullmatch(r"\d{1,7}(\.\d+)?", planted)
        return f"{float(planted or 0):.2f}" if number else f"{rng.randint(0, 3000) / 100:.2f}"
    if type == "DATE":
        fits = planted is not None and _DAY.match(planted)
        day = (rng.choice((1990, 2009, 2012)), rng.randint(1, 12), rng.randint(1, 28))
        return str(planted) if fits else "{}-{:02}-{:02}".format(*day)
    return (
        planted
        if planted is not None
        else rng.choice(("Ann", "ann", "Bob", "Zoë", "", "10", "x y", "F", "M"))
    )
