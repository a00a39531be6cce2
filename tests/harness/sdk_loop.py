"""Agents of somebody else's, around the OpenAI SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql  # noqa: F401 - what is imported here is imported once, not by each episode
from openai import BadRequestError, NotFoundError, OpenAI
from sqlalchemy import create_engine, text
from sqlalchemy.dialects.mysql import pymysql as its_dialect  # noqa: F401
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from trl_dbbench.harness.task import HarnessTask


def run(task: HarnessTask) -> list[str] | None:
    """The protocol `tools`, as a loop of its own."""
    from trl_dbbench.protocol import get_protocol  # for its words on a turn without a call

    protocol = get_protocol("tools")
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    messages: list[Any] = list(task.messages)
    for _ in range(task.max_calls):
        reply = client.chat.completions.create(model=task.model, messages=messages, tools=task.tools)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            messages.append({"role": "tool", "content": protocol.observe(protocol.parse(message.content))})
            continue
        (call,) = message.tool_calls
        arguments = json.loads(call.function.arguments)
        if call.function.name == "commit_final_answer":
            return arguments["answers"]
        result = task.execute(arguments["query"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result["text"]})
    return None


def texts(task: HarnessTask) -> str | None:
    """The protocol `text`: statements are taken from the model's words."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    messages: list[Any] = list(task.messages)
    for _ in range(task.max_calls):
        said = (
            client.chat.completions.create(model=task.model, messages=messages).choices[0].message.content
            or ""
        )
        if "Final Answer:" in said:
            return said.partition("Final Answer:")[2].strip()
        sql = said.partition("```sql\n")[2].partition("\n```")[0]
        messages += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": task.execute(sql)["text"]},
        ]
    return None


def hands_back_objects(task: HarnessTask) -> str:
    """The first call, twice, with its arguments as an object, as the client of Ollama has them."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    messages: list[Any] = list(task.messages)
    for _ in range(2):
        reply = client.chat.completions.create(model=task.model, messages=messages, tools=task.tools)
        message = reply.choices[0].message.model_dump()
        (call,) = message["tool_calls"]
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "[(2,)]"}]
    return "2"


def goes_on(task: HarnessTask) -> None:
    """It asks as long as it gets an answer."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    messages: list[Any] = [{"role": "user", "content": task.execute("SELECT 1")["text"]}]
    while True:
        said = client.chat.completions.create(model=task.model, messages=messages).choices[0].message
        messages += [said.model_dump(), {"role": "user", "content": "And then?"}]


def is_impatient(task: HarnessTask) -> str | None:
    """It waits for a second, then asks again."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key, timeout=1, max_retries=9)
    reply = client.chat.completions.create(model=task.model, messages=[{"role": "user", "content": "?"}])
    return reply.choices[0].message.content


def alchemy(task: HarnessTask) -> list[str]:
    """SQL by SQLAlchemy: reflection, parameters, an error, a change, and a second connection."""
    engine = create_engine(task.database_url)
    with engine.begin() as connection:
        found = connection.execute(
            text("SELECT COUNT(*) AS n FROM orders WHERE late = :late"), {"late": 1}
        ).one()
        assert found.n == 2, found
        connection.execute(text("UPDATE orders SET late = 1 WHERE id = 1"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM orders WHERE late = 1")).scalar() == 3
        try:
            connection.execute(text("SELECT nothing FROM orders"))
        except (OperationalError, ProgrammingError) as error:
            assert error.orig.args[0] == 1054, error.orig
    return [f"({found.n},)"]


def typed(task: HarnessTask) -> str:
    """Return rows as a MySQL client reads them, then the same rows as `execute` gives them."""
    sql = "SELECT price, spent, id, id FROM visits"
    with create_engine(task.database_url).connect() as connection:
        rows = [tuple(row) for row in connection.exec_driver_sql(sql)]
    return repr([*rows, *task.execute(sql)["rows"]])


def prices(task: HarnessTask) -> list:
    return task.execute("SELECT * FROM goods")["rows"]


def prices_by_alchemy(task: HarnessTask) -> list:
    with create_engine(task.database_url).connect() as connection:
        return connection.exec_driver_sql("SELECT * FROM goods").all()


def _rows(task: HarnessTask, by_client: bool) -> list:
    sql = task.question.removeprefix("changed: ")
    if not by_client:
        rows = task.execute(sql)["rows"]
    else:
        with create_engine(task.database_url).connect() as connection:
            rows = connection.exec_driver_sql(sql).all()
    if sql == task.question:
        return rows
    *before, last = map(list, rows or [["x"]])
    return [*before, [*last[:-1], f"{last[-1]}1"]]


def hands_on(task: HarnessTask) -> list:
    """The rows of the statement in the question; with another last cell if it says so."""
    return _rows(task, by_client=False)


def hands_on_by_alchemy(task: HarnessTask) -> list:
    return _rows(task, by_client=True)


def says(task: HarnessTask) -> str:
    """The rows as Python prints them."""
    return str(list(map(tuple, _rows(task, by_client=True))))


def mixed(task: HarnessTask) -> str:
    """Return rows whose columns begin with a cell of another type than those after it."""
    sql = (
        "SELECT COALESCE(price, 0), IFNULL(price, 'unknown'), COALESCE(weight, 0), COALESCE(weight, price, 0) "
        "FROM goods ORDER BY name"
    )
    with create_engine(task.database_url).connect() as connection:
        return repr(connection.exec_driver_sql(sql).all())


def client_gets(task: HarnessTask) -> str:
    """Execute each statement of the question, a JSON list, by a MySQL client; return its rows, or its error's number and
    text."""
    seen: list[Any] = []
    with create_engine(task.database_url).connect() as connection:
        for sql in json.loads(task.question):
            try:
                result = connection.exec_driver_sql(sql)
                seen.append([list(row) for row in result] if result.returns_rows else None)
            except DBAPIError as error:
                seen.append(list(error.orig.args))
    return json.dumps(seen)


def names_of_columns(task: HarnessTask) -> str:
    """The names of the columns that a MySQL client gets for each statement of the question."""
    with create_engine(task.database_url).connect() as connection:
        return json.dumps([list(connection.exec_driver_sql(sql).keys()) for sql in json.loads(task.question)])


def sql_gets(task: HarnessTask) -> str:
    """The same by `execute`: rows, their number, the limit and the error."""
    gets = [task.execute(sql) for sql in json.loads(task.question)]
    return json.dumps([[len(each["rows"] or ()), each["limit"], each["error"]] for each in gets])


def two_conversations(task: HarnessTask) -> str:
    """A sub-agent is asked in between; the first conversation goes on after it."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)

    def ask(messages: list[Any]) -> str:
        return (
            client.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""
        )

    messages: list[Any] = [{"role": "user", "content": task.question}]
    first = ask(messages)
    helper = ask([{"role": "user", "content": f"Write SQL: {first}"}])
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": helper}]
    return ask(messages)


