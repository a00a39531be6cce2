"""The doors of task files: what a command writes, every command reads; formats and graders of one's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from launching import QUICKSTART, RECIPE, ROOT, run_here

from trl_dbbench.data.convert import convert
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge, Verdict
from trl_dbbench.episode.protocol import Answer
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.grading import GRADERS, SQL_GRADERS
from trl_dbbench.tasks import Column, Gold, Table, Task, load_tasks
from trl_dbbench.tasks.formats import FORMATS, READ_ONLY, format_of

SFT = ROOT / "recipes" / "sft_dbbench.py"

Command = Callable[..., tuple[int | str | None, str]]

FRUITS = Table("fruits", (Column("name"), Column("colour")), (("apple", "red"), ("pear", "green")))
TASKS = [
    Task(
        "green",
        "Which fruit is green?",
        (FRUITS,),
        "SELECT",
        Gold((("pear",),), "SELECT name FROM fruits WHERE colour = 'green'"),
        ("select", "where_single_condition"),
    ),
    Task(
        "drop",
        "Drop the apple.",
        (FRUITS,),
        "DELETE",
        Gold(sql="DELETE FROM fruits WHERE name = 'apple'"),
        ("delete", "where_single_condition"),
    ),
]


SPIDER = '''
from trl_dbbench.tasks.skills import skills_of
from trl_dbbench.tasks import Column, Gold, Table, Task

TABLE = Table("fruits", [Column("name"), Column("colour")], [["apple", "red"], ["pear", "green"]])


class Spider:
    """One table for all: {"ask": ..., "query": ..., "gives": [...]}."""

    name = "spider"
    suffix = ".jsonl"

    def matches(self, entry):
        return "ask" in entry

    def read(self, entry, default_id):
        gold = Gold([[cell] for cell in entry["gives"]], entry["query"])
        return Task(default_id, entry["ask"], [TABLE], "SELECT", gold, skills_of(entry["query"]))

    def write(self, task, context):
        gives = [cell for row in context.rows(task) for cell in row]
        return {"ask": task.question, "query": task.gold.sql, "gives": gives}
'''
ASKED = {"ask": "Which is red?", "query": "SELECT name FROM fruits WHERE colour = 'red'", "gives": ["apple"]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules of a user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("my_"):
            del sys.modules[name]


def own_file(folder: Path, *tasks: Task) -> Path:
    path = folder / "source.jsonl"
    path.write_text("".join(f"{task.to_json()}\n" for task in tasks), encoding="utf-8")
    return path


def succeed(command: Command, *arguments: str | Path | int) -> str:
    code, output = command(*arguments)
    assert code == 0, code
    return output


# --- every file that a command writes, by every command that reads tasks --------------------------


def converted(format: str) -> Callable[[Path, Command], Path]:
    def write(folder: Path, command: Command) -> Path:
        target = folder / f"{format}{FORMATS[format].suffix}"
        succeed(command, "convert", own_file(folder, *TASKS), target, "--to", format)
        return target

    return write


def generated(folder: Path, command: Command) -> Path:
    target = folder / "generated.jsonl"
    succeed(
        command, "generate", "--num-tasks", 2, "--level", "worlds.tiny.level", "--workers", 1, "--out", target
    )
    return target


WRITERS = {**{f"convert to {format}": converted(format) for format in FORMATS}, "generate": generated}


def loads(path: Path, command: Command) -> None:
    assert len(load_tasks(path)) == 2


def validates(path: Path, command: Command) -> None:
    output = succeed(command, "validate", path, "--database", "sqlite")
    assert output == "2 of 2 gold solutions score as correct\n"


def converts(path: Path, command: Command) -> None:
    target = path.with_name("again.jsonl")
    succeed(command, "convert", path, target)
    assert target.read_text() == "".join(f"{task.to_json()}\n" for task in load_tasks(path))


READERS = {"load_tasks": loads, "validate": validates, "convert": converts}
"""What reads tasks, given a file of two."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_a_command_writes_every_command_reads(
    writer: str, reader: str, tmp_path: Path, command: Command
) -> None:
    READERS[reader](WRITERS[writer](tmp_path, command), command)


