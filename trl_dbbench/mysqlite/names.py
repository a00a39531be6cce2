"""Names as MySQL on Linux reads them: reserved words need backticks, tables and their aliases mind case.

SQLite does neither, so what MySQL would refuse is looked for in the statement's tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp
from sqlglot.generators.mysql import MySQLGenerator
from sqlglot.tokens import Token, TokenType

from trl_dbbench.mysqlite.errors import SHOWN_DATABASE, StatementError, syntax_error
from trl_dbbench.mysqlite.parse import text_of

RESERVED = frozenset(
    MySQLGenerator.RESERVED_KEYWORDS - {"master_bind", "master_ssl_verify_server_cert"}
    | {"external", "library", "qualify", "tablesample"}
)
"""The words that MySQL 9.7 reserves."""

_NAMED = frozenset(
    {
        (exp.Table, "this"),
        (exp.TableAlias, "this"),
        (exp.TableAlias, "columns"),
        (exp.Alias, "alias"),
        (exp.Column, "this"),
        (exp.ColumnDef, "this"),
        (exp.Schema, "expressions"),
        (exp.Window, "alias"),
    }
)
"""Where a name stands in a tree: the node above it and its place there."""

_MEANT = frozenset({"default", "dual", "utc_date", "utc_time", "utc_timestamp"})
"""Reserved words that may stand where a name does, without being one."""

_CLAUSES: dict[type[exp.Expr], str] = {
    exp.Where: "where clause",
    exp.Join: "on clause",
    exp.Group: "group statement",
    exp.Having: "having clause",
    exp.Order: "order clause",
}


ADJACENT = (
    *(
        "ADDDATE",
        "BIT_AND",
        "BIT_OR",
        "BIT_XOR",
        "CAST",
        "COUNT",
        "CURDATE",
        "CURTIME",
        "DATE_ADD",
        "DATE_SUB",
    ),
    *("EXTRACT", "GROUP_CONCAT", "MAX", "MID", "MIN", "NOW", "POSITION", "STD", "STDDEV", "STDDEV_POP"),
    *(
        "STDDEV_SAMP",
        "SUBDATE",
        "SUBSTR",
        "SUBSTRING",
        "SUM",
        "SYSDATE",
        "TRIM",
        "VARIANCE",
        "VAR_POP",
        "VAR_SAMP",
    ),
)
"""Functions whose bracket must stand beside them."""
_BEFORE_NAMES = frozenset(
    {"INTO", "TABLE", "EXISTS", "AS", "FROM", "JOIN", "UPDATE", "ON", "REFERENCES", "WITH", "."}
)


def check_spaces(sql: str, tokens: Sequence[Token]) -> None:
    """Raises StatementError for a function that must have its bracket beside it: `COUNT (*)`."""
    for before, name, bracket, after in zip([None, *tokens], tokens, tokens[1:], tokens[2:], strict=False):
        apart = bracket.token_type == TokenType.L_PAREN and name.end + 1 < bracket.start
        is_name = (
            name.token_type in (TokenType.IDENTIFIER, TokenType.STRING) or name.text.upper() not in ADJACENT
        )
        if not apart or is_name or (before is not None and before.text.upper() in _BEFORE_NAMES):
            continue
        function = name.text.upper()
        if function in ("CAST", "DATE_ADD", "DATE_SUB", "EXTRACT", "POSITION") or after.text.upper() in (
            "*",
            "DISTINCT",
        ):
            raise syntax_error(sql[after.start :])
        raise StatementError(
            1630,
            f"FUNCTION {SHOWN_DATABASE}.{function} does not exist. Check the 'Function Name Parsing and "
            "Resolution' section in the Reference Manual",
        )


def check_words(tree: exp.Expr) -> None:
    """Raises StatementError for a reserved word as a name without backticks, unless a dot is beside it."""
    for name in tree.find_all(exp.Identifier):
        parent = name.parent
        if not name.name and isinstance(parent, exp.Table):
            raise StatementError(1103, "Incorrect table name ''")
        if parent is None or (type(parent), name.arg_key) not in _NAMED or name.args.get("quoted"):
            continue
        beside_dot = parent.args.get("table") or parent.args.get("db")
        if name.name.lower() in RESERVED - _MEANT and not beside_dot:
            raise syntax_error(name.name)


def check_derived(tree: exp.Expr) -> None:
    """Raises StatementError for a subquery in FROM or JOIN that has no alias."""
    for subquery in tree.find_all(exp.Subquery):
        if isinstance(subquery.parent, exp.From | exp.Join) and subquery.arg_key == "this":
            inner: exp.Expr = subquery
            while isinstance(inner, exp.Subquery) and not inner.alias:
                inner = inner.this
            if isinstance(inner, exp.Select | exp.SetOperation):
                raise StatementError(1248, "Every derived table must have its own alias")


def needed_tables(tree: exp.Expr) -> tuple[str, ...]:
    """The names that must be exactly those of tables or views; other databases are refused elsewhere."""
    if not isinstance(tree, exp.Query | exp.DML | exp.Create | exp.Alter | exp.TruncateTable):
        return ()
    parts = {part.alias for part in tree.find_all(exp.CTE)} | {""}
    ours = [table for table in _read(tree) if table.db.lower() in ("", SHOWN_DATABASE)]
    return tuple(dict.fromkeys(each.name for each in ours if each.name not in parts or _is_hidden(each)))


def _is_hidden(table: exp.Table) -> bool:
    """Whether no part of WITH that has the table's name can be seen where the table stands: a part sees those
    before it, and with RECURSIVE itself."""
    below: exp.Expr = table
    above = below.parent
    while above is not None:
        with_ = above.args.get("with_")
        if isinstance(above, exp.With):
            names = [part.alias for part in above.expressions]
            seen = names[: (below.index or 0) + bool(above.args.get("recursive"))]
        else:
            seen = (
                [part.alias for part in with_.expressions] if with_ is not None and with_ is not below else []
            )
        if table.name in seen:
            return False
        below, above = above, above.parent
    return True


def _read(tree: exp.Expr) -> Iterator[exp.Table]:
    """The tables of a statement that must exist."""
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
    """Raises StatementError for a column of a table that the statement names in another case."""
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
        if name and isinstance(column.this, exp.Star):
            raise StatementError(1051, f"Unknown table '{name}'")
        if name.lower() not in map(str.lower, known):
            continue
        place = column.find_ancestor(*_CLAUSES, exp.Query)
        clause = _CLAUSES.get(type(place), "field list") if place is not None else "field list"
        raise StatementError(1054, f"Unknown column '{name}.{column.name}' in '{clause}'")


def check_joins(tree: exp.Expr) -> None:
    """Raises StatementError for a column in ON whose table comes later, or before a comma."""
    for select in tree.find_all(exp.Select):
        joins, first = select.args.get("joins") or [], select.args.get("from_")
        if first is None or not any(join.args.get("on") for join in joins):
            continue
        own, seen = sources(select), _names(first)
        for join in joins:
            inside = {each.alias_or_name for each in join.this.find_all(exp.Table, exp.Subquery)}
            comma = not (
                join.kind or join.side or join.method or join.args.get("on") or join.args.get("using")
            )
            seen = inside if comma else seen | inside
            if join.args.get("on") is None:
                continue
            columns = join.args["on"].walk(prune=lambda node: isinstance(node, exp.Query))
            for column in columns:
                late = isinstance(column, exp.Column) and column.table in own - seen - {""}
                if late:
                    raise StatementError(
                        1054, f"Unknown column '{column.table}.{column.name}' in 'on clause'"
                    )


def parts(select: exp.Select) -> Iterator[exp.Expr]:
    """The tables and subqueries of FROM."""
    first = select.args.get("from_")
    for each in [*([first] if first is not None else []), *(select.args.get("joins") or [])]:
        yield each.this


def named(select: exp.Expr) -> dict[str, exp.Expr]:
    """What a query selects under another name, by that name in lower case."""
    return {each.alias.lower(): each.this for each in select.expressions if isinstance(each, exp.Alias)}


def sources(query: exp.Expr) -> set[str]:
    """The names of a query's own tables, as its aliases have them."""
    return _names(query)


def _names(tree: exp.Expr) -> set[str]:
    own = tree.walk(prune=lambda node: node is not tree and isinstance(node, exp.Select))
    return {node.alias_or_name for node in own if isinstance(node, exp.Table | exp.Subquery)}
