"""Drafts of a question and its SQL: random choices, and the conditions and clauses that all forms use.

A draft knows which rows its WHERE keeps, and computes groups from the cells, so that it writes no order,
limit or bound that would have no effect. `checks` has the final say.
"""

from __future__ import annotations

import operator
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from trl_dbbench.data.generate.checks import MOST_ROWS
from trl_dbbench.data.generate.plans import ORDERS, Plan
from trl_dbbench.data.generate.tables import Item, Source, fold, literal, said

MULTIPLE, NESTED = "where_multiple_conditions", "where_nested_conditions"

_ABOVE = ("above", "greater than", "more than", "over")
_BELOW = ("below", "less than", "under", "smaller than")
_COMPARISONS = ((">", _ABOVE), ("<", _BELOW), (">=", ("at least",)), ("<=", ("at most",)))
_DAYS = ((">", ("after",)), ("<", ("before",)), (">=", ("on or after",)), ("<=", ("on or before",)))
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}

Rows = frozenset[int]
"""Indices of rows."""


@dataclass(frozen=True)
class Words:
    """A condition in SQL and in English, and the rows that it holds for.

    `parts` are the rows for which its misreadings hold: one part alone, AND taken for OR, no parentheses.
    """

    sql: str
    text: str
    rows: Rows
    parts: tuple[Rows, ...] = ()


def _on(item: Item, test: Callable[[Any], bool]) -> Rows:
    """Return the rows whose cell passes; NULL passes no test."""
    return frozenset(row for row, cell in enumerate(item.cells) if cell is not None and test(cell))


def _words(item: Item, prefix: str, sql: str, text: str, test: Callable[[Any], bool]) -> Words:
    """Return a condition on a column from the SQL and the text after its name, and a test of its cells."""
    return Words(f"{prefix}{item.sql} {sql}", f"the {item.label} {text}", _on(item, test))


def _joined(parts: list[Words], connector: str) -> Words:
    word = ", or " if len(parts) > 2 and connector == "OR" else f" {connector.lower()} "
    sets = [part.rows for part in parts]
    both, either = frozenset.intersection(*sets), frozenset.union(*sets)
    rows, other = (both, either) if connector == "AND" else (either, both)
    sql = f" {connector} ".join(part.sql for part in parts)
    return Words(sql, word.join(part.text for part in parts), rows, (*sets, other))


def _nested(rng: random.Random, a: Words, b: Words, c: Words) -> Words:
    either, both = f"({a.sql} OR {b.sql})", f"({a.sql} AND {b.sql})"
    union, common = a.rows | b.rows, a.rows & b.rows
    if rng.random() < 0.5:
        sql, text = rng.choice(
            [
                (f"{either} AND {c.sql}", f"{c.text}, and either {a.text} or {b.text}"),
                (f"{c.sql} AND {either}", f"{c.text}, and at least one holds: {a.text}, or {b.text}"),
            ]
        )
        wrong = (union, c.rows, a.rows & c.rows, b.rows & c.rows, common & c.rows, union | c.rows)
        # the last one is how the condition reads without parentheses
        return Words(sql, text, union & c.rows, (*wrong, a.rows | (b.rows & c.rows)))
    sql, text = rng.choice(
        [
            (f"{c.sql} OR {both}", f"{c.text}, or both {a.text} and {b.text}"),
            (f"{both} OR {c.sql}", f"either both {a.text} and {b.text}, or {c.text}"),
        ]
    )
    wrong = (common, c.rows, a.rows | c.rows, b.rows | c.rows, union | c.rows, common & c.rows)
    return Words(sql, text, common | c.rows, wrong)


# --- one condition, no subquery -------------------------------------------------------------------


