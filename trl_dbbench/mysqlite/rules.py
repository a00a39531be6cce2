"""Translation of MySQL's statements for SQLite, by a rule for each type of node in sqlglot's tree.

Operators and functions whose meaning differs become calls of `functions`, with the prefix `my_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

from sqlglot import exp
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import SqlglotError

from trl_dbbench.mysqlite import coercions, errors, functions, names
from trl_dbbench.mysqlite.checks import single_row
from trl_dbbench.mysqlite.coercions import as_text, call, collated, exact, in_change, is_in_change, numeric
from trl_dbbench.mysqlite.dates import EXTRACTED, UNITS
from trl_dbbench.mysqlite.errors import SHOWN_DATABASE, StatementError, fail_if, refuse_if, unsupported
from trl_dbbench.mysqlite.functions import AGGREGATES, DOUBTFUL, OVERFLOW, OVERFLOWING, takes
from trl_dbbench.mysqlite.kinds import (
    APART,
    DATE,
    INT,
    Kind,
    TableColumns,
    annotate,
    keep_kind,
    kind_of,
    words,
)
from trl_dbbench.mysqlite.parse import quote, text_of
from trl_dbbench.mysqlite.storage import count_rows, is_recursive, note_columns, store, store_columns
from trl_dbbench.mysqlite.values import COLLATION

_FUNCTIONS = functions.functions()
_KNOWN = {name for name in _FUNCTIONS if not functions.is_own(name)} | {*AGGREGATES, "ADDDATE", "SUBDATE"}


def interval(node: exp.Interval) -> tuple[exp.Expr, exp.Expr]:
    unit = node.args.get("unit")
    amount = node.this or exp.null()
    name = "" if unit is None else unit.name.upper()
    if name not in UNITS:  # such as DAY_HOUR, or what the parser takes for a second interval
        raise unsupported(f"INTERVAL ... {name}")
    whole = isinstance(amount, exp.Literal) and amount.name.lstrip("+-").isdecimal()
    checked = amount if whole else in_change(amount, "FULL_INTEGER")
    if checked is not amount and isinstance(checked, exp.Anonymous) and kind_of(amount).silent is not False:
        coercions.doubt(checked)
    return checked, exp.Literal.string(name)


def counted(node: exp.Expr) -> exp.Expr:
    """Return a count or position, checked to be an integer: MySQL rounds other numbers in several ways."""
    kind = kind_of(node)
    if kind.name == "text" and is_in_change(node):
        raise unsupported("a text as a count in a statement that changes rows")
    return node if kind.name in ("int", "null") else call("COUNT", coercions.as_number(node))


def move(name: str, moment: exp.Expr, amount: exp.Interval, kind: Kind) -> exp.Expr:
    """Return a call of DATE_ADD or DATE_SUB with a result of this kind."""
    strict = is_in_change(moment)
    arguments = [_start(moment), *interval(amount)]
    if not strict:
        return call(name, *arguments)
    made = call(f"FULL_{name}", *arguments, int(kind == DATE))
    return coercions.unless_null(arguments[:1], made) if coercions.may_fail(arguments[1]) else made


def _start(moment: exp.Expr) -> exp.Expr:
    """Return the value that an interval is added to. MySQL shows the time of a text that was moved before."""
    among = kind_of(moment).name == "text" and coercions.chooses(moment)
    if among and any(kind_of(each).is_moment for each in moment.walk()):
        raise unsupported("an interval added to a date among texts")
    moment = in_change(moment, "FULL_DATE")
    return call("MOMENT", moment) if coercions.is_moved(moment) and kind_of(moment).name == "text" else moment


_T = exp.DataType.Type
_INTEGERS = {_T.BIGINT, _T.UBIGINT, _T.INT, _T.UINT, _T.SMALLINT, _T.TINYINT}
_TEXTS = {_T.CHAR, _T.NCHAR, _T.VARCHAR, _T.NVARCHAR, _T.TEXT, _T.CHARACTER_SET, _T.JSON}


def cast(node: exp.Expr) -> exp.Expr:
    kind = node.args["to"]
    sizes = [exp.Literal.number(size.name) for size in kind.expressions]
    if odd := next((size.name for size in sizes if not size.name.isdecimal()), None):
        raise errors.syntax_error(f"{odd})")
    if kind.this in (_T.DECIMAL, _T.UDECIMAL) and any(
        int(size.name) > most for size, most in zip(sizes, (65, 30), strict=False)
    ):
        raise StatementError(1426, f"Too-big precision specified for '{text_of(node.this)}'. Maximum is 65.")
    refuse_if(kind.this == _T.YEAR, "CAST(... AS YEAR)")
    if kind.this in _INTEGERS:
        name = "CAST_FLOAT_SIGNED" if kind_of(node.this).name == "float" else "CAST_SIGNED"
        whole = call(name, in_change(coercions.as_number(node.this), "FULL_INTEGER"))
        return call("CAST_UNSIGNED", whole) if kind.this in (_T.UBIGINT, _T.UINT) else whole
    if kind.this in (_T.DECIMAL, _T.UDECIMAL):
        digits, places = [*sizes, *map(exp.Literal.number, (10, 0)[len(sizes) :])]
        return call(
            "CAST_DECIMAL", in_change(coercions.as_number(node.this), "FULL_BEGUN_DECIMAL"), places, digits
        )
    if kind_of(node).is_single:
        return call("CAST_FLOAT", numeric(node.this))
    if kind.this in (_T.FLOAT, _T.DOUBLE, _T.UDOUBLE):
        return call("CAST_DOUBLE", numeric(node.this))
    if kind.this in _TEXTS:
        charset = kind.args.get("kind") if kind.this == _T.CHARACTER_SET else None
        refuse_if(charset is not None and charset.name.lower() != "utf8mb4", f"the character set {charset}")
        return call("CAST_CHAR", as_text(node.this), *sizes[:1])
    if kind.this in (_T.BINARY, _T.VARBINARY):
        return exp.Collate(this=node.this, expression=exp.var(coercions.BINARY))
    if kind.this == _T.DATE:
        return call("DATE", in_change(node.this, "FULL_DATE"))
    if kind.this == _T.TIME:
        return call("TIME", node.this)
    if kind.this in (_T.DATETIME, _T.TIMESTAMP, _T.TIMESTAMPTZ, _T.TIMESTAMPNTZ):
        return call("TIMESTAMP", in_change(node.this, "FULL_DATE"))
    raise errors.syntax_error(text_of(node))


def check_name(node: exp.Anonymous) -> None:
    """Raise StatementError for a function that does not exist; MySQL checks this before anything else."""
    name = str(node.this).upper()
    fail_if(name.strip('"').endswith(" "), 1458, f"Incorrect routine name '{node.this}'")
    if isinstance(node.parent, exp.Dot):
        if isinstance(node.parent.this, exp.Dot):
            raise errors.syntax_error("(")
        raise StatementError(1305, f"FUNCTION {node.parent.sql(dialect='mysql')} does not exist")
    if name in ("IFNULL", "VALUES", "ANY_VALUE") or name in _KNOWN:
        return
    if name in _MISSING or name.startswith(("ST_", "MBR", "JSON_", "INET", "IS_IPV", "GTID_")):
        raise unsupported(f"{name}()")
    raise StatementError(1305, f"FUNCTION {SHOWN_DATABASE}.{name} does not exist")


def function_call(node: exp.Expr) -> exp.Expr:
    name, arguments = str(node.this).upper(), list(node.expressions)
    if name == "VALUES":
        refuse_if(node.find_ancestor(exp.OnConflict) is None, "VALUES() outside ON DUPLICATE KEY UPDATE")
        return exp.column(arguments[0].copy(), "excluded")
    if name == "ANY_VALUE" and len(arguments) == 1:
        return arguments[0]
    if name == "IFNULL":
        node.set("expressions", [coercions.unified(each, kind_of(node)) for each in arguments])
        return node
    if name in ("TIMESTAMPDIFF", "TIMESTAMPADD") and arguments:
        if arguments[0].name.upper().removeprefix("SQL_TSI_") not in UNITS | {"MICROSECOND"}:
            raise errors.syntax_error(text_of(arguments[0]))
        arguments[0] = exp.Literal.string(arguments[0].name.upper())
    if name in ("ADDDATE", "SUBDATE") and len(arguments) == 2 and not isinstance(arguments[1], exp.Interval):
        arguments[1] = exp.Interval(this=arguments[1], unit=exp.var("DAY"))
    if name in _MOVING and len(arguments) == 2 and isinstance(arguments[1], exp.Interval):
        return move(_MOVING[name], arguments[0].unnest(), arguments[1], kind_of(node))
    strict = is_in_change(node)
    for place, each in enumerate(arguments[: 2 if name == "DATEDIFF" else 1] if name in _OF_DATES else ()):
        if kind_of(each).is_number:
            refuse_if(strict and place, "DATEDIFF of a number in a statement that changes rows")
            arguments[place] = call("DATED", each)
    counts = _COUNTS.get(name, ())
    arguments = [counted(each) if place in counts else each for place, each in enumerate(arguments)]
    if strict:
        arguments = _checked(name, arguments)
    arguments = _converted(name, arguments, kind_of(node))
    if name == "MOD" and len(arguments) == 2 and strict:
        arguments[1] = call("DIVISOR", arguments[1], arguments[0].copy())
    refuse_if(len(arguments) > _MOST.get(name, len(arguments)), f"{name} with {len(arguments)} arguments")
    wrong = len(arguments) < _FEWEST.get(name, 0) or name in _MOVING or name == "ANY_VALUE"
    if wrong or (name in _FUNCTIONS and not takes(_FUNCTIONS[name], arguments)):
        raise StatementError(1582, f"Incorrect parameter count in the call to native function '{name}'")
    own = "FULL_STR_TO_DATE" if strict and name == "STR_TO_DATE" else name
    if name == "MOD":
        own = remainder_of(kind_of(node))
    if name in OVERFLOWING and node.find_ancestor(exp.Predicate, exp.Connector, exp.If, exp.Case) is not None:
        own = f"{DOUBTFUL}{name}"  # MySQL may not compute it next to a NULL
    made = exact(call(own, *arguments), kind_of(node) if name in _COMPUTING else INT)
    if name in _ROUNDING and kind_of(node).name == "float":
        made = call("SIGNED", made, arguments[0].copy())
    if name == "FORMAT" and str(arguments[0].this) == "my_ROUND_FLOAT":
        made = call("SIGNED_TEXT", made, arguments[0].copy())
    last = max((n for n, each in enumerate(arguments) if strict and coercions.may_fail(each)), default=0)
    if not last or name in _READING_ALL:
        return made
    refuse_if(name not in _STOPPING, f"{name} of what may be no number in a statement that changes rows")
    return coercions.unless_null(arguments[:last], made)


def remainder_of(kind: Kind) -> str:
    """Return the name of the modulo function for a result of this kind."""
    return "DECIMAL_MOD" if kind.name == "decimal" else "MOD"


_MOVING = {"DATE_ADD": "DATE_ADD", "ADDDATE": "DATE_ADD", "DATE_SUB": "DATE_SUB", "SUBDATE": "DATE_SUB"}
_ROUNDING = words("ROUND TRUNCATE CEIL CEILING FLOOR")
_MISSING = words(
    """
    ACOS ADDTIME AES_DECRYPT AES_ENCRYPT ASIN ATAN ATAN2 BENCHMARK BIN BIN_TO_UUID BIT_AND BIT_COUNT
    BIT_LENGTH BIT_OR BIT_XOR CHARSET COERCIBILITY COLLATION COMPRESS CONV CONVERT_TZ COT CRC32 CURRENT_ROLE
    EXPORT_SET EXTRACTVALUE FORMAT_BYTES FORMAT_PICO_TIME FOUND_ROWS FROM_BASE64 GEOMCOLLECTION
    GEOMETRYCOLLECTION GET_FORMAT GET_LOCK GROUPING ICU_VERSION INTERVAL IS_FREE_LOCK IS_USED_LOCK IS_UUID
    LAST_INSERT_ID LINESTRING LOAD_FILE MAKETIME MAKE_SET MD5 MICROSECOND MULTILINESTRING MULTIPOINT
    MULTIPOLYGON NAME_CONST OCT PERIOD_ADD PERIOD_DIFF POINT POLYGON PS_CURRENT_THREAD_ID PS_THREAD_ID QUOTE
    RANDOM_BYTES REGEXP_INSTR RELEASE_ALL_LOCKS RELEASE_LOCK ROLES_GRAPHML ROW ROW_COUNT SEC_TO_TIME
    SESSION_USER SHA SHA1 SHA2 SOUNDEX SOURCE_POS_WAIT STATEMENT_DIGEST STATEMENT_DIGEST_TEXT STRING_TO_VECTOR
    SUBTIME SYSTEM_USER TIMEDIFF TIMESTAMPADD TIME_TO_SEC TO_BASE64 TO_SECONDS UNCOMPRESS UNCOMPRESSED_LENGTH
    UNHEX UPDATEXML UTC_DATE UTC_TIME UTC_TIMESTAMP UUID_SHORT UUID_TO_BIN VALIDATE_PASSWORD_STRENGTH
    VECTOR_DIM VECTOR_TO_STRING WEIGHT_STRING YEARWEEK
    """
)
"""MySQL functions that the embedded database lacks, apart from the families in `check_name`."""

_COMPUTING = frozenset({"ABS", "MOD", "TRUNCATE"})
_OF_TEXTS = words(
    """
    CONCAT CONCAT_WS UPPER UCASE LOWER LCASE LEFT RIGHT SUBSTR SUBSTRING MID SUBSTRING_INDEX REPLACE REPEAT
    REVERSE LPAD RPAD LTRIM RTRIM INSERT LENGTH CHAR_LENGTH CHARACTER_LENGTH OCTET_LENGTH LOCATE INSTR ASCII
    ORD STRCMP FIND_IN_SET REGEXP_LIKE REGEXP_REPLACE REGEXP_SUBSTR
    """
)
_OF_NUMBERS = words(
    """
    ABS CEIL CEILING FLOOR ROUND TRUNCATE MOD POW POWER SQRT SIGN EXP LN LOG LOG2 LOG10 SIN COS TAN RADIANS
    DEGREES FORMAT STD STDDEV STDDEV_POP STDDEV_SAMP VARIANCE VAR_POP VAR_SAMP
    """
)

_FEWEST = {
    **dict.fromkeys(("GREATEST", "LEAST", "ELT", "FIELD", "CONCAT_WS"), 2),
    **dict.fromkeys(("LPAD", "RPAD"), 3),
    "CONCAT": 1,
}
"""Fewest arguments of functions whose Python versions accept fewer."""
_MOST = {"RAND": 0, "FORMAT": 2, "REGEXP_SUBSTR": 2, "REGEXP_REPLACE": 3}
"""Most arguments supported here of functions that take more in MySQL."""
_READING_ALL = words("MOD DATEDIFF LEFT REPEAT LPAD LOCATE FORMAT")
"""Functions that evaluate all of their arguments, even if the first is NULL."""
_STOPPING = words(
    """
    CONCAT POW POWER ROUND TRUNCATE GREATEST LEAST NULLIF REPLACE INSTR STRCMP DATE_FORMAT TIMESTAMPDIFF
    """
)
"""Functions that evaluate no argument after one that is NULL."""
_OF_DATES = words(
    """
    DATE TIMESTAMP YEAR MONTH DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR WEEKDAY WEEK WEEKOFYEAR QUARTER MONTHNAME
    DAYNAME LAST_DAY TO_DAYS DATEDIFF DATE_FORMAT UNIX_TIMESTAMP TIMESTAMPDIFF
    """
)
_COUNTS = {
    **dict.fromkeys(("LEFT", "RIGHT", "REPEAT", "LPAD", "RPAD", "FORMAT", "ROUND", "TRUNCATE"), (1,)),
    **dict.fromkeys(("SUBSTR", "SUBSTRING", "MID"), (1, 2)),
    "SUBSTRING_INDEX": (2,),
    "LOCATE": (2,),
    "ELT": (0,),
    "SPACE": (0,),
}
"""Indices of arguments that are counts or positions, see `counted`."""
_OF_TIMES = frozenset({"TIME", "HOUR", "MINUTE", "SECOND", "TIME_FORMAT"})


def _check_kinds(name: str, arguments: list[exp.Expr]) -> None:
    """Refuse arguments of kinds that MySQL compares or reads in special ways."""
    kinds = [kind_of(each) for each in arguments]
    mixed = any(kind.is_moment for kind in kinds) and not all(
        kind.is_moment or kind.name == "null" for kind in kinds
    )
    refuse_if(name in ("GREATEST", "LEAST", "STRCMP") and mixed, f"{name} of a date and something else")
    refuse_if(name in ("STRCMP", "FROM_DAYS") and any(kind.is_moment for kind in kinds), f"{name} of dates")
    other = name == "UNIX_TIMESTAMP" and any(kind.name == "text" for kind in kinds)
    other = other or (name in _OF_TIMES and bool(kinds) and kinds[0].is_number)
    if other or (name == "FROM_UNIXTIME" and kinds and kinds[0].name not in ("int", "null")):
        raise unsupported(f"{name} of such a value")


def _checked(name: str, arguments: list[exp.Expr]) -> list[exp.Expr]:
    """Return a function's arguments, checked as MySQL does in a statement that changes rows."""
    if name in _OF_TIMES and arguments and kind_of(arguments[0]).name == "text":
        raise unsupported(f"{name} of a text in a statement that changes rows")
    kinds = [kind_of(each) for each in arguments]
    mixed = any(kind.name == "text" for kind in kinds) and any(kind.is_number for kind in kinds)
    if name in ("GREATEST", "LEAST") and mixed:
        raise unsupported(f"{name} of numbers and texts in a statement that changes rows")
    if name in ("LN", "LOG", "LOG2", "LOG10"):
        return [call("POSITIVE", each) for each in arguments]
    if name not in _OF_DATES:
        return arguments
    dates = {"DATEDIFF": (0, 1), "TIMESTAMPDIFF": (1, 2)}.get(name, (0,))
    return [in_change(each, "FULL_DATE") if n in dates else each for n, each in enumerate(arguments)]


