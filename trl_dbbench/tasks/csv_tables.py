"""Read tables from CSV files. Delimiter, encoding and column types are inferred unless they are given."""

from __future__ import annotations

import codecs
import csv
import datetime
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks.column_types import CSV_TYPES, NO_CELL, ColumnType, column_type, read_date, text_type
from trl_dbbench.tasks.parts import by_table, check_same_columns, table_name
from trl_dbbench.tasks.table import Cell, Column, Table, check_differ
from trl_dbbench.utils.files import nearest_path
from trl_dbbench.utils.lookup import unknown

CSV_SUFFIXES = (".csv", ".tsv")
_WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
_PACKED = (".zip", ".gz", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz")

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""Delimiters that are recognised, with their names in notes."""

BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
csv.field_size_limit(2**31 - 1)  # Python's own limit is 131,072 characters in a cell

_EXCELS_LINE = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
"""First line `sep=;`, which tells Excel the delimiter."""

_EXCELS_TEXT = re.compile(r'="((?:[^"]|"")*)"')
"""Formula such as `="007"`, which keeps Excel from reading a text as a number."""


@dataclass(frozen=True)
class CsvOptions:
    """Settings that replace what would be inferred. `types` has keys such as `column` or `table.column`."""

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
    """The named columns of a CSV file, the number of each row's last line, and how the file was read."""

    header: list[str]
    columns: list[tuple[str, ...]]
    lines: list[int]
    delimiter: str
    notes: list[str]
    marked: frozenset[str] = frozenset()
    """Columns with cells such as `="007"`; they hold texts."""


FROM_FILE = CsvOptions()
"""Options that leave everything to inference."""


def read_csv(path: Path, options: CsvOptions = FROM_FILE) -> CsvFile:
    """Read a CSV file. Raises TaskError that names the line.

    Empty lines, columns without a name, and rows of several cells that are all empty are left out.
    """
    text, notes, guessed = _text(path, options.encoding)
    begins = 0
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    delimiter = "\t" if usual == "\t" and "\t" in text.partition("\n")[0] else None
    if said := _EXCELS_LINE.match(text):
        delimiter, text, begins = said[1], text[said.end() :], 1
    delimiter = options.delimiter or delimiter or _delimiter(text)
    odd = ""
    if delimiter == "\t" and (unpaired := _unpaired_quotes(text)):
        odd = f"the quotes of line {unpaired + begins} do not pair: all quotes are characters of the cells"
        notes.append(f"{path}: {odd}")
    numbered = _rows(path, text, delimiter, begins, quoted=not odd)
    _, first = next(numbered, (0, None))
    if first is None:
        raise TaskError(f"{path} is empty; its first line must name the columns.")
    header = [_without_formula(name.strip()) for name in first]
    named = list(filter(None, header))
    check_differ(named, str(path))
    rows, lines, empty = list[list[str]](), list[int](), 0
    for line, row in _with_last_cells(numbered, len(header)):
        if len(header) == 1 or any(row):
            rows.append(row)
            lines.append(line)
        else:
            empty += 1
    unnamed = [place for place, name in enumerate(header) if not name]
    if not named:
        raise TaskError(f"{path}: none of its columns has a name; its first line must name them.")
    lost = [place for place in unnamed if any(len(row) > place and row[place] for row in rows)]
    if len(named) == 1 and len(lost) > 1:
        raise TaskError(
            f"{path}: the first line names one column, {''.join(header)!r}, and {len(lost)} others have "
            "cells. If it is a title, delete the lines above the header."
        )
    if data := next((name for name in named if _PLAIN.fullmatch(name) and not _YEAR.fullmatch(name)), None):
        notes.append(
            f"{path}: the first line names a column {data!r}; if it is a row, put a line of names above it"
        )
    if len(header) == 1 and re.search(r"[,;\t|^~]", header[0]):
        notes.append(f"{path}: it has one column, {header[0]!r}; name the delimiter if it should be several")
    if empty:
        notes.append(f"{path}: rows whose cells are all empty ({empty}) are left out")
    if all(len(row) == len(header) + 1 and not row[-1] for row in rows):  # each ends in a delimiter
        rows = [row[:-1] for row in rows]
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise TaskError(
                f"{path}, line {line}: has {len(row)} cells, the header {len(header)} columns, divided by "
                f"{DELIMITERS.get(delimiter, repr(delimiter))}. Correct the line, name the delimiter, or "
                f"delete the lines above the header.{odd and f' Beware that {odd}.'}"
            )
    columns = list(zip(*rows, strict=True)) or [()] * len(header)
    columns = [cells for name, cells in zip(header, columns, strict=True) if name]
    marked = set[str]()
    for place, cells in enumerate(columns if '="' in text else ()):
        if formula := next(filter(_EXCELS_TEXT.fullmatch, cells), None):
            columns[place] = tuple(map(_without_formula, cells))
            marked.add(named[place])
            notes.append(f"{table_name(path)}.{named[place]}: {formula} is read as a text, as by Excel")
    if guessed:
        notes += _doubtful_letters(path, named, columns)
    if delimiter != usual:
        notes.append(f"{path}: cells are separated by {DELIMITERS.get(delimiter, repr(delimiter))}")
    notes += [
        f"{path}: column {place + 1} has no name and is left out; name it to keep it" for place in unnamed
    ]
    return CsvFile(named, columns, lines, delimiter, notes, frozenset(marked))


def _without_formula(text: str) -> str:
    found = _EXCELS_TEXT.fullmatch(text)
    return found[1].replace('""', '"') if found else text


def _doubtful_letters(path: Path, header: Sequence[str], columns: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a note for each column with non-ASCII letters, which depend on the encoding that was guessed."""
    for name, texts in zip(header, columns, strict=True):
        if (first := next((text for text in (name, *texts) if not text.isascii()), None)) is not None:
            yield f"{table_name(path)}.{name}: read as cp1252, {first[:40]!r}"


def _text(path: Path, encoding: str | None) -> tuple[str, list[str], bool]:
    """Return the file's text, notes on its encoding, and whether the encoding is a guess."""
    try:
        read = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error}") from None
    bom = next((name for mark, name in BOMS if read.startswith(mark)), None)
    known = encoding or bom or _without_mark(read)
    names = [known] if known else ["UTF-8", "cp1252"]
    for name in names:
        try:
            text = read.decode(name).removeprefix("\ufeff")
            break
        except UnicodeError as error:
            problem = error
    else:
        raise TaskError(
            f"{path} cannot be read as {' text, nor as '.join(names)}: {problem}. Name its encoding, such as "
            "cp1250, cp850, shift_jis or gb18030."
        )
    if name != names[0]:
        told = f"{path}: it is not UTF-8, and was read as {name}; name its encoding if letters are wrong"
        return text, [told], True
    unusual = encoding is None and not name.lower().startswith("utf-8")
    return text, [f"{path}: read as {name}"] if unusual else [], False


def _without_mark(read: bytes) -> str | None:
    """Return the encoding of UTF-16 without a byte-order mark: in ASCII text every other byte is zero."""
    first = read[:200]
    if len(first) >= 4 and first.count(0) >= len(first) // 3:
        return "utf-16-le" if first[1::2].count(0) > first[::2].count(0) else "utf-16-be"
    return None


def _delimiter(text: str) -> str:
    """Return the delimiter that splits each row into as many cells as the header; of several, the one with
    most cells.

    On a tie the comma loses, since it may be part of a name or a decimal comma.
    """
    best, found = (False, 1), ","
    for delimiter in DELIMITERS:
        widths = (len(row) for row in _reader(text, delimiter) if row)
        try:
            columns = next(widths, 0)
            score = (columns > 1 and all(width == columns for width in widths), columns)
        except csv.Error:
            continue
        if columns > 1 and score >= best:
            best, found = score, delimiter
    return found


def _unpaired_quotes(text: str) -> int:
    """Return the first line in which quotes around cells do not pair, or 0.

    Many files with tabs have quotes only within texts.
    """
    line, reader = 0, _reader(text, "\t", strict=True)
    try:
        for _ in reader if '"' in text else ():
            line = reader.line_num
    except csv.Error:
        return line + 1
    return 0


def _rows(
    path: Path, text: str, delimiter: str, begins: int, quoted: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the number of its last line."""
    reader = _reader(text, delimiter, strict=True, quoted=quoted)
    try:
        yield from ((reader.line_num + begins, row) for row in reader if row)
    except csv.Error as error:
        remedy = r'. Within a cell a quote is doubled (""), not \"' if r"\"" in text else ""
        raise TaskError(f"{path}, line {reader.line_num + begins}: not CSV ({error}){remedy}.") from None


def _with_last_cells(rows: Iterator[tuple[int, list[str]]], width: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows, adding the last cells where Excel left them out: they are empty in sixteen rows."""
    yield from islice(rows, 15)  # sixteen with the header
    while block := list(islice(rows, 16)):
        widths = {len(row) for _, row in block}
        missing = width - max(widths) if len(block) > len(widths) == 1 else 0
        yield from ((line, row + [""] * missing) for line, row in block)


def _reader(text: str, delimiter: str, strict: bool = False, quoted: bool = True) -> Any:
    """Return a reader of rows. It skips blanks after delimiters if all have one, or if quotes follow them."""
    mark = re.escape(delimiter)
    blanks = delimiter in text and not delimiter.isspace() and not re.search(rf"{mark}(?![ \r\n])", text)
    if not blanks and not delimiter.isspace() and re.search(rf'{mark} +"(?!")', text):
        # otherwise a quoted cell ends in a delimiter and a blank
        cells = (cell for row in csv.reader(_lines(text), delimiter=delimiter) for cell in row)
        blanks = any(cell[:1] == " " and cell.lstrip(" ")[:1] == '"' for cell in cells)
    return csv.reader(
        _lines(text),
        delimiter=delimiter,
        strict=strict,
        skipinitialspace=blanks,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
    )


def _lines(text: str) -> Iterator[str]:
    """Yield lines with their ends. `io.StringIO` would copy the text, at four bytes a character."""
    return (line[0] for line in re.finditer(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+", text))


MAX_DIGITS = 15
"""Most digits of a DECIMAL, so that all databases compute exactly; longer numbers stay TEXT."""

LEAST_WHOLE_DIGITS = 8
"""Least digits before the point of an inferred DECIMAL, even if its values need fewer."""

NULLS = ("null", r"\n", "[null]", "(null)", "<null>")
"""Spellings of NULL by databases and their tools, in lower case."""

MISSING = frozenset(
    {"", "na", "n/a", "nan", "none", "nil", "--", "..", "k.a.", "<na>", *"-?.:\u2013", *NULLS}
)
"""Texts for a missing value, in lower case, in a column whose other texts are numbers or dates."""

_EXCELS_ERROR = re.compile(r"#\S+[!?]|#N/?\w", re.IGNORECASE)
"""Error value of Excel, such as #DIV/0!, #NAME? and #N/A; #¡DIV/0!, #NOME? and #NV in other languages."""

_INT = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_PLAIN = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)", re.ASCII)
_EXPONENT = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)[eE][+-]?\d+", re.ASCII)
_GROUPED = {mark: re.compile(rf"-?[1-9]\d{{0,2}}(?:[{mark}]\d{{3}})+", re.ASCII) for mark in ".,"}
_YEAR = re.compile(r"(?:19|20)\d\d", re.ASCII)
_UNGROUPED = re.compile(r"-?\d{1,3}", re.ASCII)
_MARKS = " \u00a0\u2009\u202f'\u2019"
"""Thousands separators other than the point and the comma."""

_WITH_COMMA, _WITH_POINT = (
    re.compile(
        rf"-?(?:[1-9]\d{{0,2}}(?P<mark>[{other}{_MARKS}])\d{{3}}(?:(?P=mark)\d{{3}})*|0|[1-9]\d*)(?:{sign}\d+)?",
        re.ASCII,
    )
    for sign, other in ((",", "."), (r"\.", ","))
)
_NEGATIVE_ZERO = re.compile(r"-(?:0+\.?0*|\.0+)", re.ASCII)
_DAY_AND_MONTH = re.compile(
    r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?: (\d{1,2}:\d\d(?::\d\d)?)(?: ?([AP])M)?)?",
    re.ASCII | re.IGNORECASE,
)
_YEAR_FIRST = re.compile(r"(\d{4})([/-])(\d{1,2})\2(\d{1,2})(?!\d)", re.ASCII)
_CURRENCY = r"(?:R?\$|[€£¥₹]|EUR|USD|GBP|CHF|kr|zł|Kč)"
_SIGN = re.compile(
    rf"(?<=^-){_CURRENCY}\s?|^\(?{_CURRENCY}\s?|^\((?=\S+\)$)|\s?(?:{_CURRENCY}|%)\)?$|(?<=\d)\)$|^\u2212"
)
"""Currency or percent sign before or after a number, or parentheses around a negative one."""

_NEARLY = (
    (_SIGN, "", "a number with a sign; kept as TEXT, leave the signs out of the file for numbers"),
    (
        re.compile(r"^[+-]?inf(?:inity)?$", re.IGNORECASE),
        "0",
        "no number on a server; kept as TEXT, leave such cells empty for numbers",
    ),
    (
        re.compile(
            r"^\d{1,2}([/-])\d{1,2}\1\d\d$|^\d{1,2}([ -]?)[a-z]{3}\2(?:\d\d|\d{4})$", re.ASCII | re.IGNORECASE
        ),
        "0",
        "perhaps a day; kept as TEXT, write year-month-day for a DATE",
    ),
)
"""Cells that make a column of numbers or dates TEXT: a pattern, a replacement with which all cells would be
numbers, and the note."""


def is_missing(text: str) -> bool:
    """Return whether a text among numbers or dates means a missing value."""
    text = text.strip()
    return text.casefold() in MISSING or _EXCELS_ERROR.fullmatch(text) is not None


@dataclass(frozen=True)
class Reading:
    """Reading of a column: its type, a function from text to cell that may raise ValueError, and a note."""

    type: str
    read: Callable[[str], Cell]
    note: str | None = None
    commas: bool = False
    """Its numbers have decimal commas."""


def _notes(*notes: str | None) -> str | None:
    return "; ".join(filter(None, notes)) or None


class Unfit(ValueError):
    """Error for a text that a type cannot hold unchanged; the message says why."""


def inferred(texts: Sequence[str], commas: bool = False) -> Reading:
    """Infer how to read a column with these texts. With `commas`, numbers may have decimal commas."""
    stripped = [text.strip() for text in texts]
    if not stripped:
        return Reading("TEXT", str)
    attempts = (_numbers, _with_commas if commas else None, _with_groups, _dates, _moments, _days_and_months)
    for attempt in attempts:
        if attempt is not None and (found := attempt(stripped)) is not None:
            return found
    return kept_as_text(texts, ",") or _nearly_numbers(stripped, commas) or Reading("TEXT", str)


def with_missing(texts: Sequence[str], commas: bool = False) -> Reading:
    """Infer like `inferred`, but read texts such as `NA` among numbers or dates as NULL."""
    found = inferred(texts, commas)
    missing = [text for text in texts if is_missing(text)] if found.type == "TEXT" else []
    if not missing:
        return found
    others = inferred([text for text in texts if not is_missing(text)], commas)
    if others.type == "TEXT":
        nulls = [text for text in missing if text.strip().casefold() in NULLS]
        kept = f"{_counted(nulls)} is kept as a text; leave such cells empty for NULL" if nulls else None
        return Reading("TEXT", str, _notes(found.note or others.note, kept))
    note = f"{_counted(missing)} is read as NULL"
    return Reading(others.type, _or_null(others.read), _notes(note, others.note), others.commas)


def _counted(texts: Sequence[str]) -> str:
    return f"{', '.join(sorted({repr(text.strip()) for text in texts}))} ({len(texts)} cells)"


def _or_null(read: Callable[[str], Cell]) -> Callable[[str], Cell]:
    return lambda text: None if is_missing(text) else read(text)


def point_for_comma(text: str) -> str:
    """Rewrite `1.234,50` as `1234.50`; raise ValueError for a text that is not such a number."""
    if not _WITH_COMMA.fullmatch(text):
        raise ValueError
    return re.sub(rf"[.{_MARKS}]", "", text).replace(",", ".")


def has_marks(text: str) -> bool:
    """Return whether a text is a number with a decimal comma, thousands separators, or a sign such as `%`."""
    bare = _SIGN.sub("", text)
    found = _WITH_COMMA.fullmatch(bare) or _WITH_POINT.fullmatch(bare)
    return found is not None and _PLAIN.fullmatch(text) is None


def _has_fractions(texts: Sequence[str], mark: str) -> bool:
    """Return whether one of the texts is a number in which this mark cannot be a thousands separator."""
    form = _WITH_COMMA if mark == "," else _WITH_POINT
    stripped = (text.strip() for text in texts if mark in text)
    return any(form.fullmatch(text) and not _GROUPED[mark].fullmatch(text) for text in stripped)


def kept_as_text(texts: Sequence[str], mark: str) -> Reading | None:
    """Return a reading as TEXT if all texts are like `1.234` or `567`: whole numbers or fractions."""
    grouped = re.compile(rf"-?[1-9]\d{{0,2}}[{mark}]\d{{3}}", re.ASCII)
    if not all(
        grouped.fullmatch(text.strip()) or _UNGROUPED.fullmatch(text.strip()) or is_missing(text)
        for text in texts
    ):
        return None
    first = next((text for text in texts if grouped.fullmatch(text.strip())), None)
    if first is None:
        return None
    return Reading("TEXT", str, f"{first!r} may be a whole number or a fraction; kept as TEXT")


def _nearly_numbers(texts: Sequence[str], commas: bool) -> Reading | None:
    """Return a reading as TEXT, with a note, for numbers with a sign such as `12.5%`, or beside `inf`."""
    for form, number, told in _NEARLY:
        first = next((text for text in texts if form.search(text)), None)
        if first is not None and inferred([form.sub(number, text) for text in texts], commas).type != "TEXT":
            return Reading("TEXT", str, f"{first!r} is {told}")
    return None


# --- numbers ---------------------------------------------------------------------------------------


def _numbers(texts: Sequence[str]) -> Reading | None:
    if any(map(_NEGATIVE_ZERO.fullmatch, texts)):
        found = _numbers([_without_sign(text) for text in texts])
        if found is None or found.type == "TEXT":
            return found
        note = _notes("negative zeros are read as 0", found.note)
        return Reading(found.type, lambda text: found.read(_without_sign(text.strip())), note)
    if all(map(_INT.fullmatch, texts)):
        largest = max(10**20 if len(text) > 20 else max(int(text), -int(text) - 1) for text in texts)
        if largest >= 2**63:
            return Reading("TEXT", str, "numbers of more than 64 bits are kept as TEXT")
        return Reading("INT" if largest < 2**31 else "BIGINT", lambda text: int(text.strip()))
    plain = all(map(_PLAIN.fullmatch, texts))
    exact = all(_is_exact(text) for text in texts)
    places = {len(text.partition(".")[2]) for text in texts}
    if plain and not (exact and (len(places) > 1 or places == {1})):
        return _decimals(texts, max(places), len(places) > 1)
    if exact:
        return Reading("DOUBLE", lambda text: float(text.strip()))
    if all(_PLAIN.fullmatch(text) or _EXPONENT.fullmatch(text) for text in texts):
        large = next((text for text in texts if math.isinf(float(text))), None)
        first = next(text for text in texts if _EXPONENT.fullmatch(text) or not _is_exact(text))
        told = f"{first!r} may be a number or a name; kept as TEXT, the type DOUBLE reads it"
        return Reading("TEXT", str, f"{large!r} is beyond a DOUBLE; kept as TEXT" if large else told)
    return None


def _without_sign(text: str) -> str:
    """Return a negative zero without its sign, and any other number unchanged."""
    return text.removeprefix("-") if _NEGATIVE_ZERO.fullmatch(text) else text


def _is_exact(text: str) -> bool:
    """Return whether a DOUBLE holds the number exactly as written: a whole number, or Python's `repr`."""
    if _INT.fullmatch(text):
        return text != "-0" and len(text) <= 17 and int(float(text)) == int(text)
    try:
        return repr(float(text)) == text and text[-1].isdigit()
    except ValueError:
        return False


def _decimals(texts: Sequence[str], places: int, mixed: bool) -> Reading:
    whole = max(len(text.lstrip("-").partition(".")[0].lstrip("0")) for text in texts)
    if whole + places > MAX_DIGITS:
        return Reading("TEXT", str, f"numbers of more than {MAX_DIGITS} digits are kept as TEXT")
    digits = max(whole + places, min(MAX_DIGITS, LEAST_WHOLE_DIGITS + places))
    note = f"its numbers all get {places} digits behind the point" if mixed else None
    return Reading(f"DECIMAL({digits},{places})", lambda text: f"{Decimal(text.strip()):f}", note)


def _with_commas(texts: Sequence[str]) -> Reading | None:
    if not any("," in text for text in texts) or not all(map(_WITH_COMMA.fullmatch, texts)):
        return None
    return _rewritten(texts, point_for_comma, ",", "decimal commas are read as points", commas=True)


def _with_groups(texts: Sequence[str]) -> Reading | None:
    """Return a reading of numbers such as `1'234.50`, `1,234.50` and `1 234`, if it is unambiguous."""
    for mark, grouped in _GROUPED.items():  # `1.234.567`: a fraction would have only one mark
        if all(grouped.fullmatch(text) or _UNGROUPED.fullmatch(text) for text in texts) and any(
            text.count(mark) > 1 for text in texts
        ):
            return _without_marks(texts, mark)
    found = [_WITH_POINT.fullmatch(text) for text in texts]
    marks = {match["mark"] for match in found if match} - {None}
    if None in found or len(marks) != 1:
        return None
    (mark,) = marks
    fractions, short = [text for text in texts if "." in text], any(map(_UNGROUPED.fullmatch, texts))
    sure = any("," in text for text in fractions) if mark == "," else fractions or short or mark in "'\u2019"
    return _without_marks(texts, mark) if sure else None


def _without_marks(texts: Sequence[str], mark: str) -> Reading | None:
    return _rewritten(
        texts, lambda text: text.replace(mark, ""), mark, "the marks between thousands are left out"
    )


def _rewritten(
    texts: Sequence[str], rewrite: Callable[[str], str], mark: str, told: str, commas: bool = False
) -> Reading | None:
    """Return a reading of texts that are numbers once rewritten; `mark` occurs in those that change."""
    found = _numbers([rewrite(text) for text in texts])
    if found is None or found.type == "TEXT":
        return None
    first = next(text for text in texts if mark in text)
    note = f"{told}: {first!r} is {rewrite(first)}"
    return Reading(
        found.type, lambda text: found.read(rewrite(text.strip())), _notes(note, found.note), commas
    )


# --- days and moments ------------------------------------------------------------------------------


def _dates(texts: Sequence[str]) -> Reading | None:
    return Reading("DATE", lambda text: read_date(text.strip())) if _are(read_date, texts) else None


def _moments(texts: Sequence[str]) -> Reading | None:
    found = timed("DATETIME", texts)
    if not all(":" in text for text in texts) or not _are(found.read, texts):
        return None
    return Reading(found.type, found.read, _as_mysql_writes(found.read, texts))


def _days_and_months(texts: Sequence[str]) -> Reading | None:
    """Return a reading of `31.12.2024`, `2024/12/31`, `2024-1-5`, and `12/31/2024` if the numbers show the
    month."""
    if all(map(_DATED.match, texts)):
        return None  # already year-month-day, which needs no reading of its own
    forms = {(" " in text, _YEAR_FIRST.match(text) is not None) for text in texts}
    orders = [months for months in (False, True) if _are(partial(day_of, month_first=months), texts)]
    if not orders or len(forms) > 1:
        return None
    ((timed, year_first),) = forms
    if len(orders) > 1 and not all("." in text for text in texts):
        told = f"whether days or months come first cannot be told from {texts[0]!r} and the like"
        return Reading("TEXT", str, f"{told}; kept as TEXT, write year-month-day for a DATE")
    read = partial(day_of, month_first=orders[0])
    note = "months stand before days" if orders[0] or year_first else "days stand before months"
    first = next(text for text in texts if read(text) != text)
    return Reading("DATETIME" if timed else "DATE", read, f"{note}: {first!r} is {read(first)}")


def day_of(text: str, *, month_first: bool) -> str:
    """Rewrite `31.12.2024 10:00` and the like as MySQL does; raise ValueError for another text."""
    match = _DAY_AND_MONTH.fullmatch(_YEAR_FIRST.sub(r"\4.\3.\1", text.strip()))
    if match is None or (month_first and match[2] == "."):
        raise ValueError
    day, month = (match[3], match[1]) if month_first else (match[1], match[3])
    written = datetime.date(int(match[4]), int(month), int(day)).isoformat()
    if not match[5]:
        return written
    hours, _, rest = match[5].partition(":")
    if half := match[6]:
        if not 1 <= int(hours) <= 12:
            raise ValueError
        hours = str(int(hours) % 12 + (12 if half in "pP" else 0))
    return f"{written} {datetime.time.fromisoformat(f'{hours:0>2}:{rest}')}"


# --- declared types with a time of day --------------------------------------------------------------

_CLOCK = r"(?P<hours>%s):(?P<minutes>\d\d)(?::(?P<seconds>\d\d)(?:\.(?P<fraction>\d+))?)?"
_OFFSET = r"(?P<offset>\s*(?:Z|UTC|[+-]\d\d(?::?\d\d)?))?"
_DATED = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[ T]" + _CLOCK % r"\d\d" + _OFFSET + ")?", re.ASCII | re.IGNORECASE
)
_DURATION = re.compile(r"(?P<sign>-?)" + _CLOCK % r"\d{1,3}" + _OFFSET, re.ASCII | re.IGNORECASE)

