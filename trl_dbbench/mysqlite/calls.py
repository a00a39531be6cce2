"""Calls of MySQL's functions, CAST and INTERVAL, rewritten for SQLite."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from trl_dbbench.mysqlite.aggregates import AGGREGATES
from trl_dbbench.mysqlite.coercions import (
    DOUBTFUL,
    as_number,
    as_text,
    call,
    chooses,
    comparable,
    doubt,
    exact,
    in_change,
    in_charset,
    is_in_change,
    is_moved,
    may_fail,
    numeric,
    unified,
    unless_null,
)
from trl_dbbench.mysqlite.comparisons import BINARY, collated
from trl_dbbench.mysqlite.dates import UNITS
from trl_dbbench.mysqlite.errors import SHOWN_DATABASE, StatementError, syntax_error, unsupported
from trl_dbbench.mysqlite.functions import OVERFLOWING, functions, is_own, takes
from trl_dbbench.mysqlite.kinds import DATE, INT, Kind, kind_of, words
from trl_dbbench.mysqlite.parse import text_of

_FUNCTIONS = functions()
_KNOWN = (
    frozenset(name for name in _FUNCTIONS if not is_own(name))
    | frozenset(AGGREGATES)
    | {"ADDDATE", "SUBDATE"}
)


def interval(node: exp.Interval) -> tuple[exp.Expr, exp.Expr]:
    unit = node.args.get("unit")
    amount = node.this or exp.null()
    name = "" if unit is None else unit.name.upper()
    if name not in UNITS:  # such as DAY_HOUR, or what the parser takes for a second interval
        raise unsupported(f"INTERVAL ... {name}")
    whole = isinstance(amount, exp.Literal) and amount.name.lstrip("+-").isdecimal()
    checked = amount if whole else in_change(amount, "FULL_INTEGER")
    if checked is not amount and isinstance(checked, exp.Anonymous) and kind_of(amount).silent is not False:
        doubt(checked)
    return checked, exp.Literal.string(name)


def counted(node: exp.Expr) -> exp.Expr:
    """A number of characters or places, which must be whole: MySQL rounds each kind of number its own way."""
    kind = kind_of(node)
    if kind.name == "text" and is_in_change(node):
        raise unsupported("a text as a count in a statement that changes rows")
    return node if kind.name in ("int", "null") else call("COUNT", as_number(node))


def move(name: str, moment: exp.Expr, amount: exp.Interval, kind: Kind) -> exp.Expr:
    """DATE_ADD or DATE_SUB, which gives this kind of value."""
    strict = is_in_change(moment)
    arguments = [_start(moment), *interval(amount)]
    if not strict:
        return call(name, *arguments)
    made = call(f"FULL_{name}", *arguments, exp.Literal.number(int(kind == DATE)))
    return unless_null(arguments[:1], made) if may_fail(arguments[1]) else made


def _start(moment: exp.Expr) -> exp.Expr:
    """What an interval is added to; of a text that another was added to, MySQL shows the time as well."""
    among = kind_of(moment).name == "text" and chooses(moment)
    if among and any(kind_of(each).is_moment for each in moment.walk()):
        raise unsupported("an interval added to a date among texts")
    moment = in_change(moment, "FULL_DATE")
    return call("MOMENT", moment) if is_moved(moment) and kind_of(moment).name == "text" else moment


_T = exp.DataType.Type
_INTEGERS = {_T.BIGINT, _T.UBIGINT, _T.INT, _T.UINT, _T.SMALLINT, _T.TINYINT}
_TEXTS = {_T.CHAR, _T.NCHAR, _T.VARCHAR, _T.NVARCHAR, _T.TEXT, _T.CHARACTER_SET, _T.JSON}


def cast(node: exp.Expr) -> exp.Expr:
    kind = node.args["to"]
    sizes = [exp.Literal.number(size.name) for size in kind.expressions]
    if odd := next((size.name for size in sizes if not size.name.isdecimal()), None):
        raise syntax_error(f"{odd})")
    if kind.this in (_T.DECIMAL, _T.UDECIMAL) and any(
        int(size.name) > most for size, most in zip(sizes, (65, 30), strict=False)
    ):
        raise StatementError(1426, f"Too-big precision specified for '{text_of(node.this)}'. Maximum is 65.")
    if kind.this == _T.YEAR:
        raise unsupported("CAST(... AS YEAR)")
    if kind.this in _INTEGERS:
        name = "CAST_FLOAT_SIGNED" if kind_of(node.this).name == "float" else "CAST_SIGNED"
        whole = call(name, in_change(as_number(node.this), "FULL_INTEGER"))
        return call("CAST_UNSIGNED", whole) if kind.this in (_T.UBIGINT, _T.UINT) else whole
    if kind.this in (_T.DECIMAL, _T.UDECIMAL):
        places = sizes[1] if len(sizes) > 1 else exp.Literal.number(0)
        digits = sizes[0] if sizes else exp.Literal.number(10)
        return call("CAST_DECIMAL", in_change(as_number(node.this), "FULL_BEGUN_DECIMAL"), places, digits)
    if kind_of(node).is_single:
        return call("CAST_FLOAT", numeric(node.this))
    if kind.this in (_T.FLOAT, _T.DOUBLE, _T.UDOUBLE):
        return call("CAST_DOUBLE", numeric(node.this))
    if kind.this in _TEXTS:
        made = call("CAST_CHAR", as_text(node.this), *sizes[:1])
        charset = kind.args.get("kind") if kind.this == _T.CHARACTER_SET else None
        return made if charset is None else in_charset(made, charset.name)
    if kind.this in (_T.BINARY, _T.VARBINARY):
        return exp.Collate(this=node.this, expression=exp.var(BINARY))
    if kind.this == _T.DATE:
        return call("DATE", in_change(node.this, "FULL_DATE"))
    if kind.this == _T.TIME:
        return call("TIME", node.this)
    if kind.this in (_T.DATETIME, _T.TIMESTAMP, _T.TIMESTAMPTZ, _T.TIMESTAMPNTZ):
        return call("TIMESTAMP", in_change(node.this, "FULL_DATE"))
    raise syntax_error(text_of(node))


def check_name(node: exp.Anonymous) -> None:
    """Raises StatementError for a function that does not exist; MySQL looks at this before anything else."""
    name = str(node.this).upper()
    if name.strip('"').endswith(" "):
        raise StatementError(1458, f"Incorrect routine name '{node.this}'")
    if isinstance(node.parent, exp.Dot):
        if isinstance(node.parent.this, exp.Dot):
            raise syntax_error("(")
        raise StatementError(1305, f"FUNCTION {node.parent.sql(dialect='mysql')} does not exist")
    if name in ("IFNULL", "VALUES", "ANY_VALUE") or name in _KNOWN:
        return
    if any(isinstance(each, _NO_ARGUMENTS) for each in node.expressions) or isinstance(
        node.parent, exp.Window
    ):
        raise syntax_error(f"{name}(")
    if name in _MISSING or name.startswith(("ST_", "MBR", "JSON_", "INET", "IS_IPV", "GTID_")):
        raise unsupported(f"{name}()")
    raise StatementError(1305, f"FUNCTION {SHOWN_DATABASE}.{name} does not exist")


def _miscounted(name: str) -> StatementError:
    return StatementError(1582, f"Incorrect parameter count in the call to native function '{name}'")


def function_call(node: exp.Expr) -> exp.Expr:
    name, arguments = str(node.this).upper(), list(node.expressions)
    if name == "VALUES":
        if node.find_ancestor(exp.OnConflict) is None:
            raise unsupported("VALUES() outside ON DUPLICATE KEY UPDATE")
        return exp.column(arguments[0].copy(), "excluded")
    if name == "ANY_VALUE":
        if len(arguments) != 1:
            raise _miscounted(name)
        return arguments[0]
    if name == "IFNULL":
        node.set("expressions", [unified(each, kind_of(node)) for each in arguments])
        return node
    if name in ("TIMESTAMPDIFF", "TIMESTAMPADD") and arguments:
        if arguments[0].name.upper().removeprefix("SQL_TSI_") not in UNITS | {"MICROSECOND"}:
            raise syntax_error(text_of(arguments[0]))
        arguments[0] = exp.Literal.string(arguments[0].name.upper())
    if name in ("ADDDATE", "SUBDATE") and len(arguments) == 2 and not isinstance(arguments[1], exp.Interval):
        arguments[1] = exp.Interval(this=arguments[1], unit=exp.var("DAY"))
    if name in _MOVING and len(arguments) == 2 and isinstance(arguments[1], exp.Interval):
        return move(_MOVING[name], arguments[0].unnest(), arguments[1], kind_of(node))
    if name in _OF_DATES and arguments and kind_of(arguments[0]).is_number:
        arguments[0] = call("DATED", arguments[0])
    strict = is_in_change(node)
    if name == "DATEDIFF" and len(arguments) == 2 and kind_of(arguments[1]).is_number:
        if strict:
            raise unsupported("DATEDIFF of a number in a statement that changes rows")
        arguments[1] = call("DATED", arguments[1])
    for place in _COUNTS.get(name, ()):
        if place < len(arguments):
            arguments[place] = counted(arguments[place])
    if strict:
        arguments = _checked(name, arguments)
    arguments = _converted(name, arguments, kind_of(node))
    if name == "MOD" and len(arguments) == 2 and strict:
        arguments[1] = call("DIVISOR", arguments[1], arguments[0].copy())
    if len(arguments) < _FEWEST.get(name, 0) or name in _MOVING:
        raise _miscounted(name)
    if name in _FUNCTIONS and not takes(_FUNCTIONS[name], arguments):
        raise _miscounted(name)
    own = "FULL_STR_TO_DATE" if strict and name == "STR_TO_DATE" else name
    if name == "MOD":
        own = remainder_of(kind_of(node))
    if name in OVERFLOWING and node.find_ancestor(exp.Predicate, exp.Connector, exp.If, exp.Case) is not None:
        own = f"{DOUBTFUL}{name}"  # MySQL does not compute it beside NULL
    made = exact(call(own, *arguments), kind_of(node) if name in _COMPUTING else INT)
    if name in _ROUNDING and kind_of(node).name == "float":
        made = call("SIGNED", made, arguments[0].copy())
    if name == "FORMAT" and str(arguments[0].this) == "my_ROUND_FLOAT":
        made = call("SIGNED_TEXT", made, arguments[0].copy())
    last = max((n for n, each in enumerate(arguments) if strict and may_fail(each)), default=0)
    if not last or name in _READING_ALL:
        return made
    if name not in _STOPPING:
        raise unsupported(f"{name} of what may be no number in a statement that changes rows")
    return unless_null(arguments[:last], made)


def remainder_of(kind: Kind) -> str:
    """The function of ours that gives a remainder of this kind."""
    return "DECIMAL_MOD" if kind.name == "decimal" else "MOD"


_MOVING = {"DATE_ADD": "DATE_ADD", "ADDDATE": "DATE_ADD", "DATE_SUB": "DATE_SUB", "SUBDATE": "DATE_SUB"}
_ROUNDING = words("ROUND TRUNCATE CEIL CEILING FLOOR")
_NO_ARGUMENTS = (exp.Interval, exp.Distinct, exp.Star, exp.Select, exp.SetOperation, exp.Order)
"""What MySQL's grammar allows in the brackets of its own functions only."""
_MISSING = words(
    """
    ACOS ADDTIME AES_DECRYPT AES_ENCRYPT ASIN ATAN ATAN2 BENCHMARK BIN BIN_TO_UUID BIT_AND BIT_COUNT
    BIT_LENGTH BIT_OR BIT_XOR CHARSET COERCIBILITY COLLATION COMPRESS CONV CONVERT_TZ COT CRC32
    CURRENT_ROLE EXPORT_SET EXTRACTVALUE FORMAT_BYTES FORMAT_PICO_TIME FOUND_ROWS FROM_BASE64
    GEOMCOLLECTION GEOMETRYCOLLECTION GET_FORMAT GET_LOCK GROUPING ICU_VERSION INTERVAL IS_FREE_LOCK
    IS_USED_LOCK IS_UUID LAST_INSERT_ID LINESTRING LOAD_FILE MAKETIME MAKE_SET MD5 MICROSECOND MULTILINESTRING
    MULTIPOINT MULTIPOLYGON NAME_CONST OCT PERIOD_ADD PERIOD_DIFF POINT POLYGON PS_CURRENT_THREAD_ID
    PS_THREAD_ID QUOTE RANDOM_BYTES REGEXP_INSTR RELEASE_ALL_LOCKS RELEASE_LOCK ROLES_GRAPHML ROW
    ROW_COUNT
    SEC_TO_TIME SESSION_USER SHA SHA1 SHA2 SOUNDEX SOURCE_POS_WAIT STATEMENT_DIGEST
    STATEMENT_DIGEST_TEXT STRING_TO_VECTOR SUBTIME SYSTEM_USER TIMEDIFF TIMESTAMPADD TIME_TO_SEC
    TO_BASE64 TO_SECONDS UNCOMPRESS UNCOMPRESSED_LENGTH UNHEX UPDATEXML UTC_DATE UTC_TIME UTC_TIMESTAMP
    UUID_SHORT UUID_TO_BIN
    VALIDATE_PASSWORD_STRENGTH VECTOR_DIM VECTOR_TO_STRING WEIGHT_STRING YEARWEEK
    """
)
"""Functions of MySQL's that the embedded database lacks, besides families of them."""


