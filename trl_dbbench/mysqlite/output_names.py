"""The names of a query's output columns: where they may stand, and where one stands for two.

SQLite knows them in WHERE and ON as well, where MySQL does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp

from trl_dbbench.mysqlite.errors import OTHER_COUNT, StatementError, unsupported
from trl_dbbench.mysqlite.kinds import TableColumns, keep_kind
from trl_dbbench.mysqlite.names import named, parts
from trl_dbbench.mysqlite.parse import text_of

Known = Mapping[str, set[str] | None]
"""Tables and parts of WITH, with their columns in lower case; `None` if they cannot be seen."""


def check_columns(tree: exp.Expr, tables: Sequence[TableColumns]) -> None:
    """Raises StatementError for an output column's name in WHERE or ON, and for one that stands for two."""
    known = _known(tree, tables)
    for operation in tree.find_all(exp.SetOperation):
        _check_global_order(operation)
    for select in tree.find_all(exp.Select):
        _check_order(select, [_columns(each, known) for each in parts(select)])
        _check_conditions(select, known)


def _known(tree: exp.Expr, tables: Sequence[TableColumns]) -> Known:
    known: dict[str, set[str] | None] = {
        table.name: {name.lower() for name, _ in table.columns} for table in tables
    }
    for part in tree.find_all(exp.CTE):
        renamed = {column.name.lower() for column in part.args["alias"].columns}
        known[part.alias] = renamed or _selected(part.this)
    return known


def _check_conditions(select: exp.Select, known: Known) -> None:
    aliases = {each.alias.lower() for each in select.expressions if isinstance(each, exp.Alias)}
    query: exp.Select | None = select
    while query is not None and aliases:
        for source in parts(query):
            columns = _columns(source, known)
            aliases = aliases - columns if columns is not None else set()
        above = query.find_ancestor(exp.Select, exp.From, exp.CTE)
        query = above if isinstance(above, exp.Select) else None
    joins = [join.args.get("on") for join in select.args.get("joins") or []]
    for clause, word in [(select.args.get("where"), "where"), *((on, "on") for on in joins)]:
        for column in clause.find_all(exp.Column) if clause is not None and aliases else ():
            if column.table or column.name.lower() not in aliases:
                continue
            inner = column.find_ancestor(exp.Select)
            if inner is select or (inner is not None and inner.args.get("from_") is None):
                raise StatementError(1054, f"Unknown column '{column.name}' in '{word} clause'")


def _check_order(select: exp.Select, own: list[set[str] | None]) -> None:
    for key in _keys(select):
        name = key.name.lower()
        same = {text_of(each.unalias()) for each in select.expressions if each.alias_or_name.lower() == name}
        among = sum(columns is not None and name in columns for columns in own)
        named = any(join.args.get("using") or join.method for join in select.args.get("joins") or [])
        starred = any(isinstance(each, exp.Star) for each in select.expressions)
        aliases = [
            each for each in select.expressions if isinstance(each, exp.Alias) and each.alias.lower() == name
        ]
        if len(same) > 1 and len(aliases) == 1 and not isinstance(aliases[0].this, exp.Column):
            raise unsupported("ORDER BY a column's name that stands for something else as well")
        if len(same) > 1 or (starred and not same and among > 1 and not named):
            raise StatementError(1052, f"Column '{key.name}' in order clause is ambiguous")


def _check_global_order(operation: exp.SetOperation) -> None:
    order, names = operation.args.get("order"), _selected(operation)
    for term in order.expressions if order is not None else ():
        key = term.this
        if isinstance(key, exp.Column) and key.table:
            raise StatementError(
                1250, f"Table '{key.table}' from one of the SELECTs cannot be used in global ORDER clause"
            )
        if isinstance(key, exp.Column) and names is not None and key.name.lower() not in names:
            raise StatementError(1054, f"Unknown column '{key.name}' in 'order clause'")


def _keys(select: exp.Select) -> Iterator[exp.Column]:
    """The columns without a table that ORDER BY names."""
    order = select.args.get("order")
    for term in order.expressions if order is not None else ():
        if isinstance(term.this, exp.Column) and not term.this.table:
            yield term.this


def _columns(source: exp.Expr, known: Known) -> set[str] | None:
    if isinstance(source, exp.Table):
        return known.get(source.name)
    return _selected(source.this) if isinstance(source, exp.Subquery) else None


def _selected(query: exp.Expr) -> set[str] | None:
    """The names of a query's columns in lower case."""
    query = query.unnest()
    while isinstance(query, exp.SetOperation):
        query = query.left.unnest()
    if not isinstance(query, exp.Select) or query.is_star:
        return None
    return {name.lower() for name in query.named_selects}


def qualify_order(tree: exp.Expr) -> None:
    """Gives the columns in ORDER BY the tables that they have where they are selected.

    `SELECT a.id FROM a JOIN b ... ORDER BY id` sorts by what is selected; to SQLite, `id` is ambiguous.
    """
    for select in tree.find_all(exp.Select):
        selected = {
            each.name.lower(): each
            for each in select.expressions
            if isinstance(each, exp.Column) and each.table
        }
        aliases = {each.alias.lower() for each in select.expressions if isinstance(each, exp.Alias)}
        for key in _keys(select) if select.args.get("joins") else ():
            column = selected.get(key.name.lower())
            if column is not None and key.name.lower() not in aliases:
                key.set("table", column.args["table"].copy())


