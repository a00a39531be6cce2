"""Benchmarks whose databases are dumps of MySQL's: BIRD's mini-dev and BIRD-CRITIC."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trl_dbbench.data.convert import convert
from trl_dbbench.data.score_predictions import score_all
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Column, Gold, Source, Table, Task, load_tasks

Command = Callable[..., tuple[int | str | None, str]]

CLUB = """
DROP TABLE IF EXISTS `member`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
CREATE TABLE `member` (
  `member_id` int NOT NULL,
  `name` varchar(40) DEFAULT NULL,
  `joined` datetime DEFAULT NULL,
  PRIMARY KEY (`member_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
LOCK TABLES `member` WRITE;
/*!40000 ALTER TABLE `member` DISABLE KEYS */;
INSERT INTO `member` VALUES (1,'Ann','2020-01-02 03:04:05'),(2,'Bo',NULL);
/*!40000 ALTER TABLE `member` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `Attendance`;
CREATE TABLE `Attendance` (`member` int DEFAULT NULL, `hours` double DEFAULT NULL, KEY `m` (`member`),
  CONSTRAINT `a` FOREIGN KEY (`member`) REFERENCES `member` (`member_id`)) ENGINE=InnoDB;
INSERT INTO `Attendance` VALUES (1,1.5),(1,2),(2,0.25);
"""
RACES = """
DROP TABLE IF EXISTS `races`;
CREATE TABLE `races` (`raceId` int NOT NULL, `name` text, PRIMARY KEY (`raceId`));
INSERT INTO `races` VALUES (7,'Monaco; the (old) one');
ALTER TABLE `races` ADD KEY `n` (`name`(10));
CREATE VIEW `latest` AS SELECT MAX(`raceId`) AS `raceId` FROM `races`;
"""
DUMP = f"-- MySQL dump 10.13\n/*!50503 SET NAMES utf8mb4 */;\n{CLUB}{RACES}-- Dump completed\n"

OWNERS = [
    {
        "db_id": "student_club",
        "table_names_original": ["member", "attendance"],
        "table_names": ["members", "seen"],
    },
    {"db_id": "formula_1", "table_names_original": ["races"]},
    {"db_id": "toxicology", "table_names_original": ["atom", "bond"]},
]
HOURS = {
    "question_id": 1312,
    "db_id": "student_club",
    "question": "How long were members there?",
    "evidence": "there refers to hours",
    "SQL": "SELECT `m`.`name`, SUM(`a`.`hours`) FROM `member` AS `m` JOIN `Attendance` AS `a` "
    "ON `a`.`member` = `m`.`member_id` GROUP BY `m`.`name`",
    "difficulty": "simple",
}
RACE = {
    "question_id": 846,
    "db_id": "formula_1",
    "question": "Which race?",
    "evidence": "",
    "SQL": "SELECT `name` FROM `races`",
    "difficulty": "simple",
}


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def mini_dev(folder: Path, *entries: dict[str, Any], name: str = "mini_dev_mysql") -> Path:
    """The files as the download has them."""
    written(folder / "MINIDEV_mysql/BIRD_dev.sql", DUMP)
    home = folder / "MINIDEV"
    written(home / "dev_tables.json", json.dumps(OWNERS))
    written(
        home / "dev_databases/student_club/database_description/Attendance.csv",
        "original_column_name,column_name,column_description,data_format,value_description\n"
        "hours,,how long,real,0 is not there\n",
    )
    return written(home / f"{name}.json", json.dumps(entries or (HOURS, RACE)))


def rows(database: Database, task: Task, sql: str) -> list[tuple]:
    with database.sandbox(task) as sandbox:
        result = sandbox.execute(sql)
        assert result.error is None, result.error
        return result.rows or []


def right(database: Database, task: Task, sql: str) -> bool:
    with database.sandbox(task) as sandbox:
        return Judge(database)(task, Answer(sql), sandbox, "strict").right


# --- BIRD's mini-dev ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mini_dev_mysql", "mini_dev_mysql-00000-of-00001"])
def test_mini_devs_entries(tmp_path: Path, name: str) -> None:
    """A task is of the tables of its database only, under the names that the dump has for them."""
    hours, race = load_tasks(mini_dev(tmp_path, name=name))
    described = tmp_path / "MINIDEV/dev_databases/student_club/database_description"
    source = Source.of(
        tmp_path / "MINIDEV_mysql/BIRD_dev.sql", only=("member", "Attendance"), descriptions=described
    )
    assert hours == Task(
        id="1312",
        question="How long were members there?",
        tables=(
            Table(
                "member",
                (Column("member_id", "int"), Column("name", "varchar(40)"), Column("joined", "datetime")),
            ),
            Table("Attendance", (Column("member", "int"), Column("hours", "double"))),
        ),
        operation="SELECT",
        gold=Gold(sql=HOURS["SQL"]),
        skills=hours.skills,
        grader="bird_ex",
        source=source,
        dialect="mysql",
        knowledge="Hint: there refers to hours",
        schema="full",
    )
    shown = hours.prompt()
    assert shown.startswith(
        "How long were members there?\nHint: there refers to hours\nCREATE TABLE `member` (\n  `member_id` int"
    )
    assert (
        "/* What columns of Attendance mean:\nhours: how long; values: 0 is not there */\nCREATE TABLE `Attendance`"
        in shown
    )
    assert "/* The first rows of Attendance:\n1, 1.5\n1, 2\n2, 0.25 */" in shown and "races" not in shown
    assert (race.id, race.knowledge, [table.name for table in race.tables]) == ("846", None, ["races"])
    assert race.source is not None and race.source.descriptions is None
    assert "how long" not in replace(hours, schema="names").prompt()


@pytest.mark.parametrize("dump", ["BIRD_dev.sql", "MINIDEV_mysql/BIRD_dev.sql", "../BIRD_dev.sql"])
@pytest.mark.parametrize("owners", ["dev_tables.json", "MINIDEV_mysql/dev_tables.json", "../dev_tables.json"])
def test_where_mini_devs_files_may_lie(tmp_path: Path, dump: str, owners: str) -> None:
    path = written(tmp_path / "bird/mini_dev_mysql.json", json.dumps([RACE]))
    found = written(path.parent / dump, DUMP)
    written(path.parent / owners, json.dumps(OWNERS))
    (task,) = load_tasks(path)
    assert task.source is not None and Path(task.source.path).samefile(found)


def test_mini_dev_on_a_server(server_database: Database, tmp_path: Path, command: Command) -> None:
    path = mini_dev(tmp_path)
    hours, race = load_tasks(path)
    assert [each.problem for each in validate([hours, race], server_database)] == [None, None]
    assert rows(server_database, hours, "SHOW TABLES") == [("Attendance",), ("member",)]
    assert rows(server_database, race, "SHOW TABLES") == [("races",)]
    assert rows(server_database, race, "SELECT name FROM races") == [("Monaco; the (old) one",)]
    assert [row[2] for row in rows(server_database, race, "SHOW INDEX FROM races")] == ["PRIMARY", "n"]
    answer = "SELECT name, SUM(hours) FROM Attendance JOIN member ON member = member_id GROUP BY member_id"
    assert right(server_database, hours, answer)
    assert not right(server_database, hours, answer.replace("SUM", "MAX"))
    scores, missing = score_all([hours, race], {"1312": answer}, server_database)
    assert scores.values["bird_ex"] == 1 and missing.problem == "there is no prediction"
    converted = convert(path, tmp_path / "own.jsonl")
    assert (converted.written, converted.losses, converted.skipped) == (2, [], [])
    assert load_tasks(tmp_path / "own.jsonl") == [hours, race]
    assert [each.problem for each in validate(load_tasks(tmp_path / "own.jsonl"), server_database)] == [
        None,
        None,
    ]


def test_mini_dev_needs_a_server(tmp_path: Path, command: Command) -> None:
    code, output = command("validate", mini_dev(tmp_path), "--database", "sqlite")
    assert code == 1
    assert output.startswith("1312: task '1312' is of MySQL's dialect over the database ")
    assert "which needs a server. Set database: docker, local" in output


def test_the_dump_is_read_once_for_all_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    from trl_dbbench.tasks.sources import dump

    real = dump.read_dump
    monkeypatch.setattr(dump, "read_dump", lambda *given: read.append(given) or real(*given))
    for task in load_tasks(mini_dev(tmp_path)):
        assert task.prompt()
    assert len(read) == 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda home: (home / "MINIDEV_mysql/BIRD_dev.sql").unlink(),
            "there is no 'MINIDEV_mysql/BIRD_dev.sql' in {0}/MINIDEV nor in {0}. Bring it there: it is in BIRD's "
            "mini-dev.",
        ),
        (
            lambda home: (home / "MINIDEV/dev_tables.json").unlink(),
            "there is no 'dev_tables.json' in {0}/MINIDEV nor in {0}. Bring it there: it is in BIRD's mini-dev, beside "
            "mini_dev_mysql.json.",
        ),
        (
            lambda home: written(home / "MINIDEV/dev_tables.json", '[{"db_id": "student_club"}]'),
            "dev_tables.json cannot be read as a list of databases with 'db_id' and 'table_names_original': KeyError",
        ),
        (
            lambda home: written(home / "MINIDEV/dev_tables.json", json.dumps(OWNERS[2:])),
            "unknown database 'student_club'; allowed: toxicology, by {0}/MINIDEV/dev_tables.json",
        ),
        (
            lambda home: written(home / "MINIDEV_mysql/BIRD_dev.sql", RACES),
            "the dump '{0}/MINIDEV_mysql/BIRD_dev.sql' has no table of the database 'student_club': no member, attendance",
        ),
        (lambda home: written(home / "MINIDEV_mysql/BIRD_dev.sql", ""), "BIRD_dev.sql' cannot be read: it has no tables."),
    ],
)  # fmt: skip
def test_one_error_for_what_mini_dev_lacks(
    tmp_path: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    path = mini_dev(tmp_path)
    spoil(tmp_path)
    with pytest.raises(TaskError) as error:
        load_tasks(path)
    assert str(error.value).startswith(f"{path}, entry 1: ")
    assert message.format(tmp_path) in str(error.value)


def test_a_table_that_the_dump_lacks_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = mini_dev(tmp_path)
    written(
        tmp_path / "MINIDEV_mysql/BIRD_dev.sql",
        CLUB.partition("DROP TABLE IF EXISTS `Attendance`")[0] + RACES,
    )
    with caplog.at_level(logging.WARNING, "trl_dbbench"):
        hours, _ = load_tasks(path)
    assert [table.name for table in hours.tables] == ["member"]
    assert caplog.messages == [
        f"'{tmp_path}/MINIDEV_mysql/BIRD_dev.sql' has not all tables of student_club: no attendance"
    ]


# --- some tables of a dump, in the native format --------------------------------------------------


def own(**database: Any) -> dict[str, Any]:
    return {"id": "1", "question": "?", "sql": "SELECT 1", "grader": "strict", "database": database}


def test_some_tables_of_a_dump(local_database: Database, tmp_path: Path) -> None:
    """With the views that are named; what the others have is not read, let alone executed."""
    dump = DUMP + "CREATE TABLE `x` (`a` int); ALTER TABLE `x` ADD KEY `k` (`b`); INSERT INTO `x` VALUES (1);"
    written(tmp_path / "club.sql", dump)
    written(tmp_path / "said/races.csv", "original_column_name,column_description\nname,where\n")
    line = own(path="club.sql", only=["races", "latest"], descriptions="said")
    (task,) = load_tasks(written(tmp_path / "tasks.jsonl", json.dumps(line) + "\n"))
    assert Task.from_json(task.to_json()) == task
    assert json.loads(task.to_json())["database"]["descriptions"] == str(tmp_path / "said")
    assert rows(local_database, task, "SHOW TABLES") == [("latest",), ("races",)]
    assert rows(local_database, task, "SELECT * FROM latest") == [(7,)]
    shown = replace(task, schema="full").prompt()
    assert (
        "/* What columns of races mean:\nname: where */\nCREATE TABLE `races`" in shown
        and "member" not in shown
    )
    whole = Task.from_entry(own(path=str(tmp_path / "club.sql")))
    assert whole.digest != task.digest and len(whole.tables) == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"only": ["race"]}, r"the dump '.*club\.sql': unknown table 'race'; allowed: member, Attendance, races, latest"),
        ({"only": "races"}, "the field 'only' must be list, is str"),
        ({"only": [1]}, r"'only' must be a list of the names of tables, is \[1\]"),
        ({"descriptions": 1}, "the field 'descriptions' must be str, is int"),
        ({"path": "pets.sqlite", "only": ["t"]}, "pets.sqlite' is not a dump of MySQL's: leave 'only' out, which is for one"),
        ({"path": "pets.sqlite", "descriptions": "/"}, "is not a dump of MySQL's: leave 'descriptions' out"),
    ],
)  # fmt: skip
def test_parts_that_cannot_be(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    written(tmp_path / "club.sql", DUMP)
    written(tmp_path / "pets.sqlite", "")
    database = {"path": "club.sql", **given}
    with pytest.raises(TaskError, match=message):
        load_tasks(written(tmp_path / "tasks.jsonl", json.dumps(own(**database)) + "\n"))


# --- BIRD-CRITIC ----------------------------------------------------------------------------------

COMPARED = (
    "\ndef test_case(pred_sqls, sol_sqls, db_name, conn):\n    result = ex_base(pred_sqls, sol_sqls, db_name, conn)\n"
    '    assert result == 1, f"ex_base returned {result} but expected 1."\n    return result'
)
NO_DISTINCT = COMPARED.replace(
    "    result",
    "    pred_sqls = remove_distinct(pred_sqls)\n    sol_sqls = remove_distinct(sol_sqls)\n    result",
    1,
)
ISSUE = {
    "instance_id": "MySQL_12",
    "dialect": "MySQL",
    "db_id": "student_club",
    "query": "My list has members twice.",
    "issue_sql": ["SELECT name FROM member JOIN Attendance ON member = member_id"],
    "preprocess_sql": [],
    "clean_up_sql": [],
    "sol_sql": ["SELECT DISTINCT name, joined FROM member JOIN Attendance ON member = member_id;"],
    "test_cases": [COMPARED],
    "category": "Query",
    "efficiency": False,
}


def critic(folder: Path, *entries: dict[str, Any]) -> Path:
    written(folder / "mysql_table_dumps/student_club_template_dump.sql", CLUB)
    return written(folder / "mysql_100.jsonl", "".join(f"{json.dumps(entry)}\n" for entry in entries))


def test_bird_critics_entries(tmp_path: Path) -> None:
    (task,) = load_tasks(critic(tmp_path, ISSUE))
    assert task == Task(
        id="MySQL_12",
        question="My list has members twice.",
        tables=task.tables,
        operation="SELECT",
        gold=Gold(sql="SELECT DISTINCT name, joined FROM member JOIN Attendance ON member = member_id;"),
        skills=task.skills,
        grader="critic_mysql",
        source=Source.of(tmp_path / "mysql_table_dumps/student_club_template_dump.sql"),
        dialect="mysql",
        knowledge="The SQL with the issue:\nSELECT name FROM member JOIN Attendance ON member = member_id",
        schema="full",
    )
    assert [table.name for table in task.tables] == ["member", "Attendance"]
    plain = {key: value for key, value in ISSUE.items() if key != "dialect"}
    assert load_tasks(critic(tmp_path, plain)) == [task]


@pytest.mark.parametrize(
    "dumps", ["mysql_table_dumps", "evaluation/mysql_table_dumps", ".", "../mysql_table_dumps"]
)
@pytest.mark.parametrize("name", ["student_club_template_dump.sql", "student_club_dump.sql"])
def test_where_bird_critics_dumps_may_lie(tmp_path: Path, dumps: str, name: str) -> None:
    path = written(tmp_path / "data/mysql_100.jsonl", json.dumps(ISSUE))
    found = written(path.parent / dumps / name, CLUB)
    (task,) = load_tasks(path)
    assert task.source is not None and Path(task.source.path).samefile(found)


def test_a_dump_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as error:
        load_tasks(critic(tmp_path, ISSUE | {"db_id": "student_clubs"}))
    assert (
        "there is no database 'student_clubs': student_clubs_template_dump.sql was looked for in "
        f"{tmp_path}/mysql_table_dumps, {tmp_path}/evaluation/mysql_table_dumps, {tmp_path}, "
        in str(error.value)
    )
    assert "where 'student_club' is nearest. Correct the name" in str(error.value)


@pytest.mark.parametrize(
    ("tests", "grader"),
    [
        ([], "critic_mysql"),
        (None, "critic_mysql"),
        (COMPARED, "critic_mysql"),
        ([COMPARED, COMPARED], "critic_mysql"),
        ([NO_DISTINCT], "critic_mysql_no_distinct"),
        ([COMPARED, NO_DISTINCT], "critic_mysql"),  # both have to hold, and the first asks for more
        ([COMPARED.replace(', f"ex_base returned {result} but expected 1."', "").replace("    return result", "")], "critic_mysql"),
    ],
)  # fmt: skip
def test_tests_that_are_the_default_comparison(tmp_path: Path, tests: Any, grader: str) -> None:
    (task,) = load_tasks(critic(tmp_path, ISSUE | {"test_cases": tests}))
    assert task.grader == grader


PYTHON = "judged by 'test_cases', Python that would have to be executed"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"test_cases": ["def test_case(pred_sqls, sol_sqls, db_name, conn):\n    raise SystemExit"]},
            PYTHON,
        ),
        ({"test_cases": [COMPARED, "raise SystemExit"]}, PYTHON),
        ({"test_cases": [f"{COMPARED}\nraise SystemExit"]}, PYTHON),
        ({"test_cases": [f"raise SystemExit\n{COMPARED}"]}, PYTHON),
        ({"test_cases": [COMPARED.replace("result == 1", "result == 0")]}, PYTHON),
        ({"test_cases": [NO_DISTINCT.replace("sol_sqls = remove", "sol_sqls = remove_round")]}, PYTHON),
        ({"test_cases": [NO_DISTINCT.replace("    sol_sqls = remove_distinct(sol_sqls)\n", "")]}, PYTHON),
        ({"efficiency": True}, "judged by the cost of its plan ('efficiency')"),
        ({"category": "Management"}, "of the category Management, which changes the database"),
        (
            {"preprocess_sql": ["CREATE TABLE t (a int)"]},
            "needs 'preprocess_sql', statements beside the solution",
        ),
        ({"clean_up_sql": ["DROP TABLE t"]}, "needs 'clean_up_sql', statements beside the solution"),
        ({"sol_sql": ["SELECT 1", "SELECT 2"]}, "'sol_sql' is not a single query"),
        ({"sol_sql": ["UPDATE member SET name = 'x'"]}, "'sol_sql' is not a single query"),
        ({"dialect": "Oracle"}, "of Oracle; only SQLite and MySQL are read"),
        ({"dialect": None, "instance_id": "SQLServer_3"}, "of SQLServer; only SQLite and MySQL are read"),
    ],
)
def test_what_is_left_out(
    tmp_path: Path, fields: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning tells it, and nothing of a test is executed."""
    path = critic(tmp_path, ISSUE, {**ISSUE, "instance_id": "MySQL_9", **fields})
    with caplog.at_level(logging.WARNING, "trl_dbbench"):
        assert [task.id for task in load_tasks(path)] == ["MySQL_12"]
    id = fields.get("instance_id", "MySQL_9")
    assert caplog.messages == [f"{path}: 1 of 2 entries are left out; {id}: {reason}"]


def test_bird_critic_on_a_server(server_database: Database, tmp_path: Path) -> None:
    """Times count by their day, rows as sets; DISTINCT in COUNT counts unless the test takes it out."""
    counted = ISSUE | {"instance_id": "MySQL_13", "sol_sql": "SELECT COUNT(DISTINCT member) FROM Attendance"}
    path = critic(
        tmp_path, ISSUE, counted, {**counted, "instance_id": "MySQL_14", "test_cases": [NO_DISTINCT]}
    )
    tasks = load_tasks(path)
    assert [each.problem for each in validate(tasks, server_database)] == [None] * 3
    listed, strictly, loosely = tasks
    assert right(
        server_database,
        listed,
        "SELECT name, joined + INTERVAL 1 HOUR FROM member JOIN Attendance ON member = member_id",
    )
    assert not right(server_database, listed, "SELECT name, joined + INTERVAL 1 DAY FROM member")
    for sql, expected in (
        ("SELECT COUNT(member) FROM Attendance", True),
        ("SELECT 2", False),
        ("SELECT 3", True),
    ):
        assert right(server_database, loosely, sql) is expected
        assert right(server_database, strictly, sql) is not expected
    converted = convert(path, tmp_path / "own.jsonl")
    assert (converted.written, converted.losses, converted.skipped) == (3, [], [])
    assert load_tasks(tmp_path / "own.jsonl") == tasks
