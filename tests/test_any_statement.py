"""Whatever an agent writes, on the embedded databases: it is answered, and nobody else notices.

`sandbox.execute` and `Sandbox.state` raise for no statement, what they return can be written to a log, and a session
that begins afterwards is as it was before.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from databases import task
from fuzz_statements import PROBES, TABLES, statements
from hostile import seen
from required import LONG

from trl_dbbench.database import Database, Limits, QueryResult, Sandbox, open_database
from trl_dbbench.database.sqlite import native
from trl_dbbench.grading.states import state_digest, state_hash
from trl_dbbench.protocol import Operation
from trl_dbbench.rollout import Completion, Episode, Sampling, Turn
from trl_dbbench.runs.records import episode_record
from trl_dbbench.tasks import Source, Task

KINDS = {"emulation": "mysql", "native": "sqlite", "file": "sqlite"}
"""The emulation of MySQL; SQLite itself, with tables of the task and those of a file; and their dialects."""

VIRTUAL = """
CREATE VIRTUAL TABLE ft USING fts5(nation, note);
INSERT INTO ft VALUES ('Chad', 'first'), ('Peru', 'Chad x');
CREATE VIRTUAL TABLE rt USING rtree(id, x0, x1);
INSERT INTO rt VALUES (1, 0, 5), (2, 3, 9);
CREATE TRIGGER failing BEFORE INSERT ON orders WHEN new.id = 7 BEGIN SELECT RAISE(ABORT, 'disk full'); END;
"""

AT_ONCE = 20
"""Statements of one episode."""

LIMITS = Limits(seconds=0.3, rows=50, characters=2_000)


def question(kind: str, folder: Path) -> Task:
    if kind != "file":
        return dataclasses.replace(task(*TABLES), dialect=KINDS[kind])
    path = folder / "tables.sqlite"
    with closing(native._made(TABLES)) as tables, closing(sqlite3.connect(path)) as file:
        tables.backup(file)
        file.executescript(VIRTUAL)
    return dataclasses.replace(task(), source=Source.of(path), dialect="sqlite")


def probed(sandbox: Sandbox) -> list[QueryResult]:
    """What a session answers to questions that are always the same."""
    return [dataclasses.replace(sandbox.execute(sql), seconds=0.0) for sql in PROBES] + seen(sandbox)


def written(sql: str, result: QueryResult) -> str:
    """The line of `episodes.jsonl` for an episode of this statement."""
    turn = Turn(Completion([], []), sql, Operation(sql), result, str(result.rows or result.error))
    episode = Episode(task(), [], Sampling(), [turn])
    return json.dumps(episode_record(episode, "train", 0))


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(4_000, marks=pytest.mark.short),
        pytest.param(20_000, marks=pytest.mark.slow),
        pytest.param(100_000, marks=LONG),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_any_statement(kind: str, count: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Statements of a grammar, and their mutations, 20 an episode."""
    seed = request.config.getoption("--hypothesis-seed") or ""
    wrong: list[str] = []
    drawn = statements(random.Random(f"any {kind} {seed}"), KINDS[kind])
    asked = question(kind, tmp_path)
    with open_database("sqlite", limits=LIMITS) as database:
        with database.sandbox(asked) as sandbox:
            first = probed(sandbox)
        for _ in range(count // AT_ONCE):
            wrong += episode(database, asked, list(islice(drawn, AT_ONCE)))
            with database.sandbox(asked) as sandbox:
                if probed(sandbox) != first:
                    wrong.append("a session is not itself again")
            if len(wrong) > 20:
                break
    assert not wrong, "\n".join(wrong)


def episode(database: Database, asked: Task, sqls: list[str]) -> list[str]:
    """Executes these; returns what went wrong."""
    wrong = []
    with database.sandbox(asked) as sandbox:
        for sql in sqls:
            try:
                written(sql, sandbox.execute(sql))
            except Exception as error:
                wrong.append(f"{error!r}: {sql!r}")
        try:
            state = sandbox.state()
            state_digest(state)
            for each in state.values():
                state_hash(each.rows)
        except Exception as error:
            wrong.append(f"state: {error!r} after {sqls}")
        if sandbox.retries:
            wrong.append(f"{sandbox.retries} retries: {sqls}")
    return wrong