def qualify_having(tree: exp.Expr, tables: Sequence[TableColumns]) -> None:
    """Puts what is selected in the place of its name in HAVING, where SQLite takes it for a column's first.

    Raises:
        StatementError: the name is one in GROUP BY as well.
    """
    known = _known(tree, tables)
    for select in tree.find_all(exp.Select):
        having, group = select.args.get("having"), select.args.get("group")
        aliases = named(select)
        if having is None or not aliases:
            continue
        own = set[str]().union(*(_columns(each, known) or set() for each in parts(select)))
        keys = {key.name.lower() for key in group.expressions if isinstance(key, exp.Column)} if group else ()
        for column in _loose(having):
            name = column.name.lower()
            value = aliases.get(name) if name in own else None
            if value is None or (isinstance(value, exp.Column) and value.name.lower() == name):
                continue
            if name in keys:
                raise unsupported("a name in HAVING that GROUP BY and SELECT give to different things")
            column.replace(keep_kind(exp.paren(value.copy()), value))


def having_alone(node: exp.Expr) -> None:
    """HAVING without GROUP BY and aggregates is a condition of the rows; it knows the names that they get."""
    if any(each.find(exp.AggFunc) for each in node.expressions):
        return
    condition = node.args["having"].this
    if condition.find(exp.AggFunc):
        raise unsupported("an aggregate in HAVING, and none in SELECT or GROUP BY")
    aliases = named(node)
    for column in list(condition.find_all(exp.Column)):
        value = None if column.table else aliases.get(column.name.lower())
        if value is not None and value.find(exp.Window):
            raise StatementError(
                3594,
                f"You cannot use the alias '{column.name}' of an expression containing a window function in "
                "this context.'",
            )
        if value is not None:
            new = exp.paren(value.copy())
            column.replace(new)
            condition = new if column is condition else condition
    where = node.args.get("where")
    node.set("where", exp.Where(this=condition if where is None else exp.and_(where.this, condition)))
    node.set("having", None)


def qualify_joins(tree: exp.Expr, tables: Sequence[TableColumns]) -> None:
    """Gives the columns in ON the table among those joined so far that has them; SQLite looks at all tables.

    Raises:
        StatementError: none of these has it, but a later one.
    """
    known = _known(tree, tables)
    for select in tree.find_all(exp.Select):
        joins, first = select.args.get("joins") or [], select.args.get("from_")
        if first is None or len(joins) < 2 or not any(_loose(join.args.get("on")) for join in joins):
            continue
        every = {each.alias_or_name: _columns(each, known) for each in parts(select)}
        seen = {first.this.alias_or_name}
        for join in joins:
            name = join.this.alias_or_name
            bound = join.kind or join.side or join.method or join.args.get("on") or join.args.get("using")
            seen = {*seen, name} if bound else {name}
            for column in (
                _loose(join.args.get("on")) if all(every[each] is not None for each in seen) else ()
            ):
                owners = [each for each in seen if column.name.lower() in (every[each] or ())]
                if len(owners) == 1:
                    column.set("table", exp.to_identifier(owners[0], quoted=True))
                elif not owners and any(column.name.lower() in (each or ()) for each in every.values()):
                    if select.find_ancestor(exp.Select) is not None:
                        raise unsupported("a column of a later table in ON")
                    raise StatementError(1054, f"Unknown column '{column.name}' in 'on clause'")


def _loose(condition: exp.Expr | None) -> list[exp.Column]:
    """The columns without a table in a condition, outside of aggregates and subqueries."""
    inner = exp.AggFunc | exp.Query
    nodes = condition.walk(prune=lambda node: isinstance(node, inner)) if condition is not None else ()
    return [node for node in nodes if isinstance(node, exp.Column) and not node.table]


def rename_columns(tree: exp.Expr) -> None:
    """Gives the columns of derived tables the names that stand behind the alias, which SQLite does not know.

    Raises:
        StatementError: there are more or fewer names than columns. The tree must have been annotated.
    """
    for node in tree.find_all(exp.Subquery):
        names, query = node.alias_column_names, node.this
        if not names:
            continue
        if len(query.meta.get("row", names)) != len(names):
            raise StatementError(*OTHER_COUNT)
        own = isinstance(query, exp.Select) and any(isinstance(each, exp.Alias) for each in query.expressions)
        sorted_ = any(query.args.get(each) for each in ("group", "having", "order"))
        if not isinstance(query, exp.Select) or query.is_star or (own and sorted_):
            raise unsupported("names of columns behind such a derived table")
        named = [
            exp.alias_(each.unalias(), name, quoted=True)
            for each, name in zip(query.expressions, names, strict=True)
        ]
        query.set("expressions", named)
        node.args["alias"].set("columns", None)


def check_twice(tree: exp.Expr) -> None:
    """Raises StatementError for a derived table or a part of WITH with two columns of a name.

    Its columns must have been annotated.
    """
    for node in tree.find_all(exp.Subquery, exp.CTE):
        derived = isinstance(node, exp.CTE) or isinstance(node.parent, exp.From | exp.Join)
        joins = list(node.find_all(exp.Join))
        if not derived or any(join.method for join in joins):
            continue
        once = {each.name.lower() for join in joins for each in join.args.get("using") or []}
        alias = node.args.get("alias")
        names = [name.lower() for name, _ in node.this.meta.get("row", ()) if name.lower() not in once]
        if isinstance(node.this, exp.Select):
            names += [text_of(each).lower() for each in node.this.expressions if not each.alias_or_name]
        for name in names if not (alias is not None and alias.columns) else ():
            if name and names.count(name) > 1:
                raise StatementError(1060, f"Duplicate column name '{name}'")
