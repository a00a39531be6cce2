"""What an agent writes -> an action; what the database says -> what the agent reads."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from trl_dbbench.database import QueryResult
from trl_dbbench.episode.prompts import EACH_ROW, EACH_VALUE
from trl_dbbench.episode.protocol import (
    Answer,
    Invalid,
    Operation,
    TextProtocol,
    ToolsProtocol,
    get_protocol,
    given_answer,
)
from trl_dbbench.episode.tool_calls import tool_call
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading import get_grader, grade
from trl_dbbench.tasks import Column, Gold, Table, Task

TEXT, TOOLS = TextProtocol(), ToolsProtocol()
FENCE = "```"


def sql_turn(sql: str, thoughts: str = "I look.") -> str:
    return f"{thoughts}\nAction: Operation\n{FENCE}sql\n{sql}\n{FENCE}"


# --- text ---------------------------------------------------------------------------------------------


def test_text_runs_sql() -> None:
    assert TEXT.parse(sql_turn("SELECT name FROM fruits;")) == Operation("SELECT name FROM fruits;")


def test_text_folds_lines_as_the_published_parser_does() -> None:
    """A `--` comment then swallows what follows: so it is on the benchmark."""
    assert TEXT.parse(sql_turn("SELECT name -- all\nFROM fruits\n")) == Operation(
        "SELECT name -- all FROM fruits"
    )


def test_text_answers() -> None:
    turn = "Two fruits.\nAction: Answer\nFinal Answer: [('pear',), ('plum',)]\nThat is all."
    assert TEXT.parse(turn) == Answer("[('pear',), ('plum',)]")


@pytest.mark.parametrize(
    ("turn", "answer"),
    [
        ("Action: Answer\nFinal Answer: 42", "42"),
        ("Action: Answer\nFinal Answer:42", "42"),
        ("Action: Answer\nFinal Answer:", ""),
        ("Action: Answer\r\nFinal Answer: 42\r\n", "42"),
        ("Action: Answer\nFinal Answer: 1\nFinal Answer: 2", "1"),
        ("Action: Answer, so\nFinal Answer: 🍐 naïve", "🍐 naïve"),
    ],
)
def test_text_answers_in_odd_forms(turn: str, answer: str) -> None:
    assert TEXT.parse(turn) == Answer(answer)


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ("", "no 'Action: Operation' or 'Action: Answer'"),
        (" \n\t", "no 'Action: Operation'"),
        ("The fruits are fine.", "no 'Action: Operation'"),
        ("action: operation", "no 'Action: Operation'"),
        ("Action:  Operation", "no 'Action: Operation'"),
        ("<think>I could write Action: Answer\nFinal Answer: 1</think>", "no 'Action: Operation'"),
        (
            "<think>I could write Action: Answer\nFinal Answer: 1",
            "no 'Action: Operation'",
        ),  # cut in its thoughts
        ("Action: Operation", "without a closed ```sql block"),
        (f"Action: Operation\n{FENCE}sql\nSELECT 1", "without a closed ```sql block"),
        (f"Action: Operation\n{FENCE}sql\nSELECT 1{FENCE}", "without a closed ```sql block"),
        (f"Action: Operation\n{FENCE}sql SELECT 1\n{FENCE}", "without a closed ```sql block"),
        (f"Action: Operation\n{FENCE}\nSELECT 1\n{FENCE}", "without a closed ```sql block"),
        (f"Action: Operation\n{FENCE}SQL\nSELECT 1\n{FENCE}", "without a closed ```sql block"),
        ("Action: Answer", "without a line 'Final Answer: ...'"),
        ("Action: Answer Final Answer: 42", "without a line 'Final Answer: ...'"),
        ("Final Answer: 42", "no 'Action: Operation'"),
        ("\x00\x01\x02\x7f", "no 'Action: Operation'"),
        ("x" * 10_000, "no 'Action: Operation'"),
    ],
)
def test_text_that_is_no_action(turn: str, reason: str) -> None:
    action = TEXT.parse(turn)
    assert isinstance(action, Invalid)
    assert reason in action.reason


@pytest.mark.parametrize(
    "label", ["", "sql\n", "SQL ", "sqlite3\n", "mysql ", "PostgreSQL\n", "sql", "MySQL"]
)
def test_the_label_of_a_block_is_no_part_of_the_answer(label: str) -> None:
    block = f"{FENCE}{label}SELECT 1{FENCE}"
    assert get_protocol("text_sql").parse(f"Action: Answer\nFinal Answer:\n{block}") == Answer("SELECT 1")
    assert get_protocol("tools_sql").parse(call("submit_sql", query=f"\n{block}\n")) == Answer("SELECT 1")


@pytest.mark.parametrize(
    ("written", "sql"),
    [
        ("`SELECT a FROM t`", "SELECT a FROM t"),
        ("`SELECT a FROM t;`", "SELECT a FROM t;"),
        ("`SELECT a FROM t`;", "SELECT a FROM t"),
        ("``SELECT `a` FROM `t```", "SELECT `a` FROM `t`"),
        ("`SELECT `a` FROM `t``", "SELECT `a` FROM `t`"),
        ("SELECT `a` FROM `t`", "SELECT `a` FROM `t`"),
        ("SELECT a FROM t;", "SELECT a FROM t;"),
        ("``", ""),
    ],
)
def test_backticks_around_an_answer_are_no_part_of_it(written: str, sql: str) -> None:
    assert get_protocol("tools_sql").parse(call("submit_sql", query=written)) == Answer(sql)
    if FENCE not in written:
        turn = f"Action: Answer\nFinal Answer: {written}\n"
        assert get_protocol("text_sql").parse(turn) == Answer(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t WHERE a LIKE '100%' AND b = '%s' AND c = '%(name)s'",
        "SELECT :name, ':x', @y",
        "SELECT 1; DROP TABLE t;",
        "SELECT '🍐', 'Zoë', '日本'",
        "SELECT '\x00\x07\x1b[31m'",
        "SELECT '" + "x" * 10_000 + "'",
        "SELECT `a b`, \"c\", '''', '\\n'",
    ],
)
def test_sql_arrives_as_it_was_written(sql: str) -> None:
    assert TEXT.parse(sql_turn(sql)) == Operation(sql)
    assert TOOLS.parse(call("execute_sql", query=sql)) == Operation(sql)


def test_the_first_of_two_blocks_counts() -> None:
    assert TEXT.parse(sql_turn("SELECT 1") + "\n" + sql_turn("SELECT 2")) == Operation("SELECT 1")


def test_the_first_of_two_actions_counts() -> None:
    both = "Action: Answer\nFinal Answer: 1\n" + sql_turn("SELECT 2")
    assert TEXT.parse(both) == Answer("1")
    assert TEXT.parse(sql_turn("SELECT 2") + "\nAction: Answer\nFinal Answer: 1") == Operation("SELECT 2")


def test_a_block_before_the_action_counts_as_in_the_published_parser() -> None:
    assert TEXT.parse(f"{FENCE}sql\nSELECT 1\n{FENCE}\nAction: Operation") == Operation("SELECT 1")


def test_an_empty_block_is_an_empty_statement() -> None:
    """The database refuses it, which the agent may read."""
    assert TEXT.parse(sql_turn("")) == Operation("")


@pytest.mark.parametrize(
    "thoughts", ["<think>Action: Answer\nFinal Answer: 0</think>\n", "Action: Answer?</think>"]
)
def test_thoughts_are_dropped(thoughts: str) -> None:
    assert TEXT.parse(sql_turn("SELECT 1", thoughts)) == Operation("SELECT 1")
    assert TOOLS.parse(
        call("execute_sql", query="SELECT 0") + "</think>" + call("execute_sql", query="SELECT 1")
    ) == (Operation("SELECT 1"))


# --- tools ----------------------------------------------------------------------------------------------


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_marks_after_a_thought_are_text() -> None:
    """In SQL about a table of chats, whether the agent thinks before or not."""
    for mark in ("<think>", "</think>", "[THINK]", "[/THINK]"):
        sql = f"SELECT * FROM turns WHERE body LIKE '%{mark}%'"
        for thought in ("<think>\nI look.\n</think>\n\n", "<think></think><think>I look.</think>\n"):
            assert TEXT.parse(sql_turn(sql, thought)) == Operation(sql)
            assert TOOLS.parse(thought + call("execute_sql", query=sql)) == Operation(sql)
    for opened in ("<think>", "[THINK]"):
        sql = f"SELECT * FROM turns WHERE body LIKE '%{opened}%'"
        assert TEXT.parse(sql_turn(sql)) == Operation(sql)


def test_tools_run_sql() -> None:
    turn = 'I look.\n<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call> Now wait.'
    assert TOOLS.parse(turn) == Operation("SELECT 1")


@pytest.mark.parametrize(
    "turn",
    [
        '{"name": "execute_sql", "parameters": {"query": "SELECT 1"}}',  # Llama 3.1
        '<|python_tag|>{"name": "execute_sql", "parameters": {"query": "SELECT 1"}}',
        '  {"type": "function", "name": "execute_sql", "parameters": {"query": "SELECT 1"}}\nand so on',
        '<|python_start|>{"name": "execute_sql", "parameters": {"query": "SELECT 1"}}<|python_end|>',  # Llama 4
        '<|python_start|><|python_end|>{"name": "execute_sql", "parameters": {"query": "SELECT 1"}}',
        'I count.<|python_tag|>{"name": "execute_sql", "parameters": {"query": "SELECT 1"}}',
        'I count.\n\n{"name": "execute_sql", "parameters": {"query": "SELECT 1"}}',
        '[execute_sql(query="SELECT 1")]',
        "<|python_start|>[execute_sql(query='SELECT 1'), execute_sql(query='SELECT 2')]<|python_end|>",
        '<tools>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tools>',  # Qwen 2.5 Coder
        '<tool_call>{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}',  # never closed
        '<tool_call>{"name": "execute_sql", "arguments": "{\\"query\\": \\"SELECT 1\\"}"}</tool_call>',  # encoded twice
        call("execute_sql", query="SELECT 1") + call("execute_sql", query="SELECT 2"),  # the first counts
        call("execute_sql", query="SELECT 1", limit=5),  # one argument too many
        # Qwen 3.5, Nemotron 3
        "Look.\n<tool_call>\n<function=execute_sql>\n<parameter=query>\nSELECT 1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=execute_sql><parameter=query>SELECT 1</parameter>",  # never closed
        # Qwen 3 Coder, without the first tag
        "I look.\n<function=execute_sql>\n<parameter=query>\nSELECT 1\n</parameter>\n</function>\n</tool_call>",
        "<function=execute_sql><parameter=query>SELECT 1</parameter></function>"
        "<function=execute_sql><parameter=query>SELECT 2</parameter></function>",
        # GLM, in lines and in one
        "\n<tool_call>execute_sql\n<arg_key>query</arg_key>\n<arg_value>SELECT 1</arg_value>\n</tool_call>",
        "<tool_call>execute_sql<arg_key>query</arg_key><arg_value>SELECT 1</arg_value></tool_call>",
        # Llama 3.1, and as Groq gives back what it could not read
        '<function=execute_sql>{"query": "SELECT 1"}</function>',
        '<function=execute_sql{"query": "SELECT 1"}</function>',
        # Mistral, older and newer
        '[TOOL_CALLS] [{"name": "execute_sql", "arguments": {"query": "SELECT 1"}, "id": "abcdefghi"}]',
        '[TOOL_CALLS]execute_sql[ARGS]{"query": "SELECT 1"}',
        '[TOOL_CALLS]execute_sql[CALL_ID]abcdefghi[ARGS]{"query": "SELECT 1"}',
        # Granite 3, Phi-4-mini
        '<|tool_call|>[{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}]<|/tool_call|>',
        '<tool_call>[{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}]',
        'functools[{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}]',
        # DeepSeek V3 and V3.1, Gemma 4, Muse Glimmer
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>execute_sql\n```json\n{"query": "SELECT 1"}\n```',
        '<｜tool▁call▁begin｜>execute_sql<｜tool▁sep｜>{"query": "SELECT 1"}<｜tool▁call▁end｜>',
        '<|tool_call>call:execute_sql{query:<|"|>SELECT 1<|"|>}<tool_call|>',
        '<atem:invoke name="execute_sql">\n<atem:parameter name="query">SELECT 1</atem:parameter>\n</atem:invoke>',
        # DeepSeek V3.2, MiniMax M2
        '<｜DSML｜invoke name="execute_sql">\n<｜DSML｜parameter name="query" string="true">SELECT 1</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>",
        '<minimax:tool_call>\n<invoke name="execute_sql">\n<parameter name="query">SELECT 1</parameter>\n</invoke>\n',
        # Kimi K2, Command R7B, Nemotron Nano 2
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.execute_sql:0<|tool_call_argument_begin|>"
        '{"query": "SELECT 1"}<|tool_call_end|>',
        '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "execute_sql", "parameters": {"query": "SELECT 1"}}\n]',
        '<TOOLCALL>[{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}]</TOOLCALL>',
        # Jamba, InternLM, xLAM
        '<tool_calls>[\n{"name": "execute_sql", "arguments": "{\\"query\\": \\"SELECT 1\\"}"}\n]</tool_calls>',
        '<|action_start|><|plugin|>{"name": "execute_sql", "parameters": {"query": "SELECT 1"}}<|action_end|>',
        '[{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}, {"name": "f", "arguments": {}}]',
        # rows before a call
        '[{"name": "pear"}] is the first.\n' + call("execute_sql", query="SELECT 1"),
        # LFM2
        "I look. <|tool_call_start|>[execute_sql(query='SELECT 1')]<|tool_call_end|> Now wait.",
        '<|tool_call_start|>execute_sql(query="SELECT 1", limit=5)<|tool_call_end|>',
        '<|tool_call_start|>[execute_sql(query="SELECT 1"), execute_sql(query="SELECT 2")]',
        '<|tool_call_start|>[{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}]<|tool_call_end|>',
        # others
        'I look:\n```json\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n```\nNow wait.',
        '```\n{"name": "execute_sql", "parameters": {"query": "SELECT 1"}}\n```',
        # rows before the call
        'The rows are\n```json\n[{"a": 1}]\n```\nso I count.\n' + call("execute_sql", query="SELECT 1"),
        '{"a": 1} is the first.\n' + call("execute_sql", query="SELECT 1"),
        # a form within another is part of its text
        "<tool_call><function=execute_sql><parameter=query>SELECT 1</parameter></function></tool_call>"
        '<tool_call>{"name": "execute_sql", "arguments": {"query": "SELECT 2"}}</tool_call>',
    ],
)
def test_tools_run_sql_in_the_forms_that_models_write(turn: str) -> None:
    assert TOOLS.parse(turn) == Operation("SELECT 1")


@pytest.mark.parametrize(
    "written", [r"""'SELECT \'x\' AS "y"'""", r'''"SELECT 'x' AS \"y\""''', """'SELECT 'x' AS "y"'"""]
)
def test_quotes_in_a_call_of_lfm2(written: str) -> None:
    """Escaped, or as the template of LFM2.5 writes them."""
    turn = f"<|tool_call_start|>[execute_sql(query={written})]<|tool_call_end|>"
    assert TOOLS.parse(turn) == Operation("""SELECT 'x' AS "y\"""")


