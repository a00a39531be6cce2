"""Episodes, with an agent that says what the test wrote: tokens, masks, statuses, verdicts."""

from __future__ import annotations

import dataclasses
import json

import pytest
from examples import examples
from fakes import BrokenDatabase, ScriptedEngine, play_script
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from trl_dbbench.database import open_database
from trl_dbbench.episode.types import Episode, Rules, Sampling, Status
from trl_dbbench.errors import ConfigError, DatabaseError
from trl_dbbench.runs.records import episode_record
from trl_dbbench.tasks import Task

LOOK = "Let me look.\nAction: Operation\n```sql\nSELECT id FROM orders;\n```"
COUNT = "Now count.\nAction: Operation\n```sql\nSELECT COUNT(*)\nFROM orders WHERE late = 1\n```"
RIGHT = "Action: Answer\nFinal Answer: [(2,)]"
WRONG = "Action: Answer\nFinal Answer: [(7,)]"


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def pieces(episode: Episode, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, str]]:
    """The completion as (mask, text) of each run of equal mask."""
    runs: list[tuple[int, list[int]]] = []
    for id, bit in zip(episode.completion_ids, episode.mask, strict=True):
        if not runs or runs[-1][0] != bit:
            runs.append((bit, []))
        runs[-1][1].append(id)
    return [(bit, tokenizer.decode(ids)) for bit, ids in runs]


def test_three_turns_token_by_token(late_orders, tokenizer, sqlite_database):
    episode = play_script(late_orders, [LOOK, COUNT, RIGHT], tokenizer, sqlite_database)

    assert tokenizer.decode(episode.prompt_ids) == (
        "<|im_start|>system\nRules.<|im_end|>\n"
        "<|im_start|>user\nHow many orders were late?\n"
        "The table is named orders and has these columns: id, late<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert pieces(episode, tokenizer) == [
        (1, LOOK + "<|im_end|>"),
        (0, "\n<|im_start|>user\n[(1,), (2,), (3,)]<|im_end|>\n<|im_start|>assistant\n"),
        (1, COUNT + "<|im_end|>"),
        (0, "\n<|im_start|>user\n[(2,)]<|im_end|>\n<|im_start|>assistant\n"),
        (1, RIGHT + "<|im_end|>"),
    ]
    assert episode.status == Status.ANSWERED
    assert episode.right
    # each sampled token keeps its own log-probability; observations have none
    sampled = [lp for lp, bit in zip(episode.logprobs, episode.mask, strict=True) if bit]
    assert sampled[:3] == [-0.001, -0.002, -0.003]
    assert {lp for lp, bit in zip(episode.logprobs, episode.mask, strict=True) if not bit} == {0.0}