def _converted(name: str, arguments: list[exp.Expr], kind: Kind) -> list[exp.Expr]:
    """Return a function's arguments, converted to the types that it takes."""
    if name in ("GREATEST", "LEAST", "STRCMP", "UNIX_TIMESTAMP", "FROM_UNIXTIME", "FROM_DAYS", *_OF_TIMES):
        _check_kinds(name, arguments)
    if name in _OF_TEXTS:
        return [as_text(each) for each in arguments]
    if name in _OF_NUMBERS:
        rounded = [numeric(each) for each in arguments]
        to_even = (
            name in ("ROUND", "FORMAT") and arguments and kind_of(arguments[0]).name in ("float", "text")
        )
        if not to_even:
            return rounded
        digits = rounded[1:] or [exp.Literal.number(0)]
        return [call("ROUND_FLOAT", rounded[0], *digits), *rounded[1:]]
    if name == "STR_TO_DATE" and not all(isinstance(each, exp.Literal | exp.Null) for each in arguments[1:]):
        raise unsupported("STR_TO_DATE with a computed format")
    if name == "NULLIF" and len(arguments) == 2:
        return [*coercions.comparable(arguments, strict=True), arguments[0].copy()]
    if name == "FIELD":
        numbers = any(kind_of(each).is_number for each in arguments)
        if numbers and any(kind_of(each).is_moment for each in arguments):
            raise unsupported("FIELD of dates and numbers")
        return coercions.comparable(arguments) if numbers else arguments  # MySQL compares dates as texts
    if name == "TIME" and len(arguments) == 1:
        return [*arguments, exp.Literal.number(int(kind_of(arguments[0]).name == "text"))]
    if name == "DATE_FORMAT":
        return [*arguments[:1], *map(as_text, arguments[1:])]
    if name in ("GREATEST", "LEAST", "ELT"):
        return [coercions.unified(each, kind) for each in arguments]
    return arguments


