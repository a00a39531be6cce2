"""MySQL's value types, and the type of each expression in a statement.

SQLite has no types for dates and decimals, but what MySQL makes of an expression depends on them:
`CONCAT(1.50)` is `1.50`, and a date equals `'2020-1-5'`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from trl_dbbench.mysqlite.errors import unsupported
from trl_dbbench.mysqlite.functions import is_number
from trl_dbbench.mysqlite.values import check_time


class Kind(NamedTuple):
    """A MySQL type, as far as it matters here.

    `name` is int, decimal, float, text, date, datetime, time, json, enum, set, blob, null, unknown, or fixed
    (a column of FLOAT or DOUBLE with a number of decimal places). `places` are the decimal places. `size`, if
    known, is a decimal's digits, a text's characters, an integer's bits (`YEAR_BITS` for a YEAR), or 32 for a
    FLOAT as opposed to a DOUBLE. With an `unsigned` integer, a negative result of arithmetic is an error. A
    text that `trims` is a CHAR. `members` are an ENUM's or SET's.

    In a statement that changes rows, a `silent` text is read as a number without an error, as MySQL reads
    columns of TEXT; `None` means that MySQL's plan decides. A FLOAT with `silent` None is computed: MySQL's
    plan decides its number of digits as a text, and with True also its number of digits when it is shown.
    """

    name: str
    places: int = 0
    size: int | None = None
    unsigned: bool = False
    silent: bool | None = False
    trims: bool = False
    members: tuple[str, ...] = ()

    @property
    def is_moment(self) -> bool:
        return self.name in ("date", "datetime")

    @property
    def is_number(self) -> bool:
        return self.name in ("int", "decimal", "float", "fixed")

    @property
    def is_single(self) -> bool:
        """Return whether it is a FLOAT."""
        return self.name == "float" and self.size == 32


class TableColumns(NamedTuple):
    """A table's or view's columns in order. `key` names the primary key's columns, `filled` the NOT NULL
    columns with a default, and `automatic` the AUTO_INCREMENT column."""

    name: str
    columns: tuple[tuple[str, Kind], ...]
    key: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    automatic: str = ""


class Column(NamedTuple):
    """A column's name, and its type as in CREATE TABLE."""

    name: str
    type: str


