"""What is right: answers against gold answers, table states against gold states.

Three published graders judge answers, each its own way; `grade` gives the verdict that the named one
gives, so that figures stand beside published ones. It departs from them in one thing: they `eval()` what
the agent wrote, which lets an agent run code in the trainer. Here the text is read as a literal or cut
into pieces, never run, and no text makes it raise.

Table states are judged in two ways. `same_state` compares every cell and is meant for rewards.
`state_hash` is the published 5-digit scheme, computed from the rows rather than by the server (MySQL 9 has
no `MD5()`); it is for comparison with published figures only, as it collides and stops after 170 rows.

Everything here is a pure function.
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from trl_dbbench.errors import ConfigError

Row = Sequence[Any]
State = Mapping[str, Sequence[Row]]

# No gold answer comes near it. A longer text is not parsed, which bounds the time that a grade takes.
MAX_LITERAL_CHARS = 100_000
MISSING = object()


# --------------------------------------------------------------------------------------------- answers


def grade(answer: str, gold: Sequence, grader: str) -> bool:
    """Say whether the named grader calls `answer` right.

    Args:
        answer (`str`): what the agent committed: the text after `Final Answer:`, or, where answers come as
            a list of strings, `str()` of that list.
        gold (`Sequence`): the labels (`"agentbench_text"`, `"agentbench_fc"`) or the rows (`"lifelong"`).
        grader (`str`): one of `GRADERS`.

    Raises:
        ConfigError: if there is no such grader. Nothing in `answer` makes it raise: a text on which the
            original would crash is a wrong answer.
    """
    if grader not in GRADERS:
        raise ConfigError(
            f"There is no grader {grader!r}. Allowed are {', '.join(GRADERS)}; AgentBench tasks take one of "
            "the first two, tasks whose gold answer is a list of rows take 'lifelong'."
        )
    return GRADERS[grader](answer, list(gold))


def _grade_agentbench_text(answer: str, labels: list) -> bool:
    """A Python literal, or else one string; one against one as floats, then as they are; else as sets.

    `list()` of the literal is the original's doing, so a quoted text falls into its characters:
    `"'Oslo'"` is wrong where `"Oslo"` is right.
    """
    literal = _literal(answer)
    try:
        values = list(literal)
    except TypeError:  # a number, None, or no literal at all
        values = [answer]
    if len(values) == len(labels) == 1:
        value, label = values[0], labels[0]
        try:
            return float(value) == float(label)
        except (TypeError, ValueError, OverflowError):
            return bool(value == label)
    try:
        return set(values) == set(labels)
    except TypeError:  # lists or dicts among the values
        return False


def _grade_agentbench_fc(answer: str, labels: list) -> bool:
    """Normalised values; floats match one to one within 0.01, anything else as equal strings or sets."""
    values = [_normalise(value) for value in _fc_values(answer)]
    expected = [_normalise(label) for label in labels]
    numbers, expected_numbers = _floats(values), _floats(expected)
    if numbers is not None and expected_numbers is not None:
        # Sorted, neighbours face each other: if any one-to-one match exists, this is one.
        pairs = zip(sorted(numbers), sorted(expected_numbers), strict=False)
        return len(numbers) == len(expected_numbers) and all(abs(a - b) <= 0.01 for a, b in pairs)
    if len(values) == len(expected) == 1:
        return values == expected
    return set(values) == set(expected)


def _grade_lifelong(answer: str, rows: list) -> bool:
    """The answer's parenthesised tuples against the gold rows, in order, cell by cell.

    Cells are cut at every comma, quoted or not, as the original does: a gold cell that holds a comma can
    never be answered right. No rows are expected: only an empty list says so.
    """
    groups = list(_parenthesised(answer))
    if not rows:
        return not groups and re.fullmatch(r"[^\[\]]*\[\s*\]\s*", answer) is not None
    found = [_cells(group) for group in groups or [answer]]
    return len(found) == len(rows) and all(
        _lifelong_row(cells, row) for cells, row in zip(found, rows, strict=True)
    )


GRADERS: dict[str, Callable[[str, list], bool]] = {
    "agentbench_text": _grade_agentbench_text,
    "agentbench_fc": _grade_agentbench_fc,
    "lifelong": _grade_lifelong,
}


def _literal(text: str) -> Any:
    """Read `text` as a Python literal; `MISSING` if it is none. Never runs it, never raises."""
    if len(text) > MAX_LITERAL_CHARS:
        return MISSING
    try:
        return ast.literal_eval(text)
    except Exception:  # SyntaxError, ValueError, RecursionError, MemoryError, ...: all mean "no literal"
        return MISSING


# ---- agentbench_fc

ZERO_WORDS = frozenset({"", "none", "null", "undefined"}) | {
    sign + word for sign in ("", "+", "-") for word in ("nan", "inf", "infinity")
}


def _fc_values(answer: str) -> list:
    """The answer's values: a list's, with its tuples taken apart, else the one text.

    A list that is no literal (`[(Ann,)]`, `[Decimal('1')]`) is cut at its commas instead.
    """
    literal = _literal(answer.strip())
    if isinstance(literal, (list, tuple, set, frozenset)):
        return list(_flatten(literal))
    text = answer.strip()
    if literal is MISSING and text.startswith("[") and text.endswith("]"):
        return [
            value
            for item in _split(text[1:-1])
            for value in (_split(item[1:-1]) if item.startswith("(") and item.endswith(")") else [item])
        ]
    return [answer]


def _flatten(values: Iterable) -> Iterator:
    """The leaves of nested lists, tuples and sets. Depth is bounded: the parser refuses 200 brackets."""
    for value in values:
        if isinstance(value, (list, tuple, set, frozenset)):
            yield from _flatten(value)
        else:
            yield value


def _split(text: str) -> list[str]:
    """Cut at the commas outside quotes and parentheses; a trailing comma adds nothing.

    A quote opens only where a value begins, so the apostrophe in `O'Neil` is a letter.
    """
    pieces: list[str] = []
    start, depth, quote = 0, 0, ""
    at_start = True
    for i, char in enumerate(text):
        if quote:
            if char == quote and text[i - 1] != "\\":
                quote = ""
        elif char in "'\"" and at_start:
            quote = char
        elif char == "(":
            depth += 1
        elif char == ")":
            depth = max(depth - 1, 0)
        elif char == "," and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
        at_start = not quote and (char in "(,[" or (at_start and char.isspace()))
    if text[start:].strip():
        pieces.append(text[start:])
    return [piece.strip() for piece in pieces]


def _normalise(value: Any) -> str:
    """The text that `agentbench_fc` compares. The words for nothing count as 0 only when they stand alone."""
    try:
        text = str(value)
    except ValueError:  # an int with more digits than Python prints
        return "\0"  # equals no label
    text = text.strip(" \t\r\n'\"")
    if text.lower() in ZERO_WORDS:
        return "0"
    return re.sub(r"(?<=[0-9]),(?=[0-9]{3})", "", text.replace("%", "")).strip()


def _floats(texts: Iterable[str]) -> list[float] | None:
    """The texts as floats, or `None` if one of them is not a number."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        return None


