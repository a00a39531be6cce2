"""MySQL's types of values, and which of them each kind of expression gives.

SQLite's values have no types but their own: dates are texts there, and decimals floats. What MySQL makes of
an expression depends on its type all the same: `CONCAT(1.50)` is `1.50`, a date equals `'2020-1-5'`, and the
sum of two decimals has as many places as the longer of them. `annotation` finds the types in
a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlglot import exp


class Kind(NamedTuple):
    """A type of MySQL's, as far as it matters here.

    `name` is int, decimal, float, text, date, datetime, time, json, null or unknown; `places` are those of a
    decimal; `size` is the number of digits of a decimal, of characters of a text, and of bits of an integer,
    if it is bounded; a whole number that is `unsigned` makes a negative result of arithmetic an error. A text
    that is `silent` is read as a number without an error in a statement that changes rows, as MySQL reads
    columns of TEXT; `None` says that MySQL's plan decides it. A float has 64 bits, a FLOAT a `size` of 32. A
    FLOAT that is `silent` None is computed, and MySQL's plan decides with how many digits it becomes a text;
    True says that it also decides with how many it is shown. `fixed` is a column of FLOAT or DOUBLE with a
    number of places.
    """

    name: str
    places: int = 0
    size: int | None = None
    unsigned: bool = False
    silent: bool | None = False

    @property
    def is_moment(self) -> bool:
        return self.name in ("date", "datetime")

    @property
    def is_number(self) -> bool:
        return self.name in ("int", "decimal", "float", "fixed")

    @property
    def is_single(self) -> bool:
        """Whether it is a FLOAT."""
        return self.name == "float" and self.size == 32


class TableColumns(NamedTuple):
    """A table's or view's columns in their order, and the names of those that are its primary key."""

    name: str
    columns: tuple[tuple[str, Kind], ...]
    key: tuple[str, ...] = ()


INT, FLOAT, TEXT = Kind("int"), Kind("float"), Kind("text")
"""A whole number of 64 bits, a DOUBLE, and a text."""
SINGLE = Kind("float", size=32)
"""A FLOAT."""
LONG_TEXT = Kind("text", silent=True)
"""A column of TEXT, or of its kin."""
UNSIGNED = Kind("int", unsigned=True)
DATE, DATETIME, TIME, JSON = Kind("date"), Kind("datetime"), Kind("time"), Kind("json")
NULL, UNKNOWN = Kind("null"), Kind("unknown")

MAX_PLACES = 30
MOST_SINGLE_BITS = 24
"""FLOAT(n) is a DOUBLE for more."""


def words(text: str) -> frozenset[str]:
    """A set of names."""
    return frozenset(text.split())


_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_DECLARED = re.compile(r"(?:my_)?([a-z]+)(?:[ _(]+(\d+))?(?:[ _,]+(\d+))?", re.IGNORECASE)


def declared(type: str) -> Kind:
    """The kind of a column that is declared with this type in SQLite (see `tables`)."""
    found = _DECLARED.match(type)
    if not found:
        return UNKNOWN
    name, size = found[1].lower(), int(found[2]) if found[2] else None
    if name in _BITS:
        return Kind("int", size=_BITS[name], unsigned="unsigned" in type.lower())
    if name in ("decimal", "numeric", "dec", "fixed"):
        return Kind("decimal", int(found[3] or 0), size)
    if name in ("float", "double", "real"):
        narrow = name == "float" and (found[3] is not None or (size or 0) <= MOST_SINGLE_BITS)
        kind = SINGLE if narrow else FLOAT
        return kind if found[3] is None else Kind("fixed", int(found[3]), kind.size)
    if name in ("varchar", "char", "nvarchar", "nchar"):
        return Kind("text", size=size)
    if name in ("text", "tinytext", "mediumtext", "longtext"):
        return LONG_TEXT
    return {"date": DATE, "datetime": DATETIME, "timestamp": DATETIME, "time": TIME, "json": JSON}.get(
        name, UNKNOWN
    )


def kind_of(node: exp.Expr | None) -> Kind:
    """What `annotate` found for an expression."""
    return UNKNOWN if node is None else node.meta.get("kind", UNKNOWN)


def reads_long_text(node: exp.Expr) -> bool:
    """Whether a column of TEXT stands in an expression."""
    return any(kind_of(column).silent is not False for column in node.find_all(exp.Column))


def keep_kind(new: exp.Expr, old: exp.Expr) -> exp.Expr:
    """The expression, with the kind of the one that it replaces."""
    if "kind" in old.meta:
        new.meta["kind"] = old.meta["kind"]
    return new


def merged(kinds: Iterable[Kind]) -> Kind:
    """What a value has of which each kind may come: that of CASE, COALESCE or a column of UNION.

    A column of UNION with texts of TEXT is one of TEXT.
    """
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
    """Whether a FLOAT and other numbers are a FLOAT: it depends on their order.

    A FLOAT remains one beside whole numbers behind it but columns of INT, and beside small ones before it.
    """
    first = next((place for place, kind in enumerate(kinds) if kind.is_single), None)
    if first is None:
        return False
    small = all(kind.name == "int" and kind.size in (8, 16, 24) for kind in kinds[:first])
    return small and all(kind.is_single or (kind.name == "int" and kind.size != 32) for kind in kinds[first:])


def arithmetic(kinds: Sequence[Kind], places: int | None = None) -> Kind:
    """What arithmetic gives; `places` are those of a decimal result."""
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
