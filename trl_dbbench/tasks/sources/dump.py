"""A dump of MySQL's or MariaDB's, as mysqldump writes it, as the database of tasks.

A dump is data and not code: of its statements only those are executed that make tables, rows, keys and views,
and of these only forms that read and touch nothing else, since they run under an account that may do much.
Session settings are the loader's own. What else a dump has, such as routines, triggers, events, accounts and
rights, is left out with a note.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from sqlglot import exp

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.sources.base import EXAMPLE_ROWS, Step, file_digest, in_order, lost_views, with_rows
from trl_dbbench.tasks.sources.descriptions import comment_on, descriptions
from trl_dbbench.tasks.sources.dump_statements import (
    DumpColumn,
    check_encoding,
    code_made,
    columns_of,
    dropped,
    if_not_there,
    joined,
    kind_of,
    named,
    not_made,
    refuse,
    rows_put,
    table_made,
    view_made,
)
from trl_dbbench.tasks.sources.dump_text import Rows, cells, open_dump, read_dump, shown_name, words_of
from trl_dbbench.tasks.table import Column, Table
from trl_dbbench.utils.lookup import unknown
from trl_dbbench.utils.sql import only_statement, quote

DUMP_SUFFIXES = (".sql", ".sql.gz")

SESSION = "SET SESSION foreign_key_checks = 0, unique_checks = 0"

_USE = re.compile(r"USE\s+(\S+)$", re.IGNORECASE)
_MAKES = re.compile(r"CREATE\s+(?!DATABASE|SCHEMA)", re.IGNORECASE)


class Dump:
    """The tables of one database of a dump; see `Kind`.

    Args:
        name: of the database, if there are several.
        whole: the same dump, of which this one has only some tables.
        only: the names of these.
        described_in: a folder with what their columns mean, see `descriptions`.
    """

    dialects = ("mysql",)

    def __init__(
        self,
        path: Path,
        name: str | None,
        whole: Dump | None = None,
        only: Sequence[str] = (),
        described_in: Path | None = None,
    ) -> None:
        self.path = path
        self.name = name
        self._whole = whole or self
        self._only = frozenset(only)
        self._described_in = described_in

    @staticmethod
    def digest_of(path: Path) -> str:
        """
        Raises:
            OSError: there is no such file.
        """
        return file_digest(path)

    def tables(self, dialect: str | None = None) -> tuple[Table, ...]:
        tables = self._whole._schema.tables
        known = [table.name for table in tables]
        if strange := sorted(self._only.difference(known)):
            raise TaskError(f"the dump '{self.path}': {unknown('table', strange[0], known)}.")
        lost = self._whole._schema.lost([name for name in known if self._has(name)])
        return tuple(table for table in tables if self._has(table.name) and table.name not in lost)

    def described(self, dialect: str) -> str:
        told = {} if self._described_in is None else descriptions(self._described_in)
        return self._whole._schema.described(self.tables(), told)

    def statements(self) -> Iterator[str | Rows]:
        """All statements of the database. Rows with anything but values say that they are unread.

        Raises:
            TaskError: it cannot be read, or has several databases and no name was given.
        """
        with self.errors():
            yield from self._statements(strict=False)

    def _has(self, table: str) -> bool:
        return not self._only or table in self._only

    def steps(self) -> Iterator[Step | str]:
        left_out: Counter[str] = Counter()
        functions: list[str] = []
        views: dict[str, str] = {}
        columns: dict[str, list[DumpColumn]] = {}
        zone = False
        with self.errors():
            yield Step(SESSION)
            for statement in self._statements():
                if isinstance(statement, Rows):
                    yield rows_put(statement, columns.get(shown_name(statement.table), ()))
                    continue
                words = words_of(statement)
                kind = kind_of(words)
                if kind in ("table", "alter") and not self._has(named(words)):
                    continue
                if kind == "table":
                    name = named(words)
                    if name in columns and if_not_there(words):
                        yield f"{name}: a second CREATE TABLE IF NOT EXISTS is skipped"
                        continue
                    made = table_made(words)
                    columns[name] = columns_of(words_of(made)[3:])
                    yield from (f"{name}: {lost}" for lost in not_made(words))
                    yield Step(made)
                elif kind == "alter":
                    yield Step(joined(words))
                elif kind == "drop":
                    for name in filter(self._has, dropped(words)):
                        views.pop(name, None)
                        if words[1].upper == "TABLE":  # views are made at the end
                            columns.pop(name, None)
                            yield Step(f"DROP TABLE IF EXISTS {quote(name)}")
                elif kind == "view":
                    name, _, made = view_made(words)
                    if self._has(name):
                        views[name] = made  # the first one only stands in for it until all tables are there
                elif kind == "zone" and not zone:
                    zone = True
                    yield Step("SET SESSION time_zone = '+00:00'")
                elif kind.isupper():
                    left_out[kind] += 1
                    functions += code_made(words)
            lost = lost_views(views, columns.keys() - views.keys(), functions)
            for name in in_order(views):
                if name in lost:
                    yield f"the view {name}, {lost[name]}"
                else:
                    yield Step(views[name], else_lost=f"the view {name}")
            for kind, count in left_out.items():
                yield f"{count} statements {kind}, which a dump cannot bring"

    @cached_property
    def _schema(self) -> _Schema:
        schema = _Schema()
        with self.errors():
            for statement in self._statements(EXAMPLE_ROWS):
                if isinstance(statement, Rows):
                    schema.see_rows(statement)
                elif (kind := kind_of(words := words_of(statement))) == "table":
                    schema.see_table(table_made(words), if_not_there(words))
                elif kind == "view":
                    schema.see_view(*view_made(words))
                elif kind == "drop":
                    schema.see_drop(dropped(words))
                elif kind.isupper():
                    schema.functions += code_made(words)
            if not schema.made:
                raise TaskError("it has no tables.")
        return schema

    @contextmanager
    def errors(self) -> Iterator[None]:
        """A block whose errors name the dump."""
        try:
            yield
        except (OSError, TaskError) as error:
            said = f"the dump '{self.path}' cannot be read: "
            raise TaskError(said + str(error).removeprefix(said)) from None

    def _statements(self, first_rows: int | None = None, strict: bool = True) -> Iterator[str | Rows]:
        """Those of the database. A dump without USE is of one.

        Raises:
            TaskError: it cannot be read, has several databases and no name was given, or none of the name.
        """
        current: str | None = None
        used: dict[str, None] = {}
        for statement in self._read(first_rows, strict):
            if isinstance(statement, str):
                check_encoding(statement)
                if found := _USE.match(statement):
                    current = shown_name(found[1])
                    continue
            elif "." in re.sub("`[^`]*`", "", statement.table):
                refuse(f"INSERT INTO {statement.table}")
            if isinstance(statement, Rows) or _MAKES.match(statement):
                if current is not None:
                    used[current] = None
                if self.name is None and len(used) > 1:
                    self._ask_for_a_name()
            if self.name is None or current == self.name:
                yield statement
        if self.name is not None and not used:
            raise TaskError(
                f"it is of one database and does not say its name; leave 'name' ({self.name}) out."
            )
        if self.name is not None and self.name not in used:
            raise TaskError(f"{unknown('database', self.name, list(used))}.")

    def _read(self, first_rows: int | None, strict: bool = True) -> Iterator[str | Rows]:
        with open_dump(self.path) as file:
            yield from read_dump(file, first_rows, self._only, strict)

    def _ask_for_a_name(self) -> NoReturn:
        statements = (each for each in self._read(1) if isinstance(each, str))
        names = dict.fromkeys(shown_name(found[1]) for found in map(_USE.match, statements) if found)
        raise TaskError(
            f"it has several databases; say which one with 'name': {', '.join(names)} (import: --database)."
        )


class _Schema:
    """What a prompt says of the tables of a dump."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}
        self._rows: dict[str, list[list[str]]] = {}
        self._columns: dict[str, tuple[Column, ...]] = {}
        self._dropped: dict[str, tuple[Column, ...]] = {}
        self.functions: list[str] = []
        """That the dump has, and that are left out."""

    def lost(self, names: Sequence[str]) -> dict[str, str]:
        """The views that no server can make where there is only what has these names; see `lost_views`."""
        views = {name: self.made[name] for name in names if self._is_view(name)}
        return lost_views(views, set(names) - views.keys(), self.functions)

    def _is_view(self, name: str) -> bool:
        return " VIEW " in self.made[name].partition("`")[0]

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(Table(name, columns) for name, columns in self._columns.items())

    def described(self, tables: Sequence[Table], told: Mapping[str, Mapping[str, str]]) -> str:
        """These of its tables, with what `descriptions` tells of their columns."""
        parts, chosen = [], {table.name: table for table in tables}
        for name, made in self.made.items():
            if name in chosen:
                rows = (
                    None
                    if self._is_view(name)
                    else [list(map(_Written, row)) for row in self._rows.get(name, [])]
                )
                parts += [*comment_on(chosen[name], told), with_rows(made, name, rows)]
        return "\n".join(parts)

    def see_table(self, made: str, if_not_there: bool = False) -> None:
        words = words_of(made)
        name = shown_name(words[2].text)
        if if_not_there and name in self.made:
            return
        self.made[name] = made
        self._columns[name] = tuple(Column(each.name, each.type) for each in columns_of(words[3:]))

    def see_view(self, name: str, columns: list[str], made: str) -> None:
        if not columns:
            tree = only_statement(made.replace(" SQL SECURITY INVOKER", "", 1))
            select = tree.expression if isinstance(tree, exp.Create) else None
            columns = select.named_selects if isinstance(select, exp.Query) else []
        if columns and "*" not in columns:
            self._columns[name] = tuple(Column(column) for column in columns)
        elif name in self._dropped:  # a table that stood in for it
            self._columns.setdefault(name, self._dropped[name])
        if name in self._columns:
            self.made.pop(name, None)
            self.made[name] = made

    def see_drop(self, names: Sequence[str]) -> None:
        for name in names:
            if (columns := self._columns.pop(name, None)) is not None:
                self._dropped[name] = columns
            self.made.pop(name, None)
            self._rows.pop(name, None)

    def see_rows(self, rows: Rows) -> None:
        kept = self._rows.setdefault(shown_name(rows.table), [])
        for row in rows.rows[: EXAMPLE_ROWS - len(kept)]:
            kept.append(cells(row))


class _Written(str):
    """A cell that is shown as it is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
