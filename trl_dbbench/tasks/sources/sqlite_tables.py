"""The tables of a SQLite file with a sample of their rows, as tables of tasks."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Collection

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.declared import Declared, task_column
from trl_dbbench.tasks.sources.columns import ConvertedColumn
from trl_dbbench.tasks.sources.conversion import Definition, definitions, rows_of
from trl_dbbench.tasks.sources.dump_text import unescaped
from trl_dbbench.tasks.sources.sample import Sample
from trl_dbbench.tasks.sources.sqlite_file import SQLiteFile
from trl_dbbench.tasks.table import Table


def sqlite_tables(
    file: SQLiteFile, sample: int, seed: int, only: Collection[str] | None = None
) -> tuple[list[Table], list[str]]:
    """The tables of a SQLite file as MySQL has them, and what they do not hold.

    Args:
        sample: most rows of a table, drawn at random.
        only: the names of tables; all if left out.

    Raises:
        TaskError: the file cannot be read, or holds an infinite number.
    """
    tables, notes = [], list[str]()
    with file.connect(None) as connection:
        for made in _definitions(file, connection, notes):
            if only is not None and made.name not in only:
                continue
            notes += made.notes
            notes += [
                f"{made.name}: the foreign key ({', '.join(each.columns)}) to {each.target} is not held"
                for each in made.foreign
            ]
            held = [(place, *task_column(_declared(each, made))) for place, each in enumerate(made.columns)]
            for place, _, found in held:
                notes += [f"{made.name}.{made.columns[place].name}: {note}" for note in found]
            several = [each for each in (made.primary, *made.uniques) if len(each) > 1]
            notes += [
                f"{made.name}: its key of several columns ({', '.join(each)}) is not held" for each in several
            ]
            kept = [(place, column) for place, column, _ in held if column is not None]
            if not kept:
                notes.append(f"{made.name}: left out, none of its columns can be held")
                continue
            drawn = Sample(sample, random.Random(f"{seed}-{made.name}"))
            for rows in rows_of(connection, made):
                for row in rows:
                    drawn.add(tuple(row[place] for place, _ in kept))
            if drawn.seen > len(drawn.kept):
                notes.append(f"{made.name}: {sample} of its {drawn.seen:,} rows are taken (--sample)")
            tables.append(Table(made.name, tuple(column for _, column in kept), tuple(drawn.in_order())))
    if views := file.views():
        notes.append(f"its views are left out: {', '.join(views)}")
    return tables, notes


def _definitions(file: SQLiteFile, connection: sqlite3.Connection, notes: list[str]) -> list[Definition]:
    """The tables of the file; one with a value that MySQL has not is left out."""
    try:
        return file.definitions
    except TaskError:
        names = []
        for name in file.table_names():
            try:
                definitions(connection, [name])
            except TaskError as error:
                notes.append(f"{name}: left out, {error}")
            else:
                names.append(name)
        return definitions(connection, names)


def _declared(column: ConvertedColumn, table: Definition) -> Declared:
    key = (
        "PRIMARY KEY"
        if table.primary == (column.name,)
        else "UNIQUE"
        if (column.name,) in table.uniques
        else ""
    )
    default = column.default
    return Declared(
        column.name,
        column.type.lower(),
        nullable=not column.not_null,
        default=None if default is None else unescaped(default),
        computed=default == "CURRENT_TIMESTAMP",
        auto_increment=column.auto_increment,
        key=key,
    )
