"""MySQL and MariaDB dumps, as mysqldump writes them, as databases of tasks, or as tables to import.

`dump_text` splits a dump into statements, and `dump_statements` interprets each of them.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import ClassVar, NoReturn

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.column_types import Declared
from trl_dbbench.tasks.csv_tables import day_of, read_if_fit
from trl_dbbench.tasks.sources import dump_statements as sql
from trl_dbbench.tasks.sources.base import (
    EXAMPLE_ROWS,
    Sample,
    Step,
    comment_on,
    descriptions,
    file_digest,
    select_of,
    view_steps,
    with_rows,
)
from trl_dbbench.tasks.sources.declaration import Declaration, declaration, not_made, same_name
from trl_dbbench.tasks.sources.dump_statements import Create, kind_of, named
from trl_dbbench.tasks.sources.dump_text import (
    Rows,
    Word,
    bytes_of,
    cells,
    joined,
    open_dump,
    read_dump,
    shown_name,
    unescaped,
    words_of,
)
from trl_dbbench.tasks.table import Cell, Column, Table
from trl_dbbench.utils.lookup import unknown
from trl_dbbench.utils.sql import quote

DUMP_SUFFIXES = (".sql", ".sql.gz")

SESSION = "SET SESSION foreign_key_checks = 0, unique_checks = 0"

_ZEROS_NUMBERED = "SET SESSION sql_mode = REPLACE(@@SESSION.sql_mode, 'NO_AUTO_VALUE_ON_ZERO', '')"
_ZEROS_KEPT = "SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',NO_AUTO_VALUE_ON_ZERO')"
"""A 0 in an AUTO_INCREMENT column becomes the next number, unless the dump sets this mode."""

_UTC = "SET SESSION time_zone = '+00:00'"

_USE = re.compile(r"USE\s+(`(?:[^`]|``)+`|\S+)$", re.IGNORECASE)
_SETTING = re.compile(r"(?:/\*!\d*\s*)?SET\b", re.IGNORECASE)
"""Beginning of a SET statement, which affects all databases after it."""

_NO_TABLE = " and no CREATE TABLE; join the files with both: cat schema.sql data.sql > all.sql"

_MAKES = re.compile(r"CREATE\s+(?!DATABASE|SCHEMA)", re.IGNORECASE)


@dataclass(eq=False)
class Dump:
    """The tables of one database of a dump. Its methods are those of `SQLiteFile`.

    Args:
        name: name of the database, if the dump has several.
        whole: the whole dump, if this one has only some of its tables.
        only: names of these tables.
        described_in: folder of CSV files that describe columns, see `descriptions`.
    """

    path: Path
    name: str | None
    whole: Dump | None = None
    only: Collection[str] = ()
    described_in: Path | None = None

    dialects: ClassVar[tuple[str, ...]] = ("mysql",)
    digest_of = staticmethod(file_digest)

    def tables(self, dialect: str | None = None) -> tuple[Table, ...]:
        return self._tables

    @cached_property
    def _tables(self) -> tuple[Table, ...]:
        made = self._contents.made
        if strange := sorted(set(self.only).difference(made)):
            raise TaskError(f"the dump '{self.path}': {unknown('table', strange[0], made)}.")
        views = view_steps(*self._contents.of_views(self._has))
        return tuple(
            Table(name, tuple(Column(each.name, each.type) for each in made[name].declared.columns.values()))
            for name in filter(self._has, made)
            if not isinstance(views.get(name), str)
        )

    def described(self, dialect: str) -> str:
        told = {} if self.described_in is None else descriptions(self.described_in)
        parts: list[str] = []
        for table in self.tables():
            made = self._contents.made[table.name]
            rows = [
                [row.get(name, "DEFAULT") for name in made.declared.columns] for row in made.rows.in_order()
            ]
            shown = rows if isinstance(made.create, Create) else None
            parts += [*comment_on(table, told), with_rows(made.sql, table.name, shown, cell=str)]
        return "\n".join(parts)

    def _has(self, table: str) -> bool:
        return not self.only or table in self.only

    def steps(self) -> Iterator[Step | str]:
        seen = Contents(lambda name: Sample(0), self._has)
        with self.errors():
            yield Step(SESSION)
            yield Step(_ZEROS_NUMBERED)
            for statement in self.statements():
                if isinstance(statement, Rows):
                    into = seen.made.get(shown_name(statement.table))
                    create = None if into is None else into.create
                    yield sql.rows_put(statement, create.columns if isinstance(create, Create) else ())
                else:
                    yield from seen.see(statement)
            # views come last: dumps first make a stand-in table or view of the same name
            yield from view_steps(*seen.of_views(self._has)).values()
            for kind, count in Counter(kind for kind, _ in seen.code).items():
                yield f"{count} statements {kind}, which a dump cannot bring"

    @cached_property
    def _contents(self) -> Contents:
        if self.whole is not None:
            return self.whole._contents
        contents = Contents(lambda name: Sample(EXAMPLE_ROWS))
        with self.errors():
            for statement in self.statements(EXAMPLE_ROWS):
                contents.see(statement)
            if not contents.made:
                raise TaskError(f"it has no tables{_NO_TABLE if contents.homeless else ''}.")
        return contents

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Make errors in the block name the dump."""
        try:
            yield
        except (OSError, TaskError) as error:
            raise TaskError(f"the dump '{self.path}' cannot be read: {error}") from None

    def statements(self, first_rows: int | None = None, strict: bool = True) -> Iterator[Rows | list[Word]]:
        """Yield the database's statements as words, and its rows; see `read_dump`.

        A dump without USE has one database. If there are several, `name` must choose one. The name of the
        current database is removed from qualified names.
        """
        current: str | None = None
        used: dict[str, None] = {}
        tables: set[str] = set()
        unnamed = False
        for statement in self._read(first_rows, strict):
            if isinstance(statement, str):
                sql.check_origin(statement)
                if found := _USE.match(statement):
                    current = shown_name(found[1])
                    continue
            makes = isinstance(statement, Rows) or _MAKES.match(statement) is not None
            words = words_of(statement.table if isinstance(statement, Rows) else statement)
            of_tables = makes or (words and words[0].upper in ("DROP", "DELETE", "TRUNCATE"))
            if current is None and (isinstance(statement, Rows) or (of_tables and not unnamed)):
                current = sql.database_named(words)
            words = sql.unqualified(words, current, current in tables)
            if isinstance(statement, Rows):
                statement = replace(statement, table=joined(words))
                if "." in re.sub("`[^`]*`", "", statement.table):
                    sql.refuse(f"INSERT INTO {statement.table}")
            elif makes:
                tables.add(named(words))
            if makes and current is not None:
                used[current] = None
            unnamed |= makes and current is None
            if self.name is None and len(used) > 1:
                self._ask_for_a_name()
            setting = isinstance(statement, str) and _SETTING.match(statement)
            if setting or self.name in (None, current):
                yield statement if isinstance(statement, Rows) else words
        if self.name is not None and self.name not in used:
            of_one = f"it is of one database and does not say its name; leave 'name' ({self.name}) out."
            raise TaskError(f"{unknown('database', self.name, used)}." if used else of_one)

    def _read(self, first_rows: int | None, strict: bool = True) -> Iterator[str | Rows]:
        with open_dump(self.path) as file:
            yield from read_dump(file, first_rows, self.only, strict)

    def _ask_for_a_name(self) -> NoReturn:
        statements = (each for each in self._read(1) if isinstance(each, str))
        names = dict.fromkeys(shown_name(found[1]) for found in map(_USE.match, statements) if found)
        raise TaskError(
            f"it has several databases; say which one with 'name': {', '.join(names)} (import: --database)."
        )


