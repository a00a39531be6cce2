"""The tables of a dump with a sample of their rows, read without a server, as tables of tasks."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from trl_dbbench.tasks.column_types import Declared, task_column
from trl_dbbench.tasks.sources.base import Sample
from trl_dbbench.tasks.sources.dump import (
    NAMES,
    Dump,
    code_made,
    dropped,
    emptied,
    if_not_there,
    is_column,
    is_generated,
    joined,
    kind_of,
    lines_of,
    named,
    not_made,
    size_of,
    table_made,
    view_made,
)
from trl_dbbench.tasks.sources.dump_text import Rows, Word, bytes_of, cells, shown_name, unescaped, words_of
from trl_dbbench.tasks.table import Cell, Column, Table


@dataclass
class _Made:
    """A table as its statements declare it, and a sample of its rows, each by its columns' names."""

    declared: dict[str, Declared]
    notes: list[str]
    rows: Sample
    keys: dict[str, str] = field(default_factory=dict)
    """PRIMARY KEY or UNIQUE by the column that is one by itself."""
    unique: list[tuple[str, ...]] = field(default_factory=list)
    """The columns of all keys by which a row replaces another."""
    unfit: str | None = None
    """The reason that its rows cannot be read."""

    def name_of(self, written: str) -> str:
        """The name of a column as it is declared, which a statement may write in other letters."""
        return _same_name(self.declared, written) or written


def _same_name(names: Iterable[str], written: str) -> str | None:
    """The one of the names that is written so, or else in other letters."""
    same = [name for name in names if name.casefold() == written.casefold()]
    return written if written in same else next(iter(same), None)


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
                if (into := _same_name(made, name)) is not None:
                    _add_rows(made[into], statement)
                elif only is None or name in only:
                    homeless[name] = None
                continue
            words = words_of(statement)
            kind, name = kind_of(words), named(words)
            if kind == "table" and not (name in made and if_not_there(words)):
                made[name] = _made(words, Sample(sample, random.Random(f"{seed}-{name}")))
            elif kind == "drop":
                for gone in dropped(words):
                    made.pop(gone, None)
            elif kind == "alter" and name in made:
                _alter(made[name], words)
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


def _made(words: Sequence[Word], rows: Sample) -> _Made:
    parts = words_of(table_made(words))
    made = _Made({}, [f"without {lost}" for lost in not_made(words)], rows)
    by_row = _row_times(words)
    for line in lines_of(parts[3:]):
        if is_column(line):
            column = _declared(line, made)
            column = replace(column, generated=column.generated or column.name in by_row)
            made.declared[column.name] = column
        else:
            _key(made, line)
    return made


def _row_times(words: Sequence[Word]) -> set[str]:
    """The columns in which MariaDB keeps since when and until when a row is there."""
    opened = next((place for place, word in enumerate(words) if word.text == "("), len(words))
    found = set()
    for line in lines_of(words[opened:]):
        upper = [word.upper for word in line]
        if {("ROW", "START"), ("ROW", "END")}.intersection(pairwise(upper)):
            found.add(shown_name(line[0].text))
    return found


def _declared(line: Sequence[Word], made: _Made) -> Declared:
    size = size_of(line)
    name, rest = made.name_of(shown_name(line[0].text)), [word.upper for word in line[size:]]
    pairs = set(pairwise(rest))
    if "PRIMARY" in rest or "UNIQUE" in rest:
        made.keys.setdefault(name, "PRIMARY KEY" if "PRIMARY" in rest else "UNIQUE")
        made.unique.append((name,))
    for word, what in (("CHECK", "CHECK"), ("REFERENCES", "foreign key")):
        if word in rest:
            made.notes.append(f"the {what} of {name} is not held")
    signs = [word.lower() for word in ("UNSIGNED", "ZEROFILL") if word in rest]
    type_ = re.sub(r"^\w+", lambda word: word[0].lower(), joined(line[1:size]))
    default, computed = _default(line[size:], rest)
    return Declared(
        name,
        " ".join([type_, *signs]),
        nullable=("NOT", "NULL") not in pairs,
        default=default,
        computed=computed,
        auto_increment="AUTO_INCREMENT" in rest,
        generated=is_generated(line[size:]),
        on_update=("ON", "UPDATE") in pairs,
    )


def _default(line: Sequence[Word], upper: Sequence[str]) -> tuple[str | None, bool]:
    """The default of a column's line, and whether it is an expression."""
    value = list(line[upper.index("DEFAULT") + 1 :]) if "DEFAULT" in upper else []
    if not value or value[0].upper == "NULL":
        return None, False
    sign = value.pop(0).text if value[0].text in ("+", "-") and len(value) > 1 else ""
    written = value[0].text
    if len(value) > 2 and value[1].text == "." and value[2].text.isdigit():  # 4 . 99
        written += f".{value[2].text}"
    if written.startswith(("'", '"')):
        return unescaped(written), False
    return sign.strip("+") + written, not re.fullmatch(r"\d[\d.]*", written)