MAX_FRACTION = 6
"""Most fractional digits of a second that MySQL and MariaDB keep."""

MAX_DURATION = datetime.timedelta(hours=838, minutes=59, seconds=59)
"""Longest TIME of MySQL and MariaDB."""


def timed(type_: str, texts: Sequence[str]) -> Reading:
    """Return how a column of a declared type with a time of day is read, such as `DATETIME(3) NOT NULL`.

    A type without a number of digits gets as many as the cells' fractions of seconds have. The reading raises
    Unfit for a cell that the type would cut, or one with an offset from UTC.
    """
    word, said, more = re.fullmatch(r"([A-Z]+)(?:\((\d+)\))?(.*)", type_).groups()  # type: ignore[union-attr]
    form = _DURATION if word == "TIME" else _DATED
    fractions = [found["fraction"] or "" for text in texts if (found := form.fullmatch(text.strip()))]
    needed = min(max((len(each.rstrip("0")) for each in fractions), default=0), MAX_FRACTION)
    digits = needed if said is None else int(said)

    def read(text: str) -> Cell:
        found = form.fullmatch(text.strip())
        if found is None:
            raise ValueError
        if found["offset"]:
            raise Unfit(
                "it has an offset from UTC, which no such type keeps; write all in one time zone, or let the "
                "column be TEXT"
            )
        fraction = (found["fraction"] or "").rstrip("0")
        if len(fraction) > digits:
            holds = f"{word}({len(fraction)}) holds it" if len(fraction) <= MAX_FRACTION else "TEXT holds it"
            raise Unfit(f"its second has {len(fraction)} digits behind the point; {holds}")
        return _clock(found, fraction) if word == "TIME" else _dated(found, fraction)

    grown = None
    if said is None and digits:
        type_ = f"{word}({digits}){more}"
        grown = f"fractions of seconds make it {word}({digits})"
    return Reading(type_, read, _notes(grown, _as_mysql_writes(read, texts)))