# --- tables and views of the statements ----------------------------------------------------------


@dataclass
class Made:
    """A table or a view, with a sample of its rows as dictionaries by column."""

    create: Create | str
    """The statement that makes it; a text for a view."""
    declared: Declaration
    rows: Sample
    last: int = 0
    """Largest number so far in the AUTO_INCREMENT column."""
    unfit: str | None = None
    """Reason why its rows cannot be read, if they cannot."""

    @property
    def sql(self) -> str:
        return self.create if isinstance(self.create, str) else self.create.sql

    def alter(self, words: Sequence[Word]) -> None:
        """Apply an ALTER TABLE that adds or modifies columns and keys, as in phpMyAdmin's dumps."""
        if not isinstance(self.create, Create):
            return
        for verb, line, behind in sql.altered(words):
            self.declared.add(line)
            if verb == "ADD":
                self.create.lines.append(line)
            else:
                place = self.declared.place_of(line)
                self.create.lines = [
                    line if self.declared.place_of(each) == place else each for each in self.create.lines
                ]
            if behind is not None:
                self.declared.move(shown_name(line[0].text), behind)
                self.create.lines.sort(key=self.declared.place_of)


class Contents:
    """The tables and views of a dump after the statements seen so far.

    Args:
        sample: returns a new sample for the rows of the table of this name.
        has: returns whether a table is wanted. Statements that make or alter other tables are skipped.
    """

    def __init__(
        self, sample: Callable[[str], Sample], has: Callable[[str], bool] = lambda name: True
    ) -> None:
        self.made: dict[str, Made] = {}
        """Tables, and views with known columns, by name."""
        self.views: dict[str, str] = {}
        """CREATE VIEW statements of all views, by name."""
        self.code: list[tuple[str, str]] = []
        """Statements that are left out: the kind of each, and the name of what it would make, if any."""
        self.homeless: dict[str, None] = {}
        """Tables with rows but no CREATE TABLE, as an ordered set."""
        self.zeros_kept = False
        """Set once the dump sets NO_AUTO_VALUE_ON_ZERO, which keeps a 0 in an AUTO_INCREMENT column."""
        self._sample = sample
        self._has = has
        self._dropped: dict[str, Made] = {}

    def see(self, statement: Rows | list[Word]) -> list[Step | str]:
        """Record a statement; return the steps that do the same on a server, or texts on what is lost.

        There are none for rows, and for views, which are made last.
        """
        if isinstance(statement, Rows):
            self._see_rows(statement)
            return []
        if [word.upper for word in statement[1:4]] == ["OR", "REPLACE", "TABLE"]:  # MariaDB's
            anew = [statement[0], *statement[3:]]
            return [*self.see([anew[0]._replace(text="DROP"), *anew[1:3]]), *self.see(anew)]
        words, kind, name = statement, kind_of(statement), named(statement)
        if kind in ("alter", "empty"):
            name = same_name(self.made, name) or name
        if kind in ("table", "alter", "empty") and not self._has(name):
            return []
        if kind == "table":
            if name in self.made and sql.if_not_there(words):
                return [f"{name}: a second CREATE TABLE IF NOT EXISTS is skipped"]
            create = sql.table_made(words)
            first = re.search(r"AUTO_INCREMENT=(\d+)", create.options)
            last = int(first[1]) - 1 if first else 0
            self.made[name] = Made(create, declaration(words), self._sample(name), last)
            return [*(f"{name}: {lost}" for lost in not_made(words)), Step(create.sql)]
        if kind == "alter":
            old = self.made[name].create if name in self.made else ""
            there = old.lines if isinstance(old, Create) else ()
            if not (words := sql.without_what_is_there(words, there)):
                return []
            if name in self.made:
                self.made[name].alter(words)
            return [Step(joined([*words[:2], Word("quoted", quote(name), words[2].spaced), *words[3:]]))]
        if kind == "empty":
            if name in self.made:
                self.made[name].rows = self._sample(name)
            return [Step(f"DELETE FROM {quote(name)}")]
        if kind == "drop":
            gone = self._drop(words)
            drops = words[1].upper == "TABLE"
            return [Step(f"DROP TABLE IF EXISTS {quote(each)}") for each in gone if drops and self._has(each)]
        if kind == "settings":
            zeros, utc = sql.settings(words)
            self.zeros_kept |= zeros
            return [Step(each) for each, is_set in ((_ZEROS_KEPT, zeros), (_UTC, utc)) if is_set]
        if kind == "view":
            self._see_view(*sql.view_made(words))
        elif kind.isupper():
            self.code.append((kind, sql.code_made(words, kind.removeprefix("CREATE "))))
        return []

    def _see_rows(self, rows: Rows) -> None:
        name = shown_name(rows.table)
        if (into := same_name(self.made, name)) is not None:
            _add_rows(self.made[into], rows, self.zeros_kept)
        else:
            self.homeless[name] = None

    def _drop(self, words: Sequence[Word]) -> list[str]:
        """Remove the tables and views that a DROP names; return their names.

        With IF EXISTS the case of names counts, as `Emp` may not be `emp`.
        """
        exact = [word.upper for word in words[2:3]] == ["IF"]
        gone = [name if exact else same_name(self.made, name) or name for name in sql.names(words)]
        for name in gone:
            self.views.pop(name, None)
            if (old := self.made.pop(name, None)) is not None:
                self._dropped[name] = old
        return gone

    def _see_view(self, name: str, columns: list[str], create: str) -> None:
        self.views[name] = create
        stood_in = self.made.get(name) or self._dropped.get(name)
        if not columns and (select := select_of(create)) is not None:
            columns = select.named_selects
        if columns and "*" not in columns:
            declared = Declaration({column: Declared(column, "TEXT") for column in columns})
        elif stood_in is not None:
            declared = stood_in.declared
        else:
            return
        self.made[name] = Made(create, declared, Sample(0))

    def of_views(self, has: Callable[[str], bool]) -> tuple[dict[str, str], list[str], list[str]]:
        """Return the arguments of `view_steps` for the tables and views for which `has` is true."""
        views = {name: create for name, create in self.views.items() if has(name)}
        tables = [name for name in self.made if has(name) and name not in views]
        return views, tables, [name for kind, name in self.code if kind == "CREATE FUNCTION"]