def _total(node: exp.Expr) -> exp.Expr:
    """Return SUM or AVG; a decimal result is rounded to its places."""
    refuse_if(any(each.find(exp.Avg) for each in node.find_all(exp.Subquery)), "a sum of a subquery's mean")
    if not isinstance(node.this, exp.Distinct):
        node.set("this", numeric(node.this))
    elif kind_of(node.this.expressions[0]).name == "text":
        refuse_if(is_in_change(node), "a sum of different texts in a statement that changes rows")
        node.this.set("expressions", [call("CAST_DOUBLE", each) for each in node.this.expressions])
    else:
        node.this.set("expressions", [coercions.as_number(each) for each in node.this.expressions])
    return node if isinstance(node.parent, exp.Window) else _of_mean(node, kind_of(node))


def _of_mean(node: exp.Expr, kind: Kind) -> exp.Expr:
    """Return a rounded total. A mean that is not stored has its places rounded up to a multiple of nine."""
    mean = isinstance(node.this if isinstance(node, exp.Window) else node, exp.Avg) and not _is_kept(node)
    return exact(type(node)(**node.args), kind, -(-kind.places // 9) * 9 if mean else kind.places)


def _is_kept(node: exp.Expr) -> bool:
    """Return whether a node is a column of a derived or created table, where it is stored rounded."""
    above = node.parent.parent if isinstance(node.parent, exp.Alias) else node.parent
    while isinstance(above, exp.Query | exp.Subquery):
        above = above.parent
    return isinstance(above, exp.CTE | exp.From | exp.Join | exp.Create)


def _window(node: exp.Expr) -> exp.Expr:
    node.set("partition_by", [collated(each) for each in node.args.get("partition_by") or []] or None)
    return _of_mean(node, kind_of(node)) if isinstance(node.this, exp.Sum | exp.Avg) else node


def _extreme(node: exp.Expr) -> exp.Expr:
    """Return MIN or MAX; texts are compared in MySQL's collation."""
    if kind_of(node).name in ("text", "unknown") and not isinstance(node.this, exp.Column | exp.Distinct):
        node.set("this", collated(node.this))
    return node


def _group_concat(node: exp.Expr) -> exp.Expr:
    value, keys, directions = node.this, [], ""
    if isinstance(value, exp.Order):
        keys = [_group_key(ordered.this, value.this) for ordered in value.expressions]
        directions = "".join("-" if ordered.args.get("desc") else "+" for ordered in value.expressions)
        value = value.this
    distinct = isinstance(value, exp.Distinct)
    values = [_group_text(each) for each in (value.expressions if distinct else [value])]
    separator = node.args.get("separator") or ","
    return call("GROUP_CONCAT", separator, int(distinct), directions, *keys, *values)


def _group_text(value: exp.Expr) -> exp.Expr:
    """Return a value as GROUP_CONCAT writes it; MySQL stores the value first."""
    kind = kind_of(value)
    if kind.name == "decimal":
        return call("WRITTEN", value, kind.places)
    return call("WRITTEN_SINGLE", value) if kind.is_single else value


def _group_key(key: exp.Expr, value: exp.Expr) -> exp.Expr:
    """Return a sort key of GROUP_CONCAT. An integer is the position of one of its arguments."""
    if isinstance(key, exp.Collate) and isinstance(key.this, exp.Literal) and key.this.is_int:
        key = key.this
    if not isinstance(key, exp.Literal) or not key.is_int:
        refuse_if(key.find(exp.Column) is None, "GROUP_CONCAT sorted by a constant")
        return key
    values = value.expressions if isinstance(value, exp.Distinct) else [value]
    if not key.name.isdecimal() or not 1 <= int(key.name) <= len(values):
        raise errors.unknown_column(key.name, "order clause")
    return values[int(key.name) - 1].copy()


def _count(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Distinct):
        parts = node.this.expressions
        apart = [each for part in parts for each in (part, "\x1f")][:-1]
        one = parts[0] if len(parts) == 1 else call("CONCAT", *apart)
        node.set("this", exp.Distinct(expressions=[collated(one)]))
    return node


TOTALS: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    exp.Sum: _total,
    exp.Avg: _total,
    exp.Min: _extreme,
    exp.Max: _extreme,
    exp.GroupConcat: _group_concat,
    exp.Count: _count,
    exp.Window: _window,
}


def checked(node: exp.Expr, kind: Kind) -> exp.Expr:
    """Return a sum, difference or product, with an overflow check if its kind needs one."""
    if kind.name != "int":
        return call("FINITE", node) if kind.name == "float" and isinstance(node, exp.Mul) else node
    if kind.unsigned:
        return call("UNSIGNED", node)
    refuse_if(any(map(_is_too_large, node.find_all(exp.Literal))), _TOO_LARGE)
    return call("WHOLE", node)


_TOO_LARGE = f"whole numbers above {2**63 - 1}"


def _is_too_large(literal: exp.Expr) -> bool:
    """Return whether SQLite would read an integer literal as a float and lose digits."""
    return not literal.is_string and literal.name.isdecimal() and Decimal(literal.name) >= 2**63


def bits(node: exp.Expr) -> exp.Expr:
    """Return a bitwise operation on integers, with a check of its result: in MySQL, it is unsigned."""
    if any(kind_of(each).name not in ("int", "null") for each in node.iter_expressions()):
        raise unsupported("bits of what is no whole number")
    return call("BITS", type(node)(**node.args))


def turn_right_joins(select: exp.Expr) -> None:
    """Rewrite `a JOIN b RIGHT JOIN c` as `c LEFT JOIN (a JOIN b)`, except with USING, NATURAL, or a `*` (its
    columns would be reordered). Raise StatementError for a remaining RIGHT JOIN that SQLite gets wrong."""
    joins, first = select.args.get("joins") or [], select.args.get("from_")
    if not any(join.side.upper() == "RIGHT" for join in joins):
        return
    named = any(join.args.get("using") or join.method for join in joins)
    if named and any(isinstance(each, exp.Column) and each.is_star for each in select.expressions):
        raise unsupported("t.* of tables that RIGHT JOIN joins by USING or NATURAL")
    if named or first is None or any(each.is_star for each in select.expressions):
        _check_right_joins(joins)
        return
    source, done = first.this, list[exp.Join]()
    for join in joins:
        if join.side.upper() != "RIGHT":
            done.append(join)
            continue
        if done:
            source.set("joins", done)
            source = exp.Subquery(this=source)
        source, done = join.this, [exp.Join(this=source, side="LEFT", on=join.args.get("on"))]
    first.set("this", source)
    select.set("joins", done)


def _check_right_joins(joins: list[exp.Join]) -> None:
    """Refuse a constant condition before RIGHT JOIN: in SQLite 3.40, it wrongly removes all rows."""
    last = max((n for n, join in enumerate(joins) if join.side.upper() == "RIGHT"), default=0)
    for join in joins[:last]:
        for term in names.terms(join.args["on"]) if join.args.get("on") is not None else ():
            refuse_if(term.find(exp.Column, exp.Query) is None, "a constant in ON before RIGHT JOIN")


def unify_sides(node: exp.SetOperation) -> None:
    """Give both sides of a set operation columns of the same kinds, unless they are selected by `*`."""
    kinds = [kind for _, kind in node.meta.get("row", ())]
    for side in _sides(node, kinds):
        if not isinstance(side, exp.Select) or len(side.expressions) != len(kinds):
            continue
        for each, kind in zip(list(side.expressions), kinds, strict=True):
            value = each.this if isinstance(each, exp.Alias) else each
            if isinstance(value, exp.Star):
                continue
            collates = isinstance(value, exp.Collate) and kind_of(value).name != "text"
            inner, own = (value.this if collates else value), kind_of(value)
            copy = inner.copy()
            if own.name == "float":  # MySQL's plan decides the digits of a FLOAT as a text
                name = "SURE_SINGLE" if own.is_single else "WRITTEN"
                new = call(name, copy) if kind.name == "text" else copy
            else:
                new = coercions.unified(coercions.sure_decimal(copy, kind), kind)
            if own.name == kind.name == "float" and node.args.get("distinct"):
                new = call("PLAIN_ZERO", new)
            stored_first = coercions.chooses(inner) and not isinstance(inner.unnest(), exp.If | exp.Case)
            if kind.name == "text" and own.name == "decimal" and (stored_first or inner.find(exp.Avg)):
                raise unsupported("numbers chosen among others, or averages, beside texts in a UNION")
            column = isinstance(value, exp.Column) and own.name == "decimal"
            if column and kind.is_number and kind[:2] != own[:2]:
                # SQLite would apply the type of this column to all rows
                name, places = ("DECIMAL", kind.places) if kind.name == "decimal" else ("CAST_DOUBLE", None)
                new = call(name, value.copy(), places)
            if isinstance(new, exp.Anonymous) and new.this.startswith("my_") and new.this != inner.this:
                value.replace(collated(new) if kind.name == "text" else new)


def _sides(node: exp.SetOperation, kinds: Sequence[Kind]) -> Iterator[exp.Expr]:
    """Yield the sides of a set operation, and of a nested one whose integers become texts."""
    for side in (_written_out(node.left), _written_out(node.right)):
        if not isinstance(side, exp.SetOperation):
            yield side
            continue
        pairs = [(one, kind) for (_, one), kind in zip(side.meta.get("row", ()), kinds, strict=False)]
        if any(one.name in ("float", "decimal", "datetime") and kind.name == "text" for one, kind in pairs):
            raise unsupported("numbers or times, and texts in a UNION of three")
        if any(one.name == "int" and kind.name == "text" for one, kind in pairs):
            yield from _sides(side, kinds)


def _written_out(side: exp.Expr) -> exp.Expr:
    """Return the query that defines a side's columns, without brackets or the `SELECT *` of `single_row`."""
    side = side.unnest()
    while isinstance(side, exp.Select) and [type(each) for each in side.expressions] == [exp.Star]:
        source = side.args.get("from_")
        if source is None or not isinstance(source.this, exp.Subquery):
            break
        side = source.this.unnest()
    return side


def rewrite(node: exp.Expr) -> None:
    """Rewrite a node whose descendants have been rewritten."""
    rule = next((_RULES[kind] for kind in type(node).__mro__ if kind in _RULES), None)
    if rule is None:
        return
    new = rule(node)
    if new is not node and node.parent is not None:
        node.replace(keep_kind(new, node))


def _plus(name: str) -> Callable[[exp.Expr], exp.Expr]:
    def rule(node: exp.Expr) -> exp.Expr:
        for moment, amount in ((node.this, node.expression), (node.expression, node.this)):
            if isinstance(amount, exp.Interval):
                return move(name, moment, amount, kind_of(node))
        return _arithmetic(node)

    return rule


def _arithmetic(node: exp.Expr) -> exp.Expr:
    for side in ("this", "expression"):
        node.set(side, numeric(node.args[side]))
    return exact(checked(type(node)(**node.args), kind_of(node)), kind_of(node))


def _quotient(node: exp.Expr) -> exp.Expr:
    kind = kind_of(node)
    places = kind.places if kind.name == "decimal" else None
    dividend = numeric(node.this)
    if kind.name == "float":  # SQLite turns texts such as '1' into integers
        dividend = call("CAST_DOUBLE", dividend)
    return call("DIV", dividend, _divisor(node), places)


def _remainder(node: exp.Expr) -> exp.Expr:
    kind = kind_of(node)
    return exact(call(remainder_of(kind), numeric(node.this), _divisor(node)), kind)


def _whole_quotient(node: exp.Expr) -> exp.Expr:
    strict = is_in_change(node)
    dividend, divisor = (numeric(side, "FULL_BEGUN_DECIMAL") for side in (node.this, node.expression))
    fails = strict and coercions.may_fail(divisor)
    if strict:
        divisor = call("DIVISOR", divisor, dividend.copy())
    quotient = checked(call("INT_DIV", dividend, divisor), kind_of(node))
    return coercions.unless_null([dividend], quotient) if fails else quotient


def _divisor(node: exp.Expr) -> exp.Expr:
    divisor = numeric(node.expression)
    return call("DIVISOR", divisor, numeric(node.this).copy()) if is_in_change(node) else divisor


def _negative(node: exp.Expr) -> exp.Expr:
    kind, number = kind_of(node.this).name, numeric(node.this)
    if kind == "text" and is_in_change(node):
        number = call("NOT_ZERO", number)
    elif kind in ("text", "float"):
        return call("NEGATIVE", number)  # SQLite subtracts from 0, which never gives -0
    node.set("this", number)
    return node


def _xor(node: exp.Expr) -> exp.Expr:
    sides = (node.this, node.expression)
    if is_in_change(node) and any(map(coercions.may_fail, sides)):  # MySQL skips it if the other is NULL
        raise unsupported("XOR of what may be no number in a statement that changes rows")
    return call("NE", *(exp.Not(this=exp.paren(side)) for side in sides))


def _is(node: exp.Expr) -> exp.Expr:
    if isinstance(node.expression, exp.Null) and is_in_change(node) and coercions.may_fail(node.this):
        raise unsupported("IS NULL of what may be no number in a statement that changes rows")
    return node


def _first_of(node: exp.Expr) -> exp.Expr:
    if not node.expressions:  # SQLite's takes at least two arguments
        return exp.paren(node.this)
    node.set("this", coercions.unified(node.this, kind_of(node)))
    node.set("expressions", [coercions.unified(each, kind_of(node)) for each in node.expressions])
    return node


def _collate(node: exp.Expr) -> exp.Expr:
    exact = node.expression.name.lower().endswith("_bin") or node.expression.name.upper() == coercions.BINARY
    node.set("expression", exp.var(coercions.BINARY if exact else COLLATION))
    return node


def _extract(node: exp.Expr) -> exp.Expr:
    unit, value = node.name.upper(), node.expression
    refuse_if(unit not in EXTRACTED, f"EXTRACT({unit} ...)")
    read = call("DATED", value) if kind_of(value).is_number else in_change(value, "FULL_DATE")
    return call("EXTRACT", unit, read)


def _interval(node: exp.Expr) -> exp.Expr:
    refuse_if(isinstance(node.this, exp.Tuple), "INTERVAL()")
    return node


def _trim(node: exp.Expr) -> exp.Expr:
    where = str(node.args.get("position") or "BOTH").upper()
    return call("TRIM", as_text(node.this), node.expression or " ", where)


def _substring(node: exp.Expr) -> exp.Expr:
    start, length = node.args.get("start"), node.args.get("length")
    counts = [counted(each) for each in (start, length) if each is not None]
    return call("SUBSTRING", as_text(node.this), *counts)


def _literal(node: exp.Expr) -> exp.Expr:
    if node.is_string and "\0" in node.name:  # SQLite would stop reading the statement there
        return call("CAST_CHAR", exp.HexString(this=node.name.encode().hex()))
    if not _is_too_large(node):
        return node
    number, above = Decimal(node.name), node.parent
    cells = above.parent if isinstance(above, exp.EQ) else above
    if is_in_change(node) and isinstance(cells, exp.Tuple | exp.Update):  # a column of texts keeps all digits
        return exp.Literal.string(node.name)
    if isinstance(above, exp.Limit | exp.Offset) and number < 2**64:
        return exp.Literal.number(2**63 - 1)
    least = isinstance(above, exp.Neg) and number == 2**63
    while isinstance(above, exp.Neg | exp.Paren):
        above = above.parent
    refuse_if(not least and not isinstance(above, exp.Predicate | exp.Tuple), _TOO_LARGE)
    return node


def _variable(node: exp.Expr) -> exp.Expr:
    refuse_if(node.name.lower() != "version", f"@@{node.name.lower()}")
    return call("VERSION")


_INTERNAL = re.compile(r"sqlite_|pragma_|dbstat$", re.IGNORECASE)  # SQLite's own tables


def _table(node: exp.Expr) -> exp.Expr:
    refuse_if(isinstance(node.this, exp.Func), "a function as a table")
    if _INTERNAL.match(node.name):
        raise errors.unknown_table(node.name)
    schema = node.text("db")
    if node.text("catalog") or (node.args.get("db") is not None and not schema):
        raise errors.syntax_error(text_of(node))
    if schema:
        if schema.lower() == "information_schema":
            if not node.alias:
                node.set("alias", exp.TableAlias(this=node.this.copy()))
            node.set("this", exp.to_identifier(f"information_schema.{node.name.lower()}", quoted=True))
        elif schema != SHOWN_DATABASE:
            raise StatementError(1049, f"Unknown database '{schema}'")
        node.set("db", None)
    return node


def _column(node: exp.Expr) -> exp.Expr:
    schema = node.text("db")
    if schema and schema != SHOWN_DATABASE and schema.lower() != "information_schema":
        raise errors.unknown_column(text_of(node).replace("`", ""))
    node.set("db", None)
    name = kind_of(node).name
    if name in APART and not (_is_shown(node) or (name in ("enum", "set") and _is_compared(node))):
        raise unsupported(f"a column of {name.upper()} in such an expression")
    if name == "fixed" and not (_is_shown(node) or isinstance(node.parent, _COMPARING)):
        raise unsupported("FLOAT or DOUBLE with a number of places in an expression")
    return node


_COMPARING = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between, exp.Ordered, exp.Group)