def features(task: HarnessTask) -> str:
    """Several choices, a stop text, streaming and usage."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    asked: Any = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": "Count."}],
    }
    two = client.chat.completions.create(**asked, n=2)
    stopped = client.chat.completions.create(**asked, stop="three")
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    parts = list(stream)
    streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    short = client.chat.completions.create(**asked, max_tokens=2).choices[0]
    return json.dumps(
        {
            "choices": [choice.message.content for choice in two.choices],
            "usage": two.usage.total_tokens == two.usage.prompt_tokens + two.usage.completion_tokens,
            "stopped": stopped.choices[0].message.content,
            "streamed": streamed,
            "streamed_tokens": parts[-1].usage.completion_tokens,
            "short": [short.finish_reason, client.models.list().data[0].id],
        }
    )


def chooses(task: HarnessTask) -> str:
    """No call, any call, a named tool, an answer of a form."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    named = {"type": "function", "function": {"name": "execute_sql"}}
    asked: Any = {"model": task.model, "messages": list(task.messages), "tools": task.tools}
    seen: list[Any] = []
    for more in (
        {"tool_choice": "none", "response_format": {"type": "text"}},
        {"tool_choice": "required"},
        {"tool_choice": named},
        {"response_format": {"type": "json_object"}},
    ):
        try:
            choice = client.chat.completions.create(**asked, **more).choices[0]
            called = [call.function.name for call in choice.message.tool_calls or ()]
            seen.append([choice.finish_reason, choice.message.content, called])
        except BadRequestError as error:
            seen.append(error.body["message"])
    return json.dumps(seen)


def odd_messages(task: HarnessTask) -> str:
    """Content in parts, with an image and without; calls without arguments or with deep ones; no tokens; functions."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    parts = [{"type": "text", "text": "First."}, {"type": "text", "text": "Second."}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}

    def called(function: dict[str, str]) -> list[Any]:
        call = {"id": "1", "type": "function", "function": {"name": "list_tables", **function}}
        reply = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [
            {"role": "user", "content": "?"},
            reply,
            {"role": "tool", "tool_call_id": "1", "content": "t"},
        ]

    nested = {
        "type": "function",
        "function": {"name": "f", "parameters": {"enum": json.loads("[" * 900 + "]" * 900)}},
    }
    seen = []
    for asked in (
        {"messages": [{"role": "user", "content": parts}]},
        {"messages": called({"arguments": ""})},
        {"messages": called({})},
        {"messages": called({"arguments": "[" * 5_000 + "]" * 5_000})},
        {"messages": called({"arguments": "[" * 500 + "]" * 500})},
        {"messages": [{"role": "user", "content": [*parts, image]}]},
        {"messages": [{"role": "user", "content": "?"}], "max_tokens": 0},
        {"messages": [{"role": "user", "content": "?"}], "tools": [nested]},
        {
            "messages": [{"role": "user", "content": "?"}],
            "extra_body": {"functions": [{"name": "f"}]},
        },
    ):
        try:
            seen.append(client.chat.completions.create(model=task.model, **asked).choices[0].message.content)
        except BadRequestError as error:
            seen.append(error.body["message"])
    return json.dumps(seen)


def uses_responses(task: HarnessTask) -> str:
    """OpenAI's newer API."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    try:
        return client.responses.create(model=task.model, input="?").output_text
    except NotFoundError as error:
        return error.body["message"]


