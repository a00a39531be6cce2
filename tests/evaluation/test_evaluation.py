"""Judging, validating tasks, evaluating a model; and the two commands that do so."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from databases import table
from worlds.tiny_model import make_tiny_model

from trl_dbbench.database import Database, QueryResult, Sandbox
from trl_dbbench.database.dialect import SQLITE
from trl_dbbench.episode.judge import Judge, Verdict
from trl_dbbench.episode.protocol import Action, Answer, Invalid
from trl_dbbench.episode.types import Completion, Episode, Sampling, Status, Turn
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, EnvironmentFault
from trl_dbbench.evaluation.evaluate import Evaluation, so_far
from trl_dbbench.grading.states import state_hash
from trl_dbbench.integrations.endpoints.evaluate import EndpointEvaluation
from trl_dbbench.runs.records import Accuracy
from trl_dbbench.tasks import Column, Gold, Table, Task, load_tasks

DEMO = Path(__file__).parents[2] / "recipes" / "demo_tasks.jsonl"

FRUITS = Table("fruits", (Column("name"), Column("price")), (("apple", "1"), ("pear", "3")))
AFTER = [("pear", "3")]
QUESTION = Task(
    "dear",
    "What costs more than 2?",
    (FRUITS,),
    "SELECT",
    Gold(answer=(("pear",),), sql="SELECT name FROM fruits WHERE price > 2"),
)
CHANGE = Task(
    "drop",
    "Drop the apple.",
    (FRUITS,),
    "DELETE",
    Gold(sql="DELETE FROM fruits WHERE name = 'apple'", state_md5=state_hash(AFTER)),
)


def with_gold(task: Task, **changes: Any) -> Task:
    return replace(task, gold=replace(task.gold, **changes))


# --- the judge ------------------------------------------------------------------------------------------


def judged(database: Database, task: Task, *statements: str, answer: str = "done") -> Verdict:
    with database.sandbox(task) as sandbox:
        for sql in statements:
            sandbox.execute(sql)
        return Judge(database)(task, Answer(answer), sandbox, "agentbench_text")


def test_a_change_is_judged_by_its_tables(sqlite_database: Database) -> None:
    right = Verdict(right=True, published_right=True)
    wrong = Verdict(right=False, published_right=False)
    assert judged(sqlite_database, CHANGE, "DELETE FROM fruits WHERE price = 1") == right
    assert (
        judged(sqlite_database, CHANGE, "DELETE FROM fruits", "INSERT INTO fruits VALUES ('pear', '3')")
        == right
    )
    assert judged(sqlite_database, CHANGE, "DELETE FROM fruits") == wrong
    assert judged(sqlite_database, CHANGE, "DROP TABLE fruits") == wrong
    assert judged(sqlite_database, CHANGE, answer="[('pear',)]") == wrong


def test_the_published_hash_does_not_see_a_second_table_the_judge_does(sqlite_database: Database) -> None:
    made_more = judged(
        sqlite_database, CHANGE, CHANGE.gold.sql or "", "CREATE TABLE more AS SELECT * FROM fruits"
    )
    assert made_more == Verdict(right=False, published_right=True)


def test_without_a_published_hash_only_the_tables_are_judged(sqlite_database: Database) -> None:
    task = with_gold(CHANGE, state_md5=None)
    assert judged(sqlite_database, task, "DELETE FROM fruits WHERE price = 1") == Verdict(True, None)


def test_an_emptied_table_has_the_empty_hash(sqlite_database: Database) -> None:
    task = with_gold(CHANGE, sql="DELETE FROM fruits", state_md5="")
    assert judged(sqlite_database, task, "DELETE FROM fruits WHERE price < 9") == Verdict(True, True)
    assert judged(sqlite_database, task) == Verdict(False, False)


def test_a_gold_that_fails_leaves_the_published_hash_to_decide(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    task = with_gold(CHANGE, sql="DELETE FROM vegetables")
    assert judged(sqlite_database, task, "DELETE FROM fruits WHERE price = 1") == Verdict(True, True)
    assert judged(sqlite_database, task) == Verdict(False, False)
    with pytest.raises(EnvironmentFault, match="the gold SQL fails on this database: 1146"):
        judged(sqlite_database, with_gold(task, state_md5=None))
    assert "the gold SQL of task drop fails on this database: " in caplog.text


def test_a_question_is_judged_by_its_grader_or_the_protocols(sqlite_database: Database) -> None:
    assert judged(sqlite_database, QUESTION, answer="[('pear',)]") == Verdict(True)
    assert judged(sqlite_database, QUESTION, answer="[('apple',)]") == Verdict(False)
    agentbench = replace(with_gold(QUESTION, answer=("pear",)), grader=None)
    assert judged(sqlite_database, agentbench, answer="pear") == Verdict(True)
    assert judged(sqlite_database, agentbench, answer="[('pear',)]") == Verdict(False)


def test_a_judges_own_grader_judges_every_question(sqlite_database: Database) -> None:
    """It gets the gold answer in its own form, whatever the task's grader is."""
    labels = replace(with_gold(QUESTION, answer=("pear", "plum")), grader=None)
    rows = with_gold(QUESTION, answer=(("pear",), ("plum",)))
    cases = [
        ("agentbench_fc", rows, Answer("['plum', 'pear']"), True),
        ("agentbench_fc", rows, Answer("[('plum',), ('pear',)]"), True),
        ("agentbench_fc", rows, Answer("['plum']"), False),
        ("lifelong", labels, Answer("[('pear',), ('plum',)]"), True),
        ("lifelong", labels, Answer("['pear', 'plum']", ("pear", "plum")), True),  # as rows, from tool calls
        ("lifelong", labels, Answer("['pear', 'plum']"), False),
    ]
    for grader, task, answer, right in cases:
        with sqlite_database.sandbox(task) as sandbox:
            verdict = Judge(sqlite_database, grader)(task, answer, sandbox, "agentbench_text")
        assert verdict == Verdict(right), (grader, answer)