def trained_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A step on both tasks, which are the held-out ones as well; what the run writes of them."""
    out = path.parent / "trained"
    options = ["--config", QUICKSTART, "--tasks", path, "--eval_tasks", path, "--output_dir", out]
    options += ["--num_generations", 2, "--per_device_train_batch_size", 4, "--per_device_eval_batch_size", 2]
    run_here(
        monkeypatch, RECIPE, *options, "--max_steps", 1, "--save_strategy", "no", "--disable_tqdm", "true"
    )
    return out / "tasks.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("writer", [*WRITERS, "train"])
def test_the_recipe_and_an_evaluation_read_what_a_command_writes(
    tmp_path: Path, writer: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks that a run keeps are tasks to train on, too."""
    if writer == "train":
        path = trained_on(own_file(tmp_path, *TASKS), monkeypatch)
    else:
        path = WRITERS[writer](tmp_path, command)
    assert {task.id for task in load_tasks(trained_on(path, monkeypatch))} == {t.id for t in load_tasks(path)}

    options = ["--max-turns", 1, "--max-turn-tokens", 2, "--batch-size", 2, "--database", "sqlite"]
    output = succeed(command, "eval", "--model", ROOT / "recipes/tiny/model", "--tasks", path, *options)
    assert "overall" in output and "0/2" in output