def test_a_tools_episode_token_by_token(late_orders, tokenizer, sqlite_database):
    query = call("execute_sql", query="SELECT COUNT(*) FROM orders WHERE late = 1")
    answer = call("commit_final_answer", answers=["2"])
    episode = play_script(late_orders, ["I guess 2.", query, answer], tokenizer, sqlite_database, "tools")

    assert pieces(episode, tokenizer) == [
        (1, "I guess 2.<|im_end|>"),
        (
            0,
            "\n<|im_start|>tool\nError: no tool call found. Call execute_sql or commit_final_answer.<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (1, query + "<|im_end|>"),
        (0, "\n<|im_start|>tool\n[(2,)]<|im_end|>\n<|im_start|>assistant\n"),
        (1, answer + "<|im_end|>"),
    ]
    assert episode.status == Status.ANSWERED
    assert episode.right


@pytest.mark.parametrize(
    ("turns", "status", "right"),
    [
        ([RIGHT], Status.ANSWERED, True),
        ([WRONG], Status.ANSWERED, False),
        ([LOOK, LOOK, LOOK], Status.TURN_LIMIT, False),
        ([LOOK, "I give up."], Status.INVALID_ACTION, False),
    ],
)
def test_how_an_episode_ends(turns, status, right, late_orders, tokenizer, sqlite_database):
    episode = play_script(late_orders, turns, tokenizer, sqlite_database)

    assert (episode.status, episode.right) == (status, right)
    assert len(episode.turns) == len(turns)
    assert episode.mask[-1] == 1, "an episode ends on a sampled token"


@pytest.mark.parametrize(
    "limit", ["max_turns", "max_turn_tokens", "max_completion_length", "compaction_tokens"]
)
def test_a_limit_that_leaves_nothing(limit):
    with pytest.raises(ConfigError, match=f"{limit} must be at least 1, is 0"):
        Rules(**{limit: 0})


@pytest.mark.parametrize("max_turns", [2, 5])
def test_turns_of_a_task_come_before_those_of_the_run(max_turns, late_orders, tokenizer, sqlite_database):
    task = dataclasses.replace(late_orders, max_turns=max_turns)
    episode = play_script(task, [LOOK] * max_turns, tokenizer, sqlite_database)

    assert (episode.status, len(episode.turns)) == (Status.TURN_LIMIT, max_turns)


def test_the_last_operation_is_executed_but_its_result_is_not_shown(late_orders, tokenizer, sqlite_database):
    episode = play_script(late_orders, [LOOK, LOOK, COUNT], tokenizer, sqlite_database)

    assert episode.turns[-1].observation == "[(2,)]"
    assert episode.turns[-1].observation_ids == []


def test_a_turn_without_room_for_its_end_is_out_of_tokens(late_orders, tokenizer, sqlite_database):
    rules = Rules(max_turns=3, max_turn_tokens=512, max_completion_length=10)
    episode = play_script(late_orders, [RIGHT], tokenizer, sqlite_database, rules=rules)

    assert episode.status == Status.OUT_OF_TOKENS
    assert len(episode.completion_ids) == 10


def test_an_observation_without_room_is_out_of_tokens(late_orders, tokenizer, sqlite_database):
    look = len(tokenizer(LOOK)["input_ids"]) + 1
    rules = Rules(max_turns=3, max_turn_tokens=512, max_completion_length=look + 10)
    episode = play_script(late_orders, [LOOK, RIGHT], tokenizer, sqlite_database, rules=rules)

    assert episode.status == Status.OUT_OF_TOKENS
    assert pieces(episode, tokenizer) == [(1, LOOK + "<|im_end|>")]


def test_the_models_context_limits_prompt_and_completion_together(late_orders, tokenizer, sqlite_database):
    prompt = len(play_script(late_orders, [RIGHT], tokenizer, sqlite_database).prompt_ids)
    rules = Rules(max_turns=3, max_turn_tokens=512, max_completion_length=512, context=prompt + 7)
    episode = play_script(late_orders, [RIGHT], tokenizer, sqlite_database, rules=rules)

    assert (episode.status, len(episode.completion_ids)) == (Status.OUT_OF_TOKENS, 7)


def test_a_turn_cut_at_its_own_limit_goes_on_and_its_end_is_context(late_orders, tokenizer, sqlite_database):
    """The template's end of turn was not sampled, so it is not trained."""
    rules = Rules(max_turns=3, max_turn_tokens=len(tokenizer(LOOK)["input_ids"]), max_completion_length=2048)
    episode = play_script(late_orders, [LOOK, RIGHT], tokenizer, sqlite_database, rules=rules)

    assert pieces(episode, tokenizer)[:2] == [
        (1, LOOK),
        (0, "<|im_end|>\n<|im_start|>user\n[(1,), (2,), (3,)]<|im_end|>\n<|im_start|>assistant\n"),
    ]


CHANGE = Task.from_json(
    json.dumps(
        {
            "id": "drop-late",
            "question": "Delete the late orders.",
            "tables": [{"name": "orders", "columns": [{"name": "late", "type": "INT"}], "rows": [[0], [1]]}],
            "sql": "DELETE FROM orders WHERE late = 1",
        }
    )
)


@pytest.mark.parametrize(
    ("sql", "right"),
    [
        ("DELETE FROM orders WHERE late = 1", True),
        ("DELETE FROM orders WHERE late <> 0", True),
        ("DELETE FROM orders", False),
        ("SELECT * FROM orders", False),
        ("DROP TABLE orders", False),
    ],
)
def test_a_change_is_judged_by_the_tables_it_leaves(sql, right, tokenizer, database):
    turns = [f"Action: Operation\n```sql\n{sql}\n```", "Action: Answer\nFinal Answer: done"]
    assert play_script(CHANGE, turns, tokenizer, database).right is right


def test_a_change_without_an_answer_is_not_right(tokenizer, sqlite_database):
    sql = f"Action: Operation\n```sql\n{CHANGE.gold.sql}\n```"
    episode = play_script(CHANGE, [sql, sql, sql], tokenizer, sqlite_database)
    assert (episode.status, episode.right) == (Status.TURN_LIMIT, False)


def sql_turn(sql: str) -> str:
    return f"Action: Operation\n```sql\n{sql}\n```"


ODD_TURNS = {
    "empty": "",
    "only thoughts": "<think>The table has two late orders, I think.</think>",
    "thoughts without end": "<think>" + "hm " * 50,
    "two blocks": f"{COUNT}\n{LOOK}",
    "unclosed block": "Action: Operation\n```sql\nSELECT 1",
    "empty block": "Action: Operation\n```sql\n\n```",
    "10,000 characters": sql_turn(f"SELECT '{'x' * 10_000}'"),
    "control characters": sql_turn("SELECT '\x00\x01\x1b[31m\x7f'"),
    "emoji": sql_turn("SELECT '🦆' AS `🦆` FROM orders"),
    "percent": sql_turn("SELECT '%', '%s', '%(id)s', 5 % 3, id FROM orders WHERE id LIKE '%1%'"),
    "colon names": sql_turn("SELECT ':name', @x, :name FROM orders"),
    "semicolons": sql_turn("SELECT 1; DROP TABLE orders; SELECT 2"),
    "a comment": sql_turn("-- nothing"),
    "unclosed quote": sql_turn("SELECT 'abc FROM orders"),
    "not SQL": sql_turn("please show me the orders"),
    "broken JSON": '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1}\n</tool_call>',
    "no tool call end": '<tool_call>{"name": "execute_sql", "arguments": {"query": "SELECT \'\\u0000\'"}}',
    "unknown function": call("rm", path="/"),
    "lone surrogate": '<tool_call>{"name": "execute_sql", "arguments": {"query": "SELECT \'\\ud800\'"}}</tool_call>',
}


@pytest.mark.parametrize("protocol", ["text", "tools"])
@pytest.mark.parametrize("turn", ODD_TURNS.values(), ids=ODD_TURNS.keys())
def test_what_an_agent_may_write(turn, protocol, late_orders, tokenizer, database):
    """Never an exception, always a status, and the next episode is as good as new."""
    if protocol == "tools" and turn.startswith("Action: Operation\n```sql\n"):
        turn = call(
            "execute_sql", query=turn.removeprefix("Action: Operation\n```sql\n").removesuffix("\n```")
        )
    episode = play_script(late_orders, [turn, turn, turn], tokenizer, database, protocol)

    assert episode.status in (Status.TURN_LIMIT, Status.INVALID_ACTION)
    assert json.loads(json.dumps(episode_record(episode, "train", 0)))["status"] == episode.status
    assert play_script(late_orders, [COUNT, RIGHT], tokenizer, database).right


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200), protocol=st.sampled_from(["text", "tools"]))
def test_any_text_is_an_episode(text, protocol, late_orders, tokenizer, sqlite_database):
    episode = play_script(late_orders, [text] * 3, tokenizer, sqlite_database, protocol)
    assert episode.status != Status.ENVIRONMENT_FAULT
    assert len(episode.completion_ids) == len(episode.mask) == len(episode.logprobs)