def test_a_judge_refuses_an_unknown_grader(sqlite_database: Database) -> None:
    with pytest.raises(ConfigError, match="unknown grader 'exact'; allowed: agentbench_text"):
        Judge(sqlite_database, "exact")


def test_a_gold_state_is_made_once(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, made = Judge(sqlite_database), []
    sandbox = type(sqlite_database).sandbox
    monkeypatch.setattr(
        type(sqlite_database), "sandbox", lambda self, task: made.append(task.id) or sandbox(self, task)
    )
    first = judge.gold_state(CHANGE)
    assert judge.gold_state(Task.from_json(CHANGE.to_json())) is first
    assert first.state is not None and first.state["fruits"].rows == AFTER
    assert made == ["drop"]


class BusyOnce(Database):
    """Runs out of time in its first sandbox."""

    url, dialect = "busy", SQLITE

    def __init__(self, database: Database):
        self._database, self._sandboxes = database, 0

    def fresh_sandbox(self, task: Task) -> Sandbox:
        self._sandboxes += 1
        sandbox = self._database.sandbox(task)
        if self._sandboxes == 1:
            refusal = QueryResult(None, error="3024 (HY000): Query execution was interrupted", limit="time")
            sandbox.execute = lambda sql, limits=None: refusal  # type: ignore[method-assign]
        return sandbox

    def describe(self) -> str:
        return "busy"

    def close(self) -> None:
        pass


def test_a_gold_that_ran_out_of_time_is_tried_again(sqlite_database: Database) -> None:
    judge = Judge(BusyOnce(sqlite_database))
    assert judge.gold_state(CHANGE).state is None
    again = judge.gold_state(CHANGE).state
    assert again is not None and again["fruits"].rows == AFTER


# --- validate ---------------------------------------------------------------------------------------------


def test_the_demo_tasks_are_right(sqlite_database: Database) -> None:
    tasks = load_tasks(DEMO)
    assert {task.operation for task in tasks} == {"SELECT", "INSERT", "UPDATE", "DELETE"}
    validations = list(validate(tasks, sqlite_database))
    assert [v.task.id for v in validations] == [task.id for task in tasks]
    assert [v for v in validations if v.problem] == []


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (QUESTION, None),
        (CHANGE, None),
        (with_gold(QUESTION, sql=None), None),
        (with_gold(QUESTION, answer=()), "the gold SQL gives [('pear',)], the gold answer is []"),
        (
            with_gold(QUESTION, answer=(("plum",),)),
            "the gold SQL gives [('pear',)], the gold answer is [('plum',)]",
        ),
        (
            with_gold(QUESTION, sql="SELECT nme FROM fruits"),
            "the gold SQL fails: 1054 (42S22): Unknown column 'nme'",
        ),
        (
            with_gold(QUESTION, answer=(("pear, ripe",),), sql=None),
            "the gold answer [('pear, ripe',)] is not right to the grader lifelong",
        ),
        (replace(with_gold(QUESTION, answer=("pear",)), grader="agentbench_fc"), None),
        (replace(with_gold(QUESTION, answer=("pear",)), grader=None), None),
        (
            replace(with_gold(QUESTION, answer=("plum",)), grader=None),
            "the gold SQL gives [('pear',)], the gold answer is ['plum']",
        ),
        (with_gold(CHANGE, sql="DELETE FROM vegetables"), "the gold SQL fails: 1146 (42S02): Table "),
        (
            with_gold(CHANGE, sql="DELETE FROM fruits"),
            f"the gold SQL leaves tables of another hash than the published {state_hash(AFTER)}",
        ),
        (with_gold(CHANGE, sql="DELETE FROM fruits", state_md5=None), None),
    ],
)
def test_why_a_gold_solution_fails(sqlite_database: Database, task: Task, problem: str | None) -> None:
    (validation,) = validate([task], sqlite_database)
    assert validation.task is task
    if problem is None:
        assert validation.problem is None
    else:
        assert validation.problem is not None
        assert validation.problem.startswith(problem)


