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
from trl_dbbench.utils.sql import quote


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
        triggers = connection.execute(
            "SELECT tbl_name, name FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN "
            "(SELECT name FROM sqlite_master WHERE type = 'table') ORDER BY rowid"
        ).fetchall()
        for made in _definitions(file, connection, notes):
            if only is not None and made.name not in only:
                continue
            notes += [note if _says_all(note) else f"{note}, not held" for note in made.notes]
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
            odd = _not_text(connection, made)
            notes += [f"{made.name}.{name}: left out, its texts are no UTF-8" for name in odd]
            infinite = [column.name for column in made.columns if column.infinite]
            notes += [f"{made.name}.{name}: left out, it holds an infinite number" for name in infinite]
            odd.update(infinite)
            kept = [
                (place, column) for place, column, _ in held if column is not None and column.name not in odd
            ]
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
    notes += [
        f"{table}: its trigger {name} is not held"
        for table, name in triggers
        if only is None or table in only
    ]
    if views := file.views():
        notes.append(f"its views are left out: {', '.join(views)}")
    return tables, notes


def _definitions(file: SQLiteFile, connection: sqlite3.Connection, notes: list[str]) -> list[Definition]:
    """The tables of the file; one that cannot be read is left out, and a column with an infinite number."""
    try:
        return definitions(connection, file.table_names(), infinite=True)
    except (TaskError, sqlite3.Error):
        names = []
    for name in file.table_names():
        try:
            definitions(connection, [name], infinite=True)
        except (TaskError, sqlite3.Error) as error:  # such as of a module that is not here
            notes.append(f"{name}: left out, it cannot be read ({error})")
        else:
            names.append(name)
    return definitions(connection, names, infinite=True)


def _says_all(note: str) -> bool:
    """Whether a note is of a column that is there, in another form than was declared."""
    return " by its values" in note or "of plain values" in note


def _not_text(connection: sqlite3.Connection, table: Definition) -> set[str]:
    """The columns that have texts of another encoding."""
    found = set()
    for column in table.columns:
        name, of = quote(column.name), quote(table.name)
        texts = connection.execute(f"SELECT CAST({name} AS BLOB) FROM {of} WHERE typeof({name}) = 'text'")
        try:
            for (text,) in texts:
                text.decode()
        except UnicodeDecodeError:
            found.add(column.name)
    return found


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