def _is_shown(column: exp.Expr) -> bool:
    """Return whether a column is selected as it is, assigned, counted, or tested for NULL."""
    above = column.parent.parent if isinstance(column.parent, exp.Alias) else column.parent
    asked = isinstance(above, exp.Is) and isinstance(above.expression, exp.Null)
    listed = isinstance(above, exp.Select) and not (
        above.args.get("distinct") or isinstance(above.parent, exp.SetOperation)
    )
    assigned = isinstance(above, exp.EQ) and isinstance(above.parent, exp.Update | exp.OnConflict)
    return asked or listed or assigned or isinstance(above, exp.Count)


def _is_compared(column: exp.Expr) -> bool:
    """Return whether an ENUM or SET is selected, counted, grouped or compared with texts as its own text."""
    above = column.parent.parent if isinstance(column.parent, exp.Alias) else column.parent
    if isinstance(above, exp.EQ | exp.NEQ | exp.In | exp.Like):
        others = [each for each in above.iter_expressions() if each is not column]
        plain = all(
            isinstance(each, exp.Literal | exp.Column) and kind_of(each).name == "text" for each in others
        )
        return plain and (column.arg_key == "this" or isinstance(above, exp.EQ | exp.NEQ))
    listed = isinstance(above, exp.Select) and not isinstance(above.parent, exp.SetOperation)
    is_counted = isinstance(above, exp.Distinct) and isinstance(above.parent, exp.Count)
    return listed or is_counted or isinstance(above, exp.Group)


