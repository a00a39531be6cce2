"""MySQL's date and time functions in Python. Dates and times are texts in MySQL's format."""

from __future__ import annotations

import calendar
import math
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import lru_cache, partial
from typing import Any

import regex

from trl_dbbench.mysqlite.errors import StatementError, refuse_if, unsupported
from trl_dbbench.mysqlite.patterns import MAX_REGEX_SECONDS, in_regex_time
from trl_dbbench.mysqlite.values import MAX_PATTERN_CHARACTERS, Value, number

_DATE = regex.compile(
    r"\s*(\d{4}|\d{2})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)"
    r"(?:[T ]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d+))?)?)?"
)
_TIME = regex.compile(r"\s*(\d{1,3}):(\d{1,2})(?::(\d{1,2}))?")
_COMPACT = regex.compile(r"\s*(\d{4}|\d{2})(\d{2})(\d{2})(?:(\d{2})(\d{2})(\d{2}))?$")


def moment(value: Value) -> datetime | None:
    """Return the date and time in a text or number (20200131), or `None` if it has none."""
    written = str(value)
    match = _DATE.match(written) or _COMPACT.match(written)
    if not match or written[match.end() : match.end() + 1].isdigit():
        return None
    parts = [int(part or 0) for part in match.groups()[:6]]
    parts += [0] * (6 - len(parts))
    if len(match[1]) == 2:
        parts[0] += 2000 if parts[0] < 70 else 1900
    try:
        return datetime(*parts)  # type: ignore[arg-type]
    except ValueError:
        return None


def is_date(written: str) -> bool:
    """Return whether the whole text is a date, or a date and time. Queries also read one at its beginning."""
    whole = _DATE.fullmatch(written.rstrip()) or _COMPACT.match(written)
    return whole is not None and moment(written) is not None


def _clock(value: Value) -> tuple[int, int, int] | None:
    found = moment(value)
    if found:
        return found.hour, found.minute, found.second
    match = _TIME.fullmatch(str(value).rstrip())
    if match is None:
        if any(map(str.isdigit, str(value))):  # MySQL reads numbers and some other texts as times
            raise unsupported("the time of what is neither a time nor a date")
        return None
    hour, minute, second = (int(part or 0) for part in match.groups())
    return (hour, minute, second) if max(minute, second) < 60 else None


_CLOCK = regex.compile(r"(-?)(\d{1,3}):([0-5]?\d)(?::([0-5]?\d)(\.\d+)?)?", regex.ASCII)


def clock_text(written: str) -> str | None:
    """Return a text as a TIME column holds it: `9:30` is `09:30:00`. Return `None` for a text without digits,
    and raise StatementError for a form that only servers read."""
    match = _CLOCK.fullmatch(written)
    if match is None or int(match[2]) > 838:
        refuse_if(any(map(str.isdigit, written)), "this form of a time")
        return None
    sign, hour, minute, second, fraction = match.groups()
    return f"{sign}{int(hour):02}:{int(minute):02}:{int(second or 0):02}{fraction or ''}"


def _write(value: datetime, with_time: bool) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S" if with_time else "%Y-%m-%d").zfill(19 if with_time else 10)


def _of_date(function: Callable[[datetime], Value]) -> Callable[[Value], Value]:
    def call(value: Value) -> Value:
        found = moment(value)
        return None if found is None else function(found)

    return call


def _of_clock(place: int) -> Callable[[Value], int | None]:
    return lambda value: None if (found := _clock(value)) is None else found[place]


_YEAR_0 = "dates of the year 0"
"""Name in errors of the dates that MySQL supports and Python does not."""

_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "WEEK": 604_800}


def date_add(value: Value, amount: Value, unit: str, *, sign: int = 1) -> str | None:
    """Return `value + INTERVAL sign * amount unit`; a date stays a date unless the unit is below a day."""
    start = moment(value)
    if start is None:
        return None
    with_time = ":" in str(value) or unit in ("SECOND", "MINUTE", "HOUR")
    whole = number(amount)
    if whole % 1:
        refuse_if(isinstance(amount, str) or unit == "SECOND", "parts of a unit in INTERVAL")
        whole = math.floor(abs(whole) + 0.5) * (1 if whole > 0 else -1)
    whole *= sign
    try:
        if unit in _MONTHS:
            months = start.year * 12 + start.month - 1 + int(whole) * _MONTHS[unit]
            year, month = divmod(months, 12)
            refuse_if(year == 0, _YEAR_0)
            day = min(start.day, calendar.monthrange(year, month + 1)[1])
            return _write(start.replace(year=year, month=month + 1, day=day), with_time)
        moved = timedelta(seconds=_SECONDS[unit] * whole)
        refuse_if(-366 < start.toordinal() + moved.days <= 0, _YEAR_0)
        return _write(start + moved, with_time)
    except (KeyError, ValueError, OverflowError):
        return None


