"""One draft of a question and its SQL: the chance, the table, and the clauses that all forms share.

A draft knows which rows its WHERE leaves and computes from the cells what is left of groups, so that orders,
limits and bounds that would decide nothing are not even written down. What counts in the end is `checks`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trl_dbbench.data.generate.checks import MOST_ROWS
from trl_dbbench.data.generate.conditions import where
from trl_dbbench.data.generate.plans import ORDERS, Plan
from trl_dbbench.data.generate.tables import Item, Source

Made = tuple[list[str], str] | None
"""The sentences of a question and its SQL; `None` if the table has no columns for the plan."""

NUMBERS = ("count", "money", "rate")
_ALIASES = ("result", "answer", "outcome", "found", "wanted")
_TABLE_ALIASES = ("t", "src", "x", "tab", "base")


@dataclass(frozen=True)
class Term:
    """What may be ordered by: its SQL, its name, a column's role, and its value for each row or group
    left."""

    sql: str
    label: str
    role: str
    values: tuple[Any, ...]
    cells: tuple[Any, ...]
    """For a column its cells in all rows, for a group's term `values` again."""


@dataclass(frozen=True)
class Measure:
    """An aggregate: its SQL, its name, and its value for the rows of these numbers."""

    sql: str
    label: str
    of: Callable[[Sequence[int]], float | None]
    mistaken: Callable[[Sequence[int]], float | None] = lambda rows: None
    """The value of the aggregate that is easily taken for it."""


@dataclass
class Draft:
    """See the module.

    `kept` are the numbers of the rows that WHERE leaves, `others` those that it leaves if a part is
    forgotten.
    """

    rng: random.Random
    source: Source
    plan: Plan

    def __post_init__(self) -> None:
        self.kept = list(range(len(self.source.table.rows)))
        self.others: list[list[int]] = []
        self.terms: list[tuple[Term, bool]] = []  # what the order goes by, and whether from high to low
        self.cut = slice(None)  # what LIMIT leaves
        self.alias = self.rng.choice(_TABLE_ALIASES) if self.plan.table_alias else ""
        self.prefix = f"{self.alias}." if self.alias and self.rng.random() < 0.6 else ""
        self.table = self.source.table_sql + (f" AS {self.alias}" if self.alias else "")
        names = {item.name for item in self.source.items}
        self.column_alias = ""
        if self.plan.column_alias:
            self.column_alias = self.rng.choice([each for each in _ALIASES if each not in names])

    def pick(self, *wordings: str) -> str:
        return self.rng.choice(wordings)

    def item(self, *roles: str) -> Item | None:
        items = self.source.of(*roles)
        return self.rng.choice(items) if items else None

    def named(self, sql: str) -> str:
        """An output column, with the alias that the plan may ask for."""
        return f"{sql} AS {self.column_alias}" if self.column_alias else sql

    def where(self) -> tuple[str, str] | None:
        """` WHERE ...` and what the question says of it, ` where ...`; both empty without."""
        if not self.plan.where:
            return "", ""
        everything = frozenset(range(len(self.source.table.rows)))
        for _ in range(8):
            words = where(self.rng, self.source, self.plan.where, self.plan.subquery, self.prefix)
            if words and words.rows and words.rows not in (everything, *words.parts):
                self.kept = sorted(words.rows)
                self.others = [sorted(rows) for rows in (*words.parts, everything)]
                return f" WHERE {words.sql}", f" {self.pick('where', 'for which', 'such that')} {words.text}"
        return None

    def alias_sentences(self) -> list[str]:
        """What the question says of aliases."""
        a, t = self.column_alias, self.alias
        column = self.pick(
            f"Name the result column {a}.",
            f"Show it under the column alias {a}.",
            f"Use the column alias {a}.",
        )
        table = self.pick(
            f"Give the table the alias {t}.", f"Use {t} as table alias.", f"Refer to the table as {t}."
        )
        return [column if a else "", table if t else ""]

    def limit(self, found: int) -> tuple[str, str] | None:
        """` LIMIT ...` and its sentence, for so many rows or groups.

        `None` if they are no fair number: one without an order, two or more with one, and not too many.
        """
        plan = self.plan
        if not (found >= 2 if plan.order else found == 1) or (found > MOST_ROWS and not plan.limit):
            return None
        if not plan.limit:
            return "", ""
        skipped = self.rng.randint(1, min(4, found - 1))
        size = self.rng.randint(1, min(5, found - (1 if plan.limit == "limit_only" else skipped)))
        rows = "row" if size == 1 else f"{size} rows"
        self.cut = slice(size) if plan.limit == "limit_only" else slice(skipped, skipped + size)
        if plan.limit == "limit_only":
            return f" LIMIT {size}", self.pick(
                f"Return only the first {rows}.",
                f"Stop after the first {rows}.",
                f"Limit the result to the top {rows}.",
            )
        over = "row" if skipped == 1 else f"{skipped} rows"
        return f" LIMIT {size} OFFSET {skipped}", self.pick(
            f"Skip the first {over} and return the next {rows}.",
            f"Leave out the first {over}, then give {size}.",
            f"Return {size} after an offset of {skipped}.",
        )

    def order(self, choices: list[list[Term]]) -> tuple[str, str] | None:
        """` ORDER BY ...` and its sentence, by one of `choices` that leaves nothing open; `None` if none
        does."""
        if not self.plan.order:
            return "", ""
        choices = [terms for terms in choices if _decides(terms)]
        if not choices:
            return None
        terms = self.rng.choice(choices)
        down = self.rng.random() < 0.5
        directions = [down] * len(terms)
        if self.plan.order == ORDERS[2]:
            directions[-1] = not down
        pairs = self.terms = list(zip(terms, directions, strict=True))
        sql = ", ".join(
            f"{term.sql} DESC" if down else term.sql + self.pick("", " ASC") for term, down in pairs
        )
        words = ", then by ".join(
            f"{term.label} {_direction(self.rng, term.role, down)}" for term, down in pairs
        )
        return (
            f" ORDER BY {sql}",
            f"{self.pick('Sort by', 'Order the rows by', 'Sort the result by')} {words}.",
        )

    def row_order(self) -> tuple[str, str] | None:
        """An order of the rows that are left; `None` if no columns tell them apart."""
        terms = [
            Term(
                self.prefix + item.sql,
                f"the {item.label}",
                item.role,
                tuple(item.cells[row] for row in self.kept),
                item.cells,
            )
            for item in self.source.items
            if item.role != "note" and sortable(item)
        ]
        if self.plan.order == ORDERS[0]:
            return self.order([[term] for term in terms])
        return self.order([[a, b] for a in terms for b in terms if a is not b])

    def slips_show(self, kept: list[int], others: list[list[int]], ordered: bool = True) -> bool:
        """Whether others come out of `kept` in the order if a term of it is turned round, or out of `others`.

        Args:
            kept: numbers of rows, or of groups.
            others: what there is instead of `kept` if a part of WHERE is forgotten.
            ordered: whether the same ones in another order are others.
        """

        def rows(left: list[int], turned: int | None = None) -> list[int]:
            found = list(left)
            for place in reversed(range(len(self.terms))):
                term, down = self.terms[place]
                found.sort(key=lambda row: _sort_key(term.cells[row]), reverse=down != (place == turned))
            return found[self.cut] if ordered else sorted(found[self.cut])

        wrong = [rows(left) for left in others] + [rows(kept, place) for place in range(len(self.terms))]
        return rows(kept) not in wrong


