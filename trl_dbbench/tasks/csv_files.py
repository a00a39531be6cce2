"""CSV files as programs write them: with commas, semicolons, tabs or bars, in UTF-8, UTF-16 or cp1252."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
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
        TaskError: if it cannot be read, a column has the name of another, or a row has not as many cells as
            the header.
    """
    text, notes, guessed = _text(path, options.encoding)
    begins = 0
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    delimiter = "\t" if usual == "\t" and "\t" in text.partition("\n")[0] else None
    if said := _EXCELS_LINE.match(text):
        delimiter, text, begins = said[1], text[said.end() :], 1
    delimiter = options.delimiter or delimiter or _delimiter(text)
    rows = _rows(path, text, delimiter, begins)
    if not rows:
        raise TaskError(f"{path} is empty; its first line must name the columns.")
    header = [name.strip() for name in rows[0][1]]
    if twice := [name for name, count in Counter(map(str.casefold, header)).items() if name and count > 1]:
        raise TaskError(
            f"{path}: the column '{twice[0]}' is there twice; MySQL ignores case in column names. Rename one."
        )
    for where, row in rows[1:]:
        if len(row) != len(header):
            raise TaskError(
                f"{path}, {where}: has {len(row)} cells, the header {len(header)} columns, divided by "
                f"{DELIMITERS.get(delimiter, repr(delimiter))}. Correct the line, or name the delimiter."
            )
    if guessed:
        notes += _doubtful_letters(path, header, [row for _, row in rows[1:]])
    if delimiter != usual:
        notes.append(f"{path}: cells are separated by {DELIMITERS.get(delimiter, repr(delimiter))}")
    return CsvFile(header, rows[1:], delimiter, notes)


def _doubtful_letters(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The columns whose letters are others in another encoding, each with its first such text."""
    for place, name in enumerate(header):
        texts = [name, *(row[place] for row in rows)]
        if (first := next((text for text in texts if not text.isascii()), None)) is not None:
            yield f"{path.stem}.{name}: read as cp1252, {first[:40]!r}"


def _text(path: Path, encoding: str | None) -> tuple[str, list[str], bool]:
    """The text, what there is to say of its encoding, and whether that is a guess."""
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
            raise TaskError(
                f"{path} cannot be read as {known}: {error}. Name its encoding, such as cp1252."
            ) from None
        told = [f"{path}: read as {known}"] if encoding is None and not known.startswith("utf-8") else []
        return text, told, False
    try:
        return read.decode("utf-8"), [], False
    except UnicodeDecodeError as error:
        try:
            text = read.decode("cp1252")
        except UnicodeDecodeError:
            raise TaskError(
                f"{path} cannot be read as UTF-8 text, nor as cp1252: {error}. Name its encoding, such as "
                "cp1250 or cp850."
            ) from None
    told = [f"{path}: it is not UTF-8, and was read as cp1252; name its encoding if letters are wrong"]
    return text, told, True


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