@pytest.mark.parametrize("writer", WRITERS)
def test_the_warm_start_reads_what_a_command_writes(
    tmp_path: Path,
    writer: str,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AgentBench has no place for a question's gold SQL, so that only the change is demonstrated."""
    path = WRITERS[writer](tmp_path, command)
    options = [
        "--config",
        ROOT / "recipes" / "sft_gold.yaml",
        "--tasks",
        path,
        "--output_dir",
        tmp_path / "sft",
    ]
    options += ["--model_name_or_path", ROOT / "recipes/tiny/model", "--max_steps", 1]
    run_here(monkeypatch, SFT, *options, "--disable_tqdm", "true", "--save_strategy", "no")
    assert (tmp_path / "sft" / "model.safetensors").exists()
    left_out = "1 of 2 tasks have no gold SQL to demonstrate" in caplog.text
    assert left_out == (writer == "convert to agentbench")


@pytest.mark.parametrize("format", FORMATS)
def test_the_format_of_an_entry_is_told_by_its_fields(format: str, tmp_path: Path, command: Command) -> None:
    path = converted(format)(tmp_path, command)
    assert load_tasks(path) == load_tasks(path, format=format)
    if format in ("own", "verl"):
        assert load_tasks(path) == TASKS
    else:
        assert [task.id for task in load_tasks(path)] == [task.id for task in TASKS]


def test_an_entry_that_no_format_claims_is_read_as_the_own() -> None:
    assert format_of({}) is FORMATS["own"]
    assert format_of({"description": "?", "table_info": {}}) is FORMATS["lifelong"]
    asked = {"db_id": "d", "question": "?"}  # a test set of Spider
    assert format_of(asked | {"sql": {"select": []}}) is format_of(asked) is READ_ONLY["spider"]
    assert format_of(asked | {"query": "SELECT 1", "sql": "SELECT 1"}) is READ_ONLY["spider"]
    for more in ({"sql": "SELECT 1"}, {"tables": []}, {"database": {"path": "d.sqlite"}}):
        assert format_of(asked | more) is FORMATS["own"]
    assert format_of(asked | {"data_source": "d", "reward_model": {}}) is FORMATS["verl"]


def test_a_named_format_comes_first(here: Path) -> None:
    """It reads what it matches; other entries are recognised as ever."""
    (here / "my_formats.py").write_text(SPIDER)
    path = own_file(here, *TASKS)
    path.write_text(path.read_text() + json.dumps(ASKED) + "\n")
    assert load_tasks(path, format="my_formats.Spider")[:2] == TASKS
    with pytest.raises(TaskError, match=r"line 3: unknown field 'ask'; allowed: id, question, "):
        load_tasks(path)
    with pytest.raises(TaskError, match=r"max_turns \(read as own; the format verl does not match it\)$"):
        load_tasks(path, format="verl")


@pytest.mark.parametrize(("field", "nearest"), [("description", "question"), ("table", "tables")])
def test_an_own_task_with_a_field_of_agentbench_is_still_an_own_task(
    tmp_path: Path, field: str, nearest: str
) -> None:
    entry = json.loads(TASKS[0].to_json())
    entry[field] = entry.pop("tables")
    (tmp_path / "own.jsonl").write_text(json.dumps(entry) + "\n")
    with pytest.raises(
        TaskError, match=f"line 1: unknown field '{field}'; allowed: id, .*, max_turns; nearest: {nearest}$"
    ):
        load_tasks(tmp_path / "own.jsonl")


def test_an_unknown_format_is_named_with_those_allowed(tmp_path: Path, command: Command) -> None:
    path = own_file(tmp_path, *TASKS)
    known = "own, agentbench, lifelong, verl, spider, bird, critic, spider2"
    message = f"unknown task format 'wikisql'; allowed: {known}, or the dotted path"
    with pytest.raises(ConfigError, match=message):
        load_tasks(path, format="wikisql")
    for arguments in (["validate", path, "--format"], ["convert", path, tmp_path / "out.jsonl", "--from"]):
        code, _ = command(*arguments, "wikisql")
        assert message in str(code)


def test_a_csv_file_is_no_file_of_tasks_by_itself(tmp_path: Path) -> None:
    (tmp_path / "questions.csv").write_text("question,answer\nHow?,1\n")
    with pytest.raises(TaskError, match=r"trl-dbbench convert .*questions\.csv tasks\.jsonl --tables"):
        load_tasks(tmp_path / "questions.csv")
    with pytest.raises(ConfigError, match="leave --from out"):
        convert(
            tmp_path / "questions.csv", tmp_path / "t.jsonl", source_format="own", tables=[tmp_path / "t.csv"]
        )


# --- a format of one's own ------------------------------------------------------------------------


@pytest.fixture
def spider(here: Path) -> Path:
    (here / "my_formats.py").write_text(SPIDER)
    (here / "asked.jsonl").write_text(json.dumps(ASKED) + "\n")
    return here / "asked.jsonl"


def test_a_users_own_format(spider: Path) -> None:
    (task,) = load_tasks(spider, format="my_formats.Spider")
    assert task == Task(
        "asked-1",  # the file and the place
        "Which is red?",
        (FRUITS,),  # lists have become tuples
        "SELECT",
        Gold((("apple",),), ASKED["query"]),
        ("select", "where_single_condition"),
    )
    assert hash(task.tables)


def test_commands_take_a_users_own_format(spider: Path, command: Command) -> None:
    mine = "my_formats.Spider"
    output = succeed(command, "validate", spider, "--format", mine, "--database", "sqlite")
    assert output == "1 of 1 gold solutions score as correct\n"
    own = spider.with_name("own.jsonl")
    succeed(command, "convert", spider, own, "--from", mine)
    assert load_tasks(own) == load_tasks(spider, format=mine)

    again = spider.with_name("again.jsonl")
    assert succeed(command, "convert", own, again, "--to", mine) == f"{again}: 1 tasks in the format spider\n"
    assert json.loads(again.read_text()) == ASKED


def test_what_a_users_own_format_does_not_hold_is_named(spider: Path) -> None:
    target = spider.with_name("out.jsonl")
    (loss,) = convert(own_file(spider.parent, TASKS[0]), target, "my_formats.Spider").losses
    assert (loss.task, loss.field, loss.text) == ("green", "id", "is not kept by the format spider")
    # it has questions only
    losses = convert(own_file(spider.parent, TASKS[1]), target, "my_formats.Spider").losses
    assert {loss.field for loss in losses} == {"id", "operation", "answer"}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("my_format = 5", ConfigError, "the task format 'my_bad.my_format' is not callable but int"),
        ("def my_format(x): ...", ConfigError, "It must be a class that takes no arguments"),
        (
            "class my_format: name = 'x'",
            ConfigError,
            r"has no 'matches'; a format has a name, matches\(entry\)",
        ),
        ("READ return {}", TaskError, "line 1: the format mine must read a Task, gave dict"),
        ("READ return entry['no']", TaskError, "line 1: the format mine cannot read it: KeyError: 'no'"),
        ("READ return Task('', '', ['t'], 'SELECT', Gold([]))", TaskError, "read a task that cannot be"),
        ("READ return Task('', '', [], 'SELECT', Gold([]))", TaskError, "a task needs at least one table"),
        ("READ return Task('', '', [T], 'SELECT', Gold())", TaskError, "a question needs its gold 'answer'"),
        ("READ return Task('', '', [T], 'SELECT', Gold([]), grader='my.own')", TaskError, "unknown grader"),
        ("READ return Task('', '', [U], 'SELECT', Gold([]))", TaskError, "table 'u', row 1 has 2 cells"),
    ],
)
def test_formats_that_cannot_be_used(here: Path, body: str, error: type[Exception], message: str) -> None:
    head = "from trl_dbbench.tasks import *\nT = Table('t', [Column('a')])\nU = Table('u', [Column('a')], [[1, 2]])\n"
    read = "class my_format:\n  name = 'mine'\n  def matches(self, entry): return True\n  def read(self, entry, id):"
    (here / "my_bad.py").write_text(head + body.replace("READ", read))
    with pytest.raises(error, match=message):
        load_tasks(own_file(here, TASKS[0]), format="my_bad.my_format")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the task format 'my_bad.Mine' can only be read: it has no 'suffix'"),
        ("suffix = '.jsonl'", "can only be read: it has no 'write'"),
        ("suffix = '.xml'\n  write = 1", r"has the suffix '\.xml'; allowed: \.jsonl, \.json, \.parquet"),
        ("suffix = '.json'\n  write = 1", "is not a name for the format my_bad.Mine"),
    ],
)
def test_formats_that_cannot_be_written(here: Path, body: str, message: str) -> None:
    (here / "my_bad.py").write_text(f"class Mine:\n  name = 'mine'\n  matches = read = print\n  {body}\n")
    with pytest.raises(ConfigError, match=message):
        convert(own_file(here, TASKS[0]), here / "out.jsonl", "my_bad.Mine")


