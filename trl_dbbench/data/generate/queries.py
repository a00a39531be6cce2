"""Gold SQL and a question for a plan and a table, each form of statement by one function.

A question says all that the statement says, aliases included, so that there is one right answer. Its
sentences are put together from parts that each have several wordings.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from trl_dbbench.data.generate.changes import copy, delete, insert, update
from trl_dbbench.data.generate.conditions import simple
from trl_dbbench.data.generate.drafting import NUMBERS, Draft, Made, listed, measure
from trl_dbbench.data.generate.groups import groups, of_groups
from trl_dbbench.data.generate.plans import Plan
from trl_dbbench.data.generate.tables import Source

_SHOWN = ("id", "key", "category", *NUMBERS)  # not dates and remarks: graders differ on them


def draft(rng: random.Random, source: Source, plan: Plan) -> tuple[str, str] | None:
    """A question and its SQL, or `None` if the table has no columns for the plan."""
    made = _FORMS[plan.form](Draft(rng, source, plan))
    if made is None:
        return None
    sentences, sql = made
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences if sentence), sql


def _aggregate(d: Draft) -> Made:
    shown, condition = measure(d, d.prefix), d.where()
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
    order = d.row_order()  # of the rows that WHERE leaves
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
        a, b = (simple(d.rng, d.source, item) for item in items)
        count = f"(SELECT COUNT(*) FROM {table} WHERE {{}})"
        sql = f"{count.format(a.sql)} - {count.format(b.sql)}"
        question = d.pick(
            f"By how many do the {rows} where {a.text} outnumber those where {b.text}? A negative number is "
            "fine.",
            f"Subtract the number of {rows} where {b.text} from the number of {rows} where {a.text}.",
        )
    else:
        item = d.item(*NUMBERS)
        if item is None:
            return None
        high, low, other = d.rng.choice(
            [("MAX", "MIN", "lowest"), ("MAX", "AVG", "average"), ("MAX", "MIN", "minimum")]
        )
        bound = f"ROUND(AVG({item.sql}), 2)" if low == "AVG" else f"{low}({item.sql})"
        if low == "AVG":
            other = "average (rounded to 2 decimals)"
        sql = f"(SELECT {high}({item.sql}) FROM {table}) - (SELECT {bound} FROM {table})"
        question = d.pick(
            f"How far is the highest {item.label} above the {other} {item.label}?",
            f"What is the difference between the highest and the {other} {item.label}?",
        )
    return [question, *d.alias_sentences()], f"SELECT {d.named(sql)}"


_FORMS: dict[str, Callable[[Draft], Made]] = {
    "aggregate": _aggregate,
    "rows": _rows,
    "groups": groups,
    "of_groups": of_groups,
    "of_top": _of_top,
    "difference": _difference,
    "insert": insert,
    "copy": copy,
    "update": update,
    "delete": delete,
}
