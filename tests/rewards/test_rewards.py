"""What an episode is worth."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import BrokenDatabase

from trl_dbbench.database import Database, QueryResult
from trl_dbbench.episode.judge import Verdict
from trl_dbbench.episode.protocol import Action, Answer, Invalid, Operation
from trl_dbbench.episode.types import Completion, Episode, Sampling, Status, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.outcome import OUTCOME_PRESETS, ExecutionReward, OutcomeReward, format_reward
from trl_dbbench.rewards.registry import load_reward_functions
from trl_dbbench.tasks import Column, Gold, Table, Task

FRUITS = Table("fruits", (Column("name"), Column("price", "INT")), (("apple", 1), ("pear", 3), ("plum", 4)))

QUESTION = Task(
    "question",
    "Which fruits cost more than 2?",
    (FRUITS,),
    "SELECT",
    Gold(answer=(("pear",), ("plum",)), sql="SELECT name FROM fruits WHERE price > 2"),
    skills=("select", "where_single_condition"),
)
SORTED = Task(
    "sorted",
    "All fruits, the dearest first.",
    (FRUITS,),
    "SELECT",
    Gold(answer=(("plum",), ("pear",), ("apple",)), sql="SELECT name FROM fruits ORDER BY price DESC"),
    skills=("select", "order_by_single_column"),
)
CHANGE = Task(
    "change", "Drop the apple.", (FRUITS,), "DELETE", Gold(sql="DELETE FROM fruits WHERE name = 'apple'")
)


def episode(
    task: Task, *actions: Action, status: Status = Status.ANSWERED, right: bool | None = None
) -> Episode:
    """An episode in which the agent took these actions."""
    executed = [QueryResult([]) if isinstance(action, Operation) else None for action in actions]
    turns = [
        Turn(Completion([1], [0.0]), "", action, result)
        for action, result in zip(actions, executed, strict=True)
    ]
    return Episode(task, [0], Sampling(), turns, status, None if right is None else Verdict(right))


def asked(task: Task, *statements: str) -> Episode:
    return episode(task, *map(Operation, statements), Answer("whatever"), right=False)


FAULT = episode(QUESTION, Operation("SELECT 1"), status=Status.ENVIRONMENT_FAULT)


# --- outcome -----------------------------------------------------------------------------------------

ENDS = [
    episode(QUESTION, Answer("[('pear',), ('plum',)]"), right=True),
    episode(QUESTION, Answer("[]"), right=False),
    episode(QUESTION, Operation("SELECT 1"), status=Status.TURN_LIMIT),
    episode(QUESTION, Operation("SELECT 1"), status=Status.OUT_OF_TOKENS),
    episode(QUESTION, Invalid("?"), status=Status.INVALID_ACTION),
    FAULT,
]


@pytest.mark.parametrize(
    ("preset", "values"),
    [
        #                      right  wrong  turns  tokens invalid fault
        ("greedy_then_grpo", [+1.0, -1.0, -0.8, -0.8, -0.2, None]),
        ("reinforce", [+1.0, -0.1, -0.3, -0.3, -0.1, None]),
    ],
)
def test_outcome_presets(preset: str, values: list[float | None]) -> None:
    assert OUTCOME_PRESETS[preset](episode=ENDS, prompts=["unused"]) == values


def test_outcome_values_are_settings() -> None:
    assert OutcomeReward(right=5, wrong=4, turn_limit=3, invalid_action=2)(ENDS) == [5, 4, 3, 3, 2, None]
    assert OutcomeReward()(ENDS) == OUTCOME_PRESETS["greedy_then_grpo"](ENDS)


# --- execution --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("played", "value"),
    [
        (asked(QUESTION, "SELECT name FROM fruits WHERE price > 2"), 1.0),
        (
            asked(QUESTION, "SELECT name FROM fruits WHERE price >= 3 ORDER BY name DESC"),
            1.0,
        ),  # order is not asked for
        (asked(QUESTION, "SELECT name FROM fruits"), 0.0),
        (asked(QUESTION, "SELECT name, price FROM fruits WHERE price > 2"), 0.0),
        (asked(QUESTION, "SELECT nothing FROM fruits"), 0.0),  # refused
        (asked(QUESTION, "DELETE FROM fruits"), 0.0),  # no rows
        (asked(QUESTION, ""), 0.0),
        (asked(QUESTION), 0.0),  # answered without a look
        (asked(QUESTION, "SELECT 1", "SELECT name FROM fruits WHERE price > 2"), 1.0),  # the last one counts
        (asked(QUESTION, "SELECT name FROM fruits WHERE price > 2", "SELECT 1"), 0.0),
        (asked(SORTED, "SELECT name FROM fruits ORDER BY price DESC"), 1.0),
        (asked(SORTED, "SELECT name FROM fruits ORDER BY price"), 0.0),  # the same rows, the other way round
        (asked(CHANGE, "DELETE FROM fruits WHERE price < 2"), 1.0),
        (asked(CHANGE, "DELETE FROM fruits"), 0.0),
        (asked(CHANGE, "DROP TABLE fruits"), 0.0),
        (asked(CHANGE, "DELET FROM fruits"), 0.0),
        (asked(CHANGE, "SELECT 1"), 0.0),
        (asked(CHANGE), 0.0),
    ],
    ids=lambda value: (value.statements or ["no SQL"])[-1] if isinstance(value, Episode) else None,
)
def test_execution_reward(sqlite_database: Database, played: Episode, value: float) -> None:
    assert ExecutionReward(sqlite_database)([played]) == [value]


@pytest.mark.parametrize(
    "statements", [(), ("SHOW TABLES",), ("SELECT 1",)], ids=lambda statements: "; ".join(statements) or None
)
def test_an_answer_in_sql_is_the_last_sql(sqlite_database: Database, statements: tuple[str, ...]) -> None:
    answers = [QUESTION.gold.sql, "SELECT name FROM fruits"]
    played = [episode(QUESTION, *map(Operation, statements), Answer(str(sql))) for sql in answers]
    assert ExecutionReward(sqlite_database)(played) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("later", "value"),
    [
        ("DESCRIBE fruits", 1.0),
        ("SHOW COLUMNS FROM fruits", 1.0),
        ("SHOW INDEX FROM fruits", 1.0),
        ("COMMIT;", 1.0),
        ("SELEC * FROM fruits", 1.0),  # it fails
        ("DELETE FROM vegetables", 1.0),
        ("ROLLBACK", 0.0),
        ("DELETE FROM fruits", 0.0),
    ],
)
def test_the_last_change_is_the_one_that_succeeded(
    sqlite_database: Database, later: str, value: float
) -> None:
    played = asked(CHANGE, "BEGIN", "DELETE FROM fruits WHERE name = 'apple'", later)
    with sqlite_database.sandbox(CHANGE) as sandbox:
        for turn in played.turns:
            if isinstance(turn.action, Operation):
                turn.result = sandbox.execute(turn.action.sql)
    assert ExecutionReward(sqlite_database)([played]) == [value]


def test_the_order_counts_where_the_gold_sorts_whatever_skills_the_file_names(
    sqlite_database: Database,
) -> None:
    task = Task.from_json(json.dumps(json.loads(SORTED.to_json()) | {"skills": ["select"]}))
    assert task.skills == ("select",)
    played = [asked(task, f"SELECT name FROM fruits ORDER BY price {way}") for way in ("DESC", "ASC")]
    assert ExecutionReward(sqlite_database)(played) == [1.0, 0.0]


def test_the_order_does_not_count_where_only_a_subquery_sorts(sqlite_database: Database) -> None:
    sql = "SELECT name FROM fruits WHERE price >= (SELECT price FROM fruits ORDER BY price LIMIT 1 OFFSET 1)"
    task = Task.from_json(
        json.dumps(
            json.loads(QUESTION.to_json()) | {"sql": sql, "skills": ["select", "order_by_single_column"]}
        )
    )
    played = [
        asked(task, f"SELECT name FROM fruits WHERE price > 2 ORDER BY name {way}") for way in ("ASC", "DESC")
    ]
    assert ExecutionReward(sqlite_database)(played) == [1.0, 1.0]


def test_execution_reward_counts_however_the_episode_ended(sqlite_database: Database) -> None:
    sql = Operation("SELECT name FROM fruits WHERE price > 2")
    ends = [Status.ANSWERED, Status.TURN_LIMIT, Status.OUT_OF_TOKENS, Status.INVALID_ACTION]
    played = [episode(QUESTION, sql, status=status) for status in ends]
    assert ExecutionReward(sqlite_database)(played) == [1.0, 1.0, 1.0, 1.0]


def test_a_statement_that_the_token_limit_kept_from_being_executed_is_not_paid(
    sqlite_database: Database,
) -> None:
    """It is complete, but the turn around it was cut off: the episode ended before it was executed."""
    played = [
        episode(task, Operation(str(task.gold.sql)), status=Status.OUT_OF_TOKENS)
        for task in (QUESTION, CHANGE)
    ]
    assert ExecutionReward(sqlite_database)(played) == [1.0, 1.0]
    for each in played:
        each.turns[-1].result = None
    assert ExecutionReward(sqlite_database)(played) == [0.0, 0.0]
    assert [each.statements for each in played] == [[], []]


def test_a_look_in_sqlites_own_dialect_changes_nothing(sqlite_database: Database) -> None:
    """MySQL could not read the name of the table."""
    task = replace(CHANGE, dialect="sqlite")
    played = asked(task, "DELETE FROM fruits WHERE name = 'apple'", "SELECT * FROM [fruits]")
    assert ExecutionReward(sqlite_database)([played]) == [1.0]


def with_gold(task: Task, gold: Gold) -> Task:
    return Task(task.id, task.question, task.tables, task.operation, gold)


def test_execution_reward_is_none_where_the_gold_cannot_say(sqlite_database: Database) -> None:
    played = [
        asked(with_gold(QUESTION, Gold(answer=((1,),))), "SELECT 1"),  # no gold SQL, as in AgentBench
        asked(with_gold(QUESTION, Gold(answer=((1,),), sql="SELECT oops FROM fruits")), "SELECT 1"),
        asked(with_gold(CHANGE, Gold(sql="DELETE FROM vegetables")), "DELETE FROM fruits"),
        FAULT,
    ]
    assert ExecutionReward(sqlite_database)(played) == [None, None, None, None]


def test_a_broken_database_gives_no_reward_instead_of_a_bad_one() -> None:
    played = [asked(QUESTION, "SELECT 1"), asked(CHANGE, "DELETE FROM fruits")]
    assert ExecutionReward(BrokenDatabase(at_start=True))(played) == [None, None]
    for each in played:
        assert each.status == Status.ENVIRONMENT_FAULT and not each.right
        assert each.fault is not None and each.fault.startswith("the reward execution: ")


def test_tasks_with_the_same_id_do_not_share_a_gold_state(sqlite_database: Database) -> None:
    """Ids are unique in a file; AgentBench's are line numbers, so its files share them."""
    other = with_gold(CHANGE, Gold(sql="DELETE FROM fruits WHERE name = 'plum'"))
    reward, sql = ExecutionReward(sqlite_database), "DELETE FROM fruits WHERE name = 'apple'"
    assert reward([asked(CHANGE, sql)]) == [1.0]
    assert reward([asked(other, sql)]) == [0.0]


