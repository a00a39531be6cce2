"""Servers that depart from the API's description, each as a vendor does it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from test_endpoints import LOOK, RIGHT, Api, Play, api, arguments, only, play, refused, said, turn_of
from test_evaluation import CHANGE, QUESTION, with_gold, written

from trl_dbbench.episode.protocol import Answer, Invalid, Operation
from trl_dbbench.episode.tool_calls import meant_tool
from trl_dbbench.episode.types import Rules, Status, Usage
from trl_dbbench.errors import ConfigError
from trl_dbbench.integrations.endpoints.http import base_url
from trl_dbbench.integrations.endpoints.messages import read_reply
from trl_dbbench.integrations.endpoints.refusals import ServerError, error_of

__all__ = ["api", "arguments", "play"]

SQL = "SELECT name FROM fruits WHERE price > 2"
QUERY, ANSWER = json.dumps({"query": SQL}), json.dumps({"answers": ["pear"]})


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def with_calls(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return said(None, tool_calls=list(calls), **more)


# --- what is sent back ------------------------------------------------------------------------------------


def test_gemini_gets_its_thought_signature_back(api: Api, play: Play) -> None:
    signature = {"google": {"thought_signature": "c2ln"}}

    def answer(body: dict, number: int) -> Any:
        for message in body["messages"]:
            for each in message.get("tool_calls", ()):
                if each.get("extra_content") != signature:
                    return 400, [{"error": {"code": 400, "message": "missing a thought_signature"}}], {}
        last = call("commit_final_answer", ANSWER, extra_content=signature)
        return with_calls(last if turn_of(body) else call("execute_sql", QUERY, extra_content=signature))

    api.answer = answer
    assert only(play(protocol="tools")).right
    assert api.bodies[1]["messages"][2]["tool_calls"] == [call("execute_sql", QUERY, extra_content=signature)]


def test_deepseek_gets_its_reasoning_back(api: Api, play: Play) -> None:
    api.answer = lambda body, number: with_calls(
        call("commit_final_answer", ANSWER) if turn_of(body) else call("execute_sql", QUERY),
        reasoning_content="let me look",
        refusal=None,
    )
    assert only(play(protocol="tools")).right
    assert api.bodies[1]["messages"][2] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "let me look",
        "tool_calls": [call("execute_sql", QUERY)],
    }


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"error": {"message": "'messages.2' : property 'reasoning' is unsupported"}}),
        (422, {"detail": [{"loc": ["body", "messages", 2, "reasoning"], "msg": "Extra inputs are not permitted"}]}),
    ],
)  # fmt: skip
def test_what_is_not_taken_back_is_left_out(api: Api, play: Play, status: int, error: dict) -> None:
    def answer(body: dict, number: int) -> Any:
        if any("reasoning" in message for message in body["messages"]):
            return status, error, {}
        return said(RIGHT if turn_of(body) else LOOK, reasoning="hm")

    api.answer = answer
    evaluation = play(QUESTION, CHANGE)
    assert evaluation.left_out == ["reasoning"]
    assert evaluation.requests == 5, "it is tried once"
    assert evaluation.episodes[0].right


@pytest.mark.parametrize("first_turns_work", [True, False])
def test_a_refusal_of_every_conversation_ends_the_run(api: Api, play: Play, first_turns_work: bool) -> None:
    """A first turn that works says nothing of the second, which never does."""

    def answer(body: dict, number: int) -> Any:
        if turn_of(body) or not first_turns_work:
            return refused(400, "tool choice requires --enable-auto-tool-choice")
        return with_calls(call("execute_sql", QUERY))

    api.answer = answer
    evaluation = play(*[QUESTION] * 20, protocol="tools")
    assert len(evaluation.episodes) == 3
    assert "tool choice requires --enable-auto-tool-choice" in (evaluation.stopped or "")
    assert "--protocol text" in (evaluation.stopped or "")


@pytest.mark.parametrize(
    "body",
    [
        {"success": False, "errors": [{"code": 7003, "message": "No route for that URI"}], "result": None},
        {"error_code": 336000, "error_msg": "No route for that URI"},
        {"error": None, "message": "No route for that URI"},
        {"error": {"type": "routing", "msg": "No route for that URI"}},
    ],
)
def test_a_reason_in_a_form_that_is_not_known_is_told(body: dict) -> None:
    """Cloudflare, Baidu and gateways have their own."""
    assert "No route for that URI" in error_of(httpx2.Response(400, json=body)).message


def test_conversations_that_are_refused_among_others_end_nothing(api: Api, play: Play) -> None:
    def answer(body: dict, number: int) -> Any:
        if turn_of(body) and "Drop" in body["messages"][1]["content"]:
            return refused(400, "content policy")
        return said(RIGHT if turn_of(body) else LOOK)

    api.answer = answer
    evaluation = play(*[QUESTION, CHANGE, CHANGE] * 3)
    assert (len(evaluation.episodes), evaluation.stopped) == (9, None)


# --- calls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "functions.execute_sql",
        "functions.execute_sql:0",
        "execute_sql<|channel|>commentary",
        "default_api:execute_sql",
        "mcp__database__execute_sql",
        " execute_sql\n",
        "functions_execute_sql",
        "mcp_db_execute_sql",
        "execute_sql_1",
        "EXECUTE-SQL",
        "executeSql",
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_names_with_marks_around_them(api: Api, play: Play, name: str, native: bool) -> None:
    in_text = f"<tool_call>{json.dumps({'name': name, 'arguments': {'query': SQL}})}</tool_call>"
    first = with_calls(call(name, QUERY)) if native else said(in_text)
    api.answer = lambda body, number: (
        with_calls(call("commit_final_answer", ANSWER)) if turn_of(body) else first
    )
    episode = only(play(protocol="tools"))
    assert episode.turns[0].action == Operation(SQL)
    assert episode.right
    if native:
        assert api.bodies[1]["messages"][2]["tool_calls"][0]["function"]["name"] == "execute_sql"


def test_the_old_function_call(api: Api, play: Play) -> None:
    last = {"name": "commit_final_answer", "arguments": ANSWER}
    api.answer = lambda body, number: said(
        None, function_call=last if turn_of(body) else {"name": "execute_sql", "arguments": QUERY}
    )
    assert only(play(protocol="tools")).right
    assert api.bodies[1]["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "execute_sql", "arguments": QUERY},
        },
        {"role": "function", "name": "execute_sql", "content": "[('pear',)]"},
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        json.dumps({"answers": '["pear"]'}),
        json.dumps(json.dumps({"answers": ["pear"]})),
        {"answers": ["pear"]},
        [{"answers": ["pear"]}],
        json.dumps([{"answers": ["pear"]}]),
        json.dumps(json.dumps(json.dumps({"answers": ["pear"]}))),
        ANSWER + "<|call|>",
        ANSWER * 2,
    ],
    ids=str,
)
def test_lists_and_arguments_as_json_text(api: Api, play: Play, arguments: Any) -> None:
    api.answer = lambda body, number: with_calls(call("commit_final_answer", arguments))
    episode = only(play(protocol="tools"))
    assert episode.turns[0].action == Answer("['pear']", ("pear",))
    assert episode.right


def test_calls_of_one_id_get_their_own(api: Api, play: Play) -> None:
    """Kimi K2 and MiMo may number two calls alike; their servers refuse that when it comes back."""
    same = [call("execute_sql", QUERY) | {"id": "functions.execute_sql:2"} for _ in range(3)]
    api.answer = lambda body, number: (
        with_calls(call("commit_final_answer", ANSWER)) if turn_of(body) else with_calls(*same)
    )
    assert only(play(protocol="tools")).right
    reply, *results = api.bodies[1]["messages"][2:]
    ids = ["functions.execute_sql:2", "000000001", "000000002"]
    assert [each["id"] for each in reply["tool_calls"]] == ids
    assert [each["tool_call_id"] for each in results] == ids


def test_a_name_that_means_two_tools_means_none() -> None:
    tools = ("execute_sql", "submit_sql")
    assert meant_tool("execute_sql_or_submit_sql", tools) == "execute_sql_or_submit_sql"
    assert meant_tool("functions.submit_sql", ("sql", "submit_sql")) == "submit_sql"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("functions.run", "run"),
        ("run:0", "run"),
        ("run0", "run"),
        ("runQuery", "run_query"),
        ("runquery", "run_query"),
        ("mcp_db_RunQuery<|channel|>commentary", "run_query"),
        ("truncate_table", "truncate_table"),
        ("research_web", "research_web"),
    ],
)
def test_a_name_means_a_tool_whose_words_it_has(name: str, meant: str) -> None:
    assert meant_tool(name, ("run", "search", "run_query")) == meant


LAST = {"name": "commit_final_answer", "arguments": ANSWER}


@pytest.mark.parametrize(
    "calls",
    [
        {"id": "c1", "type": "function", "function": LAST},
        json.dumps([{"id": "c1", "type": "function", "function": LAST}]),
        [{"id": "c1", **LAST}],
        [{"id": "c1", "name": "commit_final_answer", "parameters": {"answers": ["pear"]}}],
        [None, {"id": "c1", "function": LAST}],
    ],
    ids=str,
)
def test_calls_in_other_shapes(api: Api, play: Play, calls: Any) -> None:
    api.answer = lambda body, number: said(None, tool_calls=calls)
    assert only(play(protocol="tools")).right


@pytest.mark.parametrize(
    "content",
    [
        ["Action: Answer\n", "Final Answer: [('pear',)]"],
        [None, {"type": "text", "text": {"value": RIGHT}}],
        {"type": "text", "text": RIGHT},
        [{"type": "reasoning", "text": "Action: Operation"}, {"type": "text", "text": RIGHT}],
        [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": RIGHT}],
    ],
    ids=str,
)
def test_contents_in_parts(api: Api, play: Play, content: Any) -> None:
    api.answer = lambda body, number: said(content)
    episode = only(play())
    assert episode.right
    assert ("<think>" in episode.turns[0].text) == ("thinking" in str(content) or "reasoning" in str(content))


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 100.0, "completion_tokens": 7}, (100, 7)),
        ({"input_tokens": 100, "output_tokens": 7}, (100, 7)),
        ({"prompt_tokens": -5, "completion_tokens": 7}, (0, 7)),
        ({"prompt_tokens": None, "completion_tokens": "7"}, None),
        ({"total_tokens": 107}, None),
        ({}, None),
    ],
)
def test_what_a_server_counts(usage: dict, counted: tuple[int, int] | None) -> None:
    """A turn that it says nothing of is not counted, rather than free."""
    reply = read_reply({"choices": [{"message": {"content": "x"}}], "usage": usage})
    assert reply.usage == (counted and Usage(*counted))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_a_turn_that_stands_among_the_thoughts(api: Api, play: Play, field: str) -> None:
    api.answer = lambda body, number: said(None, **{field: RIGHT if turn_of(body) else LOOK})
    episode = only(play())
    assert (episode.right, episode.turns[0].text) == (True, LOOK)
    assert api.bodies[1]["messages"][2]["content"] == LOOK


def test_bedrock_puts_thoughts_before_the_text(api: Api, play: Play) -> None:
    """gpt-oss weighs both actions, and the first one named is not the one that it takes."""
    thoughts = "<reasoning>Action: Answer, or Action: Operation?\nFinal Answer: none yet.</reasoning>"
    api.answer = lambda body, number: said(thoughts + (RIGHT if turn_of(body) else LOOK))
    episode = only(play())
    assert episode.turns[0].action == Operation(SQL) and episode.right
    assert api.bodies[1]["messages"][2]["content"] == thoughts + LOOK


def test_thoughts_that_were_cut_off_are_no_turn(api: Api, play: Play) -> None:
    api.answer = lambda body, number: said(None, reasoning_content=RIGHT, finish="length")
    assert only(play()).status == Status.INVALID_ACTION
    api.answer = lambda body, number: said(f"<reasoning>{RIGHT}", finish="length")
    assert only(play()).status == Status.INVALID_ACTION


def test_unreadable_turns_are_counted(api: Api, play: Play) -> None:
    api.answer = lambda body, number: with_calls(call("run", "{}"))
    evaluation = play(protocol="tools")
    assert str(evaluation).splitlines()[-1] == (
        "3 of 3 turns could not be read; most often: Error: unknown function 'run'. Call execute_sql or "
        "commit_final_answer. (3 of 3)"
    )
    assert list(evaluation.to_dict()["unreadable_turns"].values()) == [3]


@pytest.mark.parametrize("reason", ["function_call_filter: MALFORMED_FUNCTION_CALL", "length"])
def test_gemini_leaves_out_a_message_without_text(api: Api, play: Play, reason: str) -> None:
    """The model wrote a call that cannot be read, or thought to the end."""

    def answer(body: dict, number: int) -> Any:
        if number:
            return with_calls(call("commit_final_answer", ANSWER))
        return {"choices": [{"finish_reason": reason, "index": 0}], "usage": {"prompt_tokens": 5}}

    api.answer = answer
    episode = only(play(protocol="tools"))
    assert (episode.right, len(api.bodies)) == (True, 2)
    assert episode.turns[0].observation.startswith("Error: no tool call found.")


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"message": {"content": RIGHT[:-2]}, "finish_reason": "content_filter: RECITATION"}]},
        {"choices": [{"finish_reason": "content_filter: PROHIBITED_CONTENT", "index": 0}]},
        {"object": "chat.completion", "usage": {"prompt_tokens": 5}},
    ],
)
def test_gemini_blocks_a_turn(body: dict) -> None:
    assert read_reply(body).finish == "content_filter"


@pytest.mark.parametrize("turn", [{"text": RIGHT}, {"delta": {"content": RIGHT}}])
def test_a_turn_of_another_api_is_no_empty_turn(turn: dict) -> None:
    usage = {"prompt_tokens": 5}
    for body in ({"choices": [{"finish_reason": "stop", **turn}]}, {"type": "message", **turn}):
        with pytest.raises(ValueError, match="no reply: "):
            read_reply({**body, "usage": usage})


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("'max_tokens' is too large: 512. This model's maximum context length is 2048 tokens and your request has 1700 input tokens (512 > 2048 - 1700).", 348),
        ("This model's maximum context length is 2048 tokens. However, you requested 2212 tokens (1700 in the messages, 512 in the completion).", 348),
        ("This model's maximum context length is 2048 tokens. However, you requested 2100 tokens.", 460),
        ("input length and `max_tokens` exceed context limit: 1900 + 512 > 2048, decrease input length or `max_tokens` and try again", 148),
        ("max_tokens is too large: 512. This model supports at most 256 completion tokens", 256),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 300]", 300),
        ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 1800 `inputs` tokens and 512 `max_new_tokens`", 248),
        ("max_tokens is too large", 256),
        ("Unable to submit request because it has a maxOutputTokens value of 512 but the supported range is from 1 (inclusive) to 257 (exclusive).", 256),
        ("Prompt contains 1700 tokens and max_tokens is 512, too large for model with 2048 maximum context length", 348),
        ("too many tokens: max tokens must be less than or equal to 300, the maximum output length for this model - received 512.", 300),
        ("The maximum tokens you requested exceeds the model limit of 300. Try again with a lower value.", 300),
        ("Requests with max_tokens > 300 must have stream=true", 300),
        ("This model's maximum context length is 2048 tokens. However, your messages resulted in 2500 tokens.", 0),
        ("This model's maximum context length is 2048 tokens. However, you requested 512 output tokens and your prompt contains at least 1537 input tokens, for a total of at least 2049 tokens.", 256),
        ("Range of max_tokens should be [1, 300]", 300),
        ("Invalid request: Your request exceeded model token limit: 8192 (requested: 8300)", 404),
        ("prompt is too long: 9000 tokens > 8192 maximum", None),
        ("`max_tokens` must be greater than `thinking.budget_tokens`.", None),
        ("max_tokens must be strictly greater than 1024", None),
        ("max_tokens must be at least 1024", None),
        ("max_tokens=512 cannot be greater than max_model_len=300. Please request fewer output tokens.", 256),
        ("max_tokens must not be larger than the context", 256),
        ("max_tokens (512) is greater than the limit of this deployment", 256),
        ("max_tokens must be below 300", 256),
        ("Unsupported parameter: 'max_tokens' is not supported with this model.", None),
        ("temperature must be positive", None),
    ],
)  # fmt: skip
def test_how_many_tokens_are_left(message: str, left: int | None) -> None:
    assert ServerError(message).tokens_left(512) == left


@pytest.mark.parametrize("says_numbers", [True, False])
def test_a_turn_gets_what_is_left_of_the_context(api: Api, play: Play, says_numbers: bool) -> None:
    def answer(body: dict, number: int) -> Any:
        if turn_of(body) and body["max_tokens"] > 200:
            numbers = (
                ". This model's maximum context length is 2048 tokens and your request has 1900 input tokens"
            )
            return refused(400, f"'max_tokens' is too large{numbers if says_numbers else ''}")
        return said(RIGHT if turn_of(body) else LOOK)

    api.answer = answer
    evaluation = play()
    assert only(evaluation).right
    assert api.bodies[-1]["max_tokens"] == (148 if says_numbers else 128)
    assert "1 turns got fewer tokens than asked for" in str(evaluation)


def test_a_turn_that_fills_the_context_is_out_of_tokens(api: Api, play: Play) -> None:
    def answer(body: dict, number: int) -> Any:
        if body["max_tokens"] > 100:
            return refused(
                400, "'max_tokens' is too large: 512. This model supports at most 64 completion tokens"
            )
        return with_calls(call("execute_sql", '{"query": "SELECT'), usage=None) | {}

    api.answer = answer
    episode = only(play(protocol="tools"))
    assert episode.status == Status.TURN_LIMIT, "it came to its end by itself"
    api.answer = lambda body, number: (
        refused(400, "max_tokens is too large")
        if body["max_tokens"] > 100
        else said(None, ("execute_sql", '{"query": "SELECT'), finish="length")
    )
    assert only(play(protocol="tools")).status == Status.OUT_OF_TOKENS


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"error": {"message": "Unsupported value: 'temperature' does not support 0.0 with this model.", "param": None, "code": None}}),
        (422, {"detail": [{"loc": ["body", "temperature"], "msg": "ensure this value is greater than 0"}]}),
        (400, {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": json.dumps({"error": {"message": "Unsupported parameter: 'temperature'"}})}}}),
    ],
)  # fmt: skip
def test_a_setting_that_is_refused_in_other_words(api: Api, play: Play, status: int, error: dict) -> None:
    api.answer = lambda body, number: (status, error, {}) if "temperature" in body else said(RIGHT)
    evaluation = play()
    assert (only(evaluation).right, evaluation.left_out) == (True, ["temperature"])


@pytest.mark.parametrize("text", ["<!DOCTYPE html><html><title>Sign in</title></html>", "data: {}\n\n", ""])
@pytest.mark.parametrize("status", [200, 404])
def test_a_server_that_answers_with_a_page_is_told_at_once(
    api: Api, play: Play, text: str, status: int
) -> None:
    api.answer = lambda body, number: (status, text, {"Content-Type": "text/html"})
    evaluation = play(*[QUESTION] * 5, patience=600.0)
    assert len(api.bodies) == 1
    assert "Compare --endpoint and --model" in (evaluation.stopped or "")
    if text.startswith("<"):
        assert "an HTML page (Sign in)" in (evaluation.stopped or "")


@pytest.mark.parametrize(
    "message",
    [
        "`temperature` may only be set to 1 when thinking is enabled.",
        "`temperature` is deprecated for this model.",
        "temperature must be in range (0, 2]",
    ],
)
def test_temperatures_that_are_refused(message: str) -> None:
    assert ServerError(message).unwanted({"temperature": 0.0, "messages": []}) == "temperature"


@pytest.mark.parametrize(
    "body",
    [
        # Fireworks: the thoughts that it quotes are about a setting
        {
            "error": {
                "message": "Extra inputs are not permitted, field: 'messages[1].reasoning', value: 'I need the average temperature.'"
            }
        },
        # Mistral
        {
            "object": "error",
            "message": [
                {
                    "type": "extra_forbidden",
                    "loc": ["body", "messages", 1, "reasoning"],
                    "msg": "Extra inputs are not permitted",
                    "input": "the temperature",
                }
            ],
        },
        {
            "object": "error",
            "message": {
                "detail": [
                    {
                        "type": "extra_forbidden",
                        "loc": ["body", "messages", 1, "reasoning"],
                        "msg": "Extra inputs are not permitted",
                        "input": "the temperature",
                    }
                ]
            },
        },
        # DeepSeek
        {
            "error": {
                "message": "The reasoning is an intermediate result. Please remove the reasoning from your message."
            }
        },
    ],
)
def test_what_the_model_thought_is_not_what_the_server_refuses(body: dict) -> None:
    error = error_of(httpx2.Response(400, json=body))
    asked = {"temperature": 0.0, "messages": [{"role": "assistant", "content": "x", "reasoning": "r"}]}
    assert error.unwanted(asked) == "reasoning"


def test_of_temperature_and_top_p_the_temperature_stays() -> None:
    said = ServerError(
        "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    )
    assert said.unwanted({"temperature": 0.7, "top_p": 0.9, "messages": []}) == "top_p"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            {
                "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation'.",
                "code": "tool_use_failed",
                "failed_generation": '<tool_call>{"name": "execute_sql", "arguments": {"query": 1}}</tool_call>',
            },
            "Error: execute_sql needs the argument query, a string.",
        ),
        (
            {"message": "Could not finish the message because max_tokens or model output limit was reached."},
            "Error: no tool call found.",
        ),
    ],
)
def test_an_error_of_the_model_is_its_turn(api: Api, play: Play, error: dict, reason: str) -> None:
    """Groq reads the calls itself; OpenAI's thoughts may take all tokens of a turn."""

    def answer(body: dict, number: int) -> Any:
        if not number:
            return 400, {"error": error}, {}
        return with_calls(call(*(("commit_final_answer", ANSWER) if number > 1 else ("execute_sql", QUERY))))

    api.answer = answer
    episode = only(play(protocol="tools"))
    assert (episode.right, len(api.bodies)) == (True, 3)
    assert episode.turns[0].observation.startswith(reason)