def test_a_list_in_the_words_of_python() -> None:
    """As the templates of LFM2 and Seed-OSS write it."""
    values = ("a, b", "it's", '"', "None")
    listed = str([*values[:3], None])
    for turn in (
        f"<|tool_call_start|>[commit_final_answer(answers={listed})]<|tool_call_end|>",
        f"<function=commit_final_answer>\n<parameter=answers>{listed}</parameter>\n</function>\n</seed:tool_call>",
    ):
        assert TOOLS.parse(turn) == Answer(str(list(values)), values)


def test_a_raw_newline_within_a_string_is_read() -> None:
    assert TOOLS.parse(
        '<tool_call>{"name": "execute_sql", "arguments": {"query": "SELECT 1\nFROM t"}}</tool_call>'
    ) == (Operation("SELECT 1\nFROM t"))


def test_a_mark_of_another_family_in_a_statement_is_part_of_it() -> None:
    sql = "SELECT '<tool_call><function=x>[TOOL_CALLS]```json{'"
    assert TOOLS.parse(call("execute_sql", query=sql)) == Operation(sql)
    bare = json.dumps({"name": "execute_sql", "parameters": {"query": sql}})
    assert TOOLS.parse(bare) == Operation(sql)


@pytest.mark.parametrize(
    ("answers", "values"),
    [
        (["pear", "plum"], ("pear", "plum")),
        ([42, 1.5, True, None], ("42", "1.5", "1", "None")),  # as the database prints them
        ([["a", 1], ["b", None]], ("('a', 1)", "('b', None)")),
        ([["a"], ["b"]], ("a", "b")),
        ([], ()),
        (["🍐", "it's"], ("🍐", "it's")),
        ('["pear", "plum"]', ("pear", "plum")),  # encoded twice
        ("['pear', 'plum']", ("pear", "plum")),
    ],
)
def test_tools_answer(answers: list | str, values: tuple[str, ...]) -> None:
    assert TOOLS.parse(call("commit_final_answer", answers=answers)) == Answer(str(list(values)), values)