def _add_rows(made: Made, rows: Rows, zeros_kept: bool) -> None:
    made.unfit = made.unfit or rows.unread
    listed = [shown_name(match) for match in sql.NAMES.findall(rows.columns)]
    columns = [made.declared.name_of(name) for name in listed] or list(made.declared.columns)
    if strange := [name for name in columns if name not in made.declared.columns]:
        made.unfit = f"its rows have values for a column {strange[0]}, which it lacks"
    numbered = next((each.name for each in made.declared.columns.values() if each.auto_increment), None)
    for row in rows.rows:
        written = cells(row)
        if len(written) != len(columns):
            made.unfit = f"a row of it has {len(written)} values for {len(columns)} columns"
            continue
        new = dict(zip(columns, written, strict=True))
        if numbered is not None:  # do what AUTO_INCREMENT does
            digits = new.get(numbered, "NULL").strip("'\"")
            if digits.upper() in ("NULL", "DEFAULT") or (not digits.strip("0") and not zeros_kept):
                digits = new[numbered] = str(made.last + 1)
            made.last = max(made.last, int(digits) if digits.isdecimal() else 0)
        if rows.verb == "REPLACE":
            made.rows.drop(partial(_same_key, made, new))
        elif rows.ignores and any(_same_key(made, old, new) for _, old in made.rows.kept):
            continue
        made.rows.add(new)


