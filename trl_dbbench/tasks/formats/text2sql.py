"""Spider and BIRD: questions on SQLite files, and BIRD's on MySQL, answered with SQL.

https://yale-lily.github.io/spider, https://bird-bench.github.io. Both are lists in `.json` files, with the
databases in folders beside them. docs/tasks.md describes their fields, the folders, and the prompt. If a
folder of Spider has several databases, as in its test suites, an answer must be right on all of them. BIRD's
mini-dev for MySQL has one dump of all databases; a task uses the tables of its own database, which
`dev_tables.json` lists.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.fields import first_id, optional, required
from trl_dbbench.tasks.formats.base import BesideFiles, find_beside, folder_of, places_beside
from trl_dbbench.tasks.model import Gold, Task, checked, skills_in
from trl_dbbench.tasks.source import Source
from trl_dbbench.tasks.sources.base import DESCRIPTIONS_FOLDER
from trl_dbbench.utils.files import visible
from trl_dbbench.utils.lookup import nearest, unknown

logger = logging.getLogger(__name__)

SPIDER_FOLDERS = ("database", "test_database", "databases")
BIRD_FOLDERS = ("dev_databases", "train_databases", "databases", ".")

MYSQL_DUMPS = ("MINIDEV_mysql/BIRD_dev.sql", "BIRD_dev.sql")
MYSQL_TABLES = ("dev_tables.json", "MINIDEV_mysql/dev_tables.json")
"""Files that list the tables of each database in the dump."""

_OF_SERVER = re.compile(r"_(mysql|postgresql|pg)(-\d+(-of-\d+)?)?$")
"""Endings of the names of BIRD's files for servers, including parts such as `_mysql-1-of-2`."""


class SpiderFormat(BesideFiles):
    name = "spider"

    def matches(self, entry: Mapping[str, Any]) -> bool:
        if not {"db_id", "question"} <= entry.keys():
            return False
        # test sets lack 'query', which reading refuses; Spider's 'sql' is an object
        others = {"SQL", "tables", "database", "reward_model"}  # of BIRD, the native format and verl
        return "query" in entry or (others.isdisjoint(entry) and not isinstance(entry.get("sql"), str))

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        question = required(entry, "question", str)
        gold = Gold(sql=gold_sql(entry, "query"))
        database = find_database(self.path, required(entry, "db_id", str), SPIDER_FOLDERS)
        others = [each for each in visible(database.parent.glob("*.sqlite")) if each != database]
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
        server = None if self.path is None else _OF_SERVER.search(self.path.stem)
        if server is not None and server[1] != "mysql":
            raise TaskError(
                "the file has SQL for PostgreSQL, which is not executed here. Use BIRD's file for SQLite or "
                "for MySQL, such as mini_dev_mysql.json."
            )
        evidence = (optional(entry, "evidence", str) or "").strip()
        question, gold = required(entry, "question", str), Gold(sql=gold_sql(entry, "SQL"))
        db_id = required(entry, "db_id", str)
        if server is None:
            source = Source.of(find_database(self.path, db_id, BIRD_FOLDERS))
        else:
            source = _part_of_dump(self.path, db_id)
        return sql_task(
            id=first_id(entry, ("question_id",), f"bird-{default_id}"),
            question=question,
            gold=gold,
            source=source,
            grader="bird_ex",
            knowledge=f"Hint: {evidence}" if evidence else None,
        )


def _part_of_dump(path: Path | None, db_id: str) -> Source:
    """Return a database's tables in the dump, with BIRD's descriptions of their columns."""
    _check_name(db_id)
    dump = Source.of(find_beside(path, *MYSQL_DUMPS, lies_in="BIRD's mini-dev"))
    of_database = find_beside(path, *MYSQL_TABLES, lies_in="BIRD's mini-dev, beside mini_dev_mysql.json")
    tables = _tables_by_database(of_database, of_database.stat().st_mtime_ns)
    if db_id not in tables:
        raise TaskError(f"{unknown('database', db_id, [*tables])}, by {of_database}")
    homes = places_beside(path, [f"{folder}/{db_id}/{DESCRIPTIONS_FOLDER}" for folder in BIRD_FOLDERS])
    return Source.of(
        dump.path,
        only=_names_in(dump, db_id, tables[db_id]),
        descriptions=next((home for home in homes if home.is_dir()), None),
    )


