"""Models behind OpenAI-compatible servers as agents: what is sent, what replies mean, what failures do."""

from __future__ import annotations

import json
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import pytest
from test_evaluation import CHANGE, QUESTION, written

from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.prompts import TEXT_SYSTEM_PROMPT
from trl_dbbench.episode.protocol import Answer, Invalid, Operation, ToolsProtocol, get_protocol
from trl_dbbench.episode.types import Episode, Rules, Sampling, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.integrations.endpoints import http
from trl_dbbench.integrations.endpoints.evaluate import EndpointEvaluation, EndpointPlayer, evaluate_endpoint
from trl_dbbench.integrations.endpoints.http import Endpoint, base_url, read_key
from trl_dbbench.integrations.endpoints.messages import SECOND_CALL, read_reply
from trl_dbbench.runs.conversations import Played
from trl_dbbench.runs.journal import Journal
from trl_dbbench.runs.records import EpisodeRecord, episode_record
from trl_dbbench.runs.tokens import with_tokens
from trl_dbbench.runs.trained import DEFAULTS
from trl_dbbench.tasks import Task

LOOK = "I look.\nAction: Operation\n```sql\nSELECT name FROM fruits WHERE price > 2\n```"
RIGHT = "Action: Answer\nFinal Answer: [('pear',)]"
WRONG = "Action: Answer\nFinal Answer: [('apple',)]"

HANG, CLOSE, BLANKS = "hang", "close", "blanks"
DOCS = Path(__file__).parents[2] / "docs"
KEY = "sk-very-secret-0123456789"


def said(
    content: Any = None, *calls: tuple[str, Any], finish: str = "stop", usage: Any = (100, 7), **more: Any
) -> dict:
    """A reply as servers give it."""
    message = {"role": "assistant", "content": content, **more}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    body: dict = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    if usage is not None:
        body["usage"] = dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=True))
    return body


def refused(status: int, message: str, headers: dict[str, str] | None = None, **more: Any) -> tuple:
    return status, {"error": {"message": message, **more}}, headers or {}


