"""Requests to change the table: INSERT, UPDATE and DELETE."""

from __future__ import annotations

from typing import Any

from trl_dbbench.data.generate.drafting import NUMBERS, Draft, Made, listed
from trl_dbbench.data.generate.tables import Item, literal, quoted, said


def _fresh(d: Draft, item: Item, place: int = 0) -> Any:
    """A value for a new row."""
    if item.role == "id":
        return int(item.values(d.rng) or 0) + place
    if item.role == "category" and d.rng.random() < 0.7:
        return d.rng.choice(item.present)
    return item.values(d.rng)


def insert(d: Draft) -> Made:
    """New rows, by their values."""
    items = [item for item in d.source.items if not item.nullable or d.rng.random() < 0.6]
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
    """New rows, made of those that are there."""
    condition, item = d.where(), d.item("category", "key", *NUMBERS, "day")
    if condition is None or item is None:
        return None
    clause, text = condition
    value = _fresh(d, item)
    # of all columns: a question of "the same cells" is about those, too, of which nothing else is asked
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
    """New values, for all rows or some."""
    condition = d.where()
    picked = _picked(d)  # of the rows that WHERE leaves
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
    """What SET says of a column, in SQL and in words."""
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
    """Rows away."""
    condition = d.where()
    picked = _picked(d)  # of the rows that WHERE leaves
    if condition is None or picked is None:
        return None
    clause, text = condition
    rows = d.source.rows
    whom = f"the {rows}{text}" if text else f"some of the {rows}"
    question = d.pick(f"Delete {whom}.", f"Remove {whom}.", f"Take {whom} out of the table.")
    return [question, picked[1]], f"DELETE FROM {d.source.table_sql}{clause}{picked[0]}"


def _picked(d: Draft) -> tuple[str, str] | None:
    """` ORDER BY ... LIMIT ...` of a change and its sentences."""
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
