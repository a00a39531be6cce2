"""Group the files that together hold one table, as Hugging Face, Spark and Dask write them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
"""Stem of a part in Hugging Face's datasets: `train-00000-of-00002`."""

_PART = re.compile(r"part[-.]\d+(?:[-.].*)?")
"""Stem of a part by Spark (`part-00000-<uuid>-c000.snappy`), Dask (`part.0`) or Arrow (`part-0`).

The folder is the table.
"""


def table_name(path: Path) -> str:
    """Return the name of the table that a file holds, or holds a part of."""
    if numbered := _NUMBERED.fullmatch(path.stem):
        return numbered[1]
    if not _PART.fullmatch(path.stem):
        return path.stem
    folder = _normal(path).parent
    return folder.stem if folder.suffix.lower() == path.suffix.lower() else folder.name


def by_table(paths: Iterable[Path]) -> list[list[Path]]:
    """Return the files of each table. Parts of one table lie in one folder.

    Raises TaskError if a file is given twice, or if a numbered part is missing.
    """
    found: dict[Any, dict[Path, Path]] = {}
    for path in paths:
        file, numbered = _normal(path), _NUMBERED.fullmatch(path.stem)
        same: Any = (file.parent, table_name(path), path.suffix.lower(), numbered and numbered[3])
        if not numbered and not _PART.fullmatch(path.stem):
            same = file
        if file in found.setdefault(same, {}):
            raise TaskError(f"the file '{path}' is given twice; leave one out.")
        found[same][file] = path
    for parts in found.values():
        _check_none_missing([*parts.values()])
    # the sort is stable: `part.10` follows `part.9`
    return [sorted(parts.values(), key=lambda path: len(path.name)) for parts in found.values()]


def _normal(path: Path) -> Path:
    """Return the absolute path without `..`. Links are kept, as names in Hugging Face's cache are links."""
    return Path(os.path.normpath(path.absolute()))


def _check_none_missing(parts: Sequence[Path]) -> None:
    """Raise TaskError if parts such as `train-00000-of-00002` are fewer than their names say."""
    numbered = list(filter(None, (_NUMBERED.fullmatch(path.stem) for path in parts)))
    if not numbered:
        return
    name, _, total = numbered[0].groups()
    there = {int(each[2]) for each in numbered}
    first = int(int(total) in there)  # some programs count from 1
    missing = sorted({*range(first, first + int(total))} - there)
    if missing:
        others = f" and {len(missing) - 1} more are" if missing[1:] else " is"
        raise TaskError(
            f"'{parts[0]}' is one of {int(total)} parts of the table '{name}', and "
            f"{name}-{missing[0]:05}-of-{total}{parts[0].suffix}{others} missing. Give all of them, in one "
            f"folder, or rename the file to have only its rows."
        )


def check_same_columns(paths: Sequence[Path], columns: Sequence[Sequence[str]]) -> None:
    """Raise TaskError if the parts of a table do not have the same columns in the same order."""
    for path, names in zip(paths, columns, strict=True):
        if names != columns[0]:
            raise TaskError(
                f"'{path}' has the columns {', '.join(names)}, and '{paths[0]}' {', '.join(columns[0])}: "
                "parts of one table need the same columns. Write them again, CSV files each with a header, "
                "or rename one."
            )
