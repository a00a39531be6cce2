"""An error is the environment's only if statements of our own met it, too: an agent cannot void its own episode."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from databases import LIMITS, opened, rows_of, table, task
from fakes import RULES, ScriptedEngine, play_script
from test_faults import Failing, kill_connections

from trl_dbbench.database import Database, Limits, QueryResult, Sandbox
from trl_dbbench.database.error_numbers import is_full_disk
from trl_dbbench.database.server.database import ServerDatabase
from trl_dbbench.database.server.tenancy import crashed
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.table_states import for_each_episode
from trl_dbbench.episode.types import Episode, Sampling, Status
from trl_dbbench.errors import EnvironmentFault, ServerCrash
from trl_dbbench.rewards.outcome import ExecutionReward, OutcomeReward
from trl_dbbench.rewards.steps import StateProgress
from trl_dbbench.tasks import Gold

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 2))
QUESTION = task(MEDALS)
CHANGE = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 3"))
UNREPEATABLE = "SELECT @once := UUID()"


def operation(sql: str) -> str:
    return f"Action: Operation\n```sql\n{sql}\n```"


DONE = "Action: Answer\nFinal Answer: done"

RAISING = (
    "CREATE {} RETURNS INT DETERMINISTIC BEGIN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114; RETURN 1; END"
)
VOIDING = [
    *(
        [f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'Lost'"]
        for number in (
            1205,
            1213,
            1114,
            1226,
            1030,
            1836,
            1317,
            1927,
            2006,
            2013,
            2020,
            3024,
            4031,
            4082,
            65535,
        )
    ),
    ["SIGNAL SQLSTATE '08S01' SET MESSAGE_TEXT = 'No space left on device'"],
    [RAISING.format("FUNCTION full()"), "SELECT full()"],
    [
        "CREATE TRIGGER full BEFORE UPDATE ON medals FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205",
        "UPDATE medals SET gold = 5",
    ],
    ["SET character_set_results = latin1", "SELECT 1 AS `é`", "SELECT nation AS `é` FROM medals"],
    ["SET character_set_results = utf16", "SELECT 1.5, NOW(), nation FROM medals"],
    ["SET SESSION wait_timeout = 1", "DO SLEEP(0)"],
    ["SET SESSION net_read_timeout = 1, net_write_timeout = 1", "SELECT SLEEP(30)"],
]


@pytest.mark.parametrize("statements", VOIDING, ids=lambda statements: statements[-1][:60])
def test_an_agent_cannot_void_its_episode(
    statements: list[str], server_database: Database, tokenizer
) -> None:
    """After a read that cannot be repeated on a fresh sandbox, each error is what its statement gave."""
    turns = [*map(operation, [UNREPEATABLE, *statements, "SELECT SLEEP(1.1)", "SELECT 1"]), DONE]
    rules = dataclasses.replace(RULES, max_turns=len(turns))
    episode = play_script(CHANGE, turns, tokenizer, server_database, rules=rules)
    assert (episode.status, episode.right, episode.fault) == (Status.ANSWERED, False, None)
    assert OutcomeReward()([episode]) == [-1.0]
    assert ExecutionReward(server_database)([episode]) == [0.0]
    (steps,) = StateProgress(server_database)([episode])
    assert steps is not None and episode.status == Status.ANSWERED


def test_a_signal_costs_the_session_nothing(server_database: Database) -> None:
    """Its variables and its transaction are there afterwards, as on a server of its own."""
    with server_database.sandbox(CHANGE) as sandbox:
        (once,) = sandbox.execute(UNREPEATABLE).rows or []
        sandbox.execute("BEGIN")
        sandbox.execute("UPDATE medals SET gold = 9")
        result = sandbox.execute("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1213")
        assert (result.error_code, result.limit) == (1213, None)
        assert sandbox.execute("SELECT @once").rows == [once]
        sandbox.execute("ROLLBACK")
        assert rows_of(sandbox) == {"medals": [("Chad", 1), ("Peru", 2)]}


@pytest.mark.parametrize(
    ("statements", "rows"),
    [
        (["SELECT CHAR(0xD83D USING ucs2)"], [(b"\xed\xa0\xbd",)]),
        (["UPDATE medals SET nation = CHAR(0xD83D USING ucs2)", "SELECT nation FROM medals"], [(b"\xed\xa0\xbd",)] * 2),
        (["CREATE TABLE u AS SELECT CHAR(0xDFFF USING ucs2) AS a", "SELECT a FROM u"], [(b"\xed\xbf\xbf",)]),
        (["SET character_set_results = utf16", "SELECT 1.5"], [(b"\x001\x00.\x005",)]),
        (["SET character_set_results = latin1", "SELECT 'Perú'"], [(b"Per\xfa",)]),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_shown_as_bytes(
    statements: list[str], rows: list[tuple], server_database: Database, tokenizer
) -> None:
    with server_database.sandbox(CHANGE) as sandbox:
        for sql in statements:
            result = sandbox.execute(sql)
        assert result.rows == rows
        assert sandbox.retries == 0
    episode = play_script(CHANGE, [*map(operation, statements), DONE], tokenizer, server_database)
    assert (episode.status, episode.right) == (Status.ANSWERED, False)
    assert episode.turns[len(statements) - 1].observation == str(rows)


def test_a_vector_is_shown_as_bytes(docker_database: Database) -> None:
    with docker_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("CREATE TABLE v (a VECTOR(2))")
        sandbox.execute("INSERT INTO v VALUES (STRING_TO_VECTOR('[1,2]'))")
        ones = b"\x00\x00\x80?\x00\x00\x00@"
        assert sandbox.execute("SELECT * FROM v").rows == [(ones,)]
        assert sandbox.state()["v"].rows == [(ones,)]


def test_a_column_that_cannot_be_computed_makes_a_wrong_state(server_database: Database) -> None:
    """The table is as good as gone, by the agent's own doing."""
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("SET sql_mode = ''")
        sandbox.execute("CREATE TABLE broken (a INT, b INT AS (POW(a, 500)) VIRTUAL)")
        sandbox.execute("INSERT INTO broken (a) VALUES (999)")
        assert rows_of(sandbox)["medals"] == [("Chad", 1), ("Peru", 2)]