@lru_cache(maxsize=16)
def _tables_by_database(file: Path, changed: int) -> dict[str, tuple[str, ...]]:
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
        return {each["db_id"]: tuple(map(str, each["table_names_original"])) for each in listed}
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise TaskError(
            f"{file} cannot be read as a list of databases with 'db_id' and 'table_names_original': "
            f"{type(error).__name__}: {error}"
        ) from None


@lru_cache(maxsize=256)
def _names_in(dump: Source, db_id: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of these tables in the dump, as some servers write all names in lower case."""
    known = {table.name.casefold(): table.name for table in dump.tables()}
    missing = [name for name in names if name.casefold() not in known]
    if len(missing) == len(names):
        raise TaskError(
            f"the dump '{dump.path}' has no table of the database '{db_id}': no {', '.join(names)}"
        )
    if missing:
        logger.warning("'%s' has not all tables of %s: no %s", dump.path, db_id, ", ".join(missing))
    return tuple(known[name.casefold()] for name in names if name not in missing)


def sql_task(gold: Gold, source: Source, **fields: Any) -> Task:
    """Return a question to be answered with SQL of the database's dialect; `fields` are other fields of
    `Task`."""
    dialect = source.opened.dialects[0]
    skills = skills_in(None, gold.sql, dialect)
    # SQL that sqlglot cannot parse has no skills, so it is not refused
    if changes := {"insert", "update", "delete"}.intersection(skills):
        raise TaskError(f"the gold SQL must be a query, is {min(changes).upper()}: {gold.sql}")
    fields |= {"tables": source.tables(), "operation": "SELECT", "skills": skills, "dialect": dialect}
    return checked(Task(gold=gold, source=source, schema="full", **fields))


def gold_sql(entry: Mapping[str, Any], key: str) -> str:
    """Return the gold query in this field; raise TaskError if it is missing or empty."""
    sql = (optional(entry, key, str) or "").strip()
    if not sql:
        raise TaskError(
            f"the gold SQL '{key}' is missing or empty. Test sets are published without it: take a file that "
            "has it, or take the entry out."
        )
    return sql


def find_database(
    path: Path | None, db_id: str, folders: Sequence[str], names: Sequence[str] = ("{0}/{0}.sqlite",)
) -> Path:
    """Return the file of a database. Raises TaskError, which names the folders searched, if there is none.

    Args:
        path: the task file. The folders are searched for beside it, then one folder above.
        folders: folders that may hold the database, in order of preference.
        names: names of the file in such a folder, in order of preference, with `{0}` for the database's name.
    """
    _check_name(db_id)
    here = folder_of(path)
    homes = [home for home in places_beside(path, folders) if home != here.parent]
    files = (home / name.format(db_id) for home in homes for name in names)
    if (found := next(filter(Path.is_file, files), None)) is None:
        raise TaskError(_no_database(here, db_id, homes, names))
    return found


def _check_name(db_id: str) -> None:
    if db_id in ("", "..") or Path(db_id).name != db_id:
        raise TaskError(f"a database needs a name that is not a path, has {db_id!r}")


def _no_database(here: Path, db_id: str, homes: Sequence[Path], names: Sequence[str]) -> str:
    looked = f"there is no database '{db_id}': {names[0].format(db_id)} was looked for in "
    looked += ", ".join(map(str, homes))
    known = {
        each.parent.name if "/" in name else each.name.removesuffix(name.format(""))
        for home in homes
        for name in names
        for each in visible(home.glob(name.format("*")))
    }
    if near := nearest(db_id, sorted(known)):
        return f"{looked}, where '{near}' is nearest. Correct the name, or bring the database there."
    if known:
        return f"{looked}, which have {len(known)} others. Bring the database there."
    if dumps := visible([*here.glob("*.sql"), *here.glob("*/*.sql")]):
        return (
            f"{looked}. {dumps[0]} is for servers: take the task file that goes with it, such as "
            "mini_dev_mysql.json, or unpack the SQLite files of the benchmark into one of these folders."
        )
    return f"{looked}. Unpack the databases of the benchmark into one of these folders."