def simple(rng: random.Random, item: Item, prefix: str = "") -> Words:
    """Return a condition on one column that holds for some rows."""
    if None in item.cells and (item.role == "note" or rng.random() < 0.4):
        if rng.random() < 0.5:
            word = rng.choice(["missing", "empty (NULL)", "not given"])
            missing = frozenset(row for row, cell in enumerate(item.cells) if cell is None)
            return Words(f"{prefix}{item.sql} IS NULL", f"the {item.label} is {word}", missing)
        word = rng.choice(["not missing", "given", "not NULL"])
        return _words(item, prefix, "IS NOT NULL", f"is {word}", lambda cell: True)
    value = rng.choice(item.present)
    if item.role in ("key", "category", "note"):
        return _on_text(rng, item, prefix, value)
    return _on_amount(rng, item, prefix, value)


def _on_text(rng: random.Random, item: Item, prefix: str, value: str) -> Words:
    form = rng.randrange(6)
    others = [each for each in item.present if each != value]
    if form == 0 and others:
        two = (value, rng.choice(others))
        sql, text = (", ".join(map(write, two)) for write in (literal, said))
        return _words(item, prefix, f"IN ({sql})", f"is one of {text}", lambda cell: cell in two)
    if form == 1 and not item.nullable:
        word = rng.choice(["not", "other than"])
        sql, text = f"<> {literal(value)}", f"is {word} {said(value)}"
        return _words(item, prefix, sql, text, lambda cell: cell != value)
    start = value[:1]
    # LIKE has wildcards, and collations ignore accents and case, so it is used only where neither matters
    if (
        form == 2
        and start.isalnum()
        and all(each.startswith(start) == fold(each).startswith(fold(start)) for each in item.present)
    ):
        sql, text = f"LIKE {literal(start + '%')}", f"{rng.choice(['starts', 'begins'])} with {said(start)}"
        return _words(item, prefix, sql, text, lambda cell: cell.startswith(start))
    return _words(item, prefix, f"= {literal(value)}", f"is {said(value)}", lambda cell: cell == value)


def _on_amount(rng: random.Random, item: Item, prefix: str, value: Any) -> Words:
    other = rng.choice(item.present)
    if rng.random() < 0.2 and other != value:
        low, high = sorted([value, other])
        sql = f"BETWEEN {literal(low)} AND {literal(high)}"
        span = rng.choice(["between {} and {}", "from {} to {}"]).format(said(low), said(high))
        return _words(item, prefix, sql, f"is {span} (both included)", lambda cell: low <= cell <= high)
    if item.role in ("count", "id") and rng.random() < 0.25:
        text = f"is {rng.choice(['', 'exactly ', 'equal to '])}{said(value)}"
        return _words(item, prefix, f"= {literal(value)}", text, lambda cell: cell == value)
    sign, words = rng.choice(_DAYS if item.role == "day" else _COMPARISONS)
    sql, text = f"{sign} {literal(value)}", f"is {rng.choice(words)} {said(value)}"
    return _words(item, prefix, sql, text, lambda cell: _TESTS[sign](cell, value))


# --- one condition with a subquery ----------------------------------------------------------------


def _scalar(d: Draft, derived: bool = False) -> Words | None:
    """Return a condition that compares a number with the average, the highest or the lowest.

    With `derived` the subquery is inside FROM, as MySQL changes no table that a plain subquery reads.
    """
    item = d.item(*NUMBERS)
    if item is None:
        return None
    if d.rng.randrange(3) == 0:
        function, word = d.rng.choice([("MAX", "highest"), ("MIN", "lowest")])
        sign, text = "=", f"is the {word} of the table"
        bound = item.present[-1 if function == "MAX" else 0]
    else:
        function, bound = "AVG", statistics.fmean(item.present_all)
        if min(abs(each - bound) for each in item.present) < 1e-3:
            return None  # exact and binary arithmetic might disagree on which side it lies
        sign, words = d.rng.choice(_COMPARISONS[:2])
        mean = d.pick("average", "mean")
        text = f"is {d.pick(*words)} the {mean} {item.label} of the whole table"
    subquery = f"SELECT {function}({item.sql}) FROM {d.source.table_sql}"
    if derived:
        subquery = (
            f"SELECT bound FROM (SELECT {function}({item.sql}) AS bound FROM {d.source.table_sql}) AS limits"
        )
    return _words(item, d.prefix, f"{sign} ({subquery})", text, lambda cell: _TESTS[sign](cell, bound))


