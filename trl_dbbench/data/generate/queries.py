"""Gold SQL and a question for a plan and a table, with one function for each form of statement.

A question states everything that the statement does, aliases included, so that there is one right answer. Its
sentences are assembled from parts with several wordings each.
"""

from __future__ import annotations

import operator
import random
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
    simple,
    sortable,
)
from trl_dbbench.data.generate.plans import ORDERS, Plan
from trl_dbbench.data.generate.tables import Item, Source, literal, quoted, said


def _fresh(d: Draft, item: Item, place: int = 0) -> Any:
    """Return a value for a new row."""
    if item.role == "id":
        return int(item.values(d.rng) or 0) + place
    if item.role == "category" and d.rng.random() < 0.7:
        return d.rng.choice(item.present)
    return item.values(d.rng)


def insert(d: Draft) -> Made:
    """Draft an INSERT of new rows."""
    items = [item for item in d.source.items if not item.nullable or item.has_default or d.rng.random() < 0.6]
    if not items:
        return None
    size = d.rng.choice([1, 1, 1, 2, 3])
    cells = [[_fresh(d, item, place) for item in items] for place in range(size)]
    told = [
        ", ".join(f"{item.label} {said(cell)}" for item, cell in zip(items, row, strict=True))
        for row in cells
    ]
    left = [item.label for item in d.source.items if item not in items]
    values = ", ".join(f"({', '.join(map(literal, row))})" for row in cells)
    if size == 1:
        question = d.pick(
            f"Add a row with {told[0]}.",
            f"Insert a new row into {d.source.table.name}: {told[0]}.",
            f"Please record this among the {d.source.rows}: {told[0]}.",
        )
    else:
        question = d.pick("Add these rows: ", f"Insert {size} rows: ", f"Record {size} new {d.source.rows}: ")
        question += "; ".join(told) + "."
    rest = d.pick(f"Leave {listed(left)} empty.", f"There is no value for {listed(left)}.") if left else ""
    columns = ", ".join(item.sql for item in items)
    return [question, rest], f"INSERT INTO {d.source.table_sql} ({columns}) VALUES {values}"


def copy(d: Draft) -> Made:
    """Draft an INSERT that copies rows."""
    condition, item = d.where(), d.item("category", "key", *NUMBERS, "day")
    if condition is None or item is None:
        return None
    clause, text = condition
    value = _fresh(d, item)
    # all columns: "the same cells" includes the columns that no other question uses
    columns = [quoted(column.name) for column in d.source.table.columns]
    selected = [literal(value) if column == item.sql else column for column in columns]
    question = d.pick(
        f"For every row{text}, insert a copy whose {item.label} is {said(value)} and whose other cells are "
        "the same.",
        f"Duplicate each row{text}; in the copies the {item.label} is {said(value)}.",
    )
    table = d.source.table_sql
    return [
        question
    ], f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(selected)} FROM {table}{clause}"


def update(d: Draft) -> Made:
    """Draft an UPDATE of all or some rows."""
    condition = d.where()
    picked = _picked(d)  # among the rows that WHERE keeps
    if condition is None or picked is None:
        return None
    clause, text = condition
    items = [item for item in d.source.items if item.role != "id"]
    items = d.rng.sample(items, min(d.rng.choice([1, 1, 1, 2]), len(items)))
    if not items:
        return None
    parts = [_assignment(d, item) for item in items]
    told = " and ".join(text for _, text in parts)
    rows = d.source.rows
    whom = f"the {rows}{text}" if text else f"all {rows}"
    question = d.pick(
        f"For {whom}, {told}.", f"Change {whom}: {told}.", f"Here is a change for {whom}: {told}."
    )
    alias = d.alias_sentences()[1]
    assignments = ", ".join(sql for sql, _ in parts)
    return [question, picked[1], alias], f"UPDATE {d.table} SET {assignments}{clause}{picked[0]}"