date_sub = partial(date_add, sign=-1)


def _full(move: Callable[[Value, Value, str], str | None]) -> Callable[[Value, Value, str, int], str]:
    """Return `date_add` or `date_sub` for a statement that changes rows: the result must be a date."""

    def moved(value: Value, amount: Value, unit: str, is_date: int) -> str:
        if moment(value) is None:
            raise unsupported("an interval added to what is no date, in a statement that changes rows")
        found = move(value, amount, unit)
        if found is None and is_date:
            raise StatementError(
                6527, f"DATE value is out of range in '({value} + interval {amount} {unit.lower()})'"
            )
        if found is None:
            raise StatementError(1441, "Datetime function: datetime field overflow")
        return found

    return moved


def timestampdiff(unit: str, first: Value, second: Value) -> int | None:
    start, end = moment(first), moment(second)
    if start is None or end is None:
        return None
    if unit in _MONTHS:
        sign = 1 if end >= start else -1
        low, high = (start, end) if sign > 0 else (end, start)
        months = (high.year - low.year) * 12 + high.month - low.month
        if (high.day, high.time()) < (low.day, low.time()):
            months -= 1
        return sign * (months // _MONTHS[unit])
    return int((end - start).total_seconds() / _SECONDS.get(unit, 1))


def datediff(first: Value, second: Value) -> int | None:
    start, end = moment(first), moment(second)
    return None if start is None or end is None else (start.date() - end.date()).days


def _ordinal(day: int) -> str:
    ending = "th" if 10 < day % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


def _week(at: datetime, mode: int) -> tuple[int, int]:
    """Return the year and week of a day in one of MySQL's eight modes, as its `calc_week` does."""
    monday, of_four = bool(mode & 1), bool(mode & 4) != bool(mode & 1)

    def first_day(year: int) -> int:
        """Return the first day of week 1: the first week that begins in the year, or has four days in it."""
        new_year = date(year, 1, 1).toordinal()
        passed = (new_year - monday) % 7  # days of its week before it
        return new_year - passed + 7 * (passed > (3 if of_four else 0))

    year, day = at.year, at.toordinal()
    if day < first_day(year):
        if not mode & 2:
            return year, 0
        year -= 1
    elif mode & 2 and at.month == 12 and day >= first_day(year + 1):
        year += 1
    return year, (day - first_day(year)) // 7 + 1


_STRFTIME = {
    **{letter: f"%{letter}" for letter in "abdfHIjmpSTWwy"},
    **{"h": "%I", "i": "%M", "M": "%B", "r": "%I:%M:%S %p", "s": "%S", "W": "%A"},
}
"""Letters of MySQL's formats, and the same in Python's `strftime`."""

_FORMATS: dict[str, Callable[[datetime], object]] = {
    "c": lambda at: at.month,
    "D": lambda at: _ordinal(at.day),
    "e": lambda at: at.day,
    "k": lambda at: at.hour,
    "l": lambda at: at.hour % 12 or 12,
    "U": lambda at: f"{_week(at, 0)[1]:02}",
    "u": lambda at: f"{_week(at, 1)[1]:02}",
    "V": lambda at: f"{_week(at, 2)[1]:02}",
    "v": lambda at: f"{_week(at, 3)[1]:02}",
    "X": lambda at: f"{_week(at, 2)[0]:04}",
    "x": lambda at: f"{_week(at, 3)[0]:04}",
    "Y": lambda at: f"{at.year:04}",
}


def _formatted(at: datetime, letter: str) -> str:
    if letter in _STRFTIME:
        return at.strftime(_STRFTIME[letter])
    return str(_FORMATS[letter](at)) if letter in _FORMATS else letter


def date_format(value: Value, form: Value) -> str | None:
    at = moment(value)
    if at is None or len(str(form)) > MAX_PATTERN_CHARACTERS:
        return None
    return regex.sub(r"%(.)", lambda match: _formatted(at, match[1]), str(form))


_PARSERS = {
    "Y": r"(?P<year>\d{4})", "y": r"(?P<short>\d{2})", "m": r"(?P<month>\d{1,2})", "c": r"(?P<month>\d{1,2})",
    "d": r"(?P<day>\d{1,2})", "e": r"(?P<day>\d{1,2})", "D": r"(?P<day>\d{1,2})(?:st|nd|rd|th)",
    "M": r"(?P<name>[A-Za-z]+)", "b": r"(?P<name>[A-Za-z]{3})", "W": r"[A-Za-z]+", "a": r"[A-Za-z]{3}",
    "H": r"(?P<hour>\d{1,2})", "k": r"(?P<hour>\d{1,2})", "h": r"(?P<hour>\d{1,2})",
    "I": r"(?P<hour>\d{1,2})", "l": r"(?P<hour>\d{1,2})", "i": r"(?P<minute>\d{1,2})",
    "s": r"(?P<second>\d{1,2})", "S": r"(?P<second>\d{1,2})", "p": r"(?P<half>[AaPp][Mm])", "f": r"\d{1,6}",
    "T": r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2}):(?P<second>\d{1,2})",
}  # fmt: skip
_MONTH_NAMES = {name.lower(): number for number, name in enumerate(calendar.month_name) if name}


