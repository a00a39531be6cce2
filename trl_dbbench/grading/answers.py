"""The three published graders of answers in words.

They give the published verdicts, odd ones included, so that figures can be compared. One difference: the
originals `eval()` the agent's text, which lets an agent run code in the trainer. Here the text is read as a
literal or split, never run, and no text makes a grader raise.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

MAX_LITERAL_CHARACTERS = 100_000
"""Longest answer that is parsed, in characters; bounds the time of a grade."""

MISSING = object()


def grade_agentbench_text(answer: str, labels: Sequence) -> bool:
    """Read a Python literal, or else one string. Compare single values as floats or by `==`, others as sets.

    As in the original, `list()` splits a quoted text into characters: `"'Oslo'"` is wrong, `"Oslo"` right.
    """
    try:
        values = list(literal(answer))
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


def grade_agentbench_fc(answer: str, labels: Sequence) -> bool:
    """Compare normalised values: numbers one to one within 0.01, others as sets of strings."""
    values, expected = _fc_values(answer), [_normalise(label) for label in labels]
    if values is None:
        return False
    numbers, expected_numbers = _floats(values), _floats(expected)
    if numbers is not None and expected_numbers is not None:
        return _pair_up(numbers, expected_numbers)
    return set(values) == set(expected)


def grade_lifelong(answer: str, rows: Sequence) -> bool:
    """Compare the answer's parenthesised tuples with the gold rows, in order, cell by cell.

    As in the original, cells are split at every comma, even in quotes: a gold cell with a comma can never be
    answered right. If the gold has no rows, an empty list or an empty answer is right.
    """
    groups = list(_parenthesised(answer))
    if not rows:
        return not groups and re.fullmatch(r"\s*|[^\[\]]*\[\s*\]\s*", answer) is not None
    found = [_cells(group) for group in groups or [answer]]
    golds = [row if isinstance(row, Sequence) and not isinstance(row, str | bytes) else [row] for row in rows]
    return [*map(len, found)] == [*map(len, golds)] and all(map(_lifelong_cell, chain(*found), chain(*golds)))


def literal(text: str) -> Any:
    """Read `text` as a Python literal; `MISSING` if it is not one. Never runs it, never raises."""
    if len(text) > MAX_LITERAL_CHARACTERS:
        return MISSING
    try:
        return ast.literal_eval(text)
    except Exception:  # SyntaxError, ValueError, RecursionError, MemoryError, ...: all mean "no literal"
        return MISSING


# --- agentbench_fc -----------------------------------------------------------------------------------

ZERO_WORDS = frozenset({"", "none", "null", "undefined"}) | {
    sign + word for sign in ("", "+", "-") for word in ("nan", "inf", "infinity")
}


def _fc_values(answer: str) -> list[str] | None:
    """Return the answer's normalised values; `None` for a literal in brackets that is not a list.

    ```
    rows, as a database shows them   [(4,), ('Oslo',)]       each row of one cell; longer rows are dropped
    a row, not a literal             [(March 19, 1998,)]     the text in its parentheses
    a list                           ['Oslo', ('a', 'b')]    each item; longer rows as printed
    a list, not a literal            [Oslo, 'O, my']         split at its commas, see `_cut`
    anything else                    16,000                  the text
    ```

    Rows are recognised only if there is no whitespace around the text.
    """
    text = answer.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return [_normalise(text)]
    value = literal(text)
    if text == answer:
        if isinstance(value, list) and all(isinstance(row, tuple) for row in value):
            return [_normalise(row[0]) for row in value if len(row) == 1]
        row = text.strip("[]")
        if row.count("(") == 1 and row.startswith("(") and row.endswith(",)"):
            return [_normalise(row[1:-2])]
    if value is MISSING:
        return [_normalise(piece) for piece in _cut(text[1:-1])]
    if not isinstance(value, list):
        return None
    return [_normalise(item[0] if isinstance(item, tuple) and len(item) == 1 else item) for item in value]


def _cut(text: str) -> list[str]:
    """Split at commas outside quotes; empty pieces are dropped.

    Every quote opens or closes, even an apostrophe in a word, and all are removed: `Checco D'Angelo, Ann` is
    one piece.
    """
    found = re.findall(r"""(?:[^,'"]++|['"][^'"]*+(?:['"]|\Z))++""", text)
    pieces = (piece.replace("'", "").replace('"', "") for piece in found)
    return [piece for piece in pieces if piece]


def _normalise(value: Any) -> str:
    """Return the text that `agentbench_fc` compares, without surrounding blanks and quotes.

    A final `%` is removed. Any other text loses all its commas, unless it has a bracket at an end; then
    `ZERO_WORDS` become 0.
    """
    try:
        text = str(value)
    except ValueError:  # an int with more digits than Python prints
        return "\0"  # equals no label
    text = text.strip().strip("'\"").strip()
    if text.endswith("%"):
        return text[:-1].strip()
    if not (text.startswith("[") or text.endswith("]")):
        text = text.replace(",", "")
    return "0" if text.lower() in ZERO_WORDS else text


def _floats(texts: Iterable[str]) -> list[float] | None:
    """Return the texts as floats, or `None` if one is not a number."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        return None


def _pair_up(numbers: Iterable[float], expected: Iterable[float]) -> bool:
    """Return whether each number, in turn, finds an unused expected one within 0.01."""
    left = list(expected)
    for number in numbers:
        place = next((i for i, other in enumerate(left) if abs(number - other) <= 0.01), None)
        if place is None:
            return False
        del left[place]
    return not left


# --- lifelong ----------------------------------------------------------------------------------------


def _parenthesised(text: str) -> Iterator[str]:
    """Yield the contents of the outermost balanced parentheses, ignoring quotes."""
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
    """Split a tuple's content at its commas, quoted or not; the comma of a one-tuple adds no cell."""
    cells = [cell.strip() for cell in text.split(",")]
    return cells if cells[-1] else cells[:-1]


def _lifelong_cell(cell: str, gold: Any) -> bool:
    """Return whether a cell is right. A gold number requires a number (`'10'` in quotes is text), any other
    gold cell its own text."""
    if isinstance(gold, (int, float, Decimal)):
        decimal = re.fullmatch(r"""Decimal\((['"]?)(.*)\1\)""", cell, re.DOTALL)
        try:
            if math.isclose(float(decimal[2] if decimal else cell), float(gold), rel_tol=1e-6, abs_tol=1e-6):
                return True
        except (ValueError, OverflowError):
            pass  # not a number, or too large for a float
        return _same_text(cell, gold)
    if gold is None:
        return cell == "None"
    if len(cell) >= 2 and cell[0] == cell[-1] and cell[0] in "'\"":
        cell = cell[1:-1]
    return _same_text(cell, gold)


def _same_text(cell: str, gold: Any) -> bool:
    """Return whether Python prints `gold` as `cell`; it prints no int of over 4,300 digits."""
    try:
        return cell == str(gold)
    except ValueError:
        return False
