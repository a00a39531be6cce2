"""Names as in MySQL on Linux: reserved words need backticks; tables and their aliases are case-sensitive.

SQLite enforces neither, so the statement's tree is searched for what MySQL would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp
from sqlglot.generators.mysql import MySQLGenerator
from sqlglot.tokens import Token, TokenType

from trl_dbbench.mysqlite import errors
from trl_dbbench.mysqlite.errors import StatementError, fail_if, refuse_if, syntax_error, unknown_column
from trl_dbbench.mysqlite.kinds import TableColumns, keep_kind, words
from trl_dbbench.mysqlite.parse import OF_JOINS, text_of

RESERVED = frozenset(
    MySQLGenerator.RESERVED_KEYWORDS - {"master_bind", "master_ssl_verify_server_cert"}
    | {"external", "library", "qualify", "tablesample"}
)
"""Words that MySQL 9.7 reserves."""

_NAMED = frozenset(
    {
        *((exp.Table, "this"), (exp.TableAlias, "this"), (exp.TableAlias, "columns"), (exp.Alias, "alias")),
        *((exp.Column, "this"), (exp.ColumnDef, "this"), (exp.Schema, "expressions"), (exp.Window, "alias")),
    }
)
"""Places of names in a tree: the type of the parent node, and the name's argument in it."""

_MEANT = frozenset({"default", "dual", "utc_date", "utc_time", "utc_timestamp"})
"""Reserved words that may appear where a name is expected, without being a name."""

ADJACENT = words(
    """
    ADDDATE BIT_AND BIT_OR BIT_XOR CAST COUNT CURDATE CURTIME DATE_ADD DATE_SUB EXTRACT GROUP_CONCAT MAX MID
    MIN NOW POSITION STD STDDEV STDDEV_POP STDDEV_SAMP SUBDATE SUBSTR SUBSTRING SUM SYSDATE TRIM VARIANCE
    VAR_POP VAR_SAMP
    """
)
"""Functions whose opening bracket must follow without a space."""
_BEFORE_NAMES = words("INTO TABLE EXISTS AS FROM JOIN UPDATE ON REFERENCES WITH .")


def check_spaces(sql: str, tokens: Sequence[Token]) -> None:
    """Raise StatementError for a space before the bracket of an `ADJACENT` function, as in `COUNT (*)`."""
    for before, name, bracket, after in zip([None, *tokens], tokens, tokens[1:], tokens[2:], strict=False):
        apart = bracket.token_type == TokenType.L_PAREN and name.end + 1 < bracket.start
        function, named = name.text.upper(), name.token_type in (TokenType.IDENTIFIER, TokenType.STRING)
        if not apart or named or function not in ADJACENT:
            continue
        if before is not None and before.text.upper() in _BEFORE_NAMES:
            continue
        keyword = function in ("CAST", "DATE_ADD", "DATE_SUB", "EXTRACT", "POSITION")
        if keyword or after.text.upper() in ("*", "DISTINCT"):
            raise syntax_error(sql, after.start)
        raise StatementError(
            1630,
            f"FUNCTION {errors.SHOWN_DATABASE}.{function} does not exist. Check the 'Function Name Parsing "
            "and Resolution' section in the Reference Manual",
        )


def check_words(tree: exp.Expr) -> None:
    """Raise StatementError for a reserved word as a name without backticks, unless it follows a dot."""
    for name in tree.find_all(exp.Identifier):
        parent = name.parent
        fail_if(not name.name and isinstance(parent, exp.Table), 1103, "Incorrect table name ''")
        if parent is None or (type(parent), name.arg_key) not in _NAMED or name.args.get("quoted"):
            continue
        beside_dot = parent.args.get("table") or parent.args.get("db")
        if name.name.lower() in RESERVED - _MEANT and not beside_dot:
            raise syntax_error(name.name)


def check_derived(tree: exp.Expr) -> None:
    """Raise StatementError for a subquery in FROM or JOIN that has no alias."""
    for subquery in tree.find_all(exp.Subquery):
        if isinstance(subquery.parent, exp.From | exp.Join) and subquery.arg_key == "this":
            inner: exp.Expr = subquery
            while isinstance(inner, exp.Subquery) and not inner.alias:
                inner = inner.this
            if isinstance(inner, exp.Select | exp.SetOperation):
                raise StatementError(1248, "Every derived table must have its own alias")


def needed_tables(tree: exp.Expr) -> tuple[str, ...]:
    """Return the case-sensitive names of the tables and views that must exist in our database."""
    if not isinstance(tree, exp.Query | exp.DML | exp.Create | exp.Alter | exp.TruncateTable):
        return ()
    parts = {part.alias for part in tree.find_all(exp.CTE)} | {""}
    ours = [table for table in _read(tree) if table.db.lower() in ("", errors.SHOWN_DATABASE)]
    return tuple(dict.fromkeys(each.name for each in ours if each.name not in parts or _is_hidden(each)))


