"""A SQLite database as MySQL's: which statements make the same tables there.

SQLite keeps any value in any column, so a type follows what is declared only where all values fit it, and the
values otherwise. `columns.py` has that part; keys, references, defaults and views are here.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlglot import exp

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.sources.base import Step
from trl_dbbench.tasks.sources.columns import ConvertedColumn, converted_columns
from trl_dbbench.utils.sql import only_statement, quote

ROWS_AT_ONCE = 1000

MAX_KEY_CHARACTERS = 767
"""Of all columns of a key together, in characters of four bytes each."""

KEY_CHARACTERS = 255
"""Of a text in a key where neither the values nor the key's other columns ask for another length."""


@dataclass(frozen=True)
class Reference:
    """A foreign key."""

    columns: tuple[str, ...]
    target: str
    target_columns: tuple[str, ...]
    actions: str


@dataclass
class Definition:
    """A table as MySQL is to make it, and what it cannot have there (`notes`)."""

    name: str
    columns: list[ConvertedColumn]
    primary: tuple[str, ...] = ()
    uniques: list[tuple[str, ...]] = field(default_factory=list)
    indexes: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    foreign: list[Reference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def create(self, whole: bool = False) -> str:
        """
        Args:
            whole: with keys and references that are otherwise added when the rows are there.
        """
        lines = [each.line() for each in self.columns]
        if self.primary and (whole or self._primary_is_sure()):
            lines.append(f"PRIMARY KEY ({_listed(self.primary)})")
        if whole:
            lines += [f"UNIQUE KEY ({_listed(each)})" for each in self.uniques]
            lines += map(_foreign_key, self.foreign)
        body = ",\n  ".join(lines)
        return f"CREATE TABLE {quote(self.name)} (\n  {body}\n)"

    def insert(self) -> str:
        into = f"{quote(self.name)} ({_listed([column.name for column in self.columns])})"
        places = ", ".join(["%s"] * len(self.columns))
        return f"INSERT INTO {into.replace('%', '%%')} VALUES ({places})"

    def keys(self) -> Iterator[Step]:
        """Those that a server may refuse: texts that differ by case only, or NULL in a primary key."""
        alter = f"ALTER TABLE {quote(self.name)} ADD"
        if self.primary and not self._primary_is_sure():
            shown = ", ".join(self.primary)
            yield Step(
                f"{alter} PRIMARY KEY ({_listed(self.primary)})",
                else_lost=f"{self.name}: the primary key ({shown})",
            )
        for columns in self.uniques:
            yield Step(
                f"{alter} UNIQUE KEY ({_listed(columns)})",
                else_lost=f"{self.name}: the unique key ({', '.join(columns)})",
            )
        for name, columns in self.indexes:
            parts = ", ".join(self._indexed(column, len(columns)) for column in columns)
            yield Step(f"{alter} INDEX {quote(name)} ({parts})", else_lost=f"{self.name}: the index {name}")

    def references(self) -> Iterator[Step]:
        for each in self.foreign:
            yield Step(
                f"ALTER TABLE {quote(self.name)} ADD {_foreign_key(each)}",
                else_lost=f"{self.name}: the foreign key ({', '.join(each.columns)}) to {each.target}",
            )

    def column(self, name: str) -> ConvertedColumn | None:
        folded = name.casefold()
        return next((each for each in self.columns if each.name.casefold() == folded), None)

    def _primary_is_sure(self) -> bool:
        parts = [self.column(name) for name in self.primary]
        return all(part is not None and not part.is_text and not part.nulls for part in parts)

    def _indexed(self, name: str, count: int) -> str:
        column = self.column(name)
        prefix = column is not None and column.type.endswith(("TEXT", "BLOB"))
        return quote(name) + (f"({MAX_KEY_CHARACTERS // count})" if prefix else "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names))


def _foreign_key(each: Reference) -> str:
    return (
        f"FOREIGN KEY ({_listed(each.columns)}) REFERENCES {quote(each.target)} "
        f"({_listed(each.target_columns)}){each.actions}"
    )


def definitions(
    connection: sqlite3.Connection, names: Sequence[str], infinite: bool = False
) -> list[Definition]:
    """The tables of these names, whose values are looked at: that takes seconds for 100 MB.

    Args:
        infinite: columns may hold infinite numbers, which the caller leaves out.

    Raises:
        TaskError: a value is there that no column of MySQL's holds.
    """
    made = [_definition(connection, name) for name in names]
    if not infinite:
        _check_finite(made)
    by_name = {each.name.casefold(): each for each in made}
    for each in made:
        each.foreign = list(_foreign(connection, each, by_name))
    for each in made:
        for columns in (each.primary, *each.uniques):
            _shorten(each, columns)
        for reference in each.foreign:
            _shorten(each, reference.columns)
    # what refers to something has the same type; a type that grew may be referred to itself
    references = [(each, reference) for each in made for reference in each.foreign]
    while sum(_same_types(each, reference, by_name) for each, reference in references):
        pass
    return made


def _check_finite(tables: Sequence[Definition]) -> None:
    for table in tables:
        for column in table.columns:
            if column.infinite:
                raise TaskError(
                    f"table '{table.name}', column '{column.name}' holds an infinite number, which MySQL has "
                    "not. Correct the file, or play the tasks on SQLite (dialect: sqlite)."
                )


def rows_of(connection: sqlite3.Connection, table: Definition) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a table in batches, each cell as its column's type holds it."""
    cells = ", ".join(column.selected() for column in table.columns)
    cursor = connection.execute(f"SELECT {cells} FROM {quote(table.name)}")
    while rows := cursor.fetchmany(ROWS_AT_ONCE):
        yield rows


def view_step(name: str, sql: str, known: set[str]) -> Step | str:
    """What makes a view on a server, or why nothing can.

    It reads under the rights of whoever reads it, so that nobody sees by it what is not theirs.

    Args:
        known: the names of all tables and views of the database.
    """
    tree = only_statement(sql, "sqlite")
    select = tree.expression if isinstance(tree, exp.Create) and tree.kind == "VIEW" else None
    if not isinstance(select, exp.Query):
        return f"the view {name}, which cannot be translated"
    there = {each.casefold() for each in (*known, *(cte.alias for cte in select.find_all(exp.CTE)))}
    if any(table.db or table.name.casefold() not in there for table in select.find_all(exp.Table)):
        return f"the view {name}, which reads what is no table of the database"
    named = tree.this if isinstance(tree, exp.Create) else None
    columns = [column.name for column in named.expressions] if isinstance(named, exp.Schema) else []
    shown = f" ({_listed(columns)})" if columns else ""
    made = f"CREATE SQL SECURITY INVOKER VIEW {quote(name)}{shown} AS {select.sql(dialect='mysql')}"
    return Step(made, else_lost=f"the view {name}")


# --- what a table has ------------------------------------------------------------------------------


def _definition(connection: sqlite3.Connection, name: str) -> Definition:
    columns, notes = converted_columns(connection, name)
    table = Definition(name, columns, notes=[f"{name}.{note}" for note in notes])
    keys = sorted((each for each in columns if each.primary), key=lambda each: each.primary)
    table.primary = tuple(each.name for each in keys)
    (made,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    if re.search(r"\bCHECK\s*\(", made or "", re.IGNORECASE):
        table.notes.append(f"{name}: its CHECK constraints")
    found = connection.execute(
        'SELECT name, "unique", origin, partial FROM pragma_index_list(?) ORDER BY seq DESC', (name,)
    )
    for index, unique, origin, partial in found.fetchall():
        of_index = connection.execute(
            "SELECT name FROM pragma_index_xinfo(?) WHERE key = 1 ORDER BY seqno", (index,)
        )
        parts = tuple(part for (part,) in of_index)
        if origin == "pk":
            continue
        if partial or None in parts:
            table.notes.append(f"{name}: the index {index}, which is partial or of an expression")
        elif unique:
            table.uniques.append(parts)
        else:
            table.indexes.append((index, parts))
    return table


def _foreign(
    connection: sqlite3.Connection, table: Definition, by_name: dict[str, Definition]
) -> Iterator[Reference]:
    found = connection.execute(
        'SELECT id, "from", "table", "to", on_update, on_delete FROM pragma_foreign_key_list(?) '
        "ORDER BY id DESC, seq",
        (table.name,),
    )
    for _, group in groupby(found.fetchall(), key=lambda row: row[0]):
        parts = list(group)
        _, _, target, there, on_update, on_delete = parts[0]
        columns = [part[1] for part in parts]
        other = by_name.get(target.casefold())
        if other is None:
            table.notes.append(f"{table.name}: the foreign key ({', '.join(columns)}) to {target}, no table")
            continue
        targets = list(other.primary) if there is None else [part[3] for part in parts]
        here = [table.column(column) for column in columns]
        theirs = [other.column(column) for column in targets]
        if len(here) != len(theirs) or None in here or None in theirs:
            table.notes.append(f"{table.name}: the foreign key ({', '.join(columns)}) to {target}")
            continue
        actions = [("UPDATE", on_update), ("DELETE", on_delete)]
        yield Reference(
            tuple(each.name for each in here if each),
            other.name,
            tuple(each.name for each in theirs if each),
            "".join(f" ON {what} {action}" for what, action in actions if action != "NO ACTION"),
        )


def _shorten(table: Definition, columns: Sequence[str]) -> None:
    """Texts in a key are VARCHAR: of a TEXT there is no unique key."""
    texts = [each for name in columns if (each := table.column(name)) and each.type.endswith("TEXT")]
    for each in texts:
        longest = MAX_KEY_CHARACTERS // len(texts)
        if each.longest <= longest:
            each.type = f"VARCHAR({max(each.longest, min(KEY_CHARACTERS, longest))})"


def _same_types(table: Definition, reference: Reference, by_name: dict[str, Definition]) -> bool:
    """Gives the two ends of a reference the wider of their integer types; returns whether one changed."""
    target = by_name[reference.target.casefold()]
    changed = False
    for here, there in zip(reference.columns, reference.target_columns, strict=True):
        ends = (table.column(here), target.column(there))
        if {end.type for end in ends if end} == {"INT", "BIGINT"}:
            for end in ends:
                if end:
                    end.type = "BIGINT"
            changed = True
        if ends[1] and ends[1].type.endswith("TEXT"):
            _shorten(target, [there])
            changed |= not ends[1].type.endswith("TEXT")
    return changed
