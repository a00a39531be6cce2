"""Which of the tables and columns that are read somewhere a database of tasks can have.

One column whose values no server takes, such as zero dates, does not keep the others from being used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trl_dbbench.database import Database, open_database
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Cell, Column, Gold, Table, Task
from trl_dbbench.tasks.model import check_table
from trl_dbbench.tasks.table import check_new_names

MAX_REASON = 160
"""Characters of a reason in a note."""


def usable(tables: Sequence[Table]) -> tuple[list[Table], list[str]]:
    """The tables as a database can make them, and a note for each table and column that is left out."""
    kept, notes = [], list[str]()
    with open_database("sqlite") as database:
        for table in tables:
            if (reason := _misnamed(table)) is not None:
                notes.append(f"{table.name}: left out, {reason}")
                continue
            if (problem := _problem(database, table)) is None:
                kept.append(table)
                continue
            columns = [_usable_column(database, table, place, notes) for place in range(len(table.columns))]
            places = [place for place, column in enumerate(columns) if column is not None]
            rest = replace(
                table,
                columns=tuple(column for column in columns if column is not None),
                rows=tuple(tuple(row[place] for place in places) for row in table.rows),
            )
            if places and (problem := _problem(database, rest)) is None:
                kept.append(rest)
            else:
                notes.append(f"{table.name}: left out, {problem}")
    return kept, notes


def _misnamed(table: Table) -> str | None:
    try:
        check_new_names(replace(table, columns=()))
    except TaskError as error:
        return str(error)
    return None


def _usable_column(database: Database, table: Table, place: int, notes: list[str]) -> Column | None:
    """The column, without its key or default if it cannot have them; `None` if it cannot be at all."""
    column = table.columns[place]
    rows = tuple((row[place],) for row in table.rows)
    first = None
    for type_, lost in _forms(column.type):
        problem = _problem(database, Table(table.name, (replace(column, type=type_),), rows))
        if problem is None:
            if lost:
                notes.append(f"{table.name}.{column.name}: its {lost} ({first})")
            return replace(column, type=type_)
        first = first or problem
    notes.append(f"{table.name}.{column.name}: left out, {first}")
    return None


def _forms(type_: str) -> Iterator[tuple[str, str]]:
    """The type as it is, then with less and less of what stands behind it, and what that is."""
    yield type_, ""
    without_default = re.sub(r" DEFAULT '[^']*'", "", type_)
    without_key = re.sub(r" (PRIMARY KEY|UNIQUE)", "", type_)
    if without_key != type_:
        yield without_key.replace(" AUTO_INCREMENT", ""), "key is not held"
    if without_default != type_:
        yield without_default, "default is not held"
    if timed := re.match(r"(?:DATETIME|TIMESTAMP)\(\d\)", type_):
        of_text = re.sub(r" (PRIMARY KEY|UNIQUE)", "", without_default)
        yield of_text.replace(timed[0], "TEXT", 1), f"type {timed[0]} becomes TEXT"
    without_list = re.sub(r"^(?:ENUM|SET)\(.*?\)(?= |$)", "TEXT", without_default)
    if without_list != without_default:
        yield without_list, "list of values is not held"


def _problem(database: Database, table: Table) -> str | None:
    """Why a database cannot make the table; `None` if it can."""
    task = Task("", "?", (table,), "SELECT", Gold(answer=((1,),)))
    for place, column in enumerate(table.columns):
        if (strange := _not_listed(column.type, [row[place] for row in table.rows])) is not None:
            return f"it holds {strange!r}, which is outside its list"
    try:
        check_table(table)
        check_new_names(table)
        with database.sandbox(task):
            return None
    except TaskError as error:
        return str(error).partition("its tables cannot be made: ")[2][:MAX_REASON] or str(error)[:MAX_REASON]
    except ArithmeticError:
        return "it has numbers of more digits than the embedded database holds"


def _not_listed(type_: str, cells: Sequence[Cell]) -> str | None:
    """A cell of an ENUM or SET that is none of its values, which servers refuse; MySQL has some of old."""
    found = re.match(r"(ENUM|SET)\((.*?)\)(?: |$)", type_, re.IGNORECASE)
    if found is None:
        return None
    several = found[1].upper() == "SET"
    members = {each.casefold() for each in re.findall(r"'([^']*)'", found[2])}
    for cell in cells:
        parts = str(cell).split(",") if several else [str(cell)]
        if cell is None or (several and cell == ""):
            continue
        if not members.issuperset(part.casefold() for part in parts):
            return str(cell)
    return None
