"""The types of columns that are not declared, read off their texts, so that no value changes.

A column has a type only if each of its texts can be told from the value that it becomes; the others are TEXT.
Where a text is written otherwise than MySQL writes the value, such as `1.234,50` or `31.12.2024`, a note says
so.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from trl_dbbench.tasks.column_types import read_date
from trl_dbbench.tasks.table import Cell

MAX_DIGITS = 15
"""Digits of a DECIMAL that all databases compute with exactly; longer ones are kept as TEXT."""

LEAST_WHOLE_DIGITS = 8
"""Digits before the point that a DECIMAL has room for, whatever its values need."""

MISSING = frozenset(
    {"na", "n/a", "#n/a", "#nv", "nan", "null", "none", "nil", "-", "--", "?", ".", r"\n", "k.a.", "<na>"}
)
"""Texts that stand for no value in a column whose other texts have a type; in small letters."""

_INT = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_PLAIN = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)", re.ASCII)
_EXPONENT = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)[eE][+-]?\d+", re.ASCII)
_GROUPED = {mark: re.compile(rf"-?[1-9]\d{{0,2}}(?:[{mark}]\d{{3}})+", re.ASCII) for mark in ".,"}
_UNGROUPED = re.compile(r"-?\d{1,3}", re.ASCII)
_MARKS = " \u00a0\u2009\u202f'\u2019"
"""What may stand between thousands, beside the point or the comma."""

_WITH_COMMA, _WITH_POINT = (
    re.compile(
        rf"-?(?:[1-9]\d{{0,2}}(?P<mark>[{other}{_MARKS}])\d{{3}}(?:(?P=mark)\d{{3}})*|0|[1-9]\d*)(?:{sign}\d+)?",
        re.ASCII,
    )
    for sign, other in ((",", "."), (r"\.", ","))
)
_NEGATIVE_ZERO = re.compile(r"-0*\.?0*", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.(?P<fraction>\d{1,6}))?)?", re.ASCII)
_DAY_FIRST = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(?: (\d{1,2}:\d\d(?::\d\d)?))?", re.ASCII)


def is_missing(text: str) -> bool:
    """Whether a text among numbers or dates stands for no value."""
    return text.strip().casefold() in MISSING


@dataclass(frozen=True)
class Reading:
    """A type, what makes a cell of a text (or raises ValueError), and what there is to say of it."""

    type: str
    read: Callable[[str], Cell]
    note: str | None = None
    commas: bool = False
    """Whether its numbers have decimal commas."""


class Unfit(ValueError):
    """A text that a type does not hold without changing it; the message says why."""


def inferred(texts: Sequence[str], commas: bool = False) -> Reading:
    """The reading of a column that has these texts.

    Args:
        commas: numbers may have decimal commas, as the cells are separated by something else.
    """
    stripped = [text.strip() for text in texts]
    if not stripped:
        return Reading("TEXT", str)
    attempts = (_numbers, _with_commas if commas else None, _with_groups, _dates, _moments, _days_first)
    for attempt in attempts:
        if attempt is not None and (found := attempt(stripped)) is not None:
            return found
    return kept_as_text(texts, ",") or Reading("TEXT", str)


def with_missing(texts: Sequence[str], commas: bool = False) -> Reading:
    """`inferred`, where a text such as `NA` among numbers or dates is NULL."""
    found = inferred(texts, commas)
    missing = [text for text in texts if is_missing(text)]
    if found.type != "TEXT" or not missing or len(missing) == len(texts):
        return found
    others = inferred([text for text in texts if not is_missing(text)], commas)
    if others.type == "TEXT":
        return found
    names = ", ".join(sorted({repr(text.strip()) for text in missing}))
    note = f"{names} ({len(missing)} cells) is read as NULL"

    def read(text: str) -> Cell:
        return None if is_missing(text) else others.read(text)

    return Reading(others.type, read, "; ".join(filter(None, (note, others.note))), others.commas)


def point_for_comma(text: str) -> str:
    """`1.234,50` as `1234.50`.

    Raises:
        ValueError: it is no number with a decimal comma.
    """
    if not _WITH_COMMA.fullmatch(text):
        raise ValueError
    return re.sub(rf"[.{_MARKS}]", "", text).replace(",", ".")


def has_marks(text: str) -> bool:
    """Whether a text is a number with a decimal comma, or with marks between thousands."""
    found = _WITH_COMMA.fullmatch(text) or _WITH_POINT.fullmatch(text)
    return found is not None and _PLAIN.fullmatch(text) is None


def kept_as_text(texts: Sequence[str], mark: str = ".") -> Reading | None:
    """The reading of texts such as `1.234`, beside such as `567`, that may be whole numbers or fractions."""
    texts = [text for text in texts if not is_missing(text)]
    grouped = [_GROUPED[mark].fullmatch(text.strip()) is not None for text in texts]
    if not any(grouped) or not all(
        each or _UNGROUPED.fullmatch(text.strip()) for each, text in zip(grouped, texts, strict=True)
    ):
        return None
    first = texts[grouped.index(True)]
    return Reading("TEXT", str, f"{first!r} may be a whole number or a fraction; kept as TEXT")


# --- numbers ---------------------------------------------------------------------------------------


def _numbers(texts: Sequence[str]) -> Reading | None:
    if any(_NEGATIVE_ZERO.fullmatch(text) and len(text) > 1 for text in texts):
        return None
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
        first = next(text for text in texts if _EXPONENT.fullmatch(text) or not _is_exact(text))
        return Reading(
            "TEXT", str, f"{first!r} may be a number or a name; kept as TEXT, the type DOUBLE reads it"
        )
    return None


def _is_exact(text: str) -> bool:
    """Whether a number is written as Python writes the DOUBLE that it is, or is a whole one that it holds."""
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
    found = _numbers([point_for_comma(text) for text in texts])
    if found is None or found.type == "TEXT":
        return None
    first = next(text for text in texts if "," in text)
    note = f"decimal commas are read as points: {first!r} is {point_for_comma(first)}"
    return Reading(
        found.type,
        lambda text: found.read(point_for_comma(text.strip())),
        "; ".join(filter(None, (note, found.note))),
        commas=True,
    )


def _with_groups(texts: Sequence[str]) -> Reading | None:
    """Numbers such as `1'234.50`, `1,234.50` and `1 234`, where nothing else can be meant."""
    matches = [_WITH_POINT.fullmatch(text) for text in texts]
    marks = {match["mark"] for match in matches if match} - {None}
    if not all(matches) or len(marks) != 1:
        return None
    (mark,) = marks
    fractions = any("." in text for text in texts)
    sure = (
        any(mark in text and "." in text for text in texts)
        if mark == ","
        else mark in "'\u2019" or fractions or any(mark not in text for text in texts)
    )
    found = _numbers([text.replace(mark, "") for text in texts]) if sure else None
    if found is None or found.type == "TEXT":
        return None
    first = next(text for text in texts if mark in text)
    note = f"the marks between thousands are left out: {first!r} is {first.replace(mark, '')}"
    return Reading(
        found.type,
        lambda text: found.read(text.strip().replace(mark, "")),
        "; ".join(filter(None, (note, found.note))),
    )


# --- days and moments ------------------------------------------------------------------------------


def _dates(texts: Sequence[str]) -> Reading | None:
    return Reading("DATE", lambda text: read_date(text.strip())) if _are(read_date, texts) else None


def _moments(texts: Sequence[str]) -> Reading | None:
    if not _are(_moment, texts):
        return None
    places = max(len(_MOMENT.fullmatch(text)["fraction"] or "") for text in texts)  # type: ignore[index]
    other = next((text for text in texts if _moment(text) != text), None)
    note = None if other is None else f"times are written as MySQL does: {other!r} is {_moment(other)!r}"
    return Reading(f"DATETIME({places})" if places else "DATETIME", _moment, note)


def _moment(text: str) -> str:
    text = text.strip()
    if not _MOMENT.fullmatch(text):
        raise ValueError
    datetime.datetime.fromisoformat(text)
    return text.replace("T", " ") + (":00" if len(text) == 16 else "")


def _days_first(texts: Sequence[str]) -> Reading | None:
    if not _are(_day_first, texts):
        return None
    timed = [" " in text for text in texts]
    if any(timed) and not all(timed):
        return None
    note = f"days stand before months: {texts[0]!r} is {_day_first(texts[0])}"
    return Reading("DATETIME" if all(timed) else "DATE", _day_first, note)


def _day_first(text: str) -> str:
    match = _DAY_FIRST.fullmatch(text.strip())
    if match is None:
        raise ValueError
    day = datetime.date(int(match[3]), int(match[2]), int(match[1])).isoformat()
    return (
        f"{day} {datetime.time.fromisoformat(match[4].zfill(5 if match[4].count(':') == 1 else 8))}"
        if match[4]
        else day
    )


# --- moments of a type that is declared ------------------------------------------------------------

_CLOCK = r"(?P<hours>%s):(?P<minutes>\d\d)(?::(?P<seconds>\d\d)(?:\.(?P<fraction>\d+))?)?"
_OFFSET = r"(?P<offset>\s*(?:Z|UTC|[+-]\d\d(?::?\d\d)?))?"
_DATED = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[ T]" + _CLOCK % r"\d\d" + _OFFSET + ")?", re.ASCII | re.IGNORECASE
)
_DURATION = re.compile(r"(?P<sign>-?)" + _CLOCK % r"\d{1,3}" + _OFFSET, re.ASCII | re.IGNORECASE)

MAX_FRACTION = 6
"""Digits of a second's fraction, as many as MySQL and MariaDB keep."""

MAX_DURATION = datetime.timedelta(hours=838, minutes=59, seconds=59)
"""The longest TIME."""


def timed(type_: str, texts: Sequence[str]) -> Reading:
    """The reading of a column that is declared with a time of day.

    A type that says nothing of fractions gets as many digits as they have. What the type would cut or move to
    another time zone is none of it.

    Args:
        type_: as it is declared, such as `DATETIME(3) NOT NULL`.
        texts: those that stand for a value.
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

    notes = []
    if said is None and digits:
        type_ = f"{word}({digits}){more}"
        notes.append(f"fractions of seconds make it {word}({digits})")
    other = next((text for text in texts if _reads_otherwise(read, text)), None)
    if other is not None:
        notes.append(f"times are written as MySQL does: {other!r} is {read(other)!r}")
    return Reading(type_, read, "; ".join(notes) or None)


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


def _reads_otherwise(read: Callable[[str], Cell], text: str) -> bool:
    try:
        return read(text) != text
    except ValueError:
        return False


def _are(read: Callable[[str], Cell], texts: Sequence[str]) -> bool:
    try:
        for text in texts:
            read(text)
    except ValueError:
        return False
    return True
