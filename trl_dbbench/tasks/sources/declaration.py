"""Read CREATE TABLE statements of MySQL and MariaDB, from a dump or from SHOW CREATE TABLE."""

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
"""Most characters of a condition in a note."""

_NO_COLUMN = frozenset(
    {"PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK"}
)
"""First words of lines of CREATE TABLE that do not declare a column."""


@dataclass(frozen=True)
class Reference:
    """A foreign key from `columns` to `target`. `actions` are the ON UPDATE and ON DELETE clauses, if any."""

    columns: tuple[str, ...]
    target: str
    target_columns: tuple[str, ...]
    actions: str = ""


@dataclass
class Declaration:
    """A table's columns by name, its keys, and `notes` on what tasks cannot hold."""

    columns: dict[str, Declared] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """PRIMARY KEY or UNIQUE, by the column that is the whole key."""
    primary: tuple[str, ...] = ()
    unique: list[tuple[str, ...]] = field(default_factory=list)
    """Columns of the primary key and of each unique key. By these, REPLACE finds the rows to replace."""
    references: list[Reference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def name_of(self, written: str) -> str:
        """Return the name of a column as declared. A statement may write it in another case."""
        return same_name(self.columns, written) or written

    def move(self, written: str, behind: str) -> None:
        """Move a column behind another, or to the beginning if `behind` is empty."""
        name = self.name_of(written)
        names = [each for each in self.columns if each != name]
        before, places = self.name_of(behind), ["", *names]
        names.insert(places.index(before) if before in places else len(names), name)
        self.columns = {each: self.columns[each] for each in names}

    def place_of(self, line: Sequence[Word]) -> int:
        """Return the index of the column that a line declares. Keys sort after all columns."""
        names = list(self.columns)
        return names.index(self.name_of(shown_name(line[0].text))) if is_column(line) else len(names)

    def add(self, line: Sequence[Word]) -> None:
        """Add a line of CREATE TABLE: a key, a constraint, or a column, which replaces one of its name."""
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
        """Add a PRIMARY KEY or UNIQUE key, or a note if tasks cannot hold it.

        They cannot hold keys of several columns, or of a part of a column (not `whole`).
        """
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
        """Return the declared columns that a task's table can have, each with the task's column.

        Args:
            notes: a note is added for each loss.
            lacking: returns the reason why a column has no cells, or `None`.
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
        """Return the table with its sampled rows for a task; `None` if no column is left.

        Args:
            cells: returns a column's cells in all sampled rows, or raises TaskError with the reason.
            notes: a note is added for each loss.
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
        serial = [n for n, word in enumerate(upper) if n and word == "SERIAL"]
        # the type, or SERIAL DEFAULT VALUE behind a type; elsewhere a column of this name
        place = next((n for n in serial if n == 1 or upper[n + 1 : n + 3] == ["DEFAULT", "VALUE"]), None)
        if place is not None:
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
            # `outside` has closing parentheses; an AS inside belongs to a CAST in a default or check
            generated="GENERATED" in outside or not pairs.isdisjoint({("AS", ")"), ("AS", "ROW")}),
            on_update=("ON", "UPDATE") in pairs,
        )

    def _add_check(self, condition: Sequence[Word]) -> None:
        shown = joined(condition)
        if not shown.lower().startswith("(json_valid("):  # MariaDB adds this to JSON columns
            self.notes.append(f"its CHECK {shown[:MAX_CHECK_CHARACTERS]} is not held")

    def _names(self, line: Sequence[Word]) -> tuple[str, ...]:
        """Return the names of a key's columns. A part that begins with a parenthesis is an expression."""
        parts = [part[0].text for part in lines_of(line) if part]
        return tuple("an expression" if part == "(" else self.name_of(shown_name(part)) for part in parts)


def declaration(words: Sequence[Word]) -> Declaration:
    """Return the declaration in a CREATE TABLE, given its words."""
    made = of_lines(lines_of(words))
    made.notes = [*(f"without {lost}" for lost in not_made(words)), *made.notes]
    return made


def of_lines(lines: Iterable[Sequence[Word]]) -> Declaration:
    """Return the declaration in the lines of a CREATE TABLE, which `lines_of` returns."""
    made = Declaration()
    for line in filter(None, lines):
        made.add(line)
    return made


def not_made(words: Sequence[Word]) -> list[str]:
    """Return the features of a CREATE TABLE that are always left out: partitions and system versioning."""
    pairs = set(pairwise(word.upper for word in words))
    lost = ["its partitions"] if ("PARTITION", "BY") in pairs else []
    return lost + (["its system versioning"] if ("SYSTEM", "VERSIONING") in pairs else [])


def same_name(names: Iterable[str], written: str) -> str | None:
    """Return the name that equals `written`, or else one that differs only in case; `None` without one."""
    same = [name for name in names if name.casefold() == written.casefold()]
    return written if written in same else next(iter(same), None)


def lines_of(words: Sequence[Word]) -> list[list[Word]]:
    """Return the comma-separated parts of the first parentheses: in CREATE TABLE, its columns and keys."""
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
    if line[0].upper == "PERIOD":  # a column may have this name without quotes
        return len(line) > 1 and line[1].upper != "FOR"
    return line[0].upper not in _NO_COLUMN


def _type_ends(line: Sequence[Word]) -> int:
    """Return the index after the type in a column's line, including the size in parentheses."""
    end = next((n for n, each in enumerate(line) if each.text == ")"), 0) if line[2:3] else 0
    return end + 1 if end and line[2].text == "(" else 2


def _default(behind: Sequence[Word]) -> tuple[str | None, bool]:
    """Return a column's default, from the words after DEFAULT, and whether it is an expression."""
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
    """Return a key's name with a blank after it, or an empty text if it has none."""
    named = [word.text for word in takewhile(lambda word: word.text != "(", line) if word.kind == "quoted"]
    return f"{shown_name(named[-1])} " if named else ""