def _no_place(key: exp.Expr) -> exp.Expr:
    """Return a key of GROUP BY or ORDER BY. SQLite would take `-1` for the position of a column."""
    inner = key
    while isinstance(inner, exp.Neg | exp.Paren):
        inner = inner.this
    constant = isinstance(inner, exp.Literal) and key.find(exp.Neg) is not None
    if isinstance(key, exp.Literal) and key.is_int:  # a column's position; it may be a computed text
        query, place = key.find_ancestor(exp.Query), int(key.name)
        shown = query.meta.get("row", ())[place - 1 : place] if query is not None and place else ()
        apart = isinstance(key.parent, exp.Ordered) or any(kind.name in ("json", "blob") for _, kind in shown)
        refuse_if(apart and any(kind.name in APART for _, kind in shown), "a sort by ENUM, SET, JSON or BLOB")
        return exp.Collate(this=key, expression=exp.var(COLLATION))
    return exp.null() if constant else collated(key)


def _order(node: exp.Expr) -> exp.Expr:
    if is_in_change(node) and coercions.may_fail(node.this):
        raise unsupported("ORDER BY what may be no number in a statement that changes rows")
    node.set("this", _no_place(node.this))
    node.set("nulls_first", not node.args.get("desc"))  # NULL is the smallest value in both
    return node


