"""Episodes that a program of the user's plays: what is trained is what the engine saw; nothing that it does hurts."""

from __future__ import annotations

import asyncio
import copy
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from databases import opened
from fakes import RULES, BrokenDatabase, ScriptedEngine, sequences
from launching import TWO_RANKS, fork_ranks, seen
from required import lacking
from test_literal_agents import lifelong_tasks
from training import adapter_of, equal, make_trainer, varied
from transformers import PreTrainedTokenizerBase

from trl_dbbench import DBBenchGRPOTrainer
from trl_dbbench.database import Database
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import Answer, Operation, Reply, get_protocol
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.episode.types import Completion, Episode, Request, Rules, Status
from trl_dbbench.errors import ConfigError, EngineError
from trl_dbbench.evaluation.evaluate import evaluate, open_model, player_of
from trl_dbbench.harness import played_by
from trl_dbbench.harness.answer import as_answer
from trl_dbbench.rewards.outcome import OutcomeReward
from trl_dbbench.runs.conversations import completion_messages, saved_episodes
from trl_dbbench.runs.export import sft_dataset
from trl_dbbench.runs.records import record_with_ids
from trl_dbbench.runs.replay import replay
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.tasks import Column, Gold, Table, Task

HERE = Path(__file__).parent
COUNT = '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT COUNT(*) FROM orders WHERE late = 1"}}\n</tool_call>'
COMMIT = '<tool_call>\n{"name": "commit_final_answer", "arguments": {"answers": ["(2,)"]}}\n</tool_call>'
BROKEN = (
    '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT nothing FROM orders"}}\n</tool_call>'
)
NO_CALL = "There are two late orders."


def harness_of(name: str) -> str:
    return f"{HERE / 'sdk_loop.py'}:{name}"


def play(
    name: str,
    tasks: Sequence[Task],
    turns: Sequence[Sequence[str]],
    tokenizer: PreTrainedTokenizerBase,
    database: Database,
    protocol: str = "tools",
    rules: Rules = RULES,
    seconds: float = 60,
) -> tuple[list[Episode], ScriptedEngine]:
    player = Player.of(tokenizer, database, protocol=protocol, rules=rules, history="template")
    player = played_by(player, name if " " in name else harness_of(name), seconds)
    engine = ScriptedEngine(tokenizer, dict(enumerate(turns)))
    return player.play_all([player.start(task, system_prompt="Rules.") for task in tasks], engine), engine


def play_one(name: str, task: Task, turns: Sequence[str], *args, **settings) -> Episode:
    episodes, _ = play(name, [task], [turns], *args, **settings)
    return episodes[0]


# --- the same as our own rollout ----------------------------------------------------------------------


