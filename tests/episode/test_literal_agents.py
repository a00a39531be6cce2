"""Agents that do to the letter what the prompt and the tools say, with the gold SQL: they are right, and wrong with
one value changed. For each protocol, grader and kind of task."""

from __future__ import annotations

import ast
import asyncio
import datetime
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from databases import table
from fakes import ScriptedEngine, play_scripts
from test_rollout import call
from test_serving import agent_of
from transformers import PreTrainedTokenizerBase

from trl_dbbench.data.generate.checks import plain
from trl_dbbench.database import Database, open_database
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.prompts import EACH_ROW, EACH_VALUE
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.grading import GRADERS, SQL_GRADERS, get_grader
from trl_dbbench.grading.states import without_dates
from trl_dbbench.integrations.environment import environments
from trl_dbbench.integrations.verl.reward import compute_score
from trl_dbbench.tasks import Gold, Task

GOODS = table(
    "goods",
    "id INT, name VARCHAR(20), price DECIMAL(6,2), since DATE, seen DATETIME, opens TIME, note TEXT, weight DOUBLE",
    (1, "tea", "2.50", "1985-12-01", "1985-12-01 08:30:00", "08:30:00", None, 0.5),
    (2, "it's oil", "13.10", "2001-01-31", "2001-01-31 00:00:00", "100:02:03", "(none)", 1.25),
    (3, "rye", "7.00", "2020-02-29", "2020-02-29 23:59:59", "00:00:00", "new", 3.0),
)
QUESTIONS = {
    "a text": "SELECT name FROM goods WHERE id = 1",
    "a text with a quote": "SELECT name FROM goods WHERE id = 2",
    "a text in parentheses": "SELECT note FROM goods WHERE id = 2",
    "a number": "SELECT COUNT(*) FROM goods",
    "a DECIMAL": "SELECT price FROM goods WHERE id = 1",
    "a sum": "SELECT SUM(id) FROM goods",
    "an average": "SELECT AVG(id) FROM goods",
    "a DOUBLE": "SELECT weight FROM goods WHERE id = 2",
    "a date": "SELECT since FROM goods WHERE id = 1",
    "a date and time": "SELECT seen FROM goods WHERE id = 1",
    "a time": "SELECT opens FROM goods WHERE id = 2",
    "texts": "SELECT name FROM goods ORDER BY id",
    "numbers": "SELECT id FROM goods ORDER BY id",
    "DECIMALs": "SELECT price FROM goods ORDER BY id",
    "dates": "SELECT since FROM goods ORDER BY id",
    "times": "SELECT opens FROM goods ORDER BY id",
    "a row": "SELECT name, id FROM goods WHERE id = 1",
    "rows": "SELECT name, price, since, opens FROM goods ORDER BY id",
    "no rows": "SELECT name FROM goods WHERE id = 9",
    "NULL": "SELECT note FROM goods WHERE id = 1",
    "rows with NULL": "SELECT id, note FROM goods ORDER BY id",
    "texts with NULL": "SELECT note FROM goods ORDER BY id",
}
NOT_OF_LABELS = {"no rows", "NULL", "rows with NULL", "texts with NULL"}
"""AgentBench has no label for nothing."""

CHANGES = {
    "INSERT": "INSERT INTO goods (id, name, price) VALUES (4, 'salt', 1.5)",
    "UPDATE": "UPDATE goods SET price = price + 1, note = NULL WHERE id = 2",
    "DELETE": "DELETE FROM goods WHERE id = 3",
}
ANOTHER = {
    "INSERT": "INSERT INTO goods (id, name, price) VALUES (4, 'salt', 1.6)",
    "UPDATE": "UPDATE goods SET price = price + 1, note = '' WHERE id = 2",
    "DELETE": "DELETE FROM goods WHERE id = 2",
}
Rows = list[tuple]


def rows_of(database: Database, sql: str) -> Rows:
    with database.sandbox(Task("rows", "?", (GOODS,), "SELECT", Gold(((1,),)))) as sandbox:
        rows = sandbox.execute(sql).rows
    assert rows is not None
    return rows


def question(sql: str, rows: Rows, grader: str | None) -> Task:
    """The task with the gold as files hold it: rows of numbers and texts, or labels as MySQL prints them."""
    if grader in SQL_GRADERS or (grader and get_grader(grader).rows):
        answer: tuple = tuple(tuple(map(plain, without_dates(row))) for row in rows)
    else:
        answer = tuple(str(cell) for row in rows for cell in without_dates(row))
    return Task("literal", "What?", (GOODS,), "SELECT", Gold(answer, sql), grader=grader)


