"""Reads the CREATE TABLE of MySQL and MariaDB, from a dump or from SHOW CREATE TABLE."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, takewhile

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.column_types import SYNONYMS, Declared, task_column
from trl_dbbench.tasks.sources.base import Sample
from trl_dbbench.tasks.sources.dump_text import Word, joined, shown_name, unescaped, words_of
from trl_dbbench.tasks.table import Cell, Column, Table

MAX_CHECK_CHARACTERS = 60
"""Characters of a condition in a note."""

_NO_COLUMN = frozenset(
    {"PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK"}
)
"""Words that begin a line of CREATE TABLE that is not a column."""


@dataclass(frozen=True)
class Reference:
    """A foreign key: these columns name rows of `target`. `actions` are ON UPDATE and ON DELETE, if any."""

    columns: tuple[str, ...]
    target: str
    target_columns: tuple[str, ...]
    actions: str = ""


@dataclass
class Declaration:
    """The columns of a table by their names, its keys, and what of it no task holds (`notes`)."""

    columns: dict[str, Declared] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """PRIMARY KEY or UNIQUE by the column that is one by itself."""
    primary: tuple[str, ...] = ()
    unique: list[tuple[str, ...]] = field(default_factory=list)
    """The columns of all keys by which a row replaces another."""
    references: list[Reference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def name_of(self, written: str) -> str:
        """The name of a column as it is declared, which a statement may write in other letters."""
        return same_name(self.columns, written) or written

    def move(self, written: str, behind: str) -> None:
        """Put a column behind another, or before all where that is empty."""
        name = self.name_of(written)
        names = [each for each in self.columns if each != name]
        before, places = self.name_of(behind), ["", *names]
        names.insert(places.index(before) if before in places else len(names), name)
        self.columns = {each: self.columns[each] for each in names}

    def place_of(self, line: Sequence[Word]) -> int:
        """The number of the column that a line declares; keys come behind all columns."""
        names = list(self.columns)
        return names.index(self.name_of(shown_name(line[0].text))) if is_column(line) else len(names)

    def add(self, line: Sequence[Word]) -> None:
        """Add a line of CREATE TABLE: a column, which replaces one of its name, a key, or a constraint."""
        upper = [word.upper for word in line]
        if is_column(line):
            self._add_column(line, upper)
        elif "(" not in upper or upper[0] == "PERIOD":
            return
        elif "FOREIGN" in upper and "REFERENCES" in upper:
            target = line[upper.index("REFERENCES") + 1 :]
            named = takewhile(lambda word: word.text != "(", target)
            there = tuple(shown_name(part[0].text) for part in lines_of(target) if part)
            self.references.append(
                Reference(self._names(line), "".join(shown_name(word.text) for word in named), there)
            )
        elif "CHECK" in upper:
            self._add_check(line[upper.index("CHECK") + 1 :])
        elif upper[0] in ("FULLTEXT", "SPATIAL"):
            self.notes.append(f"its {upper[0]} key {_key_name(line)}is not held")
        elif "PRIMARY" in upper or "UNIQUE" in upper[:3]:
            whole = all(
                part and (len(part) == 1 or part[1].upper in ("ASC", "DESC")) for part in lines_of(line)
            )
            word = "PRIMARY KEY" if "PRIMARY" in upper else "UNIQUE"
            self.hold(self._names(line), word, _key_name(line), whole)

    def hold(self, names: tuple[str, ...], word: str, key_name: str = "", whole: bool = True) -> None:
        """Add a PRIMARY KEY or UNIQUE key, or note that no task holds it: one not of `whole` columns."""
        if whole:
            self.unique.append(names)
            self.primary = names if word == "PRIMARY KEY" else self.primary
        if whole and len(names) == 1:
            self.keys.setdefault(names[0], word)
            return
        kind, of = word.split()[0].lower(), "several columns" if len(names) > 1 else "a part or an expression"
        self.notes.append(f"its {kind} key {key_name}of {of} ({', '.join(names)}) is not held")

    def task_columns(
        self, table: str, notes: list[str], lacking: Callable[[Declared], str | None] = lambda declared: None
    ) -> list[tuple[Declared, Column]]:
        """The columns that a task's table can have.

        Args:
            notes: gets a line for each thing that it does not hold.
            lacking: why there are no cells of a column; `None` if there are.
        """
        kept = []
        for declared in self.columns.values():
            declared = replace(declared, key=self.keys.get(declared.name, ""))
            column, found = task_column(declared)
            if column is not None and (reason := lacking(declared)) is not None:
                column, found = None, [f"left out, {reason}"]
            notes += [f"{table}.{declared.name}: {note}" for note in found]
            if column is not None:
                kept.append((declared, column))
        notes += [f"{table}: {note}" for note in dict.fromkeys(self.notes)]
        if not kept:
            notes.append(f"{table}: left out, none of its columns can be held")
        return kept

    def task_table(
        self, name: str, rows: Sample, cells: Callable[[Declared], list[Cell]], notes: list[str]
    ) -> Table | None:
        """The table with its sampled rows as tasks have it, `None` if they cannot.

        Args:
            cells: gives those of a column in all sampled rows; TaskError says why there are none.
            notes: gets a line for each thing that it does not hold.
        """
        held: dict[str, list[Cell]] = {}

        def lacking(declared: Declared) -> str | None:
            try:
                held[declared.name] = cells(declared)
            except TaskError as error:
                return str(error)
            return None

        columns = self.task_columns(name, notes, lacking)
        for each in self.references:
            notes.append(f"{name}: its foreign key ({', '.join(each.columns)}) to {each.target} is not held")
        if not columns:
            return None
        if rows.seen > len(rows.kept):
            notes.append(f"{name}: {len(rows.kept)} of its {rows.seen:,} rows are taken (--sample)")
        return Table(name, tuple(column for _, column in columns), tuple(zip(*held.values(), strict=True)))

    def _add_column(self, line: Sequence[Word], upper: Sequence[str]) -> None:
        if "VARYING" in upper[2:3]:  # CHARACTER VARYING(9)
            return self._add_column([line[0], line[1]._replace(text="VARCHAR"), *line[3:]], upper[1:])
        if "SERIAL" in upper[1:]:  # the type, or SERIAL DEFAULT VALUE behind a type
            place = upper.index("SERIAL", 1)
            meant = words_of(f"{'BIGINT UNSIGNED' if place == 1 else ''} NOT NULL AUTO_INCREMENT UNIQUE")
            line = [*line[:place], *meant, *line[place + (1 if place == 1 else 3) :]]
            upper = [word.upper for word in line]
        size = _type_ends(line)
        name, behind, rest = self.name_of(shown_name(line[0].text)), line[size:], upper[size:]
        depths = accumulate((word.text == "(") - (word.text == ")") for word in behind)
        outside = [word for word, depth in zip(rest, depths, strict=True) if not depth]
        pairs = set(pairwise(outside))
        if "PRIMARY" in rest or "UNIQUE" in rest:
            self.hold((name,), "PRIMARY KEY" if "PRIMARY" in rest else "UNIQUE")
        if "CHECK" in rest:
            self._add_check(behind[rest.index("CHECK") + 1 :])
        if "REFERENCES" in rest:
            self.notes.append(f"the foreign key of {name} is not held")
        signs = [word.lower() for word in ("UNSIGNED", "ZEROFILL") if word in outside]
        word = joined(line[1:2]).lower()
        type_ = SYNONYMS.get(word, word) + joined(line[2:size])
        default, computed = _default(behind[rest.index("DEFAULT") + 1 :] if "DEFAULT" in rest else ())
        self.columns[name] = Declared(
            name,
            " ".join([type_, *signs]),
            nullable=("NOT", "NULL") not in pairs,
            default=default,
            computed=computed,
            auto_increment="AUTO_INCREMENT" in rest,
            # a bracket's end is outside of it; an AS within is of CAST, in a default or a check
            generated="GENERATED" in outside or not pairs.isdisjoint({("AS", ")"), ("AS", "ROW")}),
            on_update=("ON", "UPDATE") in pairs,
        )

    def _add_check(self, condition: Sequence[Word]) -> None:
        shown = joined(condition)
        if not shown.lower().startswith("(json_valid("):  # by which MariaDB knows a JSON
            self.notes.append(f"its CHECK {shown[:MAX_CHECK_CHARACTERS]} is not held")

    def _names(self, line: Sequence[Word]) -> tuple[str, ...]:
        """The columns of a key; an expression begins with a bracket."""
        parts = [part[0].text for part in lines_of(line) if part]
        return tuple("an expression" if part == "(" else self.name_of(shown_name(part)) for part in parts)


def declaration(words: Sequence[Word]) -> Declaration:
    """Return what a CREATE TABLE declares, given its words."""
    made = of_lines(lines_of(words))
    made.notes = [*(f"without {lost}" for lost in not_made(words)), *made.notes]
    return made


def of_lines(lines: Iterable[Sequence[Word]]) -> Declaration:
    """Return what the lines of a CREATE TABLE declare, as `lines_of` gives them."""
    made = Declaration()
    for line in filter(None, lines):
        made.add(line)
    return made


def not_made(words: Sequence[Word]) -> list[str]:
    """Return what a table has where it comes from and not where it is made: partitions, and the history of
    its rows."""
    pairs = set(pairwise(word.upper for word in words))
    lost = ["its partitions"] if ("PARTITION", "BY") in pairs else []
    return lost + (["its system versioning"] if ("SYSTEM", "VERSIONING") in pairs else [])


def same_name(names: Iterable[str], written: str) -> str | None:
    """The one of the names that is written so, or else in other letters."""
    same = [name for name in names if name.casefold() == written.casefold()]
    return written if written in same else next(iter(same), None)


def lines_of(words: Sequence[Word]) -> list[list[Word]]:
    """The parts of the first brackets, which commas divide: of CREATE TABLE, its columns and keys."""
    lines: list[list[Word]] = [[]]
    depth = 0
    for word in words:
        depth += word.text == "("
        if depth == 1 and word.text == ",":
            lines.append([])
        elif depth > 1 or (depth == 1 and word.text not in "()"):
            lines[-1].append(word)
        if word.text == ")" and (depth := depth - 1) == 0:
            break
    return lines


def is_column(line: Sequence[Word]) -> bool:
    if line[0].upper == "PERIOD":  # also a name that needs no quotes
        return len(line) > 1 and line[1].upper != "FOR"
    return line[0].upper not in _NO_COLUMN


def _type_ends(line: Sequence[Word]) -> int:
    """The place behind the type of a column's line, its size in parentheses included."""
    end = next((n for n, each in enumerate(line) if each.text == ")"), 0) if line[2:3] else 0
    return end + 1 if end and line[2].text == "(" else 2


def _default(behind: Sequence[Word]) -> tuple[str | None, bool]:
    """The default of a column, by what stands behind DEFAULT, and whether it is an expression."""
    if not behind or behind[0].upper == "NULL":
        return None, False
    if behind[0].text.startswith(("'", '"')):
        return unescaped(behind[0].text), False
    if (truth := {"FALSE": "0", "TRUE": "1"}.get(behind[0].upper)) is not None:
        return truth, False
    if (number := re.match(r"\+?(-?\d[\d.]*)(?![\w.])", joined(behind))) is not None:
        return number[1], False
    depth = 0
    for end, word in enumerate(behind):
        depth += (word.text == "(") - (word.text == ")")
        if depth == 0 and [each.text for each in behind[end + 1 : end + 2]] != ["("]:
            break
    return joined(behind[: end + 1]), True


def _key_name(line: Sequence[Word]) -> str:
    """The name of a key and a blank, if it has one."""
    named = [word.text for word in takewhile(lambda word: word.text != "(", line) if word.kind == "quoted"]
    return f"{shown_name(named[-1])} " if named else ""
