"""MySQL's expressions, rewritten for SQLite: a rule for each kind of node in sqlglot's tree.

Operators and functions whose meaning differs become calls of the Python functions in `functions`, which
SQLite knows under the prefix `my_`. What MySQL would refuse, and what has no counterpart, raises
`StatementError` with MySQL's number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import SqlglotError

from trl_dbbench.mysqlite.calls import (
    TOTALS,
    bits,
    cast,
    check_name,
    checked,
    counted,
    function_call,
    move,
    remainder_of,
)
from trl_dbbench.mysqlite.checks import single_row
from trl_dbbench.mysqlite.coercions import (
    CHARSETS,
    as_text,
    call,
    chooses,
    doubt,
    exact,
    in_change,
    in_charset,
    is_check,
    is_early,
    is_in_change,
    may_fail,
    numeric,
    strict_truths,
    sure_decimal,
    unified,
    unless_null,
)
from trl_dbbench.mysqlite.comparisons import BINARY, COMPARISONS, collated
from trl_dbbench.mysqlite.conversions import OVERFLOW
from trl_dbbench.mysqlite.dates import EXTRACTED
from trl_dbbench.mysqlite.errors import (
    SHOWN_DATABASE,
    StatementError,
    nested_too_deeply,
    syntax_error,
    unsupported,
)
from trl_dbbench.mysqlite.kinds import JSON, Kind, TableColumns, annotate, keep_kind, kind_of
from trl_dbbench.mysqlite.names import (
    check_twice,
    having_alone,
    qualify_having,
    qualify_joins,
    qualify_order,
    rename_columns,
)
from trl_dbbench.mysqlite.parse import quote, text_of
from trl_dbbench.mysqlite.recursion import count_depth, is_recursive, note_columns, store_columns
from trl_dbbench.mysqlite.storage import store
from trl_dbbench.mysqlite.values import COLLATION


def turn_right_joins(select: exp.Expr) -> None:
    """Makes `a JOIN b RIGHT JOIN c` of a query `c LEFT JOIN (a JOIN b)`.

    That changes the order of the columns of `*`: a query with `*` keeps its RIGHT JOIN.

    Raises:
        StatementError: it keeps one that SQLite answers wrongly.
    """
    joins, first = select.args.get("joins") or [], select.args.get("from_")
    if not any(_is_right(join) for join in joins):
        return
    named = any(join.args.get("using") or join.method for join in joins)
    if named and any(
        isinstance(each, exp.Column) and isinstance(each.this, exp.Star) for each in select.expressions
    ):
        raise unsupported("t.* of tables that RIGHT JOIN joins by USING or NATURAL")
    if named or first is None or any(each.is_star for each in select.expressions):
        _check_right_joins(joins)
        return
    source, done = first.this, list[exp.Join]()
    for join in joins:
        if not _is_right(join):
            done.append(join)
            continue
        if done:
            source.set("joins", done)
            source = exp.Subquery(this=source)
        source, done = join.this, [exp.Join(this=source, side="LEFT", on=join.args.get("on"))]
    first.set("this", source)
    select.set("joins", done)


def _is_right(join: exp.Join) -> bool:
    return join.side.upper() == "RIGHT"


def _check_right_joins(joins: list[exp.Join]) -> None:
    """Refuses what SQLite 3.40 answers wrong: before RIGHT JOIN, a constant condition removes all rows."""
    last = max((n for n, join in enumerate(joins) if join.side.upper() == "RIGHT"), default=0)
    for join in joins[:last]:
        condition = join.args.get("on")
        if condition is None:
            continue
        terms = condition.flatten() if isinstance(condition, exp.And) else [condition]
        if any(term.find(exp.Column, exp.Query) is None for term in terms):
            raise unsupported("a constant in ON before RIGHT JOIN")


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


def rewrite(node: exp.Expr) -> None:
    """Replaces a node whose descendants have been rewritten."""
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
    return exact(checked(_again(node), kind_of(node)), kind_of(node))


def _again(node: exp.Expr) -> exp.Expr:
    """The same node, to stand below the one that takes its place."""
    return type(node)(**node.args)


def _quotient(node: exp.Expr) -> exp.Expr:
    kind = kind_of(node)
    places = exp.Literal.number(kind.places) if kind.name == "decimal" else None
    dividend = numeric(node.this)
    if kind.name == "float":  # of texts such as '1', SQLite makes whole numbers
        dividend = call("CAST_DOUBLE", dividend)
    return call("DIV", dividend, _divisor(node), places)


def _remainder(node: exp.Expr) -> exp.Expr:
    kind = kind_of(node)
    return exact(call(remainder_of(kind), numeric(node.this), _divisor(node)), kind)


def _whole_quotient(node: exp.Expr) -> exp.Expr:
    strict = is_in_change(node)
    dividend, divisor = (numeric(side, "FULL_BEGUN_DECIMAL") for side in (node.this, node.expression))
    fails = strict and may_fail(divisor)
    if strict:
        divisor = call("DIVISOR", divisor, dividend.copy())
    quotient = checked(call("INT_DIV", dividend, divisor), kind_of(node))
    return unless_null([dividend], quotient) if fails else quotient


def _divisor(node: exp.Expr) -> exp.Expr:
    divisor = numeric(node.expression)
    return call("DIVISOR", divisor, numeric(node.this).copy()) if is_in_change(node) else divisor


def _negative(node: exp.Expr) -> exp.Expr:
    kind = kind_of(node.this).name
    number = numeric(node.this)
    if kind == "text" and is_in_change(node):
        number = call("NOT_ZERO", number)
    elif kind in ("text", "float"):
        return call("NEGATIVE", number)  # SQLite subtracts from 0, which gives no -0
    node.set("this", number)
    return node


def _xor(node: exp.Expr) -> exp.Expr:
    sides = (node.this, node.expression)
    if is_in_change(node) and any(map(may_fail, sides)):  # MySQL does not look at it beside NULL
        raise unsupported("XOR of what may be no number in a statement that changes rows")
    return call("NE", *(exp.Not(this=exp.paren(side)) for side in sides))


def _is(node: exp.Expr) -> exp.Expr:
    if isinstance(node.expression, exp.Column | exp.Literal):
        raise syntax_error(text_of(node.expression))
    if isinstance(node.expression, exp.Null) and is_in_change(node) and may_fail(node.this):
        raise unsupported("IS NULL of what may be no number in a statement that changes rows")
    return node


def _first_of(node: exp.Expr) -> exp.Expr:
    if not node.expressions:  # SQLite's has two arguments at least
        return exp.paren(node.this)
    node.set("this", unified(node.this, kind_of(node)))
    node.set("expressions", [unified(each, kind_of(node)) for each in node.expressions])
    return node


def _collate(node: exp.Expr) -> exp.Expr:
    exact = node.expression.name.lower().endswith("_bin") or node.expression.name.upper() == BINARY
    node.set("expression", exp.var(BINARY if exact else COLLATION))
    return node


def _extract(node: exp.Expr) -> exp.Expr:
    unit, value = node.name.upper(), node.expression
    if unit not in EXTRACTED:
        raise unsupported(f"EXTRACT({unit} ...)")
    read = call("DATED", value) if kind_of(value).is_number else in_change(value, "FULL_DATE")
    return call("EXTRACT", exp.Literal.string(unit), read)


def _interval(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Tuple):
        raise unsupported("INTERVAL()")
    return node


def _trim(node: exp.Expr) -> exp.Expr:
    where = exp.Literal.string(str(node.args.get("position") or "BOTH").upper())
    return call("TRIM", as_text(node.this), node.expression or exp.Literal.string(" "), where)


def _substring(node: exp.Expr) -> exp.Expr:
    start, length = node.args.get("start"), node.args.get("length")
    if start is None:
        raise syntax_error(")")
    counts = [counted(each) for each in (start, length) if each is not None]
    return call("SUBSTRING", as_text(node.this), *counts)


def _characters(node: exp.Expr) -> exp.Expr:
    charset = node.args.get("charset")
    if not charset:
        raise unsupported("CHAR() without USING, which gives bytes")
    return in_charset(call("CHAR", *map(counted, node.expressions)), charset.name)


def _literal(node: exp.Expr) -> exp.Expr:
    if node.is_string and "\0" in node.name:  # where SQLite would stop to read the statement
        return call("CAST_CHAR", exp.HexString(this=node.name.encode().hex()))
    return node


def _variable(node: exp.Expr) -> exp.Expr:
    name = node.name.lower()
    if isinstance(node, exp.Parameter):
        return exp.null()  # like a user variable that was never set
    if name == "version":
        return call("VERSION")
    raise StatementError(1193, f"Unknown system variable '{name}'")


_INTERNAL = re.compile(r"sqlite_|pragma_|dbstat$", re.IGNORECASE)
"""SQLite's own tables."""


