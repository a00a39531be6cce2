"""Digests of table states: the published hash, and our digest of all rows.

The published hash is computed here because MySQL 9 has no `MD5()`. It is only for comparison with published
figures: it collides, and ignores rows beyond the 170th.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from trl_dbbench.grading.rows import Row, State, cell_key, column_key


def row_hash(row: Row) -> str:
    """Return the first 5 hex digits of the md5 of the row's cells, without NULLs, joined by commas.

    As `SUBSTRING(MD5(CONCAT_WS(',', ...)), 1, 5)`: `('a', NULL)` and `(NULL, 'a')` hash the same.
    """
    return _md5(",".join(_mysql_text(cell) for cell in row if cell is not None))[:5]


def state_hash(rows: Iterable[Row]) -> str | None:
    """Return the published hash of a table: 32 hex digits, independent of the order of `rows`.

    The sorted row hashes, joined by commas, are cut at 1,024 bytes (MySQL's `group_concat_max_len`), so rows
    beyond the 170th are ignored. An empty table has no hash: `GROUP_CONCAT` of nothing is NULL.
    """
    hashes = sorted(row_hash(row) for row in rows)
    return _md5(",".join(hashes)[:1024]) if hashes else None


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def _mysql_text(cell: Any) -> str:
    """Return the driver's value as MySQL prints it into `CONCAT_WS`."""
    if isinstance(cell, bool):
        return str(int(cell))
    if isinstance(cell, float):
        return _mysql_float(cell)
    if isinstance(cell, Decimal) and cell.is_finite():
        return format(cell, "f")
    if isinstance(cell, datetime.datetime):  # before date, which it is a subclass of
        return cell.isoformat(sep=" ")
    if isinstance(cell, datetime.timedelta):
        return _mysql_time(cell)
    if isinstance(cell, (bytes, bytearray)):
        return bytes(cell).decode("utf-8", "replace")
    return str(cell)


def without_dates(row: Row) -> tuple:
    """Return a row with dates and times as the text that MySQL prints, as tasks hold them and agents write
    them; other cells stay as they are."""
    return tuple(
        _mysql_text(cell) if isinstance(cell, datetime.date | datetime.timedelta) else cell for cell in row
    )


def as_mysql_prints(text: str, quote: str = "'", number_quote: str = "") -> str:
    """Return a text with dates and numbers, such as `datetime.date(1985, 12, 1)` and `Decimal('2.50')`, as
    MySQL prints them; `quote` is put around dates, `number_quote` around numbers."""

    def printed(found: re.Match[str]) -> str:
        numbers = [(name, int(number)) for name, number in _ARGUMENT.findall(found[3])]
        try:
            made = getattr(datetime, found[2])(
                *(number for name, number in numbers if not name), **{n: number for n, number in numbers if n}
            )
        except (ValueError, TypeError, OverflowError):
            return found[0]
        return f"{quote}{without_dates([made])[0]}{quote}"

    text = _DECIMAL.sub(lambda found: f"{number_quote}{Decimal(found[3]):f}{number_quote}", text)
    return _DATE.sub(printed, text)


_DECIMAL = re.compile(
    r"""(["']?)\bDecimal\((["'])(-?\d{1,65}(?:\.\d{1,65})?(?:E-\d{1,2})?)\2\)\1""", re.ASCII
)
_DATE = re.compile(r"""(["']?)\bdatetime\.(date|datetime|timedelta)\(([\w\s=,-]{0,200})\)\1""", re.ASCII)
_ARGUMENT = re.compile(r"(?:(\w+)=)?(-?\d{1,12})", re.ASCII)


def _mysql_float(number: float) -> str:
    """Return a float as MySQL prints it: `3`, `0.00001`, `1e16`; an exponent only outside 1e-15 .. 1e15.

    As observed on MariaDB 10.11, whose float printing is MySQL's.
    """
    if not math.isfinite(number):
        return str(number)
    digits = Decimal(repr(number)).normalize()
    exponent = digits.adjusted()
    if -15 <= exponent < 15:
        return format(digits, "f")
    mantissa = format(digits.scaleb(-exponent), "f")
    return f"{mantissa}e{exponent}"


def _mysql_time(delta: datetime.timedelta) -> str:
    """Format a TIME: `-00:30:00`, `100:02:03`, with microseconds if there are any."""
    micros = delta // datetime.timedelta(microseconds=1)
    seconds, fraction = divmod(abs(micros), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return ("-" if micros < 0 else "") + text + (f".{fraction:06d}" if fraction else "")


def state_digest(state: State) -> str:
    """Return 24 hex digits: 16 for all tables and rows, in any order, then 8 for their columns.

    Cells compare as in `same_state`, except that floats are rounded to nine digits: further digits depend on
    a server's order of summation. Records of version 0.1 hold only the first 16.
    """
    row_hash, column_hash = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=4)
    for name in sorted(state):
        rows = sorted(repr([cell_text(cell) for cell in row]) for row in state[name].rows)
        rest = state[name].rest
        whole = (name, rows) if rest is None else (name, rows, rest)
        row_hash.update(repr(whole).encode("utf-8", "surrogatepass"))
        column_hash.update(repr((name, column_key(state[name]))).encode("utf-8", "surrogatepass"))
    return row_hash.hexdigest() + column_hash.hexdigest()


def rows_digest(rows: Iterable[Row], ordered: bool = False, repeated: bool = True) -> str:
    """Return 16 hex digits for rows, with cells as in `state_digest`.

    Args:
        ordered: whether the order and repetition of rows count.
        repeated: whether the repetition of rows counts in any order.
    """
    texts = [repr([cell_text(cell) for cell in row]) for row in rows]
    told = texts if ordered else sorted(texts if repeated else set(texts))
    return hashlib.blake2b("\n".join(told).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def cell_text(cell: Any) -> tuple[str, str]:
    """Return the kind of a cell and its text, in which floats are rounded to nine digits."""
    kind, value = cell_key(cell)
    if kind != "number":
        return kind, repr(value)
    number = f"{cell + 0.0:.9g}" if isinstance(cell, float) else cell  # -0.0 is 0.0
    digits = format(Decimal(number), "f")
    return kind, digits.rstrip("0").rstrip(".") if "." in digits else digits
