"""Statements that differ from a gold statement by one slip, as an agent might write them by mistake.

To the slips that task generation uses (a forgotten WHERE, AND for OR, MIN for MAX, ...) this adds slips whose
effect only some databases show: `<` for `<=`, another column of the same kind, a LEFT JOIN for a JOIN, a
DISTINCT too many or too few. Slips that never change the result, such as `COUNT(DISTINCT id)` for
`COUNT(id)`, are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from sqlglot import exp

from trl_dbbench.data.generate.slips import BOUNDS, Slip, each_changed, move_bound, wrong_statements
from trl_dbbench.tasks import Table, Task
from trl_dbbench.tasks.column_types import kind_of_type
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS, only_statement

MAX_SLIPS = 80
"""Largest number of slips of one statement; a query that fills a page would have thousands."""

OTHER_COLUMNS = 3
"""Largest number of other columns tried for each column."""

_KINDS = {"whole": "number", "exact": "number", "float": "number", "date": "date", "time": "date"}
"""Kind of column -> group whose columns may be mistaken for each other; all other kinds are text."""


def slips_of(task: Task) -> list[str]:
    """Return the statements that differ from the task's gold SQL by one slip; none if it cannot be parsed."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    if tree is None:
        return []
    own = _minimal(task.gold.sql or "", task)
    columns = _columns_of(tree, task.tables)
    found: dict[str, None] = {}
    for sql in chain(
        wrong_statements(tree, dialect=task.dialect),
        each_changed(tree, partial(_slips, columns=columns), task.dialect),
    ):
        if len(sql) <= MAX_STATEMENT_CHARACTERS and _minimal(sql, task) != own:
            found[sql] = None
        if len(found) == MAX_SLIPS:
            break
    return list(found)


def _slips(node: exp.Expr, columns: Mapping[str, Sequence[str]]) -> Iterator[Slip]:
    if type(node) in BOUNDS and _may_be_equal(node):
        yield move_bound
    elif isinstance(node, exp.Between):
        yield _without_the_ends
    elif isinstance(node, exp.Join) and node.args.get("on") is not None and not node.args.get("kind"):
        side = node.args.get("side") or ""
        if side in ("", "LEFT"):
            yield lambda node: node.set("side", "" if side else "LEFT")
    elif isinstance(node, exp.Count) and isinstance(node.this, exp.Distinct):
        yield lambda node: node.set("this", node.this.expressions[0].copy())
    elif isinstance(node, exp.Count) and isinstance(node.this, exp.Column):
        yield lambda node: node.set("this", exp.Distinct(expressions=[node.this.copy()]))
    elif isinstance(node, exp.Union | exp.Intersect | exp.Except):
        yield lambda node: node.set("distinct", not node.args.get("distinct"))
    elif isinstance(node, exp.In) and len(node.expressions) > 1:
        yield lambda node: node.expressions[-1].pop()
    elif isinstance(node, exp.Not):
        yield lambda node: node.replace(node.this.copy())
    elif isinstance(node, exp.Column) and not isinstance(node.parent, exp.Count):
        others = [name for name in columns.get(node.name.lower(), ()) if not _is_set(node, name)]
        for name in others[:OTHER_COLUMNS]:
            yield partial(exp.Expression.set, arg_key="this", value=exp.to_identifier(name, quoted=True))


def _may_be_equal(comparison: exp.Expr) -> bool:
    """Return whether a cell may equal the bound; a computed value, such as a mean, rarely does."""
    value = comparison.this.unalias()
    if isinstance(value, exp.Min | exp.Max | exp.Sum | exp.Count):
        value = value.this
    return isinstance(value, exp.Column | exp.Star) and isinstance(comparison.expression, exp.Literal)


def _is_set(column: exp.Column, other: str) -> bool:
    """Return whether an UPDATE sets both columns, so that the slip would set one of them twice."""
    update = column.find_ancestor(exp.Update)
    set_ = [each.this.name.lower() for each in update.expressions] if update is not None else []
    return column.name.lower() in set_ and column.arg_key == "this" and other.lower() in set_