class Table(NamedTuple):
    """An initial table. Each cell is `None`, int, float, str, bytes, bool or Decimal."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]] = ()


INT, FLOAT, TEXT = Kind("int"), Kind("float"), Kind("text")
"""A 64-bit integer, a DOUBLE, and a text."""
SINGLE = Kind("float", size=32)
"""A FLOAT."""
LONG_TEXT = Kind("text", silent=True)
"""A column of TEXT, TINYTEXT, MEDIUMTEXT or LONGTEXT."""
UNSIGNED = Kind("int", unsigned=True)
DATE, DATETIME, TIME, JSON = Kind("date"), Kind("datetime"), Kind("time"), Kind("json")
NULL, UNKNOWN = Kind("null"), Kind("unknown")
APART = frozenset({"json", "enum", "set", "blob"})
"""Names of kinds whose columns MySQL does not read as texts, though SQLite holds texts or bytes."""

MAX_PLACES = 30
MOST_SINGLE_BITS = 24
"""Largest n for which FLOAT(n) is not a DOUBLE."""


def words(text: str) -> frozenset[str]:
    """Return the set of the words in a text."""
    return frozenset(text.split())


YEAR_BITS = 12
_BITS = {
    "year": YEAR_BITS,
    "tinyint": 8,
    "smallint": 16,
    "mediumint": 24,
    "int": 32,
    "integer": 32,
    "bigint": 64,
}
INTEGERS = {bits: name for name, bits in reversed(_BITS.items())}
"""Names of the integer types, by their number of bits."""
_DECLARED = re.compile(r"(?:my_)?([a-z]+)(?:[ _(]+(\d+))?(?:[ _,]+(\d+))?", re.IGNORECASE)


def declared(type: str) -> Kind:
    """Return the kind of a column that is declared with this type in SQLite (see `tables`)."""
    found = _DECLARED.match(type)
    if not found:
        return UNKNOWN
    name = found[1].lower()
    if name in ("enum", "set") and type.startswith("my_"):
        return Kind(name, members=tuple(bytes.fromhex(type.split()[0].split("_")[2]).decode().split("\0")))
    size = int(found[2]) if found[2] else None
    if name in _BITS:
        return Kind("int", size=_BITS[name], unsigned=name == "year" or "unsigned" in type.lower())
    if name in ("decimal", "numeric", "dec", "fixed"):
        return Kind("decimal", int(found[3] or 0), size)
    if name in ("float", "double", "real"):
        narrow = name == "float" and (found[3] is not None or (size or 0) <= MOST_SINGLE_BITS)
        kind = SINGLE if narrow else FLOAT
        return kind if found[3] is None else Kind("fixed", int(found[3]), kind.size)
    if name in ("char", "nchar"):
        return Kind("text", size=size or 1, trims=True)
    return Kind("text", size=size) if name in ("varchar", "nvarchar") else _PLAIN.get(name, UNKNOWN)


_PLAIN = {
    **{"date": DATE, "datetime": DATETIME, "timestamp": DATETIME, "time": TIME, "json": JSON},
    **dict.fromkeys(("text", "tinytext", "mediumtext", "longtext"), LONG_TEXT),
    **dict.fromkeys(("blob", "tinyblob", "mediumblob", "longblob", "binary", "varbinary"), Kind("blob")),
}


def kind_of(node: exp.Expr | None) -> Kind:
    """Return the kind that `annotate` found for an expression."""
    return UNKNOWN if node is None else node.meta.get("kind", UNKNOWN)


def reads_long_text(node: exp.Expr) -> bool:
    """Return whether an expression contains a column of TEXT."""
    return any(kind_of(column).silent is not False for column in node.find_all(exp.Column))


def keep_kind(new: exp.Expr, old: exp.Expr) -> exp.Expr:
    """Return `new` with the kind of `old`, which it replaces."""
    if "kind" in old.meta:
        new.meta["kind"] = old.meta["kind"]
    return new


def merged(kinds: Iterable[Kind]) -> Kind:
    """Return the common kind of values of these kinds, as in CASE and UNION. If one is TEXT, it is TEXT."""
    kinds = list(kinds)
    found, states = _merged(kinds), {kind.silent for kind in kinds if kind.name == "text"}
    return found._replace(silent=True in states or (None if None in states else False))


def _merged(kinds: Sequence[Kind]) -> Kind:
    known = [kind for kind in kinds if kind.name != "null"]
    names = {kind.name for kind in known}
    if not known:
        return NULL
    if "unknown" in names or names == {"time", "date"} or names == {"time", "datetime"}:
        return UNKNOWN
    if names == {"date", "datetime"}:
        return DATETIME
    if len(names) == 1:
        unsigned = all(kind.unsigned for kind in known)
        size = known[0].size if len(set(known)) == 1 and known[0].name in ("int", "float") else None
        found = Kind(known[0].name, max(kind.places for kind in known), size, unsigned)
        return SINGLE if all(kind.is_single for kind in known) else found
    if not all(kind.is_number for kind in known):
        return TEXT
    return SINGLE if _is_narrow(known) else arithmetic(known)


def _is_narrow(kinds: Sequence[Kind]) -> bool:
    """Return whether a FLOAT and integers make a FLOAT: small ones before it, and any but INT after it."""
    first = next((place for place, kind in enumerate(kinds) if kind.is_single), None)
    if first is None:
        return False
    small = all(kind.name == "int" and kind.size in (8, 16, 24) for kind in kinds[:first])
    return small and all(kind.is_single or (kind.name == "int" and kind.size != 32) for kind in kinds[first:])


def arithmetic(kinds: Sequence[Kind], places: int | None = None) -> Kind:
    """Return the kind of an arithmetic result; `places` are its decimal places if it is a decimal."""
    names = {"float" if kind.name in ("text", "time") else kind.name for kind in kinds}
    if "unknown" in names:
        return UNKNOWN
    if "null" in names or "float" in names:
        return FLOAT
    if "decimal" in names:
        return Kind(
            "decimal", min(max(kind.places for kind in kinds) if places is None else places, MAX_PLACES)
        )
    return Kind("int", unsigned=any(kind.unsigned for kind in kinds))


_T = exp.DataType.Type
_DAYS = ("DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
_CLOCK_FORMAT = re.compile("%[HhIiklprSsTf]")
_DATE_FORMAT = re.compile("%[aabcDdejMmUuVvWwXxYy]")


def _same(node: exp.Expr) -> Kind:
    return kind_of(node.this)


def _always(kind: Kind) -> Callable[[exp.Expr], Kind]:
    return lambda node: kind


def _any(node: exp.Expr) -> Kind:
    first = [node.this] if isinstance(node.this, exp.Expr) else []
    return silent(merged(map(kind_of, [*first, *node.expressions])))


def silent(kind: Kind) -> Kind:
    """Return the kind; if it is a text, MySQL reads it as a number without an error."""
    return kind._replace(silent=True) if kind.name == "text" else kind


def _one_of(nodes: Sequence[exp.Expr | None], kind: Kind) -> Kind:
    """Return `kind` for a choice among values, each of which MySQL reads as a number in its own way."""
    texts = [each for each in nodes if kind_of(each).name == "text"]
    texts = [each for each in texts if not (isinstance(each, exp.Literal) and is_number(each.name))]
    states = {kind_of(each).silent for each in texts}
    return kind._replace(silent=states.pop() if len(states) == 1 else None if states else False)


def _over_window(node: exp.Expr) -> Kind:
    """Return the kind of a window function. MySQL reads MIN and MAX as columns of a temporary table."""
    kind = _same(node)
    return kind._replace(silent=kind_of(node.this.this).silent or None) if kind.name == "text" else kind


def _sides(node: exp.Expr) -> list[Kind]:
    return [_counted(kind_of(node.this)), _counted(kind_of(node.args.get("expression")))]


def _counted(kind: Kind) -> Kind:
    """Return a kind as arithmetic uses it, where a date is an integer."""
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


def _quotient(node: exp.Expr) -> Kind:
    left, right = _sides(node)
    both = arithmetic([left, right], 0)
    return Kind("decimal", min(left.places + 4, MAX_PLACES)) if both.name in ("int", "decimal") else both


def _shifted(node: exp.Expr) -> Kind:
    """Return the common kind of the value and the default of LAG or LEAD."""
    values = [each for each in (node.this, node.args.get("default")) if each is not None]
    return _one_of(values, merged(map(kind_of, values)))


def _remainder(kinds: list[Kind]) -> Kind:
    """Return the kind of a remainder, which has the sign of the dividend."""
    return arithmetic(kinds)._replace(unsigned=bool(kinds) and kinds[0].unsigned)


def _chosen(node: exp.Expr) -> Kind:
    """Return the kind of CASE or IF."""
    results = [each.args.get("true") for each in node.args.get("ifs") or [node]]
    results.append(node.args.get("default" if isinstance(node, exp.Case) else "false"))
    return _one_of(results, merged(NULL if each is None else kind_of(each) for each in results))


def _sum(node: exp.Expr) -> Kind:
    kind = _counted(_of_distinct(node))
    return Kind("decimal", kind.places) if kind.name in ("int", "decimal") else arithmetic([kind])


def _average(node: exp.Expr) -> Kind:
    kind = _sum(node)
    return Kind("decimal", min(kind.places + 4, MAX_PLACES)) if kind.name == "decimal" else kind


def _extreme(node: exp.Expr) -> Kind:
    """Return the kind of MIN and MAX. With GROUP BY, MySQL may turn a computed FLOAT into a DOUBLE."""
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
    """Return the kind of ROUND and TRUNCATE, with the given places, but no more than the number has."""
    kind, digits = _counted(_first(node)), node.expressions[1:]
    if kind.name != "decimal":
        return arithmetic([kind])
    if not digits:
        return Kind("decimal", 0)
    places = {exp.Literal: digits[0].name, exp.Neg: "0"}.get(type(digits[0]), "")
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
    LENGTH CHAR_LENGTH CHARACTER_LENGTH OCTET_LENGTH LOCATE INSTR ASCII ORD FIELD STRCMP FIND_IN_SET SIGN
    MONTH DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR WEEKDAY WEEK WEEKOFYEAR QUARTER HOUR MINUTE SECOND TO_DAYS
    DATEDIFF TIMESTAMPDIFF UNIX_TIMESTAMP ISNULL REGEXP_LIKE
    """
)
_REAL = words(
    """
    SQRT POW POWER EXP LN LOG LOG2 LOG10 SIN COS TAN RADIANS DEGREES RAND PI STD STDDEV STDDEV_POP STDDEV_SAMP
    VARIANCE VAR_POP VAR_SAMP
    """
)
_TEXTUAL = words(
    """
    CONCAT CONCAT_WS UPPER UCASE LOWER LCASE LEFT RIGHT SUBSTR SUBSTRING MID SUBSTRING_INDEX REPLACE REPEAT
    REVERSE SPACE LPAD RPAD LTRIM RTRIM INSERT DATE_FORMAT TIME_FORMAT DAYNAME MONTHNAME FORMAT HEX CHAR
    DATABASE SCHEMA VERSION USER CURRENT_USER UUID
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
"""Rules for the kinds of functions that the parser knows by name only."""

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
    exp.Mul: lambda node: arithmetic(sides := _sides(node), sum(kind.places for kind in sides)),
    exp.Div: _quotient,
    exp.Mod: lambda node: _remainder(_sides(node)),
    exp.IntDiv: lambda node: INT._replace(unsigned=any(kind.unsigned for kind in _sides(node))),
    exp.Neg: lambda node: arithmetic([_counted(_same(node))])._replace(unsigned=False),
    **dict.fromkeys((exp.Case, exp.If), _chosen),
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
    """Return the kind of an expression that is not a column or query. Its children must be annotated."""
    rule = next((_NODES[kind] for kind in type(node).__mro__ if kind in _NODES), None)
    return UNKNOWN if rule is None else rule(node)


Row = list[tuple[str, Kind]]


class _Scope:
    """The columns that a query can name: its tables' columns, its aliases, and outer queries' columns."""

    def __init__(self, above: _Scope | None, parts: Mapping[str, Row]) -> None:
        self.above = above
        self.parts = dict(parts)
        self.sources: dict[str, dict[str, Kind]] = {}
        self.aliases: dict[str, Kind] = {}

    def find(self, column: exp.Column) -> Kind:
        table, name = column.table.lower(), column.name.lower()
        if table:
            if table in self.sources:
                return self.sources[table].get(name, UNKNOWN)
        else:
            found = [columns[name] for columns in self.sources.values() if name in columns]
            if found:
                return found[0] if len(set(found)) == 1 else UNKNOWN
            if name in self.aliases:
                return self.aliases[name]
        return self.above.find(column) if self.above is not None else UNKNOWN


class _Annotator:
    def __init__(self, columns: Sequence[TableColumns]) -> None:
        self._columns: dict[str, Row] = {each.name.lower(): list(each.columns) for each in columns}

    def query(self, node: exp.Expr | None, above: _Scope | None, parts: Mapping[str, Row]) -> Row:
        """Annotate a query; return the columns of its rows."""
        check_time()
        if not isinstance(node, exp.Query):
            return []
        parts = self._with(node, above, parts)
        if isinstance(node, exp.Subquery):
            row = self.query(node.this, above, parts)
        elif isinstance(node, exp.SetOperation):
            left, right = self.query(node.left, above, parts), self.query(node.right, above, parts)
            row = [
                (name, merged((kind, other))) for (name, kind), (_, other) in zip(left, right, strict=False)
            ]
        elif isinstance(node, exp.Select):
            row = self._select(node, above, parts)
        else:
            row = []
        node.meta["row"] = row
        return row

    def _with(self, node: exp.Expr, above: _Scope | None, parts: Mapping[str, Row]) -> Mapping[str, Row]:
        with_ = node.args.get("with_")
        if with_ is None:
            return parts
        known = dict(parts)
        for part in with_.expressions:
            query = part.this
            names = [column.name for column in part.args["alias"].columns]
            if with_.args.get("recursive") and isinstance(query, exp.SetOperation):
                first = query.left
                while isinstance(first, exp.SetOperation):
                    first = first.left
                for each in (first, query.left):  # MySQL keeps their kinds for all rows
                    known[part.alias.lower()] = _renamed(self.query(each, above, known), names)
                self.query(query, above, known)
            else:
                known[part.alias.lower()] = _renamed(self.query(query, above, known), names)
        return known

    def _select(self, node: exp.Select, above: _Scope | None, parts: Mapping[str, Row]) -> Row:
        scope = _Scope(above, parts)
        source = node.args.get("from_")
        joins = node.args.get("joins") or []
        for each in [*([source] if source is not None else []), *joins]:
            self._source(each.this, scope)
        row: Row = []
        for each in node.expressions:
            if isinstance(each, exp.Star | exp.Column) and each.is_star:
                wanted = each.table.lower() if isinstance(each, exp.Column) else ""
                row += _starred(scope.sources, joins, wanted)
                continue
            kind = _named(each, self.kind(each, scope))
            row.append((each.alias_or_name, kind))
            if isinstance(each, exp.Alias):
                scope.aliases[each.alias.lower()] = kind
        for name in ("where", "group", "having", "order", "limit", "windows"):
            rest = node.args.get(name)
            for part in rest if isinstance(rest, list) else [rest]:
                if part is not None:
                    self.kind(part, scope)
        for join in joins:
            if join.args.get("on") is not None:
                self.kind(join.args["on"], scope)
        return row

    def _source(self, node: exp.Expr, scope: _Scope) -> None:
        row: Row = []
        if isinstance(node, exp.Table):
            name = node.name.lower()
            row = _computed(scope.parts.get(name)) or self._columns.get(name) or []
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):  # in brackets
            self._source(node.this, scope)
        elif isinstance(node, exp.Subquery):
            row = _renamed(_computed(self.query(node, scope.above, scope.parts)), node.alias_column_names)
        elif isinstance(node, exp.Paren):
            self._source(node.this, scope)
        for join in node.args.get("joins") or []:
            self._source(join.this, scope)
            if join.args.get("on") is not None:
                self.kind(join.args["on"], scope)
        scope.sources[node.alias_or_name.lower()] = {name.lower(): kind for name, kind in row}

    def change(self, node: exp.Insert | exp.Update | exp.Delete) -> None:
        """Annotate the expressions of a statement that changes rows."""
        scope = _Scope(None, self._with(node, None, {}))
        target = node.this.this if isinstance(node.this, exp.Schema) else node.this
        joined = node.args.get("from_")
        for source in (target, joined.this if joined is not None else None):
            if isinstance(source, exp.Table | exp.Subquery):
                self._source(source, scope)
        if isinstance(node, exp.Insert):
            self.query(node.expression, None, scope.parts)
        for name, part in node.args.items():
            if name not in ("this", "with_", "from_") and not (
                isinstance(part, exp.Query) and isinstance(node, exp.Insert)
            ):
                for each in part if isinstance(part, list) else [part]:
                    if isinstance(each, exp.Expr):
                        self.kind(each, scope)

    # --- expressions --------------------------------------------------------------------------------------

    def kind(self, node: exp.Expr, scope: _Scope) -> Kind:
        """Annotate an expression and its descendants; return its kind."""
        if isinstance(node, exp.Query):
            row = self.query(node, scope, scope.parts)
            found = row[0][1] if len(row) == 1 else UNKNOWN
            if node.find(exp.From) is not None:  # without FROM, MySQL reads the value itself
                found = silent(found)
        else:
            for child in node.iter_expressions():
                self.kind(child, scope)
            found = scope.find(node) if isinstance(node, exp.Column) else of_expression(node)
        node.meta["kind"] = found
        return found


def _named(node: exp.Expr, kind: Kind) -> Kind:
    """Return the kind of a selected expression for HAVING and outer queries: MySQL may have stored it."""
    if kind.is_single and not isinstance(node.unalias().unnest(), exp.Column):
        return kind._replace(silent=kind.silent or None)
    if kind.name == "decimal" and _is_chosen(node.unalias().unnest()):
        return kind._replace(silent=None)
    if kind.name != "text" or isinstance(node.unalias().unnest(), exp.Column):
        return kind
    return kind._replace(silent=None) if kind.silent is not False or reads_long_text(node) else kind


def _is_chosen(node: exp.Expr) -> bool:
    """Return whether CASE or IF chooses among numbers of different types, which MySQL writes differently."""
    chosen = list(node.find_all(exp.If, exp.Case)) if isinstance(node, exp.If | exp.Case) else []
    values = [each.args.get(name) for each in chosen for name in ("true", "false", "default")]
    kinds = {kind_of(value)[:2] for value in values if value is not None and kind_of(value).is_number}
    return len(kinds) > 1


def _computed(row: Row | None) -> Row:
    """Return the columns of a derived table or CTE, which MySQL may compute where they are used."""
    singles = [kind.is_single and kind.silent is False for _, kind in row or ()]
    pairs = zip(row or (), singles, strict=True)
    return [(name, kind._replace(silent=None) if single else kind) for (name, kind), single in pairs]


def _starred(sources: Mapping[str, Mapping[str, Kind]], joins: Sequence[exp.Join], wanted: str) -> Row:
    """Return the columns of `*` or `t.*`. Raise StatementError if MySQL would put the USING columns first."""
    if wanted:
        return list(sources.get(wanted, {}).items())
    row: Row = []
    named = {join.alias_or_name.lower(): join for join in joins}
    for name, columns in sources.items():
        join = named.get(name)
        shared = {each.name.lower() for each in join.args.get("using") or []} if join is not None else set()
        if join is not None and join.method:
            shared = {column for column in columns if column in dict(row)}
        if join is not None and shared:
            first = [column for column, _ in row[: len(shared)]]
            if set(first) != shared or join.side.upper() == "RIGHT" or len(joins) > 1:
                raise unsupported("* of tables that are joined by USING or NATURAL")
        row += [(column, kind) for column, kind in columns.items() if column not in shared]
    return row


def _renamed(row: Row, names: Sequence[str]) -> Row:
    return [(name, kind) for name, (_, kind) in zip(names, row, strict=False)] if names else row


def annotate(tree: exp.Expr, columns: Sequence[TableColumns]) -> tuple[Kind, ...]:
    """Note the kind of each expression in the tree, for `kind_of`; return the kinds of a query's columns."""
    annotator = _Annotator(columns)
    if isinstance(tree, exp.Create):
        tree = tree.expression
    if isinstance(tree, exp.Query):
        return tuple(kind for _, kind in annotator.query(tree, None, {}))
    if isinstance(tree, exp.Insert | exp.Update | exp.Delete):
        annotator.change(tree)
    return ()