def _assignment(d: Draft, item: Item) -> tuple[str, str]:
    """Return an assignment in SQL and in words."""
    column = d.prefix + item.sql
    if item.nullable and d.rng.random() < 0.3:
        return (f"{column} = NULL", f"{d.pick('clear', 'empty')} the {item.label} (set it to NULL)")
    if item.role in ("count", "money") and d.rng.random() < 0.5:
        step = d.rng.randint(1, 20)
        sign, word = d.rng.choice([("+", d.pick("raise", "increase")), ("-", d.pick("lower", "reduce"))])
        low, high = (item.present[end] + (step if sign == "+" else -step) for end in (0, -1))
        if item.bounds[0] <= low and high <= item.bounds[1]:
            return (f"{column} = {column} {sign} {step}", f"{word} the {item.label} by {step}")
    value = _fresh(d, item)
    return (f"{column} = {literal(value)}", f"{d.pick('set', 'change')} the {item.label} to {said(value)}")


def delete(d: Draft) -> Made:
    """Draft a DELETE of some rows."""
    condition = d.where()
    picked = _picked(d)  # among the rows that WHERE keeps
    if condition is None or picked is None:
        return None
    clause, text = condition
    rows = d.source.rows
    whom = f"the {rows}{text}" if text else f"some of the {rows}"
    question = d.pick(f"Delete {whom}.", f"Remove {whom}.", f"Take {whom} out of the table.")
    return [question, picked[1]], f"DELETE FROM {d.source.table_sql}{clause}{picked[0]}"


def _picked(d: Draft) -> tuple[str, str] | None:
    """Return ` ORDER BY ... LIMIT ...` of a change and its sentences; `None` if the rows do not suit it."""
    order = d.row_order()
    if order is None or not order[0]:
        return order
    if len(d.kept) < 2:
        return None
    size = d.rng.randint(1, min(4, len(d.kept) - 1))
    d.cut = slice(size)
    if not d.slips_show(d.kept, d.others, ordered=False):
        return None
    rows = "row" if size == 1 else f"{size} rows"
    return f"{order[0]} LIMIT {size}", f"{order[1]} Do this to the first {rows} in that order only."


Group = list[int]
"""Indices of the rows of a group."""


def groups(d: Draft) -> Made:
    """Draft `SELECT key, aggregate ... GROUP BY key`, with one row for each group."""
    keys = _keys(d)
    if not keys or (d.plan.order in ORDERS[1:] and not any(map(sortable, keys))):
        return None
    if _shown(d, keys) is None:  # if all rows do not suffice, fewer hardly will
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
    sentences = [question, _only(d, text), having.text, order[1], limit[1], *aliases]
    return sentences, f"{sql}{having.sql}{order[0]}{limit[0]}"


def _shown(d: Draft, keys: list[Item]) -> tuple[Measure, Having, tuple[str, str], tuple[str, str]] | None:
    """Return an aggregate, HAVING, an order and a limit that suit the groups of the rows WHERE keeps."""
    by_key, *others = (_grouped(keys, rows) for rows in (d.kept, *d.others))
    for _ in range(15):
        shown, having = measure(d), _having(d, list(by_key.values()))
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
        places = list(range(len(left)))
        order, limit = d.order(_terms(d, keys, shown, left), places), d.limit(len(left))
        if order and limit and d.slips_show(places, []):
            return shown, having, order, limit
    return None


def _keys(d: Draft) -> list[Item]:
    """Return the columns to group by; none if the table has too few whose values repeat."""
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
    """Return the question's sentence about WHERE."""
    return (
        d.pick(f"Only {d.source.rows} count{text}.", f"Use only the {d.source.rows}{text}.") if text else ""
    )


def _terms(d: Draft, keys: list[Item], shown: Measure, left: dict[tuple, Group]) -> list[list[Term]]:
    """Return the choices of terms by which the groups may be ordered."""
    by_measure = Term(shown.sql, f"the {shown.label}", "count", list(map(shown.of, left.values())))
    by_keys = [
        Term(d.prefix + key.sql, key.label, key.role, values)
        for key, values in zip(keys, zip(*left, strict=True), strict=False)  # no values if no group is left
        if sortable(key)
    ]
    if d.plan.order == ORDERS[0]:
        return [[by_measure], *([term] for term in by_keys)]
    return [
        *([by_measure, term] for term in by_keys),
        *([a, b] for a in by_keys for b in by_keys if a is not b),
    ]