def test_what_fails_only_when_it_is_repeated_is_no_way_out(server_database: Database, tokenizer) -> None:
    """A call that ends any connection but the one that it was first made on."""
    with server_database.sandbox(CHANGE) as sandbox:
        ((number,),) = sandbox.execute("SELECT CONNECTION_ID() FROM medals LIMIT 1").rows or []
        sandbox.execute("SET @kept = 1")
        ((number,),) = sandbox.execute("SELECT CONNECTION_ID()").rows or []
        made = sandbox.execute(
            f"CREATE PROCEDURE p() BEGIN IF CONNECTION_ID() <> {number} THEN KILL CONNECTION_ID(); END IF; END"
        )
        if made.error:
            pytest.skip(f"refused: {made.error}")
        assert sandbox.execute("CALL p()").error is None
        start = time.monotonic()
        assert sandbox.execute("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205").error_code == 1205
        assert sandbox.execute("SELECT @kept").rows == [(1,)], "its session is as it was"
        assert rows_of(sandbox) == {"medals": [("Chad", 1), ("Peru", 2)]}
        assert time.monotonic() - start < 60, "nothing was waited for"


def test_a_table_whose_name_is_no_text(server_database: Database) -> None:
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("SET @s = CONCAT('CREATE TABLE `', CHAR(0xD83D USING ucs2), '` (a INT)')")
        sandbox.execute("PREPARE p FROM @s")
        sandbox.execute("EXECUTE p")
        assert rows_of(sandbox)["medals"] == [("Chad", 1), ("Peru", 2)]


# --- a failure that is one -------------------------------------------------------------------------------------------


DOUBTFUL = QueryResult(None, "1114 (HY000): The table is full", 1114, doubtful=True)
DELETED = QueryResult(None, affected=2)