def _dated(found: re.Match[str], fraction: str) -> str:
    clock = f"{found['hours'] or '00'}:{found['minutes'] or '00'}:{found['seconds'] or '00'}"
    moment = datetime.datetime.fromisoformat(f"{found['day']} {clock}")
    return f"{moment}{f'.{fraction}' if fraction else ''}"


def _clock(found: re.Match[str], fraction: str) -> str:
    hours, minutes, seconds = (int(found[part] or 0) for part in ("hours", "minutes", "seconds"))
    length = datetime.timedelta(
        hours=hours, minutes=minutes, seconds=seconds, microseconds=int(fraction.ljust(MAX_FRACTION, "0"))
    )
    if max(minutes, seconds) > 59 or length > MAX_DURATION:
        raise ValueError
    clock = f"{found['sign']}{hours:02}:{minutes:02}:{seconds:02}"
    return f"{clock}.{fraction}" if fraction else clock


def _as_mysql_writes(read: Callable[[str], Cell], texts: Sequence[str]) -> str | None:
    """Return a note on the first time that MySQL would write differently, or `None`."""
    for text in texts:
        if (cell := read_if_fit(read, text)) not in (None, text):
            return f"times are written as MySQL does: {text!r} is {cell!r}"
    return None


def _are(read: Callable[[str], Cell], texts: Sequence[str]) -> bool:
    return all(read_if_fit(read, text) is not None for text in texts)


