"""The kind of value that each expression of a statement gives, from the types of the tables' columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from trl_dbbench.mysqlite.clock import check_time
from trl_dbbench.mysqlite.errors import unsupported
from trl_dbbench.mysqlite.expression_kinds import of_expression, silent
from trl_dbbench.mysqlite.kinds import UNKNOWN, Kind, TableColumns, kind_of, merged, reads_long_text

Row = list[tuple[str, Kind]]


class _Scope:
    """The columns that can be named in a query: those of its tables, its aliases, and what is around it."""

    def __init__(self, above: _Scope | None, parts: Mapping[str, Row]) -> None:
        self.above = above
        self.parts = dict(parts)
        self.sources: dict[str, dict[str, Kind]] = {}
        self.aliases: dict[str, Kind] = {}

    def find(self, column: exp.Column) -> Kind:
        table, name = column.table.lower(), column.name.lower()
        if table:
            if table in self.sources:
                return self.sources[table].get(name, UNKNOWN)
        else:
            found = [columns[name] for columns in self.sources.values() if name in columns]
            if found:
                return found[0] if len(set(found)) == 1 else UNKNOWN
            if name in self.aliases:
                return self.aliases[name]
        return self.above.find(column) if self.above is not None else UNKNOWN


class _Annotator:
    def __init__(self, columns: Sequence[TableColumns]) -> None:
        self._columns: dict[str, Row] = {each.name.lower(): list(each.columns) for each in columns}

    def query(self, node: exp.Expr | None, above: _Scope | None, parts: Mapping[str, Row]) -> Row:
        """Annotates a query, and gives the columns of its rows."""
        check_time()
        if not isinstance(node, exp.Query):
            return []
        parts = self._with(node, above, parts)
        if isinstance(node, exp.Subquery):
            row = self.query(node.this, above, parts)
        elif isinstance(node, exp.SetOperation):
            left, right = self.query(node.left, above, parts), self.query(node.right, above, parts)
            row = [
                (name, merged((kind, other))) for (name, kind), (_, other) in zip(left, right, strict=False)
            ]
        elif isinstance(node, exp.Select):
            row = self._select(node, above, parts)
        else:
            row = []
        node.meta["row"] = row
        return row

    def _with(self, node: exp.Expr, above: _Scope | None, parts: Mapping[str, Row]) -> Mapping[str, Row]:
        with_ = node.args.get("with_")
        if with_ is None:
            return parts
        known = dict(parts)
        for part in with_.expressions:
            query = part.this
            names = [column.name for column in part.args["alias"].columns]
            if with_.args.get("recursive") and isinstance(query, exp.SetOperation):
                first = query.left
                while isinstance(first, exp.SetOperation):
                    first = first.left
                for each in (first, query.left):  # whose kinds MySQL keeps for all rows
                    known[part.alias.lower()] = _renamed(self.query(each, above, known), names)
                self.query(query, above, known)
            else:
                known[part.alias.lower()] = _renamed(self.query(query, above, known), names)
        return known

    def _select(self, node: exp.Select, above: _Scope | None, parts: Mapping[str, Row]) -> Row:
        scope = _Scope(above, parts)
        source = node.args.get("from_")
        joins = node.args.get("joins") or []
        for each in [*([source] if source is not None else []), *joins]:
            self._source(each.this, scope)
        row: Row = []
        for each in node.expressions:
            if isinstance(each, exp.Star) or (
                isinstance(each, exp.Column) and isinstance(each.this, exp.Star)
            ):
                wanted = each.table.lower() if isinstance(each, exp.Column) else ""
                row += _starred(scope.sources, joins, wanted)
                continue
            kind = _named(each, self.kind(each, scope))
            row.append((each.alias_or_name, kind))
            if isinstance(each, exp.Alias):
                scope.aliases[each.alias.lower()] = kind
        for name in ("where", "group", "having", "order", "limit", "windows"):
            rest = node.args.get(name)
            for part in rest if isinstance(rest, list) else [rest]:
                if part is not None:
                    self.kind(part, scope)
        for join in joins:
            if join.args.get("on") is not None:
                self.kind(join.args["on"], scope)
        return row

    def _source(self, node: exp.Expr, scope: _Scope) -> None:
        row: Row = []
        if isinstance(node, exp.Table):
            name = node.name.lower()
            row = _computed(scope.parts.get(name)) or self._columns.get(name) or []
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):  # in brackets
            self._source(node.this, scope)
        elif isinstance(node, exp.Subquery):
            row = _renamed(_computed(self.query(node, scope.above, scope.parts)), node.alias_column_names)
        elif isinstance(node, exp.Paren):
            self._source(node.this, scope)
        for join in node.args.get("joins") or []:
            self._source(join.this, scope)
            if join.args.get("on") is not None:
                self.kind(join.args["on"], scope)
        scope.sources[node.alias_or_name.lower()] = {name.lower(): kind for name, kind in row}

    def change(self, node: exp.Insert | exp.Update | exp.Delete) -> None:
        """Annotates what a statement changes tables by."""
        scope = _Scope(None, self._with(node, None, {}))
        target = node.this.this if isinstance(node.this, exp.Schema) else node.this
        joined = node.args.get("from_")
        for source in (target, joined.this if joined is not None else None):
            if isinstance(source, exp.Table | exp.Subquery):
                self._source(source, scope)
        if isinstance(node, exp.Insert):
            self.query(node.expression, None, scope.parts)
        for name, part in node.args.items():
            if name not in ("this", "with_", "from_") and not (
                isinstance(part, exp.Query) and isinstance(node, exp.Insert)
            ):
                for each in part if isinstance(part, list) else [part]:
                    if isinstance(each, exp.Expr):
                        self.kind(each, scope)

    # --- expressions --------------------------------------------------------------------------------------

    def kind(self, node: exp.Expr, scope: _Scope) -> Kind:
        """Annotates an expression and all below it."""
        if isinstance(node, exp.Query):
            row = self.query(node, scope, scope.parts)
            found = row[0][1] if len(row) == 1 else UNKNOWN
            if node.find(exp.From) is not None:  # without it, MySQL reads the value itself
                found = silent(found)
        else:
            for child in node.iter_expressions():
                self.kind(child, scope)
            found = scope.find(node) if isinstance(node, exp.Column) else of_expression(node)
        node.meta["kind"] = found
        return found


def _named(node: exp.Expr, kind: Kind) -> Kind:
    """The kind of an expression that queries around or HAVING name: MySQL may have stored it."""
    if kind.is_single and not isinstance(node.unalias().unnest(), exp.Column):
        return kind._replace(silent=kind.silent or None)
    if kind.name == "decimal" and _is_chosen(node.unalias().unnest()):
        return kind._replace(silent=None)
    if kind.name != "text" or isinstance(node.unalias().unnest(), exp.Column):
        return kind
    return kind._replace(silent=None) if kind.silent is not False or reads_long_text(node) else kind


def _is_chosen(node: exp.Expr) -> bool:
    """Whether CASE or IF chooses among numbers of different types, which MySQL writes differently."""
    chosen = list(node.find_all(exp.If, exp.Case)) if isinstance(node, exp.If | exp.Case) else []
    values = [each.args.get(name) for each in chosen for name in ("true", "false", "default")]
    kinds = {kind_of(value)[:2] for value in values if value is not None and kind_of(value).is_number}
    return len(kinds) > 1


def _computed(row: Row | None) -> Row:
    """The columns of a query that is named, which may be computed where they are named."""
    singles = [kind.is_single and kind.silent is False for _, kind in row or ()]
    pairs = zip(row or (), singles, strict=True)
    return [(name, kind._replace(silent=None) if single else kind) for (name, kind), single in pairs]


def _starred(sources: Mapping[str, Mapping[str, Kind]], joins: Sequence[exp.Join], wanted: str) -> Row:
    """The columns of `*`, or of `t.*`.

    Raises:
        StatementError: MySQL has those of USING first, and SQLite does not.
    """
    if wanted:
        return list(sources.get(wanted, {}).items())
    row: Row = []
    named = {join.alias_or_name.lower(): join for join in joins}
    for name, columns in sources.items():
        join = named.get(name)
        shared = {each.name.lower() for each in join.args.get("using") or []} if join is not None else set()
        if join is not None and join.method:
            shared = {column for column in columns if column in dict(row)}
        if join is not None and shared:
            first = [column for column, _ in row[: len(shared)]]
            if set(first) != shared or join.side.upper() == "RIGHT" or len(joins) > 1:
                raise unsupported("* of tables that are joined by USING or NATURAL")
        row += [(column, kind) for column, kind in columns.items() if column not in shared]
    return row


def _renamed(row: Row, names: Sequence[str]) -> Row:
    return [(name, kind) for name, (_, kind) in zip(names, row, strict=False)] if names else row


def annotate(tree: exp.Expr, columns: Sequence[TableColumns]) -> tuple[Kind, ...]:
    """Notes the kind of each expression in the tree, where `kind_of` finds it.

    Args:
        columns: of the tables and views that the statement names.

    Returns:
        The kinds of a query's columns; nothing for other statements.
    """
    annotator = _Annotator(columns)
    if isinstance(tree, exp.Query):
        return tuple(kind for _, kind in annotator.query(tree, None, {}))
    if isinstance(tree, exp.Insert | exp.Update | exp.Delete):
        annotator.change(tree)
    return ()