def _group(node: exp.Expr) -> exp.Expr:
    refuse_if(node.args.get("rollup"), "WITH ROLLUP")
    node.set("expressions", [_no_place(key) for key in node.expressions])
    return node


def _select(node: exp.Expr) -> exp.Expr:
    if node.args.get("limit") and node.args.get("where") and is_in_change(node):
        checks = filter(coercions.is_check, node.args["where"].find_all(exp.Anonymous))
        if not all(map(coercions.is_early, checks)):  # MySQL may not reach the others
            raise unsupported("LIMIT beside what may fail in a statement that changes rows")
    if node.args.get("limit") and node.args.get("order"):  # SQLite computes more rows than it returns
        for each in (call for column in node.expressions for call in column.find_all(exp.Anonymous)):
            if str(each.this).removeprefix("my_") in OVERFLOW:
                coercions.doubt(each)
    if node.args.get("having") is not None and node.args.get("group") is None:
        names.having_alone(node)
    if any(isinstance(each.unalias(), exp.Tuple) for each in node.expressions):
        raise unsupported("a row among the columns")
    turn_right_joins(node)
    node.set("locks", None)
    node.set("operation_modifiers", None)
    source = node.args.get("from_")
    if source is not None and isinstance(source.this, exp.Table) and source.this.name.upper() == "DUAL":
        node.set("from_", None)
    above = node.parent.parent if isinstance(node.parent, exp.Subquery) else node.parent
    if node.args.get("distinct") or isinstance(above, exp.SetOperation):
        node.set("expressions", [_collated_column(column) for column in node.expressions])
    return node