def read_if_fit(read: Callable[[str], Cell], text: str) -> Cell:
    """Return the cell for a text; `None` if the text does not fit."""
    try:
        return read(text)
    except ValueError:
        return None


def read_csv_tables(
    paths: Iterable[str | Path],
    options: CsvOptions = FROM_FILE,
    note: Callable[[str], object] = lambda text: None,
) -> dict[str, Table]:
    """Read tables, by name. Files that are parts of one table are joined (`parts.by_table`).

    docs/data.md has the rules for types.

    Args:
        note: called with a line for each guess, and for each cell read differently than written.

    Raises:
        ConfigError: the options name a column that does not exist.
        TaskError: a file cannot be read; the message names file and line.
    """
    tables: dict[str, Table] = {}
    for parts in by_table(map(Path, paths)):
        table = _csv_table(parts, options, note)
        if table.name in tables:
            raise TaskError(f"{parts[0]}: there is a table named '{table.name}' already; rename the file.")
        tables[table.name] = table
    columns = {column.name for table in tables.values() for column in table.columns}
    columns |= {f"{table.name}.{column.name}" for table in tables.values() for column in table.columns}
    if strange := [name for name in options.types if name not in columns]:
        raise ConfigError(unknown("column", strange[0], sorted(columns)))
    return tables


