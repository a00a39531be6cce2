"""The 22 skills that a SQL statement exercises, read off its syntax tree.

A skill says which clauses a statement has, not how hard it is. Each is decided by one look at one kind of
node, so that a generator can write a statement for the skills it wants and find exactly those again. The
rules where a definition leaves room:

- `select`, `insert`, `update`, `delete`: the statement's own kind. `INSERT ... SELECT` is an insert.
- All other skills are read from the whole statement, subqueries, CTEs and branches of a UNION included.
  Every clause is classified alone; the statement has the skills of all its clauses. So a statement can have
  both `where_single_condition` and `where_multiple_conditions`, from two WHEREs.
- WHERE has exactly one skill: `where_single_condition` without AND, OR or XOR at its top (`BETWEEN`, `IN`,
  `NOT x` and `EXISTS` are one condition each); `where_multiple_conditions` where one kind of them joins all
  conditions; `where_nested_conditions` where two kinds mix or NOT stands before a group. Parentheses that
  change nothing do not count: `(a AND b) AND c` is multiple. ON is not WHERE.
- ORDER BY has exactly one: by the number of its terms and, from two on, whether their directions agree.
  Only those that order a query's rows (or those of an UPDATE or DELETE) count, not those inside
  `GROUP_CONCAT(...)` or `OVER (...)`.
- LIMIT has exactly one: `LIMIT 5, 10` and `LIMIT 10 OFFSET 5` are `limit_and_offset`, a zero offset too.
- `column_alias`: a name given to a SELECT's output column, with or without AS. `table_alias`: one given to
  a table or to a subquery in FROM (where MySQL demands it). A CTE's name is neither.
- GROUP BY has exactly one, by the number of its terms.
- HAVING has at most one: `having_aggregate_calculation` where `+ - * / % DIV` has an aggregate below it
  (`MAX(a) - MIN(a) > 5`; not `SUM(a * b) > 5`); else, where an aggregate or the alias of one occurs,
  `having_multiple_conditions_with_aggregate` or `having_single_condition_with_aggregate`, by whether AND,
  OR or XOR joins conditions; else none.
- Subqueries are the queries inside a statement, CTEs included; a UNION is one query; the query that an
  INSERT takes its rows from is none. `subquery_nested` where a subquery has a subquery; `subquery_multiple`
  where one query has two or more directly in it; `subquery_single` where the statement has just one. The
  first two can hold together.

A statement that does not parse has no skills: the question SQL of published tasks is often not valid.
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
"""Kinds of tasks of several turns (`benchmarks/worlds/multi.py`). Such a task names its kind in the place of
skills: no SQL shows it."""

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
"""Kinds of questions over several tables (`data/generate/relational.py`), named in the place of skills."""

NAMED = (*SKILLS, *KINDS, *QUERY_KINDS)
"""All that a task can name as what it is about."""

_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv)


def skills_of(sql: str, dialect: str = "mysql") -> tuple[str, ...]:
    """The skills of one statement, in the order of `SKILLS`; `()` for anything else.

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
    """`"SELECT"`, `"INSERT"`, `"UPDATE"` or `"DELETE"`; `None` if `sql` is not one statement of these."""
    return _operation(only_statement(sql, dialect))


def _operation(statement: exp.Expr | None) -> str | None:
    if isinstance(statement, (exp.Select, exp.SetOperation, exp.Subquery)):
        return "SELECT"
    changes = isinstance(statement, (exp.Insert, exp.Update, exp.Delete))
    return type(statement).__name__.upper() if changes else None


def _skill_at(node: exp.Expr) -> str | None:
    """Return the skill that this node alone shows."""
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
    """AND, OR or XOR joins it, be it below a NOT."""
    while isinstance(condition, (exp.Not, exp.Paren)):
        condition = condition.this
    return isinstance(condition, exp.Connector)


def _is_flat(group: exp.Expr) -> bool:
    """Only one of AND, OR and XOR joins its conditions, and no NOT stands before a group of them."""
    return isinstance(group, exp.Connector) and all(
        not _is_group(part) or (type(part) is type(group) and _is_flat(part)) for part in group.flatten()
    )


def _aggregate_aliases(select: exp.Expr | None) -> frozenset[str]:
    """The output columns of `select` that have a name and are made of an aggregate."""
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
    """`node` and what is below it, short of subqueries."""
    return (
        part
        for part in node.walk(prune=lambda part: isinstance(part, exp.Query))
        if not isinstance(part, exp.Query)
    )


def _subquery_skills(statement: exp.Expr) -> Iterator[str]:
    """Read all subqueries at once: what counts is how they lie to each other."""
    homes = [home for node in statement.walk() if (home := _home(node)) is not None]
    if any(_home(home) is not None for home in homes):
        yield "subquery_nested"
    if any(count > 1 for count in Counter(id(home) for home in homes).values()):
        yield "subquery_multiple"
    if len(homes) == 1:
        yield "subquery_single"


def _home(node: exp.Expr) -> exp.Expr | None:
    """The query or statement that the subquery `node` lies directly in; `None` if `node` is no subquery."""
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
    """The outermost UNION that `node` is a branch of, or the statement it gives rows to, or `node`."""
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
