"""MySQL's LIKE and REGEXP functions in Python, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import regex

from trl_dbbench.mysqlite.collation import symbols
from trl_dbbench.mysqlite.errors import StatementError, fail_if, unsupported
from trl_dbbench.mysqlite.values import MAX_PATTERN_CHARACTERS, MAX_TEXT_CHARACTERS, Value, check_time, text

MAX_REGEX_SECONDS = 0.5
"""CPU seconds of the whole process after which a match is given up."""

MAX_PATTERN_PARTS = 20_000
"""Most parts of a pattern with its counted repeats expanded; that many take about 0.1 s to compile."""

MIN_COMPUTING_SHARE = 0.2
"""Share of its time that a timed-out match must have computed. Below it, the match waited and is retried."""

_TOO_LARGE = (3887, "The regular expression pattern exceeds limits on size or complexity.")


@lru_cache(maxsize=256)
def _like_pattern(pattern: str, escape: str, exact: bool) -> Any:
    read = str if exact else symbols
    segments, chars = [""], iter(pattern)
    for char in chars:
        if char == "%":
            segments.append("")
        elif char == escape:
            segments[-1] += regex.escape(read(next(chars, escape)))
        else:
            segments[-1] += "." if char == "_" else regex.escape(read(char))
    return joined(segments)


def joined(segments: list[str]) -> Any:
    """Return the segments between the `%` of a pattern as a regular expression without backtracking.

    Each segment is matched only where it first occurs: if the rest does not match after that, it does not
    match after a later occurrence either.
    """
    first, *others = segments
    middle = "".join(f"(?>.*?{segment})" for segment in others[:-1] if segment)
    return regex.compile(first + middle + (f".*{others[-1]}" if others else ""), regex.DOTALL)


def like(value: Value, pattern: Value, escape: Value = "\\", exact: Value = 0) -> int | None:
    if value is None or pattern is None:
        return None
    wanted = text(pattern)
    fail_if(len(wanted) > MAX_PATTERN_CHARACTERS, *_TOO_LARGE)
    subject = text(value) if exact else symbols(text(value))
    compiled = _like_pattern(wanted, text(escape), bool(exact))
    return int(in_regex_time(lambda: compiled.fullmatch(subject, timeout=MAX_REGEX_SECONDS)) is not None)


def _checked_pattern(pattern: Value) -> str:
    wanted = text(pattern)
    fail_if(not wanted, 3685, "Illegal argument to a regular expression.")
    fail_if(len(wanted) > MAX_PATTERN_CHARACTERS, *_TOO_LARGE)
    return wanted


# recursive and approximate patterns, which MySQL does not have and in which `regex` notices its timeout late
_FOREIGN = regex.compile(r"\(\?(?:R|&|P>|[+-]?\d)|\{[^}]*<")

_COUNTED = regex.compile(r"(.?)\{(\d+)(?:,\d*)?\}", regex.DOTALL)


def _written_out(pattern: str) -> int:
    """Return the number of parts of a pattern with its counted repeats expanded, or an upper bound of it.

    `regex` expands them when it compiles a pattern: `((a{99}){99}){99}` would take minutes. A count after
    anything but a plain character may belong to a group, so it multiplies the whole pattern.
    """
    parts, factor = len(pattern), 1
    for before, count in _COUNTED.findall(pattern):
        if before in ")}?*+" or before.isspace():
            factor *= max(int(count), 1)
        else:
            parts += int(count)
    return parts * factor


@lru_cache(maxsize=256)
def _regex(pattern: str, flags: str) -> Any:
    fail_if(_FOREIGN.search(pattern), 1139, "Got error 'not supported' from regexp")
    fail_if(_written_out(pattern) > MAX_PATTERN_PARTS, *_TOO_LARGE)
    try:
        return regex.compile(pattern, 0 if "c" in flags else regex.IGNORECASE)
    except (regex.error, RecursionError, OverflowError) as error:
        raise StatementError(1139, f"Got error '{error}' from regexp") from None


def in_regex_time(call: Callable[[], Any]) -> Any:
    """Return the result of a match, retried if it timed out while waiting rather than computing.

    `regex` counts the CPU time of the whole process, and also the time that a match waits for Python's lock:
    while another thread collects garbage, that alone can exceed the timeout.
    """
    computing = time.thread_time()
    while True:
        check_time()
        try:
            return call()
        except TimeoutError:
            if time.thread_time() - computing >= MAX_REGEX_SECONDS * MIN_COMPUTING_SHARE:
                raise StatementError(3699, "Timeout exceeded in regular expression match.") from None
        except MemoryError:
            raise StatementError(3698, "Overflow in the regular expression backtrack stack.") from None


def _letters(flags: str, *texts: str) -> None:
    """Raise StatementError for letters whose other case MySQL determines in its own way: `ß` is also `SS`."""
    if "c" in flags or all(each.isascii() for each in texts):
        return
    if odd := sorted(
        {char for each in texts for char in each if len(char.casefold()) > 1 or char == "\u0131"}
    ):
        raise unsupported(f"a regular expression beside the letter '{odd[0]}'")


def regexp_like(value: Value, pattern: Value, flags: Value = "") -> int | None:
    if pattern is None or flags is None:
        return None
    compiled = _regex(_checked_pattern(pattern), text(flags))
    if value is None:
        return None
    _letters(text(flags), text(value), text(pattern))
    return int(in_regex_time(lambda: compiled.search(text(value), timeout=MAX_REGEX_SECONDS)) is not None)


def regexp_substr(value: Value, pattern: Value) -> str | None:
    compiled = _regex(_checked_pattern(pattern), "")
    _letters("", text(value), text(pattern))
    found = in_regex_time(lambda: compiled.search(text(value), timeout=MAX_REGEX_SECONDS))
    return found[0] if found else None


def regexp_replace(value: Value, pattern: Value, new: Value) -> str | None:
    compiled = _regex(_checked_pattern(pattern), "")
    _letters("", text(value), text(pattern))
    template = regex.sub(r"\$(\d+)", r"\\\1", text(new).replace("\\", "\\\\"))
    made = 0

    def replacement(match: Any) -> str:
        nonlocal made
        check_time()
        written = match.expand(template)
        made += len(written)
        if made > MAX_TEXT_CHARACTERS:
            raise _TooLong
        return written

    try:
        return in_regex_time(lambda: compiled.sub(replacement, text(value), timeout=MAX_REGEX_SECONDS))
    except _TooLong:
        return None


class _TooLong(Exception):
    """Error for a text that exceeds MAX_TEXT_CHARACTERS."""