def _table(node: exp.Expr) -> exp.Expr:
    if node.args.get("hints"):  # an error where there is no such index
        raise unsupported("USE INDEX and the like")
    if node.alias_column_names:
        raise syntax_error("(")
    if isinstance(node.this, exp.Func):
        raise unsupported("a function as a table")
    if _INTERNAL.match(node.name):
        raise StatementError(1146, f"Table '{SHOWN_DATABASE}.{node.name}' doesn't exist")
    schema = node.text("db")
    if node.text("catalog") or (node.args.get("db") is not None and not schema):
        raise syntax_error(text_of(node))
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
        written = text_of(node).replace("`", "")
        raise StatementError(1054, f"Unknown column '{written}' in 'field list'")
    node.set("db", None)
    if kind_of(node) == JSON and not _is_shown(node):
        raise unsupported("a column of JSON in an expression")
    if kind_of(node).name == "fixed" and not (_is_shown(node) or isinstance(node.parent, _COMPARING)):
        raise unsupported("FLOAT or DOUBLE with a number of places in an expression")
    return node


_COMPARING = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between, exp.Ordered, exp.Group)


def _is_shown(column: exp.Expr) -> bool:
    """Whether a column is shown as it is, counted, or asked for NULL."""
    above = column.parent.parent if isinstance(column.parent, exp.Alias) else column.parent
    asked = isinstance(above, exp.Is) and isinstance(above.expression, exp.Null)
    listed = isinstance(above, exp.Select) and not above.args.get("distinct")
    if isinstance(above, exp.Select) and kind_of(column).name == "fixed":
        listed = listed and not isinstance(above.parent, exp.SetOperation)
    return asked or listed or isinstance(above, exp.Count)