STAMPED = table("visits", "id INT, seen DATETIME DEFAULT CURRENT_TIMESTAMP", (1, "2024-01-01 00:00:00"))


@pytest.mark.parametrize(
    ("sql", "sound"),
    [
        ("UPDATE visits SET seen = NOW() WHERE id = 1", False),
        ("INSERT INTO visits (id) VALUES (2)", False),
        ("UPDATE visits SET id = 2 WHERE seen < NOW()", True),
        ("INSERT INTO visits VALUES (2, '2024-02-01 00:00:00')", True),
    ],
)
def test_a_change_that_goes_by_the_clock_can_never_be_right(
    database: Database, sql: str, sound: bool
) -> None:
    task = Task("stamp", "Note a visit.", (STAMPED,), sql.split()[0], Gold(sql=sql))
    (validation,) = validate([task], database)
    assert (validation.problem is None) == sound
    assert sound or validation.problem.startswith("the gold SQL leaves other tables a second later")


def test_an_answer_of_more_rows_than_an_agent_is_shown(sqlite_database: Database) -> None:
    sql = "WITH RECURSIVE n AS (SELECT 0 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 149) SELECT i FROM n"
    task = with_gold(QUESTION, sql=sql, answer=tuple((i,) for i in range(150)))
    (validation,) = validate([task], sqlite_database)
    shown = sqlite_database.limits.rows
    assert validation.problem == (
        f"the gold SQL gives more than an agent is shown, whose result ends after {shown} rows"
    )