# --- format -------------------------------------------------------------------------------------------------


def test_format_reward_is_the_share_of_readable_turns() -> None:
    sql, bad, answer = Operation("SELECT 1"), Invalid("?"), Answer("1")
    played = [
        episode(QUESTION, sql, answer),
        episode(QUESTION, bad, sql, answer, bad),
        episode(QUESTION, bad, status=Status.INVALID_ACTION),
        FAULT,
        episode(QUESTION, status=Status.ENVIRONMENT_FAULT),  # failed before the first turn
    ]
    assert format_reward(played) == [1.0, 0.5, 0.0, None, None]


# --- by name ------------------------------------------------------------------------------------------------


@pytest.fixture
def load(sqlite_database: Database) -> Callable[..., list]:
    return lambda *names, **how: load_reward_functions(names, database=sqlite_database, **how)


def test_rewards_by_name(load: Callable[..., list]) -> None:
    outcome, execution, form = load("outcome", "execution", "format", outcome=OUTCOME_PRESETS["reinforce"])
    assert outcome == OUTCOME_PRESETS["reinforce"]
    assert isinstance(execution, ExecutionReward)
    assert form is format_reward
    # TRL logs a function's values under its name
    assert [f.__name__ for f in (outcome, execution, form)] == ["outcome", "execution", "format_reward"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return tmp_path


def test_a_users_own_function_gets_the_episodes(load: Callable[..., list], here: Path) -> None:
    (here / "my_rewards.py").write_text(
        "def short(episode, **kwargs):\n    return [-0.1 * len(e.turns) for e in episode]\n"
    )
    (short,) = load("my_rewards.short")
    assert load("my_rewards:short", "my_rewards.py:short")[0] is short
    assert short(episode=[asked(QUESTION, "SELECT 1")], prompts=[]) == [-0.2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "speed",
            "unknown reward function 'speed'; allowed: outcome, answer_seen, efficiency, executes, execution, "
            "format, query_cost, state_progress, or the dotted path of your own",
        ),
        ("", "unknown reward function ''"),
        ("no_such_module.short", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "bad_rewards.gone",
            "cannot be imported: AttributeError: module 'bad_rewards' has no attribute 'gone'",
        ),
        ("bad_rewards.number", "the reward function 'bad_rewards.number' is not callable but int"),
        ("bad_syntax.short", "cannot be imported: SyntaxError: "),
        ("bad_start.short", "cannot be imported: ZeroDivisionError: division by zero"),
        (".short", "cannot be imported: ValueError"),
        ("bad_rewards.", "cannot be imported: AttributeError"),
        ("..", "cannot be imported: "),
    ],
)
def test_functions_that_cannot_be_had(load: Callable[..., list], here: Path, name: str, message: str) -> None:
    (here / "bad_rewards.py").write_text("number = 5\n")
    (here / "bad_syntax.py").write_text("def short(:\n")
    (here / "bad_start.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError) as error:
        load("outcome", name)
    assert message in str(error.value)


def test_faults_are_none_everywhere(load: Callable[..., list]) -> None:
    functions: list[Any] = load("outcome", "execution", "format")
    assert [function([FAULT]) for function in functions] == [[None], [None], [None]]
