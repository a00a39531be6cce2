"""Reads one statement of MySQL's SQL into sqlglot's tree."""

from __future__ import annotations

import logging
import re
from functools import lru_cache

import sqlglot
import sqlglot.errors
from sqlglot import exp
from sqlglot.parsers.mysql import MySQLParser

from ..sql import BoundedMySQL
from .mysql_values import FunctionError

# What it cannot parse it warns of; an agent's typing errors are no news for the log.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_KEPT_FUNCTIONS: tuple[str, ...] = (
    *("COUNT", "SUM", "AVG", "MIN", "MAX", "COALESCE", "ROW_NUMBER", "RANK", "DENSE_RANK", "PERCENT_RANK"),
    *("CUME_DIST", "NTILE", "LAG", "LEAD", "FIRST_VALUE", "LAST_VALUE", "NTH_VALUE"),
)
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


class _Source(BoundedMySQL):
    """MySQL with plain function calls: sqlglot's own nodes for them have lost what MySQL means by them."""

    class Parser(BoundedMySQL.Parser):
        FUNCTIONS = {name: MySQLParser.FUNCTIONS[name] for name in _KEPT_FUNCTIONS}  # noqa: RUF012
        FUNCTION_PARSERS = {name: MySQLParser.FUNCTION_PARSERS[name] for name in _KEPT_PARSERS}  # noqa: RUF012


def parse(sql: str) -> exp.Expr:
    """The one statement in the text.

    Raises:
        FunctionError: there is none or more than one, or it cannot be read.
    """
    replaced = re.sub(
        r"\A\s*REPLACE\s+(?:LOW_PRIORITY\s+|DELAYED\s+)?(?:INTO\s+)?(?!\()", "INSERT INTO ", sql, flags=re.I
    )
    try:
        trees = [tree for tree in sqlglot.parse(replaced, read=_Source) if tree is not None]
    except sqlglot.errors.ParseError as error:
        first = error.errors[0] if error.errors else {}
        near = f"{first.get('highlight') or ''}{first.get('end_context') or ''}"
        raise syntax_error(near, first.get("line") or 1) from None
    except sqlglot.errors.SqlglotError:
        raise syntax_error(sql) from None
    except RecursionError:
        raise FunctionError(1436, "Thread stack overrun: the statement is nested too deeply") from None
    trees = [tree for tree in trees if not isinstance(tree, exp.Semicolon)]
    if not trees:
        raise FunctionError(1065, "Query was empty")
    if len(trees) > 1:
        raise syntax_error(trees[1].sql(dialect="mysql"))
    tree = trees[0]
    if replaced is not sql and replaced != sql and isinstance(tree, exp.Insert):
        tree.set("alternative", "REPLACE")
    return tree


def syntax_error(near: str, line: int = 1) -> FunctionError:
    return FunctionError(
        1064,
        "You have an error in your SQL syntax; check the manual that corresponds to your MySQL server version for "
        f"the right syntax to use near '{near[:80]}' at line {line}",
    )


def unsupported(what: str) -> FunctionError:
    return FunctionError(1235, f"This version of MySQL doesn't yet support '{what}' (embedded database)")


# What a statement does to its session.

_STATEFUL_FUNCTIONS = frozenset(
    {"GET_LOCK", "RELEASE_LOCK", "RELEASE_ALL_LOCKS", "LAST_INSERT_ID", "FOUND_ROWS"}
)
_PLAIN = (exp.Select, exp.SetOperation, exp.Insert, exp.Update, exp.Delete, exp.Show, exp.Describe)


_READ = re.compile(
    r"\s*\(*\s*(?:SELECT|WITH|DESC|DESCRIBE|EXPLAIN|SHOW\s+(?:FULL\s+)?(?:TABLES|COLUMNS|FIELDS|CREATE\s+TABLE))\b",
    re.IGNORECASE,
)
_NOT_ONLY_READ = re.compile(
    r"""@ | /\* | -- | \# | ;\s*\S                # variables; comments, which could part the words below
    | \bINTO\b | \bFOR\s+(?:UPDATE|SHARE) | \bLOCK\s+IN
    | dbb_ | _schema\b                            # other databases' names and whoever lists them
    | \b(?:DATABASE|SCHEMA|CURRENT_USER|CURRENT_ROLE)\b
    | \b(?:USER|SESSION_USER|SYSTEM_USER|CONNECTION_ID|LAST_INSERT_ID|FOUND_ROWS|ROW_COUNT|IS_FREE_LOCK
         |IS_USED_LOCK|GET_LOCK|RELEASE_LOCK|RELEASE_ALL_LOCKS)\s*\(""",
    re.IGNORECASE | re.VERBOSE,
)


def only_reads(sql: str) -> bool:
    """Whether a statement does no more than read its tables, and tells nothing of the session it runs in.

    It is decided on the words: a text that quotes one of them counts as more.
    """
    return bool(_READ.match(sql)) and not _NOT_ONLY_READ.search(sql)


@lru_cache(maxsize=4096)
def kind_of(sql: str) -> str:
    """`plain` for statements that leave the session as it was, `kill`, or `other`, also when in doubt."""
    if "/*!" in sql:  # the server executes what stands in such a comment
        return "other"
    try:
        parsed = sqlglot.parse(sql, read=BoundedMySQL)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return "other"
    if any(isinstance(tree, exp.Kill) for tree in parsed):
        return "kill"
    tree = parsed[0] if len(parsed) == 1 else None
    if not isinstance(tree, _PLAIN):
        return "other"
    for node in tree.find_all(exp.Parameter, exp.SessionParameter, exp.Into, exp.Anonymous):
        if not isinstance(node, exp.Anonymous) or str(node.this).upper() in _STATEFUL_FUNCTIONS:
            return "other"
    return "plain"