def test_gold_states_are_kept_up_to_a_number_of_rows(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks over one large database each leave all of its rows."""
    monkeypatch.setattr("trl_dbbench.episode.judge._MAX_STATE_ROWS", 2 * len(AFTER))
    judge = Judge(sqlite_database)
    tasks = [with_gold(CHANGE, sql=f"{CHANGE.gold.sql} -- {number}", state_md5=None) for number in range(3)]
    first, second, third = map(judge.gold_state, tasks)
    assert judge.gold_state(tasks[2]) is third and judge.gold_state(tasks[1]) is second
    assert judge.gold_state(tasks[0]) is not first


def test_validation_by_another_grader(sqlite_database: Database) -> None:
    commas = with_gold(QUESTION, answer=(("pear, ripe",),), sql=None)
    tasks = [QUESTION, commas, CHANGE]
    assert [v.problem for v in validate(tasks, sqlite_database, grader="agentbench_fc")] == [None] * 3
    (_, problem, _) = (v.problem for v in validate(tasks, sqlite_database))
    assert problem == "the gold answer [('pear, ripe',)] is not right to the grader lifelong"


# --- the command ------------------------------------------------------------------------------------------------


def written(path: Path, *tasks: Task) -> Path:
    path.write_text("".join(task.to_json() + "\n" for task in tasks), encoding="utf-8")
    return path


def test_validate_command(command: Callable, tmp_path: Path) -> None:
    code, out = command("validate", DEMO, "--database", "sqlite")
    count = len(load_tasks(DEMO))
    assert (code, out) == (0, f"{count} of {count} gold solutions score as correct\n")

    broken = with_gold(replace(QUESTION, id="broken"), answer=(("plum",),))
    code, out = command(
        "validate", written(tmp_path / "t.jsonl", QUESTION, broken, CHANGE), "--database", "sqlite"
    )
    assert code == 1
    assert out.splitlines() == [
        "broken: the gold SQL gives [('pear',)], the gold answer is [('plum',)]",
        "2 of 3 gold solutions score as correct",
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [QUESTION.prompt(), CHANGE.prompt()]
    folder = tmp_path_factory.mktemp("evaluation") / "tiny"
    return make_tiny_model(folder, texts, hidden_size=16, num_layers=1, num_heads=2)


@pytest.mark.parametrize(("protocol", "status"), [("text", "invalid_action"), ("tools", "turn_limit")])
def test_eval_command(command: Callable, model: Path, tmp_path: Path, protocol: str, status: str) -> None:
    """A model of random weights writes noise: 0 of 2 right, and each protocol's way of ending on noise."""
    tasks, figures = written(tmp_path / "t.jsonl", QUESTION, CHANGE), tmp_path / "figures.json"
    settings = ("--protocol", protocol, "--max-turns", "2", "--max-turn-tokens", "4", "--json", figures)
    code, out = command("eval", "--model", model, "--tasks", tasks, "--database", "sqlite", *settings)
    assert code == 0
    none_of_two, none_of_one = "0/2 = 0.0 % [0.0, 65.8]", "0/1 = 0.0 % [0.0, 79.3]"
    table, _, noise = out.partition("\n\n")
    assert [re.split(r"  +", line) for line in table.splitlines()] == [
        ["overall", none_of_two],
        ["operation/DELETE", none_of_one],
        ["operation/SELECT", none_of_one],
        [f"status/{status}", "100.0 %"],
        ["first turns unreadable", "2 of 2"],
    ]
    assert noise.count("unreadable (") == 2

    figures = json.loads(figures.read_text(encoding="utf-8"))
    said = {"accuracy", "counts", "void", "void_reasons", "statuses", "emulation_mistakes", "episodes"}
    said |= {"unreadable_first_turns"}
    of_the_arm = {"name", "model", "adapter", "sampling", "gold", "figures"}
    assert set(figures) == {*said, *of_the_arm}
    assert (figures["name"], figures["model"], figures["adapter"]) == ("tiny", str(model), None)
    assert figures["emulation_mistakes"] == 0
    assert figures["counts"] == {"overall": [0, 2], "operation/SELECT": [0, 1], "operation/DELETE": [0, 1]}
    assert figures["accuracy"] == Accuracy(figures["counts"]).metrics()
    assert figures["statuses"] == {status: 1.0}
    assert [(e["task_id"], e["greedy"], e["right"], e["status"]) for e in figures["episodes"]] == [
        ("dear", True, False, status),
        ("drop", True, False, status),
    ]
    turn = figures["episodes"][0]["turns"][0]
    assert turn["action"] == "invalid"
    assert turn["tokens"] == 4


def test_eval_is_greedy(command: Callable, model: Path, tmp_path: Path) -> None:
    """Twice the same, whatever the batch size."""
    tasks = written(tmp_path / "t.jsonl", QUESTION, CHANGE, replace(QUESTION, id="third", question="And?"))
    texts = []
    for size in ("1", "3"):
        settings = ("--batch-size", size, "--max-turn-tokens", "6", "--json", tmp_path / "figures.json")
        command("eval", "--model", model, "--tasks", tasks, "--database", "sqlite", *settings)
        episodes = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["episodes"]
        texts.append([[turn["text"] for turn in episode["turns"]] for episode in episodes])
    assert texts[0] == texts[1]


def test_eval_hands_settings_to_the_chat_template(command: Callable, model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{{ tone or '' }}" + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    where = ("--model", folder, "--tasks", written(tmp_path / "t.jsonl", QUESTION), "--database", "sqlite")
    where += ("--max-turn-tokens", "2", "--json", tmp_path / "figures.json")
    lengths = []
    for options in ((), ("--chat-template-kwargs", '{"tone": "polite"}')):
        assert command("eval", *where, *options)[0] == 0
        (episode,) = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["episodes"]
        lengths.append(episode["prompt_tokens"])
    tone = tokenizer("polite", add_special_tokens=False)["input_ids"]
    assert lengths[1] == lengths[0] + len(tone) and tone

    code, _ = command("eval", *where, "--chat-template-kwargs", "polite")
    assert "chat_template_kwargs must be names with values" in str(code)


def test_eval_with_an_adapter(command: Callable, model: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    lora = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=2, target_modules=["q_proj"])
    )
    lora.save_pretrained(tmp_path / "adapter")
    tasks = written(tmp_path / "t.jsonl", QUESTION)
    where = ("--tasks", tasks, "--database", "sqlite", "--max-turn-tokens", "2")
    code, out = command("eval", "--model", model, "--adapter", tmp_path / "adapter", *where)
    assert code == 0
    assert out.splitlines()[0].split() == ["overall", "0/1", "=", "0.0", "%", "[0.0,", "79.3]"]


@pytest.fixture
def good(model: Path, tmp_path: Path) -> dict[str, str]:
    tasks = written(tmp_path / "good.jsonl", QUESTION)
    return {"--model": str(model), "--tasks": str(tasks), "--database": "sqlite", "--max-turn-tokens": "2"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--tasks": "gone.jsonl"}, "no task file at 'gone.jsonl'. Give a .jsonl, .json or .parquet file"),
        (
            {"--database": "oracle"},
            '\'oracle\' is not a database. Write "auto", "docker", "local", "sqlite" or a URL',
        ),
        ({"--database": "mysql+pymysql://u:p@127.0.0.1:1/"}, "127.0.0.1"),
        ({"--model": "./gone"}, "./gone is not a folder, so there is no model in it."),
        ({"--adapter": "./gone"}, "./gone is not a folder, so there is no model in it."),
        ({"--protocol": "xml"}, "unknown protocol 'xml'; allowed: text, tools"),
        ({"--dtype": "float7"}, "unknown dtype 'float7'; allowed: auto, float32, bfloat16, float16"),
        ({"--json": "no/such/folder/figures.json"}, "error: 'no/such/folder/figures.json' cannot be written"),
        ({"--json": "."}, "error: '.' cannot be written: it must be a file in a folder that is there."),
    ],
)
def test_eval_errors_are_one_line(
    command: Callable,
    good: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict,
    message: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    code, _ = command("eval", *(word for pair in (good | changes).items() for word in pair))
    assert isinstance(code, str)
    assert code.startswith("error: ")
    assert message in code
    assert "\n" not in code


def test_a_prompt_longer_than_the_context_is_named(
    command: Callable, good: dict[str, str], tmp_path: Path
) -> None:
    long = replace(QUESTION, id="novel", question="word " * 3000)
    good["--tasks"] = str(written(tmp_path / "t.jsonl", QUESTION, long))
    code, _ = command("eval", *(word for pair in good.items() for word in pair))
    assert re.fullmatch(
        r"error: the prompt of task 'novel' has \d+ tokens, the model's context 2048\. .*", code
    )


def test_a_model_without_a_chat_template(command: Callable, good: dict[str, str], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(good["--model"])
    tokenizer.chat_template = None
    AutoModelForCausalLM.from_pretrained(good["--model"]).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    good["--model"] = str(tmp_path / "base")
    code, _ = command("eval", *(word for pair in good.items() for word in pair))
    assert "has no chat template. Take an instruction-tuned model" in code
    good["--chat-template"] = "qwen3"
    assert command("eval", *(word for pair in good.items() for word in pair))[0] == 0


def test_a_task_that_the_database_cannot_hold_is_named(
    command: Callable, good: dict[str, str], tmp_path: Path
) -> None:
    number = Table("fruits", (Column("name", "INT"),), ((2**70,),))
    path = written(tmp_path / "t.jsonl", replace(QUESTION, id="odd", tables=(number,)))
    code, out = command("validate", path, "--database", "sqlite")
    assert code == 1
    assert re.match(r"odd: .*\n0 of 1 gold solutions score as correct\n", out)
    good["--tasks"] = str(path)
    code, out = command("eval", *(word for pair in good.items() for word in pair))
    assert code == 0
    assert re.search(r"status/environment_fault +100.0 %", out), "no fault of the agent"
    assert re.search(r"overall +0/0 = none judged \(1 void, 0.0 % with those counted wrong\)", out)
    assert re.search(r"void, most often +.+ \(1 of 1\)", out)


def test_void_episodes_stand_beside_the_accuracy() -> None:
    """5 of 20 are right, and the others void."""
    answered = Episode(QUESTION, [], Sampling(greedy=True), status=Status.ANSWERED, verdict=Verdict(True))
    failed = Episode(QUESTION, [], Sampling(greedy=True), fault="2003: cannot connect; waited for 60 s")
    evaluation = Evaluation([answered] * 5 + [failed] * 15)
    lines = [re.split(r"  +", line) for line in str(evaluation).splitlines()]
    assert lines[0] == ["overall", "5/5 = 100.0 % [56.6, 100.0] (15 void, 25.0 % with those counted wrong)"]
    assert lines[-2:] == [
        ["status/environment_fault", "75.0 %"],
        ["void, most often", "2003: cannot connect (15 of 15)"],
    ]
    said = json.loads(json.dumps(evaluation.to_dict()))
    assert (said["accuracy"]["accuracy"], said["accuracy"]["accuracy_void_wrong"]) == (1.0, 0.25)
    assert (said["counts"]["overall"], said["void"]["overall"]) == ([5, 5], 15)
    assert said["void_reasons"] == {"2003: cannot connect": 15}
    endpoint = EndpointEvaluation(evaluation.episodes, endpoint="m at http://localhost", planned=20)
    assert str(endpoint).startswith(str(evaluation))
    assert (so_far(5, 15), so_far(5, 0)) == ("5 right, 15 void", "5 right")


def test_why_a_program_failed_is_said() -> None:
    failed = Episode(QUESTION, [], Sampling(), status=Status.HARNESS_FAULT, fault="exit code 2")
    assert re.search(r"harness faults, most often +exit code 2 \(3 of 3\)", str(Evaluation([failed] * 3)))


def test_first_turns_that_cannot_be_read_are_counted_and_three_shown() -> None:
    """A base model that does not know the protocol: its user sees what it writes in its place."""

    def wrote(text: str, action: Action) -> Episode:
        turns = [Turn(Completion([], []), text, action)]
        return Episode(QUESTION, [], Sampling(greedy=True), turns=turns, status=Status.INVALID_ACTION)

    lost = Invalid("neither Action: Operation nor Action: Answer")
    unreadable = [wrote(f"To find fruit {number}, you can use SQL.\nSure!", lost) for number in range(4)]
    evaluation = Evaluation([*unreadable, wrote("Action: Answer\nFinal Answer: 3", Answer("3"))])
    shown = str(evaluation)
    assert re.search(r"^first turns unreadable +4 of 5$", shown, re.MULTILINE)
    assert shown.count("unreadable (neither Action: Operation nor Action: Answer):") == 3
    assert "    To find fruit 0, you can use SQL.\n    Sure!" in shown
    assert evaluation.to_dict()["unreadable_first_turns"] == 4
    cleared = str(Evaluation([wrote("\x1b[2Jcleared\x07\nSELECT 1", lost)]))
    assert "     [2Jcleared \n    SELECT 1" in cleared, "no terminal obeys what an agent wrote"


def test_from_a_shell(tmp_path: Path) -> None:
    """The installed command: output to stdout, one line of error to stderr, no traceback."""
    program = Path(sys.executable).with_name("trl-dbbench")
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path
        )

    fine = run("validate", written(tmp_path / "t.jsonl", QUESTION, CHANGE), "--database", "sqlite")
    assert (fine.returncode, fine.stdout) == (0, "2 of 2 gold solutions score as correct\n"), fine.stderr
    missing = run("validate", "gone.jsonl")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("error: no task file at 'gone.jsonl'.")
    assert missing.stderr.count("\n") == 1


def test_statuses_are_all_that_an_episode_can_end_in() -> None:
    assert list(map(str, Status)) == [
        "answered",
        "turn_limit",
        "invalid_action",
        "out_of_tokens",
        "server_crash",
        "environment_fault",
        "harness_fault",
    ]


def test_tables_that_no_database_can_make_are_a_problem_of_the_task(sqlite_database: Database) -> None:
    """A task with an answer and no SQL is checked too: all its episodes would be void."""
    table = Table("t", (Column("a", "VARCHAR(3)"),), (("abcdef",),))
    task = replace(QUESTION, tables=(table,), gold=Gold(answer=((1,),)))
    (validation,) = validate([task], sqlite_database)
    assert validation.problem is not None and "a" in validation.problem