def another(cell: Any) -> Any:
    """Another value of the same type."""
    if isinstance(cell, int | float | Decimal):
        return cell + 1
    if isinstance(cell, datetime.date | datetime.timedelta):
        return cell + datetime.timedelta(days=1)
    return "x" if cell is None else f"{cell}x"


def with_one_changed(rows: Rows) -> Rows:
    return [(*rows[0][:-1], another(rows[0][-1])), *rows[1:]] if rows else [("x",)]


def replied(cell: Any) -> str:
    """A value as it stands in the database's reply, without a text's quotes."""
    return cell if isinstance(cell, str) else repr(cell)


def printed(cell: Any) -> str:
    """A value as MySQL prints it, as most models write it."""
    return str(without_dates((cell,))[0])


def text_answers(prompt: str, rows: Rows) -> list[str]:
    """Answers in the form of the prompt's example."""
    (example,) = [
        line.removeprefix("Final Answer: ")
        for line in prompt.splitlines()
        if line.startswith("Final Answer: ")
    ]
    if isinstance(ast.literal_eval(example)[0], tuple):
        return [str(rows), str(list(map(without_dates, rows)))]
    cells = [cell for row in rows for cell in row]
    forms = [str([form(cell) for cell in cells]) for form in (replied, printed)]
    # AgentBench's labels are texts, numbers too, so that several that are no texts are wrong
    return forms if any(isinstance(cell, int | float) for cell in cells[1:]) else [*forms, str(cells)]


def tools_answers(prompt: str, rows: Rows) -> list[list[Any]]:
    """Answers in the form that the prompt tells."""
    if EACH_VALUE in prompt:
        return [[form(cell) for row in rows for cell in row] for form in (replied, printed)]
    assert EACH_ROW in prompt
    strings = [replied(row[0]) if len(row) == 1 else str(row) for row in rows]
    as_json = [[plain(cell) for cell in without_dates(row)] for row in rows]
    # a row of one value, or its value, as JSON has it
    return [strings, as_json, [row[0] if len(row) == 1 else row for row in as_json]]


def answers(protocol: str, task: Task, rows: Rows, grader: str | None = None) -> list[str]:
    """The last turns of agents that answer with these rows."""
    prompt = get_protocol(protocol, grader=grader).messages(task)[0]["content"]
    if protocol == "text":
        return [f"Action: Answer\nFinal Answer: {answer}" for answer in text_answers(prompt, rows)]
    return [call("commit_final_answer", answers=answer) for answer in tools_answers(prompt, rows)]


def sql_turn(protocol: str, sql: str) -> str:
    if protocol.startswith("text"):
        return f"I look.\nAction: Operation\n```sql\n{sql}\n```"
    return call("execute_sql", query=sql)


def sql_answer(protocol: str, sql: str) -> str:
    if protocol == "text_sql":
        return f"Action: Answer\nFinal Answer:\n```sql\n{sql}\n```"
    return call("submit_sql", query=sql)


def judged_otherwise(
    plays: Sequence[tuple[Task, Sequence[str], bool]], tokenizer: Any, database: Database, protocol: str
) -> list[Any]:
    """Play episodes side by side. Return status, the verdict that is right and the last turn of those that were judged
    otherwise."""
    episodes = play_scripts([(task, turns) for task, turns, _ in plays], tokenizer, database, protocol)
    return [
        (episode.status, right, turns[-1])
        for episode, (_, turns, right) in zip(episodes, plays, strict=True)
        if not episode.verdict or episode.right != right
    ]


@pytest.mark.parametrize("grader", [*GRADERS, None])
@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_an_answer_as_the_prompt_wants_it(
    protocol: str, grader: str | None, tokenizer: PreTrainedTokenizerBase, database: Database
) -> None:
    plays = []
    for name, sql in QUESTIONS.items():
        rows = rows_of(database, sql)
        task = question(sql, rows, grader)
        if grader != "lifelong" and name in NOT_OF_LABELS:
            continue
        for right, given in ((True, rows), (False, with_one_changed(rows))):
            for answer in answers(protocol, task, given):
                plays.append((task, [sql_turn(protocol, sql), answer], right))
    otherwise = judged_otherwise(plays, tokenizer, database, protocol)
    assert not otherwise, "\n".join(map(str, otherwise))


