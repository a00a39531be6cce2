"""What is asked of a statement's syntax tree: whether there is one, and whether its rows come in an order."""

from __future__ import annotations

import pytest
from sqlglot.errors import ParseError

from trl_dbbench.database.dialect import MYSQL
from trl_dbbench.utils.sql import parse_statements, sorts_rows

SORTED = [
    "SELECT a FROM t ORDER BY a",
    "SELECT a FROM t ORDER BY b DESC, a LIMIT 3 OFFSET 1;",
    "(SELECT a FROM t ORDER BY a)",
    "((SELECT a FROM t ORDER BY a))",
    "(SELECT a FROM t) ORDER BY a",
    "(SELECT a FROM t ORDER BY a) LIMIT 2",
    "SELECT a FROM t UNION SELECT b FROM u ORDER BY 1",
    "SELECT a FROM t UNION SELECT b FROM u UNION ALL SELECT c FROM v ORDER BY 1 LIMIT 5",
    "(SELECT a FROM t) UNION (SELECT b FROM u) ORDER BY 1",
    "((SELECT a FROM t) UNION (SELECT b FROM u) ORDER BY 1)",
    "WITH x AS (SELECT a FROM t) SELECT a FROM x ORDER BY a",
    "WITH x AS (SELECT a FROM t) (SELECT a FROM x ORDER BY a)",
    "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x WHERE n < 3) SELECT n FROM x ORDER BY n DESC",
    "SELECT a, ROW_NUMBER() OVER (ORDER BY b) FROM t ORDER BY a",
    "SELECT a FROM t ORDER BY a -- the last word",
]

IN_NO_ORDER = [
    "SELECT a FROM t",
    "SELECT a FROM t WHERE b IN (SELECT b FROM u ORDER BY b)",
    "SELECT a FROM t WHERE b = (SELECT b FROM u ORDER BY c LIMIT 1)",
    "SELECT a FROM (SELECT a FROM t ORDER BY a) AS x",
    "SELECT (SELECT b FROM u ORDER BY b LIMIT 1) FROM t",
    "WITH x AS (SELECT a FROM t ORDER BY a) SELECT a FROM x",
    "(SELECT a FROM t ORDER BY a LIMIT 1) UNION SELECT b FROM u",
    "SELECT a FROM t UNION (SELECT b FROM u ORDER BY b LIMIT 1)",
    "SELECT GROUP_CONCAT(a ORDER BY b) FROM t",
    "SELECT ROW_NUMBER() OVER (ORDER BY b) FROM t",
    "SELECT 'ORDER BY a' FROM t -- ORDER BY a",
    "SELECT a, COUNT(*) FROM t GROUP BY a ORDER BY NULL",
    "SELECT a FROM t ORDER BY",  # no SQL
    "SELECT a FROM t ORDER BY a; SELECT a FROM t",
    "",
]


@pytest.mark.parametrize("sql", SORTED)
def test_the_outer_query_sorts(sql: str) -> None:
    assert sorts_rows(sql)


@pytest.mark.parametrize("sql", IN_NO_ORDER)
def test_the_outer_query_leaves_the_order_open(sql: str) -> None:
    assert not sorts_rows(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DATE_SUB(a b, INTERVAL 1 YEAR) FROM t",
        "UPDATE t SET a = DATE_ADD(aFROM INTERVAL 11 MONTH)",
    ],
)
def test_texts_over_which_the_parser_stumbles_are_refused(sql: str) -> None:
    with pytest.raises(ParseError):
        parse_statements(sql)
    assert MYSQL.kind_of(sql) == "other"