@pytest.mark.parametrize(
    ("status", "message", "read"),
    [
        (500, f"error parsing tool call: raw='{QUERY}]', err=invalid character ']' after top-level value", f"{QUERY}]"),
        (500, "error parsing tool call: raw='ls\n', err=invalid character 'l' looking for beginning of value", "ls\n"),
        (500, f"Failed to parse input at pos 3: <tool_call>{QUERY}", f"<tool_call>{QUERY}"),
        (500, "Unexpected token 12606 while expecting start token 200006", ""),
        (400, "unexpected tokens remaining in message header: ['commentary']", ""),
        (200, "Unexpected token 12606 while expecting start token 200006", ""),
        (500, "The model produced output that does not match the expected peg-native format", ""),
        (500, "XML syntax error on line 3: element <parameter> closed by </function>", ""),
        (500, "failed to parse XML: XML syntax error on line 1: element <tool_call> closed by </arg_value>", ""),
        (500, "expected element type <function> but have <parameter>", ""),
        (500, "failed to parse JSON: unexpected end of JSON input", ""),
        (500, "invalid character ']' after object key:value pair", ""),
    ],
)  # fmt: skip
def test_a_call_that_the_server_cannot_read_is_an_unreadable_turn(
    api: Api, play: Play, status: int, message: str, read: str
) -> None:
    """The errors are those of Ollama, llama.cpp and vLLM with gpt-oss. A greedy model would write the call again."""

    def answer(body: dict, number: int) -> Any:
        return with_calls(call("commit_final_answer", ANSWER)) if number else refused(status, message)

    api.answer = answer
    episode = only(play(protocol="tools", patience=600.0))
    assert (episode.right, len(api.bodies)) == (True, 2)
    assert (episode.turns[0].text, type(episode.turns[0].action)) == (read, Invalid)


