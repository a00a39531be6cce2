"""The columns of UNION and its like, whose queries give values of one kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from trl_dbbench.mysqlite.coercions import call, chooses, sure_decimal, unified
from trl_dbbench.mysqlite.comparisons import collated
from trl_dbbench.mysqlite.errors import unsupported
from trl_dbbench.mysqlite.kinds import Kind, kind_of


def unify_sides(node: exp.SetOperation) -> None:
    """Gives both sides of a UNION or its like columns of the same kinds, where they are written out."""
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
            new = _float_side(copy, kind) if own.name == "float" else unified(sure_decimal(copy, kind), kind)
            if own.name == kind.name == "float" and node.args.get("distinct"):
                new = call("PLAIN_ZERO", new)
            stored_first = chooses(inner) and not isinstance(inner.unnest(), exp.If | exp.Case)
            if kind.name == "text" and own.name == "decimal" and (stored_first or inner.find(exp.Avg)):
                raise unsupported("numbers chosen among others, or averages, beside texts in a UNION")
            if (
                isinstance(value, exp.Column)
                and own.name == "decimal"
                and kind.is_number
                and kind[:2] != own[:2]
            ):
                # SQLite would take the type of this column for that of all rows
                name, places = ("DECIMAL", kind.places) if kind.name == "decimal" else ("CAST_DOUBLE", None)
                new = call(name, value.copy(), None if places is None else exp.Literal.number(places))
            if isinstance(new, exp.Anonymous) and new.this.startswith("my_") and new.this != inner.this:
                value.replace(collated(new) if kind.name == "text" else new)


def _sides(node: exp.SetOperation, kinds: Sequence[Kind]) -> Iterator[exp.Expr]:
    """The queries of a set operation, however deep."""
    for side in (_written_out(node.left), _written_out(node.right)):
        if not isinstance(side, exp.SetOperation):
            yield side
            continue
        pairs = [(one, kind) for (_, one), kind in zip(side.meta.get("row", ()), kinds, strict=False)]
        if any(one.name in ("float", "decimal", "datetime") and kind.name == "text" for one, kind in pairs):
            raise unsupported("numbers or times, and texts in a UNION of three")
        if any(one.name == "int" and kind.name == "text" for one, kind in pairs):
            yield from _sides(side, kinds)


def _float_side(value: exp.Expr, kind: Kind) -> exp.Expr:
    """A floating-point number in a column of UNION; of a FLOAT as a text, MySQL's plan decides the digits."""
    if kind.name != "text":
        return value
    return call("SURE_SINGLE" if kind_of(value).is_single else "WRITTEN", value)


def _written_out(side: exp.Expr) -> exp.Expr:
    """The query whose columns are those of a side, which may stand in brackets (`single_row`)."""
    side = side.unnest()
    while isinstance(side, exp.Select) and [type(each) for each in side.expressions] == [exp.Star]:
        source = side.args.get("from_")
        if source is None or not isinstance(source.this, exp.Subquery):
            break
        side = source.this.unnest()
    return side
