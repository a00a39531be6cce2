"""Read and write the entries of task files. What the entries mean is up to the task formats.

An entry is a line of `.jsonl`, an item of a `.json` object or list, or a row of `.parquet`, `.csv` or `.tsv`.
"""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.csv_tables import BOMS, CSV_SUFFIXES, FROM_FILE, CsvOptions, read_csv, remedy_for
from trl_dbbench.tasks.fields import json_object
from trl_dbbench.utils.files import visible, write_atomically

if TYPE_CHECKING:
    import pyarrow

WRITABLE = (".jsonl", ".json", ".parquet")
"""Suffixes of the files that `write_entries` can write."""

logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """The fields of one entry.

    `place` locates it in error messages: `"line 3"`. If `packed`, lists and objects may be texts in JSON's or
    Python's notation. In a folder, `file` is the path of its file there, with `-` for `/`.
    """

    place: str
    fields: dict[str, Any]
    packed: bool = False
    file: str = ""

    def unpacked(self, nested: Collection[str]) -> dict[str, Any]:
        """Return the fields, with texts in `nested` fields parsed as lists or objects where possible."""
        if not self.packed:
            return self.fields
        return {key: _unpack(value, key, nested) for key, value in self.fields.items()}


def read_entries(path: Path, csv: CsvOptions = FROM_FILE) -> Iterable[Entry]:
    """Read the entries of a file by its suffix; an unknown suffix is read as JSONL."""
    if path.suffix.lower() == ".parquet":
        return _parquet_entries(path)
    if path.suffix.lower() == ".json":
        return _json_entries(path)
    if path.suffix.lower() in CSV_SUFFIXES:
        file = read_csv(path, csv)
        for note in file.notes:
            logger.warning(note)
        if not file.lines:
            raise TaskError(f"{path} holds no questions, only a header.")
        return [
            Entry(f"line {line}", dict(zip(file.header, row, strict=True)))
            for line, row in zip(file.lines, zip(*file.columns, strict=True), strict=True)
        ]
    if remedy := remedy_for(path):
        raise TaskError(f"'{path}' cannot be read as it is. {remedy}")
    return _jsonl_entries(path)


def read_folder(folder: Path, split: str | None) -> Iterator[Entry]:
    """Yield the entries of a folder's parquet files; with `split`, of files or folders named after it."""
    files = visible(folder.rglob("*.parquet"))
    if split is not None:
        # train-00000-of-00001.parquet, train.parquet and train/0000.parquet, but not training.parquet
        named = re.compile(rf"{re.escape(split)}(?![A-Za-z0-9])")
        files = [f for f in files if any(map(named.match, f.relative_to(folder).parts))]
    if not files:
        wanted = "*.parquet" if split is None else f"{split}*.parquet"
        raise TaskError(f"the folder {folder} has no {wanted}.")
    for file in files:
        path = file.relative_to(folder)
        for entry in _parquet_entries(file):
            yield entry._replace(place=f"{path} {entry.place}", file="-".join(path.parts))


def write_entries(
    path: Path, entries: Sequence[dict[str, Any]], schema: pyarrow.Schema | None = None
) -> None:
    """Write entries to a file in the layout of its suffix. An existing file is replaced atomically.

    Args:
        path: with a suffix in `WRITABLE`. Raises ConfigError if it cannot be written.
        schema: types of a parquet file's columns. Default: inferred from the entries.
    """
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet

        # pyarrow takes the columns from the first row
        named = dict.fromkeys(key for entry in entries for key in entry)
        table = pa.Table.from_pylist([{**named, **entry} for entry in entries], schema=schema)
        with write_atomically(path, "wb") as file:
            pyarrow.parquet.write_table(table, file)
        return
    with write_atomically(path) as file:
        if path.suffix == ".json":
            whole: Any = list(entries)
            if len({str(entry.get("id", "")) for entry in entries} - {""}) == len(entries):
                whole = {entry["id"]: {k: v for k, v in entry.items() if k != "id"} for entry in entries}
            file.write(json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
        else:
            file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def _json_entries(path: Path) -> list[Entry]:
    text = "".join(_lines(path))
    pairs: list[tuple[str, Any]] = []

    def read_object(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal pairs
        pairs = found  # the outermost object is read last
        return dict(found)

    try:
        whole = json.loads(text, object_pairs_hook=read_object)
    except (ValueError, RecursionError) as error:
        raise TaskError(
            f"{path} is not JSON: {error}. A file of one task a line must be named .jsonl."
        ) from None
    if isinstance(whole, dict) and len(whole) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise TaskError(f"{path} has the key '{twice}' twice; keys are ids of tasks, which must differ.")
    if isinstance(whole, dict) and all(isinstance(entry, dict) for entry in whole.values()):
        if any(whole.values()) and all(
            [*entry] == [str(row) for row in range(len(entry))] for entry in whole.values()
        ):
            raise TaskError(
                f"{path} has columns, {', '.join(whole)}, as pandas' to_json() writes them, and must have "
                "entries. Write it with to_json(FILE, orient='records')."
            )
        return [Entry(f"entry '{key}'", {"id": key, **fields}) for key, fields in whole.items()]
    if isinstance(whole, list) and all(isinstance(entry, dict) for entry in whole):
        return [Entry(f"entry {number}", fields) for number, fields in enumerate(whole, 1)]
    raise TaskError(f"{path} must hold an object {{key: entry}} or a list of tasks.")


def _jsonl_entries(path: Path) -> Iterator[Entry]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                yield Entry(f"line {number}", json_object(line.removesuffix("\n")))
            except TaskError as error:
                whole = line.lstrip().startswith("[") or line.strip() == "{"
                remedy = ". A list, or an object over several lines, must be in a .json file" if whole else ""
                raise TaskError(f"{path}, line {number}: {error}{remedy}") from None


def _lines(path: Path) -> Iterator[str]:
    try:
        # opened once, as it may be a pipe
        with path.open("rb") as file:
            first = file.peek(4)
            encoding = next((name for mark, name in BOMS if first.startswith(mark)), "utf-8-sig")
            # newline: no other character ends a line here
            yield from io.TextIOWrapper(file, encoding, newline="\n")
    except (OSError, UnicodeError) as error:
        raise TaskError(f"{path} cannot be read as UTF-8 text: {error}") from None


def _parquet_entries(path: Path) -> Iterator[Entry]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise TaskError(f"{path} is not a readable parquet file: {error}") from None
    for number, row in enumerate(rows, 1):
        yield Entry(f"row {number}", row, packed=True)


def _unpack(value: Any, key: str, nested: Collection[str]) -> Any:
    """Parse nested fields that an export wrote as texts, in JSON's or Python's notation."""
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
