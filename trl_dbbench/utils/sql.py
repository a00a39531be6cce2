"""SQL as text and as sqlglot's trees, parsed in bounded time.

sqlglot's parser tries one interpretation after another and backtracks. In texts such as `FROM a,(FROM a,(...`
each further bracket doubles its work: 200 characters of that take hours, and an agent may write them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Literal, TypeVar

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ParseError

MAX_STATEMENT_CHARACTERS = 65_536
"""Longer statements are refused before they are sent: servers and parsers take seconds to read what a model
repeats."""

MAX_CACHED_CHARACTERS = 1_000
"""What was found out about a statement is cached only up to this length: the caches hold thousands of
statements."""

T = TypeVar("T")

_DIALECTS: dict[str, type[Dialect]] = {"mysql": MySQL, "sqlite": SQLite}

MAX_NODES = 5_000
"""Tokens of a statement, and nodes that the parser may build, abandoned ones included. That bounds parsing to
about a tenth of a second."""

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

# sqlglot warns about everything that it cannot parse; an agent's mistakes do not belong in the log
logging.getLogger("sqlglot").setLevel(logging.ERROR)


def cached(function: Callable[[str], T]) -> Callable[[str], T]:
    """The function of a statement, which remembers what it found out about those of usual length."""
    remembered = lru_cache(maxsize=4096)(function)

    @wraps(function)
    def call(sql: str) -> T:
        return function(sql) if len(sql) > MAX_CACHED_CHARACTERS else remembered(sql)

    return call


def parse_statements(sql: str, dialect: type[Dialect] = MySQL) -> list[exp.Expr | None]:
    """The statements in a text, `None` for one that is only a comment.

    Raises:
        SqlglotError: the text cannot be parsed.
        RecursionError: it is too long or nested too deeply.
    """
    read = dialect()
    tokens = read.tokenize(sql)
    if len(tokens) > MAX_NODES:
        raise RecursionError(f"the statement has more than {MAX_NODES} parts")
    try:
        return read.parser(max_nodes=MAX_NODES).parse(tokens, sql)
    except (AttributeError, TypeError, LookupError, ValueError, AssertionError) as error:
        # sqlglot's parser goes on where a database has given up, and stumbles over what is not there
        raise ParseError(f"the parser stumbled: {error!r}") from error


def lexemes(sql: str) -> Iterator[tuple[Lexeme, str]]:
    """The parts of a statement as MySQL and MariaDB read it, each with its kind; together they are the text.

    `gap`: white space or a comment. `executed`: the beginning or the end of a comment whose text a server may
    execute, by its product and version (`/*!80000 ... */`, `/*M! ... */`). `string`, `quoted`: with their
    quotes. sqlglot's tokenizer reads some comments differently: it knows `{# ... #}`, of which servers take
    only the rest of the line as a comment.
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
    """The name as MySQL and SQLite read it wherever an identifier may stand."""
    return "`" + name.replace("`", "``") + "`"


def only_statement(sql: str, dialect: str = "mysql") -> exp.Expr | None:
    """The one statement in a text; `None` where there are none or several, or it cannot be read.

    Args:
        dialect: `"mysql"` or `"sqlite"`.
    """
    try:
        statements = [each for each in parse_statements(sql, _DIALECTS[dialect]) if each is not None]
    except Exception:  # ParseError, TokenError, RecursionError, ...: the text may be anything
        return None
    return statements[0] if len(statements) == 1 else None


def normal_form(sql: str) -> str:
    """A statement without what it could do without: layout, the case of keywords, ASC, names for its output
    columns, and an alias of its only table. Two statements of one form do the same.

    What cannot be parsed keeps all but its layout.
    """
    tree = only_statement(sql)
    if tree is None:
        return " ".join(sql.split())
    tree = tree.copy()
    named = [each for each in tree.expressions if isinstance(each, exp.Alias)]
    used = {column.name for column in tree.find_all(exp.Column)}
    if isinstance(tree, exp.Select):
        for each in named:
            if each.alias not in used:  # nothing else goes by this name
                each.replace(each.this)
    tables = list(tree.find_all(exp.Table))
    if len(tables) == 1 and not tree.find(exp.Subquery):
        tables[0].set("alias", None)
        for column in tree.find_all(exp.Column):
            column.set("table", None)
    return tree.sql(dialect="mysql", comments=False)


def sorts_rows(sql: str) -> bool:
    """Whether a query says in which order its rows come.

    Only an ORDER BY of the outermost query does so: inside parentheses around it or after them, of a whole
    UNION, after its CTEs. One in a subquery, a CTE, a branch of a UNION, a window or GROUP_CONCAT leaves the
    order of the result open, and so does `ORDER BY NULL`.
    """
    query = only_statement(sql) or only_statement(sql, "sqlite")
    while query is not None:
        order = query.args.get("order")
        if order is not None:
            return not all(isinstance(term.this, exp.Null) for term in order.expressions)
        query = query.this if isinstance(query, exp.Subquery) else None
    return False