def _is_hidden(table: exp.Table) -> bool:
    """Return whether no CTE of a table's name is in scope: an earlier one or, with RECURSIVE, its own."""
    below: exp.Expr = table
    above = below.parent
    while above is not None:
        if isinstance(above, exp.With):
            names = [part.alias for part in above.expressions]
            seen = names[: (below.index or 0) + bool(above.args.get("recursive"))]
        else:
            seen = [part.alias for part in clause(above, "with_") if part.parent is not below]
        if table.name in seen:
            return False
        below, above = above, above.parent
    return True


def _read(tree: exp.Expr) -> Iterator[exp.Table]:
    """Return the tables of a statement that must exist."""
    if isinstance(tree, exp.Alter):
        if not isinstance(tree.this, exp.Table):
            raise syntax_error(text_of(tree.this))
        yield tree.this
        return
    for table in tree.find_all(exp.Table):
        made = isinstance(tree, exp.Create) and (table.parent is tree or table.find_ancestor(exp.Schema))
        target = isinstance(table.parent, exp.Delete) and table.arg_key == "tables"  # perhaps an alias
        dual = table.name.lower() == "dual" and not table.this.args.get("quoted")
        if not (made or target or dual):
            yield table


def check_aliases(tree: exp.Expr) -> None:
    """Raise StatementError for a column whose table the statement names in another case."""
    found: dict[int, set[str]] = {}
    for column in tree.find_all(exp.Column):
        name, known = column.table, set[str]()
        query = column.find_ancestor(exp.Select, exp.DML) if name else None
        while query is not None and name not in known:
            if id(query) not in found:
                found[id(query)] = sources(query)
            known |= found[id(query)]
            query = query.find_ancestor(exp.Select, exp.DML)
        if name in known:
            continue
        fail_if(name and isinstance(column.this, exp.Star), 1051, f"Unknown table '{name}'")
        if name.lower() in map(str.lower, known):
            raise unknown_column(f"{name}.{column.name}")


def check_joins(tree: exp.Expr) -> None:
    """Raise StatementError for a column in ON whose table is joined later, or comes before a comma."""
    for select in tree.find_all(exp.Select):
        joins, first = select.args.get("joins") or [], select.args.get("from_")
        if first is None or not any(join.args.get("on") for join in joins):
            continue
        own, seen = sources(select), sources(first)
        for join in joins:
            inside = {each.alias_or_name for each in join.this.find_all(exp.Table, exp.Subquery)}
            seen = seen | inside if any(map(join.args.get, OF_JOINS)) else inside
            if join.args.get("on") is None:
                continue
            columns = join.args["on"].walk(prune=lambda node: isinstance(node, exp.Query))
            for column in columns:
                late = isinstance(column, exp.Column) and column.table in own - seen - {""}
                if late:
                    raise unknown_column(f"{column.table}.{column.name}", "on clause")


def clause(node: exp.Expr, name: str) -> list[exp.Expr]:
    """Return the expressions of a clause, such as the terms of ORDER BY."""
    found = node.args.get(name)
    return [] if found is None else found.expressions


def conditions(select: exp.Select) -> list[tuple[exp.Expr, exp.Join | None]]:
    """Return the conditions of WHERE and ON, the latter with their joins."""
    where, joins = select.args.get("where"), select.args.get("joins") or []
    own = [] if where is None else [(where.this, None)]
    return [*own, *((join.args["on"], join) for join in joins if join.args.get("on") is not None)]


def terms(condition: exp.Expr) -> list[exp.Expr]:
    """Return the conditions that are connected by AND."""
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]


def parts(select: exp.Select) -> Iterator[exp.Expr]:
    """Return the tables and subqueries of FROM."""
    first = select.args.get("from_")
    for each in [*([first] if first is not None else []), *(select.args.get("joins") or [])]:
        yield each.this


def named(select: exp.Expr) -> dict[str, exp.Expr]:
    """Return the aliased expressions that a query selects, by their aliases in lower case."""
    return {each.alias.lower(): each.this for each in select.expressions if isinstance(each, exp.Alias)}


def sources(tree: exp.Expr) -> set[str]:
    """Return the aliases, or else the names, of a query's own tables and subqueries."""
    own = tree.walk(prune=lambda node: node is not tree and isinstance(node, exp.Select))
    return {node.alias_or_name for node in own if isinstance(node, exp.Table | exp.Subquery)}


Known = Mapping[str, set[str] | None]
"""Tables and CTEs with the names of their columns in lower case, or `None` if these are unknown."""


def check_columns(tree: exp.Expr, tables: Sequence[TableColumns]) -> None:
    """Raise StatementError for a SELECT alias in WHERE or ON, and for an ambiguous name in ORDER BY."""
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
    for condition, join in conditions(select) if aliases else ():
        for column in condition.find_all(exp.Column):
            if column.table or column.name.lower() not in aliases:
                continue
            inner = column.find_ancestor(exp.Select)
            if inner is select or (inner is not None and inner.args.get("from_") is None):
                raise unknown_column(column.name, "on clause" if join else "where clause")


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
            raise errors.unsupported("ORDER BY a column's name that stands for something else as well")
        if len(same) > 1 or (starred and not same and among > 1 and not named):
            raise StatementError(1052, f"Column '{key.name}' in order clause is ambiguous")


