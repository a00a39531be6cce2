"""The tables of a dump with a sample of their rows, read without a server, as tables of tasks."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from trl_dbbench.tasks.column_types import Declared
from trl_dbbench.tasks.sources.base import Sample
from trl_dbbench.tasks.sources.declaration import Declaration, declaration, same_name
from trl_dbbench.tasks.sources.dump import (
    NAMES,
    Dump,
    altered,
    code_made,
    dropped,
    emptied,
    if_not_there,
    kind_of,
    named,
    table_made,
    view_made,
)
from trl_dbbench.tasks.sources.dump_text import Rows, bytes_of, cells, shown_name, unescaped
from trl_dbbench.tasks.table import Cell, Table


@dataclass
class _Made:
    """A table, and a sample of its rows, each by its columns' names."""

    declared: Declaration
    rows: Sample
    unfit: str | None = None
    """The reason that its rows cannot be read."""


def dump_tables(
    dump: Dump, sample: int, seed: int, only: Collection[str] | None = None
) -> tuple[list[Table], list[str]]:
    """The tables of a dump, and what of it they do not hold.

    Args:
        sample: most rows of a table, drawn at random.
        only: the names of tables; all if left out.

    Raises:
        TaskError: the dump cannot be read, or has several databases and no name was given.
    """
    made: dict[str, _Made] = {}
    left_out: list[str] = []
    triggers: list[str] = []
    views: list[str] = []
    homeless: dict[str, None] = {}
    with dump.errors():
        for statement in dump.statements(strict=False):
            if isinstance(statement, Rows):
                name = shown_name(statement.table)
                if (into := same_name(made, name)) is not None:
                    _add_rows(made[into], statement)
                elif only is None or name in only:
                    homeless[name] = None
                continue
            words, kind, name = statement, kind_of(statement), named(statement)
            if kind == "table" and not (name in made and if_not_there(words)):
                table_made(words)  # refuses what no dump may hold
                made[name] = _Made(declaration(words), Sample(sample, random.Random(f"{seed}-{name}")))
            elif kind == "drop":
                for gone in dropped(words):
                    made.pop(gone, None)
            elif kind == "alter" and name in made:
                for _, line in altered(words):
                    made[name].declared.add(line)
            elif kind == "empty" and (name := emptied(words)) in made:
                made[name].rows.drop(lambda row: True)
            elif kind == "view":
                views.append(view_made(words)[0])
            elif kind == "CREATE TRIGGER":
                triggers += code_made(words, "TRIGGER")
            elif kind.isupper() and not kind.startswith(("GRANT", "FLUSH")):
                what = kind.removeprefix("CREATE ")
                left_out += [f"{what.lower()} {name}" for name in code_made(words, what)] or [kind.lower()]
    tables, notes = list[Table](), list[str]()
    for name, each in made.items():
        if only is None or name in only:
            tables += filter(None, [_table(name, each, notes)])
    notes += [f"{name}: left out, the dump has rows of it and no CREATE TABLE" for name in homeless]
    if views:
        notes.append(f"its views are left out: {', '.join(dict.fromkeys(views))}")
    notes += [f"its trigger {name} is not held" for name in triggers]
    for what, count in Counter(left_out).items():
        notes.append(f"left out: {what}" + (f", {count} times" if count > 1 else ""))
    return tables, notes


def _add_rows(made: _Made, rows: Rows) -> None:
    made.unfit = made.unfit or rows.unread
    listed = [shown_name(match) for match in NAMES.findall(rows.columns)]
    names = [made.declared.name_of(name) for name in listed] or list(made.declared.columns)
    if unknown := [name for name in names if name not in made.declared.columns]:
        made.unfit = f"its rows have values for a column {unknown[0]}, which it lacks"
    for row in rows.rows:
        written = cells(row)
        if len(written) != len(names):
            made.unfit = f"a row of it has {len(written)} values for {len(names)} columns"
            continue
        new = dict(zip(names, written, strict=True))
        if rows.verb == "REPLACE":
            made.rows.drop(partial(_same_key, made, new))
        elif rows.ignores and any(_same_key(made, old, new) for _, old in made.rows.kept):
            continue
        made.rows.add(new)


def _same_key(made: _Made, row: dict[str, str], other: dict[str, str]) -> bool:
    return any(
        all(row.get(name, "NULL") == other.get(name, "NULL") != "NULL" for name in columns)
        for columns in made.declared.unique
    )


def _table(name: str, made: _Made, notes: list[str]) -> Table | None:
    if made.unfit is not None:
        notes.append(f"{name}: left out, {made.unfit}")
        return None
    held = made.declared.task_columns(name, notes, partial(_lacking, made))
    notes += made.declared.lost_references(name)
    if not held:
        return None
    if made.rows.seen > len(made.rows.kept):
        notes.append(f"{name}: {len(made.rows.kept)} of its {made.rows.seen:,} rows are taken (--sample)")
    kept = made.rows.in_order()
    return Table(
        name,
        tuple(column for _, column in held),
        tuple(tuple(_cell(row.get(declared.name), declared) for declared, _ in held) for row in kept),
    )


def _lacking(made: _Made, name: str) -> str | None:
    """Return why the cells of a column are not in the dump; `None` if they are."""
    declared = made.declared.columns[name]
    if declared.kind == "bytes":
        return None
    cells = [row.get(declared.name, "DEFAULT") for _, row in made.rows.kept]
    if any(cell.upper() == "DEFAULT" for cell in cells):
        if declared.generated:
            return "it is generated, and the dump has no values of it"
        if declared.computed:
            return f"the dump leaves values of it to its default {declared.default}"
    for cell in cells:
        try:
            _cell(cell, declared)
        except UnicodeDecodeError:
            return "its texts are no UTF-8. Write the dump with --default-character-set=utf8mb4"
        except ValueError:
            return f"its value {cell[:40]} is not of its type {declared.type}"
    return None


def _cell(written: str | None, declared: Declared) -> Cell:
    """A cell of a task out of one that is written in SQL."""
    upper = (written or "DEFAULT").upper()
    if written is None or upper == "DEFAULT":
        return None if declared.default is None else _typed(declared.default, declared)
    if upper in ("NULL", "TRUE", "FALSE"):
        return {"NULL": None, "TRUE": 1, "FALSE": 0}[upper]
    if (held := bytes_of(written)) is not None and declared.kind in ("whole", "exact", "float"):
        return int.from_bytes(held, "big")
    return _typed(unescaped(written), declared)


def _typed(text: str, declared: Declared) -> Cell:
    if declared.kind == "whole":
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else text
    if declared.kind == "float":
        return float(text)
    return text
