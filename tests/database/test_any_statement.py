"""Whatever an agent writes, on every database: it is answered, and nobody else notices.

`sandbox.execute` and `Sandbox.state` raise for no statement, what they return can be written to a log, and a session
that begins afterwards is as it was before.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count as count_from
from itertools import islice
from pathlib import Path

import pytest
from databases import opened, task
from fuzz_statements import PROBES, TABLES, statements
from hostile import seen
from required import LONG

from trl_dbbench.database import Database, Limits, QueryResult, Sandbox, State, open_database
from trl_dbbench.database.dialect import SQLITE
from trl_dbbench.database.embedded import native
from trl_dbbench.episode.protocol import Operation
from trl_dbbench.episode.types import Completion, Episode, Sampling, Turn
from trl_dbbench.errors import ServerCrash
from trl_dbbench.grading.rows import same_state
from trl_dbbench.grading.states import state_digest, state_hash
from trl_dbbench.runs.records import episode_record
from trl_dbbench.tasks import Gold, Source, Task

KINDS = {"emulation": "mysql", "native": "sqlite", "file": "sqlite"}
"""The emulation of MySQL; SQLite itself, with tables of the task and those of a file; and their dialects."""

SERVERS = ("local", "docker")
EPISODES_AT_ONCE = 4
"""On a server; some of them are of questions, whose reads share sessions, and some of changes."""

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
    """Return a session's answers to fixed questions."""
    return [dataclasses.replace(sandbox.execute(sql), seconds=0.0) for sql in PROBES] + seen(sandbox)


def judged(state: State) -> None:
    """Does with it what judges and replays do."""
    state_digest(state)
    for each in state.values():
        state_hash(each.rows)
    assert same_state(state, state)
    same_state(state, {name: each._replace(rows=[*each.rows[1:], (None,)]) for name, each in state.items()})


def written(sql: str, result: QueryResult) -> str:
    """The line of `episodes.jsonl` for an episode of this statement."""
    turn = Turn(Completion([], []), sql, Operation(sql), result, str(result.rows or result.error))
    episode = Episode(task(), [], Sampling(), [turn])
    return json.dumps(episode_record(episode, "train", 0))


@pytest.mark.parametrize(
    ("kind", "sqls"),
    [
        ("emulation", ["UPDATE medals SET nation = CHAR(0xD83D USING ucs2)"]),
        ("emulation", ["CREATE TABLE u AS SELECT CHAR(0xDFFF USING ucs2) AS a", "SELECT * FROM u"]),
        ("emulation", ["SET character_set_results = utf16", "SELECT 1.5"]),
        ("emulation", ["UPDATE medals SET nation = x'ff', photo = x'edA080'", "SELECT UPPER(nation) FROM medals"]),
        ("emulation", ["UPDATE medals SET share = 1e308 * 10", "UPDATE medals SET price = 1e999"]),
        ("emulation", ["SELECT 18446744073709551615 + 1, -9223372036854775808 - 1, 1e999, 9" + "9" * 5000]),
        ("emulation", ["UPDATE medals SET note = 'a\x00b', nation = CONCAT('\x00', nation)"]),
        ("emulation", ["SELECT 1 AS `\x00`, 2 AS `ÿ`, 3 AS ''", "CREATE TABLE `ÿ` (`\x01` INT)"]),
        ("emulation", ["CREATE TABLE d (a DECIMAL(65,30), b TIME)", "INSERT INTO d VALUES (9e34, '838:59:59')"]),
        ("native", ["SELECT CAST(x'ff' AS TEXT), char(55357), json_extract('\"\\ud83d\"', '$')"]),
        ("native", ["UPDATE medals SET nation = CAST(x'edA080' AS TEXT), note = char(0xDFFF)"]),
        ("native", ["CREATE TABLE u AS SELECT char(55357) AS a, x'ff' AS b, 1e999 AS c, -1e999 AS d, 1e999 - 1e999 AS e"]),
        ("native", ["UPDATE medals SET gold = 9223372036854775807 + 1, price = 1e400, won = -0.0"]),
        ("native", ["CREATE TABLE u (a ANY)", "INSERT INTO u SELECT CAST(x'00ff' AS TEXT)", "SELECT a || a, hex(a) FROM u"]),
        ("native", ["SELECT 1 AS \"\ufffd\", group_concat(CAST(x'ff' AS TEXT)) FROM medals", "SELECT abs(CAST(x'ff' AS TEXT))"]),
        ("native", ["SELECT * FROM medals WHERE nation LIKE CAST(x'ff' AS TEXT)", "SELECT json(CAST(x'22ff22' AS TEXT))"]),
    ],
)  # fmt: skip
def test_values_that_cannot_be_read(
    sqlite_database: Database, kind: str, sqls: list[str], tmp_path: Path
) -> None:
    """As text, as a number of 64 bits, as a decimal: they are an observation, or tables that are wrong."""
    assert episode(sqlite_database, question(kind, tmp_path), sqls) == []


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [4_000, pytest.param(100_000, marks=LONG)])
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


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=LONG)])
@pytest.mark.parametrize("server", SERVERS)
def test_any_statement_on_a_server(server: str, count: int, request: pytest.FixtureRequest) -> None:
    """The same beside others: no episode fails, but one whose statement has ended the server."""
    seed = request.config.getoption("--hypothesis-seed") or ""
    drawn = statements(random.Random(f"any {server} {seed}"), "mysql")
    question = task(*TABLES)
    change = dataclasses.replace(question, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 1"))
    with opened(server, LIMITS) as database:
        first = {}
        for asked in (question, change):
            with database.sandbox(asked) as sandbox:
                first[asked.operation] = probed(sandbox)

        def one(number: int, sqls: list[str]) -> list[str]:
            asked = (question, change)[number % 2]
            wrong = episode(database, asked, sqls)
            if number % 5 == 0:
                with database.sandbox(asked) as sandbox:
                    now, then = probed(sandbox), first[asked.operation]
                # on a busy machine any statement may take too long
                others = [(a, b) for a, b in zip(now, then, strict=True) if a != b and a.limit != "time"]
                if others:
                    wrong.append(f"a session is not itself again: {others} after {sqls}")
            return wrong

        drawings = (list(islice(drawn, AT_ONCE)) for _ in range(count // AT_ONCE))
        with ThreadPoolExecutor(EPISODES_AT_ONCE) as pool:
            wrong = [line for found in pool.map(one, count_from(), drawings) for line in found]
    assert not wrong, "\n".join([f"{len(wrong)} violations", *wrong[:50]])


def episode(database: Database, asked: Task, sqls: list[str]) -> list[str]:
    """Executes these; returns what went wrong."""
    wrong: list[str] = []
    with database.sandbox(asked) as sandbox:
        for sql in sqls:
            try:
                written(sql, sandbox.execute(sql))
            except ServerCrash:
                return wrong
            except Exception as error:
                wrong.append(f"{error!r}: {sql!r} after {sqls[: sqls.index(sql)]}")
        try:
            judged(sandbox.state())
        except ServerCrash:
            return wrong
        except Exception as error:
            wrong.append(f"state: {error!r} after {sqls}")
        if sandbox.retries and database.dialect is SQLITE:  # a busy server may stand still for a moment
            wrong.append(f"{sandbox.retries} retries: {sqls}")
    return wrong
