"""MySQL's statements for SQLite: sqlglot parses them, `rules` changes their trees, sqlglot writes these."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import SqlglotError

from trl_dbbench.mysqlite.annotation import annotate
from trl_dbbench.mysqlite.calls import check_name
from trl_dbbench.mysqlite.coercions import is_early, strict_truths
from trl_dbbench.mysqlite.errors import StatementError, nested_too_deeply, unsupported
from trl_dbbench.mysqlite.kinds import Kind, TableColumns
from trl_dbbench.mysqlite.output_names import (
    check_twice,
    qualify_having,
    qualify_joins,
    qualify_order,
    rename_columns,
)
from trl_dbbench.mysqlite.parse import quote
from trl_dbbench.mysqlite.recursion import count_depth, is_recursive, note_columns, store_columns
from trl_dbbench.mysqlite.rules import rewrite
from trl_dbbench.mysqlite.storage import store
from trl_dbbench.mysqlite.unions import unify_sides


class _Target(SQLite):
    """SQLite with names in backticks: it takes a "name" that does not exist for a text."""

    class Tokenizer(SQLite.Tokenizer):
        IDENTIFIERS = ["`"]  # noqa: RUF012


def write(
    tree: exp.Expr, columns: Sequence[TableColumns] = ()
) -> tuple[str, tuple[Kind, ...], tuple[str, ...]]:
    """The statement as SQLite understands it, the kinds of a query's columns, and the constants among the
    dates that it compares, which MySQL reads before any row. Changes the tree.

    Args:
        columns: of the tables and views that it names.

    Raises:
        StatementError: MySQL would refuse it, or there is no counterpart.
    """
    try:
        if isinstance(tree, exp.Update | exp.Delete):
            tree = _one_table(tree)
        if isinstance(tree, exp.Subquery) and not any(map(tree.args.get, ("order", "limit", "with_"))):
            tree = tree.unnest()
        for each in tree.find_all(exp.Anonymous):
            check_name(each)
        shown = annotate(tree, columns)
        rename_columns(tree)
        check_twice(tree)
        qualify_order(tree)
        qualify_joins(tree, columns)
        qualify_having(tree, columns)
        note_columns(tree)
        nodes = list(tree.walk(bfs=False))
        if isinstance(tree, exp.DML):
            strict_truths(tree)
        for node in reversed(nodes):
            rewrite(node)
            store_columns(node)
            if isinstance(node, exp.SetOperation) and not is_recursive(node):
                unify_sides(node)
        count_depth(tree)
        tree = _clean(store(tree, columns))
        constants = [_written(each) for each in tree.find_all(exp.Anonymous) if _is_checked(each)]
        constants += [_written(each) for each in tree.find_all(exp.Subquery) if each.meta.get("read_first")]
        return _written(tree), shown, tuple(constants)
    except RecursionError:
        raise nested_too_deeply() from None
    except SqlglotError as error:
        raise unsupported(str(error)[:80]) from None


def _written(tree: exp.Expr) -> str:
    return tree.sql(dialect=_Target, identify=True, normalize_functions=False, comments=False)


def _is_checked(node: exp.Anonymous) -> bool:
    return is_early(node) or (node.this == "my_FULL_MOMENT" and node.find(exp.Column, exp.Query) is None)


def _one_table(tree: exp.Update | exp.Delete) -> exp.Expr:
    """UPDATE and DELETE with ORDER BY, LIMIT or a join, rewritten to name the rows that a query selects."""
    table = tree.this
    targets = tree.args.get("tables") or []
    joins = table.args.get("joins") or []
    if isinstance(tree, exp.Update) and joins:
        return _update_join(tree, table, joins)
    if not (targets or joins or tree.args.get("order") or tree.args.get("limit")):
        return tree
    if len(targets) > 1:
        raise unsupported("DELETE from several tables")
    target = targets[0].name if targets else table.alias_or_name
    for term in tree.args["order"].expressions if tree.args.get("order") else ():
        if isinstance(term.this, exp.Literal) and term.this.is_int:
            raise StatementError(1054, f"Unknown column '{term.this.name}' in 'order clause'")
    sources = {source.alias_or_name: source.name for source in (table, *(join.this for join in joins))}
    if target not in sources:
        raise StatementError(1109, f"Unknown table '{target}' in MULTI DELETE")
    picked = exp.select(exp.column("rowid", target)).from_(table.copy())
    for part in ("where", "order", "limit"):
        if tree.args.get(part):
            picked.set(part, tree.args[part].copy())
            tree.set(part, None)
    chosen = exp.In(this=exp.column("rowid"), query=exp.Subquery(this=picked))
    tree.set("tables", None)
    tree.set("this", exp.to_table(quote(sources[target]), dialect="mysql") if targets or joins else table)
    tree.set("where", exp.Where(this=chosen))
    return tree


def _update_join(tree: exp.Update, table: exp.Table, joins: list[exp.Join]) -> exp.Expr:
    if any(join.side or join.args.get("using") for join in joins):
        raise unsupported("UPDATE with an outer join")
    first, *rest = [join.this for join in joins]
    conditions = [join.args["on"] for join in joins if join.args.get("on")]
    if tree.args.get("where"):
        conditions.append(tree.args["where"].this)
    for assignment in tree.expressions:
        if assignment.this.table not in ("", table.alias_or_name):
            raise unsupported("UPDATE of several tables")
        assignment.this.set("table", None)
    table.set("joins", None)
    source = exp.From(this=first)
    first.set("joins", [exp.Join(this=other, kind="CROSS") for other in rest] or None)
    tree.set("from_", source)
    tree.set("where", exp.Where(this=exp.and_(*conditions)) if conditions else None)
    return tree


def _clean(tree: exp.Expr) -> exp.Expr:
    if isinstance(tree, exp.Insert):
        conflict = tree.args.get("conflict")
        if conflict is not None and conflict.args.get("duplicate"):
            conflict.set("duplicate", None)
            conflict.set("action", exp.var("DO UPDATE"))
            if isinstance(tree.expression, exp.Select) and not tree.expression.args.get("where"):
                # without WHERE, SQLite takes ON CONFLICT for the ON of a join
                tree.expression.set("where", exp.Where(this=exp.true()))
    if isinstance(tree, exp.Update):
        for assignment in tree.expressions:
            if isinstance(assignment.this, exp.Column):
                assignment.this.set("table", None)
    return tree