@pytest.mark.parametrize(
    ("turn", "observation"),
    [
        ("", "Error: no tool call found. Call execute_sql or commit_final_answer."),
        ("The answer is 42.", "Error: no tool call found."),
        ("[Decimal('2.50'), datetime.date(2020, 1, 2)]", "Error: no tool call found."),  # a result
        ("<think>" + call("execute_sql", query="SELECT 1"), "Error: no tool call found."),
        ("<tool_call></tool_call>", "Error: the tool call is not valid JSON: Expecting value"),
        ('<tool_call>{"name": "execute_sql", "arg</tool_call>', "Error: the tool call is not valid JSON: "),
        ("{'name': 'execute_sql'}", "Error: the tool call is not valid JSON: "),
        ('<tool_call>{"arguments": {}}</tool_call>', "Error: a tool call is an object like "),
        ("<tool_call>[1]</tool_call>", "Error: a tool call is an object like "),
        ("<tool_call>7</tool_call>", "Error: a tool call is an object like "),
        ("[TOOL_CALLS] []", "Error: a tool call is an object like "),
        ("<|tool_call_start|>[execute_sql(query=", "Error: the tool call is not valid: write [name(key="),
        (
            "<|tool_call_start|>[execute_sql(query=b'x')]",
            "Error: the tool call is not valid: write [name(key=",
        ),
        ("<|tool_call_start|>", "Error: the tool call is not valid JSON: "),
        (
            "<tool_call><function=execute_sql><parameter=query>SELECT 1",
            "Error: the argument query of the tool call does not end in </parameter>.",
        ),
        (
            "<tool_call>commit_final_answer<arg_key>answers</arg_key><arg_value>42</arg_value>",
            "Error: commit_final_answer needs the argument answers",
        ),
        ("[TOOL_CALLS]execute_sql[ARGS]SELECT 1", "Error: the tool call is not valid JSON: Expecting value"),
        (
            call("drop_everything"),
            "Error: unknown function 'drop_everything'. Call execute_sql or commit_final_answer.",
        ),
        (call("execute_sql"), "Error: execute_sql needs the argument query, a string."),
        (call("execute_sql", query=5), "Error: execute_sql needs the argument query, a string."),
        (
            call("commit_final_answer"),
            "Error: commit_final_answer needs the argument answers, an array of strings.",
        ),
        (call("commit_final_answer", answers="42"), "Error: commit_final_answer needs the argument answers"),
        ('{"name": "execute_sql"}', "Error: the arguments of a tool call must be a JSON object."),
        ('{"name": "execute_sql", "arguments": "SELECT 1"}', "Error: the arguments of a tool call must be"),
        ('{"name": "execute_sql", "arguments": [1]}', "Error: the arguments of a tool call must be"),
        ("<tool_call>" + "[" * 100_000, "Error: the tool call is not valid JSON: nested too deep"),
        ("<tool_call>" + "[" * 500 + "]" * 500, "Error: the tool call is not valid JSON: nested too deep"),
        (
            '{"name": "execute_sql", "arguments": "' + "[" * 100_000 + '"}',
            "Error: the arguments of a tool call must be",
        ),
        ('{"name": 1' + "0" * 10_000 + "}", "Error: the tool call is not valid JSON: "),
    ],
)
def test_tools_explain_what_is_no_call(turn: str, observation: str) -> None:
    action = TOOLS.parse(turn)
    assert isinstance(action, Invalid)
    assert TOOLS.observe(action).startswith(observation)


