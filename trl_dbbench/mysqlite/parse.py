"""Parses one statement of MySQL's SQL into sqlglot's tree."""

from __future__ import annotations

import re
from typing import Any

import sqlglot.errors
from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.parsers.mysql import MySQLParser
from sqlglot.tokens import TokenType

from trl_dbbench.mysqlite.values import StatementError
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS, parse_statements

_KEPT_FUNCTIONS: tuple[str, ...] = (
    *("COUNT", "SUM", "AVG", "MIN", "MAX", "COALESCE", "ROW_NUMBER", "RANK", "DENSE_RANK", "PERCENT_RANK"),
    *("CUME_DIST", "NTILE", "LAG", "LEAD", "FIRST_VALUE", "LAST_VALUE", "NTH_VALUE"),
)
_OF_JOINS = ("method", "side", "kind", "on", "using")
_KEPT_PARSERS = (
    "CAST",
    "CONVERT",
    "GROUP_CONCAT",
    "TRIM",
    "EXTRACT",
    "SUBSTRING",
    "SUBSTR",
    "POSITION",
    "CHAR",
    "VALUES",
)


class _Source(MySQL):
    """MySQL with plain function calls: sqlglot's own nodes for them lose what MySQL means by them."""

    class Tokenizer(MySQL.Tokenizer):
        KEYWORDS = {**MySQL.Tokenizer.KEYWORDS, "REAL": TokenType.DOUBLE}  # noqa: RUF012

    class Parser(MySQLParser):
        FUNCTIONS = {name: MySQLParser.FUNCTIONS[name] for name in _KEPT_FUNCTIONS}  # noqa: RUF012
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: MySQLParser.FUNCTION_PARSERS[name] for name in _KEPT_PARSERS
        }

        def _parse_join(self, *args: Any, **kwargs: Any) -> exp.Join | None:
            """Tells JOIN without a condition, which joins all that comes before it, from a comma."""
            comma = self._curr is not None and self._curr.token_type == TokenType.COMMA
            join = super()._parse_join(*args, **kwargs)
            if join is not None and not comma and not any(join.args.get(key) for key in _OF_JOINS):
                join.set("kind", "INNER")
            return join


def parse(sql: str) -> exp.Expr:
    """The single statement in the text.

    Raises:
        StatementError: there is none or more than one, or it cannot be parsed.
    """
    if len(sql) > MAX_STATEMENT_CHARACTERS:
        raise StatementError(
            1153, f"Got a packet bigger than 'max_allowed_packet' bytes ({len(sql)} characters)"
        )
    replaced = as_insert(sql)
    try:
        trees = [tree for tree in parse_statements(replaced, _Source) if tree is not None]
    except sqlglot.errors.ParseError as error:
        if _TWICE.search(sql):
            raise unsupported("DISTINCT DISTINCT") from None
        if not error.errors:
            raise syntax_error(sql) from None
        first = error.errors[0]
        near = f"{first.get('highlight') or ''}{first.get('end_context') or ''}"
        raise syntax_error(near, first.get("line") or 1) from None
    except sqlglot.errors.SqlglotError:
        raise syntax_error(sql) from None
    except RecursionError:
        raise nested_too_deeply() from None
    trees = [tree for tree in trees if not isinstance(tree, exp.Semicolon)]
    if not trees:
        raise StatementError(1065, "Query was empty")
    if len(trees) > 1:
        raise syntax_error(text_of(trees[1]))
    tree = _joined(trees[0]) if _TEXTS.search(sql) else trees[0]
    if replaced == sql and isinstance(tree, exp.Insert) and tree.args.get("alternative"):
        raise syntax_error(f"OR {tree.args['alternative']}")
    if replaced != sql and isinstance(tree, exp.Insert):
        tree.set("alternative", "REPLACE")
    return tree


def _joined(tree: exp.Expr) -> exp.Expr:
    """Texts side by side, as the one that they are."""
    for node in list(tree.find_all(exp.Concat)):
        texts = node.expressions
        if all(isinstance(each, exp.Literal) and each.is_string for each in texts):
            node.replace(exp.Literal.string("".join(each.name for each in texts)))
    return tree


_TEXTS = re.compile(r"""['"]\s*['"]""")
_TWICE = re.compile(r"\bDISTINCT\s+DISTINCT\b", re.IGNORECASE)
_REPLACE = re.compile(r"\A\s*REPLACE\s+(?:LOW_PRIORITY\s+|DELAYED\s+)?(?:INTO\s+)?(?!\()", re.IGNORECASE)


def as_insert(sql: str) -> str:
    """A statement with INSERT for REPLACE, which the parser does not know as one."""
    return _REPLACE.sub("INSERT INTO ", sql)


def text_of(tree: exp.Expr) -> str:
    """A part of a statement in MySQL's SQL.

    It is empty where the parser made something of an odd statement that cannot be written.
    """
    try:
        return tree.sql(dialect="mysql")
    except (sqlglot.errors.SqlglotError, AttributeError, LookupError, TypeError, ValueError):
        return ""


def syntax_error(near: str, line: int = 1) -> StatementError:
    return StatementError(
        1064,
        "You have an error in your SQL syntax; check the manual that corresponds to your MySQL server "
        f"version for the right syntax to use near '{near[:80]}' at line {line}",
    )


def unsupported(what: str) -> StatementError:
    return StatementError(1235, f"This version of MySQL doesn't yet support '{what}' (embedded database)")


def nested_too_deeply() -> StatementError:
    return StatementError(1436, "Thread stack overrun: the statement is nested too deeply")