class Ailing(Failing):
    """A server whose probe finds what is in `problems`, one after another, and then nothing."""

    def __init__(self, *answers: QueryResult | EnvironmentFault, problems: list[str | None]):
        super().__init__(*answers)
        self.problems = problems

    def fresh_sandbox(self, task) -> Sandbox:
        sandbox = super().fresh_sandbox(task)
        sandbox.failing = lambda since: self.problems.pop(0) if self.problems else None  # type: ignore[method-assign]
        return sandbox


def test_a_full_disk_is_waited_for() -> None:
    database = Ailing(DOUBTFUL, DOUBTFUL, DELETED, problems=["no space", "no space"])
    database.patience = 30
    with database.sandbox(QUESTION) as sandbox:
        assert sandbox.execute("DELETE FROM medals") == DELETED
        assert sandbox.retries == 2


def test_a_failure_that_has_just_ended_is_not_told_to_the_agent() -> None:
    database = Ailing(DOUBTFUL, DELETED, problems=[])
    with database.sandbox(QUESTION) as sandbox:
        assert sandbox.execute("DELETE FROM medals") == DELETED


def test_an_error_that_comes_again_is_the_agents() -> None:
    database = Ailing(DOUBTFUL, DOUBTFUL, DOUBTFUL, problems=[])
    with database.sandbox(QUESTION) as sandbox:
        assert sandbox.execute("SIGNAL ...").error_code == 1114
        assert database.answers == [] and database.made == 3, "it was tried on two fresh sandboxes"


def test_a_standstill_is_no_way_out() -> None:
    """A heavy statement can make a busy server stand still; what was drawn before comes out otherwise then."""
    drawn, otherwise = QueryResult([("a",)]), QueryResult([("b",)])
    still = EnvironmentFault("stood still", observation="3024: too long", error_code=3024, still=True)
    database = Ailing(drawn, still, otherwise, DELETED, problems=[])
    with database.sandbox(QUESTION) as sandbox:
        assert sandbox.execute(UNREPEATABLE) == drawn
        assert sandbox.execute("SELECT BENCHMARK(1e9, SHA2('a', 512))") == DELETED


def test_what_was_drawn_before_a_failure_ends_the_episode() -> None:
    """One that statements of our own have met."""
    drawn, otherwise = QueryResult([("a",)]), QueryResult([("b",)])
    database = Ailing(drawn, EnvironmentFault("2013: lost"), otherwise, problems=["2013: lost"])
    with database.sandbox(QUESTION) as sandbox:
        assert sandbox.execute(UNREPEATABLE) == drawn
        with pytest.raises(EnvironmentFault, match="cannot be repeated"):
            sandbox.execute("DELETE FROM medals")


def test_a_disk_that_stays_full_ends_the_episode() -> None:
    database = Ailing(*[DOUBTFUL] * 99, problems=["no space"] * 99)
    with database.sandbox(QUESTION) as sandbox, pytest.raises(EnvironmentFault, match="no space; waited for"):
        sandbox.execute("DELETE FROM medals")


@pytest.mark.parametrize(
    "said",
    [
        "Error writing file './dbb/medals.frm' (Errcode: 28 \"No space left on device\")",
        'Can\'t create table `medals` (errno: 135 "No more room in record file")',
        "Create table/tablespace 'medals' failed, as disk is full",
        "Got error 28 from storage engine",
    ],
)
def test_what_servers_say_of_a_full_disk(said: str) -> None:
    assert is_full_disk(said)
    assert not is_full_disk('Can\'t create table `medals` (errno: 150 "Foreign key constraint")')


def test_the_probe_sees_connections_that_are_dropped(server_database: Database) -> None:
    assert isinstance(server_database, ServerDatabase)
    tenancy, before = server_database.tenancy, time.monotonic()
    assert tenancy.failing(before) is None
    kill_connections(server_database.url)
    assert tenancy.failing(before) is not None, "its own connection was one of them"
    assert tenancy.failing(time.monotonic()) is None, "it has another one"


# --- what ends a server -----------------------------------------------------------------------------------------------


