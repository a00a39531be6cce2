"""All plans of level full: the clauses of a statement, and thus its skills, before any table exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

WHERES = ("where_single_condition", "where_multiple_conditions", "where_nested_conditions")
ORDERS = (
    "order_by_single_column",
    "order_by_multiple_columns_same_direction",
    "order_by_multiple_columns_different_directions",
)
LIMITS = ("limit_only", "limit_and_offset")
GROUPS = ("group_by_single_column", "group_by_multiple_columns")
HAVINGS = (
    "having_single_condition_with_aggregate",
    "having_multiple_conditions_with_aggregate",
    "having_aggregate_calculation",
)

# Skills that a condition with a subquery (see `queries.py`) adds.
SUBQUERY_SKILLS: dict[str, tuple[str, ...]] = {
    "": (),
    "scalar": ("subquery_single",),
    "same": ("subquery_single", WHERES[0]),
    "group": ("subquery_single", GROUPS[0], HAVINGS[0]),
    "two": ("subquery_multiple",),
    "mixed": ("subquery_multiple", GROUPS[0], HAVINGS[0]),
    "nested": ("subquery_nested", WHERES[0]),
    "derived": ("subquery_nested", "column_alias", "table_alias"),
}

# Skills that a form of statement has by itself.
FORM_SKILLS: dict[str, tuple[str, ...]] = {
    "aggregate": ("select",),
    "rows": ("select",),
    "groups": ("select",),
    "of_groups": ("select", "column_alias", "table_alias", GROUPS[0], "subquery_single"),
    "of_top": ("select", "table_alias", ORDERS[0], LIMITS[0], "subquery_single"),
    "difference": ("select", "subquery_multiple"),
    "insert": ("insert",),
    "copy": ("insert",),
    "update": ("update",),
    "delete": ("delete",),
}


@dataclass(frozen=True)
class Plan:
    """A form of statement and its clauses, each named by its skill, or `""`."""

    form: str
    where: str = ""
    subquery: str = ""
    group: str = ""
    having: str = ""
    order: str = ""
    limit: str = ""
    column_alias: str = ""
    table_alias: str = ""

    @property
    def skills(self) -> frozenset[str]:
        clauses = {*vars(self).values()} - {self.form, self.subquery, ""}
        return frozenset({*FORM_SKILLS[self.form], *SUBQUERY_SKILLS[self.subquery], *clauses})


_COLUMN_ALIAS = ("", "column_alias")
_TABLE_ALIAS = ("", "table_alias")
_ORDERED = [("", ""), *product(ORDERS, ("", *LIMITS))]


def _conditions(*subqueries: str) -> list[tuple[str, str]]:
    """Return pairs of a WHERE and its subquery: none without WHERE, two only with several conditions."""
    pairs = product(WHERES, ("", *subqueries))
    return [("", ""), *(p for p in pairs if p[0] != WHERES[0] or p[1] not in ("two", "mixed"))]


def all_plans() -> Iterator[Plan]:
    """Yield every plan for questions about one table that have one right answer."""
    select = _conditions("scalar", "same", "group", "two", "mixed", "nested")
    for (where, subquery), alias, table in product(select, _COLUMN_ALIAS, _TABLE_ALIAS):
        yield Plan("aggregate", where, subquery, column_alias=alias, table_alias=table)
        for order, limit in _ORDERED:
            # without an order only one row has one right answer, and only these conditions often leave one
            if order or (where == WHERES[0] and subquery in ("", "scalar", "nested")):
                yield Plan("rows", where, subquery, "", "", order, limit, alias, table)
    plain = _conditions("scalar")
    for (where, subquery), group, having, (order, limit), alias, table in product(
        plain, GROUPS, ("", *HAVINGS), _ORDERED, _COLUMN_ALIAS, _TABLE_ALIAS
    ):
        if order or having:  # the one group that HAVING leaves needs no order
            yield Plan("groups", where, subquery, group, having, order, limit, alias, table)
    for where, alias in product(("", *WHERES), _COLUMN_ALIAS):
        yield Plan("of_groups", where, column_alias=alias)
        yield Plan("of_top", where, column_alias=alias)
    for where, alias in product(("", WHERES[0]), _COLUMN_ALIAS):
        yield Plan("difference", where, column_alias=alias)
    yield Plan("insert")
    for where in WHERES:
        yield Plan("copy", where)
    few = [("", ""), *((order, LIMITS[0]) for order in ORDERS)]
    for (where, subquery), (order, limit) in product(_conditions("derived"), few):
        for table in _TABLE_ALIAS:
            yield Plan("update", where, subquery, order=order, limit=limit, table_alias=table)
        if where or limit:  # no task deletes all rows
            yield Plan("delete", where, subquery, order=order, limit=limit)
