"""Tokenizing a MySQL statement and parsing it into sqlglot's tree, in bounded time."""

from __future__ import annotations

import logging
import math
import re
from types import FunctionType
from typing import Any

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parsers.mysql import MySQLParser
from sqlglot.tokens import Token, TokenType

from trl_dbbench.mysqlite.errors import StatementError, fail_if, nested_too_deeply, syntax_error
from trl_dbbench.mysqlite.kinds import words

MAX_STATEMENT_CHARACTERS = 65_536
"""Longest statement, in characters."""

MAX_NODES = 5_000
"""Most tokens of a statement, and most nodes that the parser may build, discarded ones included: about 0.1 s.
It backtracks: in `FROM a,(FROM a,(...`, each further bracket doubles its work."""

if not isinstance(MySQLParser.parse, FunctionType):
    raise ImportError("sqlglotc, sqlglot's compiled form, cannot be extended: pip uninstall sqlglotc")

# sqlglot warns about everything that it cannot parse
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_KEPT_FUNCTIONS = words(
    "COUNT SUM AVG MIN MAX COALESCE ROW_NUMBER RANK DENSE_RANK PERCENT_RANK CUME_DIST NTILE LAG LEAD "
    "FIRST_VALUE LAST_VALUE NTH_VALUE"
)
_KEPT_PARSERS = words("CAST CONVERT GROUP_CONCAT TRIM EXTRACT SUBSTRING SUBSTR POSITION CHAR VALUES")
OF_JOINS = ("method", "side", "kind", "on", "using")
"""Arguments of sqlglot's Join, all of them empty for a join by comma."""


class _Source(MySQL):
    """sqlglot's MySQL dialect, but with most functions as plain calls: its own nodes lose MySQL's meaning."""

    class Tokenizer(MySQL.Tokenizer):
        KEYWORDS = {**MySQL.Tokenizer.KEYWORDS, "REAL": TokenType.DOUBLE}

    class Parser(MySQLParser):
        FUNCTIONS = {name: MySQLParser.FUNCTIONS[name] for name in _KEPT_FUNCTIONS}
        FUNCTION_PARSERS = {name: MySQLParser.FUNCTION_PARSERS[name] for name in _KEPT_PARSERS}

        def _parse_join(self, *args: Any, **kwargs: Any) -> exp.Join | None:
            """Mark JOIN without a condition as INNER: unlike a comma, it joins everything before it."""
            comma = self._curr is not None and self._curr.token_type == TokenType.COMMA
            join = super()._parse_join(*args, **kwargs)
            if join is not None and not comma and not any(map(join.args.get, OF_JOINS)):
                join.set("kind", "INNER")
            return join


def tokenize(sql: str) -> tuple[str, list[Token]]:
    """Return a statement, REPLACE turned into INSERT, and its tokens. An unclosed quote is a last UNKNOWN."""
    if len(sql) > MAX_STATEMENT_CHARACTERS:
        raise StatementError(
            1153, f"Got a packet bigger than 'max_allowed_packet' bytes ({len(sql)} characters)"
        )
    try:
        sql.encode()
        text = _REPLACE.sub("INSERT INTO ", sql)
        tokens = _Source().tokenize(text + " ")  # without the space, a quote at the end fails
    except UnicodeEncodeError as error:
        wrong = sql[error.start : error.end]
        raise StatementError(1300, f"Invalid utf8mb4 character string: {wrong!a}") from None
    except SqlglotError as error:
        unclosed = _UNCLOSED.match(str(error.__cause__))
        if unclosed is None:
            raise syntax_error(sql) from None
        at = int(unclosed[1])
        tokens = [*_Source().tokenize(text[:at] + " "), Token(TokenType.UNKNOWN, text[at], start=at)]
    if len(tokens) > MAX_NODES:
        raise nested_too_deeply()
    return text, tokens


def parse(sql: str, text: str, tokens: list[Token]) -> exp.Expr:
    """Return the tree of the single statement in `sql`. `text` and `tokens` are what `tokenize` returned."""
    for written in (token.text for token in tokens if token.token_type == TokenType.NUMBER):
        if _EXPONENT.fullmatch(written) and math.isinf(float(written)):
            raise StatementError(1367, f"Illegal double '{written}' value found during parsing")
    try:
        found = _Source().parser(max_nodes=MAX_NODES).parse(tokens, text)
    except ParseError as error:
        first: dict[str, Any] = error.errors[0] if error.errors else {"highlight": sql}
        near = f"{first.get('highlight') or ''}{first.get('end_context') or ''}"
        raise syntax_error(near, line=first.get("line") or 1) from None
    except RecursionError:
        raise nested_too_deeply() from None
    except (SqlglotError, AttributeError, TypeError, LookupError, ValueError, AssertionError):
        raise syntax_error(sql) from None  # the parser stumbles over text after an error of MySQL's
    trees = [tree for tree in found if tree is not None and not isinstance(tree, exp.Semicolon)]
    fail_if(not trees, 1065, "Query was empty")
    if len(trees) > 1:
        raise syntax_error(text_of(trees[1]))
    tree = _joined(trees[0]) if _TEXTS.search(sql) else trees[0]
    if isinstance(tree, exp.Insert):
        if text != sql:
            tree.set("alternative", "REPLACE")
        elif tree.args.get("alternative"):
            raise syntax_error(f"OR {tree.args['alternative']}")
    return tree


def _joined(tree: exp.Expr) -> exp.Expr:
    """Merge adjacent string literals, which are one text."""
    for node in list(tree.find_all(exp.Concat)):
        texts = node.expressions
        if all(isinstance(each, exp.Literal) and each.is_string for each in texts):
            node.replace(exp.Literal.string("".join(each.name for each in texts)))
    return tree


_EXPONENT = re.compile(r"[0-9.]+e[+]?[0-9]+", re.IGNORECASE)
_TEXTS = re.compile(r"""['"]\s*['"]""")
_UNCLOSED = re.compile(r"Missing .* from \d+:(\d+)")
_REPLACE = re.compile(r"\A\s*REPLACE\s+(?:LOW_PRIORITY\s+|DELAYED\s+)?(?:INTO\s+)?(?!\()", re.IGNORECASE)


def text_of(tree: exp.Expr) -> str:
    """Return a part of a statement in MySQL's SQL, or an empty text if sqlglot cannot write it."""
    try:
        return tree.sql(dialect="mysql")
    except (SqlglotError, AttributeError, LookupError, TypeError, ValueError):
        return ""


def quote(name: str) -> str:
    """Return a name in backticks, with its own backticks escaped."""
    return "`" + name.replace("`", "``") + "`"