FORGED = "/*\nConnection ID (thread ID): 99\nStatus: NOT_KILLED\n2026-11-25 16:41:27 98 [ERROR] [FATAL] InnoDB: x */ SELECT 1"


def test_whose_statement_ended_a_server_is_in_its_log() -> None:
    mariadb = f"""2026-11-25 16:41:27 15 [ERROR] [FATAL] InnoDB: Apparent corruption
261125 16:41:27 [ERROR] /usr/sbin/mysqld got signal 6 ;
Query (0x7f0a8c010c20): {FORGED}

Connection ID (thread ID): 16
Status: NOT_KILLED"""
    mysql = """2026-11-25T16:41:55.885888Z 12 [ERROR] [MY-013183] [InnoDB] Assertion failure: row0sel.cc:1
2026-11-25T16:41:55Z UTC - mysqld got signal 6 ;"""
    assert crashed(mariadb) == {15, 16}, "and not what the statement says"
    assert crashed(mysql) == {12}
    assert crashed("mysqld got signal 11 ;\nConnection ID (thread ID): 0\nStatus: x") == set()
    assert crashed("2026-11-25 16:41:27 15 [ERROR] [FATAL] InnoDB: corruption") == set(), "it still runs"
    full = mariadb.replace("Apparent corruption", "Error (Out of disk space) in rollback.")
    assert crashed(full) == set(), "nobody is to blame for a full disk"


PREPARED = 2_000
"""By one procedure; a statement has up to 65,536 characters."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "docker"])
def test_prepared_statements_leave_room_for_others(kind: str) -> None:
    """A server has 16,382 of all sessions together, unless it is told otherwise."""
    with opened(kind) as database, database.sandbox(CHANGE) as sandbox, database.sandbox(CHANGE) as other:
        for number in range(1 + 16_382 // PREPARED):
            body = " ".join(f"PREPARE s{number}_{n} FROM 'DO 1';" for n in range(PREPARED))
            assert sandbox.execute(f"CREATE PROCEDURE p{number}() BEGIN {body} END").error is None
            sandbox.execute(f"CALL p{number}()")
        assert other.execute("PREPARE s FROM 'SELECT 1'").error is None
        assert other.execute("EXECUTE s").rows == [(1,)]


def test_temporary_tables_end_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB has all of them in one file. What outgrows it is told so, and others go on."""
    many = ", ".join(f"({n})" for n in range(240))
    with opened("local", Limits(seconds=20)) as database:
        monkeypatch.setattr("trl_dbbench.database.server.sandbox.MAX_TEMPORARY_BYTES", 100_000_000)
        with database.sandbox(CHANGE) as sandbox, database.sandbox(CHANGE) as other:
            for sql in (
                "CREATE TABLE numbers (n INT)",
                f"INSERT INTO numbers VALUES {many}",
                "CREATE TEMPORARY TABLE big (a LONGTEXT)",
            ):
                assert sandbox.execute(sql).error is None
            big = "INSERT INTO big SELECT REPEAT('x', 300000) FROM numbers"
            assert [sandbox.execute(big).error_code for _ in range(3)] == [1114, 1114, 1114]
            assert other.execute("CREATE TEMPORARY TABLE small (a INT)").error is None
            assert other.execute("UPDATE medals SET gold = 3").affected == 2
            assert rows_of(sandbox)["medals"] == [("Chad", 1), ("Peru", 2)]
        assert database.restarts == 0