def test_a_value_that_is_nested_deeply_stays_a_text() -> None:
    """Python's literals, which are read where JSON is not, have as many levels."""
    deep = "[" * 150 + "]" * 150
    call = tool_call(f"<tool_call><function=f><parameter=x>{deep}</parameter></function></tool_call>", [])
    assert call == ("f", {"x": deep})


def test_an_answer_without_values_is_written_without_any() -> None:
    """A question without rows has no values to answer; `["[]"]` would be one value."""
    nothing = TOOLS.parse(call("commit_final_answer", answers=[]))
    assert nothing == Answer("[]", ())
    (written,) = TOOLS.write(nothing)["tool_calls"]
    assert written["function"] == {"name": "commit_final_answer", "arguments": {"answers": []}}


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    r"""JSON can write `\ud83c` alone, which no tokenizer or server takes as text."""
    assert TOOLS.parse(r'{"name": "execute_sql", "arguments": {"query": "SELECT \"\ud83c\""}}') == Operation(
        'SELECT "?"'
    )
    assert TOOLS.parse(
        r'{"name": "commit_final_answer", "arguments": {"answers": ["\ud83c", ["\ud83c"]]}}'
    ) == (Answer("['?', '?']", ("?", "?")))
    whole = r'{"name": "execute_sql", "arguments": {"query": "SELECT \"\ud83c\udf50\""}}'
    assert TOOLS.parse(whole) == Operation('SELECT "🍐"')