def remedy_for(path: Path) -> str:
    """Return how to make a readable file of a workbook or a packed file; empty for others."""
    if path.suffix.lower() in _WORKBOOKS:
        return "Save its sheet as a CSV file, and give that."
    return "Unpack it, and give what it holds." if path.suffix.lower() in _PACKED else ""


def _checked(path: Path) -> Path:
    """Return the path; raise TaskError unless it is an existing CSV file."""
    if path.suffix.lower() not in CSV_SUFFIXES:
        message = f"tables are read from .csv or .tsv, not from '{path}'. {remedy_for(path)}"
        raise TaskError(message.rstrip())
    if not path.is_file():
        near = nearest_path(path)
        raise TaskError(f"there is no file '{path}'{f'; nearest: {near}' if near else ''}.")
    return path


def _csv_table(parts: Sequence[Path], options: CsvOptions, note: Callable[[str], object]) -> Table:
    files = [read_csv(_checked(path), options) for path in parts]
    for line in (line for file in files for line in file.notes):
        note(line)
    check_same_columns(parts, [file.header for file in files])
    path, file, lines = parts[0], files[0], [file.lines for file in files]
    if files[1:]:
        joined = [tuple(chain(*cells)) for cells in zip(*(file.columns for file in files), strict=True)]
        file = replace(file, columns=joined, marked=frozenset().union(*(file.marked for file in files)))
        del files
    named = table_name(path)
    readings: list[tuple[str, Reading, bool]] = []
    pointed = file.delimiter == "," and any(_has_fractions(texts, ".") for texts in file.columns)
    decimal = set[str]()  # marks that are certainly decimal
    for title, texts in zip(file.header, file.columns, strict=True):
        name, type_ = _title(title, path, file.header)
        chosen = options.types.get(f"{named}.{name}", options.types.get(name))
        if chosen is not None:
            type_ = _title(f"{name}:{chosen}", path)[1]
            if type_ is None:
                raise ConfigError(
                    f"{chosen!r} is not a type for the column '{name}'; allowed are such as TEXT."
                )
        filled = [*filter(None, texts)]
        guessed = type_ is None
        if type_ is None and title in file.marked:
            reading = Reading("TEXT", str)
        elif type_ is None:
            commas = file.delimiter != "," or (not pointed and _has_fractions(filled, ","))
            reading = with_missing(filled, commas)
            mark = "," if reading.commas else "."
            if reading.type.startswith(("DEC", "DOU")) and not kept_as_text(filled, mark):
                decimal.add(mark)
        else:
            reading = _declared(type_, file, filled)
        readings.append((name, reading, guessed))
    unsure = ["."] if file.delimiter == ";" or "," in decimal else []
    if "," not in decimal and ("." in decimal if file.delimiter == ";" else file.delimiter != ","):
        unsure.append(",")
    columns, cells_by_column = [], []
    for place, (name, reading, guessed) in enumerate(readings):
        texts = file.columns[place]
        file.columns[place] = ()  # frees memory of large files
        for mark in unsure if guessed and reading.type != "TEXT" else ():
            reading = kept_as_text([*filter(None, texts)], mark) or reading
        type_ = reading.type
        if type_ == "TEXT":
            type_ = text_type(max((len(text.encode()) for text in texts), default=0))
        columns.append(Column(name, type_))
        cells_by_column.append(_cells(texts, reading, dict(zip(parts, lines, strict=True)), name))
        if reading.note:
            note(f"{named}.{name}: {reading.note}")
    check_differ([column.name for column in columns], str(path))
    return Table(named, tuple(columns), tuple(zip(*cells_by_column, strict=True)))


