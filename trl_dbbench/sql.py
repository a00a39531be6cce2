"""MySQL's SQL as sqlglot's trees, read in bounded time.

sqlglot's parser tries one reading after another and takes back what it read. Texts such as `FROM a,(FROM a,(...`
double its work at each bracket: 200 characters of them take hours, and an agent may write them.
"""

from __future__ import annotations

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL

MOST_NODES = 5_000
"""Words of a statement, and nodes of its tree with those that the parser gave up: it is read in a tenth of a second."""


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
