"""Rewards for SQL that is fast: by the clock on every database, by the optimizer's cost on MySQL."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from databases import table

from trl_dbbench.database import Database, Limits, QueryResult
from trl_dbbench.episode.judge import Verdict
from trl_dbbench.episode.protocol import Answer, Operation
from trl_dbbench.episode.types import Completion, Episode, Sampling, Status, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.efficiency import BANDS, EfficiencyReward, QueryCostReward, of_ratio, sql_of
from trl_dbbench.rewards.registry import describe_reward, load_reward_functions
from trl_dbbench.tasks import Gold, Task

NUMBERS = table("numbers", "id INT PRIMARY KEY, square INT", *[(n, n * n) for n in range(400)])
FAST = "SELECT square FROM numbers WHERE id = 20"
SLOW = "SELECT MAX(a.square) FROM numbers AS a, numbers AS b WHERE a.square = 400 AND b.id + a.id > 0"


def episode(gold: str | None, *actions: Operation | Answer, right: bool = True) -> Episode:
    asked = Task("q", "?", (NUMBERS,), "SELECT", Gold(sql=gold), grader="strict")
    turns = [Turn(Completion([7], [0.0]), "", action, QueryResult([])) for action in actions]
    return Episode(asked, [1], Sampling(), turns, Status.ANSWERED, verdict=Verdict(right))


@pytest.mark.parametrize(
    ("ratio", "squared"),
    [
        (9.0, 1.25),
        (2.0, 1.25),
        (1.99, 1.0),
        (1.0, 1.0),
        (0.9, 1.0),
        (0.89, 0.75),
        (0.5, 0.75),
        (0.3, 0.5),
        (0.1, 0.25),
    ],
)
def test_the_bands_of_r_ves(ratio: float, squared: float) -> None:
    assert of_ratio(ratio) == pytest.approx(squared**0.5)


class Clocked(Database):
    """A database that takes so many seconds for each statement, one after the other."""

    def __init__(self, seconds: dict[str, list[float]]):
        self.seconds = seconds

    def sandbox(self, task: Task) -> Any:
        return nullcontext(self)

    def execute(self, sql: str, limits: Limits) -> QueryResult:
        seconds = self.seconds[sql]
        return QueryResult([(400,)], seconds=seconds.pop(0) if seconds else 0.0)

    def fresh_sandbox(self, task: Task) -> Any: ...
    def describe(self) -> str: ...
    def close(self) -> None: ...


def test_medians_of_statements_executed_by_turns_are_compared() -> None:
    """The gold took 1 s, but for a hiccup; the agent's 2.1 s, then 0.4 s, then 1.05 s, which counts as 1."""
    gold, rewards = [1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 0.9], []
    for own in (2.1, 0.4, 1.05):
        database = Clocked({"SELECT 400": list(gold), "SELECT 20 * 20": [own] * 6 + [99.0]})
        (value,) = EfficiencyReward(database)([episode("SELECT 400", Answer("SELECT 20 * 20"))])
        rewards.append(value)
    assert rewards == pytest.approx([0.5**0.5, 1.25**0.5, 1.0])


def test_statements_are_executed_where_the_agents_ran(database: Database) -> None:
    """How fast they are is the machine's affair; that both ran shows in a value of the bands."""
    reward = EfficiencyReward(database)
    values = reward([episode(FAST, Answer(SLOW)), episode(SLOW, Answer(FAST))])
    assert {value for value in values if value is not None} <= {of_ratio(ratio) for ratio, _ in BANDS}
    assert None not in values


def test_what_is_wrong_gets_nothing_and_what_cannot_be_compared_is_left_out(
    sqlite_database: Database,
) -> None:
    reward = EfficiencyReward(sqlite_database)
    assert reward([episode(FAST, Answer(FAST), right=False), episode(FAST, Answer("no SQL"))]) == [0.0, 0.0]
    assert reward([episode(None, Answer(FAST)), episode("SELECT nothing", Answer(FAST))]) == [None, None]
    change = Task("c", "?", (NUMBERS,), "DELETE", Gold(sql="DELETE FROM numbers WHERE id = 1"))
    assert reward([replace(episode(FAST, Answer("done")), task=change)]) == [None]


def test_an_answer_in_words_is_paid_for_a_statement_that_gives_it(sqlite_database: Database) -> None:
    """Not for the fastest statement that one can run after having seen the rows."""
    reward, right = EfficiencyReward(sqlite_database), Answer("[(400,)]")
    looked, fast, table = (Operation(sql) for sql in (FAST, "SELECT 1", "SELECT * FROM numbers"))
    assert reward([episode(FAST, looked, fast, right), episode(FAST, table, right)]) == [0.0, 0.0]
    paid, broken = reward([episode(FAST, fast, looked, right), episode("SELECT nothing", looked, right)])
    assert paid is not None and paid > 0
    assert broken is None


@pytest.mark.parametrize("seen", ["SELECT 400", "SELECT 400 FROM numbers WHERE id = 1"])
def test_sql_that_names_what_it_has_seen_is_not_paid(database: Database, seen: str) -> None:
    """It gives the gold's rows, on these tables alone."""
    reward = EfficiencyReward(database)
    looked, named = Operation(FAST), Operation(seen)
    episodes = [episode(SLOW, Answer(seen)), episode(SLOW, looked, named, Answer("[(400,)]"))]
    assert reward(episodes) == [0.0, 0.0]
    (paid,) = reward([episode(SLOW, Answer(FAST))])
    assert paid


def test_the_sql_that_an_episode_ends_with() -> None:
    assert sql_of(episode(FAST, Operation("SELECT 1"), Answer(FAST))) == FAST
    assert sql_of(episode(FAST, Operation("SELECT 1"), Answer(""))) == "SELECT 1"
    assert sql_of(episode(FAST, Operation("SELECT 1"), Answer("400"))) == "SELECT 1"
    assert sql_of(episode(FAST, Answer("400"))) is None


@pytest.mark.parametrize("version", [1, 2])
def test_costs_are_those_of_mysqls_plans(docker_database: Database, version: int) -> None:
    """The same at every time, in both formats of EXPLAIN."""
    reward = QueryCostReward(docker_database)
    slow = episode(FAST, Answer(SLOW))
    with docker_database.sandbox(slow.task) as sandbox:
        sandbox.execute(f"SET explain_json_format_version = {version}")
        costs = [reward._measure(sandbox, FAST, SLOW) for _ in range(2)]
    assert costs[0] == costs[1] and costs[0] is not None
    gold, own = costs[0]
    assert 0 < gold < own / 4
    assert reward([slow, episode(FAST, Answer(FAST))]) == [0.5, 1.0]


def test_costs_need_mysql(sqlite_database: Database, local_database: Database) -> None:
    for other in (sqlite_database, local_database):
        with pytest.raises(ConfigError, match=r"query_cost goes by the costs of MySQL's EXPLAIN"):
            load_reward_functions(["outcome", "query_cost"], database=other)


def test_they_are_found_by_name_and_known_by_it(docker_database: Database) -> None:
    loaded = load_reward_functions(["efficiency", "query_cost"], database=docker_database)
    assert [describe_reward(each) for each in loaded] == [
        {"function": "efficiency"},
        {"function": "query_cost"},
    ]