def _collated_column(column: exp.Expr) -> exp.Expr:
    if isinstance(column, exp.Alias):
        column.set("this", _collated_column(column.this))
        return column
    number = isinstance(column, exp.Literal) and not column.is_string
    plain = number or isinstance(column, exp.Column | exp.Star | exp.Collate)
    return column if plain else collated(column)


def _refuse(what: str) -> Callable[[exp.Expr], exp.Expr]:
    def rule(node: exp.Expr) -> exp.Expr:
        raise unsupported(what)

    return rule


def _call_of(name: str) -> Callable[[exp.Expr], exp.Expr]:
    return lambda node: call(name)


_RULES: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    **coercions.COMPARISONS,
    **TOTALS,
    exp.Subquery: single_row,
    exp.Div: _quotient,
    exp.IntDiv: _whole_quotient,
    exp.Mod: _remainder,
    exp.Add: _plus("DATE_ADD"),
    exp.Sub: _plus("DATE_SUB"),
    exp.Mul: _arithmetic,
    exp.Neg: _negative,
    exp.Is: _is,
    exp.Coalesce: _first_of,
    exp.Xor: _xor,
    exp.Cast: cast,
    exp.Collate: _collate,
    exp.Trim: _trim,
    exp.Extract: _extract,
    exp.Interval: _interval,
    **dict.fromkeys((exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot), bits),
    exp.StrPosition: lambda node: call("LOCATE", as_text(node.args["substr"]), as_text(node.this)),
    exp.Substring: _substring,
    exp.Chr: _refuse("CHAR()"),
    exp.Introducer: _refuse("the name of a character set before a text"),
    exp.HexString: _refuse("bytes"),
    exp.Concat: lambda node: call("CONCAT", *map(as_text, node.expressions)),
    exp.CurrentDate: _call_of("CURDATE"),
    exp.CurrentTime: _call_of("CURTIME"),
    **dict.fromkeys((exp.CurrentTimestamp, exp.Localtime, exp.Localtimestamp), _call_of("NOW")),
    exp.CurrentUser: _call_of("USER"),
    exp.Anonymous: function_call,
    exp.Literal: _literal,
    exp.Parameter: lambda node: exp.null(),  # like a user variable that was never set
    exp.SessionParameter: _variable,
    exp.PropertyEQ: _refuse(":="),
    exp.BitString: _refuse("bits as bytes"),
    exp.Table: _table,
    exp.Column: _column,
    exp.Ordered: _order,
    exp.Group: _group,
    exp.Select: _select,
    **dict.fromkeys((exp.JSONExtract, exp.JSONExtractScalar), _refuse("-> and ->>")),
    exp.MatchAgainst: _refuse("MATCH ... AGAINST"),
}