_COMPUTING = frozenset({"ABS", "MOD", "TRUNCATE"})
_OF_TEXTS = words(
    """
    CONCAT CONCAT_WS UPPER UCASE LOWER LCASE LEFT RIGHT SUBSTR SUBSTRING MID SUBSTRING_INDEX
    REPLACE REPEAT REVERSE LPAD RPAD LTRIM RTRIM INSERT LENGTH CHAR_LENGTH CHARACTER_LENGTH
    OCTET_LENGTH LOCATE INSTR ASCII ORD STRCMP FIND_IN_SET REGEXP_LIKE REGEXP_REPLACE
    REGEXP_SUBSTR
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
"""The fewest arguments of functions that take any number here."""
_READING_ALL = words("MOD DATEDIFF LEFT REPEAT LPAD LOCATE FORMAT")
"""Functions that evaluate all of their arguments, even if the first is NULL."""
_STOPPING = words(
    """
    CONCAT POW POWER ROUND TRUNCATE GREATEST LEAST NULLIF REPLACE INSTR STRCMP DATE_FORMAT TIMESTAMPDIFF
    """
)
"""Functions that evaluate no argument behind one that is NULL."""
_OF_DATES = words(
    """
    DATE TIMESTAMP YEAR MONTH DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR WEEKDAY WEEK WEEKOFYEAR QUARTER
    MONTHNAME DAYNAME LAST_DAY TO_DAYS DATEDIFF DATE_FORMAT UNIX_TIMESTAMP TIMESTAMPDIFF
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
"""Which arguments of functions are numbers of characters, or places."""
_OF_TIMES = frozenset({"TIME", "HOUR", "MINUTE", "SECOND", "TIME_FORMAT"})


def _check_kinds(name: str, arguments: list[exp.Expr]) -> None:
    """Refuses what MySQL compares or reads in ways of its own."""
    kinds = [kind_of(each) for each in arguments]
    mixed = any(kind.is_moment for kind in kinds) and not all(
        kind.is_moment or kind.name == "null" for kind in kinds
    )
    if name in ("GREATEST", "LEAST", "STRCMP") and mixed:
        raise unsupported(f"{name} of a date and something else")
    if name in ("STRCMP", "FROM_DAYS") and any(kind.is_moment for kind in kinds):
        raise unsupported(f"{name} of dates")
    other = name == "UNIX_TIMESTAMP" and any(kind.name == "text" for kind in kinds)
    other = other or (name in _OF_TIMES and bool(kinds) and kinds[0].is_number)
    if other or (name == "FROM_UNIXTIME" and kinds and kinds[0].name not in ("int", "null")):
        raise unsupported(f"{name} of such a value")


def _checked(name: str, arguments: list[exp.Expr]) -> list[exp.Expr]:
    """The arguments of a function in a statement that changes rows: they must be what the function takes."""
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
    """The arguments as a function takes them."""
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
        return [*comparable(arguments, strict=True), arguments[0].copy()]
    if name == "FIELD":
        numbers = any(kind_of(each).is_number for each in arguments)
        if numbers and any(kind_of(each).is_moment for each in arguments):
            raise unsupported("FIELD of dates and numbers")
        return comparable(arguments) if numbers else arguments  # MySQL compares dates as texts
    if name == "TIME" and len(arguments) == 1:
        return [*arguments, exp.Literal.number(int(kind_of(arguments[0]).name == "text"))]
    if name == "DATE_FORMAT":
        return [*arguments[:1], *map(as_text, arguments[1:])]
    if name in ("GREATEST", "LEAST", "ELT"):
        return [unified(each, kind) for each in arguments]
    return arguments


def _total(node: exp.Expr) -> exp.Expr:
    """SUM and AVG, which give decimals of a number of places."""
    if any(each.find(exp.Avg) for each in node.find_all(exp.Subquery)):
        raise unsupported("a sum of a subquery's mean")
    if not isinstance(node.this, exp.Distinct):
        node.set("this", numeric(node.this))
    elif kind_of(node.this.expressions[0]).name == "text":
        if is_in_change(node):
            raise unsupported("a sum of different texts in a statement that changes rows")
        node.this.set("expressions", [call("CAST_DOUBLE", each) for each in node.this.expressions])
    else:
        node.this.set("expressions", [as_number(each) for each in node.this.expressions])
    return node if isinstance(node.parent, exp.Window) else _of_mean(node, kind_of(node))


def _of_mean(node: exp.Expr, kind: Kind) -> exp.Expr:
    """A total, rounded; MySQL keeps a mean with nine places, or a multiple of them, until it is shown."""
    mean = isinstance(node.this if isinstance(node, exp.Window) else node, exp.Avg) and not _is_kept(node)
    return exact(type(node)(**node.args), kind, -(-kind.places // 9) * 9 if mean else kind.places)


def _is_kept(node: exp.Expr) -> bool:
    """Whether it is a column of a table that is made for the statement, and rounded there."""
    above = node.parent.parent if isinstance(node.parent, exp.Alias) else node.parent
    while isinstance(above, exp.Query | exp.Subquery):
        above = above.parent
    return isinstance(above, exp.CTE | exp.From | exp.Join)


def _window(node: exp.Expr) -> exp.Expr:
    node.set("partition_by", [collated(each) for each in node.args.get("partition_by") or []] or None)
    if not isinstance(node.this, exp.Sum | exp.Avg):
        return node
    return _of_mean(node, kind_of(node))


def _extreme(node: exp.Expr) -> exp.Expr:
    """MIN and MAX, of texts by MySQL's order."""
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
    separator = node.args.get("separator") or exp.Literal.string(",")
    flags = [exp.Literal.number(int(distinct)), exp.Literal.string(directions)]
    return call("GROUP_CONCAT", separator, *flags, *keys, *values)


def _group_text(value: exp.Expr) -> exp.Expr:
    """A value as GROUP_CONCAT writes it, which stores it first."""
    kind = kind_of(value)
    if kind.name == "decimal":
        return call("WRITTEN", value, exp.Literal.number(kind.places))
    return call("WRITTEN_SINGLE", value) if kind.is_single else value


def _group_key(key: exp.Expr, value: exp.Expr) -> exp.Expr:
    """What GROUP_CONCAT sorts by: a whole number is the place of one of its arguments."""
    if isinstance(key, exp.Collate) and isinstance(key.this, exp.Literal) and key.this.is_int:
        key = key.this
    if not isinstance(key, exp.Literal) or not key.is_int:
        if key.find(exp.Column) is None:
            raise unsupported("GROUP_CONCAT sorted by a constant")
        return key
    values = value.expressions if isinstance(value, exp.Distinct) else [value]
    if not key.name.isdecimal() or not 1 <= int(key.name) <= len(values):
        raise StatementError(1054, f"Unknown column '{key.name}' in 'order clause'")
    return values[int(key.name) - 1].copy()


def _count(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Distinct):
        parts = node.this.expressions
        one = parts[0] if len(parts) == 1 else call("CONCAT", *_between(parts, exp.Literal.string("\x1f")))
        node.set("this", exp.Distinct(expressions=[collated(one)]))
    return node


def _between(parts: list[exp.Expr], separator: exp.Expr) -> list[exp.Expr]:
    return [each for part in parts for each in (part, separator.copy())][:-1]


TOTALS: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    exp.Sum: _total,
    exp.Avg: _total,
    exp.Min: _extreme,
    exp.Max: _extreme,
    exp.GroupConcat: _group_concat,
    exp.Count: _count,
    exp.Window: _window,
}
"""The rules of `rules` for them."""


_BITS = 63
"""Those of a BIGINT without its sign."""
_OF_ROWS = 40
"""The bits of a number of rows."""
_PASSING = words(
    """
    my_ABS my_FLOOR my_CEIL my_CEILING my_ROUND my_TRUNCATE my_GREATEST my_LEAST my_NULLIF my_MOD my_ELT
    IFNULL
    """
)
"""Functions whose result is about as large as what they are given."""
_WIDE = words("my_INT_DIV my_CAST_SIGNED my_CAST_FLOAT_SIGNED my_CAST_UNSIGNED")


def checked(node: exp.Expr, kind: Kind) -> exp.Expr:
    """A sum, difference or product, with a check where its result may be too large."""
    if kind.name == "float" and isinstance(node, exp.Mul):
        return call("FINITE", node)
    if kind.name == "int" and kind.unsigned:
        return call("UNSIGNED", node)
    if kind.name != "int" or _bits(node) <= _BITS:
        return node
    if any(not each.is_string and _bits(each) > _BITS for each in node.find_all(exp.Literal)):
        raise unsupported("whole numbers above 9223372036854775807")
    return call("WHOLE", node)


def bits(node: exp.Expr) -> exp.Expr:
    """An operator of bits, of whole numbers: to MySQL, they have no sign."""
    sides = [each for each in (node.this, node.args.get("expression")) if each is not None]
    if any(kind_of(each).name not in ("int", "null") for each in sides):
        raise unsupported("bits of what is no whole number")
    return call("BITS", type(node)(**node.args))


def _bits(node: exp.Expr) -> int:
    """The most bits that a whole number may have, as far as its expression tells."""
    kind = kind_of(node)
    match node:
        case exp.Literal():
            return int(node.name).bit_length() if node.name.isdecimal() else _BITS
        case exp.Paren() | exp.Neg():
            return _bits(node.this)
        case exp.Mul():
            return _bits(node.this) + _bits(node.expression)
        case exp.Add() | exp.Sub():
            return max(_bits(node.this), _bits(node.expression)) + 1
        case exp.Column():
            return kind.size if kind.name == "int" and kind.size is not None else _BITS
        case exp.Count() | exp.Window():
            return _OF_ROWS
        case exp.Predicate() | exp.Not() | exp.Connector() | exp.Boolean() | exp.Null():
            return 1
        case exp.Anonymous():
            name = str(node.this)
            if name in _PASSING:
                return max(map(_bits, node.expressions), default=_BITS)
            return _BITS if name in _WIDE else 32
    return _BITS
