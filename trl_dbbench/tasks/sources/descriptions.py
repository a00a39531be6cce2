"""What the columns of a database mean, as BIRD (https://bird-bench.github.io) tells it: a CSV file for each
table, in a folder `database_description` beside the SQLite file."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping
from pathlib import Path

from trl_dbbench.tasks.table import Table

logger = logging.getLogger(__name__)

FOLDER = "database_description"
DESCRIPTION_CHARACTERS = 200
"""To which what is said of a column, or of its values, is cut."""

_COLUMN, _NAME, _MEANING, _VALUES = (
    *("original_column_name", "column_name"),
    *("column_description", "value_description"),
)


def descriptions(folder: Path) -> dict[str, dict[str, str]]:
    """A line on each column that is described: by the names of table and column, in small letters.

    Args:
        folder: of the CSV files. Where there is none, nothing is described.
    """
    return {path.stem.lower(): _lines(path) for path in sorted(folder.glob("*.csv"))}


def comment_on(table: Table, told: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A comment on the columns of a table that are described, or nothing.

    Args:
        told: what `descriptions` gives.
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
    if _COLUMN not in (rows.fieldnames or ()):
        logger.warning("'%s' has no column %s, as BIRD's descriptions have, and is not read.", path, _COLUMN)
        return {}
    lines = {(row[_COLUMN] or "").strip().lower(): _line(row) for row in rows}
    return {column: line for column, line in lines.items() if line}


def _line(row: dict[str, str]) -> str:
    column, name, meaning, values = (
        " ".join((row.get(each) or "").split()) for each in (_COLUMN, _NAME, _MEANING, _VALUES)
    )
    said = list(dict.fromkeys(each for each in (name, meaning) if each.lower() not in ("", column.lower())))
    said += [f"values: {values}"] if values else []
    return f"{column}: {'; '.join(map(_cut, said))}" if column and said else ""


def _cut(text: str) -> str:
    text = text.replace("*/", "* /")  # it stands in a comment
    return text if len(text) <= DESCRIPTION_CHARACTERS else text[:DESCRIPTION_CHARACTERS] + "..."
