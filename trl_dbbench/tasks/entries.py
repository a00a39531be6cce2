"""The files that tasks come in, whatever format they have: entries are read from them and written to them.

An entry is a dictionary: a line of `.jsonl`, an entry of a `.json` object or list, a row of `.parquet`,
`.csv` or `.tsv`. Each is read with the place where it stands, which errors name.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_dbbench.errors import TaskError
from trl_dbbench.files import write_atomically
from trl_dbbench.tasks.fields import json_object

if TYPE_CHECKING:
    import pyarrow

Entries = Iterable[tuple[str, dict[str, Any]]]
"""Each with its place, such as `"line 3"`."""

WRITABLE = (".jsonl", ".json", ".parquet")
"""Endings of the files that `write_entries` can write."""

CSV_SUFFIXES = (".csv", ".tsv")


def read_entries(path: Path, nested: Collection[str]) -> Entries:
    """The entries of a file; its name says how they are laid out, and other names are read as JSONL.

    Args:
        nested: fields of parquet that hold more than a value, and may be text that stands for it.

    Raises:
        TaskError: if it cannot be read.
    """
    if path.suffix == ".parquet":
        return _parquet_entries(path, nested)
    if path.suffix == ".json":
        return _json_entries(path)
    if path.suffix in CSV_SUFFIXES:
        header, rows = csv_rows(path)
        if not rows:
            raise TaskError(f"{path} holds no questions, only a header.")
        return [(where, dict(zip(header, row, strict=True))) for where, row in rows]
    return _jsonl_entries(path)


def read_folder(folder: Path, split: str | None, nested: Collection[str]) -> Entries:
    """The entries of a folder's parquet files, or of those that are named after the split.

    Raises:
        TaskError: if there are none, or one cannot be read.
    """
    files = sorted(folder.rglob("*.parquet"))
    if split is not None:
        # train-00000-of-00001.parquet, train.parquet and train/0000.parquet, but not training.parquet
        named = re.compile(rf"{re.escape(split)}(?![A-Za-z0-9])")
        files = [f for f in files if any(map(named.match, f.relative_to(folder).parts))]
    if not files:
        wanted = "*.parquet" if split is None else f"{split}*.parquet"
        raise TaskError(f"the folder {folder} has no {wanted}.")
    for file in files:
        for where, entry in _parquet_entries(file, nested):
            yield f"{file.name} {where}", entry


def write_entries(
    path: Path, entries: Sequence[dict[str, Any]], schema: pyarrow.Schema | None = None
) -> None:
    """Writes entries in the layout that the file's name says; an older file there is replaced in one step.

    Args:
        path: ends in one of `WRITABLE`.
        schema: the types of a parquet file's columns; told from the entries if left out.

    Raises:
        ConfigError: if it cannot be written.
    """
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet

        with write_atomically(path, "wb") as file:
            pyarrow.parquet.write_table(pa.Table.from_pylist(list(entries), schema=schema), file)
        return
    with write_atomically(path) as file:
        if path.suffix == ".json":
            whole: Any = list(entries)
            if all("id" in entry for entry in entries):
                whole = {entry["id"]: {k: v for k, v in entry.items() if k != "id"} for entry in entries}
            file.write(json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
        else:
            file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


# --- JSON -------------------------------------------------------------------------------------------


def _json_entries(path: Path) -> Entries:
    text = "".join(_lines(path))
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(
            f"{path} is not JSON: {error}. A file of one task a line must be named .jsonl."
        ) from None
    if isinstance(whole, dict) and all(isinstance(entry, dict) for entry in whole.values()):
        return [(f"entry '{key}'", {"id": key, **entry}) for key, entry in whole.items()]
    if isinstance(whole, list) and all(isinstance(entry, dict) for entry in whole):
        return [(f"entry {number}", entry) for number, entry in enumerate(whole, 1)]
    raise TaskError(f"{path} must hold an object {{key: entry}} or a list of tasks.")


def _jsonl_entries(path: Path) -> Entries:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                yield f"line {number}", json_object(line.removesuffix("\n"))
            except TaskError as error:
                raise TaskError(f"{path}, line {number}: {error}") from None


def _lines(path: Path) -> Iterator[str]:
    try:
        # utf-8-sig: some editors put a byte order mark in front; newline: no other sign ends a line here
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read as UTF-8 text: {error}") from None


# --- parquet ----------------------------------------------------------------------------------------


def _parquet_entries(path: Path, nested: Collection[str]) -> Entries:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise TaskError(f"{path} is not a readable parquet file: {error}") from None
    for number, row in enumerate(rows, 1):
        yield f"row {number}", {key: _unpack(value, key, nested) for key, value in row.items()}


def _unpack(value: Any, key: str, nested: Collection[str]) -> Any:
    """A nested field that an export wrote as text, JSON or Python's; other exports have structs."""
    if isinstance(value, dict):
        return {name: _unpack(inner, name, nested) for name, inner in value.items()}
    if not isinstance(value, str) or key not in nested:
        return value
    if value[:1] in ("{", "["):
        for read in (json.loads, ast.literal_eval):
            try:
                return _unpack(read(value), key, nested)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return value


# --- CSV --------------------------------------------------------------------------------------------


def csv_rows(path: Path) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The header of a CSV file, and its rows with the lines they end on. Empty lines do not count.

    Raises:
        TaskError: if it cannot be read, a column has no name or that of another, or a row has not as many
            cells as the header.
    """
    reader = csv.reader(
        io.StringIO("".join(_lines(path)), newline=""),
        delimiter="\t" if path.suffix == ".tsv" else ",",
        strict=True,
    )
    rows = []
    try:
        for row in reader:
            if row:
                rows.append((f"line {reader.line_num}", row))
    except csv.Error as error:
        raise TaskError(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    if not rows:
        raise TaskError(f"{path} is empty; its first line must name the columns.")
    header = [name.strip() for name in rows[0][1]]
    if "" in header:
        raise TaskError(f"{path}: column {header.index('') + 1} has no name.")
    if twice := [name for name, count in Counter(map(str.casefold, header)).items() if count > 1]:
        raise TaskError(
            f"{path}: the column '{twice[0]}' is there twice; MySQL ignores case in column names."
        )
    for where, row in rows[1:]:
        if len(row) != len(header):
            raise TaskError(f"{path}, {where}: has {len(row)} cells, the header {len(header)} columns.")
    return header, rows[1:]