class Api:
    """An OpenAI-compatible server in a thread. `answer` says what a request gets, from (body, number of the request):
    a reply, (status, body, headers), `HANG`, `CLOSE` or `BLANKS` without end. By default it looks, then answers right."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.times: list[float] = []
        self.keys: list[str | None] = []
        self.answer: Callable[[dict, int], Any] = lambda body, number: said(RIGHT if turn_of(body) else LOOK)
        self._over, self._lock = Event(), Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/v1/chat/completions", self.path
                with api._lock:
                    number = len(api.bodies)
                    api.bodies.append(body)
                    api.times.append(time.monotonic())
                    api.keys.append(self.headers.get("Authorization"))
                reply = api.answer(body, number)
                if reply == BLANKS:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    with suppress(OSError):
                        while not api._over.wait(0.05):
                            self.wfile.write(b"1\r\n \r\n")
                if reply == HANG:
                    api._over.wait()
                if reply in (HANG, CLOSE, BLANKS):
                    self.close_connection = True
                    with suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, content, headers = (200, reply, {}) if isinstance(reply, dict) else reply
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        self._http.shutdown()
        self._http.server_close()


def turn_of(body: dict) -> int:
    return sum(message["role"] == "assistant" for message in body["messages"])


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(http, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    api = Api()
    yield api
    api.stop()


@pytest.fixture
def play(api: Api, sqlite_database: Database) -> Callable[..., EndpointEvaluation]:
    """Evaluates the scripted server on tasks; by default on one question."""

    def play(
        *tasks: Task,
        protocol: str = "text",
        rules: Rules | None = None,
        concurrency: int = 1,
        journal: Journal | None = None,
        **settings: Any,
    ) -> EndpointEvaluation:
        endpoint = Endpoint(api.url, "m", **{"patience": 0.5, **settings})
        judge = Judge(sqlite_database)
        player = EndpointPlayer(
            endpoint, get_protocol(protocol), sqlite_database, judge, rules or Rules(), None, concurrency
        )
        return evaluate_endpoint(tasks or [QUESTION], player, journal=journal)

    return play


def only(evaluation: EndpointEvaluation) -> Episode:
    (episode,) = evaluation.episodes
    return episode


Play = Callable[..., EndpointEvaluation]


# --- conversations ----------------------------------------------------------------------------------------


def test_an_episode_of_the_text_protocol(api: Api, play: Play) -> None:
    usages = iter([(100, 20), (140, 9)])
    api.answer = lambda body, number: said(RIGHT if turn_of(body) else LOOK, usage=next(usages))
    evaluation = play()
    first, second = api.bodies
    assert first == {
        "model": "m",
        "messages": [
            {"role": "system", "content": TEXT_SYSTEM_PROMPT},
            {"role": "user", "content": QUESTION.prompt()},
        ],
        "temperature": 0.0,
        "max_tokens": 512,
    }
    assert second["messages"][2:] == [
        {"role": "assistant", "content": LOOK},
        {"role": "user", "content": "[('pear',)]"},
    ]
    episode = only(evaluation)
    assert (episode.status, episode.right) == (Status.ANSWERED, True)
    assert episode.statements == ["SELECT name FROM fruits WHERE price > 2"]
    record = episode_record(episode, "eval", 0)
    assert record["endpoint"] == f"m at {api.url}/v1"
    assert (record["prompt_tokens"], [turn["tokens"] for turn in record["turns"]]) == (100, [20, 9])
    assert evaluation.tokens == {"read": 240, "written": 29, "uncounted_turns": 0}
    assert str(evaluation).splitlines() == [
        "overall           1/1 = 100.0 % [20.7, 100.0]",
        "operation/SELECT  1/1 = 100.0 % [20.7, 100.0]",
        "status/answered   100.0 %",
        f"m at {api.url}/v1: 2 requests, 240 tokens read, 29 written",
    ]


def test_an_episode_of_the_tools_protocol(api: Api, play: Play) -> None:
    query = '{"query": "SELECT name FROM fruits WHERE price > 2"}'
    turns = [
        said("I look.", ("execute_sql", query), ("execute_sql", '{"query": "DROP TABLE fruits"}')),
        said(None, ("commit_final_answer", '{"answers": ["pear"]}'), reasoning_content="It is the pear."),
    ]
    api.answer = lambda body, number: turns[turn_of(body)]
    episode = only(play(protocol="tools"))
    assert [tool["function"]["name"] for tool in api.bodies[0]["tools"]] == [
        "execute_sql",
        "commit_final_answer",
    ]
    assistant, *results = api.bodies[1]["messages"][2:]
    assert assistant["content"] == "I look."
    assert assistant["tool_calls"][0] == {
        "id": "call_0",
        "type": "function",
        "function": {"name": "execute_sql", "arguments": query},
    }
    assert results == [
        {"role": "tool", "tool_call_id": "call_0", "content": "[('pear',)]"},
        {"role": "tool", "tool_call_id": "call_1", "content": SECOND_CALL},
    ]
    assert episode.right and episode.statements == ["SELECT name FROM fruits WHERE price > 2"]
    assert episode.turns[1].text == (
        "<think>\nIt is the pear.\n</think>\n\n"
        '<tool_call>{"name": "commit_final_answer", "arguments": {"answers": ["pear"]}}</tool_call>'
    )


@pytest.mark.parametrize(
    ("reply", "action", "sent_back"),
    [
        (
            said(None, ("execute_sql", '{"query": "SELECT 1')),
            Invalid("Error: the arguments of a tool call must be a JSON object."),
            '{"unreadable": "{\\"query\\": \\"SELECT 1"}',
        ),
        (
            said(None, ("execute_sql", '["SELECT 1"]')),
            Invalid("Error: the arguments of a tool call must be a JSON object."),
            '{"unreadable": "[\\"SELECT 1\\"]"}',
        ),
        (
            said(None, ("execute_sql", '{"sql": "SELECT 1"}')),
            Invalid("Error: execute_sql needs the argument query, a string."),
            '{"sql": "SELECT 1"}',
        ),
        (
            said(None, ("drop_database", "{}")),
            Invalid("Error: unknown function 'drop_database'. Call execute_sql or commit_final_answer."),
            "{}",
        ),
        (said(None, ("execute_sql", {"query": "SELECT 1"})), Operation("SELECT 1"), '{"query": "SELECT 1"}'),
        (
            said('{"name": "commit_final_answer"}', ("execute_sql", '{"query": "SELECT \'</tool_call>\'"}')),
            Operation("SELECT '</tool_call>'"),
            '{"query": "SELECT \'</tool_call>\'"}',
        ),
        (
            said('<tool_call>{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}</tool_call>'),
            Operation("SELECT 1"),
            None,
        ),
        (said([{"type": "text", "text": "hm"}]), Invalid("Error: no tool call found. Call execute_sql or commit_final_answer."), None),
        (said(None), Invalid("Error: no tool call found. Call execute_sql or commit_final_answer."), None),
        (
            said(None, refusal="I will not."),
            Invalid("Error: no tool call found. Call execute_sql or commit_final_answer. (the model refused)"),
            None,
        ),
        (
            said("SELE", finish="content_filter"),
            Invalid("Error: the server's content filter stopped the turn."),
            None,
        ),
        (
            said(None, ("commit_final_answer", '{"answers": ["pe'), finish="length"),
            Invalid("Error: the arguments of a tool call must be a JSON object."),
            '{"unreadable": "{\\"answers\\": [\\"pe"}',
        ),
    ],
)  # fmt: skip
def test_what_a_reply_means_to_the_tools_protocol(
    api: Api, play: Play, reply: dict, action: object, sent_back: str | None
) -> None:
    api.answer = lambda body, number: (
        reply if not turn_of(body) else said(None, ("commit_final_answer", '{"answers": ["pear"]}'))
    )
    episode = only(play(protocol="tools"))
    turn = episode.turns[0]
    assert turn.action == action
    assert turn.cut_off == (reply["choices"][0]["finish_reason"] == "length")
    assistant, observed = api.bodies[1]["messages"][2:]
    if sent_back is not None:
        assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [sent_back]
        assert json.loads(sent_back) is not None
    else:
        assert assistant["content"] and "tool_calls" not in assistant
    assert observed["role"] == ("tool" if sent_back is not None else "user")
    if isinstance(action, Invalid):
        assert observed["content"] == action.reason
    assert episode.right, "it could go on after each of them"
    if sent_back is not None and isinstance(action, (Operation, Answer)):
        assert ToolsProtocol().parse(turn.text.splitlines()[-1]) == action, "a saved turn is read again"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (said(""), "no 'Action: Operation' or 'Action: Answer'"),
        (said(None, refusal="No."), "no 'Action: Operation' or 'Action: Answer' (the model refused)"),
        (said("Action: Operation\n```sql\nSELE", finish="length"), "'Action: Operation' without a closed ```sql block"),
        (said(RIGHT, finish="content_filter"), "Error: the server's content filter stopped the turn."),
        ({"choices": [], "usage": {"prompt_tokens": 3}}, "Error: the server's content filter stopped the turn."),
        ({"choices": [{"message": None, "finish_reason": "content_filter"}]}, "Error: the server's content filter stopped the turn."),
        (said(None, ("execute_sql", '{"query": "SELECT 1"}')), "no 'Action: Operation' or 'Action: Answer'"),
    ],
)  # fmt: skip
def test_what_a_reply_means_to_the_text_protocol(api: Api, play: Play, reply: dict, reason: str) -> None:
    api.answer = lambda body, number: reply
    episode = only(play())
    assert episode.status == Status.INVALID_ACTION
    assert episode.turns[0].action == Invalid(reason)


@pytest.mark.parametrize(
    "body", [[], {}, {"choices": []}, {"choices": [{}]}, {"error": "busy"}, "x", None, 1]
)
def test_what_is_no_reply(body: Any) -> None:
    with pytest.raises(ValueError, match="no reply: "):
        read_reply(body)


# --- limits -----------------------------------------------------------------------------------------------


def test_tokens_run_out_as_the_endpoint_counts_them(api: Api, play: Play) -> None:
    rules = Rules(max_turns=9, max_turn_tokens=50, max_completion_length=100)
    usages = iter([(500, 40), (560, 30), (610, 10)])  # so far 40, 90, 120 tokens after the prompt
    api.answer = lambda body, number: said(LOOK, usage=next(usages))
    episode = only(play(rules=rules))
    assert [body["max_tokens"] for body in api.bodies] == [50, 50, 10]
    assert (episode.status, len(episode.turns)) == (Status.OUT_OF_TOKENS, 3)


def test_without_counts_the_turns_are_limited(api: Api, play: Play) -> None:
    api.answer = lambda body, number: said(LOOK, usage=None)
    evaluation = play(rules=Rules(max_turns=4, max_completion_length=10))
    assert only(evaluation).status == Status.TURN_LIMIT
    assert evaluation.tokens == {"read": 0, "written": 0, "uncounted_turns": 4}


@pytest.mark.parametrize("turns", [0, 1])
@pytest.mark.parametrize(
    "error",
    [
        refused(
            400, "This model's maximum context length is 2048 tokens. However, you requested 2100 tokens."
        ),
        refused(400, "too long", code="context_length_exceeded"),
        refused(413, "prompt is too long: 9000 tokens > 8192 maximum"),
    ],
)
def test_a_conversation_that_is_too_long_is_out_of_tokens(
    api: Api, play: Play, error: tuple, turns: int
) -> None:
    api.answer = lambda body, number: error if turn_of(body) == turns else said(LOOK)
    evaluation = play(QUESTION, CHANGE)
    assert [episode.status for episode in evaluation.episodes] == [Status.OUT_OF_TOKENS] * 2
    assert [len(episode.turns) for episode in evaluation.episodes] == [turns] * 2
    assert evaluation.stopped is None


# --- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        refused(500, "oops"),
        refused(503, "loading"),
        refused(429, "slow down"),
        (502, "<html>Bad gateway</html>", {}),
        (200, "<html>Log in</html>", {}),
        {"error": {"message": "upstream"}},
        HANG,
        CLOSE,
    ],
    ids=str,
)
def test_what_fails_once_is_asked_again(api: Api, play: Play, trouble: Any) -> None:
    api.answer = lambda body, number: trouble if number == 1 else said(RIGHT if turn_of(body) else LOOK)
    evaluation = play(turn_seconds=0.3, patience=30.0)
    assert only(evaluation).right
    assert api.bodies[1] == api.bodies[2]
    assert evaluation.requests == 3


def test_a_throttled_request_waits_as_long_as_it_is_told(api: Api, play: Play) -> None:
    api.answer = lambda body, number: (
        refused(429, "slow down", {"Retry-After": "1"}) if number == 0 else said(RIGHT)
    )
    assert only(play(patience=30.0)).right
    assert api.times[1] - api.times[0] >= 1


def test_a_date_may_say_how_long(api: Api, play: Play) -> None:
    api.answer = lambda body, number: refused(429, "x", {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"})
    episode = only(play())  # no patience for that
    assert episode.fault == f"the endpoint {api.url}/v1: status 429: x"
    assert len(api.bodies) == 1


def test_a_request_that_always_fails_is_the_environments_fault(api: Api, play: Play) -> None:
    def answer(body: dict, number: int) -> Any:
        return refused(500, "it crashes me") if "Drop" in body["messages"][1]["content"] else said(RIGHT)

    api.answer = answer
    evaluation = play(QUESTION, CHANGE, QUESTION, CHANGE, QUESTION)
    statuses = [episode.status for episode in evaluation.episodes]
    assert statuses == [Status.ANSWERED, Status.ENVIRONMENT_FAULT] * 2 + [Status.ANSWERED]
    assert evaluation.episodes[1].fault == f"the endpoint {api.url}/v1: status 500: it crashes me"
    right = "3/3 = 100.0 % [43.8, 100.0] (2 void, 60.0 % with those counted wrong)"
    assert evaluation.accuracy.describe() == right, "it says nothing of the agent"
    assert evaluation.stopped is None


def test_a_dead_endpoint_ends_the_evaluation_and_nothing_is_lost(api: Api, play: Play) -> None:
    api.answer = lambda body, number: said(RIGHT) if number < 5 else refused(500, "down for good")
    evaluation = play(*[QUESTION] * 40, concurrency=2)
    statuses = [episode.status for episode in evaluation.episodes]
    assert statuses.count(Status.ANSWERED) == 5
    assert 3 <= statuses.count(Status.ENVIRONMENT_FAULT) <= 4
    assert evaluation.stopped == (f"the endpoint {api.url}/v1 (m) gives no turns: status 500: down for good")
    assert evaluation.to_dict()["planned"] == 40


def test_a_hanging_endpoint_holds_no_other_request_up(api: Api, play: Play) -> None:
    """Those under way are cut off when it is given up."""
    api.answer = lambda body, number: HANG if number == 0 else refused(401, "no")
    evaluation = play(QUESTION, QUESTION, concurrency=2, turn_seconds=600.0)
    assert [episode.status for episode in evaluation.episodes] == [Status.ENVIRONMENT_FAULT] * 2
    assert "status 401: no. Set OPENAI_API_KEY" in (evaluation.stopped or "")


def test_blanks_are_no_reply(api: Api, play: Play) -> None:
    """OpenRouter sends them while it waits for a provider, which may never answer."""
    api.answer = lambda body, number: said(RIGHT) if number else BLANKS
    assert only(play(turn_seconds=0.3, patience=5.0)).right
    assert api.times[1] - api.times[0] < 2


def test_settings_that_a_server_does_not_take_are_left_out(api: Api, play: Play) -> None:
    def answer(body: dict, number: int) -> Any:
        for name, code in (("max_tokens", "unsupported_parameter"), ("temperature", "unsupported_value")):
            if name in body:
                return refused(400, f"Unsupported: '{name}'", code=code, param=name)
        return said(RIGHT)

    api.answer = answer
    evaluation = play(QUESTION, QUESTION)
    assert [sorted(body) for body in api.bodies[2:]] == [["max_completion_tokens", "messages", "model"]] * 2
    assert evaluation.left_out == ["max_tokens", "temperature"]
    assert evaluation.accuracy.rate() == 1


# --- addresses and keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("https://api.openai.com/v1/", "https://api.openai.com/v1"),
        ("https://h.example/api/v1/chat/completions", "https://h.example/api/v1"),
        ("http://localhost:8000/v1/models", "http://localhost:8000/v1"),
        ("https://api.openai.com/v1/responses", "https://api.openai.com/v1"),
        ("http://localhost:11434/api/chat", "http://localhost:11434/v1"),
        ("https://api.perplexity.ai/chat/completions", "https://api.perplexity.ai"),
        ("https://h.example/models/chat/completions", "https://h.example/models"),
        ("https://api.anthropic.com/v1/messages", "https://api.anthropic.com/v1"),
    ],
)
def test_addresses(given: str, used: str) -> None:
    assert base_url(given) == used


@pytest.mark.parametrize("given", ["localhost:8000", "ftp://h/v1", "http://", "http://localhost:80a0", "http://localhost:99999", "http://[::1", f"http://me:{KEY}@h/v1", f"http://h/v1?key={KEY}"])  # fmt: skip
def test_no_addresses(given: str) -> None:
    with pytest.raises(ConfigError, match="--endpoint: give") as error:
        base_url(given)
    assert KEY not in str(error.value)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert read_key(None) is None
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    assert read_key(None) == KEY
    with pytest.raises(ConfigError, match="the environment variable OTHER_KEY is not set"):
        read_key("OTHER_KEY")


# --- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def arguments(api: Api, tmp_path: Path) -> list[str | Path]:
    tasks = written(tmp_path / "tasks.jsonl", QUESTION, CHANGE)
    return ["eval", "--endpoint", api.url, "--model", "m", "--tasks", tasks, "--database", "sqlite"]


def test_the_command(api: Api, command: Callable, arguments: list, tmp_path: Path) -> None:
    api.answer = lambda body, number: said(WRONG if "Drop" in str(body) else RIGHT)
    code, out = command(*arguments, "--json", tmp_path / "e.json", "--chat-template-kwargs", '{"x": 1}')
    assert code == 0
    assert out.startswith("overall ") and "1/2 = 50.0 %" in out
    assert out.endswith(f"m at {api.url}/v1: 2 requests, 200 tokens read, 14 written\n")
    assert api.bodies[0]["chat_template_kwargs"] == {"x": 1}
    saved = json.loads((tmp_path / "e.json").read_text())
    assert saved["accuracy"]["accuracy"] == 0.5
    assert [episode["right"] for episode in saved["episodes"]] == [True, False]
    assert (saved["stopped"], saved["tokens"]["written"], saved["requests"]) == (None, 14, 2)


def test_the_key_is_sent_and_never_told(
    api: Api,
    command: Callable,
    arguments: list,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    api.answer = lambda body, number: (
        said(RIGHT) if number == 0 else refused(500 if number == 1 else 401, f"Incorrect API key: {KEY}")
    )
    code, out = command(
        *arguments, "--json", tmp_path / "e.json", "--api-key-env", "MY_KEY", "--concurrency", "1"
    )
    assert set(api.keys) == {f"Bearer {KEY}"}
    assert code == (
        f"error: the endpoint {api.url}/v1 (m) gives no turns: status 401: Incorrect API key: ***. Set "
        "OPENAI_API_KEY, or name the variable that holds the key by --api-key-env. 2 of 2 tasks were played. "
        f"They are in {tmp_path / 'e.json'}."
    )
    saved = (tmp_path / "e.json").read_text()
    assert [episode["status"] for episode in json.loads(saved)["episodes"]] == [
        "answered",
        "environment_fault",
    ]
    assert "trying again" in caplog.text
    assert all(KEY not in text for text in (code, out, saved, caplog.text))


def test_nobody_listens(
    api: Api, command: Callable, arguments: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "START_SECONDS", 0.2)
    api.stop()
    code, _ = command(*arguments)
    assert code.startswith(
        f"error: the endpoint {api.url}/v1 (m) gives no turns: nobody answers there (Connect"
    )
    assert code.endswith("2 of 2 tasks were played.") or code.endswith("1 of 2 tasks were played.")


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--adapter", "a"], "--adapter has no effect: an endpoint gives text and no tokens."),
        (
            ["--samples", "4", "--reward-model", "prm:p"],
            "--reward-model has no effect: an endpoint gives text and no tokens.",
        ),
        (["--dtype", "float32"], "--dtype has no effect: an endpoint gives text and no tokens."),
        (["--few-shot", "2"], "--endpoint shows no earlier episodes in the prompt; add --few-shot 0 to do without them."),
        (["--api-key-env", "NOT_THERE"], "--api-key-env: the environment variable NOT_THERE is not set."),
        (["--endpoint", "here"], "--endpoint: give a server's address, such as http://localhost:8000/v1 or https://api.openai.com/v1."),
    ],
)  # fmt: skip
def test_options_that_cannot_work(
    api: Api, command: Callable, arguments: list, more: Sequence[str], error: str
) -> None:
    assert command(*arguments, *more)[0] == f"error: {error}"
    assert api.bodies == []


def test_options_of_endpoints_need_one(command: Callable, arguments: list) -> None:
    without = [arguments[0], *arguments[3:]]
    for more in (["--concurrency", "4"], ["--api-key-env", "K"]):
        assert command(*without, *more)[0] == (
            f"error: {more[0]} has no effect: it goes with --endpoint, which is not given."
        )


def test_the_commands_of_the_documentation(
    api: Api, command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / "endpoints.md").read_text(encoding="utf-8")
    shell = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    commands = [shlex.split(line) for line in shell.splitlines() if line.startswith("trl-dbbench ")]
    assert len(commands) == 3
    (tmp_path / "recipes").symlink_to(DOCS.parent / "recipes")
    run = tmp_path / "runs" / "quickstart"
    run.mkdir(parents=True)
    (run / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "base"}))
    settings = replace(DEFAULTS, model="base", system_prompt="Be brief.", dialect="sqlite")
    settings.write(run)
    record = {**episode_record(Episode(QUESTION, [], Sampling()), "eval", 3)}
    (run / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    (run / "tasks.jsonl").write_text(QUESTION.to_json() + "\n")
    monkeypatch.chdir(tmp_path)
    for number, words in enumerate(commands):
        words[words.index("--endpoint") + 1] = api.url
        code, out = command(*words[1:], *(["--database", "sqlite"] if number < 2 else []))
        assert code == 0, code
        assert Path(words[words.index("--json") + 1]).is_file()
    assert api.bodies[-1]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert out.startswith("overall           1/1 = 100.0 %"), "the run's held-out task"


def test_what_was_played_is_looked_up_once(play: Play) -> None:
    """Not for each planned episode: a large evaluation would be resumed in quadratic time."""
    looked_up = []

    class Noting(Journal):
        def done(self, part: str) -> dict[int, EpisodeRecord]:
            looked_up.append(part)
            return super().done(part)

    play(QUESTION, CHANGE, QUESTION, journal=Noting())
    assert looked_up == ["greedy", "samples"]


# --- training ---------------------------------------------------------------------------------------------


def test_nothing_can_be_trained_on_it(api: Api, play: Play) -> None:
    episode = only(play())
    message = (
        rf"the episode of task 'dear' was played by the endpoint of m at {api.url}/v1, which gives texts"
    )
    with pytest.raises(ConfigError, match=message):
        _ = episode.completion_ids
    played: list[Played] = [(episode_record(episode, "eval", 0), QUESTION)]
    with pytest.raises(ConfigError, match=message):
        list(with_tokens(played, DEFAULTS, []))


def test_rewards_can_read_it(play: Play) -> None:
    assert only(play()).messages() == [
        {"role": "assistant", "content": LOOK},
        {"role": "user", "content": "[('pear',)]"},
        {"role": "assistant", "content": RIGHT},
    ]


def test_a_runs_harness_is_not_used_and_it_says_so(
    api: Api, command: Callable, arguments: list, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "base"}))
    replace(DEFAULTS, model="base", dialect="sqlite", harness="m.py:run").write(run)
    code, out = command(arguments[0], run, *arguments[1:])
    assert code in (0, None) and "note: the run's harness and compaction are not used" in out
