"""Conversion of new column values to what MySQL stores, also for WITH RECURSIVE: MySQL creates a table from
the first rows and stores the others in it, rounded or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlglot import exp

from trl_dbbench.mysqlite import functions
from trl_dbbench.mysqlite.coercions import as_number, call, doubt, sure_decimal, unified
from trl_dbbench.mysqlite.errors import StatementError, fail_if, refuse_if, unsupported
from trl_dbbench.mysqlite.kinds import (
    APART,
    DATETIME,
    TEXT,
    UNKNOWN,
    YEAR_BITS,
    Kind,
    TableColumns,
    keep_kind,
    kind_of,
    merged,
)
from trl_dbbench.mysqlite.values import Value, decimal, text


def store(tree: exp.Expr, columns: Sequence[TableColumns]) -> exp.Expr:
    """Return the statement, with the values that it writes converted for their columns."""
    if isinstance(tree, exp.Update):
        _assign(tree.expressions, in_order=tree.args.get("from_") is None)
    if isinstance(tree, exp.Insert):
        _insert(tree, columns)
        for each in tree.find_all(exp.Anonymous) if tree.args.get("ignore") else ():
            if str(each.this).startswith("my_STORE_"):  # MySQL stores another value, with a warning
                doubt(each)
        conflict = tree.args.get("conflict")
        if conflict is not None:
            _assign(conflict.expressions)
    return tree


def _assign(assignments: list[exp.Expr], in_order: bool = True) -> None:
    """Convert new values for their columns. In MySQL, later ones see earlier ones; in SQLite, they do not."""
    new: dict[str, exp.Expr] = {}
    for each in assignments:
        if not isinstance(each, exp.EQ):
            continue
        name = each.this.name.lower()
        refuse_if(name in new, "a column that is set twice")
        if in_order:
            _renew(each, new)
        each.set("expression", stored(each.expression, each.this.name, kind_of(each.this)))
        new[name] = each.expression


def _renew(assignment: exp.EQ, new: Mapping[str, exp.Expr]) -> None:
    """Replace the columns in an assigned value by the new values that were assigned to them before."""
    nodes = assignment.expression.walk(prune=lambda node: isinstance(node, exp.Query))
    for node in [each for each in nodes if isinstance(each, exp.Column) and each.table != "excluded"]:
        if (value := new.get(node.name.lower())) is not None:
            node.replace(keep_kind(value.copy(), node))


def _insert(tree: exp.Insert, columns: Sequence[TableColumns]) -> None:
    schema = tree.this if isinstance(tree.this, exp.Schema) else None
    target = schema.this if schema is not None else tree.this
    table = next((each for each in columns if each.name == target.name), None)
    if table is None:
        return
    kinds = {name.lower(): kind for name, kind in table.columns}
    names = [each.name for each in schema.expressions] if schema is not None else [*dict(table.columns)]
    if len({name.lower() for name in names}) < len(names):
        twice = next(name for name in names if [each.lower() for each in names].count(name.lower()) > 1)
        raise StatementError(1110, f"Column '{twice}' specified twice")
    wanted = [(name, kinds.get(name.lower(), UNKNOWN)) for name in names]
    filled = {name.lower() for name in table.filled} if tree.args.get("alternative") else set()

    def new(cell: exp.Expr, name: str, kind: Kind) -> exp.Expr:
        value = stored(cell, name, kind)
        if name.lower() == table.automatic.lower():  # 0 asks for the next number, as NULL does
            return exp.Nullif(this=value, expression=exp.Literal.number(0))
        return call("PRESENT", value, name) if name.lower() in filled else value

    source = tree.expression
    if isinstance(source, exp.Values):
        every = set(names) <= set(kinds)
        for place, row in enumerate(source.expressions, 1):
            fits = isinstance(row, exp.Tuple) and len(row.expressions) == len(wanted)
            if every and isinstance(row, exp.Tuple) and not fits:
                raise StatementError(1136, f"Column count doesn't match value count at row {place}")
            refuse_if(every and any(_names_column(row, target.name, kinds, columns)), "a column in VALUES")
            if fits:
                cells = zip(row.expressions, wanted, strict=True)
                row.set("expressions", [new(cell, name, kind) for cell, (name, kind) in cells])
    elif isinstance(source, exp.Query) and len(source.meta.get("row", ())) == len(wanted):
        tree.set("expression", _selected(source, wanted, new))


def numbered(tree: exp.Insert, table: TableColumns) -> list[bool | None]:
    """Return for each row of VALUES whether AUTO_INCREMENT numbers it, `None` if in doubt. For a query that
    leaves out the column, return an empty list; for any other, doubtful rows."""
    schema, source = tree.this, tree.expression
    names = (
        (each.name for each in schema.expressions) if isinstance(schema, exp.Schema) else dict(table.columns)
    )
    found = [name.lower() == table.automatic.lower() for name in names]
    place = found.index(True) if True in found else None
    if not isinstance(source, exp.Values):
        return [] if place is None else [None, None]
    return [place is None or _asks_for_number(row.expressions[place]) for row in source.expressions]


def _asks_for_number(cell: exp.Expr) -> bool | None:
    """Return whether a value for an AUTO_INCREMENT column asks for the next one, `None` if in doubt."""
    if isinstance(cell, exp.Literal) and not cell.is_string:
        return not float(cell.name)
    return True if isinstance(cell, exp.Null) else None


def _names_column(
    row: exp.Expr, target: str, kinds: Mapping[str, Kind], columns: Sequence[TableColumns]
) -> Iterator[bool]:
    """Yield for each column in a row of VALUES whether it is the target table's, not a subquery's."""
    read = {each.name for each in row.find_all(exp.Table)}
    known = {name.lower() for each in columns if each.name in read for name, _ in each.columns}
    for column in row.find_all(exp.Column):
        outer = column.table == target if column.table else column.name.lower() in kinds.keys() - known
        yield column.find_ancestor(exp.Query) is None or (outer and target not in read)


def _selected(
    source: exp.Query, wanted: list[tuple[str, Kind]], new: Callable[[exp.Expr, str, Kind], exp.Expr]
) -> exp.Expr:
    """Return a query for the rows of `source`, converted for their columns."""
    cells, names = [], []
    for place, ((name, kind), (_, own)) in enumerate(zip(wanted, source.meta["row"], strict=True)):
        cell = exp.column(f"c{place}", "my_rows")
        cell.meta["kind"] = own
        names.append(exp.to_identifier(f"c{place}"))
        cells.append(new(cell, name, kind))
    part = exp.CTE(this=source, alias=exp.TableAlias(this=exp.to_identifier("my_rows"), columns=names))
    query = exp.Select(expressions=cells).from_("my_rows")
    query.set("with_", exp.With(expressions=[part]))
    return query


def stored(node: exp.Expr, column: str, kind: Kind) -> exp.Expr:
    """Return an expression for what a column of this kind stores of a value."""
    if kind.is_number and kind_of(node).is_moment and node.find(exp.Query) is not None:
        raise unsupported("a date of a subquery as a number")
    if isinstance(node, exp.Null | exp.Column) and (isinstance(node, exp.Null) or kind_of(node) == kind):
        return node
    refuse_if(
        kind_of(node).name in APART and kind.name != "text", "a value of another type from ENUM, SET or JSON"
    )
    node = sure_decimal(node, kind)
    match kind.name:
        case "int":
            is_float = kind_of(node).name in ("float", "text")
            return call("STORE_INT", as_number(node), column, int(is_float), *map(str, _range(kind)))
        case "decimal":
            return call("STORE_DECIMAL", as_number(node), column, kind.size or 10, kind.places)
        case "float":
            return call("STORE_FLOAT", as_number(node), column, int(kind.is_single))
        case "fixed":
            raise unsupported("new values of a FLOAT or DOUBLE with a number of places")
        case "date" | "datetime":
            return call("STORE_DATE", node, column, int(kind == DATETIME))
        case "time":
            return call("STORE_TIME", node, column)
        case "text" if kind.size is not None:
            of_float = kind_of(node).name == "float"
            written = call("REAL_TEXT", node, kind.size) if of_float else unified(node, TEXT)
            return call("STORE_TEXT", call("RTRIM", written) if kind.trims else written, column, kind.size)
        case "text":
            refuse_if(kind.silent is False, "a new value of a column of texts that a query made")
            computed = kind_of(node).is_single and not isinstance(node, exp.Column)
            return call("WRITTEN", node) if computed else unified(node, TEXT)
        case "json":
            return call("STORE_JSON", node, column)
        case "enum" | "set":
            return call("STORE_MEMBER", node, column, int(kind.name == "set"), *kind.members)
        case "blob":
            raise unsupported("new values of BLOB and BINARY")
    return node


def stored_cell(value: Value, column: str, kind: Kind) -> Value:
    """Return a cell as a column of this kind stores it; raise StatementError if MySQL would refuse it."""
    if value is None:
        return None
    if kind.name == "text" and isinstance(value, bool | float):
        value = text(value + 0)  # SQLite would write 1.0, Python True, and servers write 1
    match kind.name:
        case "int":
            return functions.store_int(value, column, 1, *_range(kind))
        case "decimal":
            return functions.exact_decimal(value, column, kind.size or 10, kind.places)
        case "float" if kind.is_single:
            return functions.store_float(value, column, 1)
        case "fixed":
            return functions.store_float(
                decimal(functions.amount_of(value, column, "double"), kind.places), column, kind.size == 32
            )
        case "date" | "datetime" if not _WRITTEN[kind.name].fullmatch(text(value)):
            return functions.store_date(value, column, kind == DATETIME)
        case "time":
            return functions.store_time(value, column)
        case "text" if kind.size is not None:
            return functions.store_text(text(value).rstrip(" ") if kind.trims else value, column, kind.size)
        case "json":
            return functions.store_json(value, column)
        case "enum" | "set":
            return functions.store_member(value, column, kind.name == "set", *kind.members)
        case "blob" if isinstance(value, str):
            return value.encode()
    return value


_WRITTEN = {
    "date": re.compile(r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])"),
    "datetime": re.compile(r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8]) [01]\d:[0-5]\d:[0-5]\d"),
}
"""Texts that are certainly written as MySQL writes them."""


def _range(kind: Kind) -> tuple[int, int]:
    if kind.size == YEAR_BITS:
        return functions.YEARS
    values = 2 ** (kind.size or 64)
    low = 0 if kind.unsigned else -values // 2
    return low, low + values - 1


_STORED = "stored"
"""Key in a recursive query's `meta` for the names and kinds of its columns."""