# --- HAVING ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Having:
    """` HAVING ...` with its sentence, or one of its conditions with its words, and a test of a group."""

    sql: str
    text: str
    holds: Callable[[Group], bool]


def _having(d: Draft, groups: list[Group]) -> Having | None:
    """Return a condition that keeps some groups but not all, without redundant parts; `None` if not found."""
    kind = d.plan.having
    if not kind:
        return Having("", "", lambda group: True)
    wanted = 2 if kind == "having_multiple_conditions_with_aggregate" else 1
    make = _calculation if kind == "having_aggregate_calculation" else _measure
    measures = [make(d) for _ in range(wanted)]
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
    return _aggregated(d, function, item, f"its {word} {item.label}")


def _aggregated(d: Draft, function: str, item: Item, label: str = "") -> Measure:
    return Measure(f"{function}({d.prefix}{item.sql})", label, aggregate(function, item))


def _calculation(d: Draft) -> Measure | None:
    a, b = d.item(*NUMBERS), d.item(*NUMBERS)
    if a is None or b is None:
        return None
    low, high, total = (_aggregated(d, function, a) for function in ("MIN", "MAX", "SUM"))
    forms = [
        (high, "-", low, f"the difference between its highest and its lowest {a.label}"),
        (low, "+", high, f"the sum of its lowest and its highest {a.label}"),
        (total, "/", Measure("COUNT(*)", "", len), f"its total {a.label} divided by its number of rows"),
    ]
    if a is not b:
        forms += [
            (total, "-", _aggregated(d, "SUM", b), f"its total {a.label} minus its total {b.label}"),
            (high, "+", _aggregated(d, "MAX", b), f"its highest {a.label} plus its highest {b.label}"),
        ]
    first, sign, second, label = d.rng.choice(forms)

    def of(rows: Sequence[int]) -> float | None:
        p, q = first.of(rows), second.of(rows)
        return None if p is None or q is None else _SIGNS[sign](p, q)

    return Measure(f"{first.sql} {sign} {second.sql}", label, of)


_SIGNS = {"+": operator.add, "-": operator.sub, "/": operator.truediv}


def _bound(d: Draft, groups: list[Group], measure: Measure) -> Having | None:
    """Return a bound that some groups pass and others do not; it keeps clear of fractional values."""
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

    return Having(f"{measure.sql} {sign} {literal(bound)}", f"{measure.label} is {word} {said(bound)}", holds)


# --- an aggregate over groups ---------------------------------------------------------------------


def of_groups(d: Draft) -> Made:
    """Draft the largest or smallest value of an aggregate over groups, with a subquery in FROM."""
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


_SHOWN = ("id", "key", "category", *NUMBERS)  # not dates and remarks: graders differ on them


def draft(rng: random.Random, source: Source, plan: Plan) -> tuple[str, str] | None:
    """Return a question and its SQL, or `None` if the table lacks the columns for the plan."""
    made = _FORMS[plan.form](Draft(rng, source, plan))
    if made is None:
        return None
    sentences, sql = made
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences if sentence), sql


def _aggregate(d: Draft) -> Made:
    shown, condition = measure(d), d.where()
    if shown is None or condition is None:
        return None
    if shown.of(d.kept) in (shown.mistaken(d.kept), *map(shown.of, d.others)):
        return None
    sql, name = shown.sql, shown.label
    clause, text = condition
    rows = d.source.rows
    if sql == "COUNT(*)":
        question = d.pick(
            f"How many {rows} are there{text}?",
            f"Count the {rows}{text}.",
            f"What is the number of {rows}{text}?",
        )
    elif text:
        question = d.pick(
            f"What is the {name} of the {rows}{text}?",
            f"Find the {name} over all {rows}{text}.",
            f"Consider only the {rows}{text}. What is the {name}?",
        )
    else:
        question = d.pick(
            f"What is the {name}?",
            f"Find the {name} over all {rows}.",
            f"Tell me the {name} in the whole table.",
        )
    return [question, *d.alias_sentences()], f"SELECT {d.named(sql)} FROM {d.table}{clause}"