# ---- lifelong


def _parenthesised(text: str) -> Iterator[str]:
    """The insides of the outermost balanced parentheses, in order; quotes play no part."""
    start = depth = 0
    for i, char in enumerate(text):
        if char == "(":
            if depth == 0:
                start = i + 1
            depth += 1
        elif char == ")" and depth:
            depth -= 1
            if depth == 0:
                yield text[start:i]


def _cells(text: str) -> list[str]:
    """Cut a tuple's inside at its commas, quoted or not; the comma of a one-tuple adds no cell."""
    cells = [cell.strip() for cell in text.split(",")]
    return cells if cells[-1] else cells[:-1]


def _lifelong_row(cells: list[str], row: Any) -> bool:
    """One tuple of the answer against one gold row."""
    expected = row if isinstance(row, Sequence) and not isinstance(row, (str, bytes)) else (row,)
    return len(cells) == len(expected) and all(
        _lifelong_cell(cell, gold) for cell, gold in zip(cells, expected, strict=True)
    )


def _lifelong_cell(cell: str, gold: Any) -> bool:
    """A gold number wants a number (`'10'` in quotes is text); any other cell wants its own text."""
    if isinstance(gold, (int, float, Decimal)):
        decimal = re.fullmatch(r"""Decimal\((['"]?)(.*)\1\)""", cell, re.DOTALL)
        try:
            if math.isclose(float(decimal[2] if decimal else cell), float(gold), rel_tol=1e-6, abs_tol=1e-6):
                return True
        except (ValueError, OverflowError):
            pass  # no number, or one beyond every float
        return _same_text(cell, gold)
    if gold is None:
        return cell == "None"
    if len(cell) >= 2 and cell[0] == cell[-1] and cell[0] in "'\"":
        cell = cell[1:-1]
    return _same_text(cell, gold)


def _same_text(cell: str, gold: Any) -> bool:
    """`cell` is how Python prints `gold` (which has no text if it is an int of over 4,300 digits)."""
    try:
        return cell == str(gold)
    except ValueError:
        return False


# ---------------------------------------------------------------------------------------- state hashes


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


# --------------------------------------------------------------------------------------- full comparison


def same_state(state_a: State, state_b: State) -> bool:
    """Say whether two databases hold the same tables with the same rows, in any order.

    NULL differs from every text, text from every number (`'1'` is not `1`). Numbers compare by value, so
    `Decimal('1.0')`, `1.0` and `1` are one; where one of the two is a float, a relative 1e-9 is allowed.

    Args:
        state_a, state_b (`dict[str, list[tuple]]`): table name -> rows. Names are compared exactly.
    """
    return state_a.keys() == state_b.keys() and all(
        same_rows(rows, state_b[name]) for name, rows in state_a.items()
    )


