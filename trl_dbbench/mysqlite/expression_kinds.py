"""Which of MySQL's types each kind of expression gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sqlglot import exp

from trl_dbbench.mysqlite.conversions import is_number
from trl_dbbench.mysqlite.kinds import (
    DATE,
    DATETIME,
    FLOAT,
    INT,
    MAX_PLACES,
    MOST_SINGLE_BITS,
    NULL,
    SINGLE,
    TEXT,
    TIME,
    UNKNOWN,
    UNSIGNED,
    Kind,
    arithmetic,
    kind_of,
    merged,
    words,
)

_T = exp.DataType.Type
_DAYS = ("DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
_CLOCK_FORMAT = re.compile("%[HhIiklprSsTf]")
_DATE_FORMAT = re.compile("%[aabcDdejMmUuVvWwXxYy]")


def _same(node: exp.Expr) -> Kind:
    return kind_of(node.this)


def _always(kind: Kind) -> Callable[[exp.Expr], Kind]:
    return lambda node: kind


def _arguments(node: exp.Expr) -> list[exp.Expr]:
    first = [node.this] if isinstance(node.this, exp.Expr) else []
    return [*first, *node.expressions]


def _any(node: exp.Expr) -> Kind:
    return silent(merged(map(kind_of, _arguments(node))))


def silent(kind: Kind) -> Kind:
    """The kind, if it is a text one that MySQL reads as a number without an error."""
    return kind._replace(silent=True) if kind.name == "text" else kind


def _one_of(nodes: Sequence[exp.Expr | None], kind: Kind) -> Kind:
    """The kind of what is chosen among values: MySQL reads each of them as a number in its own way."""
    texts = [each for each in nodes if kind_of(each).name == "text"]
    states = {kind_of(each).silent for each in texts if each is not None and not _is_number(each)}
    return kind._replace(silent=states.pop() if len(states) == 1 else None if states else False)


def _is_number(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and is_number(node.name)


def _over_window(node: exp.Expr) -> Kind:
    """Of a window function; MySQL reads MIN and MAX as the columns of a table that it makes."""
    kind, function = _same(node), node.this
    if kind.name != "text":
        return kind
    return kind._replace(silent=kind_of(function.this).silent or None)


def _sides(node: exp.Expr) -> list[Kind]:
    return [_counted(kind_of(node.this)), _counted(kind_of(node.args.get("expression")))]


def _counted(kind: Kind) -> Kind:
    """A kind as it counts in arithmetic, where a date is a whole number."""
    return INT if kind.is_moment else kind


def _plus(node: exp.Expr) -> Kind:
    for moment, interval in ((node.this, node.expression), (node.expression, node.this)):
        if isinstance(interval, exp.Interval):
            return _moved(kind_of(moment), interval)
    return arithmetic(_sides(node))


def _moved(kind: Kind, interval: exp.Expr) -> Kind:
    unit = interval.args.get("unit")
    days = unit is None or unit.name.upper().removesuffix("S") in _DAYS
    if kind.name == "null":
        return TEXT
    return DATETIME if kind == DATE and not days else kind


def _product(node: exp.Expr) -> Kind:
    sides = _sides(node)
    return arithmetic(sides, sum(kind.places for kind in sides))


def _quotient(node: exp.Expr) -> Kind:
    left, right = _sides(node)
    both = arithmetic([left, right], 0)
    return Kind("decimal", min(left.places + 4, MAX_PLACES)) if both.name in ("int", "decimal") else both


def _shifted(node: exp.Expr) -> Kind:
    """What LAG and LEAD give: a row's value, or else the default."""
    values = [each for each in (node.this, node.args.get("default")) if each is not None]
    return _one_of(values, merged(map(kind_of, values)))


def _remainder(kinds: list[Kind]) -> Kind:
    """Of a division; it has the sign of the dividend."""
    return arithmetic(kinds)._replace(unsigned=bool(kinds) and kinds[0].unsigned)


def _case(node: exp.Expr) -> Kind:
    results = [branch.args.get("true") for branch in node.args["ifs"]]
    results.append(node.args.get("default"))
    return _one_of(results, merged(NULL if each is None else kind_of(each) for each in results))


def _if(node: exp.Expr) -> Kind:
    results = [node.args.get("true"), node.args.get("false")]
    return _one_of(results, merged([kind_of(results[0]), kind_of(results[1]) if results[1] else NULL]))


def _sum(node: exp.Expr) -> Kind:
    kind = _counted(_of_distinct(node))
    return Kind("decimal", kind.places) if kind.name in ("int", "decimal") else arithmetic([kind])


def _average(node: exp.Expr) -> Kind:
    kind = _sum(node)
    return Kind("decimal", min(kind.places + 4, MAX_PLACES)) if kind.name == "decimal" else kind