# --- what the graders read ------------------------------------------------------------------------------------


def test_a_tools_answer_for_each_grader() -> None:
    answer = TOOLS.parse(call("commit_final_answer", answers=["pear", " (2, 'x') ", "3"]))
    assert isinstance(answer, Answer)
    assert answer.for_grader("agentbench_fc") == "['pear', \" (2, 'x') \", '3']"
    assert answer.for_grader("lifelong") == "[(pear,), (2, 'x'), (3,)]"
    assert grade(answer.for_grader("lifelong"), [("pear",), (2, "x"), (3,)], "lifelong")


@pytest.mark.parametrize("row", ["('pear', 2.5)", '["pear", 2.5]', ["pear", 2.5]])
def test_a_tools_answer_of_several_columns(row: Any) -> None:
    answer = TOOLS.parse(call("commit_final_answer", answers=[row]))
    assert isinstance(answer, Answer)
    assert grade(answer.for_grader("lifelong"), [("pear", 2.5)], "lifelong")


@pytest.mark.parametrize(("grader", "form"), [(None, EACH_VALUE), ("lifelong", EACH_ROW)])
def test_tools_are_told_what_the_strings_of_an_answer_are(grader: str | None, form: str) -> None:
    task = Task("1", "Which?", (Table("t", (Column("a"),)),), "SELECT", Gold(("pear",)), grader=grader)
    assert f"Give {form};" in TOOLS.messages(task)[0]["content"]