def _no_place(key: exp.Expr) -> exp.Expr:
    """A key of GROUP BY or ORDER BY; SQLite takes `-1` for the place of a column, as it does with `1`."""
    inner = key
    while isinstance(inner, exp.Neg | exp.Paren):
        inner = inner.this
    constant = isinstance(inner, exp.Literal) and key.find(exp.Neg) is not None
    if isinstance(key, exp.Literal) and key.is_int:  # the place of a column, which may be a computed text
        return exp.Collate(this=key, expression=exp.var(COLLATION))
    return exp.null() if constant else collated(key)


def _order(node: exp.Expr) -> exp.Expr:
    if is_in_change(node) and may_fail(node.this):
        raise unsupported("ORDER BY what may be no number in a statement that changes rows")
    node.set("this", _no_place(node.this))
    node.set("nulls_first", not node.args.get("desc"))  # NULL is the smallest value in both
    return node


def _group(node: exp.Expr) -> exp.Expr:
    if node.args.get("rollup"):
        raise unsupported("WITH ROLLUP")
    shown = node.parent.expressions if isinstance(node.parent, exp.Select) else []
    folded = {
        str(place) for place, each in enumerate(shown, 1) if each.find(exp.AggFunc)
    }  # a mistake of its own
    keys = node.expressions
    mistaken = [isinstance(key, exp.Literal) and key.name in folded for key in keys]
    node.set(
        "expressions",
        [key if wrong else _no_place(key) for key, wrong in zip(keys, mistaken, strict=True)],
    )
    return node


def _select(node: exp.Expr) -> exp.Expr:
    if node.args.get("limit") and node.args.get("where") and is_in_change(node):
        checks = filter(is_check, node.args["where"].find_all(exp.Anonymous))
        if not all(map(is_early, checks)):  # which MySQL may not reach
            raise unsupported("LIMIT beside what may fail in a statement that changes rows")
    if node.args.get("limit") and node.args.get("order"):  # SQLite computes more rows than it shows
        for each in (call for column in node.expressions for call in column.find_all(exp.Anonymous)):
            if str(each.this).removeprefix("my_") in OVERFLOW:
                doubt(each)
    if node.args.get("having") is not None and node.args.get("group") is None:
        having_alone(node)
    if any(isinstance(each.unalias(), exp.Tuple) for each in node.expressions):
        raise unsupported("a row among the columns")
    turn_right_joins(node)
    node.set("locks", None)
    node.set("operation_modifiers", None)
    if node.args.get("into"):
        raise unsupported("SELECT ... INTO")
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


def _placeholder(node: exp.Expr) -> exp.Expr:
    raise syntax_error(text_of(node))


def _call_of(name: str) -> Callable[[exp.Expr], exp.Expr]:
    return lambda node: call(name)


_RULES: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    **COMPARISONS,
    **TOTALS,
    **CHARSETS,
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
    exp.Chr: _characters,
    exp.Concat: lambda node: call("CONCAT", *map(as_text, node.expressions)),
    exp.CurrentDate: _call_of("CURDATE"),
    exp.CurrentTime: _call_of("CURTIME"),
    exp.CurrentTimestamp: _call_of("NOW"),
    exp.Localtime: _call_of("NOW"),
    exp.Localtimestamp: _call_of("NOW"),
    exp.CurrentUser: _call_of("USER"),
    exp.Anonymous: function_call,
    exp.Literal: _literal,
    exp.Parameter: _variable,
    exp.SessionParameter: _variable,
    exp.PropertyEQ: _refuse(":="),
    exp.Placeholder: _placeholder,
    exp.Table: _table,
    exp.Column: _column,
    exp.Ordered: _order,
    exp.Group: _group,
    exp.Select: _select,
    **dict.fromkeys((exp.JSONExtract, exp.JSONExtractScalar), _refuse("-> and ->>")),
    exp.MatchAgainst: _refuse("MATCH ... AGAINST"),
}