# --- a grader of one's own ------------------------------------------------------------------------

GRADERS_OF_MINE = """
def first(answer, gold):
    return answer[:1] == gold[0][:1]

def rows_first(answer, gold):
    return answer == str(gold[0])
rows_first.rows = True
"""


@pytest.fixture
def graders(here: Path) -> Path:
    (here / "my_graders.py").write_text(GRADERS_OF_MINE)
    return here


@pytest.mark.parametrize(
    ("grader", "answer", "right"),
    [
        ("my_graders.first", "plum", True),
        ("my_graders.first", "apple", False),
        ("my_graders.rows_first", "('pear',)", True),
        ("my_graders.rows_first", "pear", False),
    ],
)
def test_a_users_own_grader(
    graders: Path, sqlite_database: Database, grader: str, answer: str, right: bool
) -> None:
    """It gets labels, or rows where it says so, and judges questions only."""
    question, change = TASKS
    judge = Judge(sqlite_database, grader)
    with sqlite_database.sandbox(question) as sandbox:
        assert judge(question, Answer(answer), sandbox, "agentbench_text") == Verdict(right)
    with sqlite_database.sandbox(change) as sandbox:
        sandbox.execute("DELETE FROM fruits WHERE colour = 'red'")
        assert judge(change, Answer(answer), sandbox, "agentbench_text") == Verdict(True)


def test_validation_by_a_users_own_grader(graders: Path, command: Command, sqlite_database: Database) -> None:
    path = own_file(graders, *TASKS)
    code, output = command("validate", path, "--grader", "my_graders.first", "--database", "sqlite")
    assert (code, output.splitlines()) == (
        1,  # "['pear']" begins with a bracket
        [
            "green: the gold answer ['pear'] is not right to the grader my_graders.first",
            "1 of 2 gold solutions score as correct",
        ],
    )
    code, _ = command("validate", path, "--grader", "my_graders.last", "--database", "sqlite")
    assert "the grader 'my_graders.last' cannot be imported" in str(code)
    assert [v.problem for v in validate(TASKS, sqlite_database, grader="lifelong")] == [None, None]


def json_line(entry: dict) -> dict:
    return entry


def with_nested_fields_as_text(entry: dict) -> dict:
    return {key: json.dumps(value) if isinstance(value, list) else value for key, value in entry.items()}


def in_verls_row(entry: dict) -> dict:
    return {"data_source": "trl_dbbench", "reward_model": "", "extra_info": {"task": json.dumps(entry)}}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("own.jsonl", json_line),
        ("own.json", json_line),
        ("own.parquet", with_nested_fields_as_text),
        ("verl.parquet", in_verls_row),
    ],
)
def test_no_task_file_names_code(
    here: Path, name: str, pack: Callable[[dict], dict], reader: str, command: Command
) -> None:
    """A dotted path is for settings: to read a file must not run what it names."""
    (here / "my_side_effect.py").write_text("open('ran', 'w')\ndef judge(answer, gold): return True\n")
    entry = pack(json.loads(TASKS[0].to_json()) | {"grader": "my_side_effect.judge"})
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([entry]), here / name)
    else:
        (here / name).write_text(json.dumps([entry] if name.endswith(".json") else entry))
    known = ", ".join([*GRADERS, *SQL_GRADERS])
    message = (
        f"unknown grader 'my_side_effect.judge'; allowed: {known}. A task file cannot name code to "
        "run: set a grader of your own with `grader:` in the recipe or with --grader."
    )
    with pytest.raises((TaskError, AssertionError), match=re.escape(message)):
        READERS[reader](here / name, command)
    assert not (here / "ran").exists()
    assert "my_side_effect" not in sys.modules


# --- what it costs to read tasks ------------------------------------------------------------------


def test_reading_tasks_brings_no_heavy_library() -> None:
    """Neither these rooms nor what they import; files of parquet and the hub bring theirs when they are read."""
    heavy = ["trl", "transformers", "torch", "datasets", "pyarrow", "huggingface_hub"]
    script = (
        "import sys, trl_dbbench.tasks, trl_dbbench.database, trl_dbbench.database.embedded.database; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
