"""CSV files as programs write them: with commas, semicolons, tabs or bars, in UTF-8, UTF-16 or cp1252."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from trl_dbbench.errors import ConfigError, TaskError

CSV_SUFFIXES = (".csv", ".tsv")

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What may stand between cells, and how a note calls it."""

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_EXCELS_LINE = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
"""The first line by which Excel is told the delimiter."""


@dataclass(frozen=True)
class CsvOptions:
    """How CSV files are read where that is not to be told from the file.

    Args:
        delimiter: one character; `tab` is another name of that.
        encoding: as Python names it.
        types: the type of a column by its name, or by `table.column`.
    """

    delimiter: str | None = None
    encoding: str | None = None
    types: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        delimiter = {"tab": "\t", "\\t": "\t"}.get(self.delimiter or "", self.delimiter)
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise ConfigError(
                f"the delimiter is {self.delimiter!r}; it must be one character, such as ';', or tab."
            )
        object.__setattr__(self, "delimiter", delimiter)
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise ConfigError(
                    f"there is no encoding {self.encoding!r}; allowed are Python's, such as utf-8 and cp1252."
                ) from None


@dataclass(frozen=True)
class CsvFile:
    """A header, the rows with the lines they end on, and what was found out to read them."""

    header: list[str]
    rows: list[tuple[str, list[str]]]
    delimiter: str
    notes: list[str]


FROM_FILE = CsvOptions()
"""All is told from the file."""


def read_csv(path: Path, options: CsvOptions = FROM_FILE) -> CsvFile:
    """Reads a CSV file. Empty lines do not count.

    Raises:
        TaskError: if it cannot be read, a column has no name or that of another, or a row has not as many
            cells as the header.
    """
    text, notes = _text(path, options.encoding)
    begins = 0
    delimiter = "\t" if path.suffix.lower() == ".tsv" else None
    if said := _EXCELS_LINE.match(text):
        delimiter, text, begins = said[1], text[said.end() :], 1
    delimiter = options.delimiter or delimiter or _delimiter(text)
    rows = _rows(path, text, delimiter, begins)
    if not rows:
        raise TaskError(f"{path} is empty; its first line must name the columns.")
    if delimiter != ("\t" if path.suffix.lower() == ".tsv" else ","):
        notes.append(f"{path}: cells are separated by {DELIMITERS.get(delimiter, repr(delimiter))}")
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
    return CsvFile(header, rows[1:], delimiter, notes)


def _text(path: Path, encoding: str | None) -> tuple[str, list[str]]:
    try:
        read = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error}") from None
    bom = next((name for mark, name in _BOMS if read.startswith(mark)), None)
    known = encoding or bom or _without_mark(read)
    if known is not None:
        try:
            text = read.decode(known).removeprefix("\ufeff")
        except UnicodeError as error:
            raise TaskError(f"{path} cannot be read as {known}: {error}. Name its encoding.") from None
        told = [f"{path}: read as {known}"] if encoding is None and not known.startswith("utf-8") else []
        return text, told
    try:
        return read.decode("utf-8"), []
    except UnicodeDecodeError as error:
        try:
            text = read.decode("cp1252")
        except UnicodeDecodeError:
            raise TaskError(
                f"{path} cannot be read as UTF-8 text, nor as cp1252: {error}. Name its encoding."
            ) from None
    return text, [f"{path}: it is not UTF-8, and was read as cp1252; name its encoding if letters are wrong"]


def _without_mark(read: bytes) -> str | None:
    """UTF-16 without a mark shows by the zeros in every other byte of ASCII."""
    first = read[:200]
    if len(first) >= 4 and first.count(0) >= len(first) // 3:
        return "utf-16-le" if first[1::2].count(0) > first[::2].count(0) else "utf-16-be"
    return None


def _delimiter(text: str) -> str:
    """The delimiter by which each row has as many cells as the header; of several, that of most cells.

    A comma may stand in a name or be a decimal one, so it is the last choice.
    """
    best, found = (False, 1), ","
    for delimiter in DELIMITERS:
        try:
            widths = [
                len(row) for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row
            ]
        except csv.Error:
            continue
        if widths and widths[0] > 1 and (score := (len(set(widths)) == 1, widths[0])) >= best:
            best, found = score, delimiter
    return found


def _rows(path: Path, text: str, delimiter: str, begins: int) -> list[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    try:
        for row in reader:
            if row:
                rows.append((f"line {reader.line_num + begins}", row))
    except csv.Error as error:
        raise TaskError(f"{path}, line {reader.line_num + begins}: not CSV ({error})") from None
    return rows