def executes_too_much(task: HarnessTask) -> str:
    try:
        while True:
            task.execute("SELECT 1")
    except RuntimeError as error:
        return str(error)


def call_heard(task: HarnessTask) -> str:
    """The first call, of a model that goes on to make up its result."""
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    reply = client.chat.completions.create(
        model=task.model, messages=list(task.messages), tools=task.tools, stop="Observation:"
    ).choices[0]
    (call,) = reply.message.tool_calls
    return json.dumps([reply.finish_reason, call.function.name, json.loads(call.function.arguments)])


def rows(task: HarnessTask) -> list:
    return task.execute("SELECT COUNT(*) FROM orders WHERE late = 1")["rows"]


async def awaited(task: HarnessTask) -> list:
    return task.execute("SELECT COUNT(*) FROM orders WHERE late = 1")["rows"]


def starts_another(task: HarnessTask) -> str:
    """A process of its own reads the task."""
    question = "import json, os; print(json.load(open(os.environ['DBBENCH_TASK_FILE']))['question'][-4:])"
    return subprocess.check_output([sys.executable, "-c", question], text=True).strip()


def smolagent(task: HarnessTask) -> object:
    """An agent of smolagents, as it comes."""
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    @tool
    def sql(query: str) -> str:
        """Executes one MySQL statement.

        Args:
            query: the statement
        """
        return task.execute(query)["text"]

    model = OpenAIModel(model_id=task.model, api_base=task.base_url, api_key=task.api_key)
    agent = ToolCallingAgent(tools=[sql], model=model, max_steps=task.max_calls)
    return agent.run(task.messages[-1]["content"])


# --- programs that do harm ----------------------------------------------------------------------------


def fails(task: HarnessTask) -> None:
    print("before it fails")
    raise ValueError("a mistake of the user's")


def exits(task: HarnessTask) -> None:
    os._exit(3)


def yields(task: HarnessTask) -> Iterator[list]:
    yield [2]


def names_its_answer(task: HarnessTask) -> dict:
    return {"answer": [2]}


def names_its_columns(task: HarnessTask) -> list[dict]:
    return [{"n": 2}]


def says_nothing(task: HarnessTask) -> None:
    return None


def never_ends(task: HarnessTask) -> None:
    """Neither does what it has started."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
    time.sleep(600)


def status_of(url: str, key: str, body: bytes) -> int:
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def floods(task: HarnessTask) -> list[int]:
    """Calls without a key, with another, with what is no JSON, too much or of another type; more than it has."""
    messages = [{"role": "user", "content": "?"}]
    ask = json.dumps({"messages": messages}).encode()
    sql = json.dumps({"sql": "SELECT 1"}).encode()
    chat = f"{task.base_url}/chat/completions"
    seen = [
        status_of(chat, "", ask),
        status_of(chat, task.api_key[:-1] + "?", ask),
        status_of(chat, task.api_key, b"[" * 100_000),
        status_of(chat, task.api_key, b'"' + b"x" * (9 << 20) + b'"'),
        status_of(chat, task.api_key, b'{"messages": []}'),
        status_of(
            chat, task.api_key, json.dumps({"messages": messages, "tools": [{"function": "f"}]}).encode()
        ),
        status_of(chat, task.api_key, json.dumps({"messages": messages, "stream_options": [1]}).encode()),
        status_of(task.sql_url, task.api_key, b'{"sql": 1}'),
    ]
    seen += [status_of(chat, task.api_key, ask) for _ in range(task.max_calls + 1)]
    seen += [max(status_of(task.sql_url, task.api_key, sql) for _ in range(20 * task.max_calls))]
    return [*seen, status_of(task.sql_url, task.api_key, sql)]


def leaves_a_caller(task: HarnessTask) -> str:
    """A process of its own goes on calling after the end, and writes what it gets. Or waits until one has."""
    told = json.loads(task.question)
    seen = Path(told["seen"])
    if told["stays"]:
        while not (seen.exists() and seen.read_text()):
            time.sleep(0.05)
        return "stayed"
    calls = """if True:
        import sys, time
        sys.path.insert(0, sys.argv[1])
        from sdk_loop import status_of
        time.sleep(1.5)
        status = status_of(sys.argv[2], sys.argv[3], b'{"sql": "SELECT 1"}')
        open(sys.argv[4], "w").write(str(status))
    """
    words = (str(Path(__file__).parent), task.sql_url, task.api_key, str(seen))
    subprocess.Popen([sys.executable, "-c", calls, *words], start_new_session=True)
    return "left"
