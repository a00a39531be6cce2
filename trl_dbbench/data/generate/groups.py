"""Questions with GROUP BY: the groups and their aggregates, HAVING, and an aggregate over groups.

The groups are computed from the cells first: a bound of HAVING lies where it parts them, and an order where
there are no ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trl_dbbench.data.generate.drafting import (
    NUMBERS,
    Draft,
    Made,
    Measure,
    Term,
    aggregate,
    listed,
    measure,
    sortable,
)
from trl_dbbench.data.generate.plans import ORDERS
from trl_dbbench.data.generate.tables import Item, literal, said

Group = list[int]
"""The numbers of the rows of a group."""


def groups(d: Draft) -> Made:
    """`SELECT key, aggregate ... GROUP BY key`, one row a group."""
    keys = _keys(d)
    if not keys or (d.plan.order in ORDERS[1:] and not any(map(sortable, keys))):
        return None
    if _shown(d, keys) is None:  # what all rows do not yield, fewer hardly will
        return None
    condition = d.where()
    if condition is None or (found := _shown(d, keys)) is None:
        return None
    shown, having, order, limit = found
    clause, text = condition
    labels, rows = listed([key.label for key in keys]), d.source.rows
    each = labels if len(keys) == 1 else f"pair of {labels}"
    if d.plan.order:
        question = d.pick(
            f"For each {each}, give the {labels} and the {shown.label}.",
            f"Show the {labels} and the {shown.label} for every {each}.",
            f"Group the {rows} by {labels} and list the {labels} with the {shown.label}.",
        )
    else:
        question = d.pick(
            f"Only one {each} meets the condition below. Give the {labels} and the {shown.label}.",
            f"Find the one {each} that meets this condition and show the {labels} with the {shown.label}.",
        )
    aliases = d.alias_sentences()
    if aliases[0]:
        aliases[0] = d.pick(
            f"Call the {shown.label} {d.column_alias}.",
            f"Give the {shown.label} the column alias {d.column_alias}.",
        )
    columns = ", ".join(d.prefix + key.sql for key in keys)
    sql = f"SELECT {columns}, {d.named(shown.sql)} FROM {d.table}{clause} GROUP BY {columns}"
    sentences = [question, _only(d, text), having.sentence, order[1], limit[1], *aliases]
    return sentences, f"{sql}{having.sql}{order[0]}{limit[0]}"


def _shown(d: Draft, keys: list[Item]) -> tuple[Measure, Having, tuple[str, str], tuple[str, str]] | None:
    """An aggregate, HAVING, an order and a limit that fit the groups of the rows that are left."""
    by_key, *others = (_grouped(keys, rows) for rows in (d.kept, *d.others))
    for _ in range(15):
        shown, having = measure(d, d.prefix), _having(d, list(by_key.values()))
        if (
            shown is None
            or having is None
            or ("DISTINCT" in shown.sql and any(key.sql in shown.sql for key in keys))
        ):
            continue
        left = {key: rows for key, rows in by_key.items() if having.holds(rows)}
        result = {key: shown.of(rows) for key, rows in left.items()}
        mistaken = {key: shown.mistaken(rows) for key, rows in left.items()}
        wrong = (
            {key: shown.of(rows) for key, rows in other.items() if having.holds(rows)} for other in others
        )
        if result in (mistaken, *wrong):
            continue
        order, limit = d.order(_terms(d, keys, shown, left)), d.limit(len(left))
        if order and limit and d.slips_show(list(range(len(left))), []):
            return shown, having, order, limit
    return None


def _keys(d: Draft) -> list[Item]:
    """The columns to group by; none if the table has too few whose values come up again."""
    shared = [
        item
        for item in d.source.of("category", "key")
        if 1 < len(item.present) <= 0.75 * len(item.cells) and None not in item.cells
    ]
    size = 1 if d.plan.group != "group_by_multiple_columns" else 2
    return d.rng.sample(shared, size) if len(shared) >= size else []


def _grouped(keys: list[Item], rows: Sequence[int]) -> dict[tuple, Group]:
    found: dict[tuple, Group] = {}
    for row in rows:
        found.setdefault(tuple(key.cells[row] for key in keys), []).append(row)
    return found


def _only(d: Draft, text: str) -> str:
    """What the question says of WHERE."""
    return (
        d.pick(f"Only {d.source.rows} count{text}.", f"Use only the {d.source.rows}{text}.") if text else ""
    )


def _terms(d: Draft, keys: list[Item], shown: Measure, left: dict[tuple, Group]) -> list[list[Term]]:
    """What the groups may be ordered by."""
    values = tuple(map(shown.of, left.values()))
    by_measure = Term(shown.sql, f"the {shown.label}", "count", values, values)
    by_keys = []
    for key, values in zip(keys, zip(*left, strict=True), strict=False):  # no values if no group is left
        if sortable(key):
            by_keys.append(Term(d.prefix + key.sql, key.label, key.role, values, values))
    if d.plan.order == ORDERS[0]:
        return [[by_measure], *([term] for term in by_keys)]
    return [
        *([by_measure, term] for term in by_keys),
        *([a, b] for a in by_keys for b in by_keys if a is not b),
    ]


# --- HAVING ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Having:
    """` HAVING ...` with its sentence, and which groups it keeps."""

    sql: str
    sentence: str
    holds: Callable[[Group], bool]


@dataclass(frozen=True)
class _Bound:
    """One condition of HAVING."""

    sql: str
    text: str
    holds: Callable[[Group], bool]


def _having(d: Draft, groups: list[Group]) -> Having | None:
    """A condition that keeps some groups but not all, with no part that does nothing; `None` if none is
    found."""
    kind = d.plan.having
    if not kind:
        return Having("", "", lambda group: True)
    wanted = 2 if kind == "having_multiple_conditions_with_aggregate" else 1
    measures = [
        _calculation(d) if kind == "having_aggregate_calculation" else _measure(d) for _ in range(wanted)
    ]
    bounds = [bound for each in measures if each and (bound := _bound(d, groups, each))]
    if len(bounds) < wanted or len({each.sql for each in measures if each}) < wanted:
        return None
    connector = d.pick("AND", "AND", "OR")
    join = all if connector == "AND" else any

    def holds(group: Group) -> bool:
        return join(bound.holds(group) for bound in bounds)

    kept = [holds(group) for group in groups]
    if (
        not any(kept)
        or all(kept)
        or (wanted > 1 and any(kept == [*map(bound.holds, groups)] for bound in bounds))
    ):
        return None
    text = f" {connector.lower()} ".join(bound.text for bound in bounds)
    each = "group" if d.plan.group == "group_by_single_column" else "combination"
    sentence = d.pick(
        f"Keep only a {each} if {text}.",
        f"Include a {each} only where {text}.",
        f"The condition for a {each}: {text}.",
    )
    return Having(f" HAVING {f' {connector} '.join(bound.sql for bound in bounds)}", sentence, holds)


def _measure(d: Draft) -> Measure | None:
    item = d.item(*NUMBERS)
    if item is None or d.rng.random() < 0.3:
        return Measure("COUNT(*)", "its number of rows", len)
    function, word = d.rng.choice(
        [("SUM", "total"), ("AVG", "average"), ("MAX", "highest"), ("MIN", "lowest")]
    )
    return Measure(f"{function}({d.prefix}{item.sql})", f"its {word} {item.label}", aggregate(function, item))


def _calculation(d: Draft) -> Measure | None:
    a, b = d.item(*NUMBERS), d.item(*NUMBERS)
    if a is None or b is None:
        return None

    def form(sign: str, left: tuple[str, Item], right: tuple[str, Item], label: str) -> Measure:
        (f, x), (g, y) = left, right
        first, second = aggregate(f, x), aggregate(g, y)

        def of(rows: Sequence[int]) -> float | None:
            p, q = first(rows), second(rows)
            return None if p is None or q is None else p - q if sign == "-" else p + q

        return Measure(f"{f}({d.prefix}{x.sql}) {sign} {g}({d.prefix}{y.sql})", label, of)

    total = aggregate("SUM", a)
    per_row = Measure(
        f"SUM({d.prefix}{a.sql}) / COUNT(*)",
        f"its total {a.label} divided by its number of rows",
        lambda rows: None if (whole := total(rows)) is None else whole / len(rows),
    )
    forms = [
        form("-", ("MAX", a), ("MIN", a), f"the difference between its highest and its lowest {a.label}"),
        form("+", ("MIN", a), ("MAX", a), f"the sum of its lowest and its highest {a.label}"),
        per_row,
    ]
    if a is not b:
        forms.append(form("-", ("SUM", a), ("SUM", b), f"its total {a.label} minus its total {b.label}"))
        forms.append(form("+", ("MAX", a), ("MAX", b), f"its highest {a.label} plus its highest {b.label}"))
    return d.rng.choice(forms)


def _bound(d: Draft, groups: list[Group], measure: Measure) -> _Bound | None:
    """A bound that some groups pass and others do not; where values are broken, away from all of them."""
    values = sorted({float(value) for group in groups if (value := measure.of(group)) is not None})
    if len(values) < 2:
        return None
    at = d.rng.randrange(1, len(values))
    low, high = values[at - 1], values[at]
    above = d.rng.random() < 0.6
    bound: Any
    if low.is_integer() and high.is_integer():
        sign, bound, word = d.rng.choice(
            [(">", low, d.pick("above", "more than")), (">=", high, "at least")]
            if above
            else [("<", high, d.pick("below", "less than")), ("<=", low, "at most")]
        )
    else:
        bound = round((low + high) / 2, 2)
        if not low + 0.004 < bound < high - 0.004:
            return None
        sign, word = (">", d.pick("above", "more than")) if above else ("<", d.pick("below", "less than"))

    def holds(group: Group) -> bool:
        value = measure.of(group)
        return value is not None and (value >= high if above else value <= low)

    return _Bound(f"{measure.sql} {sign} {literal(bound)}", f"{measure.label} is {word} {said(bound)}", holds)


# --- an aggregate over groups ---------------------------------------------------------------------


def of_groups(d: Draft) -> Made:
    """The largest or smallest value that an aggregate has in a group, by a subquery in FROM."""
    keys, condition = _keys(d), d.where()
    if not keys or condition is None:
        return None
    clause, text = condition
    key, rows = keys[0], d.source.rows
    item = d.item(*NUMBERS)
    inner, name = "COUNT(*)", f"number of {rows}"
    if item is not None and d.rng.random() < 0.5:
        inner, name = f"SUM({item.sql})", f"total {item.label}"
    function, word = d.rng.choice([("MAX", "largest"), ("MIN", "smallest")])
    question = d.pick(
        f"Take the {name} for each {key.label}. What is the {word} of these values?",
        f"What is the {word} {name} that any {key.label} has?",
    )
    alias = d.pick("amount", "subtotal", "per_group")
    if alias in {item.name for item in d.source.items}:
        return None
    sql = (
        f"SELECT {d.named(f'{function}({alias})')} FROM (SELECT {inner} AS {alias} FROM "
        f"{d.source.table_sql}{clause} GROUP BY {key.sql}) AS {d.pick('grouped', 'sums', 'parts_of_it')}"
    )
    return [question, _only(d, text), *d.alias_sentences()], sql