def _title(title: str, path: Path, header: Sequence[str] = ()) -> tuple[str, str | None]:
    """Split `price:DECIMAL(10,2)` into name and type.

    A colon that no type follows belongs to the name, and so does one in `dc:date` beside `dc` or `dc:title`.
    """
    typed = re.fullmatch(r"(.*\S):([A-Za-z]+)((?:\(.*\))?(?: [A-Za-z_ ]+(?:utf8\w*)?)?)", title)
    if typed is None or not (typed[2].upper() in CSV_TYPES or typed[2].isupper() or "(" in typed[3]):
        return title, None
    if not (typed[2].isupper() or typed[3]):
        before, others = f"{typed[1]}:".casefold(), [each for each in header if each != title]
        if any(f"{each}:".casefold().startswith(before) for each in others):
            return title, None
    if typed[2].upper() not in CSV_TYPES:
        raise TaskError(
            f"{path}: unknown type '{typed[2]}' of the column '{typed[1]}'; allowed: {', '.join(CSV_TYPES)}. "
            f"Where it is part of the name, write '{title}:TEXT'."
        )
    return typed[1], typed[2].upper() + typed[3]


def _declared(type_: str, file: CsvFile, texts: Sequence[str]) -> Reading:
    """Return how a column of a declared type is read."""
    type = column_type(type_)
    assert type is not None  # by `_title`
    if type.kind == "text":
        return Reading(type_, str)
    missing = sorted({repr(text.strip()) for text in texts if is_missing(text)})
    given = [text for text in texts if text and not is_missing(text)]
    word = type_.partition(" ")[0]
    stripped = [text.strip() for text in given]
    days = _days_and_months(stripped) if given and word in ("DATE", "DATETIME") else None
    if days is not None and days.type == word:
        found = Reading(type_, days.read, days.note)
    elif type.kind == "time":
        found = timed(type_, given)
    else:
        found = _number_or_day(type_, type, file, given)
    note = f"{', '.join(missing)} is read as NULL" if missing else None
    return Reading(found.type, _or_null(found.read), _notes(note, found.note))


