"""Questions over two to five tables: joins, set operations, window functions, CTEs, correlated subqueries.

A draft fills the blanks of a form (`forms.py`) with tables, columns and conditions. Each task names its kind,
one of `skills.QUERY_KINDS`, in the place of skills.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from string import Formatter
from typing import Any

from trl_dbbench.data.generate.checks import gold_answer
from trl_dbbench.data.generate.forms import Form
from trl_dbbench.data.generate.joined import Col, Draft, Part, joined
from trl_dbbench.data.generate.schemas import SCHEMAS, World, make_world
from trl_dbbench.data.generate.tables import literal
from trl_dbbench.database import Database
from trl_dbbench.tasks import Gold, Task

make_relational = partial(make_world, schemas=SCHEMAS, most_tables=5, rows=(4, 10), most_id=40)


def draft(rng: random.Random, world: World, form: Form, style: type[Draft] = Draft) -> tuple[str, str] | None:
    """Return a question and its SQL; `None` if the tables have nothing for this form."""
    made = style(rng, world)
    parts = made.parts(form.shape)
    if parts is None:
        return None
    blanks = _blanks(made, parts, form)
    question = rng.choice(form.wordings)
    used = {
        name.split(".")[0]
        for text in (question, form.sql)
        for _, name, _, _ in Formatter().parse(text)
        if name
    }
    if any(blanks.get(name) is None for name in used):
        return None
    return question.format(**blanks), form.sql.format(**blanks)


def _blanks(made: Draft, parts: dict[str, Part], form: Form) -> dict[str, Any]:
    """Return all that a form may have in its blanks; `None` for a blank that these tables cannot fill."""
    rng = made.rng
    blanks: dict[str, Any] = dict(parts)
    first = parts.get("a") or parts.get("e") or parts["p"]
    number, kind = first.field(rng, "number", "money"), first.field(rng, "kind")
    blanks |= {
        "pn": number and number.label,
        "k": kind,
        "v": made.condition(first),
        "value": _middle(rng, first),
    }
    if "b" in parts or "g" in parts:
        second = parts.get("b") or parts["g"]
        blanks |= {"number": number, "other": number and second.col(number.column)}
        blanks |= {"k2": kind and second.col(kind.column)}
    if "b" in parts:
        a, b = parts["a"], parts["b"]
        blanks |= {"ab": f"{a.source} JOIN {b.source} ON {a.superior} = {b.key}", "boss": a.entity.superior}
        above = [row for row in a.superior.cells if row is not None]
        top = max(above, key=above.count)
        blanks["top"] = b.name.cells[b.key.cells.index(top)]
    if child := parts.get("c"):
        n = child.field(rng, "number", "money")
        word, function = rng.choice([("highest", "MAX"), ("lowest", "MIN"), ("total", "SUM")])
        blanks |= {"n": n, "word": word, "f": function, "m": rng.randint(2, 3), "ref": child.ref(first)}
        extreme, function = rng.choice([("highest", "MAX"), ("lowest", "MIN")])
        blanks |= {"extreme": extreme, "edge": function, "w": made.condition(child)}
        blanks |= {"pc": joined(first, child), "left": joined(first, child, how="LEFT JOIN")}
        blanks["sum"] = n and literal(rng.choice(_sums(blanks["ref"], n)))
    if "d" in parts:
        blanks |= {"pd": joined(first, parts["d"]), "dref": parts["d"].ref(first)}
    if "i" in parts:
        inner, n = parts["i"], blanks["n"]
        blanks |= {"i_n": n and inner.col(n.column), "i_ref": inner.ref(first)}
    if "q" in parts:
        chain = [parts[letter] for letter in "pcqr" if letter in parts]
        last = chain[-1]
        blanks |= {
            "chain": joined(*chain),
            "u": made.condition(last),
            "qk": last.field(rng, "kind"),
            "z": last,
        }
    letter, _, column = form.by.partition(".")
    by = getattr(parts[letter], column) if column else blanks[letter]
    blanks["o"] = by and made.order(by)
    blanks["s"] = blanks["o"] and blanks["o"].text
    return blanks


def _sums(ref: Col, number: Col) -> list[float]:
    """The sum of a column for each value of another."""
    rows = list(zip(ref.cells, number.cells, strict=True))
    return [sum(cell for other, cell in rows if other == key) for key in sorted(set(ref.cells))]


def _middle(rng: random.Random, part: Part) -> Any:
    """The name of a row with rows above and below it, where there is one."""
    if not part.entity.superior:
        return rng.choice(part.name.cells)
    rows = list(zip(part.name.cells, part.key.cells, part.superior.cells, strict=True))
    found = [name for name, key, above in rows if above is not None and key in part.superior.cells]
    return rng.choice(found or part.name.cells)


def make_task(database: Database, world: World, form: Form, question: str, sql: str) -> Task | None:
    """The task, if no slip gives the same answer."""
    task = Task("", question, world.tables, "SELECT", Gold(sql=sql), (form.kind,))
    with database.sandbox(task) as sandbox:
        gold = gold_answer(sandbox, sql, world.tables)
    if gold is None or any(cell is None for row in gold.answer or () for cell in row):
        return None
    return replace(task, gold=gold)