@pytest.mark.parametrize(
    ("value", "row"),
    [
        ("(none)", "((none),)"),
        ("(a) or (b)", "((a) or (b),)"),
        ("(pear, 2)", "(pear, 2)"),
        *((each, each) for each in ("('pear')", "(2)", "(-2.5,)", "(None)")),
    ],
)
def test_a_value_in_parentheses_is_no_row(value: str, row: str) -> None:
    assert Answer("", (value,)).for_grader("lifelong") == f"[{row}]"
    assert grade(f"[{row}]", [(value,)], "lifelong") == (row != value)


def test_a_text_answer_is_read_as_it_stands() -> None:
    assert (
        Answer("[(2,)]").for_grader("lifelong") == Answer("[(2,)]").for_grader("agentbench_text") == "[(2,)]"
    )


# --- observations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [TEXT, TOOLS])
@pytest.mark.parametrize(
    ("result", "observation"),
    [
        (QueryResult([(1, "Ann"), (2, "Bo")]), "[(1, 'Ann'), (2, 'Bo')]"),
        (QueryResult([(None,)]), "[(None,)]"),
        (QueryResult([("🍐", "it's", "a\nb")]), "[('🍐', \"it's\", 'a\\nb')]"),
        (
            QueryResult([(Decimal("1.50"), datetime.date(2020, 1, 2))]),
            "[(Decimal('1.50'), datetime.date(2020, 1, 2))]",
        ),
        (QueryResult([]), "[]"),
        (QueryResult(None, affected=3), "[]"),
        (
            QueryResult(None, error="1146 (42S02): Table 'd.t' doesn't exist"),
            "1146 (42S02): Table 'd.t' doesn't exist",
        ),
        (
            QueryResult(None, error="The statement took too long.", limit="time"),
            "The statement took too long.",
        ),
        (QueryResult([(1,), (2,)], limit="rows"), "[(1,), (2,)] [TRUNCATED]"),
    ],
)
def test_what_the_agent_reads(
    protocol: TextProtocol | ToolsProtocol, result: QueryResult, observation: str
) -> None:
    assert protocol.observe(result) == observation


