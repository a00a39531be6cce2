"""Reads one statement of MySQL's SQL into sqlglot's tree."""

from __future__ import annotations

import logging
import re
from functools import lru_cache

import sqlglot
import sqlglot.errors
from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.parsers.mysql import MySQLParser

from trl_dbbench.database.sandbox import STATEMENT_CHARACTERS
from trl_dbbench.database.sqlite.values import FunctionError
from trl_dbbench.sql import parse_statements

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


REMEMBERED_TEXT = 1_000
"""Characters of a statement of which what was found out is kept for the next time: thousands are."""


class _Source(MySQL):
    """MySQL with plain function calls: sqlglot's own nodes for them have lost what MySQL means by them."""

    class Parser(MySQLParser):
        FUNCTIONS = {name: MySQLParser.FUNCTIONS[name] for name in _KEPT_FUNCTIONS}  # noqa: RUF012
        FUNCTION_PARSERS = {name: MySQLParser.FUNCTION_PARSERS[name] for name in _KEPT_PARSERS}  # noqa: RUF012


def parse(sql: str) -> exp.Expr:
    """The one statement in the text.

    Raises:
        FunctionError: there is none or more than one, or it cannot be read.
    """
    if len(sql) > STATEMENT_CHARACTERS:
        raise FunctionError(
            1153, f"Got a packet bigger than 'max_allowed_packet' bytes ({len(sql)} characters)"
        )
    replaced = re.sub(
        r"\A\s*REPLACE\s+(?:LOW_PRIORITY\s+|DELAYED\s+)?(?:INTO\s+)?(?!\()", "INSERT INTO ", sql, flags=re.I
    )
    try:
        trees = [tree for tree in parse_statements(replaced, _Source) if tree is not None]
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


# KILL could only end the agent's own connection, which would look like a failure of the server; a prepared XA
# transaction holds its tables for good; files in other folders stay behind
_DENIED = re.compile(
    r"""(?:\s | /\*M?!\d* | /\*.*?\*/ | (?:\#|--\s)[^\n]*)*+  # comments, also one that is executed
    (?:KILL\b | XA\b)
    | .*? \b(?:XA\s+(?:START|BEGIN) | (?:DATA|INDEX)\s+DIRECTORY)\b""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_READ = re.compile(
    r"[\s(]*+(?:SELECT|WITH|DESC|DESCRIBE|EXPLAIN|SHOW\s+(?:FULL\s+)?(?:TABLES|COLUMNS|FIELDS|CREATE\s+TABLE))\b",
    re.IGNORECASE,
)
_NOT_ONLY_READ = re.compile(
    r"""@ | /\* | -- | \# | ;\s*\S                # variables; comments, which could part the words below
    | \bINTO\b | \bFOR\s+(?:UPDATE|SHARE) | \bLOCK\s+IN
    | dbb_ | _schema\b                            # other databases' names and whoever lists them
    | \b(?:DATABASE|SCHEMA|CURRENT_USER|CURRENT_ROLE)\b
    | \b(?:USER|SESSION_USER|SYSTEM_USER|CONNECTION_ID|LAST_INSERT_ID|FOUND_ROWS|ROW_COUNT|IS_FREE_LOCK
         |IS_USED_LOCK|GET_LOCK|RELEASE_LOCK|RELEASE_ALL_LOCKS)`?\s*\(""",
    re.IGNORECASE | re.VERBOSE,
)


def only_reads(sql: str) -> bool:
    """Whether a statement does no more than read its tables, and tells nothing of the session it runs in.

    It is decided on the words: a text that quotes one of them counts as more, and so does a very long one.
    """
    return len(sql) <= STATEMENT_CHARACTERS and bool(_READ.match(sql)) and not _NOT_ONLY_READ.search(sql)


def kind_of(sql: str) -> str:
    """What a statement leaves behind.

    - `plain`: rows in tables at most;
    - `tables`: other tables, views or indexes;
    - `denied`: it must not run;
    - `other`: also something in the session, or code, or in doubt.
    """
    if _DENIED.match(sql):
        return "denied"
    if "/*!" in sql or len(sql) > STATEMENT_CHARACTERS:  # the server executes what stands in such a comment
        return "other"
    return _kind_of(sql) if len(sql) > REMEMBERED_TEXT else _remembered_kind(sql)


def _kind_of(sql: str) -> str:
    try:
        parsed = parse_statements(sql)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return "other"
    tree = parsed[0] if len(parsed) == 1 else None
    makes = isinstance(tree, exp.Create | exp.Drop | exp.Alter) and tree.kind in ("TABLE", "VIEW", "INDEX")
    kind = "tables" if makes or isinstance(tree, exp.TruncateTable) else "plain"
    if tree is None or not (kind == "tables" or isinstance(tree, _PLAIN)):
        return "other"
    if tree.find(exp.TemporaryProperty) or tree.args.get("temporary"):
        return "other"
    for node in tree.find_all(exp.Parameter, exp.SessionParameter, exp.Into, exp.Anonymous):
        if not isinstance(node, exp.Anonymous) or node.name.upper() in _STATEFUL_FUNCTIONS:
            return "other"
    return kind


_remembered_kind = lru_cache(maxsize=4096)(_kind_of)
