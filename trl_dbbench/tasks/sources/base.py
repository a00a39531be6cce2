"""Parts common to all kinds of shared databases: steps of loading, digests, views, samples, descriptions."""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from stat import S_ISREG
from typing import Any

from sqlglot import exp

from trl_dbbench.tasks.table import Table
from trl_dbbench.utils.files import visible
from trl_dbbench.utils.sql import lexemes, only_statement

logger = logging.getLogger(__name__)

SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")
"""System databases of every server."""

EXAMPLE_ROWS = 3
EXAMPLE_CHARACTERS = 60
"""Most rows of a table, and most characters of a cell, in a prompt."""


@dataclass(frozen=True, slots=True)
class Step:
    """A MySQL statement for loading the database on a server.

    With `rows`, it is executed for each of them, with a cell for each `%s`. `else_lost` says what the
    database lacks if the server refuses the statement. Without it, a refusal is an error.
    """

    sql: str
    rows: Sequence[tuple[Any, ...]] = ()
    else_lost: str | None = None


def file_digest(path: Path) -> str:
    """Return a hash of a file's contents, 16 hex digits, cached until the file changes.

    Raises OSError if there is no such file.
    """
    state = path.stat()
    if not S_ISREG(state.st_mode):
        raise OSError("it is not a file")
    return _digest(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4096)
def _digest(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def names_in(sql: str, names: Iterable[str]) -> set[str]:
    """Return the names that occur anywhere in a statement, ignoring case."""
    words = {
        text.strip("'\"`").replace("``", "`").casefold()
        for kind, text in lexemes(sql)
        if kind in ("word", "quoted", "string")
    }
    return {name for name in names if name.casefold() in words}


def in_order(views: Mapping[str, str]) -> list[str]:
    """Return the names of views, each after the views that its SELECT reads."""
    read = {name: names_in(select, views) - {name} for name, select in views.items()}
    try:
        return list(TopologicalSorter(read).static_order())
    except CycleError:  # a column has the name of another view; the server refuses what it cannot make
        return list(views)


def view_steps(
    views: Mapping[str, str], tables: Iterable[str], functions: Iterable[str] = ()
) -> dict[str, Step | str]:
    """Return for each view, by name, the step that makes it, or a text that says why no server can.

    Args:
        views: CREATE VIEW statements in MySQL's dialect, by name. Those that sqlglot cannot parse are left to
            the server.
        tables: names of the tables that will exist.
        functions: names of functions that will not exist, as they are left out.
    """
    there, gone = {name.casefold() for name in tables} | {"dual"}, {name.casefold() for name in functions}
    steps: dict[str, Step | str] = {}
    for name in in_order(views):
        what = f"the view {name}"
        if (reason := _lost_because(views[name], there, gone)) is None:
            there.add(name.casefold())
            steps[name] = Step(views[name], else_lost=what)
        else:
            steps[name] = f"{what}, {reason}"
    return steps


def select_of(made: str) -> exp.Query | None:
    """Return the SELECT of a CREATE VIEW in MySQL's dialect; `None` if it cannot be parsed."""
    tree = only_statement(made.replace(" SQL SECURITY INVOKER", "", 1))
    select = tree.expression if isinstance(tree, exp.Create) else None
    return select if isinstance(select, exp.Query) else None


def _lost_because(made: str, there: set[str], gone: set[str]) -> str | None:
    if (select := select_of(made)) is None:
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


def _shown(cell: Any) -> str:
    return "NULL" if cell is None else repr(cell) if isinstance(cell, str | bytes) else str(cell)


def with_rows(
    made: str, name: str, rows: Sequence[Sequence[Any]] | None, cell: Callable[[Any], str] = _shown
) -> str:
    """Return a table for a prompt: its CREATE statement and, unless `rows` is `None`, rows in a comment."""
    if rows is None:
        return f"{made.strip()};"
    if not rows:
        return f"{made.strip()};\n/* {name} has no rows. */"
    shown = "\n".join(
        ", ".join(_cut(cell(each), EXAMPLE_CHARACTERS) for each in row) for row in rows[:EXAMPLE_ROWS]
    )
    return f"{made.strip()};\n/* The first rows of {name}:\n{shown} */"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


class Sample:
    """A sample of at most `size` of the added rows: uniformly random, or the first ones without `rng`."""

    def __init__(self, size: int, rng: random.Random | None = None) -> None:
        self.size = size
        self.seen = 0
        self.kept: list[tuple[int, Any]] = []
        self._rng = rng

    def add(self, row: Any) -> None:
        self.seen += 1
        if len(self.kept) < self.size:
            self.kept.append((self.seen, row))
        elif self._rng is not None and (place := self._rng.randrange(self.seen)) < self.size:
            self.kept[place] = (self.seen, row)

    def drop(self, unwanted: Callable[[Any], bool]) -> None:
        """Remove the rows for which `unwanted` is true."""
        kept = [each for each in self.kept if not unwanted(each[1])]
        self.seen -= len(self.kept) - len(kept)
        self.kept = kept

    def in_order(self) -> list[Any]:
        """Return the sampled rows in the order in which they were added."""
        return [row for _, row in sorted(self.kept, key=lambda each: each[0])]


DESCRIPTIONS_FOLDER = "database_description"
DESCRIPTION_CHARACTERS = 200
"""Most characters of the description of a column, or of its values."""

_COLUMN, _NAME, _MEANING, _VALUES = (
    *("original_column_name", "column_name"),
    *("column_description", "value_description"),
)


def descriptions(folder: Path) -> dict[str, dict[str, str]]:
    """Return a line for each column that the folder's CSV files describe, by table and by column.

    The names of tables and columns are in lower case.
    """
    return {path.stem.lower(): _lines(path) for path in visible(folder.glob("*.csv"))}


def comment_on(table: Table, told: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a comment on the described columns of a table, as a list that is empty if there are none.

    `told` comes from `descriptions`.
    """
    lines = told.get(table.name.lower(), {})
    shown = [line for column in table.columns if (line := lines.get(column.name.lower()))]
    return ["\n".join([f"/* What columns of {table.name} mean:", *shown]) + " */"] if shown else []


def _lines(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # some were written on Windows
        text = content.decode("cp1252", "replace")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        if _COLUMN not in (rows.fieldnames or ()):
            raise csv.Error(f"no column {_COLUMN}")
        lines = {(row[_COLUMN] or "").strip().lower(): _line(row) for row in rows}
    except csv.Error as error:
        logger.warning(
            "'%s' is not a CSV file as BIRD's descriptions are (%s), and is not read.", path, error
        )
        return {}
    return {column: line for column, line in lines.items() if line}


def _line(row: dict[str, str]) -> str:
    column, name, meaning, values = (
        " ".join((row.get(each) or "").split()) for each in (_COLUMN, _NAME, _MEANING, _VALUES)
    )
    said = list(dict.fromkeys(each for each in (name, meaning) if each.lower() not in ("", column.lower())))
    said += [f"values: {values}"] if values else []
    # it becomes part of a comment
    shown = "; ".join(_cut(each.replace("*/", "* /"), DESCRIPTION_CHARACTERS) for each in said)
    return f"{column}: {shown}" if column and said else ""