def test_long_observations_are_cut_at_800_characters() -> None:
    rows = [("x" * 794,)]  # "[('" + 794 + "',)]" are 801
    observation = TEXT.observe(QueryResult(rows))
    assert observation == str(rows)[:800] + "[TRUNCATED]"
    assert TEXT.observe(QueryResult([("x" * 793,)])) == str([("x" * 793,)])  # 800 are not cut
    assert TextProtocol(observation_characters=None).observe(QueryResult(rows)) == str(rows)
    assert get_protocol("text", 0).observe(QueryResult(rows)) == str(rows), "as in a recipe"
    assert ToolsProtocol(5).observe(QueryResult(None, error="1064 (42000)")) == "1064 [TRUNCATED]"


# --- messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [TEXT, TOOLS])
def test_messages(protocol: TextProtocol | ToolsProtocol) -> None:
    task = Task(
        "1", "How many?", (Table("fruits", (Column("name"), Column("price"))),), "SELECT", Gold(((2,),))
    )
    system, user = protocol.messages(task)
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"] == "How many?\nThe table is named fruits and has these columns: name, price"
    assert protocol.messages(task, "Be brief.")[0]["content"] == "Be brief."


def test_the_example_turns_of_the_prompt_are_valid_turns() -> None:
    """The agent is told forms that the parser reads."""
    from trl_dbbench.episode.prompts import TEXT_SYSTEM_PROMPT

    first, second = TEXT_SYSTEM_PROMPT.split("\n2. Finish.")
    assert TEXT.parse(first) == Operation("SELECT name FROM fruits WHERE price > 2;")
    assert TEXT.parse(second) == Answer("[('pear',), ('plum',)]")


@pytest.mark.parametrize(
    ("grader", "example"),
    [
        ("lifelong", [("pear",), ("plum",)]),
        ("agentbench_text", ["pear", "plum"]),
        ("agentbench_fc", ["pear", "plum"]),
        (None, ["pear", "plum"]),  # the protocol's grader
    ],
)
def test_the_prompt_shows_an_answer_in_the_form_that_the_tasks_grader_reads(
    grader: str | None, example: list
) -> None:
    """Tasks of several graders may be in one file."""
    task = Task("1", "Which?", (Table("t", (Column("a"),)),), "SELECT", Gold(("pear", "plum")), grader=grader)
    shown = TEXT.parse(TEXT.messages(task)[0]["content"].split("\n2. Finish.")[1])
    assert shown == Answer(str(example))
    assert get_grader(grader or TEXT.grader).judge(shown.text, example)


@pytest.mark.parametrize(
    ("given", "text", "values"),
    [
        (None, "done", ("done",)),
        ("[(2,)]", "[(2,)]", None),
        ([2, "pear"], "['2', 'pear']", ("2", "pear")),
        ([[2], ["pear"]], "['2', 'pear']", ("2", "pear")),
        ([(2, "pear"), [3, None]], """["(2, 'pear')", '(3, None)']""", ("(2, 'pear')", "(3, None)")),
    ],
)
def test_a_program_answers_with_a_text_values_or_rows(
    given: Any, text: str, values: tuple[str, ...] | None
) -> None:
    assert given_answer(given) == Answer(text, values)


@pytest.mark.parametrize(
    ("cell", "printed"),
    [
        (datetime.date(1985, 12, 1), "1985-12-01"),
        (datetime.datetime(1985, 12, 1, 8, 30), "1985-12-01 08:30:00"),
        (datetime.timedelta(seconds=5400), "01:30:00"),
        (Decimal("2.50"), "2.50"),
        (Decimal("0E-4"), "0.0000"),
    ],
)
@pytest.mark.parametrize("grader", ["lifelong", "agentbench_text", "agentbench_fc"])
def test_a_date_may_be_answered_as_the_database_replied_it(cell: Any, printed: str, grader: str) -> None:
    """Or as MySQL prints it."""
    shown = TEXT.observe(QueryResult([(cell,)]))
    copied = [
        Answer(shown),
        given_answer([repr(cell)]),
        given_answer([f"({cell!r},)"]),
        given_answer([printed]),
    ]
    gold = get_grader(grader).gold([(printed,)])
    copied = copied if get_grader(grader).rows else [copied[1], copied[3]]
    assert [get_grader(grader).judge(each.for_grader(grader), gold) for each in copied] == [True] * len(
        copied
    )


