"""Rewards for single turns: what ran, what was seen, how much nearer the tables came to what they should be."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_rewards import CHANGE, FAULT, QUESTION
from trl.trainer.utils import is_async_callable

from trl_dbbench.database import Database
from trl_dbbench.episode.protocol import Action, Answer, Invalid, Operation, Reply, TextProtocol
from trl_dbbench.episode.table_states import states_along
from trl_dbbench.episode.types import Completion, Episode, Sampling, Status, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading.rows import TableState, same_state
from trl_dbbench.rewards.registry import call_reward, load_reward_functions, with_step_rewards
from trl_dbbench.rewards.steps import StateProgress, answer_seen, executes, potential
from trl_dbbench.runs.rescore import values_of
from trl_dbbench.tasks import Gold, Task


def played(database: Database, task: Task, *actions: Action) -> Episode:
    """An episode in which the agent took these actions on real tables."""
    turns = []
    with database.sandbox(task) as sandbox:
        for action in actions:
            result = sandbox.execute(action.sql) if isinstance(action, Operation) else None
            turns.append(Turn(Completion([1], [0.0]), "", action, result))
    return Episode(task, [0], Sampling(), turns, Status.ANSWERED)


def test_what_ran(sqlite_database):
    episode = played(
        sqlite_database,
        QUESTION,
        Operation("SELECT nmae FROM fruits"),  # unknown column
        Invalid("no action"),
        Operation("SELECT name FROM fruits"),
        Answer("[]"),
    )
    assert executes([episode, FAULT]) == [[0.0, 0.0, 1.0, None], None]


def test_an_answer_is_paid_once_in_shares_of_its_cells(sqlite_database):
    """The gold answer is pear and plum."""
    episode = played(
        sqlite_database,
        QUESTION,
        Operation("SELECT price FROM fruits"),
        Operation("SELECT name FROM fruits WHERE price = 3"),
        Operation("SELECT * FROM fruits"),
        Operation("SELECT * FROM fruits"),
        Answer("[('pear',), ('plum',)]"),
    )
    assert answer_seen([episode]) == [[0.0, 0.5, 0.5, 0.0, 0.0]]
    assert answer_seen([played(sqlite_database, CHANGE, Answer("done")), FAULT]) == [None, None]


def test_cells_that_the_observation_cut_off_are_not_seen(sqlite_database):
    """The gold answer is pear and plum; a program that plays the episode reads the rows themselves."""
    episode = played(sqlite_database, QUESTION, Operation("SELECT name FROM fruits ORDER BY name"))
    (turn,) = episode.turns
    whole = TextProtocol(None).observe(turn.result)
    assert whole == "[('apple',), ('pear',), ('plum',)]"
    for shown, share in (
        (whole, 1.0),
        ("[('apple',), ('pear',), ('plum'", 1.0),
        ("[('apple',), ('pear',), ('plum", 0.5),
    ):
        turn.observation = TextProtocol(len(shown)).observe(turn.result)
        assert answer_seen([episode]) == [[share]]
    turn.completion = Completion([], [])
    episode.turns.insert(0, Turn(Completion([1], [0.0]), "I look.", Reply("I look.")))
    assert answer_seen([episode]) == [[0.0, 1.0]]


@pytest.mark.parametrize("cell, label", [(3, "3"), ("3", 3), (3, "3.0"), (" Oslo", "Oslo"), ("Nan", "Nan")])
def test_cells_are_compared_as_numbers_where_both_are(sqlite_database, cell, label):
    text = f"'{cell}'" if isinstance(cell, str) else str(cell)
    task = replace(QUESTION, gold=Gold(answer=(label,)))
    episode = played(sqlite_database, task, Operation(f"SELECT {text}"), Answer("x"))
    assert answer_seen([episode]) == [[1.0, 0.0]]


@pytest.mark.parametrize("answer", [(), ((),)])
def test_an_answer_without_cells_cannot_be_seen(sqlite_database, answer):
    """As `"answer": [[]]` in a file, for a grader of rows."""
    task = replace(QUESTION, gold=Gold(answer=answer))
    assert answer_seen([played(sqlite_database, task, Answer("x"))]) == [None]


def test_a_time_is_seen_as_mysql_prints_it(sqlite_database):
    """Drivers return a timedelta, which Python prints as 1:30:00."""
    task = replace(QUESTION, gold=Gold(answer=("01:30:00",)))
    episode = played(sqlite_database, task, Operation("SELECT CAST('01:30:00' AS TIME)"), Answer("x"))
    assert answer_seen([episode]) == [[1.0, 0.0]]


def test_progress_of_a_change_by_the_rows_that_are_right(sqlite_database):
    """apple is to go. Of apple, pear and plum two of three agree with the goal; without plum one of three."""
    episode = played(
        sqlite_database,
        CHANGE,
        Operation("SELECT * FROM fruits"),
        Operation("DELETE FROM fruits WHERE name = 'plum'"),
        Operation("INSERT INTO fruits VALUES ('plum', 4)"),
        Operation("DELETE FROM fruits WHERE name = 'apple'"),
        Answer("done"),
    )
    reward = StateProgress(sqlite_database)
    assert reward([episode]) == [pytest.approx([0, -1 / 3, 1 / 3, 1 / 3, 0])]
    assert reward([played(sqlite_database, QUESTION, Answer("x")), FAULT]) == [None, None]


def test_numbers_that_differ_by_rounding_are_the_same_row():
    """As the judge compares them."""
    now, gold = (TableState(("p",), [(number,)]) for number in (0.1 + 0.2, 0.3))
    assert potential({"t": now}, {"t": gold}) == 1
    assert potential({"t": TableState(("p",), [(0.31,)])}, {"t": gold}) == 0


def test_the_tables_along_an_episode_are_one_object_where_nothing_changed(sqlite_database):
    episode = played(
        sqlite_database,
        CHANGE,
        Operation("SELECT * FROM fruits"),
        Operation("DELETE FROM fruits"),
        Answer("done"),
    )
    first, looked, emptied, answered = states_along(episode, sqlite_database)
    assert first is looked and emptied is answered
    assert len(first["fruits"].rows) == 3 and emptied["fruits"].rows == []


def test_a_change_by_chance_is_no_way_out_of_an_episode(sqlite_database):
    """It counts as it comes out when it is executed again; what only reads is not executed again."""
    episode = played(sqlite_database, CHANGE, Operation("SELECT RAND()"), Answer("done"))
    assert StateProgress(sqlite_database)([episode]) == [[0.0, 0.0]]
    by_chance = "UPDATE fruits SET price = FLOOR(100 + 100 * RAND())"
    episode = played(sqlite_database, CHANGE, Operation(by_chance), Answer("done"))
    assert StateProgress(sqlite_database)([episode]) == [[pytest.approx(-2 / 3), 0.0]]
    assert episode.status == Status.ANSWERED


TABLES = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.lists(st.tuples(st.integers(0, 2), st.none() | st.text(max_size=1)), max_size=4).map(
        lambda rows: TableState(("x", "y"), rows)
    ),
    max_size=2,
)


@given(TABLES, TABLES)
def test_a_potential_is_a_share_and_symmetric_and_1_only_where_all_rows_are_right(state, gold):
    share = potential(state, gold)
    assert 0 <= share <= 1 and share == potential(gold, state)
    assert potential(state, state) == 1
    if state.keys() == gold.keys():
        assert (share == 1) == same_state(state, gold)


def test_they_are_loaded_by_name_and_summed(sqlite_database):
    episode = played(
        sqlite_database, QUESTION, Operation("SELECT name FROM fruits WHERE price > 2"), Answer("x")
    )
    functions = load_reward_functions(["executes", "answer_seen", "state_progress"], database=sqlite_database)
    sums = [with_step_rewards(function)(episode=[episode]) for function in functions]
    assert sums == [[1.0], [1.0], [None]]
    assert [turn.rewards for turn in episode.turns] == [
        {"executes": 1.0, "answer_seen": 1.0},
        {"answer_seen": 0.0},
    ]


# --- a user's own -------------------------------------------------------------------------------------------


LOOK_AND_ANSWER = (Operation("SELECT name FROM fruits"), Answer("[]"))


@pytest.mark.parametrize(
    "values",
    [
        [[0.5, None], [1, 2]],
        [(0.5, math.nan), (1, 2.0)],
        [np.array([0.5, math.nan]), np.array([1, 2])],
        [torch.tensor([0.5, math.nan]), torch.tensor([1, 2])],
        [[np.float32(0.5), None], [torch.tensor(1.0), 2]],
        np.array([[0.5, math.nan], [1.0, 2.0]]),
    ],
)
def test_step_rewards_of_a_function_of_your_own(sqlite_database, values):
    """A step without a number has no opinion. It does not cancel the others."""
    episodes = [played(sqlite_database, QUESTION, *LOOK_AND_ANSWER) for _ in range(2)]

    def mine(episode, **kwargs):
        return values

    assert with_step_rewards(mine)(episode=episodes) == [0.5, 3.0]
    assert [[turn.rewards for turn in each.turns] for each in episodes] == [
        [{"mine": 0.5}, {}],
        [{"mine": 1.0}, {"mine": 2.0}],
    ]


@pytest.mark.parametrize(
    "values",
    [
        [1, None],
        [np.float32(1), math.nan],
        np.array([1, math.nan]),
        torch.tensor([1, math.nan]),
        (True, math.inf),
    ],
)
def test_a_number_for_each_episode_may_be_numpys_or_pytorchs(sqlite_database, values):
    episodes = [played(sqlite_database, QUESTION, *LOOK_AND_ANSWER) for _ in range(2)]

    def mine(episode, **kwargs):
        return values

    assert with_step_rewards(mine)(episode=episodes) == [1.0, None]


@pytest.mark.parametrize(
    ("values", "said"), [(["1"], "'1'"), ([["good", None]], "'good'"), ([[[1], 2]], r"\[1\]")]
)
def test_what_is_no_number_is_refused_by_the_functions_name(sqlite_database, values, said):
    def mine(episode, **kwargs):
        return values

    with pytest.raises(
        ConfigError, match=f"reward function 'mine' gave {said} as a reward; give a number, or None"
    ):
        with_step_rewards(mine)(episode=[played(sqlite_database, QUESTION, *LOOK_AND_ANSWER)])


def test_a_function_without_kwargs_is_refused_before_anything_is_played():
    def short(episode):
        return [-0.1 * len(each.turns) for each in episode]

    class Short:
        def __call__(self, episode, **kwargs):
            return short(episode)

    error = r"'short' cannot take .* 'prompts'\. Write it as def short\(episode, \*\*kwargs\)"
    with pytest.raises(ConfigError, match=error):
        with_step_rewards(short)
    with pytest.raises(ConfigError, match=r"'Short' cannot take .* unexpected keyword argument 'episode'"):
        with_step_rewards(Short)  # the class in the place of an object
    assert with_step_rewards(Short())(episode=[FAULT]) == [-0.1 * len(FAULT.turns)]

    def of_columns(completions, task, **kwargs):  # a column of the dataset
        return [0.0] * len(task)

    assert with_step_rewards(of_columns)(episode=[FAULT], completions=[[]], task=["{}"]) == [0]


def test_what_a_reward_function_raises_has_the_functions_name(sqlite_database):
    def mine(episode, **kwargs):
        return [each.answer.values[0] for each in episode]  # None in the text protocol

    async def asks(episode, **kwargs):
        raise ConnectionError("no reply")

    episodes = [played(sqlite_database, QUESTION, *LOOK_AND_ANSWER)]
    for function, kind in ((mine, TypeError), (asks, ConnectionError)):
        with pytest.raises(kind) as raised:
            call_reward(with_step_rewards(function), episode=episodes)
        assert raised.value.__notes__ == [f"raised by the reward function '{function.__name__}'"]


async def judged(episode, **kwargs):
    await asyncio.sleep(0)
    return [[0.25] * len(each.turns) for each in episode]


def test_a_coroutine_function_gives_step_rewards_to_trl_and_to_a_replay(sqlite_database):
    episodes = [played(sqlite_database, QUESTION, *LOOK_AND_ANSWER)]
    function = with_step_rewards(judged)
    assert is_async_callable(function), "TRL awaits it beside others"
    assert asyncio.run(function(episode=episodes)) == [0.5]
    assert episodes[0].turns[1].rewards == {"judged": 0.25}
    assert values_of(function, episodes, [[]]) == [0.5]


def test_a_replay_awaits_where_a_notebooks_loop_runs(sqlite_database):
    async def cell():
        return values_of(
            with_step_rewards(judged), [played(sqlite_database, QUESTION, *LOOK_AND_ANSWER)], [[]]
        )

    assert asyncio.run(cell()) == [0.5]