def _of_same_kind(d: Draft) -> Words | None:
    """Return a condition that the category occurs in rows that meet another condition."""
    kind = d.item("category")
    if kind is None:
        return None
    inner = simple(d.rng, d.rng.choice([each for each in d.source.items if each is not kind]))
    shared = {kind.cells[row] for row in inner.rows}
    sql = f"IN (SELECT {kind.sql} FROM {d.source.table_sql} WHERE {inner.sql})"
    text = f"is one that occurs in a row where {inner.text}"
    return _words(kind, d.prefix, sql, text, lambda cell: cell in shared)


def _of_large_group(d: Draft) -> Words | None:
    """Return a condition that many rows share the category."""
    kind = d.item("category")
    if kind is None:
        return None
    sizes = sorted({kind.cells.count(each) for each in kind.present})
    if len(sizes) < 2:
        return None
    least, table = d.rng.choice(sizes[1:]), d.source.table_sql
    sql = f"IN (SELECT {kind.sql} FROM {table} GROUP BY {kind.sql} HAVING COUNT(*) >= {least})"
    text = f"{d.pick('occurs at least', 'stands in at least')} {least} times in the table"
    return _words(kind, d.prefix, sql, text, lambda cell: kind.cells.count(cell) >= least)


def _nested_subquery(d: Draft) -> Words | None:
    """Return a condition for the second highest (lowest) value, or for the highest's (lowest's) category."""
    item = d.item(*NUMBERS)
    if item is None or len(item.present) < 3:
        return None
    table, column = d.source.table_sql, item.sql
    function, word, sign, places = d.rng.choice(
        [("MAX", "highest", "<", (-1, -2)), ("MIN", "lowest", ">", (0, 1))]
    )
    first, second = (item.present[place] for place in places)
    extreme = f"(SELECT {function}({column}) FROM {table})"
    if d.rng.random() < 0.5:
        sql = f"= (SELECT {function}({column}) FROM {table} WHERE {column} {sign} {extreme})"
        text = f"is the second {word} value that occurs"
        return _words(item, d.prefix, sql, text, lambda cell: cell == second)
    kind = d.item("category")
    if kind is None:
        return None
    shared = {kind.cells[row] for row in _on(item, lambda cell: cell == first)}
    sql = f"IN (SELECT {kind.sql} FROM {table} WHERE {column} = {extreme})"
    text = f"is that of {d.pick('a', 'some')} row with the {word} {item.label} of all"
    return _words(kind, d.prefix, sql, text, lambda cell: cell in shared)


_SUBQUERIES: dict[str, Callable[[Draft], Words | None]] = {
    "scalar": _scalar,
    "same": _of_same_kind,
    "group": _of_large_group,
    "nested": _nested_subquery,
    "derived": partial(_scalar, derived=True),
}
_PAIRS = {"two": ("scalar", "scalar"), "mixed": ("scalar", "group")}


Made = tuple[list[str], str] | None
"""The sentences of a question and its SQL; `None` if the table lacks the columns for the plan."""

NUMBERS = ("count", "money", "rate")
_ALIASES = ("result", "answer", "outcome", "found", "wanted")
_TABLE_ALIASES = ("t", "src", "x", "tab", "base")


@dataclass(frozen=True)
class Term:
    """A term of ORDER BY: its SQL, name, column role, and its value for each row or group."""

    sql: str
    label: str
    role: str
    cells: Sequence[Any]


@dataclass(frozen=True)
class Measure:
    """An aggregate: its SQL, its name, and a function that computes it from row indices."""

    sql: str
    label: str
    of: Callable[[Sequence[int]], float | None]
    mistaken: Callable[[Sequence[int]], float | None] = lambda rows: None
    """The same for the aggregate that it is easily mistaken for."""