@pytest.mark.parametrize(
    "text",
    ["datetime.date(1985, 13, 1)", "datetime.date()", "datetime.date(" + "1, " * 300, "datetime.now()"],
)
def test_what_is_no_date_stays_as_it_is(text: str) -> None:
    assert Answer(text).for_grader("lifelong") == text


def test_protocols_by_name() -> None:
    assert get_protocol("text") == TEXT
    assert get_protocol("tools", None) == ToolsProtocol(None)
    with pytest.raises(ConfigError, match="unknown protocol 'xml'; allowed: text, tools"):
        get_protocol("xml")


# --- no text breaks it ----------------------------------------------------------------------------------------------

PIECES = [
    *("Action: Operation", "Action: Answer", "\nFinal Answer:", FENCE + "sql\n", "\n" + FENCE, FENCE),
    *(
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "SELECT 1",
        "\n",
        "\r",
        "\x00",
        "🍐",
    ),
    *(
        '{"name": "execute_sql", "arguments": {"query": "x"}}',
        '{"name":',
        '"',
        "{",
        "}",
        "[",
        "\\ud800",
        "1e999",
        "NaN",
    ),
    *('{"name": "commit_final_answer", "arguments": {"answers": [', "]}}"),
    *("<tool_call>\n<function=execute_sql>", "<parameter=query>", "</parameter>", "</function>"),
    *("<tool_call>execute_sql", "<arg_key>query</arg_key>", "<arg_value>", "</arg_value>"),
    *("[TOOL_CALLS]", "[TOOL_CALLS]execute_sql", "[ARGS]", "<|tool_call|>", "functools[", FENCE + "json\n"),
    *("<|start|>assistant", "to=functions.execute_sql", "<|channel|>analysis", "<|channel|>", "<|message|>"),
    *(
        "<｜tool▁call▁begin｜>",
        "function<｜tool▁sep｜>execute_sql",
        "<|tool_call>call:execute_sql",
        '<|"|>',
        "query:",
    ),
    *('<atem:invoke name="execute_sql">', '<atem:parameter name="query">', "</atem:parameter>"),
    *(
        "<|tool_call_start|>[",
        "execute_sql(query='",
        "<|tool_call_start|>[execute_sql(query=",
        "<|START_ACTION|>",
    ),
    *("<|tool_call_begin|>execute_sql", "<|tool_call_argument_begin|>"),
]
turns = st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=12).map("".join)


@pytest.mark.parametrize("protocol", [TEXT, TOOLS])
@examples(200)
@given(turn=turns)
def test_any_text_is_an_action(protocol: TextProtocol | ToolsProtocol, turn: str) -> None:
    action = protocol.parse(turn)
    assert isinstance(action, Operation | Answer | Invalid)
    match action:
        case Operation(sql):
            sql.encode()
        case Answer():
            for grader in ("agentbench_text", "agentbench_fc", "lifelong"):
                grade(action.for_grader(grader), [("x",)], grader)
        case Invalid():
            assert protocol.observe(action)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("protocol", [TEXT, TOOLS])
@pytest.mark.parametrize(
    "piece", [*PIECES, "Action: Operation\n" + FENCE + "sql\n", FENCE + "sql\n ", "Action: Answer\n", "\n\n"]
)
def test_a_hundred_thousand_characters_take_no_time(
    protocol: TextProtocol | ToolsProtocol, piece: str
) -> None:
    """Nothing backtracks: a lazy `[\\s\\S]*?` that never finds its end takes minutes here."""
    turn = "Action: Operation\n" + piece * (100_000 // len(piece))
    assert isinstance(protocol.parse(turn), Operation | Answer | Invalid)
    assert isinstance(protocol.parse(turn.removeprefix("Action: Operation\n")), Operation | Answer | Invalid)
