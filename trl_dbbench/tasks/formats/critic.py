"""LiveSQLBench on SQLite, BIRD-CRITIC on SQLite and MySQL: questions and issues, answered with SQL.

https://github.com/bird-bench/livesqlbench, https://github.com/bird-bench/BIRD-CRITIC-1. JSONL, with databases
in folders beside the file. docs/tasks.md describes the fields, and the entries that are left out.

- An entry without `dialect` has the dialect at the beginning of its id (`MySQL_12`), or else SQLite.
- `external_knowledge` is a text, or a list of ids of lines in `<name>/<name>_kb.jsonl`.
- `conditions` say whether the `order` of rows counts. The evaluators ignore what they say about decimals.
- `test_cases` is Python code of the benchmarks and is never executed. On MySQL most tests repeat the code of
  the default comparison, and such entries are graded by that comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.fields import first_id, json_lines, optional, required
from trl_dbbench.tasks.formats.base import BesideFiles, Unsupported
from trl_dbbench.tasks.formats.text2sql import find_database, sql_task
from trl_dbbench.tasks.model import Gold, Task
from trl_dbbench.tasks.skills import operation_of
from trl_dbbench.tasks.source import Source
from trl_dbbench.utils.settings import as_list

FOLDERS = (".", "databases", "database")
DATABASE_NAMES = ("{0}/{0}_template.sqlite", "{0}/{0}.sqlite")
"""File names, in order of preference. The evaluators work on a copy of the template, and may leave a changed
copy under the second name."""

DUMP_FOLDERS = ("mysql_table_dumps", "evaluation/mysql_table_dumps", ".")
DUMP_NAMES = ("{0}_template_dump.sql", "{0}_dump.sql")

OTHERS = ("postgresql", "oracle", "sqlserver")
"""Dialects of BIRD-CRITIC whose entries are left out."""

NEEDS_PYTHON = "judged by 'test_cases', Python that would have to be executed"

_TEST = (
    "def test_case(pred_sqls, sol_sqls, db_name, conn):",
    "result = ex_base(pred_sqls, sol_sqls, db_name, conn)",
)
DEFAULT_TESTS = (
    [*_TEST, 'assert result == 1, f"ex_base returned {result} but expected 1."'],
    [*_TEST, "assert result == 1"],
)
"""Lines of tests that only make the default comparison, without the lines that remove DISTINCT."""

STATEMENTS = ("preprocess_sql", "clean_up_sql", "clean_up_sqls")


class CriticFormat(BesideFiles):
    name = "critic"
    nested = frozenset(
        ("issue_sql", "sol_sql", "test_cases", "conditions", "external_knowledge", *STATEMENTS)
    )

    def matches(self, entry: Mapping[str, Any]) -> bool:
        return "query" in entry and ("sol_sql" in entry or "selected_database" in entry)

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        question = required(entry, "query", str)
        id = first_id(entry, ("instance_id",), f"critic-{default_id}")
        mysql = _is_of_mysql(entry, id)
        _check_supported(entry, id)
        grader = _mysql_grader(entry, id) if mysql else _sqlite_grader(entry, id)
        name = required(entry, "selected_database" if "selected_database" in entry else "db_id", str)
        where = (DUMP_FOLDERS, DUMP_NAMES) if mysql else (FOLDERS, DATABASE_NAMES)
        database = find_database(self.path, name, *where)
        issue = _texts(entry, "issue_sql")
        told = ["The SQL with the issue:", *issue] if issue else []
        told += _knowledge(entry, database.with_name(f"{name}_kb.jsonl"))
        return sql_task(
            id=id,
            question=question,
            gold=Gold(sql=_solution(entry, id, "mysql" if mysql else "sqlite")),
            source=Source.of(database),
            grader=grader,
            knowledge="\n".join(told) or None,
        )


def _is_of_mysql(entry: Mapping[str, Any], id: str) -> bool:
    begins = id.partition("_")[0]
    dialect = optional(entry, "dialect", str) or (
        begins if begins.lower() in ("mysql", *OTHERS) else "SQLite"
    )
    if dialect.lower() not in ("mysql", "sqlite"):
        raise Unsupported(id, f"of {dialect}; only SQLite and MySQL are read")
    return dialect.lower() == "mysql"


def _check_supported(entry: Mapping[str, Any], id: str) -> None:
    """Raise Unsupported if comparing the rows of two queries cannot grade the entry."""
    if (optional(entry, "category", str) or "").lower().startswith("management"):
        raise Unsupported(id, "of the category Management, which changes the database")
    if found := [key for key in STATEMENTS if entry.get(key)]:
        raise Unsupported(id, f"needs '{found[0]}', statements beside the solution")


def _sqlite_grader(entry: Mapping[str, Any], id: str) -> str:
    if entry.get("test_cases"):
        raise Unsupported(id, NEEDS_PYTHON)
    conditions = optional(entry, "conditions", dict) or {}
    return "critic_ordered" if optional(conditions, "order", (bool, int)) else "critic"


def _mysql_grader(entry: Mapping[str, Any], id: str) -> str:
    """Return the grader of an entry for MySQL. A missing test means the default comparison."""
    if entry.get("efficiency"):
        raise Unsupported(id, "judged by the cost of its plan ('efficiency')")
    found = {_compared_by(test) for test in _texts(entry, "test_cases")}
    if None in found:
        raise Unsupported(id, NEEDS_PYTHON)
    return "critic_mysql_no_distinct" if found == {"critic_mysql_no_distinct"} else "critic_mysql"


def _compared_by(test: str) -> str | None:
    """Return the grader that is equivalent to a test; `None` if the test is not a default comparison."""
    lines = [line for each in test.splitlines() if (line := each.strip())]
    grader = "critic_mysql"
    if sorted(lines[1:3]) == [
        "pred_sqls = remove_distinct(pred_sqls)",
        "sol_sqls = remove_distinct(sol_sqls)",
    ]:
        del lines[1:3]
        grader = "critic_mysql_no_distinct"
    if lines[-1:] == ["return result"]:
        lines.pop()
    return grader if lines in DEFAULT_TESTS else None


def _solution(entry: Mapping[str, Any], id: str, dialect: str) -> str:
    statements = _texts(entry, "sol_sql")
    if not statements:
        raise TaskError(
            "the gold 'sol_sql' is missing or empty. The benchmark sends it on request: put it into the file "
            "first, as its README says."
        )
    if len(statements) > 1 or operation_of(statements[0], dialect) != "SELECT":
        raise Unsupported(id, "'sol_sql' is not a single query")
    return statements[0]


def _texts(entry: Mapping[str, Any], key: str) -> list[str]:
    """Return a field that is a text or a list of texts as a list, without empty texts."""
    listed = as_list(optional(entry, key, (str, list)) or [])
    if wrong := [each for each in listed if not isinstance(each, str)]:
        raise TaskError(f"'{key}' must be a text or a list of texts, holds {wrong[0]!r}")
    return [each.strip() for each in listed if each.strip()]


def _knowledge(entry: Mapping[str, Any], file: Path) -> list[str]:
    """Return the external knowledge of an entry: its text, or the lines of the database's file that it lists
    by id."""
    given = optional(entry, "external_knowledge", (str, list)) or []
    if isinstance(given, str):
        return [given.strip()] if given.strip() else []
    if not given:
        return []
    try:
        by_number = {json.dumps(line.get("id")): line for line in json_lines(file)}
    except (OSError, UnicodeDecodeError, TaskError) as error:
        raise TaskError(
            f"'external_knowledge' has numbers of lines in {file}, which cannot be read: {error}. Bring the "
            "file there: without it the question cannot be understood."
        ) from None
    found = []
    for number in map(json.dumps, given):
        if number not in by_number:
            raise TaskError(f"'external_knowledge' names {number}, which {file} does not have")
        line = by_number[number]
        parts = (line.get(key) for key in ("knowledge", "description", "definition"))
        found.append(": ".join(str(part).strip() for part in parts if part))
    return found