def _check_global_order(operation: exp.SetOperation) -> None:
    names = _selected(operation)
    for key in (term.this for term in clause(operation, "order")):
        if isinstance(key, exp.Column) and key.table:
            raise StatementError(
                1250, f"Table '{key.table}' from one of the SELECTs cannot be used in global ORDER clause"
            )
        if isinstance(key, exp.Column) and names is not None and key.name.lower() not in names:
            raise unknown_column(key.name, "order clause")


def _keys(select: exp.Select) -> Iterator[exp.Column]:
    """Yield the columns without a table that ORDER BY names."""
    for term in clause(select, "order"):
        if isinstance(term.this, exp.Column) and not term.this.table:
            yield term.this


def _columns(source: exp.Expr, known: Known) -> set[str] | None:
    if isinstance(source, exp.Table):
        return known.get(source.name)
    return _selected(source.this) if isinstance(source, exp.Subquery) else None


def _selected(query: exp.Expr) -> set[str] | None:
    """Return the names of a query's columns in lower case, or `None` for a `*`."""
    query = query.unnest()
    while isinstance(query, exp.SetOperation):
        query = query.left.unnest()
    if not isinstance(query, exp.Select) or query.is_star:
        return None
    return {name.lower() for name in query.named_selects}


def qualify_order(tree: exp.Expr) -> None:
    """Qualify columns in ORDER BY like the selected ones: in `SELECT a.id FROM a JOIN b`, SQLite needs it."""
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
    """Replace aliases in HAVING by the selected expressions: SQLite would prefer a column of that name."""
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
            refuse_if(name in keys, "a name in HAVING that GROUP BY and SELECT give to different things")
            column.replace(keep_kind(exp.paren(value.copy()), value))


def having_alone(node: exp.Expr) -> None:
    """Move HAVING without GROUP BY and aggregates to WHERE, and replace aliases by their expressions."""
    if any(each.find(exp.AggFunc) for each in node.expressions):
        return
    condition = node.args["having"].this
    refuse_if(condition.find(exp.AggFunc), "an aggregate in HAVING, and none in SELECT or GROUP BY")
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
    """Qualify columns in ON with their table among the tables joined so far: SQLite searches all tables."""
    known = _known(tree, tables)
    for select in tree.find_all(exp.Select):
        joins, first = select.args.get("joins") or [], select.args.get("from_")
        if first is None or len(joins) < 2 or not any(_loose(join.args.get("on")) for join in joins):
            continue
        every = {each.alias_or_name: _columns(each, known) for each in parts(select)}
        seen = {first.this.alias_or_name}
        for join in joins:
            name = join.this.alias_or_name
            seen = {*seen, name} if any(map(join.args.get, OF_JOINS)) else {name}
            for column in (
                _loose(join.args.get("on")) if all(every[each] is not None for each in seen) else ()
            ):
                owners = [each for each in seen if column.name.lower() in (every[each] or ())]
                if len(owners) == 1:
                    column.set("table", exp.to_identifier(owners[0], quoted=True))
                elif not owners and any(column.name.lower() in (each or ()) for each in every.values()):
                    refuse_if(select.find_ancestor(exp.Select) is not None, "a column of a later table in ON")
                    raise unknown_column(column.name, "on clause")


def _loose(condition: exp.Expr | None) -> list[exp.Column]:
    """Return a condition's columns without a table, outside of aggregates and subqueries."""
    inner = exp.AggFunc | exp.Query
    nodes = condition.walk(prune=lambda node: isinstance(node, inner)) if condition is not None else ()
    return [node for node in nodes if isinstance(node, exp.Column) and not node.table]


def rename_columns(tree: exp.Expr) -> None:
    """Apply the column names in the alias of derived tables, `AS t (a, b)`. The tree must be annotated."""
    for node in tree.find_all(exp.Subquery):
        names, query = node.alias_column_names, node.this
        if not names:
            continue
        fail_if(len(query.meta.get("row", names)) != len(names), *errors.OTHER_COUNT)
        own = isinstance(query, exp.Select) and any(isinstance(each, exp.Alias) for each in query.expressions)
        sorted_ = any(query.args.get(each) for each in ("group", "having", "order"))
        if not isinstance(query, exp.Select) or query.is_star or (own and sorted_):
            raise errors.unsupported("names of columns behind such a derived table")
        named = [
            exp.alias_(each.unalias(), name, quoted=True)
            for each, name in zip(query.expressions, names, strict=True)
        ]
        query.set("expressions", named)
        node.args["alias"].set("columns", None)


def check_twice(tree: exp.Expr) -> None:
    """Raise StatementError for a derived table or CTE, already annotated, with two columns of one name."""
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
        if alias is None or not alias.columns:
            check_differ(names)


def check_differ(names: Sequence[str]) -> None:
    """Raise StatementError for two columns of one name."""
    lowered = [name.lower() for name in names]
    for name in names:
        fail_if(name and lowered.count(name.lower()) > 1, 1060, f"Duplicate column name '{name}'")
