"""The 22 skills of SQL statements, read from the syntax tree.

A skill names a clause that a statement has, not how hard it is. Each skill depends on one kind of node, so a
generator can write a statement with certain skills and find exactly those again. The rules for unclear cases:

- `select`, `insert`, `update`, `delete`: the kind of the whole statement. `INSERT ... SELECT` is an insert.
- All other skills are read from the whole statement, including subqueries, CTEs and branches of a UNION.
  Each clause is classified separately, and the statement has the skills of all its clauses. With two WHEREs,
  it can have both `where_single_condition` and `where_multiple_conditions`.
- WHERE has exactly one skill: `where_single_condition` without AND, OR or XOR at its top (`BETWEEN`, `IN`,
  `NOT x` and `EXISTS` are one condition each); `where_multiple_conditions` if only one of AND, OR and XOR
  joins all conditions; `where_nested_conditions` if two of them mix or NOT precedes a group. Redundant
  parentheses do not count: `(a AND b) AND c` is multiple. ON is not WHERE.
- ORDER BY has exactly one, by the number of its terms and, from two terms on, by whether their directions
  agree. It counts if it orders the rows of a query, UPDATE or DELETE, but not inside `GROUP_CONCAT(...)` or
  `OVER (...)`.
- LIMIT has exactly one: `LIMIT 5, 10` and `LIMIT 10 OFFSET 5` are `limit_and_offset`, as is an offset of 0.
- `column_alias`: a name for an output column of a SELECT, with or without AS. `table_alias`: a name for a
  table, or for a subquery in FROM (where MySQL requires one). The name of a CTE is neither.
- GROUP BY has exactly one, by the number of its terms.
- HAVING has at most one: `having_aggregate_calculation` if an operand of `+ - * / % DIV` contains an
  aggregate (`MAX(a) - MIN(a) > 5`, but not `SUM(a * b) > 5`); otherwise, if it contains an aggregate or the
  alias of one, `having_multiple_conditions_with_aggregate` with AND, OR or XOR, and
  `having_single_condition_with_aggregate` without; otherwise none.
- Subqueries are the queries inside a statement, including CTEs. A UNION is one query, and the query of an
  `INSERT ... SELECT` is not a subquery. `subquery_nested`: a subquery contains a subquery.
  `subquery_multiple`: one query directly contains two or more. `subquery_single`: the statement has exactly
  one. A statement can have the first two together.

A statement that cannot be parsed has no skills: the SQL of published questions is often invalid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sqlglot import exp

from trl_dbbench.utils.sql import cached, only_statement

SKILLS = (
    "select",
    "insert",
    "delete",
    "update",
    "where_single_condition",
    "where_multiple_conditions",
    "where_nested_conditions",
    "order_by_single_column",
    "order_by_multiple_columns_same_direction",
    "order_by_multiple_columns_different_directions",
    "limit_only",
    "limit_and_offset",
    "column_alias",
    "table_alias",
    "group_by_single_column",
    "group_by_multiple_columns",
    "having_single_condition_with_aggregate",
    "having_multiple_conditions_with_aggregate",
    "having_aggregate_calculation",
    "subquery_single",
    "subquery_multiple",
    "subquery_nested",
)

KINDS = ("read_first", "follow_key", "mend_error", "check_change")
"""Kinds of tasks that take several turns (`benchmarks/worlds/multi.py`). Such a task has its kind among its
skills, since SQL does not show it."""

QUERY_KINDS = (
    "inner_join",
    "join_group_by",
    "left_join",
    "self_join",
    "set_operation",
    "window_function",
    "cte",
    "correlated_subquery",
)
"""Kinds of questions over several tables (`data/generate/relational.py`), which tasks name as skills."""

NAMED = (*SKILLS, *KINDS, *QUERY_KINDS)
"""Every value that a task's `skills` may contain."""

_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv)


def skills_of(sql: str, dialect: str = "mysql") -> tuple[str, ...]:
    """Return the skills of one statement, in the order of `SKILLS`; `()` if `sql` is not one statement.

    ```python
    >>> skills_of("SELECT name FROM pupils WHERE age > 9 LIMIT 3")
    ('select', 'where_single_condition', 'limit_only')
    ```
    """
    statement = only_statement(sql, dialect)
    operation = _operation(statement)
    if statement is None or operation is None:
        return ()
    found = {operation.lower(), *_subquery_skills(statement), *map(_skill_at, statement.walk())}
    return tuple(skill for skill in SKILLS if skill in found)


@cached
def operation_of(sql: str, dialect: str = "mysql") -> str | None:
    """Return `"SELECT"`, `"INSERT"`, `"UPDATE"` or `"DELETE"`; `None` if `sql` is not one such statement."""
    return _operation(only_statement(sql, dialect))