def state_digest(state: State) -> str:
    """16 hex digits that stand for all tables and all rows, in any order.

    Cells are kept apart as by `same_state`, but floats that agree in nine digits count as one: their last ones hang
    on the order in which a server adds up.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(state):
        rows = sorted(repr([_cell_text(cell) for cell in row]) for row in state[name])
        digest.update(repr((name, rows)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _cell_text(cell: Any) -> tuple[str, str]:
    kind, value = _cell_key(cell)
    if kind != "number":
        return kind, repr(value)
    number = f"{cell + 0.0:.9g}" if isinstance(cell, float) else cell  # -0.0 is 0.0
    digits = format(Decimal(number), "f")
    return kind, digits.rstrip("0").rstrip(".") if "." in digits else digits


def same_rows(a: Iterable[Row], b: Iterable[Row], ordered: bool = False) -> bool:
    """Compare rows as a multiset, or one by one with `ordered`; cells as `same_state` does.

    Costs a sort of each column that holds floats, never all pairs of rows. The price: within one column,
    values that are linked by a chain of steps of 1e-9 through a float count as one.
    """
    keys_a = [tuple(_cell_key(cell) for cell in row) for row in a]
    keys_b = [tuple(_cell_key(cell) for cell in row) for row in b]
    if len(keys_a) != len(keys_b):
        return False
    if ordered:
        return all(_close_rows(x, y) for x, y in zip(keys_a, keys_b, strict=True))
    left, right = Counter(keys_a), Counter(keys_b)
    if left == right:
        return True
    rest_a, rest_b = list((left - right).elements()), list((right - left).elements())
    clusters = _clusters(rest_a + rest_b)
    return Counter(_clustered(rest_a, clusters)) == Counter(_clustered(rest_b, clusters))


_Key = tuple[str, Hashable]  # a kind of value and the value; equal keys are equal cells


def _cell_key(cell: Any) -> _Key:
    """The cell with its kind: NULL, text, number and the rest never meet, within a kind `==` decides."""
    if cell is None:
        return "null", None
    if isinstance(cell, str):
        return "text", cell
    if isinstance(cell, (int, float, Decimal)):
        # A NaN is not equal to itself, and a Decimal one cannot be sorted.
        is_nan = cell.is_nan() if isinstance(cell, Decimal) else cell != cell
        return ("nan", None) if is_nan else ("number", cell)
    if isinstance(cell, (bytearray, memoryview)):
        return "bytes", bytes(cell)
    try:
        hash(cell)
    except TypeError:
        return "repr", repr(cell)
    return type(cell).__name__, cell


def _close_rows(a: tuple[_Key, ...], b: tuple[_Key, ...]) -> bool:
    return len(a) == len(b) and all(x == y or _close(x, y) for x, y in zip(a, b, strict=True))


def _close(a: _Key, b: _Key) -> bool:
    return a[0] == b[0] == "number" and _close_numbers(a[1], b[1])


def _close_numbers(a: Any, b: Any) -> bool:
    """Equal, or within 1e-9 of each other where one is a float. Large ids that are ints stay apart."""
    if a == b:
        return True
    if not (isinstance(a, float) or isinstance(b, float)):
        return False
    try:
        return math.isclose(a, b, rel_tol=1e-9)
    except OverflowError:  # an int beyond every float
        return False


def _clusters(rows: list[tuple[_Key, ...]]) -> dict[tuple[int, Any], int]:
    """(column, number) -> group: in sorted order a number joins the one before it if they are close."""
    columns: dict[int, set] = {}
    for row in rows:
        for column, (kind, value) in enumerate(row):
            if kind == "number":
                columns.setdefault(column, set()).add(value)
    groups: dict[tuple[int, Any], int] = {}
    for column, values in columns.items():
        group, before = 0, None
        for value in sorted(values):
            group += before is not None and not _close_numbers(before, value)
            groups[column, value] = group
            before = value
    return groups


def _clustered(rows: list[tuple[_Key, ...]], clusters: dict[tuple[int, Any], int]) -> Iterator[tuple]:
    """Each row with its numbers replaced by their groups."""
    for row in rows:
        yield tuple(
            ("number", clusters[column, value]) if kind == "number" else (kind, value)
            for column, (kind, value) in enumerate(row)
        )


# ------------------------------------------------------------------------------------------- statistics


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a share; `(0.0, 1.0)` for `n = 0`, which says nothing is known.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927):
    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n). Unlike p ± z √(p(1-p)/n) it does not shrink to a point
    at 0 or 1, where few tasks often lie.

    Args:
        z (`float`, *optional*, defaults to `1.96`): standard normal quantile; 1.96 gives 95 %.
    """
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Rounding can leave 0 of n a hair above 0: the interval must still contain p.
    return max(0.0, min(p, (centre - spread) / scale)), min(1.0, max(p, (centre + spread) / scale))
