"""WITH RECURSIVE as MySQL has it: what it refuses, and the types that the first rows give to the columns.

MySQL makes a table of the rows that do not depend on the part itself, and stores the others in it: too long a
text is an error, and 1.5 in a column of whole numbers becomes 2. SQLite would keep them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from trl_dbbench.mysqlite.aggregates import AGGREGATES
from trl_dbbench.mysqlite.coercions import call
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.kinds import TEXT, Kind, kind_of, merged
from trl_dbbench.mysqlite.storage import stored
from trl_dbbench.mysqlite.values import Value, number

MAX_DEPTH = 1_000
"""MySQL's cte_max_recursion_depth."""

_STORED = "stored"
"""Where a query that depends on its part keeps the kinds of the columns."""
_NAMES = "names"
"""Where a part whose depth is counted keeps the names of its columns."""
_DEPTH = "my_depth"


def check_recursion(tree: exp.Expr) -> None:
    """Raises StatementError for a part of WITH RECURSIVE that MySQL refuses."""
    for part, blocks in _recursive(tree):
        _check_shape(part, blocks)
        for block in blocks:
            if _names_itself(part, block):
                _check_block(part, block)


def _recursive(tree: exp.Expr) -> Iterator[tuple[exp.CTE, list[exp.Expr]]]:
    """The parts that name themselves, each with the queries of its UNION in order."""
    for part in tree.find_all(exp.CTE):
        with_ = part.parent
        if isinstance(with_, exp.With) and with_.args.get("recursive") and _names_itself(part, part.this):
            yield part, list(_blocks(part.this))


def _blocks(query: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(query, exp.Union):
        yield from _blocks(query.left)
        yield query.right
    else:
        yield query


def _own(part: exp.CTE, query: exp.Expr) -> list[exp.Table]:
    return [table for table in query.find_all(exp.Table) if table.name == part.alias and not table.db]


def _names_itself(part: exp.CTE, query: exp.Expr) -> bool:
    return bool(_own(part, query))


def _check_shape(part: exp.CTE, blocks: Sequence[exp.Expr]) -> None:
    name = f"Recursive Common Table Expression '{part.alias}'"
    if not isinstance(part.this, exp.Union):
        raise StatementError(3573, f"{name} should contain a UNION")
    own = [_names_itself(part, block) for block in blocks]
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
    if not isinstance(select, exp.Select):
        raise unsupported("a recursive query within another set of queries")
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
    if select.args.get("group") or any(map(_is_folded, own)):
        raise StatementError(
            3575, f"{name} can contain neither aggregation nor window functions in recursive query block"
        )
    if any(join.side for join in select.args.get("joins") or []):
        raise unsupported("an outer join in a recursive query")


def _is_folded(node: exp.Expr) -> bool:
    named = isinstance(node, exp.Anonymous) and node.name.upper() in AGGREGATES
    return named or isinstance(node, exp.AggFunc | exp.Window)


# --- the columns of its table ------------------------------------------------------------------------------


def note_columns(tree: exp.Expr) -> None:
    """Notes with each recursive query what kinds its columns are stored as. The tree must be annotated."""
    for part, blocks in _recursive(tree):
        first = [block.unnest() for block in blocks if not _names_itself(part, block)]
        named = part.args["alias"].columns
        rows = [_shown(query) for query in first]
        for block in blocks if rows and not _names_itself(part, blocks[0]) else ():
            select = block.unnest()
            if block is not select and _names_itself(part, block):
                block.replace(select)  # of brackets SQLite makes a query of its own
            if not _names_itself(part, select) or any(len(row) != len(select.expressions) for row in rows):
                continue
            names = [each.name for each in named] or [each.alias_or_name for each in rows[0]]
            columns = [_column([row[place].unalias() for row in rows]) for place in range(len(rows[0]))]
            select.meta[_STORED] = [
                (name, kind)
                for name, kind, value in zip(names, columns, select.expressions, strict=True)
                if _check_column(part, name, kind, value.unalias())
            ]

        part.meta[_NAMES] = _counted_names(part, rows)


def _counted_names(part: exp.CTE, rows: Sequence[Sequence[exp.Expr]]) -> list[str]:
    """The names of the columns of a part whose depth can be counted in a further one; else none.

    It cannot where UNION looks for rows that are there already, or where `*` would show it.
    """
    blocks = list(_blocks(part.this))
    plain = all(isinstance(block, exp.Select) and not block.is_star for block in blocks)
    kept = all(not each.args.get("distinct") for each in part.this.find_all(exp.Union))
    if not (plain and kept and rows and rows[0]):
        return []
    names = [each.name for each in part.args["alias"].columns] or [each.alias_or_name for each in rows[0]]
    return names if all(names) and len({name.lower() for name in names}) == len(rows[0]) else []


def count_depth(tree: exp.Expr) -> None:
    """Has the parts of WITH RECURSIVE fail where MySQL stops; their nodes have been rewritten.

    They get a further column, which counts, and another name; a part of the old name has the other columns.
    """
    for part in list(tree.find_all(exp.CTE)):
        names, name = part.meta.get(_NAMES), part.alias
        if not names:
            continue
        hidden = exp.to_identifier(f"my_all_{name}", quoted=True)
        for block in list(_blocks(part.this)):
            own = _own(part, block)
            depth: exp.Expr = exp.Literal.number(0)
            for table in own:
                depth = call("DEEPER", exp.column(_DEPTH, table.alias_or_name))
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.alias_or_name, quoted=True)))
                table.set("this", hidden.copy())
            block.append("expressions", depth)
        columns = [exp.to_identifier(each, quoted=True) for each in names]
        shown = exp.CTE(
            this=exp.select(*(exp.column(each.copy()) for each in columns)).from_(
                exp.Table(this=hidden.copy())
            ),
            alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)),
        )
        counted = [*columns, exp.to_identifier(_DEPTH)]
        part.set("alias", exp.TableAlias(this=hidden, columns=counted))
        part.set("materialized", True)
        with_ = part.parent
        assert isinstance(with_, exp.With)
        parts = list(with_.expressions)
        parts.insert(parts.index(part) + 1, shown)
        with_.set("expressions", parts)