def _operation(statement: exp.Expr | None) -> str | None:
    if isinstance(statement, (exp.Select, exp.SetOperation, exp.Subquery)):
        return "SELECT"
    changes = isinstance(statement, (exp.Insert, exp.Update, exp.Delete))
    return type(statement).__name__.upper() if changes else None


def _skill_at(node: exp.Expr) -> str | None:
    """Return the skill that this node shows by itself, if any."""
    query = node.parent if isinstance(node.parent, (exp.Query, exp.Update, exp.Delete)) else None
    if isinstance(node, exp.Where):
        condition = node.this.unnest()
        if not _is_group(condition):
            return "where_single_condition"
        return "where_multiple_conditions" if _is_flat(condition) else "where_nested_conditions"
    if isinstance(node, exp.Order) and query is not None:
        directions = [bool(term.args.get("desc")) for term in node.expressions]
        if len(directions) == 1:
            return "order_by_single_column"
        same = len(set(directions)) == 1
        return f"order_by_multiple_columns_{'same_direction' if same else 'different_directions'}"
    if isinstance(node, exp.Limit) and query is not None:
        return "limit_and_offset" if query.args.get("offset") else "limit_only"
    if isinstance(node, exp.Group) and node.expressions:
        return "group_by_single_column" if len(node.expressions) == 1 else "group_by_multiple_columns"
    if isinstance(node, exp.Having):
        if any(isinstance(part, _ARITHMETIC) and _has_aggregate(part) for part in _own_nodes(node)):
            return "having_aggregate_calculation"
        number = "multiple_conditions" if _is_group(node.this) else "single_condition"
        aliases = _aggregate_aliases(node.parent)
        return f"having_{number}_with_aggregate" if _has_aggregate(node, aliases) else None
    if isinstance(node, exp.Select) and any(isinstance(column, exp.Alias) for column in node.expressions):
        return "column_alias"
    if isinstance(node, (exp.Table, exp.Subquery)) and isinstance(node.args.get("alias"), exp.TableAlias):
        return "table_alias"
    return None


def _is_group(condition: exp.Expr) -> bool:
    """Return whether AND, OR or XOR joins it, even below a NOT."""
    while isinstance(condition, (exp.Not, exp.Paren)):
        condition = condition.this
    return isinstance(condition, exp.Connector)


def _is_flat(group: exp.Expr) -> bool:
    """Return whether only one of AND, OR and XOR joins its conditions, with no NOT before a group of them."""
    return isinstance(group, exp.Connector) and all(
        not _is_group(part) or (type(part) is type(group) and _is_flat(part)) for part in group.flatten()
    )


def _aggregate_aliases(select: exp.Expr | None) -> frozenset[str]:
    """Return the aliases of output columns that contain an aggregate."""
    columns = select.expressions if isinstance(select, exp.Select) else []
    return frozenset(
        column.alias.lower() for column in columns if isinstance(column, exp.Alias) and _has_aggregate(column)
    )


def _has_aggregate(node: exp.Expr, aliases: frozenset[str] = frozenset()) -> bool:
    return any(
        isinstance(part, exp.AggFunc)
        or (isinstance(part, exp.Column) and not part.table and part.name.lower() in aliases)
        for part in _own_nodes(node)
    )


def _own_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield `node` and the nodes below it, except subqueries and their nodes."""
    return (
        part
        for part in node.walk(prune=lambda part: isinstance(part, exp.Query))
        if not isinstance(part, exp.Query)
    )


def _subquery_skills(statement: exp.Expr) -> Iterator[str]:
    """Yield the skills of all subqueries together, as they depend on how subqueries are nested."""
    homes = [home for node in statement.walk() if (home := _home(node)) is not None]
    if any(_home(home) is not None for home in homes):
        yield "subquery_nested"
    if any(count > 1 for count in Counter(id(home) for home in homes).values()):
        yield "subquery_multiple"
    if len(homes) == 1:
        yield "subquery_single"


def _home(node: exp.Expr) -> exp.Expr | None:
    """Return the query or statement that directly contains the subquery `node`; `None` for another node."""
    if not isinstance(node, (exp.Select, exp.SetOperation)):
        return None
    above = _above_parentheses(node)
    if above is None or isinstance(above, (exp.SetOperation, exp.Insert)):
        return None
    while not isinstance(above, (exp.Select, exp.SetOperation, exp.Insert, exp.Update, exp.Delete)):
        if above.parent is None:
            return above
        above = above.parent
    return _whole_query(above)


def _whole_query(node: exp.Expr) -> exp.Expr:
    """Return the outermost UNION that `node` is a branch of, the INSERT that takes its rows, or `node`."""
    while isinstance(node, (exp.Select, exp.SetOperation)):
        above = _above_parentheses(node)
        if not isinstance(above, (exp.SetOperation, exp.Insert)):
            break
        node = above
    return node


def _above_parentheses(node: exp.Expr) -> exp.Expr | None:
    above = node.parent
    while isinstance(above, (exp.Subquery, exp.Paren)):
        above = above.parent
    return above
