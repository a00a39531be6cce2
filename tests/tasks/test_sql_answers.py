"""Answers that are SQL: executed on the tables as they were at the start, and compared with what the gold SQL gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from databases import table, task
from fakes import RULES, play_script
from transformers import PreTrainedTokenizerBase

from trl_dbbench.data.demonstrations import gold_actions
from trl_dbbench.database import Database
from trl_dbbench.episode.dataset import to_dataset
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import Answer, Invalid, Operation, get_protocol
from trl_dbbench.episode.types import Status
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, EnvironmentFault, TaskError
from trl_dbbench.grading import SQL_GRADERS, get_grader, grade
from trl_dbbench.grading.scorers import Result
from trl_dbbench.tasks import Gold, Task

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22), ("Togo", 22))
WINNERS = dataclasses.replace(
    task(MEDALS), gold=Gold(sql="SELECT nation FROM medals WHERE gold > 20"), grader="strict"
)
SORTED = dataclasses.replace(
    WINNERS, gold=Gold(sql="SELECT nation FROM medals WHERE gold > 20 ORDER BY nation")
)


def right(
    database: Database, task: Task, sql: str, statements: Sequence[str] = (), grader: str | None = None
) -> bool:
    with database.sandbox(task) as sandbox:
        return Judge(database, grader)(task, Answer(sql), sandbox, "agentbench_text", statements).right


@pytest.mark.parametrize(
    "sql, expected",
    [
        ("SELECT nation FROM medals WHERE gold = 22", True),
        ("SELECT nation FROM medals WHERE gold = 22 ORDER BY nation DESC", True),
        ("SELECT nation FROM medals WHERE gold = 22 UNION ALL SELECT 'Togo'", False),
        ("SELECT nation, gold FROM medals WHERE gold = 22", False),
        ("SELECT nation FROM medals", False),
        ("SELECT nation FROM no_such_table", False),
        ("SELEC nation", False),
        ("SELECT 'Peru' UNION SELECT 'Togo'", True),
        ("DELETE FROM medals", False),
        ("", False),
        ("  ", False),
        ("-- nothing", False),
    ],
)
def test_an_answer_is_what_it_gives(database: Database, sql: str, expected: bool) -> None:
    assert right(database, WINNERS, sql) is expected


def native(task: Task) -> Task:
    return dataclasses.replace(task, dialect="sqlite")


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE medals SET gold = gold WHERE gold > 20 RETURNING nation",
        "DELETE FROM medals WHERE gold > 20 RETURNING nation",
        "INSERT INTO medals VALUES ('Peru', 22), ('Togo', 22) RETURNING nation",
        "WITH few AS (SELECT 1) DELETE FROM medals WHERE gold > 20 RETURNING nation",
    ],
)
def test_a_change_is_no_answer_whatever_rows_it_returns(
    sqlite_database: Database, local_database: Database, sql: str
) -> None:
    assert right(sqlite_database, native(WINNERS), "SELECT nation FROM medals WHERE gold > 20")
    assert not right(sqlite_database, native(WINNERS), sql)
    assert not right(sqlite_database, WINNERS, sql)
    assert not right(local_database, WINNERS, sql)  # MariaDB knows two of them


def test_tables_that_are_equal_to_python_are_not_the_same(database: Database) -> None:
    """1 == 1.0 == True, and as texts they differ."""
    gold = Gold(sql="SELECT a FROM t")
    for cell, shown in ((1, "1"), (1.0, "1.0"), (True, "1"), ("1.0", "1.0")):
        each = dataclasses.replace(task(table("t", "a TEXT", (cell,))), gold=gold, grader="strict")
        with database.sandbox(each) as sandbox:
            (row,) = sandbox.execute("SELECT a FROM t").rows or []
        assert float(row[0]) == float(shown)
        assert right(database, each, "SELECT a FROM t"), cell
    first, second = (
        dataclasses.replace(task(table("t", "a TEXT", (cell,))), schema="full") for cell in (1, 1.0)
    )
    assert (first.prompt()[-5:], second.prompt()[-7:]) == ("\n1 */", "\n1.0 */")


def test_order_counts_where_the_gold_sorts(database: Database) -> None:
    assert right(database, SORTED, "SELECT nation FROM medals WHERE gold = 22 ORDER BY 1")
    assert not right(database, SORTED, "SELECT nation FROM medals WHERE gold = 22 ORDER BY 1 DESC")


def test_it_is_executed_on_the_tables_as_they_were(database: Database) -> None:
    """What the agent has done to its own does not help it."""
    with database.sandbox(WINNERS) as sandbox:
        assert sandbox.execute("UPDATE medals SET gold = 99 WHERE nation = 'Chad'").affected == 1
        judge = Judge(database)
        assert not judge(
            WINNERS, Answer("SELECT nation FROM medals WHERE gold > 22"), sandbox, "strict"
        ).right
        assert judge(WINNERS, Answer("SELECT nation FROM medals WHERE gold = 22"), sandbox, "strict").right
        assert len(sandbox.execute("SELECT * FROM medals WHERE gold = 99").rows or []) == 1


def test_an_empty_answer_is_the_last_statement(database: Database) -> None:
    looked = ["SELECT * FROM medals", "SELECT nation FROM medals WHERE gold > 2"]
    assert right(database, WINNERS, "", looked)
    assert not right(database, WINNERS, "", looked[::-1])


def test_more_rows_than_an_agent_is_shown_are_judged(database: Database) -> None:
    """An agent sees 1,000 rows at most; these differ in the last of 1,500."""
    numbers = table("numbers", "n INT", *((n,) for n in range(1500)))
    all_of_them = dataclasses.replace(task(numbers), gold=Gold(sql="SELECT n FROM numbers"), grader="strict")
    assert right(database, all_of_them, "SELECT n FROM numbers ORDER BY n")
    assert not right(database, all_of_them, "SELECT n FROM numbers WHERE n < 1499 UNION ALL SELECT 0")


def test_the_graders_differ_where_the_evaluators_do(database: Database) -> None:
    twice = "SELECT nation FROM medals WHERE gold = 22 UNION ALL SELECT 'Togo'"
    wider = "SELECT gold, nation FROM medals WHERE gold > 20"
    both = dataclasses.replace(WINNERS, gold=Gold(sql="SELECT nation, gold FROM medals WHERE gold > 20"))
    verdicts = {
        name: (right(database, WINNERS, twice, grader=name), right(database, both, wider, grader=name))
        for name in ("strict", "bird_ex", "spider_ts", "spider2", "critic")
    }
    assert verdicts == {
        "strict": (False, False),
        "bird_ex": (True, False),
        "spider_ts": (False, True),
        "spider2": (False, True),
        "critic": (True, False),
    }


def test_spiders_evaluator_drops_distinct(database: Database) -> None:
    scores = dataclasses.replace(WINNERS, gold=Gold(sql="SELECT DISTINCT gold FROM medals"))
    assert right(database, scores, "SELECT gold FROM medals", grader="spider_ts")
    assert not right(database, scores, "SELECT gold FROM medals", grader="spider_ts_distinct")


def test_a_task_names_its_grader(database: Database) -> None:
    twice = "SELECT nation FROM medals WHERE gold = 22 UNION ALL SELECT 'Togo'"
    assert right(database, dataclasses.replace(WINNERS, grader="bird_ex"), twice)
    assert right(database, dataclasses.replace(WINNERS, grader="bird_ex"), twice, grader="critic")
    assert not right(database, dataclasses.replace(WINNERS, grader="bird_ex"), twice, grader="strict")


def test_what_cannot_be_judged_is_nobodys_fault(sqlite_database: Database) -> None:
    broken = dataclasses.replace(WINNERS, gold=Gold(sql="SELECT nothing FROM medals"))
    with pytest.raises(EnvironmentFault, match="the gold SQL cannot be judged by: 1054"):
        right(sqlite_database, broken, "SELECT nation FROM medals")
    answered = dataclasses.replace(WINNERS, gold=Gold(answer=(("Peru",), ("Togo",))), grader="lifelong")
    with pytest.raises(EnvironmentFault, match="the grader strict needs gold SQL, which the task has not"):
        right(sqlite_database, answered, "SELECT 1", grader="strict")
    with pytest.raises(EnvironmentFault, match="the grader lifelong needs a gold answer"):
        right(sqlite_database, WINNERS, "[('Peru',)]", grader="lifelong")


# Protocols.


def test_text_answers_in_a_block() -> None:
    protocol = get_protocol("text_sql")
    assert protocol.parse("Look.\nAction: Operation\n```sql\nSELECT 1;\n```") == Operation("SELECT 1;")
    block = "Done.\nAction: Answer\nFinal Answer:\n```sql\nSELECT nation -- all of them\nFROM medals\n```\n"
    assert protocol.parse(block) == Answer("SELECT nation -- all of them\nFROM medals")
    assert protocol.parse("Action: Answer\nFinal Answer: SELECT nation\nFROM medals") == Answer(
        "SELECT nation\nFROM medals"
    )
    for block in (
        "```sql\nSELECT 1",
        "```\nSELECT 1\n```",
        "```SQL\nSELECT 1\n```",
        "```sqlite\r\nSELECT 1\r\n```",
        "```sqlite3\nSELECT 1\n```",
        "```PostgreSQL\nSELECT 1\n```",
        "```sql \nSELECT 1```",
        "```sql SELECT 1 ```",
        "This one:\n```mysql\nSELECT 1\n```\nIt counts.",
    ):
        assert protocol.parse(f"Action: Answer\nFinal Answer:\n{block}") == Answer("SELECT 1"), block
    assert protocol.parse("Action: Answer\nFinal Answer:\n```sql\n```") == Answer("")
    assert protocol.parse("Action: Answer\nFinal Answer:") == Answer("")
    assert isinstance(protocol.parse("Action: Answer\n```sql\nSELECT 1\n```"), Invalid)


def test_tools_answer_by_submit_sql() -> None:
    protocol = get_protocol("tools_sql")
    assert [tool["function"]["name"] for tool in protocol.tools or []] == ["execute_sql", "submit_sql"]

    def call(name: str, arguments: str) -> str:
        return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'

    assert protocol.parse(call("execute_sql", '{"query": "SELECT 1"}')) == Operation("SELECT 1")
    assert protocol.parse(call("submit_sql", '{"query": " SELECT 1 "}')) == Answer("SELECT 1")
    assert protocol.parse(call("submit_sql", '{"sql": "SELECT 1"}')) == Invalid(
        "Error: submit_sql needs the argument query, a string."
    )
    assert protocol.parse(call("commit_final_answer", '{"answers": []}')) == Invalid(
        "Error: unknown function 'commit_final_answer'. Call execute_sql or submit_sql."
    )
    assert protocol.parse("I am done.") == Invalid(
        "Error: no tool call found. Call execute_sql or submit_sql."
    )


@pytest.mark.parametrize("name", ["text_sql", "tools_sql"])
def test_what_a_protocol_writes_it_reads(name: str) -> None:
    protocol = get_protocol(name)
    for action in (Operation("SELECT 1"), Answer("SELECT nation\nFROM medals -- all")):
        written = protocol.write(action)
        if isinstance(written, dict):
            (call,) = written["tool_calls"]
            assert call["function"]["arguments"] == {
                "query": "SELECT 1" if action == Operation("SELECT 1") else action.text
            }
        else:
            assert protocol.parse(written) == action


@pytest.mark.parametrize("name", ["text", "tools", "text_sql", "tools_sql"])
def test_the_agent_is_told_which_sql_it_writes(name: str) -> None:
    protocol = get_protocol(name)
    system, question = protocol.messages(WINNERS)
    assert "MySQL" in system["content"] and question == {"role": "user", "content": WINNERS.prompt()}
    system, _ = protocol.messages(dataclasses.replace(WINNERS, dialect="sqlite"))
    assert "SQLite" in system["content"] and "MySQL" not in system["content"]


def test_an_episode(tokenizer: PreTrainedTokenizerBase, database: Database) -> None:
    turns = [
        "Action: Operation\n```sql\nSELECT * FROM medals\n```",
        "Action: Answer\nFinal Answer:\n```sql\nSELECT nation FROM medals WHERE gold > 20\n```",
    ]
    episode = play_script(WINNERS, turns, tokenizer, database, protocol="text_sql")
    assert episode.status == Status.ANSWERED
    assert episode.turns[0].observation == "[('Chad', 1), ('Peru', 22), ('Togo', 22)]"
    assert episode.right
    episode = play_script(
        WINNERS, [turns[0], "Action: Answer\nFinal Answer:"], tokenizer, database, protocol="text_sql"
    )
    assert (episode.status, episode.right) == (Status.ANSWERED, False)


def test_an_episode_by_tools(tokenizer: PreTrainedTokenizerBase, sqlite_database: Database) -> None:
    """Played by a model whose template writes the calls."""
    look = '<tool_call>{"name": "execute_sql", "arguments": {"query": "SELECT * FROM medals"}}</tool_call>'
    for sql, right in (
        ("SELECT nation FROM medals WHERE gold > 20", True),
        ("SELECT nation FROM medals", False),
    ):
        submit = f'<tool_call>{{"name": "submit_sql", "arguments": {{"query": "{sql}"}}}}</tool_call>'
        episode = play_script(WINNERS, [look, submit], tokenizer, sqlite_database, protocol="tools_sql")
        assert (episode.status, episode.right) == (Status.ANSWERED, right)


def test_a_protocol_chooses_the_grader_of_tasks_without_one(
    tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    both = dataclasses.replace(
        WINNERS, gold=Gold(sql=WINNERS.gold.sql, answer=(("Peru",), ("Togo",))), grader=None
    )
    sql = "Action: Answer\nFinal Answer: SELECT nation FROM medals WHERE gold > 20"
    assert play_script(both, [sql], tokenizer, sqlite_database, protocol="text_sql").right
    assert not play_script(both, [sql], tokenizer, sqlite_database, protocol="text").right


def test_a_protocol_whose_answers_are_sql_has_them_executed(
    tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """Whatever grader of answers the task names, such as the default of the native format."""
    both = dataclasses.replace(
        WINNERS, gold=Gold(sql=WINNERS.gold.sql, answer=(("Peru",), ("Togo",))), grader="lifelong"
    )
    sql = "Action: Answer\nFinal Answer: SELECT nation FROM medals WHERE gold > 20"
    assert play_script(both, [sql], tokenizer, sqlite_database, protocol="text_sql").right
    rows = "Action: Answer\nFinal Answer: [('Peru',), ('Togo',)]"
    assert not play_script(both, [rows], tokenizer, sqlite_database, protocol="text_sql").right
    assert play_script(both, [rows], tokenizer, sqlite_database, protocol="text").right


@pytest.mark.parametrize("name", ["text_sql", "tools_sql"])
def test_a_demonstration_ends_in_its_sql(name: str, sqlite_database: Database) -> None:
    protocol = get_protocol(name)
    actions = gold_actions(WINNERS, protocol, sqlite_database)
    assert actions == [Operation(WINNERS.gold.sql or ""), Answer(WINNERS.gold.sql or "")]


# Graders.


def test_graders_of_sql_are_named_like_the_others() -> None:
    assert list(SQL_GRADERS) == [
        *("strict", "bird_ex", "bird_soft_f1", "spider_ts", "spider_ts_distinct"),
        *("spider2", "spider2_ordered", "critic", "critic_ordered", "critic_mysql"),
        "critic_mysql_no_distinct",
    ]
    with pytest.raises(ConfigError, match=r"unknown grader 'bird'; allowed: .*lifelong, strict, bird_ex"):
        get_grader("bird")
    with pytest.raises(
        ConfigError, match="the grader 'bird_ex' judges what SQL gives; name one of agentbench_text"
    ):
        grade("SELECT 1", [1], "bird_ex")


def test_one_of_your_own(tmp_path, monkeypatch, sqlite_database: Database) -> None:
    (tmp_path / "graders_of_mine.py").write_text(
        "def same_length(predicted, gold, ordered):\n"
        "    return float(len(predicted.rows) == len(gold.rows))\n"
        "same_length.sql = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        get_grader("graders_of_mine.same_length").score(Result(("a",), [(1,)]), Result(("b",), [(2,)]), True)
        == 1
    )  # type: ignore[union-attr]
    assert right(
        sqlite_database, WINNERS, "SELECT gold FROM medals LIMIT 2", grader="graders_of_mine.same_length"
    )


# Tasks.


def test_a_task_with_sql_alone(sqlite_database: Database) -> None:
    line = (
        '{"id": "winners", "question": "Who won more than 20?", "grader": "bird_ex",'
        ' "tables": [{"name": "medals", "columns": [{"name": "nation"}], "rows": [["Peru"]]}],'
        ' "sql": "SELECT nation FROM medals", "knowledge": "Medals are gold.", "schema": "full"}'
    )
    found = Task.from_json(line)
    assert (found.gold, found.grader, found.operation) == (
        Gold(sql="SELECT nation FROM medals"),
        "bird_ex",
        "SELECT",
    )
    assert Task.from_json(found.to_json()) == found
    assert found.prompt() == (
        "Who won more than 20?\n"
        "Medals are gold.\n"
        "CREATE TABLE `medals` (\n"
        "  `nation` TEXT\n"
        ");\n"
        "/* The first rows of medals:\n"
        "'Peru' */"
    )
    assert dataclasses.replace(found, schema="none").prompt() == "Who won more than 20?\nMedals are gold."
    assert (
        dataclasses.replace(found, schema="names")
        .prompt()
        .endswith("The table is named medals and has these columns: nation")
    )
    with pytest.raises(TaskError, match="a question needs its gold 'answer'"):
        Task.from_json(line.replace("bird_ex", "lifelong"))
    with pytest.raises(
        TaskError, match="a question needs its gold 'sql' or 'results' for the grader bird_ex"
    ):
        Task.from_json(line.replace('"sql": "SELECT nation FROM medals"', '"answer": [["Peru"]]'))
    with pytest.raises(TaskError, match="unknown schema 'most'; allowed: names, full, none"):
        Task.from_json(line.replace('"full"', '"most"'))
    with pytest.raises(TaskError, match="unknown dialect 'oracle'; allowed: mysql, sqlite"):
        Task.from_json(line.replace('"schema": "full"', '"dialect": "oracle"'))


def test_tasks_of_before_keep_their_digests() -> None:
    """A run is resumed, and its episodes are found again, by these."""
    assert task(MEDALS).to_json() == (
        '{"id": "test", "question": "?", "tables": [{"name": "medals", "columns": [{"name": "nation", "type": "TEXT"}, '
        '{"name": "gold", "type": "INT"}], "rows": [["Chad", 1], ["Peru", 22], ["Togo", 22]]}], "operation": "SELECT", '
        '"skills": [], "grader": "lifelong", "answer": null, "sql": null, "state_md5": null}'
    )


def test_validate(database: Database) -> None:
    def problem(sql: str, **changes: str) -> str | None:
        (found,) = validate([dataclasses.replace(WINNERS, gold=Gold(sql=sql), **changes)], database)
        return found.problem

    assert problem("SELECT nation FROM medals") is None
    assert "the gold SQL fails: 1054" in (problem("SELECT none FROM medals") or "")
    nothing = (
        "the gold gives no rows, or only NULLs, which statements also give by mistake, so no answer is right. "
        "Leave the task out."
    )
    assert problem("SELECT nation FROM medals WHERE gold > 99") == nothing
    assert problem("SELECT MAX(gold), NULL FROM medals WHERE gold > 99") == nothing
    assert problem("SELECT nation FROM medals WHERE gold > 99", grader="critic") == (
        "the gold SQL, which gives no rows, is not right to the grader critic"
    )
    assert "is not right to the grader strict" in (problem("SELECT UUID() FROM medals") or "")
    assert problem("DELETE FROM medals") == "the gold SQL fails: it gives no rows: it is not a query"


def test_validate_with_another_grader(sqlite_database: Database) -> None:
    answered = dataclasses.replace(WINNERS, gold=Gold(answer=(("Peru",),)), grader="lifelong")
    (found,) = validate([answered], sqlite_database, grader="bird_ex")
    assert found.problem == "the grader bird_ex needs gold SQL"
    (found,) = validate([WINNERS], sqlite_database, grader="lifelong")
    assert found.problem == "the grader lifelong needs a gold answer"


# Databases.


def test_a_server_refuses_sqlites_dialect(
    server_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Before a run starts, and not as a fault in each of its episodes."""
    native = dataclasses.replace(WINNERS, dialect="sqlite")
    player = Player.of(tokenizer, server_database, protocol="text_sql", rules=RULES)
    for refuse in (
        lambda: server_database.sandbox(native),
        lambda: player.check_dataset(to_dataset([native], "text_sql")),
    ):
        with pytest.raises(
            TaskError, match=r"has the dialect sqlite, and this database is M\w+. Set database: sqlite"
        ):
            refuse()


def test_a_protocol_that_does_not_ask_for_sql_is_refused(
    sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Each of its answers would be wrong; and so is one that asks for SQL where there is no gold SQL."""

    def player(protocol: str, grader: str | None = None) -> Player:
        return Player.of(tokenizer, sqlite_database, protocol=protocol, rules=RULES, grader=grader)

    with pytest.raises(ConfigError, match="Set protocol: text_sql or tools_sql, or another grader"):
        player("text").start(WINNERS)
    with pytest.raises(ConfigError, match="grader strict executes, and the protocol tools asks"):
        player("tools").check_dataset(to_dataset([WINNERS], "tools"))
    player("text_sql").start(WINNERS)
    answered = dataclasses.replace(WINNERS, gold=Gold(answer=(("Peru",), ("Togo",))), grader="lifelong")
    player("text").start(answered)
    with pytest.raises(
        TaskError, match="has no gold SQL, which the grader strict of the protocol text_sql needs"
    ):
        player("text_sql").start(answered)
    with pytest.raises(ConfigError, match="grader bird_ex executes"):
        player("text", grader="bird_ex").start(answered)
