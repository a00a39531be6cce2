"""SQL as text and as sqlglot trees, parsed in bounded time.

sqlglot's parser backtracks. In `FROM a,(FROM a,(...`, each bracket doubles its work: 200 characters take
hours, and an agent may write them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Literal, ParamSpec, TypeVar

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError

MAX_STATEMENT_CHARACTERS = 65_536
"""Longest statement sent to a database, in characters; servers and parsers take seconds for longer ones."""

MAX_CACHED_CHARACTERS = 1_000
"""Longest statement whose analysis is cached, in characters; a cache holds thousands of statements."""

P = ParamSpec("P")
T = TypeVar("T")

MAX_NODES = 5_000
"""Most tokens in a statement, and most nodes that the parser builds for it, including abandoned ones. Parsing
up to this bound takes about 0.1 s."""

Lexeme = Literal["gap", "executed", "string", "quoted", "word", "sign"]

_LEXEMES = r"""
    (?P<gap> [ \t\n\r\v\f]++ | \#[^\n]* | --(?=[\x00-\x20]|\Z)[^\n]* | /\*(?!M?!)(?:.*?\*/|.*) )
  | (?P<executed> /\*M?!\d* %s )
  | (?P<string> '(?:[^'\\]|\\.|'')*+'? | "(?:[^"\\]|\\.|"")*+"? )
  | (?P<quoted> `(?:[^`]|``)*+`? )
  | (?P<word> [0-9A-Za-z_$\x80-\U0010ffff]++ )
  | (?P<sign> . )
"""
_LEXEME = re.compile(_LEXEMES % "", re.VERBOSE | re.DOTALL)
_LEXEME_IN_COMMENT = re.compile(_LEXEMES % r"| \*/", re.VERBOSE | re.DOTALL)

# sqlglot warns about everything it cannot parse; an agent's mistakes do not belong in the log
logging.getLogger("sqlglot").setLevel(logging.ERROR)


def cached(function: Callable[P, T]) -> Callable[P, T]:
    """Cache a function whose first argument is a statement, except for statements over the length limit."""
    remembered: Callable[P, T] = lru_cache(maxsize=4096)(function)  # type: ignore[assignment]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return (function if len(str(args[0])) > MAX_CACHED_CHARACTERS else remembered)(*args, **kwargs)

    return call


def parse_statements(sql: str, dialect: str = "mysql") -> list[exp.Expr | None]:
    """Parse the statements in a text; a statement that is only a comment becomes `None`.

    Raises:
        SqlglotError: if the text cannot be parsed.
        RecursionError: if it is too long or nested too deeply.
    """
    read = Dialect.get_or_raise(dialect)
    tokens = read.tokenize(sql)
    if len(tokens) > MAX_NODES:
        raise RecursionError(f"the statement has more than {MAX_NODES} parts")
    try:
        return read.parser(max_nodes=MAX_NODES).parse(tokens, sql)
    except (AttributeError, TypeError, LookupError, ValueError, AssertionError) as error:
        # sqlglot's parser continues after errors and then fails on missing parts
        raise ParseError(f"the parser stumbled: {error!r}") from error


def lexemes(sql: str) -> Iterator[tuple[Lexeme, str]]:
    """Split a statement as MySQL and MariaDB do; yield the kind and text of each part.

    The texts add up to the statement. `gap` is white space or a comment. `executed` is the start or end of a
    comment that some servers execute (`/*!80000 ... */`, `/*M! ... */`). `string` and `quoted` include their
    quotes. sqlglot's tokenizer cannot be used: it takes `{# ... #}` for one comment, where servers see a
    comment up to the end of the line.
    """
    position = 0
    in_comment = False
    while match := (_LEXEME_IN_COMMENT if in_comment else _LEXEME).match(sql, position):
        kind: Lexeme = match.lastgroup  # type: ignore[assignment]
        if kind == "executed":
            in_comment = match[0] != "*/"
        position = match.end()
        yield kind, match[0]


def quote(name: str) -> str:
    """Quote a name as an identifier for MySQL and SQLite."""
    return "`" + name.replace("`", "``") + "`"


def only_statement(sql: str, dialect: str = "mysql") -> exp.Expr | None:
    """Return the only statement in a text; `None` if there is none, several, or one that cannot be parsed."""
    try:
        statements = [each for each in parse_statements(sql, dialect) if each is not None]
    except Exception:  # ParseError, TokenError, RecursionError, ...: the text may be anything
        return None
    return statements[0] if len(statements) == 1 else None


def normal_form(sql: str) -> str:
    """Return a statement in uniform layout and case, without ASC, output names and a lone table's alias.

    Statements with equal normal forms do the same. Text that cannot be parsed only loses its layout.
    """
    tree = only_statement(sql)
    if tree is None:
        return " ".join(sql.split())
    tree = tree.copy()
    named = [each for each in tree.expressions if isinstance(each, exp.Alias)]
    used = {column.name for column in tree.find_all(exp.Column)}
    if isinstance(tree, exp.Select):
        for each in named:
            if each.alias not in used:  # nothing else refers to this name
                each.replace(each.this)
    tables = list(tree.find_all(exp.Table))
    if len(tables) == 1 and not tree.find(exp.Subquery):
        tables[0].set("alias", None)
        for column in tree.find_all(exp.Column):
            column.set("table", None)
    return tree.sql(dialect="mysql", comments=False)


def sorts_rows(sql: str) -> bool:
    """Return whether a query fixes the order of its rows.

    Only an ORDER BY of the outermost query does: inside or after parentheses around it, on a whole UNION, or
    after CTEs. An ORDER BY in a subquery, a CTE, a branch of a UNION, a window or GROUP_CONCAT does not, nor
    does `ORDER BY NULL`.
    """
    query = only_statement(sql) or only_statement(sql, "sqlite")
    while query is not None:
        order = query.args.get("order")
        if order is not None:
            return not all(isinstance(term.this, exp.Null) for term in order.expressions)
        query = query.this if isinstance(query, exp.Subquery) else None
    return False