def test_what_a_proxy_cannot_read_is_no_turn() -> None:
    """It got a page from its own server, and may get a reply the next time."""
    assert ServerError("invalid character '<' looking for beginning of value").reply is None


def test_a_turn_that_wants_more_tokens_is_not_asked_for_with_fewer(api: Api, play: Play) -> None:
    message = "`max_tokens` must be greater than `thinking.budget_tokens`."
    api.answer = lambda body, number: refused(400, message)
    evaluation = play(*[QUESTION] * 5)
    assert {each.status for each in evaluation.episodes} == {Status.ENVIRONMENT_FAULT}
    assert {body["max_tokens"] for body in api.bodies} == {512}
    assert "--max-turn-tokens" in (evaluation.stopped or "")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"),
        (400, "Prompt exceeds max length"),
        (400, "The engine prompt length 5000 exceeds the max_model_len 4096. Please reduce prompt."),
        (422, "`inputs` must have less than 4095 tokens. Given: 5000"),
        (413, "Request body too large for gpt-4o model. Max size: 8000 tokens."),
        (400, "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192"),
        (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        (500, "input length exceeds the context length"),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575)."),
        (400, "This model's maximum prompt length is 131072 but the request contains 200000 tokens."),
        (200, "This model's maximum context length is 2048 tokens. However, your messages resulted in 2500 tokens."),
    ],
)  # fmt: skip
def test_conversations_that_are_too_long_in_other_words(
    api: Api, play: Play, status: int, message: str
) -> None:
    api.answer = lambda body, number: refused(status, message)
    episode = only(play())
    assert (episode.status, len(api.bodies)) == (Status.OUT_OF_TOKENS, 1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((200, {"error": {"message": "Invalid API key", "code": 401}}, {}), "OPENAI_API_KEY"),
        ((200, {"object": "error", "message": "The model does not exist", "code": 404}, {}), "GET /v1/models"),
        ((400, {"error": {"message": "Model 'm' not found"}}, {}), "GET /v1/models"),
        ((400, {"error": {"message": "API key not valid. Please pass a valid API key."}}, {}), "OPENAI_API_KEY"),
        ((400, {"error": {"message": "Your credit balance is too low"}}, {}), "your account"),
        ((301, "", {"Location": "https://other.example/v1/chat/completions?key=secret"}),
         "status 301: it redirects to https://other.example/v1/chat/completions. Give that address to --endpoint"),
        ((307, "", {"Location": "/v2/chat/completions"}), "/v2/chat/completions. Give that address"),
        ((405, "", {}), "GET /v1/models"),
        ((404, {"error": {"message": "No endpoints found that support tool use."}}, {}), "--protocol text"),
        ((501, "", {}), "GET /v1/models"),
        ((500, {"error": {"code": 500, "message": "tools param requires --jinja flag"}}, {}), "--protocol text"),
    ],
)  # fmt: skip
def test_what_no_other_request_changes_ends_the_run_at_once(
    api: Api, play: Play, answer: Any, why: str
) -> None:
    api.answer = lambda body, number: answer
    evaluation = play(*[QUESTION] * 5, patience=600.0)
    assert len(api.bodies) == 1
    assert why in (evaluation.stopped or "")