@lru_cache(maxsize=256)
def _parts(form: str) -> tuple[str, ...]:
    """Return the regular expressions of a format's parts, in order."""
    parts, at = [], 0
    while at < len(form):
        if form[at] == "%" and at + 1 < len(form):
            parts.append(_PARSERS.get(form[at + 1], regex.escape(form[at + 1])))
            at += 2
        else:
            parts.append(r"\s*" if form[at].isspace() else regex.escape(form[at]))
            at += 1
    return tuple(parts)


@lru_cache(maxsize=1024)
def _parser(parts: tuple[str, ...]) -> Any:
    try:
        return regex.compile("".join(parts))
    except regex.error:  # a part occurs twice
        raise unsupported("STR_TO_DATE with a part twice") from None


def _read(written: str, form: str) -> Any:
    """Match a text with a format; MySQL ignores the rest of the format after the end of the text."""
    parts = _parts(form)
    match = in_regex_time(lambda: _parser(parts).match(written, timeout=MAX_REGEX_SECONDS))
    for count in range(len(parts) - 1, 0, -1):
        if match is not None:
            break
        start = _parser(parts[:count])
        match = in_regex_time(lambda: start.fullmatch(written, timeout=MAX_REGEX_SECONDS))  # noqa: B023
    return match


def str_to_date(value: Value, form: Value) -> str | None:
    """Return the date, the time, or both that `form` describes; NULL if the value does not match."""
    if len(str(form)) > MAX_PATTERN_CHARACTERS:
        return None
    written = str(value).strip()
    match = _read(written, str(form))
    if not match:
        return None
    found = {name: part for name, part in match.groupdict().items() if part is not None}
    month = int(found.get("month", 0))
    if "name" in found:
        month = next((n for name, n in _MONTH_NAMES.items() if name.startswith(found["name"].lower())), 0)
    year, hour = int(found.get("year", 0)), int(found.get("hour", 0))
    if "short" in found:
        year = int(found["short"]) + (2000 if int(found["short"]) < 70 else 1900)
    if "half" in found:
        hour = hour % 12 + (12 if found["half"].lower() == "pm" else 0)
    clock = f"{hour:02}:{int(found.get('minute', 0)):02}:{int(found.get('second', 0)):02}"
    has_clock = any(name in found for name in ("hour", "minute", "second"))
    if not year and not month and "day" not in found:
        return clock if has_clock else None
    day = int(found.get("day", 0))
    if not month or not day or month > 12 or day > calendar.monthrange(year or 4, month)[1]:
        return None
    return f"{year:04}-{month:02}-{day:02}" + (f" {clock}" if has_clock else "")


def full_str_to_date(value: Value, form: Value) -> str:
    """Return `str_to_date` for a statement that changes rows: the value must match."""
    found = str_to_date(value, form)
    if found is None:
        raise StatementError(1411, f"Incorrect datetime value: '{value}' for function str_to_date")
    return found