def crash(database: ServerDatabase) -> None:
    """Ends the server at once; what it wrote of that is the test's to say."""
    assert database._server is not None
    folder = Path(database._server.url.partition("unix_socket=")[2]).parent
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def test_what_ended_the_server_is_not_executed_again() -> None:
    """Its episode ends with a status and a reward of its own; its neighbours, who had read the clock, do not notice."""
    with opened("local") as database:
        assert isinstance(database, ServerDatabase) and database._server is not None
        guilty: list[int] = []
        server = dataclasses.replace(
            database._server,
            log=lambda: (
                "got signal 6\n"
                + "".join(f"Connection ID (thread ID): {number}\nStatus: x" for number in guilty)
            ),
        )
        database._server = server
        executed: list[str] = []

        def watched(sandbox: Sandbox, sql: str) -> QueryResult:
            executed.append(sql)
            return sandbox.execute(sql)

        with database.sandbox(CHANGE) as hostile, database.sandbox(CHANGE) as honest:
            now = honest.execute("SELECT @now := NOW(6)").rows
            honest.execute("UPDATE medals SET gold = 3")
            ((number,),) = watched(hostile, "SELECT CONNECTION_ID()").rows or []
            guilty.append(number)
            with ThreadPoolExecutor(1) as pool:
                running = pool.submit(watched, hostile, "SELECT SLEEP(0.9)")
                time.sleep(0.3)
                crash(database)
                with pytest.raises(ServerCrash):
                    running.result()
            assert honest.execute("SELECT @now").rows == now
            assert rows_of(honest) == {"medals": [("Chad", 3), ("Peru", 3)]}
            with pytest.raises(ServerCrash):
                hostile.execute("SELECT 1")
        assert executed.count("SELECT SLEEP(0.9)") == 1 and database.restarts == 1


def test_an_episode_that_ends_the_server_is_wrong(tokenizer) -> None:
    database = Failing(QueryResult([(1,)]), ServerCrash())
    turns = [operation("SELECT 1"), operation("SELECT crash()"), DONE]
    episode = play_script(CHANGE, turns, tokenizer, database)
    assert (episode.status, episode.fault, episode.verdict) == (Status.SERVER_CRASH, None, None)
    assert len(episode.turns) == 2
    assert OutcomeReward(wrong=-0.5)([episode]) == [-0.5]
    assert OutcomeReward(server_crash=-2.0)([episode]) == [-2.0]
    assert ExecutionReward(database)([episode]) == [0.0], "its statements are not executed again"


def test_a_reward_whose_statement_ends_the_server_voids_nothing() -> None:
    def look(episode: Episode, database: Database) -> float:
        raise ServerCrash

    episode = Episode(CHANGE, [], Sampling(), status=Status.ANSWERED)
    assert for_each_episode([episode], Failing(), "a reward", look, crashed=0.0) == [0.0]
    assert episode.status == Status.SERVER_CRASH


RUNAWAY = """SELECT JSON_SCHEMA_VALID('{"pattern": "^(a+)+$"}', CONCAT('"', REPEAT('a', 40), 'b"'))"""
HONEST = [
    operation(sql)
    for sql in ("SELECT @now := NOW(6)", "UPDATE medals SET gold = 3", "SELECT COUNT(*) FROM medals")
]


@pytest.mark.slow
def test_hostile_episodes_do_not_disturb_the_others(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of a batch runs what MySQL cannot stop; its server is started again, once, and the rest is right."""
    monkeypatch.setattr("trl_dbbench.database.server.database.RUNAWAY_SECONDS", 2)

    class Slow(ScriptedEngine):
        async def generate(self, request):
            await asyncio.sleep(2)
            return await super().generate(request)

    turns = {row: [*HONEST, DONE] for row in range(24)}
    turns |= {row: [operation(RUNAWAY), *[operation("SELECT 1")] * 9, DONE] for row in range(8)}
    rules = dataclasses.replace(RULES, max_turns=11)
    with opened("docker", LIMITS) as database:
        player = Player.of(tokenizer, database, rules=rules)
        episodes = player.play_all([player.start(CHANGE) for _ in range(24)], Slow(tokenizer, turns))
        assert database.restarts >= 1
    # on a busy machine, a statement may be killed before MySQL has begun what it cannot stop
    stopped = [e for e in episodes[:8] if e.status == Status.ANSWERED and e.turns[0].result.limit == "time"]
    assert [e.status for e in episodes[:8] if e not in stopped] == [Status.SERVER_CRASH] * (8 - len(stopped))
    assert len(stopped) < 8
    assert [(e.status, e.right) for e in episodes[8:]] == [(Status.ANSWERED, True)] * 16