def _number_or_day(type_: str, type: ColumnType, file: CsvFile, texts: Sequence[str]) -> Reading:
    scale = re.search(r"\((\d+)(?:,\s*(\d+))?\)", type_)
    places = int(scale[2] or 0) if scale else 0
    commas = file.delimiter != "," and type.kind in ("exact", "float") and any("," in text for text in texts)

    def plain(text: str) -> str:
        if commas:
            return point_for_comma(text)
        if type.kind == "whole" and file.delimiter not in ",;" and _GROUPED[","].fullmatch(text):
            return text.replace(",", "")
        form = _WITH_POINT if file.delimiter == "," else _WITH_COMMA if type.kind == "whole" else None
        found = None if form is None else form.fullmatch(text)
        return text.replace(found["mark"], "") if found and found["mark"] else text

    def read(text: str) -> Cell:
        text = plain(text.strip())
        if type.kind == "exact" and (behind := len(f"{Decimal(text):f}".partition(".")[2])) > places:
            raise Unfit(f"it has {behind} digits behind the point, of which a server would keep {places}")
        assert type.read is not None  # `timed` reads the others
        return type.read(text)

    return Reading(type_, read, "decimal commas are read as points" if commas else None)


def _cells(
    texts: Sequence[str], reading: Reading, lines: Mapping[Path, Sequence[int]], column: str
) -> list[Cell]:
    cells: list[Cell] = []
    places = ((path, line) for path, of_file in lines.items() for line in of_file)
    for (path, line), text in zip(places, texts, strict=True):
        try:
            cells.append(None if text == "" else reading.read(text))
        except NO_CELL as error:
            why = f": {error}" if isinstance(error, Unfit) else ""
            raise TaskError(
                f"{path}, line {line}, column '{column}': {text!r} is not of type {reading.type}{why}."
            ) from None
    return cells
