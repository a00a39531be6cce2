"""Group the files that together hold one table, as Hugging Face, Spark and Dask write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError

_NUMBERED = re.compile(r"(.+)-\d{5}-of-\d{5}")
"""Stem of a part in Hugging Face's datasets: `train-00000-of-00002`."""

_PART = re.compile(r"part(?:-\d{5}|\.\d+)(?:-.*)?")
"""Stem of a part by Spark (`part-00000-<uuid>-c000.snappy`) or Dask (`part.0`). The folder is the table."""


def table_name(path: Path) -> str:
    """Return the name of the table that a file holds, or holds a part of."""
    if numbered := _NUMBERED.fullmatch(path.stem):
        return numbered[1]
    if not _PART.fullmatch(path.stem):
        return path.stem
    folder = path.absolute().parent
    return folder.stem if folder.suffix.lower() == path.suffix.lower() else folder.name


def by_table(paths: Iterable[Path]) -> list[list[Path]]:
    """Return the files of each table. Parts of one table lie in one folder."""
    found: dict[Any, list[Path]] = {}
    for path in paths:
        name = table_name(path)
        same: Any = (path.absolute().parent, name, path.suffix.lower())
        if name == path.stem or path in found.get(same, ()):  # given twice, it is refused as a second table
            same = object()
        found.setdefault(same, []).append(path)
    # the sort is stable: `part.10` follows `part.9`
    return [sorted(parts, key=lambda path: len(path.name)) for parts in found.values()]


def check_same_columns(paths: Sequence[Path], columns: Sequence[Sequence[str]]) -> None:
    """Raise TaskError if the parts of a table do not have the same columns in the same order."""
    for path, names in zip(paths, columns, strict=True):
        if names != columns[0]:
            raise TaskError(
                f"'{path}' has the columns {', '.join(names)}, and '{paths[0]}' {', '.join(columns[0])}: "
                "parts of one table need the same columns. Write them again, CSV files each with a header, "
                "or rename one."
            )
