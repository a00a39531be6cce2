"""Table states in a few digits: the published hash, and a digest of all their rows.

The published hash is computed from the rows rather than by the server, as MySQL 9 has no `MD5()`. It is for
comparison with published figures only: it collides, and does not see rows beyond the 170th.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from trl_dbbench.grading.rows import Row, State, cell_key, column_key


def row_hash(row: Row) -> str:
    """First 5 hex digits of the md5 of the row's cells, NULLs left out, joined by commas.

    It is `SUBSTRING(MD5(CONCAT_WS(',', ...)), 1, 5)`: a row of NULLs only hashes the empty text, and
    `('a', NULL)` and `(NULL, 'a')` hash the same.
    """
    return _md5(",".join(_mysql_text(cell) for cell in row if cell is not None))[:5]


def state_hash(rows: Iterable[Row]) -> str | None:
    """The published hash of a table: 32 hex digits, whatever the order of `rows`.

    The sorted row hashes, joined by commas, are cut at 1,024 bytes (MySQL's `group_concat_max_len`) before
    they are hashed: of more than 170 rows the rest is not seen. An empty table has no hash, as
    `GROUP_CONCAT` of nothing is NULL.
    """
    hashes = sorted(row_hash(row) for row in rows)
    return _md5(",".join(hashes)[:1024]) if hashes else None


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def _mysql_text(cell: Any) -> str:
    """A cell as MySQL prints it into `CONCAT_WS`, from the value that the driver gives."""
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


def _mysql_float(number: float) -> str:
    """`3.0` is `3`, `1e-05` is `0.00001`, `1e+16` is `1e16`: an exponent only outside 1e-15 .. 1e15.

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
    """A TIME: `-00:30:00`, `100:02:03`, with microseconds when there are any."""
    micros = delta // datetime.timedelta(microseconds=1)
    seconds, fraction = divmod(abs(micros), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return ("-" if micros < 0 else "") + text + (f".{fraction:06d}" if fraction else "")


def state_digest(state: State) -> str:
    """24 hex digits: 16 that stand for all tables and all rows, in any order, then 8 for their columns.

    Cells differ as in `same_state`, but floats that agree in nine digits count as equal: their last digits
    depend on the order in which a server adds up. Records of version 0.1 hold the first 16 only.
    """
    rows_digest, columns_digest = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=4)
    for name in sorted(state):
        rows = sorted(repr([_cell_text(cell) for cell in row]) for row in state[name].rows)
        rows_digest.update(repr((name, rows)).encode("utf-8", "surrogatepass"))
        columns_digest.update(repr((name, column_key(state[name]))).encode("utf-8", "surrogatepass"))
    return rows_digest.hexdigest() + columns_digest.hexdigest()


def _cell_text(cell: Any) -> tuple[str, str]:
    kind, value = cell_key(cell)
    if kind != "number":
        return kind, repr(value)
    number = f"{cell + 0.0:.9g}" if isinstance(cell, float) else cell  # -0.0 is 0.0
    digits = format(Decimal(number), "f")
    return kind, digits.rstrip("0").rstrip(".") if "." in digits else digits
