"""MySQL's SQL as sqlglot's trees, read in bounded time.

sqlglot's parser tries one reading after another and takes back what it read. Texts such as
`FROM a,(FROM a,(...` double its work at each bracket: 200 characters of them take hours, and an agent may
write them.
"""

from __future__ import annotations

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL

MOST_NODES = 5_000
"""Words of a statement, and nodes of its tree with those that the parser gave up: read in 0.1 s."""


def parse_statements(sql: str, dialect: type[MySQL] = MySQL) -> list[exp.Expr | None]:
    """The statements in a text, `None` for one that is only a comment.

    Raises:
        SqlglotError: it cannot be read.
        RecursionError: it is too long or nested too deeply.
    """
    read = dialect()
    tokens = read.tokenize(sql)
    if len(tokens) > MOST_NODES:
        raise RecursionError(f"the statement has more than {MOST_NODES} parts")
    return read.parser(max_nodes=MOST_NODES).parse(tokens, sql)


def only_statement(sql: str) -> exp.Expr | None:
    """The one statement in a text; `None` where there are none or several, or it cannot be read."""
    try:
        statements = [statement for statement in parse_statements(sql) if statement is not None]
    except Exception:  # ParseError, TokenError, RecursionError, ...: the text may be anything
        return None
    return statements[0] if len(statements) == 1 else None


def sorts_rows(sql: str) -> bool:
    """Whether a query says in which order its rows come.

    Only an ORDER BY of the outermost query does so: inside parentheses around it or after them, of a whole
    UNION, after its CTEs. One in a subquery, a CTE, a branch of a UNION, a window or GROUP_CONCAT leaves the
    order of the result open, and so does `ORDER BY NULL`.
    """
    query = only_statement(sql)
    while query is not None:
        order = query.args.get("order")
        if order is not None:
            return not all(isinstance(term.this, exp.Null) for term in order.expressions)
        query = query.this if isinstance(query, exp.Subquery) else None
    return False
