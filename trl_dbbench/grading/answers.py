"""The three published graders: what an agent answered against the gold answer, each judged its own way.

They give the published verdicts, so that figures stand beside published ones, and depart from the originals
in one
thing: those `eval()` what the agent wrote, which lets an agent run code in the trainer. Here the text is read
    as a
literal or cut into pieces, never run, and no text makes a grader raise.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

MAX_LITERAL_CHARACTERS = 100_000
"""Longer texts are not parsed, which bounds the time that a grade takes; no gold answer comes near it."""

MISSING = object()


def grade_agentbench_text(answer: str, labels: Sequence) -> bool:
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


def grade_agentbench_fc(answer: str, labels: Sequence) -> bool:
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


def grade_lifelong(answer: str, rows: Sequence) -> bool:
    """The answer's parenthesised tuples against the gold rows, in order, cell by cell.

    Cells are cut at every comma, quoted or not, as the original does: a gold cell that holds a comma can
    never be answered right. Where the gold has no rows, only an empty list is right.
    """
    groups = list(_parenthesised(answer))
    if not rows:
        return not groups and re.fullmatch(r"[^\[\]]*\[\s*\]\s*", answer) is not None
    found = [_cells(group) for group in groups or [answer]]
    return len(found) == len(rows) and all(
        _lifelong_row(cells, row) for cells, row in zip(found, rows, strict=True)
    )


def _literal(text: str) -> Any:
    """Read `text` as a Python literal; `MISSING` if it is none. Never runs it, never raises."""
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


# --- lifelong ----------------------------------------------------------------------------------------


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