@dataclass
class Choices:
    """A table, and random choices from it."""

    rng: random.Random
    source: Source

    def pick(self, *wordings: str) -> str:
        return self.rng.choice(wordings)

    def item(self, *roles: str, but: Sequence[Item] = ()) -> Item | None:
        """Draw a column that has one of these roles and is not in `but`; `None` if there is none."""
        items = [item for item in self.source.of(*roles) if item not in but]
        return self.rng.choice(items) if items else None


@dataclass
class Draft(Choices):
    """A draft for a plan; see the module.

    `kept` are the indices of the rows that WHERE keeps, `others` those that its misreadings would keep.
    """

    plan: Plan

    def __post_init__(self) -> None:
        self.kept = list(range(len(self.source.table.rows)))
        self.others: list[list[int]] = []
        self.terms: list[tuple[Term, bool]] = []  # terms of ORDER BY, each with whether it is descending
        self.cut = slice(None)  # the rows or groups that LIMIT keeps
        self.alias = self.rng.choice(_TABLE_ALIASES) if self.plan.table_alias else ""
        self.prefix = f"{self.alias}." if self.alias and self.rng.random() < 0.6 else ""
        self.table = self.source.table_sql + (f" AS {self.alias}" if self.alias else "")
        names = {column.name.casefold() for column in self.source.table.columns}
        self.column_alias = ""
        if self.plan.column_alias:
            self.column_alias = self.rng.choice([each for each in _ALIASES if each not in names])

    def named(self, sql: str) -> str:
        """Return an output column, with an alias if the plan asks for one."""
        return f"{sql} AS {self.column_alias}" if self.column_alias else sql

    def where(self) -> tuple[str, str] | None:
        """Return ` WHERE ...` and its words, ` where ...`, both empty if the plan has none.

        `None` if no condition is found that keeps some rows but not all, and other rows than its misreadings.
        """
        if not self.plan.where:
            return "", ""
        everything = frozenset(range(len(self.source.table.rows)))
        for _ in range(8):
            words = self._condition()
            if words and words.rows and words.rows not in (everything, *words.parts):
                self.kept = sorted(words.rows)
                self.others = [sorted(rows) for rows in (*words.parts, everything)]
                return f" WHERE {words.sql}", f" {self.pick('where', 'for which', 'such that')} {words.text}"
        return None

    def _condition(self) -> Words | None:
        """Return a condition with the plan's subquery; `None` if the table lacks the columns for it."""
        parts: list[Words] = []
        kind, subquery = self.plan.where, self.plan.subquery
        for form in _PAIRS.get(subquery, (subquery,)) if subquery else ():
            words = _SUBQUERIES[form](self)
            if words is None:
                return None
            parts.append(words)
        wanted = {MULTIPLE: self.rng.choice([2, 2, 3]), NESTED: 3}.get(kind, 1)
        items = self.rng.sample(self.source.items, len(self.source.items))
        parts += [simple(self.rng, item, self.prefix) for item in items[: wanted - len(parts)]]
        if len(parts) < wanted:
            return None
        self.rng.shuffle(parts)
        if kind == MULTIPLE:
            return _joined(parts, self.pick("AND", "AND", "OR"))
        return _nested(self.rng, *parts) if kind == NESTED else parts[0]

    def alias_sentences(self) -> list[str]:
        """Return the question's sentences about aliases."""
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
        """Return ` LIMIT ...` and its sentence for `found` rows or groups, both empty if the plan has none.

        `None` if `found` does not suit the plan: it must be 1 without an order, at least 2 with one, and at
        most `MOST_ROWS` without a limit.
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

    def order(self, choices: list[list[Term]], left: Sequence[int]) -> tuple[str, str] | None:
        """Return ` ORDER BY ...` and its sentence, both empty if the plan has none.

        The terms are one of `choices` that orders the rows or groups in `left`; `None` if none does.
        """
        if not self.plan.order:
            return "", ""
        choices = [terms for terms in choices if _decides(terms, left)]
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
        """Return an order of the rows in `kept`; `None` if no columns tell them apart."""
        terms = [
            Term(self.prefix + item.sql, f"the {item.label}", item.role, item.cells)
            for item in self.source.items
            if item.role != "note" and sortable(item)
        ]
        if self.plan.order == ORDERS[0]:
            return self.order([[term] for term in terms], self.kept)
        return self.order([[a, b] for a in terms for b in terms if a is not b], self.kept)

    def slips_show(self, kept: list[int], others: list[list[int]], ordered: bool = True) -> bool:
        """Return whether each slip changes the rows or groups that LIMIT keeps.

        The slips are reversing one term of the order of `kept`, and starting from one of `others`, as a
        misread WHERE does.

        Args:
            ordered: the same rows or groups in another order count as a change.
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
    """Return a sort key in SQL's order: NULL first, texts regardless of case."""
    return (cell is not None, cell.lower() if isinstance(cell, str) else cell)