class _Target(SQLite):
    """SQLite with names in backticks: it takes a "name" that does not exist for a text."""

    class Tokenizer(SQLite.Tokenizer):
        IDENTIFIERS = ["`"]  # noqa: RUF012


def write(
    tree: exp.Expr, columns: Sequence[TableColumns] = ()
) -> tuple[str, tuple[Kind, ...], tuple[str, ...]]:
    """The statement as SQLite understands it, the kinds of a query's columns, and the constants among the
    dates that it compares, which MySQL reads before any row. Changes the tree.

    Args:
        columns: of the tables and views that it names.

    Raises:
        StatementError: MySQL would refuse it, or there is no counterpart.
    """
    try:
        if isinstance(tree, exp.Update | exp.Delete):
            tree = _one_table(tree)
        if isinstance(tree, exp.Subquery) and not any(map(tree.args.get, ("order", "limit", "with_"))):
            tree = tree.unnest()
        for each in tree.find_all(exp.Anonymous):
            check_name(each)
        shown = annotate(tree, columns)
        rename_columns(tree)
        check_twice(tree)
        qualify_order(tree)
        qualify_joins(tree, columns)
        qualify_having(tree, columns)
        note_columns(tree)
        nodes = list(tree.walk(bfs=False))
        if isinstance(tree, exp.DML):
            strict_truths(tree)
        for node in reversed(nodes):
            rewrite(node)
            store_columns(node)
            if isinstance(node, exp.SetOperation) and not is_recursive(node):
                unify_sides(node)
        count_depth(tree)
        tree = _clean(store(tree, columns))
        constants = [_written(each) for each in tree.find_all(exp.Anonymous) if _is_checked(each)]
        constants += [_written(each) for each in tree.find_all(exp.Subquery) if each.meta.get("read_first")]
        return _written(tree), shown, tuple(constants)
    except RecursionError:
        raise nested_too_deeply() from None
    except SqlglotError as error:
        raise unsupported(str(error)[:80]) from None


def _written(tree: exp.Expr) -> str:
    return tree.sql(dialect=_Target, identify=True, normalize_functions=False, comments=False)


def _is_checked(node: exp.Anonymous) -> bool:
    return is_early(node) or (node.this == "my_FULL_MOMENT" and node.find(exp.Column, exp.Query) is None)


def _one_table(tree: exp.Update | exp.Delete) -> exp.Expr:
    """UPDATE and DELETE with ORDER BY, LIMIT or a join, rewritten to name the rows that a query selects."""
    table = tree.this
    targets = tree.args.get("tables") or []
    joins = table.args.get("joins") or []
    if isinstance(tree, exp.Update) and joins:
        return _update_join(tree, table, joins)
    if not (targets or joins or tree.args.get("order") or tree.args.get("limit")):
        return tree
    if len(targets) > 1:
        raise unsupported("DELETE from several tables")
    target = targets[0].name if targets else table.alias_or_name
    for term in tree.args["order"].expressions if tree.args.get("order") else ():
        if isinstance(term.this, exp.Literal) and term.this.is_int:
            raise StatementError(1054, f"Unknown column '{term.this.name}' in 'order clause'")
    sources = {source.alias_or_name: source.name for source in (table, *(join.this for join in joins))}
    if target not in sources:
        raise StatementError(1109, f"Unknown table '{target}' in MULTI DELETE")
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
    if any(join.side or join.args.get("using") for join in joins):
        raise unsupported("UPDATE with an outer join")
    first, *rest = [join.this for join in joins]
    conditions = [join.args["on"] for join in joins if join.args.get("on")]
    if tree.args.get("where"):
        conditions.append(tree.args["where"].this)
    for assignment in tree.expressions:
        if assignment.this.table not in ("", table.alias_or_name):
            raise unsupported("UPDATE of several tables")
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
        if conflict is not None and conflict.args.get("duplicate"):
            conflict.set("duplicate", None)
            conflict.set("action", exp.var("DO UPDATE"))
            if isinstance(tree.expression, exp.Select) and not tree.expression.args.get("where"):
                # without WHERE, SQLite takes ON CONFLICT for the ON of a join
                tree.expression.set("where", exp.Where(this=exp.true()))
    if isinstance(tree, exp.Update):
        for assignment in tree.expressions:
            if isinstance(assignment.this, exp.Column):
                assignment.this.set("table", None)
    return tree