class _Target(SQLite):
    """SQLite's dialect with names in backticks: SQLite takes an unknown "name" for a text."""

    class Tokenizer(SQLite.Tokenizer):
        IDENTIFIERS = ["`"]


class Translation(NamedTuple):
    """SQL for SQLite, the kinds of a query's columns, and the constants that MySQL reads before any row."""

    sql: str
    kinds: tuple[Kind, ...]
    constants: tuple[str, ...]


def write(tree: exp.Expr, columns: Sequence[TableColumns] = ()) -> Translation:
    """Return the statement translated for SQLite; changes the tree. `columns` are of its tables and views."""
    try:
        if isinstance(tree, exp.Update | exp.Delete):
            tree = _one_table(tree)
        if isinstance(tree, exp.Subquery) and not any(map(tree.args.get, ("order", "limit", "with_"))):
            tree = tree.unnest()
        for each in tree.find_all(exp.Anonymous):
            check_name(each)
        shown = annotate(tree, columns)
        names.rename_columns(tree)
        names.check_twice(tree)
        names.qualify_order(tree)
        names.qualify_joins(tree, columns)
        names.qualify_having(tree, columns)
        note_columns(tree)
        nodes = list(tree.walk(bfs=False))
        if isinstance(tree, exp.DML):
            coercions.strict_truths(tree)
        for node in reversed(nodes):
            rewrite(node)
            store_columns(node)
            if isinstance(node, exp.SetOperation) and not is_recursive(node):
                unify_sides(node)
        count_rows(tree)
        tree = _clean(store(tree, columns))
        constants = [
            _written(each)
            for each in tree.find_all(exp.Anonymous)
            if coercions.is_early(each)
            or (each.this == "my_FULL_MOMENT" and each.find(exp.Column, exp.Query) is None)
        ]
        constants += [_written(each) for each in tree.find_all(exp.Subquery) if each.meta.get("read_first")]
        return Translation(_written(tree, copy=False), shown, tuple(constants))
    except RecursionError:
        raise errors.nested_too_deeply() from None
    except SqlglotError as error:
        raise unsupported(str(error)[:80]) from None


def _written(tree: exp.Expr, copy: bool = True) -> str:
    return tree.sql(dialect=_Target, identify=True, normalize_functions=False, comments=False, copy=copy)


def _one_table(tree: exp.Update | exp.Delete) -> exp.Expr:
    """Return UPDATE or DELETE with ORDER BY, LIMIT or a join as a change of the rows that a query selects."""
    table = tree.this
    targets = tree.args.get("tables") or []
    joins = table.args.get("joins") or []
    if isinstance(tree, exp.Update) and joins:
        return _update_join(tree, table, joins)
    if not (targets or joins or tree.args.get("order") or tree.args.get("limit")):
        return tree
    refuse_if(len(targets) > 1, "DELETE from several tables")
    target = targets[0].name if targets else table.alias_or_name
    for term in tree.args["order"].expressions if tree.args.get("order") else ():
        if isinstance(term.this, exp.Literal) and term.this.is_int:
            raise errors.unknown_column(term.this.name, "order clause")
    sources = {source.alias_or_name: source.name for source in (table, *(join.this for join in joins))}
    fail_if(target not in sources, 1109, f"Unknown table '{target}' in MULTI DELETE")
    picked = exp.select(exp.column("rowid", target)).from_(table.copy())
    for part in ("where", "order", "limit"):
        if tree.args.get(part):
            picked.set(part, tree.args[part].copy())
            tree.set(part, None)
    chosen = exp.In(this=exp.column("rowid"), query=exp.Subquery(this=picked))
    tree.set("tables", None)
    tree.set("this", exp.to_table(quote(sources[target]), dialect="mysql") if targets or joins else table)
    tree.set("where", exp.Where(this=chosen))
    return tree


def _update_join(tree: exp.Update, table: exp.Table, joins: list[exp.Join]) -> exp.Expr:
    refuse_if(any(join.side or join.args.get("using") for join in joins), "UPDATE with an outer join")
    first, *rest = [join.this for join in joins]
    conditions = [join.args["on"] for join in joins if join.args.get("on")]
    if tree.args.get("where"):
        conditions.append(tree.args["where"].this)
    for assignment in tree.expressions:
        refuse_if(assignment.this.table not in ("", table.alias_or_name), "UPDATE of several tables")
        assignment.this.set("table", None)
    table.set("joins", None)
    source = exp.From(this=first)
    first.set("joins", [exp.Join(this=other, kind="CROSS") for other in rest] or None)
    tree.set("from_", source)
    tree.set("where", exp.Where(this=exp.and_(*conditions)) if conditions else None)
    return tree


def _clean(tree: exp.Expr) -> exp.Expr:
    if isinstance(tree, exp.Insert):
        conflict = tree.args.get("conflict")
        if tree.args.get("ignore") and conflict is None:  # OR IGNORE would also leave out rows with NULL
            tree.set("ignore", None)
            tree.set("conflict", conflict := exp.OnConflict(action=exp.var("DO NOTHING")))
        elif conflict is not None:
            conflict.set("duplicate", None)
            conflict.set("action", exp.var("DO UPDATE"))
        if (
            conflict is not None
            and isinstance(tree.expression, exp.Select)
            and not tree.expression.args.get("where")
        ):
            # without WHERE, SQLite takes ON CONFLICT for the ON of a join
            tree.expression.set("where", exp.Where(this=exp.true()))
    if isinstance(tree, exp.Update):
        for assignment in tree.expressions:
            if isinstance(assignment.this, exp.Column):
                assignment.this.set("table", None)
    return tree