def _same_key(made: Made, row: dict[str, str], other: dict[str, str]) -> bool:
    return any(
        all(row.get(name, "NULL") == other.get(name, "NULL") != "NULL" for name in columns)
        for columns in made.declared.unique
    )


def _cells(rows: Sequence[dict[str, str]], table: str, notes: list[str], declared: Declared) -> list[Cell]:
    """Return the cells of a column; raise TaskError with the reason if the dump does not have them."""
    written = [row.get(declared.name, "DEFAULT") for row in rows]
    if any(cell.upper() == "DEFAULT" for cell in written):
        if declared.generated:
            raise TaskError("it is generated, and the dump has no values of it")
        if declared.computed:
            raise TaskError(f"the dump leaves values of it to its default {declared.default}")
    held = []
    for cell in written:
        try:
            held.append(_cell(cell, declared))
        except UnicodeDecodeError:
            raise TaskError(
                "its texts are no UTF-8. Write the dump with --default-character-set=utf8mb4"
            ) from None
        except ValueError:
            raise TaskError(f"its value {cell[:40]} is not of its type {declared.type}") from None
    if declared.kind != "time":
        return held
    size = re.search(r"\d", declared.type)
    try:
        rounded = [_rounded(cell, int(size[0]) if size else 0) for cell in held]
    except (ValueError, OverflowError):
        raise TaskError(f"its values are not all of its type {declared.type}") from None
    if changed := next((pair for pair in zip(held, rounded, strict=True) if pair[0] != pair[1]), None):
        told = f"fractions are rounded as by MySQL: {changed[0]!r} is {changed[1]!r}"
        notes.append(f"{table}.{declared.name}: {told}")
    return rounded


_FRACTION = re.compile(r"(?:(\d{4}-\d\d-\d\d)[ T])?(-?)(\d+):(\d\d):(\d\d)\.(\d+)", re.ASCII)

_LONGEST_TIME = Decimal(838 * 3600 + 59 * 60 + 59)
"""Seconds of the largest TIME, 838:59:59."""


