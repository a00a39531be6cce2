"""The specification of the 22 skills: statements, and what is read off them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_dbbench.tasks.skills import SKILLS, operation_of, skills_of

DATA = Path(__file__).parents[3] / "shared" / "data"

CASES = {
    # the statement's own kind
    "SELECT a FROM t": "select",
    "(SELECT a FROM t)": "select",
    "SELECT a FROM t UNION SELECT b FROM u": "select",
    "INSERT INTO t VALUES (1, 'x')": "insert",
    "INSERT INTO t SELECT * FROM u": "insert",
    "UPDATE t SET a = 1": "update",
    "DELETE FROM t": "delete",
    # WHERE
    "SELECT a FROM t WHERE b = 1": "select where_single_condition",
    "SELECT a FROM t WHERE (b BETWEEN 1 AND 5)": "select where_single_condition",
    "SELECT a FROM t WHERE NOT (b IN (1, 2))": "select where_single_condition",
    "UPDATE t SET a = 1 WHERE b = 2": "update where_single_condition",
    "DELETE FROM t WHERE b LIKE '%x%'": "delete where_single_condition",
    "SELECT a FROM t WHERE b = 1 AND c > 2": "select where_multiple_conditions",
    "SELECT a FROM t WHERE b = 1 && c > 2 AND d IS NULL": "select where_multiple_conditions",
    "SELECT a FROM t WHERE (b = 1 OR c > 2) OR (d = 3)": "select where_multiple_conditions",
    "SELECT a FROM t WHERE NOT b = 1 AND NOT (c = 2)": "select where_multiple_conditions",
    "SELECT a FROM t WHERE (b = 1 OR c = 2) AND d = 3": "select where_nested_conditions",
    "SELECT a FROM t WHERE b = 1 OR c = 2 AND d = 3": "select where_nested_conditions",
    "SELECT a FROM t WHERE NOT (b = 1 AND c = 2)": "select where_nested_conditions",
    "SELECT a FROM t JOIN u ON t.i = u.i AND t.j = u.j": "select",
    # ORDER BY
    "SELECT a FROM t ORDER BY a": "select order_by_single_column",
    "SELECT a FROM t ORDER BY a, b ASC": "select order_by_multiple_columns_same_direction",
    "SELECT a FROM t ORDER BY a DESC, b DESC": "select order_by_multiple_columns_same_direction",
    "SELECT a FROM t ORDER BY a DESC, b": "select order_by_multiple_columns_different_directions",
    "SELECT a FROM t UNION SELECT b FROM u ORDER BY 1": "select order_by_single_column",
    "SELECT GROUP_CONCAT(a ORDER BY b) FROM t": "select",
    "SELECT ROW_NUMBER() OVER (ORDER BY b) FROM t": "select",
    # LIMIT
    "SELECT a FROM t LIMIT 5": "select limit_only",
    "SELECT a FROM t LIMIT 10 OFFSET 5": "select limit_and_offset",
    "SELECT a FROM t LIMIT 5, 10": "select limit_and_offset",
    "DELETE FROM t ORDER BY a LIMIT 1": "delete order_by_single_column limit_only",
    # aliases
    "SELECT a AS x FROM t": "select column_alias",
    "SELECT COUNT(*) n FROM t": "select column_alias",
    "SELECT x.a FROM t AS x": "select table_alias",
    "UPDATE t x SET x.a = 1": "update table_alias",
    # GROUP BY
    "SELECT a, COUNT(*) FROM t GROUP BY a": "select group_by_single_column",
    "SELECT a, b, COUNT(*) FROM t GROUP BY a, b": "select group_by_multiple_columns",
    # HAVING
    "SELECT a FROM t GROUP BY a HAVING COUNT(*) > 2": (
        "select group_by_single_column having_single_condition_with_aggregate"
    ),
    "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING s > 2": (
        "select column_alias group_by_single_column having_single_condition_with_aggregate"
    ),
    "SELECT a FROM t GROUP BY a HAVING SUM(b * c) > 2": (
        "select group_by_single_column having_single_condition_with_aggregate"
    ),
    "SELECT a FROM t GROUP BY a HAVING COUNT(*) > 2 AND a <> 'x'": (
        "select group_by_single_column having_multiple_conditions_with_aggregate"
    ),
    "SELECT a FROM t GROUP BY a HAVING MAX(b) - MIN(b) > 2": (
        "select group_by_single_column having_aggregate_calculation"
    ),
    "SELECT a FROM t GROUP BY a HAVING a > 'm' AND SUM(b) / COUNT(*) > 2": (
        "select group_by_single_column having_aggregate_calculation"
    ),
    "SELECT a FROM t GROUP BY a HAVING a > 'm'": "select group_by_single_column",
    # subqueries
    "SELECT a FROM t WHERE b > (SELECT AVG(b) FROM t)": "select where_single_condition subquery_single",
    "DELETE FROM t WHERE b IN (SELECT b FROM u)": "delete where_single_condition subquery_single",
    "SELECT s.a FROM (SELECT a FROM t) AS s": "select table_alias subquery_single",
    "WITH s AS (SELECT a FROM t) SELECT a FROM s": "select subquery_single",
    "SELECT a FROM t WHERE b IN (SELECT b FROM u UNION SELECT b FROM v)": (
        "select where_single_condition subquery_single"
    ),
    "SELECT a FROM t WHERE b > (SELECT MIN(b) FROM t) AND EXISTS (SELECT 1 FROM u)": (
        "select where_multiple_conditions subquery_multiple"
    ),
    "INSERT INTO t SELECT (SELECT MIN(b) FROM u), (SELECT MAX(b) FROM u)": "insert subquery_multiple",
    "SELECT a FROM t WHERE b IN (SELECT b FROM u) UNION SELECT a FROM v WHERE b = ANY (SELECT b FROM w)": (
        "select where_single_condition subquery_multiple"
    ),
    "SELECT a FROM t WHERE b IN (SELECT b FROM u WHERE c > (SELECT AVG(c) FROM u))": (
        "select where_single_condition subquery_nested"
    ),
    "SELECT a FROM t WHERE b IN (SELECT (SELECT 1)) AND c > (SELECT 2)": (
        "select where_multiple_conditions subquery_multiple subquery_nested"
    ),
    # every clause is classified alone, wherever it stands
    "SELECT a FROM t WHERE b IN (SELECT b FROM u WHERE c = 1 AND d = 2)": (
        "select where_single_condition where_multiple_conditions subquery_single"
    ),
}


@pytest.mark.parametrize("sql", CASES)
def test_skills(sql: str) -> None:
    assert skills_of(sql) == tuple(CASES[sql].split())


def test_there_are_22_skills_each_shown_above_and_told_in_their_order() -> None:
    assert len(SKILLS) == len(set(SKILLS)) == 22
    assert {skill for skills in CASES.values() for skill in skills.split()} == set(SKILLS)
    order = [SKILLS.index(skill) for skill in skills_of("SELECT a AS x FROM t AS y WHERE a = 1 LIMIT 1")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("sql", "operation"),
    [
        ("select 1;", "SELECT"),
        ("WITH s AS (SELECT 1) SELECT * FROM s", "SELECT"),
        ("INSERT IGNORE INTO t VALUES (1)", "INSERT"),
        ("UPDATE t SET a = 1", "UPDATE"),
        ("DELETE FROM t", "DELETE"),
        ("DROP TABLE t", None),
        ("SHOW TABLES", None),
        ("SELECT 1; DELETE FROM t", None),
        ("SELECT Name of the FROM Table WHERE = x", None),
        ("SELECT 'unclosed", None),
        ("hello", None),
        ("", None),
    ],
)
def test_operation(sql: str, operation: str | None) -> None:
    assert operation_of(sql) == operation
    assert (skills_of(sql) == ()) == (operation is None)


KEYWORDS = ["SELECT", "INSERT INTO", "VALUES", "UPDATE", "SET", "DELETE", "FROM", "WITH", "WHERE", "HAVING"]
KEYWORDS += ["ORDER BY", "GROUP BY", "LIMIT", "UNION", "NOT", "AND", "OR", "AS", "IN", "COUNT(*)"]
FRAGMENTS = [*KEYWORDS, "(", ")", ",", ";", "*", "=", "+", "t", "a", "1", "'x'", "``", "--", "\0"]


@given(st.text() | st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(" ".join))
def test_no_text_makes_it_raise(sql: str) -> None:
    assert set(skills_of(sql)) <= set(SKILLS)


@pytest.mark.parametrize(
    "sql", ["(" * 5_000, "SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "SELECT " + "NOT " * 5_000]
)
def test_no_depth_makes_it_raise(sql: str) -> None:
    assert skills_of(sql) in ((), ("select",))


def test_a_where_of_many_conditions() -> None:
    sql = "SELECT a FROM t WHERE " + " AND ".join(f"c{i} = {i}" for i in range(500))
    assert skills_of(sql) == ("select", "where_multiple_conditions")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is missing")
def test_published_changes_are_of_their_type() -> None:
    """The gold SQL of AgentBench's changes parses and is of the kind that the task names."""
    texts = [path.read_text(encoding="utf-8") for path in (DATA / "agentbench").glob("*.jsonl")]
    tasks = [json.loads(line) for text in texts for line in text.strip().split("\n")]
    changes = [task for task in tasks if task["type"][0] in ("INSERT", "UPDATE", "DELETE")]
    other = [task["label"] for task in changes if operation_of(task["label"][0]) != task["type"][0]]
    assert len(changes) > 100
    assert other == []