@pytest.mark.parametrize(
    "trouble",
    [
        (200, {"error": {"message": "overloaded", "code": 529}}, {}),
        (200, {"choices": [{"error": {"message": "upstream died", "code": 502}, "finish_reason": "error"}]}, {}),
        (200, {"choices": [{"message": {"content": "Action: Op"}, "finish_reason": "abort"}]}, {}),
        (200, '{"choices": [{"mess', {"Content-Type": "application/json"}),
        said("Action: Ans", finish="abort"),
        said("", finish="insufficient_system_resource"),
    ],
)  # fmt: skip
def test_errors_that_look_like_replies_are_tried_again(api: Api, play: Play, trouble: Any) -> None:
    api.answer = lambda body, number: said(RIGHT) if number else trouble
    assert only(play(patience=60.0)).right


@pytest.mark.parametrize("finish", ["length", "max_tokens", "model_length"])
def test_a_turn_that_was_cut_off_in_other_words(api: Api, play: Play, finish: str) -> None:
    api.answer = lambda body, number: said(LOOK, usage=(100, 600), finish=finish)
    episode = only(play(rules=Rules(max_completion_length=600)))
    assert episode.turns[0].cut_off and episode.status == Status.OUT_OF_TOKENS


def test_a_proxy_that_cannot_be_used(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "sock://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"proxy of this environment .*ALL_PROXY.* Unset it"):
        play()


@pytest.mark.parametrize(
    "url",
    [
        "https://me.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=2024-10-21",
        "https://me.openai.azure.com/openai/deployments/gpt",
        "https://me.openai.azure.com/",
        "https://me.cognitiveservices.azure.com",
        "https://me.services.ai.azure.com/models",
    ],
)
def test_azures_other_addresses_are_refused_with_the_one_that_works(url: str) -> None:
    with pytest.raises(ConfigError, match=r"https://YOUR-RESOURCE\.openai\.azure\.com/openai/v1"):
        base_url(url)
    assert base_url("https://me.openai.azure.com/openai/v1/") == "https://me.openai.azure.com/openai/v1"


def test_a_server_that_never_answers_is_waited_for_once(api: Api, play: Play) -> None:
    api.answer = lambda body, number: refused(500, "oops")
    evaluation = play(*[QUESTION] * 5, patience=0.0)
    assert len(evaluation.episodes) == 1
    assert "status 500: oops" in (evaluation.stopped or "")


def test_what_cannot_be_sent_back_ends_nothing(api: Api, play: Play) -> None:
    """Half a surrogate pair and NaN are in no JSON that a server takes."""

    def answer(body: dict, number: int) -> Any:
        return said(
            RIGHT if turn_of(body) else LOOK, reasoning="\ud83d", score=float("nan"), most=float("inf")
        )

    api.answer = answer
    assert only(play()).right
    sent = api.bodies[1]["messages"][2]
    assert (sent["reasoning"], sent.keys() & {"score", "most"}) == ("?", set())


# --- the command ------------------------------------------------------------------------------------------


def test_a_run_of_faults_alone_has_failed(api: Api, command: Callable, arguments: list) -> None:
    """Two tasks are fewer than it takes to give a server up."""
    api.answer = lambda body, number: refused(422, "something odd")
    code, _ = command(*arguments)
    assert code.startswith("error: every episode ended by a fault, most often: the endpoint")
    assert "status 422: something odd (2 of 2)" in code


def test_rows_are_not_taken_for_sql(api: Api, command: Callable, tmp_path: Path) -> None:
    """A task of BIRD, whose grader executes the answer, is refused for an endpoint as for a local model."""
    bird = replace(with_gold(QUESTION, answer=None), grader="bird_ex")
    tasks = written(tmp_path / "bird.jsonl", bird)
    code, _ = command(
        *("eval", "--endpoint", api.url, "--model", "m", "--tasks", tasks, "--database", "sqlite")
    )
    assert code.startswith("error: task 'dear' is answered with SQL, which its grader bird_ex executes")
    assert "text_sql or tools_sql" in code
    assert api.bodies == []


def test_the_name_is_the_servers_alone(
    api: Api, command: Callable, arguments: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "adapter_config.json").write_text("{}")
    (tmp_path / "m" / "run.json").write_text("no JSON")
    monkeypatch.setattr(
        "trl_dbbench.runs.adapters.find_adapter_config_file",
        lambda name: pytest.fail(f"the hub is asked for {name}"),
    )
    for name in ("m", "owner/model"):
        assert command(*[name if each == "m" else each for each in arguments])[0] == 0
        assert api.bodies[-1]["model"] == name