def _decides(terms: list[Term], rows: Sequence[int]) -> bool:
    """Return whether the terms order the rows without ties or NULLs, and none of them is superfluous."""
    keys = [tuple(term.cells[row] for term in terms) for row in rows]
    if any(None in key for key in keys):
        return False
    return len(set(keys)) == len(keys) and (len(terms) == 1 or len({key[0] for key in keys}) < len(keys))


def measure(d: Draft) -> Measure | None:
    """Draw an aggregate; `None` if the table has no column for it."""
    function = d.rng.choice(["COUNT", "COUNT", "SUM", "AVG", "MAX", "MIN", "DISTINCT"])
    if function == "COUNT":
        return Measure(
            "COUNT(*)", d.pick(f"number of {d.source.rows}", "number of rows", "count of rows"), len
        )
    item = d.item("category", "key") if function == "DISTINCT" else d.item(*NUMBERS)
    if item is None:
        return None
    sql, mistaken, labels = _MEASURES[function]
    label = d.pick(*labels) if labels[1:] else labels[0]  # a choice of one would draw a random number
    return Measure(
        sql.format(d.prefix + item.sql),
        label.format(item.label),
        aggregate(function, item),
        aggregate(mistaken, item),
    )


_MEASURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "SUM": ("SUM({})", "MAX", ("total {}", "sum of the {}")),
    "MAX": ("MAX({})", "MIN", ("highest {}", "largest {}", "maximum {}")),
    "MIN": ("MIN({})", "MAX", ("lowest {}", "smallest {}", "minimum {}")),
    "AVG": (
        "ROUND(AVG({}), 2)",
        "SUM",
        ("average {} (rounded to 2 decimals)", "mean {} (rounded to two decimals)"),
    ),
    "DISTINCT": ("COUNT(DISTINCT {})", "COUNT", ("number of different values of {}",)),
}
"""Aggregate -> its SQL, the aggregate that it is easily mistaken for, and its names."""


def aggregate(function: str, item: Item) -> Callable[[Sequence[int]], float | None]:
    """Return a function that computes the aggregate over the rows with these indices, as SQL does."""

    def of(rows: Sequence[int]) -> float | None:
        cells = [item.cells[row] for row in rows if item.cells[row] is not None]
        return _AGGREGATES[function](cells) if cells or function in ("DISTINCT", "COUNT") else None

    return of


_AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    **{"COUNT": len, "MAX": max, "MIN": min, "SUM": sum, "AVG": lambda cells: sum(cells) / len(cells)},
    "DISTINCT": lambda cells: len(set(cells)),
}


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
    """Return whether collations agree on the order of a column's texts."""
    return item.role not in ("key", "category") or all(
        each is None or (isinstance(each, str) and each.isascii() and each.replace(" ", "").isalnum())
        for each in item.cells
    )


def listed(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
