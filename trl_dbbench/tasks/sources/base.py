"""Parts that all kinds of shared databases need: steps of loading, digests, views, samples, descriptions."""

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
"""Databases that every server has."""

EXAMPLE_ROWS = 3
EXAMPLE_CHARACTERS = 60
"""Rows, and characters of a cell, that a prompt shows of a table."""


@dataclass(frozen=True, slots=True)
class Step:
    """A statement of MySQL's that helps to make the database on a server.

    It is executed for each of the `rows`, with a cell in each place `%s`. `else_lost` is what the database
    lacks if the server refuses the statement; without it, the database cannot be made then.
    """

    sql: str
    rows: Sequence[tuple[Any, ...]] = ()
    else_lost: str | None = None


def file_digest(path: Path) -> str:
    """16 hex digits for the contents of a file, which is read again only if changed; OSError without one."""
    state = path.stat()
    if not S_ISREG(state.st_mode):
        raise OSError("it is not a file")
    return _digest(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4096)
def _digest(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def names_in(sql: str, names: Iterable[str]) -> set[str]:
    """Return the names that occur in a statement, whatever they mean there; case does not count."""
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


def view_steps(
    views: Mapping[str, str], tables: Iterable[str], functions: Iterable[str] = ()
) -> dict[str, Step | str]:
    """Return by its name the step that makes each view, or the reason why no server can make it.

    Args:
        views: CREATE VIEW in MySQL's dialect, by name. A server judges those that cannot be parsed here.
        tables, functions: names of tables that there will be, and of functions that there will not be.
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
    """The SELECT of a CREATE VIEW in MySQL's dialect; `None` if it cannot be parsed."""
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
    """A table as a prompt shows it: how it was made, and rows in a comment unless they are `None`."""
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
    """At most `size` of the rows that are added: each as likely as the others, or the first without `rng`."""

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
        """Forget the rows that are not wanted any more."""
        kept = [each for each in self.kept if not unwanted(each[1])]
        self.seen -= len(self.kept) - len(kept)
        self.kept = kept

    def in_order(self) -> list[Any]:
        """The rows that were kept, in the order in which they were seen."""
        return [row for _, row in sorted(self.kept, key=lambda each: each[0])]


DESCRIPTIONS_FOLDER = "database_description"
DESCRIPTION_CHARACTERS = 200
"""Characters of what is said of a column, or of its values."""

_COLUMN, _NAME, _MEANING, _VALUES = (
    *("original_column_name", "column_name"),
    *("column_description", "value_description"),
)


def descriptions(folder: Path) -> dict[str, dict[str, str]]:
    """A line on each column that the folder's CSV files describe, by the names of table and column in small
    letters."""
    return {path.stem.lower(): _lines(path) for path in visible(folder.glob("*.csv"))}


def comment_on(table: Table, told: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A comment on the columns of a table that are described, or nothing; `told` is of `descriptions`."""
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
    # it stands in a comment
    shown = "; ".join(_cut(each.replace("*/", "* /"), DESCRIPTION_CHARACTERS) for each in said)
    return f"{column}: {shown}" if column and said else ""
