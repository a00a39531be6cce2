"""Spider and BIRD: questions on SQLite files, answered with SQL.

- Spider (https://yale-lily.github.io/spider): `{"db_id": ..., "question": ..., "query": ...}`.
- BIRD (https://bird-bench.github.io) and its mini-dev:
  `{"question_id": ..., "db_id": ..., "question": ..., "evidence": ..., "SQL": ..., "difficulty": ...}`.

Both come as lists in `.json` files, with the databases in folders beside them. They are judged as their own
evaluators do: where a folder of Spider's has several databases, as those of its test suites, an answer must
be right on all of them. The agent is told how the tables were made, some rows, and what BIRD's descriptions
say of the columns (`database_description/*.csv`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.lookup import nearest
from trl_dbbench.tasks.fields import first_id, optional, required
from trl_dbbench.tasks.formats.base import BesideFiles, folder_of
from trl_dbbench.tasks.model import Gold, Task, checked, skills_in
from trl_dbbench.tasks.source import Source

SPIDER_FOLDERS = ("database", "test_database")
BIRD_FOLDERS = ("dev_databases", "train_databases", "databases", ".")

SERVERS = {"mysql": "MySQL", "postgresql": "PostgreSQL"}
"""Of which BIRD has files too: how their names end -> product."""


class SpiderFormat(BesideFiles):
    name = "spider"

    def matches(self, entry: Mapping[str, Any]) -> bool:
        return {"db_id", "question", "query"} <= entry.keys()

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        question = required(entry, "question", str)
        gold = Gold(sql=gold_sql(entry, "query"))
        database = find_database(self.path, required(entry, "db_id", str), SPIDER_FOLDERS)
        others = sorted({*database.parent.glob("*.sqlite")} - {database})
        return sql_task(
            id=f"spider-{default_id}",
            question=question,
            gold=gold,
            source=Source.of(database),
            grader="spider_ts",
            suite=tuple(map(Source.of, others)),
        )


class BirdFormat(BesideFiles):
    name = "bird"

    def matches(self, entry: Mapping[str, Any]) -> bool:
        return {"db_id", "question", "SQL"} <= entry.keys()

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        for ending, product in SERVERS.items():
            if self.path is not None and self.path.stem.endswith(f"_{ending}"):
                raise TaskError(
                    f"the file has SQL for {product}, whose dumps are not read yet. Use BIRD's file for "
                    "SQLite, such as mini_dev_sqlite.json, with the folder dev_databases beside it."
                )
        evidence = (optional(entry, "evidence", str) or "").strip()
        question, gold = required(entry, "question", str), Gold(sql=gold_sql(entry, "SQL"))
        db_id = required(entry, "db_id", str)
        source = Source.of(find_database(self.path, db_id, BIRD_FOLDERS))
        return sql_task(
            id=first_id(entry, ("question_id",), f"bird-{default_id}"),
            question=question,
            gold=gold,
            source=source,
            grader="bird_ex",
            knowledge=f"Hint: {evidence}" if evidence else None,
        )


# --- for all such formats -------------------------------------------------------------------------


def sql_task(
    *,
    id: str,
    question: str,
    gold: Gold,
    source: Source,
    grader: str,
    knowledge: str | None = None,
    suite: tuple[Source, ...] = (),
) -> Task:
    """A question that is answered with SQL, of the dialect that its database is of.

    Raises:
        TaskError: the database cannot be read, the gold SQL is no query, or the task cannot be right.
    """
    dialect = source.opened.dialects[0]
    skills = skills_in(None, gold.sql, dialect)
    # it may be one that sqlglot cannot parse: then there are no skills to go by
    if changes := {"insert", "update", "delete"}.intersection(skills):
        raise TaskError(f"the gold SQL must be a query, is {min(changes).upper()}: {gold.sql}")
    return checked(
        Task(
            id=id,
            question=question,
            tables=source.tables(),
            operation="SELECT",
            gold=gold,
            skills=skills,
            grader=grader,
            source=source,
            dialect=dialect,
            knowledge=knowledge,
            schema="full",
            suite=suite,
        )
    )


def gold_sql(entry: Mapping[str, Any], key: str) -> str:
    """The gold query in this field.

    Raises:
        TaskError: it is missing or empty.
    """
    sql = required(entry, key, str).strip()
    if not sql:
        raise TaskError(
            f"the gold SQL '{key}' is empty. Test sets are published without it: take a file that has it, or "
            "take the entry out."
        )
    return sql


def find_database(
    path: Path | None, db_id: str, folders: Sequence[str], names: Sequence[str] = ("{0}/{0}.sqlite",)
) -> Path:
    """The file of a database.

    Args:
        path: the task file. What is not beside it is looked for beside its folder.
        db_id: the database's name.
        folders: in which it may lie; the first one wins.
        names: of the file in such a folder, with `{0}` for the database's name; the first one wins.

    Raises:
        TaskError: there is none, saying where it was looked for.
    """
    if db_id in ("", "..") or Path(db_id).name != db_id:
        raise TaskError(f"a database needs a name that is no path, has {db_id!r}")
    here = folder_of(path)
    homes = [
        *(here / folder for folder in folders),
        *(here.parent / folder for folder in folders if folder != "."),
    ]
    for home in homes:
        for name in names:
            if (found := home / name.format(db_id)).is_file():
                return found
    raise TaskError(_no_database(here, db_id, homes, names))


def _no_database(here: Path, db_id: str, homes: Sequence[Path], names: Sequence[str]) -> str:
    looked = f"there is no database '{db_id}': {names[0].format(db_id)} was looked for in "
    looked += ", ".join(map(str, homes))
    known = {
        each.parent.name if "/" in name else each.name.removesuffix(name.format(""))
        for home in homes
        for name in names
        for each in home.glob(name.format("*"))
    }
    if near := nearest(db_id, sorted(known)):
        return f"{looked}, where '{near}' is nearest. Correct the name, or bring the database there."
    if known:
        return f"{looked}, which have {len(known)} others. Bring the database there."
    if dumps := sorted([*here.glob("*.sql"), *here.glob("*/*.sql")]):
        return (
            f"{looked}. {dumps[0]} is for servers: take the task file that goes with it, such as "
            "mini_dev_mysql.json, or unpack the SQLite files of the benchmark into one of these folders."
        )
    return f"{looked}. Unpack the databases of the benchmark into one of these folders."
