"""Conditions on rows, each in SQL and in words: simple ones, groups of them, those with subqueries.

A condition reads as a clause, `the price is above 20`, so that it fits after "where", "for which" or "if". It
also knows for which rows of the table it holds, so that one that parts nothing is not even written down.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trl_dbbench.data.generate.tables import Item, Source, fold, literal, said

MULTIPLE, NESTED = "where_multiple_conditions", "where_nested_conditions"

_ABOVE = ("above", "greater than", "more than", "over")
_BELOW = ("below", "less than", "under", "smaller than")
_COMPARISONS = ((">", _ABOVE), ("<", _BELOW), (">=", ("at least",)), ("<=", ("at most",)))
_DAYS = ((">", ("after",)), ("<", ("before",)), (">=", ("on or after",)), ("<=", ("on or before",)))
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    ">": lambda cell, value: cell > value,
    "<": lambda cell, value: cell < value,
    ">=": lambda cell, value: cell >= value,
    "<=": lambda cell, value: cell <= value,
}

Rows = frozenset[int]
"""Numbers of rows."""


@dataclass(frozen=True)
class Words:
    """A condition in both languages, the rows that it holds for, and those that its parts alone hold for."""

    sql: str
    text: str
    rows: Rows
    parts: tuple[Rows, ...] = ()


def _on(item: Item, test: Callable[[Any], bool]) -> Rows:
    """The rows whose cell passes; NULL passes no test."""
    return frozenset(row for row, cell in enumerate(item.cells) if cell is not None and test(cell))


def where(rng: random.Random, source: Source, kind: str, subquery: str, prefix: str = "") -> Words | None:
    """What follows WHERE, of one of the three kinds, with the subquery form that a plan names or `""`.

    Args:
        prefix: the outer table's alias with its dot, or `""`.

    Returns:
        `None` if the table has no columns for it.
    """
    special: list[Words] = []
    if subquery:
        for form in _PAIRS.get(subquery, (subquery,)):
            words = _SUBQUERIES[form](rng, source, prefix)
            if words is None:
                return None
            special.append(words)
    wanted = {MULTIPLE: rng.choice([2, 2, 3]), NESTED: 3}.get(kind, 1)
    items = rng.sample(source.items, len(source.items))
    plain = [simple(rng, source, item, prefix) for item in items[: wanted - len(special)]]
    parts = [*special, *plain]
    if len(parts) < wanted:
        return None
    rng.shuffle(parts)
    if kind == MULTIPLE:
        return _joined(parts, rng.choice(["AND", "AND", "OR"]))
    return _nested(rng, *parts) if kind == NESTED else parts[0]


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
        # what a reader without parentheses might take it for
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


def simple(rng: random.Random, source: Source, item: Item, prefix: str = "") -> Words:
    """A condition on one column that holds for some rows."""
    column, label = prefix + item.sql, f"the {item.label}"
    if None in item.cells and (item.role == "note" or rng.random() < 0.4):
        given = _on(item, lambda cell: True)
        if rng.random() < 0.5:
            missing = frozenset(range(len(item.cells))) - given
            word = rng.choice(["missing", "empty (NULL)", "not given"])
            return Words(f"{column} IS NULL", f"{label} is {word}", missing)
        return Words(
            f"{column} IS NOT NULL", f"{label} is {rng.choice(['not missing', 'given', 'not NULL'])}", given
        )
    value = rng.choice(item.present)
    if item.role in ("key", "category", "note"):
        return _on_text(rng, item, column, label, value)
    return _on_amount(rng, item, column, label, value)


def _on_text(rng: random.Random, item: Item, column: str, label: str, value: str) -> Words:
    form = rng.randrange(6)
    others = [each for each in item.present if each != value]
    if form == 0 and others:
        two = (value, rng.choice(others))
        listed = ", ".join(map(literal, two))
        return Words(
            f"{column} IN ({listed})",
            f"{label} is one of {', '.join(map(said, two))}",
            _on(item, lambda cell: cell in two),
        )
    if form == 1 and not item.nullable:
        word = rng.choice(["not", "other than"])
        return Words(
            f"{column} <> {literal(value)}",
            f"{label} is {word} {said(value)}",
            _on(item, lambda cell: cell != value),
        )
    start = value[:1]
    # LIKE has signs of its own; collations see no accents and no case, so only where these play no part
    if (
        form == 2
        and start.isalnum()
        and all(each.startswith(start) == fold(each).startswith(fold(start)) for each in item.present)
    ):
        return Words(
            f"{column} LIKE {literal(start + '%')}",
            f"{label} {rng.choice(['starts', 'begins'])} with {said(start)}",
            _on(item, lambda cell: cell.startswith(start)),
        )
    return Words(
        f"{column} = {literal(value)}", f"{label} is {said(value)}", _on(item, lambda cell: cell == value)
    )


def _on_amount(rng: random.Random, item: Item, column: str, label: str, value: Any) -> Words:
    other = rng.choice(item.present)
    if rng.random() < 0.2 and other != value:
        low, high = sorted([value, other])
        span = rng.choice(["between {} and {}", "from {} to {}"]).format(said(low), said(high))
        return Words(
            f"{column} BETWEEN {literal(low)} AND {literal(high)}",
            f"{label} is {span} (both included)",
            _on(item, lambda cell: low <= cell <= high),
        )
    if item.role in ("count", "id") and rng.random() < 0.25:
        word = rng.choice(["", "exactly ", "equal to "])
        return Words(
            f"{column} = {literal(value)}",
            f"{label} is {word}{said(value)}",
            _on(item, lambda cell: cell == value),
        )
    sign, words = rng.choice(_DAYS if item.role == "day" else _COMPARISONS)
    return Words(
        f"{column} {sign} {literal(value)}",
        f"{label} is {rng.choice(words)} {said(value)}",
        _on(item, lambda cell: _TESTS[sign](cell, value)),
    )


# --- one condition with a subquery ----------------------------------------------------------------


def _scalar(rng: random.Random, source: Source, prefix: str, derived: bool = False) -> Words | None:
    """A number against the average, the highest or the lowest."""
    item = _amount(rng, source)
    if item is None:
        return None
    column, label = item.sql, item.label
    if rng.randrange(3) == 0:
        function, word = rng.choice([("MAX", "highest"), ("MIN", "lowest")])
        bound = item.present[-1 if function == "MAX" else 0]
        sign, text = "=", f"the {label} is the {word} of the table"
        rows = _on(item, lambda cell: cell == bound)
    else:
        function, average = "AVG", statistics.fmean(item.present_all)
        if min(abs(each - average) for each in item.present) < 1e-3:
            return None  # exact and binary arithmetic might disagree on which side it lies
        sign, words = rng.choice(_COMPARISONS[:2])
        mean = rng.choice(["average", "mean"])
        text = f"the {label} is {rng.choice(words)} the {mean} {label} of the whole table"
        rows = _on(item, lambda cell: _TESTS[sign](cell, average))
    subquery = f"SELECT {function}({column}) FROM {source.table_sql}"
    if derived:
        subquery = (
            f"SELECT bound FROM (SELECT {function}({column}) AS bound FROM {source.table_sql}) AS limits"
        )
    return Words(f"{prefix}{column} {sign} ({subquery})", text, rows)


def _through_derived(rng: random.Random, source: Source, prefix: str) -> Words | None:
    """As `_scalar`, put into FROM: MySQL changes no table that a plain subquery reads."""
    return _scalar(rng, source, prefix, derived=True)


def _of_same_kind(rng: random.Random, source: Source, prefix: str) -> Words | None:
    """The categories of some rows."""
    if not (kinds := source.of("category")):
        return None
    kind = rng.choice(kinds)
    inner = simple(rng, source, rng.choice([each for each in source.items if each is not kind]))
    shared = {kind.cells[row] for row in inner.rows}
    return Words(
        f"{prefix}{kind.sql} IN (SELECT {kind.sql} FROM {source.table_sql} WHERE {inner.sql})",
        f"the {kind.label} is one that occurs in a row where {inner.text}",
        _on(kind, lambda cell: cell in shared),
    )


def _of_large_group(rng: random.Random, source: Source, prefix: str) -> Words | None:
    """The categories that many rows share."""
    if not (kinds := source.of("category")):
        return None
    kind = rng.choice(kinds)
    sizes = sorted({kind.cells.count(each) for each in kind.present})
    if len(sizes) < 2:
        return None
    least, table = rng.choice(sizes[1:]), source.table_sql
    large = f"SELECT {kind.sql} FROM {table} GROUP BY {kind.sql} HAVING COUNT(*) >= {least}"
    return Words(
        f"{prefix}{kind.sql} IN ({large})",
        f"the {kind.label} {rng.choice(['occurs at least', 'stands in at least'])} {least} times in the "
        "table",
        _on(kind, lambda cell: kind.cells.count(cell) >= least),
    )


def _nested_subquery(rng: random.Random, source: Source, prefix: str) -> Words | None:
    """The second highest, or the kind that the highest is of."""
    item = _amount(rng, source)
    if item is None or len(item.present) < 3:
        return None
    table, column, label = source.table_sql, item.sql, item.label
    function, word, sign, places = rng.choice(
        [("MAX", "highest", "<", (-1, -2)), ("MIN", "lowest", ">", (0, 1))]
    )
    first, second = (item.present[place] for place in places)
    extreme = f"(SELECT {function}({column}) FROM {table})"
    if rng.random() < 0.5:
        return Words(
            f"{prefix}{column} = (SELECT {function}({column}) FROM {table} WHERE {column} {sign} {extreme})",
            f"the {label} is the second {word} value that occurs",
            _on(item, lambda cell: cell == second),
        )
    if not (kinds := source.of("category")):
        return None
    kind = rng.choice(kinds)
    shared = {kind.cells[row] for row in _on(item, lambda cell: cell == first)}
    return Words(
        f"{prefix}{kind.sql} IN (SELECT {kind.sql} FROM {table} WHERE {column} = {extreme})",
        f"the {kind.label} is that of {rng.choice(['a', 'some'])} row with the {word} {label} of all",
        _on(kind, lambda cell: cell in shared),
    )


_SUBQUERIES: dict[str, Callable[[random.Random, Source, str], Words | None]] = {
    "scalar": _scalar,
    "same": _of_same_kind,
    "group": _of_large_group,
    "nested": _nested_subquery,
    "derived": _through_derived,
}
_PAIRS = {"two": ("scalar", "scalar"), "mixed": ("scalar", "group")}


def _amount(rng: random.Random, source: Source) -> Item | None:
    items = source.of("count", "money", "rate")
    return rng.choice(items) if items else None