def _extreme(node: exp.Expr) -> Kind:
    """Of MIN and MAX. Beside GROUP BY, MySQL may make a DOUBLE of a computed FLOAT."""
    kind = _of_distinct(node)
    select = node.find_ancestor(exp.Window, exp.Select)
    grouped = isinstance(select, exp.Select) and select.args.get("group") is not None
    stored = isinstance(node.this, exp.Column) and kind.silent is False
    if kind.is_single and grouped and not stored:
        return kind._replace(silent=True)
    return silent(kind)


def _of_distinct(node: exp.Expr) -> Kind:
    inner = node.this
    return kind_of(inner.expressions[0]) if isinstance(inner, exp.Distinct) else kind_of(inner)


def _literal(node: exp.Expr) -> Kind:
    if node.is_string:
        return TEXT
    written = node.name.lower()
    if "e" in written or "x" in written:
        return FLOAT
    return Kind("decimal", len(written.partition(".")[2])) if "." in written else INT


def _cast(node: exp.Expr) -> Kind:
    kind = node.args["to"]
    if kind.this in (_T.DECIMAL, _T.UDECIMAL):
        sizes = [size.name for size in kind.expressions]
        return Kind("decimal", int(sizes[1]) if len(sizes) > 1 and sizes[1].isdecimal() else 0)
    if kind.this == _T.FLOAT:
        bits = kind.expressions[0].name if kind.expressions else "0"
        return SINGLE if not bits.isdecimal() or int(bits) <= MOST_SINGLE_BITS else FLOAT
    return _CASTS.get(kind.this, TEXT)


_CASTS = {
    **dict.fromkeys((_T.BIGINT, _T.INT, _T.SMALLINT, _T.TINYINT), INT),
    **dict.fromkeys((_T.UBIGINT, _T.UINT, _T.YEAR), UNSIGNED),
    **dict.fromkeys((_T.DOUBLE, _T.UDOUBLE), FLOAT),
    **dict.fromkeys((_T.DATETIME, _T.TIMESTAMP, _T.TIMESTAMPTZ, _T.TIMESTAMPNTZ), DATETIME),
    _T.DATE: DATE,
    _T.TIME: TIME,
}


def _rounded(node: exp.Expr) -> Kind:
    """ROUND and TRUNCATE: to a number of places that stands there, or to as many as the number has."""
    kind, digits = _counted(_first(node)), node.expressions[1:]
    if kind.name != "decimal":
        return arithmetic([kind])
    if not digits:
        return Kind("decimal", 0)
    places = (
        digits[0].name
        if isinstance(digits[0], exp.Literal)
        else "0"
        if isinstance(digits[0], exp.Neg)
        else ""
    )
    return Kind("decimal", min(kind.places, int(places)) if places.isdecimal() else kind.places)


def _whole(node: exp.Expr) -> Kind:
    kind = _counted(kind_of(node.expressions[0])) if node.expressions else UNKNOWN
    return INT if kind.name == "decimal" else arithmetic([kind])


def _parsed_date(node: exp.Expr) -> Kind:
    form = node.expressions[1] if len(node.expressions) == 2 else None
    if not isinstance(form, exp.Literal):
        return UNKNOWN
    days, clock = _DATE_FORMAT.search(form.name), _CLOCK_FORMAT.search(form.name)
    return (DATETIME if clock else DATE) if days else TIME


def _first(node: exp.Expr) -> Kind:
    return kind_of(node.expressions[0]) if node.expressions else UNKNOWN


def _date_function(node: exp.Expr) -> Kind:
    if len(node.expressions) != 2:
        return UNKNOWN
    moment, interval = node.expressions
    return _moved(kind_of(moment), interval)