def _key(made: _Made, line: Sequence[Word]) -> None:
    """A line of a table that is a key, or a constraint."""
    upper = [word.upper for word in line]
    listed = next((place for place, word in enumerate(line) if word.text == "("), len(line))
    names = [shown_name(word.text) for word in line[listed:] if word.kind in ("word", "quoted")]
    names = [name for name in map(made.name_of, names) if name in made.declared]
    shown = ", ".join(names)
    if "FOREIGN" in upper:
        made.notes.append(f"its foreign key ({shown.partition(',')[0]}) is not held")
    elif "CHECK" in upper:
        made.notes.append(f"its CHECK {joined(line[listed:])[:60]} is not held")
    elif upper[0] in ("FULLTEXT", "SPATIAL"):
        made.notes.append(f"its {upper[0]} key ({shown}) is not held")
    elif "PRIMARY" in upper or "UNIQUE" in upper[:3]:
        word = "PRIMARY KEY" if "PRIMARY" in upper else "UNIQUE"
        of_columns = [each.text for each in line[listed:]].count("(") == 1
        if of_columns:
            made.unique.append(tuple(names))
        if len(names) == 1 and of_columns and "OVERLAPS" not in upper:
            made.keys.setdefault(names[0], word)
        else:
            made.notes.append(
                f"its {word.split()[0].lower()} key of several columns or a part ({shown}) is not held"
            )


def _alter(made: _Made, words: Sequence[Word]) -> None:
    """Keys and AUTO_INCREMENT that are declared when the rows are there, as phpMyAdmin writes them."""
    opened = [Word("sign", "(", False), *words[3:], Word("sign", ")", False)]
    for line in lines_of(opened):
        first = line[0].upper
        rest = [word for word in line[1:] if word.upper != "COLUMN"]
        if first == "ADD" and rest and not is_column(rest):
            _key(made, rest)
        elif first in ("ADD", "MODIFY") and rest and (first == "MODIFY" or is_column(rest)):
            column = _declared(rest, made)
            made.declared[column.name] = column


def _add_rows(made: _Made, rows: Rows) -> None:
    made.unfit = made.unfit or rows.unread
    listed = [shown_name(match) for match in NAMES.findall(rows.columns)]
    names = [made.name_of(name) for name in listed] or list(made.declared)
    if unknown := [name for name in names if name not in made.declared]:
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
        for columns in made.unique
    )


def _table(name: str, made: _Made, notes: list[str]) -> Table | None:
    if made.unfit is not None:
        notes.append(f"{name}: left out, {made.unfit}")
        return None
    columns: list[Column] = []
    held: list[Declared] = []
    for declared in made.declared.values():
        declared = replace(declared, key=made.keys.get(declared.name, ""))
        if (reason := _lacking(made, declared)) is not None:
            notes.append(f"{name}.{declared.name}: left out, {reason}")
            continue
        column, found = task_column(declared)
        notes += [f"{name}.{declared.name}: {note}" for note in found]
        if column is not None:
            columns.append(column)
            held.append(declared)
    notes += [f"{name}: {note}" for note in dict.fromkeys(made.notes)]
    if not columns:
        notes.append(f"{name}: left out, none of its columns can be held")
        return None
    if made.rows.seen > len(made.rows.kept):
        notes.append(f"{name}: {len(made.rows.kept)} of its {made.rows.seen:,} rows are taken (--sample)")
    kept = made.rows.in_order()
    return Table(
        name,
        tuple(columns),
        tuple(tuple(_cell(row.get(declared.name), declared) for declared in held) for row in kept),
    )


def _lacking(made: _Made, declared: Declared) -> str | None:
    """Return why the cells of a column are not in the dump; `None` if they are."""
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


def _written(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _cell(written: str | None, declared: Declared) -> Cell:
    """A cell of a task out of one that is written in SQL."""
    upper = (written or "DEFAULT").upper()
    if written is None or upper == "DEFAULT":
        return None if declared.default is None else _cell(_written(declared.default), declared)
    if upper in ("NULL", "TRUE", "FALSE"):
        return {"NULL": None, "TRUE": 1, "FALSE": 0}[upper]
    if (held := bytes_of(written)) is not None and declared.kind in ("whole", "exact", "float"):
        return int.from_bytes(held, "big")
    text = unescaped(written)
    if declared.kind == "whole":
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else text
    if declared.kind == "float":
        return float(text)
    return text
