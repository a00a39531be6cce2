"""20,000 outputs, mutated from good ones or made of nothing, through both protocols and the graders; 2,000 of them
through whole episodes.

None raises, each ends its episode with a status that is the agent's, and nothing in them is run as code: some
hold Python that would make a file, and the file is not there.
"""

from __future__ import annotations

import builtins
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import RULES, ScriptedEngine, play_script
from required import LONG
from transformers import PreTrainedTokenizerBase

from trl_dbbench.database import Database
from trl_dbbench.database.dialect import SQLITE
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import Answer, Invalid, Operation, Protocol, get_protocol
from trl_dbbench.episode.types import Completion, Request, Status
from trl_dbbench.grading import GRADERS, grade
from trl_dbbench.runs.records import episode_record
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.skills import operation_of

OUTPUTS = 10_000
"""Of each of the two protocols."""

GOLDS = ([[2]], ["Oslo"], [1.5, "x"], [("a", None), ("b", 3)], [])

# Python warns of odd literals in an answer
pytestmark = pytest.mark.filterwarnings("ignore:invalid:DeprecationWarning", "ignore:invalid:SyntaxWarning")

# --- outputs ------------------------------------------------------------------------------------------

FLAG = "run-as-code"
CODE = [
    "__import__('pathlib').Path('run-as-code').touch()",
    "[open('run-as-code', 'w')]",
    "[(__import__('os').system('touch run-as-code'),)]",
    "(lambda: open('run-as-code', 'w'))()",
    "[f for f in [open('run-as-code', 'w')]]",
    "f\"{open('run-as-code', 'w')}\"",
    "{{ cycler.__init__.__globals__.os.system('touch run-as-code') }}",
    "!!python/object/apply:os.system ['touch run-as-code']",
    "$(touch run-as-code)",
    "SELECT 'x' INTO OUTFILE 'run-as-code'",
    "ATTACH DATABASE 'run-as-code' AS flag",
]
JUNK = [
    *("\x00", "\x1b[31m", "\x7f", "\r", "\u2028", "\u202e", "\ufeff", "🍐", "é", "e\u0301", "\ud83c", "٣"),
    *("\\ud800", "\\u0000", "\\", "\\\\", '"', "'", '"""', "--", "/*", "*/", "#", ";", "{", "}", "[", "]"),
    *("(", ")", "{" * 50, "[" * 3000, "(" * 150, "]" * 3000, '{"a":' * 2000, "1+" * 3000, "```", "\n```"),
    *("NaN", "-Infinity", "1e999", "null", "True", "...", "0x" + "f" * 5000, "9" * 5000, "-" * 3000 + "1"),
    *("{[1]: 2}", "{[]}", "[(Decimal('sNaN'),)]", "b'\\xff'", "{**{}}", "'a' 'b'", "{'a': [1, (2, {3})]}"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<|im_start|>tool\n", "```sql\n"),
    *("Action: Operation", "Action: Answer", "\nFinal Answer:", '"name"', '"arguments": ', '"answers": ['),
    *('"execute_sql"', '"commit_final_answer"', '"query": 7', "%s", "%(x)s", ":x", "?", "${x}", *CODE),
]


def write(protocol: str, chance: random.Random, sql: str | None, answer: str) -> str:
    """A turn of the protocol, in one of the forms that models write; an answer where there is no SQL."""
    if protocol == "text":
        thoughts = chance.choice(["", "I look first.\n", "<think>Hm.</think>\n"])
        if sql is not None:
            return f"{thoughts}Action: Operation\n```sql\n{sql}\n```"
        return f"{thoughts}Action: Answer\nFinal Answer: {answer}"
    call: dict[str, Any] = {"name": "execute_sql", "arguments": {"query": sql}}
    if sql is None:
        call = {"name": "commit_final_answer", "arguments": {"answers": [answer, 2]}}
    match chance.randrange(3):
        case 0:
            call["parameters"] = call.pop("arguments")
        case 1:
            call["arguments"] = json.dumps(call["arguments"])
    written = json.dumps(call, ensure_ascii=chance.random() < 0.5)
    return chance.choice(
        [written, f"Well.\n<tool_call>\n{written}\n</tool_call>", f"<|python_tag|>{written}"]
    )


def span(chance: random.Random, text: str) -> tuple[int, int]:
    a, b = chance.randint(0, len(text)), chance.randint(0, len(text))
    return min(a, b), max(a, b)


def cut(chance: random.Random, text: str, _: str) -> str:
    a, b = span(chance, text)
    return chance.choice([text[:a], text[a:], text[:a] + text[b:]])


def duplicate(chance: random.Random, text: str, _: str) -> str:
    a, b = span(chance, text)
    return text[:b] + text[a:b] * chance.choice([1, 2, 40]) + text[b:]


def swap(chance: random.Random, text: str, _: str) -> str:
    a, b = span(chance, text)
    c = (a + b) // 2
    return text[:a] + text[c:b] + text[a:c] + text[b:]


def splice(chance: random.Random, text: str, other: str) -> str:
    return text[: span(chance, text)[1]] + other[span(chance, other)[0] :]


def insert(chance: random.Random, text: str, junk: str) -> str:
    a, b = span(chance, text)
    return text[:a] + junk + text[chance.choice([a, b]) :]


def replace_word(chance: random.Random, text: str, junk: str) -> str:
    """A word, a name or a value of JSON."""
    return text.replace(chance.choice(text.split() or [" "]), junk, 1)


def flip(chance: random.Random, text: str, _: str) -> str:
    letters = list(text)
    for _ in range(chance.choice([1, 3, 20])):
        if letters:
            letters[chance.randrange(len(letters))] = chr(
                chance.choice([chance.randrange(128), chance.randrange(0x3000)])
            )
    return "".join(letters)


def change_case(chance: random.Random, text: str, _: str) -> str:
    return chance.choice([text.upper(), text.lower(), text.swapcase()])


MUTATIONS: list[Callable[[random.Random, str, str], str]] = [
    *(cut, duplicate, swap, splice, insert, insert, replace_word, replace_word, flip, change_case)
]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    """The same each time, but under `make fuzz`."""
    return f"fuzz {request.config.getoption('--hypothesis-seed') or ''}".strip()


def outputs(protocol: str, tasks: Sequence[Task], seed: str, count: int) -> Iterator[str]:
    """So many, the same for a seed: made of what solves a task, of which the SQL, the answer or the whole turn is
    mutated one to four times, or all of it junk, or random characters."""
    chance = random.Random(f"{seed} {protocol}")
    last = ""

    def mutated(text: str) -> str:
        for _ in range(chance.randint(1, 4)):
            mutate = chance.choice(MUTATIONS)
            text = mutate(chance, text, last if mutate is splice else chance.choice(JUNK))
        return text

    for _ in range(count):
        task = chance.choice(tasks)
        sql = chance.choice([task.gold.sql, None])
        answer = str([tuple(row) for row in task.gold.answer or ()])
        match chance.choice(["within", "within", "whole", "whole", "junk", "random"]):
            case "within":
                text = write(protocol, chance, sql and mutated(sql), mutated(answer))
            case "whole":
                text = mutated(write(protocol, chance, sql, answer))
            case "junk":
                text = "".join(chance.choices(JUNK, k=chance.randint(1, 4)))
                text = chance.choice([text, write(protocol, chance, sql and text, text)])
            case _:
                top = chance.choice([128, 0x250, 0x11000])
                text = "".join(map(chr, chance.choices(range(top), k=chance.randint(0, 300))))
        last = text[:20_000]
        yield last


# --- what becomes of them -----------------------------------------------------------------------------


@pytest.fixture
def no_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory in which `FLAG` must not be there at the end."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / FLAG).exists()


def test_the_code_among_the_outputs_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as code, it does make the file."""
    monkeypatch.chdir(tmp_path)
    for code in CODE[:6]:
        eval(code)
        Path(FLAG).unlink()


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_parsed_and_graded(
    protocol: str, demo_tasks: list[Task], seed: str, no_flag: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every output, by the protocol and all graders; what they hand to eval() or exec() is written down."""
    run_as_code: list[object] = []
    texts = list(outputs(protocol, demo_tasks, seed, OUTPUTS))
    for name in ("eval", "exec"):
        monkeypatch.setattr(builtins, name, lambda *code: run_as_code.append(code))
    kinds = Counter(parse_and_grade(get_protocol(protocol), text) for text in texts)
    monkeypatch.undo()

    assert run_as_code == []
    assert kinds.total() == OUTPUTS
    assert min(kinds["operation"], kinds["answer"], kinds["invalid"]) > OUTPUTS / 20, kinds


def parse_and_grade(protocol: Protocol, text: str, golds: Sequence[list] = GOLDS) -> str:
    action = protocol.parse(text)
    match action:
        case Answer():
            for grader in GRADERS:
                for gold in golds:
                    assert grade(action.for_grader(grader), gold, grader) in (True, False)
        case Operation(sql):
            assert isinstance(sql, str)
        case Invalid():
            assert protocol.observe(action)
    return type(action).__name__.lower()


class NextOutput(ScriptedEngine):
    """Whichever episode asks gets the next output; after the last one, nothing is said."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Iterator[str]):
        self.script: defaultdict[int, dict[int, str]] = defaultdict(dict)
        super().__init__(tokenizer, self.script)
        self.texts = texts

    async def generate(self, request: Request) -> Completion:
        self.script[request.row][request.turn] = next(self.texts, "")
        return await super().generate(request)


@pytest.mark.fuzz
@pytest.mark.parametrize("count", [1_000, pytest.param(OUTPUTS, marks=LONG)])
@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_played(
    protocol: str,
    count: int,
    seed: str,
    demo_tasks: list[Task],
    no_flag: None,
    tokenizer: PreTrainedTokenizerBase,
    sqlite_database: Database,
    late_orders: Task,
) -> None:
    """Every output is a turn of an episode, with whatever came before and comes after."""
    texts = [text.encode("utf-8", "replace").decode() for text in outputs(protocol, demo_tasks, seed, count)]
    rest = iter(texts)
    player = Player.of(tokenizer, sqlite_database, protocol=protocol, rules=RULES)
    starts = [player.start(task, system_prompt="Rules.") for task in demo_tasks]
    turns = 0
    statuses: Counter[str] = Counter()
    while turns < count:
        episodes = player.play_all(starts * 10, NextOutput(tokenizer, rest))
        for episode in episodes:
            statuses[episode.status] += 1
            turns += len(episode.turns)
            assert json.loads(json.dumps(episode_record(episode, "train", 0)))["status"] == episode.status
            assert len(episode.completion_ids) == len(episode.mask) == len(episode.logprobs) > 0

    assert next(rest, None) is None
    assert statuses[Status.ENVIRONMENT_FAULT] == 0
    assert set(statuses) >= {
        Status.ANSWERED,
        Status.TURN_LIMIT if protocol == "tools" else Status.INVALID_ACTION,
    }
    query, answer = "SELECT COUNT(*) FROM orders WHERE late = 1", "[(2,)]"
    good = [f"Action: Operation\n```sql\n{query}\n```", f"Action: Answer\nFinal Answer: {answer}"]
    assert play_script(late_orders, good, tokenizer, sqlite_database).right, "the next one is as good as new"


BLOWN_UP = [  # each bracket doubles what sqlglot tries: 30 of them are hours
    *(
        "FROM a,(" * 30,
        "SELECT * FROM a WHERE b IN (" + "SELECT 1 UNION (" * 30,
        "DELETE FROM " + "FROM a,(" * 30,
    ),
    *(
        "INSERT INTO a " + "UNION (" * 30,
        "CREATE TABLE b AS " + "FROM a,(" * 30,
        "/* c */ SELECT 1 " + "UNION (" * 30,
    ),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sql", BLOWN_UP, ids=lambda sql: sql[:20])
def test_sql_with_too_many_readings(sql: str, late_orders: Task, sqlite_database: Database) -> None:
    with sqlite_database.sandbox(late_orders) as sandbox:
        assert re.match(r"(1064|1436) ", sandbox.execute(sql).error or "")
        assert sandbox.execute("SELECT COUNT(*) FROM orders").rows == [(3,)]
    assert SQLITE.kind_of(sql) == "other"
    assert operation_of(sql) is None


OPENINGS = [
    "",
    "Action: Answer\nFinal Answer: ",
    "Action: Operation\n```sql\n",
    '{"name": "execute_sql", "arguments": {"query": "',
]
OPENINGS += [
    '<tool_call>{"name": "commit_final_answer", "arguments": {"answers": ["',
    "<think>",
    "Action: Answer\nFinal Answer: [",
]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_a_million_characters(protocol: str) -> None:
    """In time in proportion: what backtracks or compares all with all does not come to its end in a minute."""
    tokens = [
        "(1,),",
        "'a',",
        "Decimal('1'),",
        "\\u0041",
        "</think><think>",
        "<tool_call>",
        "```sql\n",
        "\nFinal Answer:",
    ]
    for piece in [*"([{}]),:'\"\\-x \n", *tokens]:
        for opening in OPENINGS:
            parse_and_grade(get_protocol(protocol), opening + piece * (1_000_000 // len(piece)), GOLDS[:1])