def check_recursion(tree: exp.Expr) -> None:
    """Raise StatementError for a recursive CTE that MySQL refuses."""
    for part, blocks in _recursive(tree):
        _check_shape(part, blocks)
        for block in blocks:
            if _own(part, block):
                _check_block(part, block)


def _recursive(tree: exp.Expr) -> Iterator[tuple[exp.CTE, list[exp.Expr]]]:
    """Yield the CTEs that refer to themselves, each with the queries of its UNION in order."""
    for part in tree.find_all(exp.CTE):
        with_ = part.parent
        if isinstance(with_, exp.With) and with_.args.get("recursive") and _own(part, part.this):
            yield part, list(_blocks(part.this))


def _blocks(query: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(query, exp.Union):
        yield from _blocks(query.left)
        yield query.right
    else:
        yield query


def _own(part: exp.CTE, query: exp.Expr) -> list[exp.Table]:
    return [table for table in query.find_all(exp.Table) if table.name == part.alias and not table.db]


def _check_shape(part: exp.CTE, blocks: Sequence[exp.Expr]) -> None:
    name = f"Recursive Common Table Expression '{part.alias}'"
    fail_if(not isinstance(part.this, exp.Union), 3573, f"{name} should contain a UNION")
    own = [bool(_own(part, block)) for block in blocks]
    if own[0] or own != sorted(own):
        raise StatementError(
            3574,
            f"{name} should have one or more non-recursive query blocks followed by one or more recursive "
            "ones",
        )
    if part.this.args.get("order") is not None:
        raise StatementError(
            1235,
            "This version of MySQL doesn't yet support 'ORDER BY over UNION in recursive Common Table "
            "Expression'",
        )


def _check_block(part: exp.CTE, block: exp.Expr) -> None:
    name = f"Recursive Common Table Expression '{part.alias}'"
    select = block.unnest()
    refuse_if(not isinstance(select, exp.Select), "a recursive query within another set of queries")
    if any(select.args.get(key) for key in ("distinct", "order", "limit")):
        raise StatementError(
            1235,
            "This version of MySQL doesn't yet support 'ORDER BY / LIMIT / SELECT DISTINCT in recursive "
            "query block of Common Table Expression'",
        )
    (first, *more) = _own(part, select)
    if more or first.find_ancestor(exp.Select) is not select:
        raise StatementError(
            3577,
            f"In recursive query block of {name}, the recursive table must be referenced only once, and not "
            "in any subquery",
        )
    own = select.walk(prune=lambda node: isinstance(node, exp.Query) and node is not select)
    folded = any(
        isinstance(each, exp.AggFunc | exp.Window)
        or (isinstance(each, exp.Anonymous) and each.name.upper() in functions.AGGREGATES)
        for each in own
    )
    if select.args.get("group") or folded:
        raise StatementError(
            3575, f"{name} can contain neither aggregation nor window functions in recursive query block"
        )
    refuse_if(any(join.side for join in select.args.get("joins") or []), "an outer join in a recursive query")


def note_columns(tree: exp.Expr) -> None:
    """Note in each recursive query which kinds its columns are stored as. The tree must be annotated."""
    for part, blocks in _recursive(tree):
        first = [block.unnest() for block in blocks if not _own(part, block)]
        named = part.args["alias"].columns
        rows = [_shown(query) for query in first]
        for block in blocks if rows and not _own(part, blocks[0]) else ():
            select = block.unnest()
            if block is not select and _own(part, block):
                block.replace(select)  # SQLite turns brackets into a separate query
            if not _own(part, select) or any(len(row) != len(select.expressions) for row in rows):
                continue
            names = [each.name for each in named] or [each.alias_or_name for each in rows[0]]
            columns = [_column([row[place].unalias() for row in rows]) for place in range(len(rows[0]))]
            select.meta[_STORED] = [
                (name, kind)
                for name, kind, value in zip(names, columns, select.expressions, strict=True)
                if _check_column(part, name, kind, value.unalias())
            ]


def count_rows(tree: exp.Expr) -> None:
    """Make rewritten recursive queries refuse more rows than MySQL certainly allows."""
    for part, blocks in list(_recursive(tree)):
        part.set("materialized", True)
        for block in blocks:
            if isinstance(select := block.unnest(), exp.Select) and _own(part, block):
                select.where(call("RECURSED"), copy=False)


def _shown(query: exp.Expr) -> Sequence[exp.Expr]:
    """Return the expressions that a SELECT without `*` selects; an empty list for any other query."""
    return query.expressions if isinstance(query, exp.Select) and not query.is_star else []


def store_columns(select: exp.Expr) -> None:
    """Make a recursive query, already rewritten, convert its columns to the kinds they are stored as."""
    for each, (name, kind) in zip(list(select.expressions), select.meta.get(_STORED, ()), strict=False):
        value = each.this if isinstance(each, exp.Alias) else each
        if kind.name == "int" and kind.size is None and kind_of(value).name == "int":
            continue
        value.replace(stored(value.copy(), name, kind))


def is_recursive(operation: exp.SetOperation) -> bool:
    """Return whether a set operation contains a query whose columns are stored."""
    return any(_STORED in query.unnest().meta for query in _blocks(operation))


def _column(values: Sequence[exp.Expr]) -> Kind:
    """Return the kind of a recursive CTE's column, from its values in the non-recursive queries."""
    kind = merged(map(kind_of, values))
    if kind.name == "text":
        sizes = [_characters(value) for value in values]
    elif kind.name == "decimal":
        sizes = [_digits(value) for value in values] if len(values) == 1 else [None]
    elif kind.name == "float":
        sizes = [kind.size]
    else:
        sizes = [kind_of(value).size for value in values]
    known = [size for size in sizes if size is not None]
    return kind._replace(size=max(known) if len(known) == len(sizes) else None)


def _characters(value: exp.Expr) -> int | None:
    """Return the most characters that a text may have by its type, `None` if unknown."""
    if isinstance(value, exp.Null):
        return 0
    if isinstance(value, exp.Literal) and value.is_string:
        return len(value.name)
    if isinstance(value, exp.Column) and kind_of(value).name == "text":
        return kind_of(value).size
    if isinstance(value, exp.Cast):
        sizes = value.args["to"].expressions
        if sizes or kind_of(value) != TEXT:
            return int(sizes[0].name) if len(sizes) == 1 else None
        return _characters(value.this)
    return None


def _digits(value: exp.Expr) -> int | None:
    if isinstance(value, exp.Literal):
        return len(value.name.replace(".", "").lstrip("0")) or 1
    return kind_of(value).size if isinstance(value, exp.Column) else None


def _check_column(part: exp.CTE, name: str, kind: Kind, value: exp.Expr) -> bool:
    """Return True; raise StatementError if it is not known how MySQL would store the value."""
    if isinstance(value, exp.Null) or (isinstance(value, exp.Column) and value.name.lower() == name.lower()):
        return True
    own = kind_of(value)
    from_text = own.is_number and any(kind_of(each).name == "text" for each in value.walk())
    fits = {
        "int": own.is_number or isinstance(value, exp.Literal),
        "decimal": own.is_number and kind.size is not None,
        "float": own.is_number,
        "text": own.name == "text" and kind.size is not None,
    }.get(kind.name, own == kind and kind.is_moment)
    refuse_if(not fits or from_text, "a value of another type, or of unknown length, in a recursive query")
    return True
