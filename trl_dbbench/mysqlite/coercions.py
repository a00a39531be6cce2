"""Values of one type in the place of another, as MySQL converts them in comparisons, texts and arithmetic.

The rules ask here with the nodes of an expression, whose kinds are known (`annotation`), and get nodes that
call the functions of `conversions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from sqlglot import exp

from trl_dbbench.mysqlite.conversions import LOWEST, incorrect, is_number
from trl_dbbench.mysqlite.dates import is_date, moment
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.kinds import DATE, DATETIME, Kind, keep_kind, kind_of, reads_long_text, words
from trl_dbbench.mysqlite.parse import text_of
from trl_dbbench.mysqlite.values import Value


def call(name: str, *arguments: exp.Expr | None) -> exp.Anonymous:
    """A call of one of our functions."""
    return exp.Anonymous(this=f"my_{name}", expressions=[each for each in arguments if each is not None])


def as_text(node: exp.Expr) -> exp.Expr:
    """A number as MySQL writes it, with all places of a decimal; anything else is a text already."""
    kind = kind_of(node)
    if kind.name not in ("decimal", "float"):
        return node
    for part, name in _chosen(node):
        part.set(name, as_text(part.args[name]))
    if kind.name == "decimal" and kind.silent is None and isinstance(node, exp.Column):
        raise unsupported("a number chosen among others in a derived table as a text")
    if _chosen(node) or (kind.name == "float" and not kind.is_single):
        return node
    if kind.is_single and isinstance(node, exp.Anonymous) and node.this == "my_NULLIF":
        node.expressions[-1].replace(as_text(node.expressions[-1].copy()))
        return node
    if kind.is_single:
        column = isinstance(node.unnest(), exp.Column) and kind.silent is not None
        return call("WRITTEN_SINGLE" if column else "SURE_SINGLE", node)
    return call("WRITTEN", node, exp.Literal.number(kind.places))


def _chosen(node: exp.Expr) -> list[tuple[exp.Expr, str]]:
    """The nodes, and their arguments, among which CASE or IF chooses: MySQL writes each by its own type."""
    if isinstance(node, exp.Case):
        default = [(node, "default")] if node.args.get("default") is not None else []
        return [*((branch, "true") for branch in node.args["ifs"]), *default]
    if isinstance(node, exp.If):
        return [(node, name) for name in ("true", "false") if node.args.get(name) is not None]
    return [(node, "this")] if isinstance(node, exp.Paren) and _chosen(node.this) else []


def as_number(node: exp.Expr) -> exp.Expr:
    """A date as the number 20200131, or 20200131235959; also a text that an interval was added to.

    Raises:
        StatementError: it is a date or a text that is chosen, of which MySQL keeps in places which one it is.
    """
    if (
        kind_of(node).name == "text"
        and chooses(node)
        and any(kind_of(each).is_moment for each in node.walk())
    ):
        raise unsupported("a number of what is chosen among dates and texts")
    return call("DATE_NUMBER", node) if kind_of(node).is_moment or is_moved(node) else node


def numeric(node: exp.Expr, check: str = "FULL_NUMBER") -> exp.Expr:
    """A value in the place of a number, which must be one in a statement that changes rows."""
    return as_number(node) if is_moved(node) else in_change(as_number(node), check)


_MOVING = frozenset({"my_DATE_ADD", "my_DATE_SUB", "my_FULL_DATE_ADD", "my_FULL_DATE_SUB"})


def is_moved(node: exp.Expr) -> bool:
    if isinstance(node, exp.Case) and node.args.get("default") is not None:  # of `unless_null`
        return is_moved(node.args["default"])
    return isinstance(node, exp.Anonymous) and node.this in _MOVING


def strict_truths(tree: exp.Expr) -> None:
    """Texts in the place of truth values, in a statement that changes rows: they must be numbers."""
    for node in list(tree.find_all(exp.Connector, exp.Not, exp.Where, exp.If, exp.Is)):
        of_value = (
            isinstance(node, exp.If) and isinstance(node.parent, exp.Case) and node.parent.this is not None
        )
        if of_value or (isinstance(node, exp.Is) and not isinstance(node.expression, exp.Boolean)):
            continue
        for side in ("this", "expression"):
            value = node.args.get(side)
            if isinstance(value, exp.Expr):
                node.set(side, in_change(value))


def exact(node: exp.Expr, kind: Kind, places: int | None = None) -> exp.Expr:
    """A computed decimal, rounded to its places or to so many: floats differ after the 15th digit."""
    if kind.name != "decimal" or not kind.places:
        return node
    new = call("DECIMAL", node, exp.Literal.number(kind.places if places is None else places))
    new.meta["kind"] = kind
    return new


def unified(node: exp.Expr, kind: Kind) -> exp.Expr:
    """A value of CASE, COALESCE or UNION as the kind that all its values have together."""
    own = kind_of(node)
    if kind == DATETIME and own == DATE:
        new: exp.Expr = call("MOMENT", node)
    elif kind.name == "text" and (own.is_number or own.is_moment):
        new = as_text(node) if own.name in ("decimal", "float") else call("WRITTEN", node)
        if new is node:
            new = call("WRITTEN", node)
    else:
        return node
    new.meta["kind"] = kind
    return new


def sure_decimal(node: exp.Expr, kind: Kind) -> exp.Expr:
    """A new value of a column. In one of texts, MySQL writes a computed decimal that is 0 with its places or
    without them."""
    if kind.name != "text" or not _is_computed_decimal(node):
        return node
    chosen = [part.args[name] for part, name in _chosen(node)]
    if chooses(node) and (not chosen or any(map(_is_computed_decimal, chosen))):
        raise unsupported("a decimal chosen among others as a stored text")
    return node if chosen else keep_kind(call("SURE_DECIMAL", node), node)


def _is_computed_decimal(node: exp.Expr) -> bool:
    return kind_of(node).name == "decimal" and not isinstance(node.unnest(), exp.Column | exp.Literal)


def comparable(nodes: Sequence[exp.Expr], strict: bool = False) -> list[exp.Expr]:
    """The sides of a comparison; where one is a date, the others are read as dates.

    In a statement that changes something, a text that is compared with a number must be one.

    Args:
        strict: an unreadable date among the constants is an error, as with `=`.
    """
    kinds = [kind_of(node) for node in nodes]
    pairs = list(zip(nodes, kinds, strict=True))
    if not any(kind.is_moment for kind in kinds):
        return _numeric(nodes) if any(kind.is_number for kind in kinds) else list(nodes)
    if any(kind.is_number for kind in kinds):
        if len(nodes) == 2 and not any(
            kind.is_moment and isinstance(node, exp.Column) for node, kind in pairs
        ):
            return [as_number(node) for node in nodes]
        if len(nodes) > 2 and (DATETIME in kinds or any(map(_is_long, nodes))):
            raise unsupported("a date and time among numbers")
    constants = {n: _constant(node, strict) for n, node in enumerate(nodes) if isinstance(node, exp.Literal)}
    for n in constants:
        if nodes[n].is_string and not is_date(nodes[n].name) and is_in_change(nodes[n]):
            raise unsupported("a text that is no date beside dates in a statement that changes rows")
    if any(kind.name in ("int", "decimal", "float") and not constants.get(n) for n, kind in enumerate(kinds)):
        return [as_number(node) for node in nodes]
    days = all(
        kind in (DATE, Kind("null")) or (n in constants and (constants[n] or "00:00:00").endswith("00:00:00"))
        for n, kind in enumerate(kinds)
    )
    read: list[exp.Expr] = []
    for n, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
        if n in constants:
            written = constants[n] or LOWEST
            read.append(exp.Literal.string(written[:10] if days else written))
        elif (kind == DATE and days) or kind.name == "null":
            read.append(node)
        else:
            checked = strict and kind.name == "text" and (is_in_change(node) or not _differs(node))
            # beside a date, MySQL reads the date alone of a text, if both may differ from row to row
            day = len(nodes) == 2 and DATE in kinds and kind.name == "text" and all(map(_differs, nodes))
            name = "FULL_MOMENT" if checked else "SURE_MOMENT" if _may_be_null(node) else "MOMENT"
            of_day = "FULL_DAY_OF" if is_in_change(node) else "DAY_OF"
            read.append(call(name, call(of_day, node) if day else node))
    return [keep_kind(new, node) for new, node in zip(read, nodes, strict=True)]


def _differs(node: exp.Expr) -> bool:
    """Whether a value may differ from row to row."""
    return node.find(exp.Column, exp.Query) is not None


def _is_long(node: exp.Expr) -> bool:
    """Whether it is a number with the digits of a date and time."""
    return isinstance(node, exp.Literal) and not node.is_string and len(node.name) > len("20200101")


def chooses(node: exp.Expr) -> bool:
    """Whether an expression gives one of several values as it is."""
    name = node.name.upper().removeprefix("MY_") if isinstance(node, exp.Anonymous) else ""
    named = name in ("IFNULL", "NULLIF", "IF", "GREATEST", "LEAST", "ELT")
    return named or isinstance(node.unnest(), exp.If | exp.Case | exp.Coalesce)


def _may_be_null(node: exp.Expr) -> bool:
    """Whether MySQL makes NULL, and not the lowest date, of a text that is no date."""
    return kind_of(node).name == "text" and chooses(node) and _differs(node)


def is_in_change(node: exp.Expr) -> bool:
    """Whether an expression stands in a statement that changes rows, where MySQL is strict."""
    change = node.find_ancestor(exp.Insert, exp.Update, exp.Delete)
    return change is not None and not change.args.get("ignore")


def in_change(node: exp.Expr, check: str = "FULL_NUMBER") -> exp.Expr:
    """A text in the place of a number, or with another check of a date: in a statement that changes rows, it
    must be one to the end."""
    kind = kind_of(node)
    if kind.name != "text" or not is_in_change(node):
        return node
    if chooses(node) and any(kind_of(each).is_moment for each in node.walk()) and check != "FULL_DATE":
        raise unsupported("a date among texts as a number in a statement that changes rows")
    name = str(node.this).upper() if isinstance(node, exp.Anonymous) else ""
    of_null = node.find(exp.Null) is not None and not kind.silent
    constant = chooses(node) and (node.find(exp.Column) is None or of_null)
    if check == "FULL_NUMBER" and (constant or name in ("MY_GREATEST", "MY_LEAST")):
        raise unsupported("a chosen text as a number in a statement that changes rows")
    if check == "FULL_NUMBER" and kind.silent:
        return node
    if check == "FULL_NUMBER" and (kind.silent is None or _may_be_stored(node)):
        raise unsupported("a text made of TEXT as a number in a statement that changes rows")
    if check == "FULL_BEGUN_DECIMAL" and isinstance(node, exp.Column) and kind.silent is False:
        check = "FULL_DECIMAL"
    if check in ("FULL_NUMBER", "FULL_BEGUN_DECIMAL") and isinstance(node, exp.Literal):
        if is_number(node.name):
            return node
        check = check.replace("BEGUN_", "")  # MySQL minds what comes behind the number in a constant
    return keep_kind(call(check, node), node)


def _may_be_stored(node: exp.Expr) -> bool:
    """Whether MySQL may have stored a text that is made of TEXT: it reads what is stored without an error."""
    above = node.find_ancestor(exp.Window, exp.Query)
    stored = isinstance(above, exp.Window) or (isinstance(above, exp.Select) and above.args.get("group"))
    return bool(stored) and reads_long_text(node)


def may_fail(node: exp.Expr) -> bool:
    """Whether an expression, rewritten for a statement that changes rows, has a check that may raise."""
    return any(map(is_check, node.find_all(exp.Anonymous)))


DOUBTFUL = "DOUBTFUL_"
"""How the names of functions begin that refuse where another fails, as MySQL may pass over it."""
CHECKS = ("FULL_", "DIVISOR")
"""How those begin that raise in a statement that changes rows."""


def is_check(node: exp.Anonymous) -> bool:
    return str(node.this).removeprefix("my_").startswith((*CHECKS, DOUBTFUL))


def doubt(check: exp.Anonymous) -> None:
    """Makes a check refuse, for where MySQL may pass over its failure."""
    check.set("this", f"my_{DOUBTFUL}{check.this.removeprefix('my_').removeprefix(DOUBTFUL)}")


def doubtful(check: Callable[..., Value]) -> Callable[..., Value]:
    """A check for where MySQL may pass over its failure."""

    @wraps(check)
    def checked(*values: Value) -> Value:
        try:
            return check(*values)
        except StatementError:
            raise unsupported("what fails where MySQL may not look at it") from None

    return checked


def is_early(node: exp.Expr) -> bool:
    """Whether it is a constant that MySQL reads before any row."""
    return bool(node.meta.get("early"))


def unless_null(earlier: Sequence[exp.Expr], computed: exp.Expr) -> exp.Expr:
    """What is computed of these and of values that MySQL does not look at where one of these is NULL."""
    tests = [exp.Is(this=exp.paren(each.copy()), expression=exp.null()) for each in earlier]
    return exp.Case(ifs=[exp.If(this=test, true=exp.null()) for test in tests], default=computed)


def _numeric(nodes: Sequence[exp.Expr]) -> list[exp.Expr]:
    return [numeric(node) for node in nodes]


def check_numbers(nodes: Sequence[exp.Expr]) -> None:
    """Raises StatementError for a number beside a column where rows are changed.

    Namely if it is no date beside one of dates, and if the column stands beside a text as well, which MySQL
    may put in its place.
    """
    for node in nodes if any(kind_of(each).is_number for each in nodes) else ():
        if isinstance(node, exp.Column) and kind_of(node).silent and is_in_change(node) and _has_text(node):
            raise unsupported("a column beside a number and a text in a statement that changes rows")
    if not any(isinstance(node, exp.Column) and kind_of(node).is_moment for node in nodes):
        return
    for node in nodes:
        literal = node.this if isinstance(node, exp.Neg) else node
        number = isinstance(literal, exp.Literal) and not literal.is_string
        computed = kind_of(node).is_number and not number and not _differs(node)
        if computed and is_in_change(node):
            raise unsupported("a computed number beside a date in a statement that changes rows")
        if number and is_in_change(node) and not literal.name.strip("0."):
            raise unsupported("0 as a date in a statement that changes rows")
        if number and is_in_change(node) and (literal is not node or moment(literal.name) is None):
            raise StatementError(1292, f"Incorrect date value: '{text_of(node)}'")


def _has_text(column: exp.Column) -> bool:
    """Whether the condition in which a column stands also compares it with a constant text."""
    where = column.find_ancestor(exp.Where)
    others = where.find_all(exp.Column) if where is not None else ()
    for other in others:
        beside = other.find_ancestor(exp.Predicate, exp.Anonymous) if other == column else None
        if other is column or beside is None:
            continue
        if any(each.is_string for each in beside.find_all(exp.Literal)):
            return True
    return False


def _constant(node: exp.Literal, strict: bool) -> str | None:
    """A constant as a date and time, or `None`."""
    found = moment(node.name)
    if found is None and strict and node.is_string:
        raise incorrect(node.name)
    return None if found is None else found.isoformat(" ")


_WHOLE, _NARROW = words("utf8mb4"), words("utf8 utf8mb3")
_OTHERS = words(
    """
    armscii8 ascii big5 binary cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 cp932 dec8 eucjpms euckr gb18030
    gb2312 gbk geostd8 greek hebrew hp8 keybcs2 koi8r koi8u latin1 latin2 latin5 latin7 macce macroman sjis
    swe7 tis620 ucs2 ujis utf16 utf16le utf32
    """
)


def check_charsets(tree: exp.Expr) -> None:
    """Raises StatementError for a character set that does not exist, or in which texts are not held here."""
    for node in tree.find_all(exp.Chr, exp.DataType, exp.Introducer):
        named = node.args.get("charset" if isinstance(node, exp.Chr) else "kind")
        name = named.name if isinstance(named, exp.Var) else ""
        if isinstance(node, exp.Introducer):
            name = str(node.this).removeprefix("_")
        if name.lower() in _OTHERS:
            raise unsupported(f"the character set {name}")
        if name and name.lower() not in _WHOLE | _NARROW:
            raise StatementError(1115, f"Unknown character set: '{name}'")


def in_charset(node: exp.Expr, charset: str) -> exp.Expr:
    """A text of this character set, which is one of those for UTF-8."""
    return call("NARROW", node) if charset.lower() in _NARROW else node


def _introduced(node: exp.Expr) -> exp.Expr:
    """A text behind the name of a character set, such as `_latin1'a'`."""
    if not isinstance(node.expression, exp.Literal):
        raise unsupported("bytes behind the name of a character set")
    return node.expression


def _bytes(node: exp.Expr) -> exp.Expr:
    """Bytes such as 0x41, where they are shown. In other places they may be a number or a text to MySQL."""
    above = node.parent.parent if isinstance(node.parent, exp.Alias) else node.parent
    if isinstance(above, exp.Chr):
        return exp.Literal.number(int(node.name, 16))
    shown = isinstance(above, exp.Select) and not isinstance(above.parent, exp.SetOperation)
    separates = isinstance(above, exp.GroupConcat) and node.arg_key == "separator"
    if shown or separates or (isinstance(above, exp.Anonymous) and above.name.upper() == "HEX"):
        return node
    raise unsupported("bytes in an expression")


def _bits(node: exp.Expr) -> exp.Expr:
    raise unsupported("bits as bytes")


CHARSETS: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    exp.Introducer: _introduced,
    exp.HexString: _bytes,
    exp.BitString: _bits,
}
"""The rules of `rules` for them."""


def is_of_null(node: exp.Expr) -> bool:
    """Whether it is a function of texts whose text is NULL. In MySQL it has no character set."""
    if kind_of(node).name != "text" or not isinstance(node, exp.Func):
        return False
    texts = [node.this]
    if not isinstance(node.this, exp.Expr) and node.expressions:
        texts = node.expressions[1:] if str(node.this).upper() in ("ELT", "MY_ELT") else node.expressions[:1]
    return all(
        isinstance(each, exp.Null) or (isinstance(each, exp.Func) and is_of_null(each)) for each in texts
    )