def test_a_loop_of_the_sdk_is_our_own_protocol(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """64 episodes: right at once, after an error, after a turn without a call, and without an answer."""
    kinds = [[COUNT, COMMIT], [BROKEN, COUNT, COMMIT], [NO_CALL, COUNT, COMMIT], [COUNT, NO_CALL, BROKEN]]
    turns, tasks = [kinds[row % 4] for row in range(64)], [late_orders] * 64
    player = Player.of(tokenizer, sqlite_database, protocol="tools", rules=RULES)
    own = player.play_all(
        [player.start(task, system_prompt="Rules.") for task in tasks],
        ScriptedEngine(tokenizer, dict(enumerate(turns))),
    )
    theirs, _ = play("run", tasks, turns, tokenizer, sqlite_database)
    for one, other in zip(own, theirs, strict=True):
        assert other.prompt_ids == one.prompt_ids
        assert (other.completion_ids, other.mask) == (one.completion_ids, one.mask)
        assert other.logprobs == one.logprobs
        assert (other.right, other.follows) == (one.right, None)
        assert (other.statements, other.status) == (one.statements, one.status)
    assert OutcomeReward()(episode=theirs) == OutcomeReward()(episode=own)


def test_what_an_episode_keeps(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    episode = play_one("run", late_orders, [COUNT, COMMIT], tokenizer, sqlite_database)
    assert [turn.action for turn in episode.turns] == [
        Reply(COUNT),
        Operation("SELECT COUNT(*) FROM orders WHERE late = 1"),
        Reply(COMMIT),
        Answer("['(2,)']", ("(2,)",)),
    ]
    assert episode.status == Status.ANSWERED and episode.right
    assert episode.turns[1].result.rows == [(2,)]


# --- histories that are rewritten ---------------------------------------------------------------------


def thinking(thought: str, said: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{said}"


LATE = "Action: Operation\n```sql\nSELECT COUNT(*) FROM orders WHERE late = 1\n```"


def thinks_twice(
    template: str, task: Task, tokenizer: PreTrainedTokenizerBase, database: Database
) -> tuple[Episode, ScriptedEngine, PreTrainedTokenizerBase]:
    """It says the same twice, with other thoughts."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = load_chat_template(template)
    turns = [thinking("All.", LATE), thinking("Once more.", LATE), "Action: Answer\nFinal Answer: [(2,)]"]
    (episode,), engine = play("texts", [task], [turns], tokenizer, database, "text")
    return episode, engine, tokenizer


def test_thoughts_that_the_template_drops(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    episode, engine, tokenizer = thinks_twice("qwen3", late_orders, tokenizer, sqlite_database)
    assert episode.right
    replies = [turn for turn in episode.turns if isinstance(turn.action, Reply)]
    assert sequences(episode) == [
        [*request.ids, *reply.completion.ids] for request, reply in zip(engine.requests, replies, strict=True)
    ]
    messages = get_protocol("text").messages(late_orders, "Rules.")
    for request in engine.requests:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(request.ids) == text
        messages += [{"role": "assistant", "content": LATE}, {"role": "user", "content": "[(2,)]"}]


def test_two_replies_of_one_text_keep_their_thoughts(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    episode, engine, tokenizer = thinks_twice("qwen3_training", late_orders, tokenizer, sqlite_database)
    assert episode.right and episode.follows is None
    thoughts = re.findall(r"<think>\n(.*)\n</think>", tokenizer.decode(engine.requests[-1].ids))
    assert thoughts == ["All.", "Once more."]


def test_a_call_that_comes_back_with_its_arguments_as_an_object(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    (episode,), engine = play(
        "hands_back_objects", [late_orders], [[f"I count. {COUNT}"] * 2], tokenizer, sqlite_database
    )
    assert episode.status == Status.ANSWERED, episode.output
    first, second = engine.requests
    assert list(second.ids[: len(first.ids)]) == list(first.ids) and episode.follows is None
    assert "I count." in tokenizer.decode(second.ids)


def test_a_second_conversation_is_a_sequence_of_its_own(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    turns = ["Count the late ones.", "SELECT COUNT(*)", "[(2,)]"]
    episodes, engine = play("two_conversations", [late_orders], [turns], tokenizer, sqlite_database, "text")
    (episode,) = episodes
    assert [
        tokenizer.decode(turn.completion.ids[:-1]) for turn in episode.turns if turn.completion.ids
    ] == turns
    assert [
        list(sequence[: len(request.ids)])
        for sequence, request in zip(sequences(episode), engine.requests, strict=True)
    ] == [list(request.ids) for request in engine.requests]
    third = tokenizer.decode(engine.requests[2].ids)
    assert "Count the late ones." in third and "Write SQL" not in third
    assert sum(episode.mask) == sum(len(turn.completion.ids) for turn in episode.turns)


# --- the API ------------------------------------------------------------------------------------------


def test_choices_stop_texts_and_streams(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    rules = replace(RULES, max_turns=5)
    turns = ["one", "two", "two, three, four", "five", "six, seven, eight, nine"]
    episode = play_one("features", late_orders, turns, tokenizer, sqlite_database, rules=rules)
    given = json.loads(episode.turns[-1].action.text)
    ids = tokenizer("five", add_special_tokens=False)["input_ids"]
    assert given == {
        "choices": ["one", "two"],
        "usage": True,
        "stopped": "two, ",
        "streamed": "five",
        "streamed_tokens": len(ids) + 1,
        "short": ["length", "policy"],
    }
    stopped = episode.turns[2].completion
    assert tokenizer.decode(stopped.ids).startswith("two, three") and "four" not in tokenizer.decode(
        stopped.ids
    )


def test_which_tool_may_be_called(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    episode = play_one("chooses", late_orders, [COUNT, COUNT], tokenizer, sqlite_database)
    assert json.loads(json.loads(episode.turns[-1].text)) == [
        ["stop", COUNT, []],
        ["tool_calls", None, ["execute_sql"]],
        'tool_choice cannot name a tool; it may be "auto", "none" or "required"',
        "response_format must be text: no reply is held to a form; "
        "ask for it in the prompt, or as the arguments of a tool",
    ], episode.output


def test_messages_that_are_shown_as_a_server_would_or_refused(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    rules = replace(RULES, max_turns=7)
    turns = [["one", "two", "three", "four", "five", "six", "seven"]]
    (episode,), engine = play("odd_messages", [late_orders], turns, tokenizer, sqlite_database, rules=rules)
    assert json.loads(json.loads(episode.turns[-1].text)) == [
        *("one", "two", "three", "four", "five"),
        "content must be a text or a list of texts: the model reads no images",
        "max_tokens must be a number of at least 1",
        "the body has more than 100 levels of lists and objects",
        "functions is the old form of tools, and no model reads it; send tools",
    ], episode.output
    parts, empty, without, deep, less_deep = (tokenizer.decode(request.ids) for request in engine.requests)
    assert "First.\nSecond." in parts
    assert '"arguments": {}' in empty and empty == without
    assert "[[[[" in deep and "[[[[" in less_deep


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "uses_responses",
            "/v1/responses is not served: there is /v1/chat/completions, /v1/models and /sql; let the agent use chat completions",
        ),
        ("executes_too_much", "60 statements were executed"),
    ],
)
def test_a_program_reads_why_it_is_refused(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database, name: str, told: str
) -> None:
    episode = play_one(name, late_orders, [], tokenizer, sqlite_database)
    assert episode.answer == Answer(told), episode.output


@pytest.mark.parametrize("end", ["", "\nObservation: [(9,)]\nSo the answer is 9."])
@pytest.mark.parametrize(("written", "query"), [("SELECT 1", "SELECT 1"), (r"SELECT '\ud83d'", "SELECT '?'")])
def test_a_call_before_a_stop_text_and_half_a_character(
    late_orders: Task,
    tokenizer: PreTrainedTokenizerBase,
    sqlite_database: Database,
    end: str,
    written: str,
    query: str,
) -> None:
    turn = f'<tool_call>\n{{"name": "execute_sql", "arguments": {{"query": "{written}"}}}}\n</tool_call>{end}'
    episode = play_one("call_heard", late_orders, [turn], tokenizer, sqlite_database)
    assert json.loads(episode.turns[-1].action.text) == ["tool_calls", "execute_sql", {"query": query}]
    sampled = tokenizer.decode(episode.turns[0].completion.ids)
    assert sampled.removesuffix("<|im_end|>") == turn.partition(": [(9")[0] + (":" if end else "")


@pytest.mark.parametrize("name", ["rows", "awaited"])
def test_a_program_may_answer_with_rows(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database, name: str
) -> None:
    """As a coroutine function too."""
    episode = play_one(name, late_orders, [], tokenizer, sqlite_database)
    assert episode.turns[-1].action == Answer("['2']", ("2",)) and episode.right


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (None, None),
        ("two", "two"),
        ((1, 2.5, True, None), [1, 2.5, True, None]),
        ([("pear", datetime.date(2020, 1, 2)), (b"x", None)], [["pear", "2020-01-02"], ["b'x'", None]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (
            [
                Decimal("1.50"),
                Decimal("4.0"),
                Decimal("12345678901234567890"),
                Decimal("0.12345678901234567890"),
            ],
            [1.5, 4, 12345678901234567890, "0.12345678901234567890"],
        ),
        ([Decimal("NaN"), datetime.timedelta(minutes=90)], ["NaN", "01:30:00"]),
        ([np.int64(2), np.float32(0.5)], [2, 0.5]),
    ],
)
def test_answers_as_json(given: object, answer: object) -> None:
    assert as_answer(given) == answer


SHELL = """
set -e
reply=$(curl -s "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" \
  -d '{"messages": [{"role": "user", "content": "How many orders were late? SQL alone."}]}')
sql=$(echo "$reply" | python3 -c 'import json,sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])')
curl -s "$DBBENCH_SQL_URL" -H "Authorization: Bearer $OPENAI_API_KEY" -d "{\\"sql\\": \\"$sql\\"}" |
  python3 -c 'import json,sys; print([tuple(row) for row in json.load(sys.stdin)["rows"]])'
"""


def test_a_shell_script(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """Its standard output is its answer."""
    if shutil.which("curl") is None:
        lacking("curl", "no curl here")
    turns = ["SELECT COUNT(*) FROM orders WHERE late = 1"]
    episode = play_one(SHELL, late_orders, turns, tokenizer, sqlite_database, "text")
    assert (episode.turns[-1].action, episode.right) == (Answer("[(2,)]"), True), episode.output


@pytest.mark.parametrize(
    ("printed", "text", "right"),
    [
        ('["pear", "plum"]', '["pear", "plum"]', True),
        ('[["pear"], ["plum"]]', '[["pear"], ["plum"]]', True),
        ("[('pear',), ('plum',)]", "\"[('pear',), ('plum',)]\"", True),
        ("[pear, plum]", '"[pear, plum]"', False),
        ("pear", '"pear"', False),
    ],
)
def test_a_command_prints_a_text_or_a_list(
    tokenizer: PreTrainedTokenizerBase, sqlite_database: Database, printed: str, text: str, right: bool
) -> None:
    fruits = Table("fruits", (Column("name", "VARCHAR(9)"),), (("pear",), ("plum",)))
    task = Task("fruits", "Which?", (fruits,), "SELECT", Gold((("pear",), ("plum",))), grader="lifelong")
    episode = play_one(f"cat <<'END'\n{printed}\nEND", task, [], tokenizer, sqlite_database, "text")
    assert (episode.turns[-1].text, episode.right) == (text, right), episode.output


@pytest.mark.parametrize(
    "program",
    [
        "python3 -c \"import json, os; print(json.load(open(os.environ['DBBENCH_TASK_FILE']))['question'][-4:])\"",
        "starts_another",
    ],
)
def test_a_task_too_long_for_a_variable(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database, program: str
) -> None:
    """A program, and what it starts, find it in a file."""
    task = replace(late_orders, question="x" * 140_000 + "two?")
    episode = play_one(program, task, [], tokenizer, sqlite_database, "text")
    assert episode.answer == Answer("two?"), (episode.fault, episode.output)


HALF = r"""
curl -s "$OPENAI_BASE_URL/chat/completions" -H "authorization: bearer $OPENAI_API_KEY" \
  -d '{"messages": [{"role": "user", "content": "cut here: \ud83c"}]}' |
  python3 -c 'import json,sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])'
echo "$NO_PROXY $no_proxy"
"""


def test_half_a_character_and_a_scheme_in_small_letters(
    late_orders: Task,
    tokenizer: PreTrainedTokenizerBase,
    sqlite_database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that cuts a text between the halves of a character sends one; a proxy's exceptions are kept."""
    monkeypatch.setenv("NO_PROXY", "search.example")
    (episode,), engine = play(HALF, [late_orders], [["one"]], tokenizer, sqlite_database, "text")
    assert "cut here: ?" in tokenizer.decode(engine.requests[0].ids)
    both = "127.0.0.1,search.example"
    assert episode.answer == Answer(f"one\n{both} {both}"), episode.output


def test_an_agent_of_smolagents(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    turns = [
        '<tool_call>\n{"name": "sql", "arguments": {"query": "SELECT COUNT(*) FROM orders WHERE late = 1"}}\n</tool_call>',
        '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "[(2,)]"}}\n</tool_call>',
    ]
    episodes, engine = play("smolagent", [late_orders], [turns], tokenizer, sqlite_database)
    (episode,) = episodes
    assert episode.right, episode.output
    assert [type(turn.action) for turn in episode.turns] == [Reply, Operation, Reply, Answer]
    # smolagents writes its calls anew into the history, as a text: the second turn is a sequence of its own
    assert episode.follows is not None
    assert "Calling tools:" in tokenizer.decode(engine.requests[1].ids)
    replies = [turn for turn in episode.turns if isinstance(turn.action, Reply)]
    assert sequences(episode) == [
        [*request.ids, *reply.completion.ids] for request, reply in zip(engine.requests, replies, strict=True)
    ]


@pytest.mark.parametrize("kind", ["sqlite", "local", "docker"])
def test_a_client_of_its_own(kind: str, late_orders: Task, tokenizer: PreTrainedTokenizerBase) -> None:
    """SQLAlchemy, whose statements are recorded like others; what it says for itself is not."""
    with opened(kind) as database:
        episode = play_one("alchemy", late_orders, [], tokenizer, database)
    assert episode.right, episode.output
    assert episode.statements == [
        "SELECT COUNT(*) AS n FROM orders WHERE late = 1",
        "UPDATE orders SET late = 1 WHERE id = 1",
        "SELECT COUNT(*) FROM orders WHERE late = 1",
        "SELECT nothing FROM orders",
    ]


def test_the_types_of_columns(tokenizer: PreTrainedTokenizerBase, sqlite_database: Database) -> None:
    """To a client of its own as from MySQL, two columns of one name too; to others as MySQL prints them."""
    columns = (Column("id", "INT"), Column("price", "DECIMAL(5,2)"), Column("spent", "TIME"))
    visits = Table("visits", columns, ((1, "1.50", "01:30:00"), (2, None, "100:02:03")))
    task = Task("visits", "How dear?", (visits,), "SELECT", Gold(answer=((1,),)))
    episode = play_one("typed", task, [], tokenizer, sqlite_database, "text")
    assert episode.answer is not None, episode.output
    assert eval(episode.answer.text, {"Decimal": Decimal, "datetime": datetime}) == [
        (Decimal("1.50"), datetime.timedelta(hours=1, minutes=30), 1, 1),
        (None, datetime.timedelta(hours=100, minutes=2, seconds=3), 2, 2),
        [1.5, "01:30:00", 1, 1],
        [None, "100:02:03", 2, 2],
    ]


@pytest.mark.parametrize("kind", ["sqlite", "local"])
def test_a_column_whose_first_cell_has_another_type(kind: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Each value can be read."""
    columns = (Column("name", "VARCHAR(9)"), Column("price", "DECIMAL(5,2)"), Column("weight", "DOUBLE"))
    goods = Table("goods", columns, (("a", None, None), ("b", "2.25", None), ("c", "1.50", "0.5")))
    task = Task("goods", "How dear?", (goods,), "SELECT", Gold(((1,),)))
    with opened(kind) as database:
        episode = play_one("mixed", task, [], tokenizer, database, "text")
    assert episode.answer is not None, episode.output
    assert eval(episode.answer.text, {"Decimal": Decimal}) == [
        (0, "unknown", 0, 0),
        (Decimal("2.25"), "2.25", 0, 2.25),
        (Decimal("1.50"), "1.50", 0.5, 0.5),
    ]


@pytest.mark.parametrize("kind", ["sqlite", "local"])
def test_the_names_of_columns(kind: str, late_orders: Task, tokenizer: PreTrainedTokenizerBase) -> None:
    """A client that reads rows by them, as a DictCursor does, finds those of MySQL."""
    statements = [
        *("SELECT SUM(late), max( id ) AS more, 'x' FROM orders", "SELECT *, upper( 'a' ), ID FROM orders"),
        *("SHOW TABLES LIKE 'none_'", "DESCRIBE orders"),
    ]
    task = replace(late_orders, question=json.dumps(statements))
    with opened(kind) as database:
        episode = play_one("names_of_columns", task, [], tokenizer, database, "text")
    assert episode.answer is not None, episode.output
    assert json.loads(episode.answer.text) == [
        ["SUM(late)", "more", "x"],
        [*(column.name for column in late_orders.tables[0].columns), "upper( 'a' )", "ID"],
        ["Tables_in_dbbench (none_)"],
        ["Field", "Type", "Null", "Key", "Default", "Extra"],
    ]


@pytest.mark.parametrize("kind", ["sqlite", "local"])
def test_statements_of_a_client_beside_the_agents(
    kind: str, late_orders: Task, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Statements that the client sends by itself get an answer; of other variables the database does. Several in one
    call are an error, as with MySQL."""
    statements = {
        "/* a-driver 8.2 */SELECT @@autocommit AS autocommit, @@session.sql_mode AS sql_mode": 1,
        "/* a-driver 8.2 */ SET NAMES utf8mb4": None,
        "START TRANSACTION;": None,
        "SET SESSION group_concat_max_len = 4": 1235 if kind == "sqlite" else None,
        "SELECT @@group_concat_max_len": 1235 if kind == "sqlite" else [[4]],
        "SELECT DATABASE() IS NULL AS none, COUNT(*) FROM orders": [[0, 3]],
        "BEGIN; UPDATE orders SET late = 1; COMMIT;": 1064,
        "USE dbbench; SELECT COUNT(*) FROM orders": 1064,
        "SELECT COUNT(*) FROM orders WHERE late = 1": [[2]],
    }
    task = replace(late_orders, question=json.dumps(list(statements)))
    with opened(kind) as database:
        episode = play_one("client_gets", task, [], tokenizer, database, "text")
    assert episode.answer is not None, episode.output
    gets = json.loads(episode.answer.text)
    assert [
        len(got) if want == 1 else got[0] if isinstance(want, int) else got
        for got, want in zip(gets, statements.values(), strict=True)
    ] == list(statements.values()), gets


def test_a_result_that_is_cut_is_not_taken_for_the_whole(
    tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    many = Table("many", (Column("n", "INT"),), tuple((n,) for n in range(150)))
    statements = ["SELECT n FROM many", "SELECT n FROM many LIMIT 100"]
    task = Task("many", json.dumps(statements), (many,), "SELECT", Gold(((150,),)))
    episode = play_one("sql_gets", task, [], tokenizer, sqlite_database, "text")
    assert json.loads(episode.answer.text) == [[100, "rows", None], [100, None, None]], episode.output
    episode = play_one("client_gets", task, [], tokenizer, sqlite_database, "text")
    (number, told), whole = json.loads(episode.answer.text)
    assert (number, len(whole)) == (1226, 100)
    assert told == (
        "the result is longer than a statement's may be: its limit of rows was met; ask for less of it, as by LIMIT"
    )


@pytest.mark.parametrize("name", ["prices", "prices_by_alchemy"])
def test_rows_that_are_handed_on_are_right(
    name: str, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """The gold rows, from `execute` and from a client of its own."""
    columns = (Column("name", "VARCHAR(9)"), Column("price", "DECIMAL(5,2)"), Column("since", "TIME"))
    goods = Table("goods", columns, (("tea", "1.50", "01:30:00"), ("oil", "22.00", "100:02:03")))
    gold = (("tea", 1.5, "01:30:00"), ("oil", 22, "100:02:03"))
    task = Task("goods", "How dear?", (goods,), "SELECT", Gold(gold), grader="lifelong")
    episode = play_one(name, task, [], tokenizer, sqlite_database, "text")
    assert episode.right, (episode.answer, episode.output)
    assert episode.turns[-1].text == '[["tea", 1.5, "01:30:00"], ["oil", 22, "100:02:03"]]'


@pytest.mark.slow
@pytest.mark.parametrize("program", ["hands_on", "hands_on_by_alchemy", "says"])
def test_rows_of_each_kind_that_are_handed_on(
    program: str, tokenizer: PreTrainedTokenizerBase, database: Database
) -> None:
    """It hands on the rows of the statement that it is asked for, with its last cell changed where told so."""
    asked = []
    for task, _ in lifelong_tasks(database):
        asked += [(True, replace(task, question=task.gold.sql))]
        asked += [(False, replace(task, question=f"changed: {task.gold.sql}"))]
    episodes, _ = play(program, [task for _, task in asked], [[]] * len(asked), tokenizer, database, "text")
    otherwise = [
        (episode.task.id, right, episode.answer, episode.fault, episode.output)
        for episode, (right, _) in zip(episodes, asked, strict=True)
        if episode.verdict is None or episode.right != right
    ]
    assert not otherwise, "\n".join(map(str, otherwise))


# --- programs that fail, and such as do harm ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fault", "output"),
    [
        ("fails", "exit code 1", "ValueError: a mistake of the user's"),
        ("exits", "exit code 3", ""),
        (
            "yields",
            "exit code 1",
            "TypeError: the answer of a harness cannot hold a generator: return a text",
        ),
        ("names_its_answer", "exit code 1", "cannot hold a dict: return a text, a list of values or of rows"),
        ("names_its_columns", "exit code 1", "cannot hold a dict"),
        ("says_nothing", "it gave no answer", ""),
        ("exit 7", "exit code 7", ""),
        ("kill -9 $$", "exit code 137", ""),
    ],
)
def test_a_program_that_fails(
    late_orders: Task,
    tokenizer: PreTrainedTokenizerBase,
    sqlite_database: Database,
    name: str,
    fault: str,
    output: str,
) -> None:
    episode = play_one(name, late_orders, [], tokenizer, sqlite_database)
    assert (episode.status, episode.fault, episode.verdict) == (Status.HARNESS_FAULT, fault, None)
    assert output in episode.output
    assert OutcomeReward()(episode=[episode]) == [-0.2]
    assert OutcomeReward(harness_fault=-3.0)(episode=[episode]) == [-3.0]


@pytest.mark.parametrize(
    ("limits", "status"),
    [({}, Status.TURN_LIMIT), ({"max_completion_length": 20}, Status.OUT_OF_TOKENS)],
    ids=["calls", "tokens"],
)
def test_a_program_that_fails_at_a_limit(
    late_orders: Task,
    tokenizer: PreTrainedTokenizerBase,
    sqlite_database: Database,
    tmp_path: Path,
    limits: dict[str, int],
    status: Status,
) -> None:
    """Its episode has reached the limit, as one without a program; a replay says the same."""
    turns = ["one, two, three, four", "five, six, seven, eight", "nine"]
    rules = replace(RULES, **limits)
    episode = play_one("goes_on", late_orders, turns, tokenizer, sqlite_database, "text", rules)
    assert (episode.status, episode.fault) == (status, "exit code 1"), episode.output
    assert OutcomeReward()(episode=[episode]) == [OutcomeReward().turn_limit]
    saved_run(tmp_path, late_orders, episode, harness_of("goes_on"))
    (replayed,) = replay(tmp_path, sqlite_database)
    assert (replayed.differences, replayed.episode.status) == ([], status)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_program_that_never_ends(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """It is ended with all that it has started."""
    episode = play_one("never_ends", late_orders, [], tokenizer, sqlite_database, seconds=1)
    assert (episode.status, episode.fault) == (
        Status.HARNESS_FAULT,
        "it did not end within 1 s of its own (harness_seconds)",
    )
    assert not alive(int(re.search(r"child (\d+)", episode.output)[1]))


def test_a_program_that_floods(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    (episode, beside), _ = play(
        "floods", [late_orders] * 2, [["a", "b", "c"]] * 2, tokenizer, sqlite_database
    )
    answer = json.loads(episode.turns[-1].text)
    assert answer == [401, 401, 400, 413, 400, 400, 400, 400, 200, 200, 200, 400, 200, 400]
    for each in (episode, beside):
        assert sum(bool(turn.completion.ids) for turn in each.turns) == 3


def test_calls_after_the_end(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database, tmp_path: Path
) -> None:
    """The key has ended with its episode, while another goes on."""
    seen = tmp_path / "seen"
    tasks = [
        replace(late_orders, question=json.dumps({"seen": str(seen), "stays": stays}))
        for stays in (False, True)
    ]
    (left, stayed), _ = play("leaves_a_caller", tasks, [[], []], tokenizer, sqlite_database)
    assert left.status == Status.ANSWERED and not left.right
    assert (stayed.turns[-1].text, seen.read_text()) == ('"stayed"', "401")


def test_programs_that_end_at_different_times(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """Each keeps its answer and its output."""
    tasks = [replace(late_orders, question=str(number)) for number in range(24)]
    program = 'sleep 0.$((DBBENCH_QUESTION % 7)); echo "output $DBBENCH_QUESTION" >&2; echo $DBBENCH_QUESTION'
    episodes, _ = play(program, tasks, [[]] * 24, tokenizer, sqlite_database)
    assert [episode.turns[-1].text for episode in episodes] == [f'"{number}"' for number in range(24)]
    assert [episode.output for episode in episodes] == [f"output {number}\n" for number in range(24)]


def test_long_answers_while_long_tasks_are_handed_over(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """Each is longer than a pipe holds, so each side waits for the other to read."""
    tasks = [replace(late_orders, question="word " * 20_000)] * 6
    program = "head -c 900000 /dev/zero | tr '\\0' x"
    episodes, _ = play(program, tasks, [[]] * 6, tokenizer, sqlite_database)
    assert {len(episode.turns[-1].text) for episode in episodes} == {900_002}


class SlowEngine(ScriptedEngine):
    """Takes longer for a turn than a program may take in all."""

    async def generate(self, request: Request) -> Completion:
        await asyncio.sleep(6)
        return await super().generate(request)


def test_what_a_program_waits_for_is_not_its_own_time(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    player = Player.of(tokenizer, sqlite_database, protocol="text", rules=RULES, history="template")
    player = played_by(player, harness_of("texts"), 5.0)
    (episode,) = player.play_all(
        [player.start(late_orders)], SlowEngine(tokenizer, {0: ["Final Answer: [(2,)]"]})
    )
    assert episode.right, episode.fault


def test_a_request_that_is_sent_again_gets_the_reply_that_nobody_read(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    player = Player.of(tokenizer, sqlite_database, protocol="text", rules=RULES, history="template")
    player = played_by(player, harness_of("is_impatient"), 60)
    engine = SlowEngine(tokenizer, {0: ["[(2,)]", "[(3,)]", "[(4,)]"]})
    (episode,) = player.play_all([player.start(late_orders)], engine)
    assert episode.right, (episode.fault, episode.output)
    assert [turn.text for turn in episode.turns] == ["[(2,)]", '"[(2,)]"']


def test_a_signal_to_the_training_is_not_for_the_programs(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """The step goes on, and a checkpoint is saved after it."""
    player = Player.of(tokenizer, sqlite_database, protocol="text", rules=RULES)
    player = played_by(player, "sleep 1; echo '[(2,)]'", 30)
    timers = [
        threading.Timer(0.5, player.programs._zygote.send_signal, [each])
        for each in (signal.SIGINT, signal.SIGTERM)
    ]
    for timer in timers:
        timer.start()
    (episode,) = player.play_all([player.start(late_orders)], ScriptedEngine(tokenizer, {}))
    assert episode.right


def test_other_rules_do_not_import_the_agent_again(
    tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """An evaluation adds the model's context to them."""
    player = played_by(Player.of(tokenizer, sqlite_database, rules=RULES), "echo 2", 60)
    assert replace(player, rules=replace(RULES, context=900)).programs is player.programs


def test_a_dead_starter_is_no_fault_of_the_program(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    player = Player.of(tokenizer, sqlite_database, protocol="text", rules=RULES)
    player = played_by(player, "sleep 60", 60)
    threading.Timer(0.5, player.programs._zygote.kill).start()
    for _ in range(2):  # the second time it is dead from the start
        (episode,) = player.play_all([player.start(late_orders)], ScriptedEngine(tokenizer, {}))
        assert (episode.status, episode.fault) == (
            Status.ENVIRONMENT_FAULT,
            "the process that starts the programs of the harness is dead",
        )


def test_an_answer_without_end(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    episode = play_one("head -c 30000000 /dev/zero | tr '\\0' x", late_orders, [], tokenizer, sqlite_database)
    assert (episode.status, episode.fault) == (
        Status.HARNESS_FAULT,
        "its answer is longer than 1048576 bytes",
    )


class DeadEngine(ScriptedEngine):
    async def generate(self, request: Request) -> Completion:
        raise EngineError("no server answers")


def test_an_engine_that_fails_ends_the_rollout(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """With its own error, whatever the program makes of it."""
    player = Player.of(tokenizer, sqlite_database, protocol="tools", rules=RULES)
    player = played_by(player, harness_of("run"), 60)
    with pytest.raises(EngineError, match="no server answers"):
        player.play_all([player.start(late_orders)] * 3, DeadEngine(tokenizer, {}))


def test_a_database_that_fails_is_no_fault_of_the_program(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase
) -> None:
    for at_start in (True, False):
        database = BrokenDatabase(at_start)
        episode = play_one("run", late_orders, [COUNT, COMMIT], tokenizer, database)
        assert episode.status == Status.ENVIRONMENT_FAULT
        assert OutcomeReward()(episode=[episode]) == [None]


@pytest.mark.parametrize(
    ("harness", "message"),
    [
        ("no_module:run", "the harness 'no_module:run' cannot be started: .*no_module"),
        ("", "harness is empty"),
        ("nope", "the harness 'nope' cannot be started: there is no program 'nope'"),
        ("./my_agnet.sh --fast", "there is no program './my_agnet.sh'"),
    ],
)
def test_a_harness_that_is_none(
    late_orders: Task,
    tokenizer: PreTrainedTokenizerBase,
    sqlite_database: Database,
    harness: str,
    message: str,
) -> None:
    player = Player.of(tokenizer, sqlite_database, protocol="tools", rules=RULES)
    with pytest.raises(ConfigError, match=message):
        own = played_by(player, harness, 5)
        own.play_all([own.start(late_orders)], ScriptedEngine(tokenizer, {}))


def test_a_program_that_never_begins_ends_the_evaluation(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """As a misspelled one; but a program that has worked once may fail."""
    player = Player.of(tokenizer, sqlite_database, protocol="tools", rules=RULES)
    engine = SimpleNamespace(contexts=[], engine=lambda: nullcontext(ScriptedEngine(tokenizer, {})))
    message = (
        r"failed in each of the first 2 episodes before it called the model: exit code 2\. .*missing\.py"
    )
    with pytest.raises(ConfigError, match=message):
        evaluate(
            *([late_orders] * 3, played_by(player, "python missing.py", 30), engine),
            batch_size=2,
            progress=False,
        )
    once = played_by(player, 'test "$DBBENCH_QUESTION" = no && exit 2; echo 1', 30)
    tasks = [late_orders, replace(late_orders, question="no")]
    played = evaluate(tasks, once, engine, batch_size=1, progress=False).episodes
    assert [each.status for each in played] == [Status.ANSWERED, Status.HARNESS_FAULT]


def test_a_program_that_never_begins_ends_the_training(
    tiny_model: str, sqlite_database: Database, demo_tasks: list[Task], tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"failed in each of the first \d episodes .*: exit code 2\. .*missing\.py"
    ):
        train(tiny_model, sqlite_database, demo_tasks, tmp_path, harness="python missing.py")


def test_without_its_packages(
    tokenizer: PreTrainedTokenizerBase, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mysql_mimic", None)
    for name in ("player", "endpoint", "mysql"):
        monkeypatch.delitem(sys.modules, f"trl_dbbench.harness.{name}")
    with pytest.raises(ConfigError, match=r"harness needs the package mysql_mimic.*trl-dbbench\[harness\]"):
        played_by(Player.of(tokenizer, sqlite_database), "echo 1")


KILLED = """
import sys
sys.path[:0] = [{tests!r}]
from fakes import RULES, ScriptedEngine
from transformers import AutoTokenizer
from trl_dbbench import Player, Task, open_database
from trl_dbbench.harness import played_by

tokenizer = AutoTokenizer.from_pretrained({model!r})
task = Task.from_json({task!r})
with open_database("sqlite") as database:
    player = played_by(Player.of(tokenizer, database, rules=RULES), {harness!r}, 600)
    player.play_all([player.start(task)], ScriptedEngine(tokenizer, {{}}))
"""


@pytest.mark.slow
def test_a_killed_training_leaves_no_process(late_orders: Task, tiny_model: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    harness = f"sh -c 'echo $$ >> {pids}; sleep 600'"
    script = KILLED.format(
        tests=str(HERE.parent), model=str(tiny_model), task=late_orders.to_json(), harness=harness
    )
    training = subprocess.Popen([sys.executable, "-c", script])
    try:
        for _ in range(3000):  # a busy machine takes minutes
            if pids.exists() and pids.read_text().strip():
                break
            time.sleep(0.1)
        (pid,) = map(int, pids.read_text().split())
        assert alive(pid)
    finally:
        training.send_signal(signal.SIGKILL)
        training.wait()
    for _ in range(50):
        if not alive(pid):
            break
        time.sleep(0.1)
    assert not alive(pid)


# --- training, and what comes after it ----------------------------------------------------------------


def train(tiny_model, database, tasks, folder: Path, **settings) -> DBBenchGRPOTrainer:
    trainer = make_trainer(
        *(tiny_model, database, tasks[:1], folder),
        **{"max_turn_tokens": 12, "max_steps": 2, "greedy_eval": "off", "reward_funcs": [varied], **settings},
    )
    trainer.train()
    return trainer


def test_it_trains_as_our_own_rollout(tiny_model, sqlite_database, demo_tasks, tmp_path) -> None:
    """Two updates by the SDK's loop are those of the protocol that it speaks."""
    own = train(tiny_model, sqlite_database, demo_tasks, tmp_path / "own")
    theirs = train(tiny_model, sqlite_database, demo_tasks, tmp_path / "theirs", harness=harness_of("run"))
    assert [e.completion_ids for e in theirs.batch.episodes] == [e.completion_ids for e in own.batch.episodes]
    moved = 0.0
    for (name, one), (_, other) in zip(
        own.model.named_parameters(), theirs.model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-7)
        moved += float(one.detach().abs().sum()) if "lora_B" in name else 0.0
    assert moved > 0


@pytest.mark.slow
def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    tiny_model, sqlite_database, demo_tasks, tmp_path
) -> None:
    """To the bit."""
    settings = {"harness": harness_of("run"), "max_steps": 4, "save_steps": 2, "save_strategy": "steps"}
    whole = train(tiny_model, sqlite_database, demo_tasks, tmp_path, **settings)
    resumed = make_trainer(
        *(tiny_model, sqlite_database, demo_tasks[:1], tmp_path),
        **{"max_turn_tokens": 12, "greedy_eval": "off", "reward_funcs": [varied], **settings},
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert equal(adapter_of(resumed), adapter_of(whole))


def test_a_run_is_evaluated_and_replayed(tiny_model, sqlite_database, demo_tasks, tmp_path) -> None:
    """The evaluation runs the program; the replay executes what it executed, and judges its answers."""
    program = tmp_path / "program.py"
    program.write_text(
        "def run(task):\n"
        "    import json, urllib.request\n"
        "    body = json.dumps({'messages': task.messages}).encode()\n"
        "    headers = {'Authorization': f'Bearer {task.api_key}'}\n"
        "    url = f'{task.base_url}/chat/completions'\n"
        "    urllib.request.urlopen(urllib.request.Request(url, body, headers))\n"
        "    return [str(task.execute('SELECT 1')['rows'][0][0])]\n"
    )
    trainer = train(
        tiny_model, sqlite_database, demo_tasks, tmp_path / "run", harness=f"{program}:run", max_steps=1
    )
    assert all(len(episode.turns) == 3 for episode in trainer.batch.episodes)
    trainer.save_model()

    trained = find_trained(run=tmp_path / "run")
    assert trained.settings.harness == f"{program}:run"
    replayed = list(replay(tmp_path / "run", sqlite_database))
    assert len(replayed) == 4 and not any(each.differences for each in replayed)
    assert all(each.episode.status == Status.ANSWERED for each in replayed)
    backend, policy = open_model(trained)
    player = player_of(trained.settings, policy, sqlite_database)
    evaluation = evaluate(demo_tasks[:2], player, backend, progress=False)
    assert [len(episode.turns) for episode in evaluation.episodes] == [3, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"harness": "a:b", "advantage": "prime"},
            "harness: a:b and advantage: prime exclude each other: the former makes an episode several",
        ),
        ({"harness": "a:b", "harness_seconds": 0}, "harness_seconds must be above 0, is 0"),
    ],
)
def test_what_cannot_be(tiny_model, sqlite_database, demo_tasks, tmp_path, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(tiny_model, sqlite_database, demo_tasks[:1], tmp_path, **settings)


@pytest.mark.slow
def test_two_ranks(tiny_model: str, tmp_path: Path) -> None:
    status, output = fork_ranks(TWO_RANKS, "played_by_a_program", tiny_model, tmp_path)
    assert status == 0, output
    first, second = seen(tmp_path, "played_by_a_program")
    for way in ("own", "program", "forgets"):
        assert first[way]["weights"] == second[way]["weights"]
    assert first["program"]["weights"] == pytest.approx(first["own"]["weights"], abs=1e-6)
    assert first["own"]["several"] == 0 < first["forgets"]["several"]
    assert first["forgets"]["weights"] != first["own"]["weights"]


def saved_run(folder: Path, task: Task, episode: Episode, harness: str, template: str | None = None) -> None:
    (folder / "episodes.jsonl").write_text(json.dumps(record_with_ids(episode, "train", 0)) + "\n")
    (folder / "tasks.jsonl").write_text(task.to_json() + "\n")
    RunSettings("text", 800, 3, harness=harness, chat_template=template).write(folder)


@pytest.mark.parametrize("name", ["exits", "alchemy"])
def test_a_replay_executes_what_there_is(
    late_orders: Task,
    tokenizer: PreTrainedTokenizerBase,
    sqlite_database: Database,
    tmp_path: Path,
    name: str,
) -> None:
    """Nothing, where the program failed before it executed anything."""
    episode = play_one(name, late_orders, [], tokenizer, sqlite_database, "text")
    saved_run(tmp_path, late_orders, episode, harness_of(name))
    (replayed,) = replay(tmp_path, sqlite_database)
    assert replayed.differences == []
    assert (replayed.episode is None) == (name == "exits")


def test_right_episodes_are_fine_tuned_on(
    late_orders: Task,
    tiny_model: str,
    tokenizer: PreTrainedTokenizerBase,
    sqlite_database: Database,
    tmp_path: Path,
) -> None:
    """A row for each sequence; each sampled token is learned once, and nothing else is."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = load_chat_template("qwen3")
    sql = "Action: Operation\n```sql\nSELECT COUNT(*) FROM orders WHERE late = 1\n```"
    turns = [thinking("All.", sql), "Action: Answer\nFinal Answer: [(2,)]"]
    episode = play_one("texts", late_orders, turns, tokenizer, sqlite_database, "text")
    saved_run(tmp_path, late_orders, episode, harness_of("texts"), tokenizer.chat_template)
    dataset = sft_dataset(tmp_path, tokenizer, [tokenizer.eos_token_id], [])
    assert len(dataset) == 2
    learned = [[id for id in row["labels"] if id != -100] for row in dataset]
    assert [tokenizer.decode(ids) for ids in learned] == [f"{turn}<|im_end|>" for turn in turns]
    assert "<think>" not in tokenizer.decode(dataset[1]["input_ids"])


def test_a_reward_model_learns_the_conversation_that_it_is_shown(
    late_orders: Task,
    tokenizer: PreTrainedTokenizerBase,
    sqlite_database: Database,
    tmp_path: Path,
) -> None:
    """Without what the program executed and answered itself."""
    sql = "Action: Operation\n```sql\nSELECT COUNT(*) FROM orders WHERE late = 1\n```"
    turns = [sql, "Action: Answer\nFinal Answer: [(2,)]"]
    episode = play_one("texts", late_orders, turns, tokenizer, sqlite_database, "text")
    assert False in episode.said
    saved_run(tmp_path, late_orders, episode, harness_of("texts"))
    [(record, _)] = saved_episodes(tmp_path, [])
    assert completion_messages(record, RunSettings.read(tmp_path)) == episode.messages()