@pytest.mark.parametrize(
    ("at_start", "fault"), [(True, "2003: cannot connect; waited for 0 s"), (False, "2013: lost connection")]
)
def test_a_failing_server_is_no_wrong_answer(at_start, fault, late_orders, tokenizer):
    episode = play_script(late_orders, [COUNT, RIGHT], tokenizer, BrokenDatabase(at_start))

    assert (episode.status, episode.verdict, episode.fault) == (Status.ENVIRONMENT_FAULT, None, fault)


def test_an_episode_runs_where_an_event_loop_runs_already(late_orders, tokenizer, sqlite_database):
    """As in a notebook."""
    import asyncio

    async def cell() -> Episode:
        return play_script(late_orders, [COUNT, RIGHT], tokenizer, sqlite_database)

    assert asyncio.run(cell()).right


def test_a_failing_engine_ends_the_rollout(late_orders, tokenizer, sqlite_database, monkeypatch):
    """Out of memory, say: the episodes that wait for it do not wait for ever."""

    def out_of_memory(self: ScriptedEngine, episodes: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ScriptedEngine, "serve", out_of_memory)
    with pytest.raises(MemoryError):
        play_script(late_orders, [COUNT, RIGHT], tokenizer, sqlite_database)


def test_a_database_that_was_closed_before_an_episode_says_so(late_orders, tokenizer):
    """As in a notebook whose next cell plays on after the `with`."""
    with open_database("sqlite") as database:
        assert play_script(late_orders, [RIGHT], tokenizer, database).right
    with pytest.raises(DatabaseError, match="The database is closed"):
        play_script(late_orders, [RIGHT], tokenizer, database)


def test_rules_name_the_prompt_that_does_not_fit(late_orders):
    rules = Rules(3, 512, 2048, context=64)
    with pytest.raises(ConfigError, match="task 'late-orders' has 64 tokens, the model's context 64"):
        rules.check_length(64, late_orders)
    dataclasses.replace(rules, context=None).check_length(10**6, late_orders)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"temperature": 0}, "temperature must be above 0, is 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, is 0.0"),
        ({"top_k": -1}, "top_k must be 0 or more, is -1"),
    ],
)
def test_a_sampling_that_would_give_no_tokens_of_the_models(sampling, message):
    with pytest.raises(ConfigError, match=message):
        Sampling(**sampling)


def test_a_player_names_the_prompt_that_does_not_fit(late_orders, tokenizer, sqlite_database):
    rules = Rules(3, 512, 2048, context=20)
    with pytest.raises(ConfigError, match=r"task 'late-orders' has \d+ tokens, the model's context 20"):
        play_script(late_orders, [RIGHT], tokenizer, sqlite_database, rules=rules)
