"""A database of a user's own class, named by its dotted path."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path

import pytest
from databases import LIMITS, table, task

from trl_dbbench.database import open_database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer
from trl_dbbench.errors import DatabaseError
from trl_dbbench.tasks import Gold

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22))

OWN = textwrap.dedent(
    """
    import sqlite3

    from trl_dbbench.database import Database, Dialect, Limits, QueryResult, Sandbox, TableState
    from trl_dbbench.database.sandbox import clip, columns_of


    class InMemory(Database):
        dialect = Dialect("plain", "plain SQLite")

        def fresh_sandbox(self, task):
            return Tables(task, self.limits)

        def describe(self):
            return "plain SQLite in memory"

        def close(self):
            self.closed = True


    class Tables(Sandbox):
        def __init__(self, task, limits):
            self.limits = limits
            self.connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            for table in task.tables:
                self.connection.execute(f"CREATE TABLE {table.name} ({columns_of(table)})")
                places = ", ".join("?" * len(table.columns))
                self.connection.executemany(f"INSERT INTO {table.name} VALUES ({places})", table.rows)

        def execute(self, sql, limits=None):
            try:
                cursor = self.connection.execute(sql)
            except sqlite3.Error as error:
                return QueryResult(None, str(error), 1)
            if cursor.description is None:
                return QueryResult(None, affected=cursor.rowcount)
            rows, limit = clip(cursor, limits or self.limits)
            return QueryResult(rows, limit=limit)

        def state(self):
            names = self.connection.execute("SELECT name FROM sqlite_master").fetchall()
            found = {name: self.connection.execute(f"SELECT * FROM {name}") for (name,) in names}
            return {
                name: TableState(tuple(each[0] for each in cursor.description), cursor.fetchall())
                for name, cursor in found.items()
            }

        def close(self):
            self.connection.close()


    class NoDialect(InMemory):
        dialect = None
        del dialect


    def anything(limits):
        return 7


    class Half(Database):
        def describe(self):
            return "half"
    """
)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_db.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    "spec", ["my_db.InMemory", "my_db:InMemory", "my_db.py:InMemory", ["my_db.InMemory"]]
)
def test_tasks_are_played_on_it(spec: str | list[str]) -> None:
    question = dataclasses.replace(task(MEDALS), gold=Gold(answer=((23,),)))
    with open_database(spec, limits=LIMITS, patience=7) as database:
        assert database.describe() == "plain SQLite in memory"
        assert (database.limits, database.patience) == (LIMITS, 7)
        with database.sandbox(question) as sandbox:
            assert sandbox.execute("SELECT nation FROM medals WHERE gold > 1").rows == [("Peru",)]
            assert "no such column" in (sandbox.execute("SELECT silver FROM medals").error or "")
            assert sandbox.execute("UPDATE medals SET gold = 2").affected == 2
            assert sandbox.state()["medals"].rows == [("Chad", 2), ("Peru", 2)]
        with database.sandbox(question) as sandbox:
            assert Judge(database)(question, Answer("23"), sandbox, "lifelong").right
    assert database.closed


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("my_db.Nothing", "the database 'my_db.Nothing' cannot be imported: AttributeError"),
        ("my_dbs.InMemory", "the database 'my_dbs.InMemory' cannot be imported: ModuleNotFoundError"),
        ("my_db.anything", "the database 'my_db.anything' gives a int. Derive your class from"),
        ("my_db.Half", "the database 'my_db.Half' cannot be made: Can't instantiate abstract class Half"),
        ("my_db.sqlite3", "the database 'my_db.sqlite3' is not callable but module"),
        ("my_db.Tables", "the database 'my_db.Tables' cannot be made"),
        ("my_db", "'my_db' is not a database.*for a class of your own its dotted path"),
        (["my_db.InMemory", "local"], "'my_db.InMemory' is not a database"),
    ],
)
def test_what_is_none_is_refused(spec: str | list[str], said: str) -> None:
    with pytest.raises(DatabaseError, match=said), open_database(spec):
        pass
