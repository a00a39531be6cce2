"""Read the fields of a task file's entry and check their types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.utils.lookup import unknown


def json_object(line: str) -> dict[str, Any]:
    """Parse a line of JSONL; raise TaskError if it is not a JSON object."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not JSON ({error})") from None
    if not isinstance(entry, dict):
        raise TaskError(f"must be a JSON object, is {type(entry).__name__}")
    return entry


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSONL file.

    Raises OSError, UnicodeDecodeError or TaskError if it cannot be read.
    """
    # not splitlines, which also splits at U+2028 within a text
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json_object(line) for line in lines if line.strip()]


def check_text(text: str) -> None:
    """Raise TaskError for half of a surrogate pair: JSON can hold it, no tokenizer or server accepts it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TaskError(f"holds half of a surrogate pair, which is not text: {text[error.start]!r}") from None


def check_known(entry: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raise TaskError for an unknown field, so that a misspelled one is not ignored."""
    for key in entry:
        if key not in known:
            raise TaskError(unknown(what, str(key), known))


def required(entry: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    """Return the field; raise TaskError if it is missing, null or of another type."""
    if entry.get(key) is None:
        raise TaskError(f"the field '{key}' is missing; found: {', '.join(map(str, entry)) or 'nothing'}")
    return optional(entry, key, kind)


def optional(entry: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    """Return the field, or `None` if it is missing; raise TaskError if it is of another type."""
    value = entry.get(key)
    if value is not None and not isinstance(value, kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise TaskError(f"the field '{key}' must be {names}, is {type(value).__name__}")
    return value


def first_id(entry: Mapping[str, Any], keys: Sequence[str], default: str) -> str:
    """Return the first of these fields that is not null, as a text. 0 is a value."""
    found = (optional(entry, key, (str, int)) for key in keys if entry.get(key) is not None)
    return str(next(found, default))


def as_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TaskError(f"a {what} must be a JSON object, is {value!r}")
    return value