_WHOLE = words(
    """
    LENGTH CHAR_LENGTH CHARACTER_LENGTH OCTET_LENGTH LOCATE INSTR ASCII ORD FIELD STRCMP
    FIND_IN_SET SIGN MONTH DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR WEEKDAY WEEK WEEKOFYEAR
    QUARTER HOUR MINUTE SECOND TO_DAYS DATEDIFF TIMESTAMPDIFF UNIX_TIMESTAMP ISNULL REGEXP_LIKE
    """
)
_REAL = words(
    """
    SQRT POW POWER EXP LN LOG LOG2 LOG10 SIN COS TAN RADIANS DEGREES RAND PI STD STDDEV
    STDDEV_POP STDDEV_SAMP VARIANCE VAR_POP VAR_SAMP
    """
)
_TEXTUAL = words(
    """
    CONCAT CONCAT_WS UPPER UCASE LOWER LCASE LEFT RIGHT SUBSTR SUBSTRING MID SUBSTRING_INDEX
    REPLACE REPEAT REVERSE SPACE LPAD RPAD LTRIM RTRIM INSERT DATE_FORMAT TIME_FORMAT DAYNAME
    MONTHNAME FORMAT HEX CHAR DATABASE SCHEMA VERSION USER CURRENT_USER UUID
    """
)
_FUNCTIONS: dict[str, Callable[[exp.Expr], Kind]] = {
    **dict.fromkeys(_WHOLE, _always(INT)),
    **dict.fromkeys(("YEAR", "CONNECTION_ID"), _always(UNSIGNED)),
    **dict.fromkeys(_REAL, _always(FLOAT)),
    **dict.fromkeys(_TEXTUAL, _always(TEXT)),
    **dict.fromkeys(("DATE", "LAST_DAY", "CURDATE", "CURRENT_DATE", "FROM_DAYS", "MAKEDATE"), _always(DATE)),
    **dict.fromkeys(("NOW", "SYSDATE", "CURRENT_TIMESTAMP", "LOCALTIME", "TIMESTAMP"), _always(DATETIME)),
    **dict.fromkeys(("TIME", "CURTIME", "CURRENT_TIME"), _always(TIME)),
    **dict.fromkeys(("DATE_ADD", "DATE_SUB", "ADDDATE", "SUBDATE"), _date_function),
    **dict.fromkeys(("IFNULL", "GREATEST", "LEAST"), _any),
    **dict.fromkeys(("ROUND", "TRUNCATE"), _rounded),
    **dict.fromkeys(("FLOOR", "CEIL", "CEILING"), _whole),
    **dict.fromkeys(("REGEXP_REPLACE", "REGEXP_SUBSTR"), _always(silent(TEXT))),
    "ELT": lambda node: _one_of(node.expressions[1:], TEXT),
    "NULLIF": _first,
    "ANY_VALUE": lambda node: silent(_first(node)),
    "FROM_UNIXTIME": lambda node: DATETIME if len(node.expressions) == 1 else TEXT,
    "STR_TO_DATE": _parsed_date,
    "ABS": lambda node: arithmetic([_counted(_first(node))]),
    "MOD": lambda node: _remainder([_counted(kind_of(each)) for each in node.expressions]),
}
"""Functions that are nothing but a name to the parser."""

_NODES: dict[type[exp.Expr], Callable[[exp.Expr], Kind]] = {
    exp.Literal: _literal,
    exp.Null: _always(NULL),
    exp.Boolean: _always(INT),
    exp.Anonymous: lambda node: _FUNCTIONS.get(str(node.this).upper(), _always(UNKNOWN))(node),
    **dict.fromkeys((exp.Paren, exp.Alias, exp.IgnoreNulls, exp.RespectNulls), _same),
    exp.Collate: lambda node: _same(node)._replace(silent=False),
    exp.Window: _over_window,
    **dict.fromkeys((exp.Min, exp.Max), _extreme),
    **dict.fromkeys((exp.Lag, exp.Lead), _shifted),
    **dict.fromkeys((exp.FirstValue, exp.LastValue, exp.NthValue), _same),
    **dict.fromkeys((exp.Add, exp.Sub), _plus),
    exp.Mul: _product,
    exp.Div: _quotient,
    exp.Mod: lambda node: _remainder(_sides(node)),
    exp.IntDiv: lambda node: INT._replace(unsigned=any(kind.unsigned for kind in _sides(node))),
    exp.Neg: lambda node: arithmetic([_counted(_same(node))])._replace(unsigned=False),
    exp.Case: _case,
    exp.If: _if,
    exp.Coalesce: _any,
    exp.Sum: _sum,
    exp.Avg: _average,
    exp.Cast: _cast,
    **dict.fromkeys(
        (exp.GroupConcat, exp.Trim, exp.Substring, exp.Concat, exp.Chr, exp.CurrentUser), _always(TEXT)
    ),
    exp.Count: _always(INT),
    **dict.fromkeys((exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile), _always(UNSIGNED)),
    **dict.fromkeys((exp.Extract, exp.StrPosition, exp.Predicate, exp.Not, exp.Connector), _always(INT)),
    **dict.fromkeys((exp.PercentRank, exp.CumeDist), _always(FLOAT)),
    exp.CurrentDate: _always(DATE),
    exp.CurrentTime: _always(TIME),
    **dict.fromkeys((exp.CurrentTimestamp, exp.Localtime, exp.Localtimestamp), _always(DATETIME)),
}


def of_expression(node: exp.Expr) -> Kind:
    """The kind of an expression that is no column and no query; those below it must have theirs."""
    rule = next((_NODES[kind] for kind in type(node).__mro__ if kind in _NODES), None)
    return UNKNOWN if rule is None else rule(node)
