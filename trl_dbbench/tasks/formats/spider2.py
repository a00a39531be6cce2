"""The local part of Spider2-lite: questions on SQLite files, answered with SQL whose rows are graded.

https://github.com/xlang-ai/Spider2, folder `spider2-lite`. JSONL; docs/tasks.md describes the fields, and
where databases and gold answers are. Ids of the local part begin with `local`. The other entries, for
BigQuery and Snowflake, are left out.

Columns of a gold result that do not count are removed. Their number is kept, since an answer may have them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.grading.scorers import Result, read_csv
from trl_dbbench.tasks.fields import json_lines, optional, required
from trl_dbbench.tasks.formats.base import BesideFiles, Unsupported, find_beside
from trl_dbbench.tasks.formats.text2sql import find_database, sql_task
from trl_dbbench.tasks.model import Gold, Task
from trl_dbbench.tasks.source import Source
from trl_dbbench.tasks.table import Cell
from trl_dbbench.utils.files import visible

FOLDERS = ("resource/databases/spider2-localdb", "spider2-localdb", ".")
DOCUMENTS = "resource/documents"
GOLD = "evaluation_suite/gold"
MARKS = "spider2lite_eval.jsonl"
REPOSITORY = "the folder spider2-lite of the benchmark"


class Spider2Format(BesideFiles):
    name = "spider2"

    def matches(self, entry: Mapping[str, Any]) -> bool:
        return {"instance_id", "db", "question"} <= entry.keys()

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        id = required(entry, "instance_id", str)
        if not id.startswith("local"):
            raise Unsupported(id, "on BigQuery or Snowflake; only the local part is read, which is on SQLite")
        question = required(entry, "question", str)
        database = find_database(self.path, required(entry, "db", str), FOLDERS, ("{0}.sqlite",))
        results, ordered = _gold(find_beside(self.path, GOLD, lies_in=REPOSITORY), id)
        return sql_task(
            id=id,
            question=question,
            gold=Gold(results=results),
            source=Source.of(database),
            grader="spider2_ordered" if ordered else "spider2",
            knowledge=_knowledge(self.path, optional(entry, "external_knowledge", str)),
        )


def _knowledge(path: Path | None, name: str | None) -> str | None:
    if not name:
        return None
    if Path(name).name != name:
        raise TaskError(f"'external_knowledge' must be a name that is not a path, is {name!r}")
    file = find_beside(path, f"{DOCUMENTS}/{name.removesuffix('.md')}.md", lies_in=REPOSITORY)
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"'external_knowledge' is in {file}, which cannot be read: {error}") from None


def _gold(folder: Path, id: str) -> tuple[tuple[Result, ...], bool]:
    """Return the gold results, one of which an answer must match, and whether the order of rows counts."""
    marks, name = _marks(folder / MARKS), re.compile(rf"{re.escape(id)}(_[a-z])?\.csv")
    files = [each for each in _results(folder / "exec_result") if name.fullmatch(each.name)]
    if id not in marks or not files:
        raise Unsupported(id, f"without a gold result in {folder}, or not in its {MARKS}")
    given = optional(marks[id], "condition_cols", list) or []
    try:
        found = [
            _counting(_read(file), places)
            for file, places in zip(files, _places(given, len(files)), strict=False)
        ]
    except (IndexError, TypeError):
        raise Unsupported(
            id, f"whose 'condition_cols' in {MARKS} are no columns of its gold result"
        ) from None
    return tuple(found), not optional(marks[id], "ignore_order", bool)


def _places(given: Sequence[Any], golds: int) -> list[Sequence[int]]:
    """Return for each gold result the indices of the columns that count; an empty list means all.

    `condition_cols` is a list of indices for all gold results, or a list of such lists. Gold results beyond
    the end of that list are not used.
    """
    if not [each for each in given if each not in (None, [])]:
        return [()] * golds
    if not any(isinstance(each, list) for each in given):
        return [given] * golds
    return [each or () for each in given]


def _counting(result: Result, places: Sequence[int]) -> Result:
    if not places:
        return result
    rows = tuple(tuple(row[place] for place in places) for row in result.rows)
    columns = tuple(result.columns[place] for place in places)
    return Result(columns, rows, len(result.columns) if len(result.columns) > len(columns) else 0)


def _read(file: Path) -> Result:
    try:
        read = read_csv(file)
    except (OSError, ValueError) as error:
        raise TaskError(f"the gold result {file} cannot be read as CSV: {error}") from None
    return Result(tuple(read.columns), tuple(tuple(map(_cell, row)) for row in read.rows))


def _cell(cell: Any) -> Cell:
    """Convert a cell to one that a task can hold. Written as CSV again, it is the same."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return None if cell != cell else str(cell)
    return cell if isinstance(cell, str | int | float) else str(cell)


def _marks(file: Path) -> dict[str, dict[str, Any]]:
    try:
        return _marks_in(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, TaskError) as error:
        raise TaskError(f"{file}, which says how gold results count, cannot be read: {error}") from None


@lru_cache(maxsize=16)
def _marks_in(file: Path, changed: int) -> dict[str, dict[str, Any]]:
    return {required(each, "instance_id", str): each for each in json_lines(file)}


def _results(folder: Path) -> list[Path]:
    """Return the files sorted by name, so that `<id>.csv` comes before `<id>_a.csv`."""
    try:
        return visible(folder.iterdir())
    except OSError as error:
        raise TaskError(f"the gold results cannot be read: {error}") from None