def _deeper(depth: Value) -> int:
    """The depth of a row, by that of the one that it was made of."""
    deeper = int(number(depth)) + 1
    if deeper >= MAX_DEPTH:
        raise StatementError(
            3636,
            f"Recursive query aborted after {MAX_DEPTH + 1} iterations. Try increasing "
            "@@cte_max_recursion_depth to a larger value.",
        )
    return deeper


RECURSION: dict[str, Callable[[Value], Value]] = {"DEEPER": _deeper}


def _shown(query: exp.Expr) -> Sequence[exp.Expr]:
    """What a query selects, where it is written out."""
    return query.expressions if isinstance(query, exp.Select) and not query.is_star else []


def store_columns(select: exp.Expr) -> None:
    """Has a recursive query, whose nodes have been rewritten, store its columns."""
    for each, (name, kind) in zip(list(select.expressions), select.meta.get(_STORED, ()), strict=False):
        value = each.this if isinstance(each, exp.Alias) else each
        if kind.name == "int" and kind.size is None and kind_of(value).name == "int":
            continue
        value.replace(stored(value.copy(), name, kind))


def is_recursive(operation: exp.SetOperation) -> bool:
    """Whether it holds a query whose columns are stored."""
    return any(_STORED in query.unnest().meta for query in _blocks(operation))


def _column(values: Sequence[exp.Expr]) -> Kind:
    """The kind of a column of which these are the first values."""
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
    """The most characters that a text may have, by its type."""
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
    """Raises StatementError where it is not known how MySQL would store a value; otherwise true."""
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
    if not fits or from_text:
        raise unsupported("a value of another type, or of unknown length, in a recursive query")
    return True