@pytest.mark.parametrize("own", ["lifelong", "agentbench_text"])
@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_the_run_may_name_another_grader_than_the_tasks(
    protocol: str, grader: str, own: str, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """The prompt asks for what it reads."""
    player = Player.of(tokenizer, sqlite_database, protocol=protocol, grader=grader)
    otherwise = []
    for name in ("a text", "a number", "texts", "dates"):
        rows = rows_of(sqlite_database, QUESTIONS[name])
        task = question(QUESTIONS[name], rows, own)
        assert player.start(task).messages == get_protocol(protocol, grader=grader).messages(task)
        for right, given in ((True, rows), (False, with_one_changed(rows))):
            for answer in answers(protocol, task, given, grader):
                said = ScriptedEngine(tokenizer, {0: [answer]})
                (episode,) = player.play_all([player.start(task)], said)
                if episode.right != right:
                    otherwise.append((name, right, answer))
    assert not otherwise, "\n".join(map(str, otherwise))


@pytest.mark.parametrize("grader", [*SQL_GRADERS, None])
@pytest.mark.parametrize("protocol", ["text_sql", "tools_sql"])
def test_a_query_as_the_answer(
    protocol: str, grader: str | None, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    plays = []
    for name, sql in QUESTIONS.items():
        rows = rows_of(sqlite_database, sql)
        says_nothing = name in ("no rows", "NULL")
        task = question(sql, rows, grader)
        wrong = f"SELECT {', '.join(['9'] * max(1, len(rows[0]) if rows else 1))}"
        for right, answer in ((not says_nothing, sql), (False, wrong)):
            plays.append((task, [sql_turn(protocol, sql), sql_answer(protocol, answer)], right))
    otherwise = judged_otherwise(plays, tokenizer, sqlite_database, protocol)
    assert not otherwise, "\n".join(map(str, otherwise))


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("protocol", ["text", "tools", "text_sql", "tools_sql"])
def test_a_change_and_any_answer(
    protocol: str, kind: str, tokenizer: PreTrainedTokenizerBase, database: Database
) -> None:
    task = Task("change", "Change it.", (GOODS,), kind, Gold(sql=CHANGES[kind]))
    ends = {
        "text": "Action: Answer\nFinal Answer: done",
        "tools": call("commit_final_answer", answers=[]),
        "text_sql": sql_answer("text_sql", "SELECT 1"),
        "tools_sql": sql_answer("tools_sql", "SELECT 1"),
    }
    sides = ((True, CHANGES[kind]), (False, ANOTHER[kind]))
    plays = [(task, [sql_turn(protocol, sql), ends[protocol]], right) for right, sql in sides]
    otherwise = judged_otherwise(plays, tokenizer, database, protocol)
    assert not otherwise, "\n".join(map(str, otherwise))


# --- in other hands -----------------------------------------------------------------------------------


def lifelong_tasks(database: Database) -> list[tuple[Task, Rows]]:
    found = []
    for name, sql in QUESTIONS.items():
        rows = rows_of(database, sql)
        found.append((replace(question(sql, rows, "lifelong"), id=name), rows))
    return found


def calls_of(task: Task, rows: Rows) -> list[tuple[bool, list[Any]]]:
    prompt = get_protocol("tools").messages(task)[0]["content"]
    return [
        (right, answer)
        for right, given in ((True, rows), (False, with_one_changed(rows)))
        for answer in tools_answers(prompt, given)
    ]


def test_the_environment_of_a_stock_trainer(sqlite_database: Database) -> None:
    otherwise = []
    with environments(sqlite_database) as new:
        environment = new()
        for task, rows in lifelong_tasks(sqlite_database):
            for right, answer in calls_of(task, rows):
                environment.reset(task=task.to_json())
                environment.execute_sql(task.gold.sql)
                environment.commit_final_answer(answer)
                if environment.episode.right != right:
                    otherwise.append((task.id, right, answer))
    assert not otherwise, "\n".join(map(str, otherwise))


def test_an_mcp_client(sqlite_database: Database) -> None:
    async def play() -> list[Any]:
        tasks, otherwise = lifelong_tasks(sqlite_database), []
        async with agent_of(sqlite_database, [task for task, _ in tasks], tell=True) as agent:
            for task, rows in tasks:
                for right, answer in calls_of(task, rows):
                    episode = (await agent.start(task.id))["episode"]
                    await agent.sql(episode, task.gold.sql)
                    told = await agent.call("submit", episode=episode, answer=answer)
                    if told != (True, f"The answer is recorded. It is {'right' if right else 'wrong'}."):
                        otherwise.append((task.id, right, answer, told))
        return otherwise

    otherwise = asyncio.run(play())
    assert not otherwise, "\n".join(map(str, otherwise))


def test_a_single_turn_of_verl() -> None:
    otherwise = []
    with open_database("sqlite") as database:
        tasks = lifelong_tasks(database)
    for task, rows in tasks:
        info = {"task": task.to_json(), "protocol": "tools"}
        for right, answer in calls_of(task, rows):
            turn = call("commit_final_answer", answers=answer)
            score = compute_score("trl_dbbench", turn, "", info, database="sqlite")
            if score["acc"] != right:
                otherwise.append((task.id, right, answer))
    assert not otherwise, "\n".join(map(str, otherwise))