def _without_the_ends(between: exp.Between) -> None:
    value = between.this
    above = exp.GT(this=value.copy(), expression=between.args["low"].copy())
    below = exp.LT(this=value.copy(), expression=between.args["high"].copy())
    between.replace(exp.Paren(this=exp.And(this=above, expression=below)))


def _columns_of(tree: exp.Expr, tables: Sequence[Table]) -> dict[str, list[str]]:
    """Return, for each column (in lower case), those of its table and kind that may be mistaken for it."""
    used = {table.name.lower() for table in tree.find_all(exp.Table)}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for table in tables:
        if table.name.lower() in used:
            kinds = {column.name: _KINDS.get(kind_of_type(column.type), "text") for column in table.columns}
            for name, kind in kinds.items():
                found[name.lower()] += [other for other in kinds if other != name and kinds[other] == kind]
    return found


# --- slips that make no difference ---------------------------------------------------------------------


def _minimal(sql: str, task: Task) -> str:
    """Return a statement over one table without the parts that never change the result.

    These are DISTINCT where a key makes the rows distinct, IS NOT NULL on a column that cannot hold NULL, and
    LIMIT on a single row. Statements over several tables are only brought into the same form.
    """
    tree = only_statement(sql, task.dialect)
    if tree is None:
        return sql
    read = [node.name.lower() for node in tree.find_all(exp.Table)]
    tables = [table for table in task.tables if [table.name.lower()] == read]
    if tables and not tree.find(exp.Join, exp.Subquery):
        _drop_idle_parts(tree, tables[0])
    return tree.sql(dialect=task.dialect)


def _drop_idle_parts(tree: exp.Expr, table: Table) -> None:
    unique = {table.columns[place].name.lower() for place in keys_of(table, False) if _distinct(table, place)}
    for count in tree.find_all(exp.Count):
        counted = count.this.expressions if isinstance(count.this, exp.Distinct) else []
        if len(counted) == 1 and _column(counted[0]) in unique:
            count.set("this", counted[0])
    if isinstance(tree, exp.Select):
        shown = [each.unalias() for each in tree.expressions]
        if unique and any(each.is_star or _column(each) in unique for each in shown):
            tree.set("distinct", None)
        if not tree.args.get("group") and any(map(_is_aggregate, shown)):
            tree.set("limit", None)
    filled = {column.name.lower() for column in table.columns if not column.nullable}
    for test in list(tree.find_all(exp.Not)):
        is_, above = test.this, test.parent
        if not isinstance(is_, exp.Is) or not isinstance(is_.expression, exp.Null):
            continue
        if _column(is_.this) in filled and isinstance(above, exp.And):
            above.replace(above.right if above.left is test else above.left)
        elif _column(is_.this) in filled and isinstance(above, exp.Where):
            above.pop()


def _is_aggregate(shown: exp.Expr) -> bool:
    return any(not isinstance(each.parent, exp.Window) for each in shown.find_all(exp.AggFunc))


def _column(node: exp.Expr) -> str | None:
    """Return the name of a column, in lower case; `None` for any other expression."""
    return node.name.lower() if isinstance(node, exp.Column) else None


def keys_of(table: Table, strictly: bool) -> set[int]:
    """Return the indices of the columns whose cells must be unique.

    Args:
        strictly: include the first column if its cells all differ, whatever its name is.
    """
    found = set()
    for place, column in enumerate(table.columns):
        declared = any(word in column.type.upper() for word in ("PRIMARY", "UNIQUE", "AUTO_INCREMENT"))
        if declared or column.name.lower() == "id" or (strictly and place == 0 and _distinct(table, place)):
            found.add(place)
    return found


def _distinct(table: Table, place: int) -> bool:
    cells = [repr(row[place]) for row in table.rows]
    return len(set(cells)) == len(cells)