def _rows(d: Draft) -> Made:
    condition = d.where()
    order = d.row_order()  # of the rows that WHERE keeps
    limited = d.limit(len(d.kept))
    if condition is None or order is None or limited is None or not d.slips_show(d.kept, d.others):
        return None
    shown = d.source.of(*_SHOWN)
    if not shown:
        return None
    shown = d.rng.sample(shown, min(len(shown), d.rng.choice([1, 1, 2, 3])))
    columns = [d.prefix + each.sql for each in shown]
    columns[0] = d.named(columns[0])
    labels, rows = listed([each.label for each in shown]), d.source.rows
    clause, text = condition
    if not d.plan.order:
        question = d.pick(
            f"What is the {labels} of the one row{text}?",
            f"Give the {labels} of the row{text}.",
            f"There is one row{text}. What {'are' if len(shown) > 1 else 'is'} its {labels}?",
        )
    else:
        all_rows = "" if text else "all "
        question = d.pick(
            f"List the {labels} of {all_rows}the {rows}{text}.",
            f"Show the {labels} for {all_rows}the {rows}{text}.",
            f"Find {all_rows}the {rows}{text} and give their {labels}.",
        )
    aliases = d.alias_sentences()
    if aliases[0] and len(shown) > 1:
        aliases[0] = f"Give {shown[0].label} the column alias {d.column_alias}."
    sql = f"SELECT {', '.join(columns)} FROM {d.table}{clause}{order[0]}{limited[0]}"
    return [question, order[1], limited[1], *aliases], sql


def _of_top(d: Draft) -> Made:
    condition, item = d.where(), d.item(*NUMBERS)
    if condition is None or item is None:
        return None
    clause, text = condition
    size = d.rng.randint(2, 5)
    direction, word = d.rng.choice([(" DESC", "largest"), ("", "smallest")])
    function, name = d.rng.choice(
        [("SUM({})", "sum"), ("ROUND(AVG({}), 2)", "average (rounded to 2 decimals)")]
    )
    inner = f"SELECT {item.sql} FROM {d.source.table_sql}{clause} ORDER BY {item.sql}{direction} LIMIT {size}"
    alias = d.pick("picked", "chosen", "best")
    of = f" among the {d.source.rows}{text}" if text else ""
    question = d.pick(
        f"Take the {size} {word} values of {item.label}{of}. What is their {name}?",
        f"What is the {name} of the {size} {word} values of {item.label}{of}?",
    )
    return [
        question,
        *d.alias_sentences(),
    ], f"SELECT {d.named(function.format(item.sql))} FROM ({inner}) AS {alias}"


def _difference(d: Draft) -> Made:
    table, rows = d.source.table_sql, d.source.rows
    if d.plan.where:
        items = d.rng.sample(d.source.items, 2)
        a, b = (simple(d.rng, item) for item in items)
        sql = f"(SELECT COUNT(*) FROM {table} WHERE {a.sql}) - (SELECT COUNT(*) FROM {table} WHERE {b.sql})"
        question = d.pick(
            f"By how many do the {rows} where {a.text} outnumber those where {b.text}? A negative number is "
            "fine.",
            f"Subtract the number of {rows} where {b.text} from the number of {rows} where {a.text}.",
        )
    else:
        item = d.item(*NUMBERS)
        if item is None:
            return None
        mean = ("ROUND(AVG({}), 2)", "average (rounded to 2 decimals)")
        bound, other = d.rng.choice([("MIN({})", "lowest"), mean, ("MIN({})", "minimum")])
        sql = f"(SELECT MAX({item.sql}) FROM {table}) - (SELECT {bound.format(item.sql)} FROM {table})"
        question = d.pick(
            f"How far is the highest {item.label} above the {other} {item.label}?",
            f"What is the difference between the highest and the {other} {item.label}?",
        )
    return [question, *d.alias_sentences()], f"SELECT {d.named(sql)}"


_FORMS = {
    each.__name__.strip("_"): each
    for each in (_aggregate, _rows, groups, of_groups, _of_top, _difference, insert, copy, update, delete)
}