def _rounded(cell: Cell, digits: int) -> Cell:
    """Return a time with at most `digits` fractional digits, rounded half up as by MySQL.

    Raises ValueError if the day after an invalid date is needed, and OverflowError after the year 9999.
    """
    found = _FRACTION.fullmatch(cell) if isinstance(cell, str) else None
    if found is None or len(found[6]) <= digits:
        return cell
    day, sign, hours, minutes, seconds, fraction = found.groups()
    whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    exact = Decimal(f"{whole}.{fraction}").quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    exact = exact if day else min(exact, _LONGEST_TIME.quantize(exact))
    whole, behind = int(exact), str(exact).partition(".")[2]
    if day:  # only the next day needs a valid date: servers have 0000-00-00
        later, whole = divmod(whole, 24 * 3600)
        day = str(date.fromisoformat(day) + timedelta(later)) if later else day
    clock = f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"
    clock = f"{day} {clock}" if day else f"{sign if exact else ''}{clock}"
    return f"{clock}.{behind}" if behind else clock


def _cell(written: str, declared: Declared) -> Cell:
    """Convert a cell in SQL's notation to a cell of a task."""
    upper = written.upper()
    if upper == "DEFAULT":
        return None if declared.default is None else _typed(declared.default, declared)
    if upper in ("NULL", "TRUE", "FALSE"):
        return {"NULL": None, "TRUE": 1, "FALSE": 0}[upper]
    held = bytes_of(written)
    if held is None and written.endswith(")"):
        raise ValueError("a geometry in a column of another type")
    if held is not None and declared.kind in ("whole", "exact", "float"):
        return int.from_bytes(held, "big")
    return _typed(unescaped(written), declared)


def _typed(text: str, declared: Declared) -> Cell:
    if declared.kind == "whole":
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else text
    if declared.kind == "float":
        return float(text)
    if declared.kind in ("date", "time"):  # servers also accept 2024/1/31, and no time of day
        text = str(read_if_fit(partial(day_of, month_first=False), text) or text)
        midnight = declared.word in ("datetime", "timestamp") and re.fullmatch(r"\d{4}-\d\d-\d\d", text)
        return f"{text} 00:00:00" if midnight else text
    return text


def dump_tables(
    dump: Dump, sample: int, seed: int, only: Collection[str] | None = None
) -> tuple[list[Table], list[str]]:
    """Return the tables of a dump, like `sqlite_tables`, and notes on what they lose."""
    contents = Contents(lambda name: Sample(sample, random.Random(f"{seed}-{name}")))
    with dump.errors():
        for statement in dump.statements(strict=False):
            try:
                contents.see(statement)
            except TaskError as error:  # such as for an UPDATE, which changes rows of its table
                words = [] if isinstance(statement, Rows) else [shown_name(word.text) for word in statement]
                before = takewhile(lambda word: word.upper() != "SELECT", words)
                changed = [contents.made[word] for word in before if word in contents.made]
                if not changed or words[0].upper() in ("CREATE", "ALTER"):
                    raise
                for made in changed:
                    made.unfit = str(error)
    tables, notes = list[Table](), list[str]()
    for name, made in contents.made.items():
        if not isinstance(made.create, Create) or (only is not None and name not in only):
            continue
        if made.unfit is not None:
            notes.append(f"{name}: left out, {made.unfit}")
            continue
        cells_of = partial(_cells, made.rows.in_order(), name, notes)
        if table := made.declared.task_table(name, made.rows, cells_of, notes):
            tables.append(table)
    notes += [
        f"{name}: left out, the dump has rows of it{_NO_TABLE}"
        for name in contents.homeless
        if only is None or name in only
    ]
    if contents.views:
        notes.append(f"its views are left out: {', '.join(contents.views)}")
    notes += [f"its trigger {name} is not held" for kind, name in contents.code if kind == "CREATE TRIGGER"]
    told = ("CREATE TRIGGER", "GRANT", "FLUSH")
    left_out = [
        f"{kind.removeprefix('CREATE ').lower()} {name}" if name else kind.lower()
        for kind, name in contents.code
        if not kind.startswith(told)
    ]
    for what, count in Counter(left_out).items():
        notes.append(f"left out: {what}" + (f", {count} times" if count > 1 else ""))
    return tables, notes