def _sort_key(cell: Any) -> tuple:
    """As SQL sorts: NULL first, texts without regard to case."""
    return (cell is not None, cell.lower() if isinstance(cell, str) else cell)


def _decides(terms: list[Term]) -> bool:
    """Whether no two rows tie, and a second term is needed for that; NULLs have no place that a question
    tells."""
    keys = list(zip(*(term.values for term in terms), strict=True))
    if any(None in key for key in keys):
        return False
    return len(set(keys)) == len(keys) and (len(terms) == 1 or len(set(terms[0].values)) < len(keys))


def measure(d: Draft, prefix: str = "") -> Measure | None:
    """An aggregate and its name."""
    function = d.rng.choice(["COUNT", "COUNT", "SUM", "AVG", "MAX", "MIN", "DISTINCT"])
    if function == "COUNT":
        return Measure(
            "COUNT(*)", d.pick(f"number of {d.source.rows}", "number of rows", "count of rows"), len
        )
    item = d.item("category", "key") if function == "DISTINCT" else d.item(*NUMBERS)
    if item is None:
        return None
    sql = function.join(["", f"({prefix}{item.sql})"])
    if function == "DISTINCT":
        sql, label = f"COUNT(DISTINCT {prefix}{item.sql})", f"number of different values of {item.label}"
    elif function == "AVG":
        sql = f"ROUND({sql}, 2)"
        label = d.pick(
            f"average {item.label} (rounded to 2 decimals)", f"mean {item.label} (rounded to two decimals)"
        )
    else:
        words = {
            "SUM": ("total", "sum of the"),
            "MAX": ("highest", "largest", "maximum"),
            "MIN": ("lowest", "smallest", "minimum"),
        }
        label = f"{d.pick(*words[function])} {item.label}"
    mistaken = {"SUM": "MAX", "MAX": "MIN", "MIN": "MAX", "AVG": "SUM", "DISTINCT": "COUNT"}[function]
    return Measure(sql, label, aggregate(function, item), aggregate(mistaken, item))


def aggregate(function: str, item: Item) -> Callable[[Sequence[int]], float | None]:
    """What SQL makes of the cells in the rows of these numbers."""

    def of(rows: Sequence[int]) -> float | None:
        cells: list[Any] = [item.cells[row] for row in rows if item.cells[row] is not None]
        if function in ("DISTINCT", "COUNT"):
            return len(set(cells) if function == "DISTINCT" else cells)
        if not cells:
            return None
        if function == "MAX":
            return max(cells)
        if function == "MIN":
            return min(cells)
        return sum(cells) / (len(cells) if function == "AVG" else 1)

    return of


def _direction(rng: random.Random, role: str, down: bool) -> str:
    if role == "day":
        words = ("latest first", "newest first") if down else ("earliest first", "oldest first")
    elif role in ("key", "category"):
        words = (
            ("from Z to A", "in reverse alphabetical order") if down else ("from A to Z", "alphabetically")
        )
    else:
        words = ("largest first", "descending") if down else ("smallest first", "ascending")
    return f"({rng.choice(words)})"


def sortable(item: Item) -> bool:
    """Whether collations agree on the order of its texts."""
    return item.role not in ("key", "category") or all(
        each is None or (isinstance(each, str) and each.isascii() and each.replace(" ", "").isalnum())
        for each in item.cells
    )


def listed(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
