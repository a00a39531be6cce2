"""What a database that tasks share can be asked, whatever it comes in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from stat import S_ISREG
from typing import Any, Protocol

from sqlglot import exp

from trl_dbbench.tasks.table import Table
from trl_dbbench.utils.sql import lexemes, only_statement

SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")
"""Databases that every server has."""

EXAMPLE_ROWS = 3
EXAMPLE_CHARACTERS = 60
"""To which a cell of those is cut."""


@dataclass(frozen=True, slots=True)
class Step:
    """A statement of MySQL's that helps to make the database on a server.

    Args:
        sql: with a place `%s` for each cell if there are rows.
        rows: for each of which it is executed.
        else_lost: what the server's database lacks if the server refuses the statement; without it, the
            database cannot be made then.
    """

    sql: str
    rows: Sequence[tuple[Any, ...]] = ()
    else_lost: str | None = None


class Kind(Protocol):
    """A database at a path; nothing is read before it is asked for."""

    @property
    def dialects(self) -> tuple[str, ...]:
        """Of the tasks that it can be the database of; the first one is that of tasks that name none."""
        ...

    def tables(self, dialect: str | None = None) -> tuple[Table, ...]:
        """Its tables and views without their rows.

        Args:
            dialect: where they are played; left out, the first of `dialects`.

        Raises:
            TaskError: it cannot be read, or has no tables.
        """
        ...

    def described(self, dialect: str) -> str:
        """How its tables were made, in this dialect, and their first rows.

        Raises:
            TaskError: it cannot be read.
        """
        ...

    def steps(self) -> Iterator[Step | str]:
        """What makes the database on a server, in the order in which it is to be executed.

        A text among the steps says what of the database has no counterpart there.

        Raises:
            TaskError: it cannot be read, or holds what no server could.
        """
        ...


def file_digest(path: Path) -> str:
    """16 hex digits that stand for the contents of a file; read again only when it has changed.

    Raises:
        OSError: there is no such file.
    """
    state = path.stat()
    if not S_ISREG(state.st_mode):
        raise OSError("it is no file")
    return _digest(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4096)
def _digest(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def names_in(sql: str, names: Iterable[str]) -> set[str]:
    """Those of the names that stand in a statement, whatever they mean there; case does not count."""
    words = {
        text.strip("'\"`").replace("``", "`").casefold()
        for kind, text in lexemes(sql)
        if kind in ("word", "quoted", "string")
    }
    return {name for name in names if name.casefold() in words}


def in_order(views: Mapping[str, str]) -> list[str]:
    """The names of views, each after those that its SELECT reads."""
    read = {name: names_in(select, views) - {name} for name, select in views.items()}
    try:
        return list(TopologicalSorter(read).static_order())
    except CycleError:  # a column has the name of another view; a server then says which cannot be made
        return list(views)


def lost_views(
    views: Mapping[str, str], tables: Iterable[str], functions: Iterable[str] = ()
) -> dict[str, str]:
    """Views that no server can make, with the reason.

    Args:
        views: CREATE VIEW in MySQL's dialect, by name. A server judges those that cannot be parsed here.
        tables: that there will be.
        functions: that there will not be.
    """
    there, gone = {name.casefold() for name in tables} | {"dual"}, {name.casefold() for name in functions}
    lost: dict[str, str] = {}
    for name in in_order(views):
        if (reason := _lost_because(views[name], there, gone)) is None:
            there.add(name.casefold())
        else:
            lost[name] = reason
    return lost


def _lost_because(made: str, there: set[str], gone: set[str]) -> str | None:
    tree = only_statement(made.replace(" SQL SECURITY INVOKER", "", 1))
    select = tree.expression if isinstance(tree, exp.Create) else None
    if not isinstance(select, exp.Query):
        return None
    own = {cte.alias.casefold() for cte in select.find_all(exp.CTE)}
    for table in select.find_all(exp.Table):
        if table.db and table.db.casefold() not in SYSTEM:
            return f"which reads from the database {table.db}"
        if not table.db and table.name and table.name.casefold() not in there | own:
            return f"which reads {table.name}, which is not there"
    called = next(
        (each.name for each in select.find_all(exp.Anonymous) if each.name.casefold() in gone), None
    )
    return None if called is None else f"which calls {called}, which is not there"


def with_rows(made: str, name: str, rows: Sequence[Sequence[Any]] | None) -> str:
    """A table as a prompt shows it: how it was made, and rows in a comment unless they are `None`."""
    if rows is None:
        return f"{made.strip()};"
    if not rows:
        return f"{made.strip()};\n/* {name} has no rows. */"
    shown = "\n".join(", ".join(map(_cell, row)) for row in rows[:EXAMPLE_ROWS])
    return f"{made.strip()};\n/* The first rows of {name}:\n{shown} */"


def _cell(cell: Any) -> str:
    text = "NULL" if cell is None else repr(cell) if isinstance(cell, str | bytes) else str(cell)
    return text if len(text) <= EXAMPLE_CHARACTERS else text[:EXAMPLE_CHARACTERS] + "..."