def _now() -> str:
    return _write(datetime.now(), True)


def _from_unix(seconds: Value, form: Value = None) -> str | None:
    if number(seconds) < 0:
        return None
    try:
        written = _write(datetime.fromtimestamp(float(seconds)), True)
    except (ValueError, OverflowError, OSError):
        return None
    return written if form is None else date_format(written, form)


def _time_text(value: Value, of_text: Value = 0) -> str | None:
    found = _clock(value)
    if of_text and found is not None and ":" not in str(value):  # MySQL reads its first number as seconds
        raise unsupported("TIME of a text that is a date")
    return None if found is None else f"{found[0]:02}:{found[1]:02}:{found[2]:02}"


def _unix(value: Value = None) -> int | None:
    at = datetime.now() if value is None else moment(value)
    return None if at is None else int(at.timestamp())


UNITS = frozenset({"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"})
EXTRACTED = UNITS | {"YEAR_MONTH"}


def _extract(unit: str, value: Value) -> Value:
    return DATE_FUNCTIONS[unit](value) if unit in EXTRACTED else None


def _from_days(days: Value) -> str:
    refuse_if(number(days) % 1 or not 366 <= number(days) <= date.max.toordinal() + 365, _YEAR_0)
    return date.fromordinal(int(number(days)) - 365).isoformat()


def _last_day(at: datetime) -> str:
    return _write(at.replace(day=calendar.monthrange(at.year, at.month)[1]), False)


DATE_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **dict.fromkeys(("NOW", "SYSDATE", "CURRENT_TIMESTAMP", "LOCALTIME"), lambda digits=0: _now()),
    **dict.fromkeys(("CURDATE", "CURRENT_DATE"), lambda: _now()[:10]),
    **dict.fromkeys(("CURTIME", "CURRENT_TIME"), lambda: _now()[11:]),
    "DATE": _of_date(lambda at: _write(at, False)),
    "TIMESTAMP": _of_date(lambda at: _write(at, True)),
    "TIME": _time_text,
    "YEAR": lambda value: (
        value if isinstance(value, int) and 0 < value < 10_000 else _of_date(lambda at: at.year)(value)
    ),
    "YEAR_MONTH": _of_date(lambda at: at.year * 100 + at.month),
    "MONTH": _of_date(lambda at: at.month),
    **dict.fromkeys(("DAY", "DAYOFMONTH"), _of_date(lambda at: at.day)),
    "DAYOFWEEK": _of_date(lambda at: at.isoweekday() % 7 + 1),
    "DAYOFYEAR": _of_date(lambda at: at.timetuple().tm_yday),
    "WEEKDAY": _of_date(lambda at: at.weekday()),
    "WEEK": lambda value, mode=0: _of_date(lambda at: _week(at, int(number(mode)) % 8)[1])(value),
    "WEEKOFYEAR": _of_date(lambda at: at.isocalendar()[1]),
    "QUARTER": _of_date(lambda at: (at.month + 2) // 3),
    "MONTHNAME": _of_date(lambda at: calendar.month_name[at.month]),
    "DAYNAME": _of_date(lambda at: calendar.day_name[at.weekday()]),
    "LAST_DAY": _of_date(_last_day),
    "TO_DAYS": _of_date(lambda at: at.toordinal() + 365),
    "HOUR": _of_clock(0),
    "MINUTE": _of_clock(1),
    "SECOND": _of_clock(2),
    "DATE_FORMAT": date_format,
    "TIME_FORMAT": lambda value, form: date_format(f"2000-01-01 {_time_text(value)}", form),
    "STR_TO_DATE": str_to_date,
    "FULL_STR_TO_DATE": full_str_to_date,
    "DATEDIFF": datediff,
    "TIMESTAMPDIFF": timestampdiff,
    "DATE_ADD": date_add,
    "DATE_SUB": date_sub,
    "FULL_DATE_ADD": _full(date_add),
    "FULL_DATE_SUB": _full(date_sub),
    "EXTRACT": _extract,
    "UNIX_TIMESTAMP": _unix,
    "FROM_UNIXTIME": _from_unix,
    "MAKEDATE": lambda year, day: (
        date_add(f"{int(year):0{4 - 2 * (int(year) < 100)}}-01-01", int(day) - 1, "DAY")
        if int(day) > 0
        else None
    ),
    "FROM_DAYS": _from_days,
}
