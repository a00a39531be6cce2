"""Right episodes of other tasks as earlier turns of the prompt: which ones, as which tokens, and again after a kill."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from examples import examples
from families import FAMILIES, give
from forking import Forked
from hypothesis import given
from hypothesis import strategies as st
from launching import QUICKSTART, RECIPE, ROOT, TWO_RANKS, fork_ranks, run_here, seen
from safetensors.torch import load_file
from test_rollout import call
from training import RECIPES, episodes_in, equal, quickstart_trainer, train_and_look, varied
from transformers import AutoTokenizer

from trl_dbbench import ConfigError, DBBenchGRPOConfig, Player, Rules, Task, get_protocol, load_tasks
from trl_dbbench.data.demonstrations import demonstrate
from trl_dbbench.evaluation.evaluate import memory_of
from trl_dbbench.runs.conversations import prompt_messages, protocol_of, saved_episodes
from trl_dbbench.runs.few_shot import (
    Memory,
    Shots,
    _check_not_its_own,
    good_episodes,
    load_memory,
)
from trl_dbbench.runs.few_shot.choice import BM25
from trl_dbbench.runs.few_shot.memory import Example
from trl_dbbench.runs.records import PHASES
from trl_dbbench.runs.replay import replay
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.tasks import Column, Gold, Table
from trl_dbbench.utils.files import whole_lines

TINY = RECIPES / "tiny"
PROMPT = "Work on the MySQL database."


@pytest.fixture(scope="module")
def tiny_tokenizer():
    return AutoTokenizer.from_pretrained(TINY / "model")


@pytest.fixture(scope="module")
def trained_tasks() -> list[Task]:
    return load_tasks(TINY / "train.jsonl")[:40]


@pytest.fixture(scope="module")
def player(tiny_tokenizer, sqlite_database) -> Player:
    return Player.of(tiny_tokenizer, sqlite_database)


@pytest.fixture(scope="module")
def memory(player, trained_tasks, sqlite_database) -> Memory:
    """Of the first 20 tasks, by a teacher that makes no mistakes."""
    return good_episodes(demonstrate(trained_tasks[:20], player.chat, sqlite_database))


@pytest.fixture(scope="module")
def memory_file(memory, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "memory.jsonl"
    memory.write(path)
    return path


@pytest.fixture(scope="module")
def small_file(memory, tmp_path_factory) -> Path:
    """A memory of three episodes."""
    path = tmp_path_factory.mktemp("memory") / "small.jsonl"
    Memory([*memory][:3]).write(path)
    return path


def task(
    id: str, question: str, *, table: str = "orders", rows=((1, 0), (2, 1)), sql: str | None = None
) -> Task:
    """`task("a", "How many?")`, whose gold SQL nobody else's is unless it is named."""
    entry = {
        "id": id,
        "question": question,
        "tables": [
            {"name": table, "columns": [{"name": "id"}, {"name": "late"}], "rows": [*map(list, rows)]}
        ],
        "answer": [["2"]],
        "sql": sql or f"SELECT '{id}' FROM {table}",
    }
    return Task.from_json(json.dumps(entry))


def example(task: Task, *turns: tuple[str, str | None], phase: str = "train") -> Example:
    said = turns or (
        ("Action: Operation\n```sql\nSELECT 1\n```", "[(1,)]"),
        ("Action: Answer\nFinal Answer: 1", None),
    )
    record = {"turns": [{"text": text, "observation": observation} for text, observation in said]}
    return Example.of(record, task)


def shown_for(shots: Shots, asked: Task, round: int = 0) -> list[str]:
    """The ids of the tasks whose episodes stand in the prompt, in its order."""
    ((_, ids),) = shots.show([asked], [shots.player.chat.protocol.messages(asked)], round)
    names = {each.id: each.task.id for each in shots.memory}
    return [names[id] for id in ids]


# --- the prompt -----------------------------------------------------------------------------------


def test_a_prompt_with_an_earlier_episode(player, late_orders):
    earlier = example(
        task("a", "Which orders are late?"),
        ("Late ones.\nAction: Operation\n```sql\nSELECT id FROM orders WHERE late\n```", "[('2',)]"),
        ("Action: Answer\nFinal Answer: [('2',)]", None),
    )
    shots = Shots(player, Memory([earlier]), 1)
    ((messages, ids),) = shots.show([late_orders], [player.chat.protocol.messages(late_orders, "Rules.")], 0)

    assert ids == [earlier.id]
    assert messages == [
        {"role": "system", "content": "Rules."},
        {
            "role": "user",
            "content": "Which orders are late?\nThe table is named orders and has these columns: id, late",
        },
        {
            "role": "assistant",
            "content": "Late ones.\nAction: Operation\n```sql\nSELECT id FROM orders WHERE late\n```",
        },
        {"role": "user", "content": "[('2',)]"},
        {"role": "assistant", "content": "Action: Answer\nFinal Answer: [('2',)]"},
        {
            "role": "user",
            "content": "How many orders were late?\nThe table is named orders and has these columns: id, late",
        },
    ]


def test_an_earlier_episode_shows_the_rows_that_its_own_prompt_had():
    table = Table("t", (Column("x", "INT"),), ((1,), (2,), (3,), (4,)))
    gold = Gold(answer=((4,),), sql="SELECT COUNT(*) FROM t")
    asked = Task("a", "How many?", (table,), "SELECT", gold, schema="full")
    earlier = Example.from_line(example(asked).line)
    assert earlier.task.tables[0].rows == ((1,), (2,), (3,))
    assert earlier.task.prompt() == asked.prompt()
    assert asked.prompt().endswith("/* The first rows of t:\n1\n2\n3 */")
    assert example(replace(asked, schema="names")).task.tables[0].rows == ()


def test_its_tokens_are_those_of_the_episode(player, trained_tasks, sqlite_database):
    """In the text protocol the prompt goes on from the very ids that the earlier episode was made of."""
    (earlier,) = demonstrate(trained_tasks[:1], player.chat, sqlite_database, system_prompt=PROMPT)
    shots = Shots(player, good_episodes([earlier]), 1)
    asked = trained_tasks[30]
    ((messages, _),) = shots.show([asked], [player.chat.protocol.messages(asked, PROMPT)], 0)
    ids = player.chat.prompt_ids(messages)

    played = [*earlier.prompt_ids, *earlier.completion_ids]
    assert ids[: len(played)] == played
    assert player.chat.tokenizer.decode(ids[len(played) :]) == (
        f"\n<|im_start|>user\n{asked.prompt()}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_messages_have_no_thoughts_as_the_prompt_has_none(player, late_orders):
    """Exports, reward functions and reports read the messages, the policy their tokens."""
    look = "Action: Operation\n```sql\nSELECT id FROM orders WHERE late\n```"
    turns = [
        (f"<think>\nThe late ones.\n</think>\n\n{look}", "[('2',)]"),
        ("<think>\nJust one.\n</think>\n\nAction: Answer\nFinal Answer: 2", None),
    ]
    shots = Shots(player, Memory([example(task("a", "Which orders are late?"), *turns)]), 1)
    ((messages, _),) = shots.show([late_orders], [player.chat.protocol.messages(late_orders, "Rules.")], 0)
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    assert said == [look, "Action: Answer\nFinal Answer: 2"]
    tokenizer = player.chat.tokenizer
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == tokenizer.decode(player.chat.prompt_ids(messages))


def test_tool_calls_stand_in_the_form_of_the_template(tokenizer, sqlite_database, demo_tasks):
    """Marks in what the agent wrote are text in an observation, and here a call again. Cells stay data."""
    player = Player.of(tokenizer, sqlite_database, protocol="tools")
    call = (
        '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT \'<|im_end|>\'"}}\n</tool_call>'
    )
    answer = '<tool_call>\n{"name": "commit_final_answer", "arguments": {"answers": ["1"]}}\n</tool_call>'
    earlier = example(
        task("a", "Which?"), (f"<think>Hm.</think>\n\nI look. {call}", "[('<|im_end|>',)]"), (answer, None)
    )
    shots = Shots(player, Memory([earlier]), 1)
    ((messages, _),) = shots.show(demo_tasks[:1], [player.chat.protocol.messages(demo_tasks[0], "Rules.")], 0)

    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    text = tokenizer.decode(player.chat.prompt_ids(messages))
    assert text.partition("Which?\n")[2].startswith(
        "The table is named orders and has these columns: id, late<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT \'< |im_end|>\'"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n[('< |im_end|>',)]<|im_end|>\n<|im_start|>assistant\n"
        f"{answer}<|im_end|>\n<|im_start|>user\n"
    )


def test_messages_have_calls_alone_as_the_prompt_has(tokenizer, sqlite_database, demo_tasks):
    """Words before a call and after it are not shown to the policy, and not exported."""
    player = Player.of(tokenizer, sqlite_database, protocol="tools")
    look, end = call("execute_sql", query="SELECT 1"), call("commit_final_answer", answers=["1"])
    turns = [(f"<think>Hm.</think>\n\nI look. {look} So be it.", "[(1,)]"), (f"It is 1.\n{end}", None)]
    shots = Shots(player, Memory([example(task("a", "Which?"), *turns)]), 1)
    ((messages, _),) = shots.show(demo_tasks[:1], [player.chat.protocol.messages(demo_tasks[0])], 0)
    assert [message["content"] for message in messages if message["role"] == "assistant"] == [look, end]
    text = tokenizer.apply_chat_template(
        messages, tools=player.chat.protocol.tools, tokenize=False, add_generation_prompt=True
    )
    assert text == tokenizer.decode(player.chat.prompt_ids(messages))


def test_a_template_that_leaves_earlier_turns_out_is_refused(tiny_tokenizer, sqlite_database, memory):
    template = (
        "{% for m in messages %}{% if m.role != 'assistant' or loop.last or 'Answer' not in m.content %}"
    )
    template += "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    forgetful = AutoTokenizer.from_pretrained(TINY / "model")
    forgetful.chat_template = template
    player = Player.of(forgetful, sqlite_database)
    with pytest.raises(ConfigError, match=r"leaves out turns of earlier episodes.*Or leave few_shot out"):
        Shots(player, memory, 1)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_every_template_that_can_be_used_shows_earlier_episodes(protocol, trained_tasks, sqlite_database):
    """In the order of the episode, with statements and answers that are read again as what they were."""
    usable = []
    for name, family in FAMILIES.items():
        tokenizer = AutoTokenizer.from_pretrained(TINY / "model")
        try:
            player = Player.of(
                tokenizer, sqlite_database, protocol=protocol, eos_token_ids=give(tokenizer, family)
            )
        except ConfigError:
            continue
        usable.append(name)
        earlier, asked = trained_tasks[0], trained_tasks[30]
        memory = good_episodes(demonstrate([earlier], player.chat, sqlite_database))
        ((messages, ids),) = Shots(player, memory, 1).show([asked], [player.chat.protocol.messages(asked)], 0)
        assert len(ids) == 1, name
        text = tokenizer.decode(player.chat.prompt_ids(messages))
        places = [text.find(part) for part in (earlier.question, str(earlier.gold.sql), "72", asked.question)]
        assert places == sorted(places) and -1 not in places, (name, text)
    assert len(usable) >= (40 if protocol == "text" else 25)


# --- which are shown ------------------------------------------------------------------------------

words = st.lists(st.sampled_from("abcdef"), max_size=8)


@examples()
@given(st.lists(words, min_size=1, max_size=6), words)
def test_bm25_is_its_formula(documents, query):
    found = BM25(documents).scores(query)
    mean = sum(map(len, documents)) / len(documents)
    for words, score in zip(documents, found, strict=True):
        expected = 0.0
        for word in set(query):
            with_it, count = sum(word in each for each in documents), Counter(words)[word]
            if count:
                rarity = math.log(1 + (len(documents) - with_it + 0.5) / (with_it + 0.5))
                expected += rarity * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(words) / mean))
        assert score == pytest.approx(expected)


def test_bm25_by_hand():
    """Of four documents of one word each, one has a: ln(1 + 3.5 / 1.5) times 2.2 / 2.2; two have b: ln 2."""
    scores = BM25([["a"], ["b"], ["b"], ["c"]]).scores(["a", "b", "b", "z"])
    assert scores.tolist() == pytest.approx([math.log(1 + 3.5 / 1.5), math.log(2), math.log(2), 0])


def test_the_most_similar_one_stands_beside_the_question(player):
    asked = task("asked", "How many orders were overdue?")
    memory = Memory(
        example(each)
        for each in (
            task("birds", "Which bird sings?", table="birds"),
            task("overdue", "Which orders were overdue?"),
            task("paid", "Which orders were paid?"),
        )
    )
    assert shown_for(Shots(player, memory, 2, "bm25"), asked) == ["paid", "overdue"]
    assert shown_for(Shots(player, memory, 3, "bm25"), asked) == ["birds", "paid", "overdue"]


def test_by_skills(player):
    counting = task("a", "How many?", sql="SELECT COUNT(*) FROM orders WHERE late = 1")
    memory = Memory(
        [
            example(task("delete", "Drop them.", sql="DELETE FROM orders WHERE late = 1")),
            example(task("where", "Which?", sql="SELECT id FROM orders WHERE late = 2")),
            example(task("select", "All.", sql="SELECT id FROM orders")),
        ]
    )
    assert [sorted(each.query.skills) for each in memory] == [
        ["delete", "where_single_condition"],
        ["select", "where_single_condition"],
        ["select"],
    ]
    # of two skills: one of three in common, both, one of two
    assert shown_for(Shots(player, memory, 3, "skill"), counting) == ["delete", "select", "where"]


def test_the_latest(player):
    """As LifelongAgentBench's experience replay; one that is right again comes last."""
    a, b, c = (task(name, f"{name}?", sql=f"SELECT '{name}'") for name in "abc")
    memory = Memory(map(example, (a, b, c)))
    asked = task("asked", "Which?", table="birds")
    assert shown_for(Shots(player, memory, 2, "latest"), asked) == ["b", "c"]
    memory.add(example(a))
    assert shown_for(Shots(player, memory, 2, "latest"), asked) == ["c", "a"]


def test_at_random_by_seed_round_and_task(player, memory, trained_tasks):
    def draws(seed: int = 0, round: int = 0, asked: Task = trained_tasks[30]) -> list[str]:
        return shown_for(Shots(player, memory, 3, "random", seed=seed), asked, round)

    assert draws() == draws()
    different = [draws(), draws(seed=1), draws(round=1), draws(asked=trained_tasks[31])]
    assert len({tuple(each) for each in different}) == 4
    counts = Counter(id for round in range(200) for id in draws(round=round))
    assert len(counts) == 20 and min(counts.values()) > 10, "600 draws of 20"


TWINS = {
    "itself": None,
    "another id and other rows": ("How many orders were late?", "SELECT COUNT(*) FROM orders WHERE late = 1"),
    "another solution": (" How many  ORDERS were late?", "SELECT SUM(late) FROM orders"),
    "other words": ("Count the late orders.", "select count(*) from orders where late = 1;"),
}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("by", ["bm25", "skill", "latest", "random"])
def test_a_task_never_sees_itself_or_its_twin(player, late_orders, by, twin):
    stranger = task("stranger", "How many orders were late?", table="invoices")
    same = late_orders
    if TWINS[twin] is not None:
        question, sql = TWINS[twin]
        same = task("twin", question, rows=[(5, 1)], sql=sql)
    memory = Memory(map(example, (same, stranger)))
    assert shown_for(Shots(player, memory, 2, by), late_orders) == ["stranger"]
    assert shown_for(Shots(player, memory, 2, by), task("other", "Which?", table="birds")) != ["stranger"]


@examples(30)
@given(st.integers(0, 39), st.sampled_from(["bm25", "skill", "latest", "random"]), st.integers(0, 1000))
def test_no_prompt_holds_its_own_gold_sql(player, memory, trained_tasks, number, by, round):
    asked = trained_tasks[number]
    ((messages, ids),) = Shots(player, memory, 5, by).show(
        [asked], [player.chat.protocol.messages(asked)], round
    )
    assert len(ids) == len(set(ids)) == 5
    for message in messages[:-1]:
        if message["role"] == "user":
            assert message["content"] != asked.prompt()
        if f"\n{asked.gold.sql}\n" in message["content"]:  # then it is of other tables
            schema = asked.prompt().partition("\n")[2]
            before = messages[messages.index(message) - 1]["content"]
            assert schema not in before


# --- the memory -----------------------------------------------------------------------------------


def test_a_memory_has_the_last_right_episode_of_each_task():
    a, b, c = (task(name, f"{name}?") for name in "abc")
    memory = Memory(map(example, (a, b)), capacity=2)
    newer = example(a, ("Action: Answer\nFinal Answer: 2", None))
    memory.add(newer)
    assert [each.task.id for each in memory] == ["b", "a"]
    assert [*memory][1] is newer
    memory.add(example(c))
    assert [each.task.id for each in memory] == ["a", "c"], "b was right least recently"

    again = Memory(capacity=2)
    again.load_state_dict(json.loads(json.dumps(memory.state_dict())))
    assert [each.id for each in again] == [each.id for each in memory]
    assert [*again] == [*memory]


def test_a_file_and_what_is_read_of_it(memory, memory_file, player):
    read = load_memory(memory_file, player.chat.protocol)
    assert [*read] == [*memory]
    line = json.loads(memory_file.read_text().splitlines()[0])
    assert line["task"]["tables"][0]["rows"] == [], "no prompt shows rows"
    assert [each["text"] for each in line["turns"]] == [
        "Action: Operation\n```sql\nSELECT SUM(wins) FROM teams\n```",
        "Action: Answer\nFinal Answer: [(72,)]",
    ]


def test_files_that_show_nothing_are_refused(memory_file, tmp_path):
    with pytest.raises(
        ConfigError, match=r"few_shot_memory: '.*nowhere' is not there. Give a run's output_dir"
    ):
        load_memory(tmp_path / "nowhere", get_protocol("text"))
    with pytest.raises(
        ConfigError, match="its 20 right episodes have turns that the protocol 'tools' does not read"
    ):
        load_memory(memory_file, get_protocol("tools"))
    wrong, held_out = tmp_path / "wrong.jsonl", tmp_path / "held_out.jsonl"
    wrong.write_text(memory_file.read_text().replace('"right": true', '"right": false'))
    held_out.write_text(memory_file.read_text().replace('"phase": "train"', '"phase": "eval"'))
    for file in (wrong, held_out):
        with pytest.raises(ConfigError, match="can be shown: it has no right episode of a training task"):
            load_memory(file, get_protocol("text"))
    cut = tmp_path / "cut.jsonl"
    cut.write_text(memory_file.read_text()[:-100])
    assert len(load_memory(cut, get_protocol("text"))) == 19


def test_a_file_that_an_editor_of_windows_has_saved(memory_file, tmp_path):
    """With a mark at its begin, and with its line ends."""
    text = memory_file.read_text().replace("\n", "\r\n")
    (tmp_path / "memory.jsonl").write_text(text, encoding="utf-8-sig", newline="")
    assert len(load_memory(tmp_path / "memory.jsonl", get_protocol("text"))) == 20


def test_a_line_without_its_texts_is_left_out(memory_file, tmp_path):
    lines = memory_file.read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"turns": [{"observation": "[(1,)]"}]})
    (tmp_path / "memory.jsonl").write_text("\n".join(lines))
    assert len(load_memory(tmp_path / "memory.jsonl", get_protocol("text"))) == len(lines) - 1


@pytest.mark.parametrize("name", ["", "episodes.jsonl"])
def test_a_run_cannot_show_the_log_that_it_replaces(name, tmp_path):
    """When it begins it sets that aside, and a resumed run would read its own."""
    with pytest.raises(ConfigError, match="is output_dir, whose episodes this run replaces by its own"):
        _check_not_its_own(str(tmp_path / name), str(tmp_path))
    _check_not_its_own(str(tmp_path / "memory.jsonl"), str(tmp_path))


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"few_shot": 2}, "few_shot: 2 has nothing to show: name past episodes with few_shot_memory, or let"),
        ({"few_shot": -1}, "few_shot must be 0 or more, is -1"),
        ({"few_shot_memory": "runs/a"}, "few_shot_memory is used only with few_shot above 0"),
        ({"few_shot_update": True}, "few_shot_update is used only with few_shot above 0"),
        (
            {"few_shot": 1, "few_shot_by": "bm26"},
            "unknown few_shot_by 'bm26'; allowed: bm25, skill, latest, random",
        ),
    ],
)
def test_settings_that_stand_against_each_other(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as error:
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)
    assert "\n" not in str(error.value)


# --- room -----------------------------------------------------------------------------------------


def with_room(player: Player, room: int) -> Player:
    return replace(player, rules=Rules(max_completion_length=100, context=room + 100))


def test_where_not_all_fit_fewer_are_shown_and_none_is_cut(player, memory, trained_tasks, caplog):
    asked = trained_tasks[30]
    prompt = player.chat.protocol.messages(asked, PROMPT)
    ((_, all_three),) = Shots(player, memory, 3).show([asked], [prompt], 0)
    lengths = []
    for number in range(4):
        ((messages, _),) = Shots(player, memory, number).show([asked], [prompt], 0)
        lengths.append(len(player.chat.prompt_ids(messages)))
    assert lengths == sorted(set(lengths))

    for number in (3, 2, 1, 0):
        for room in (lengths[number], lengths[number] + 1):
            shots = Shots(with_room(player, room), memory, 3)
            ((messages, ids),) = shots.show([asked], [prompt], 0)
            assert ids == all_three[3 - number :], "the least similar ones go first"
            assert len(player.chat.prompt_ids(messages)) == lengths[number]
    shots.show([asked], [prompt], 1)
    told = [each for each in caplog.records if each.message.startswith("Not all prompts have room for 3")]
    assert len(told) == 6, "once each"


def test_no_room_for_any_is_refused(player, memory, trained_tasks):
    prompts = [player.chat.protocol.messages(each, PROMPT) for each in trained_tasks]
    with pytest.raises(
        ConfigError,
        match=r"the shortest prompt with one earlier episode has \d+ tokens, and there is room for 60: the model's "
        r"context of 160 less max_completion_length \(100\). Lower that, or take",
    ):
        Shots(with_room(player, 60), memory, 1).check_room(prompts)
    with pytest.raises(
        ConfigError, match=r"the shortest prompt alone has \d+ tokens, and there is room for 20"
    ):
        Shots(with_room(player, 20), Memory(), 1, update=True).check_room(prompts)
    Shots(with_room(player, 150), memory, 1).check_room(prompts)


def test_what_was_shown_is_written_again_once_its_file_is_set_aside(player, memory, late_orders, tmp_path):
    """As where a trainer evaluates, and then begins a training in the folder."""
    shots = Shots(player, memory, 1, folder=tmp_path)
    shown_for(shots, late_orders)
    (line,) = shots.drawn().values()
    for folder in ("evaluated", "trained"):
        shots.record([{"shots": [*shots.drawn()]}], [], train=False)
        shutil.move(tmp_path / "shots.jsonl", tmp_path / folder)
        assert (tmp_path / folder).read_text() == f"{line}\n"


# --- in a training --------------------------------------------------------------------------------

REPLAY = {"few_shot": 2, "few_shot_update": True, "num_generations": 4, "per_device_train_batch_size": 8}
# the quickstart's model has never seen an earlier episode in a prompt, and gets next to nothing right with one
REPLAY |= {"grader": "training.any_answer"}


@pytest.fixture(scope="module")
def unbroken(sqlite_database, small_file, tmp_path_factory):
    """A run whose memory begins with three episodes and grows."""
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    trainer = quickstart_trainer(sqlite_database, folder, **growing(small_file))
    trainer.train()
    return trainer


def prompt_ids(batch) -> list[tuple[int, ...]]:
    rows = zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)
    return [tuple(ids[mask.bool()].tolist()) for ids, mask in rows]


def growing(memory_file: Path) -> dict:
    """Of five steps, the first, third and fifth begin with a generation."""
    return {
        **REPLAY,
        "only": "SELECT",
        "few_shot": 3,
        "few_shot_by": "random",
        "few_shot_memory": str(memory_file),
        "per_device_train_batch_size": 4,
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 1,
        "max_steps": 5,
        "more_rewards": [varied],
        "save_strategy": "steps",
        "save_steps": 1,
    }


def test_all_samples_of_a_prompt_and_its_greedy_run_see_the_same(sqlite_database, memory_file, tmp_path):
    seen_by_rewards = []

    def look(prompts, shots, **kwargs):
        seen_by_rewards.extend(zip(map(str, prompts), map(str, shots), strict=True))
        return [0.0] * len(prompts)

    settings = {**REPLAY, "few_shot_memory": str(memory_file), "few_shot_update": False}
    trainer = quickstart_trainer(
        sqlite_database, tmp_path, **settings, few_shot_by="random", max_steps=2, more_rewards=[look]
    )
    prompts = train_and_look(trainer, prompt_ids)

    played = episodes_in(tmp_path)
    for step in (0, 1):
        by_task: dict[str, list] = {}
        for episode in (e for e in played if e["step"] == step):
            by_task.setdefault(episode["task_id"], []).append(episode)
        assert len(by_task) == 2
        for group in by_task.values():
            assert Counter(e["phase"] for e in group) == {"greedy": 1, "train": 4}
            assert {len(e["shots"]) for e in group} == {2}
            assert len({(*e["shots"], e["prompt_tokens"]) for e in group}) == 1
    assert len({tuple(e["shots"]) for e in played}) == 4, "two prompts, two steps"
    trained = {ids for step in prompts for ids in step}
    assert len(trained) == 4
    assert {len(ids) for ids in trained} == {e["prompt_tokens"] for e in played}
    assert len(set(seen_by_rewards)) == 4, "reward functions get the prompts with the examples"
    assert all("assistant" in prompt for prompt, _ in seen_by_rewards)
    assert [entry["few_shot/shown"] for entry in trainer.state.log_history if "loss" in entry] == [2.0, 2.0]


@pytest.mark.slow
def test_a_runs_folder_tells_every_prompt(unbroken):
    """Rebuilt from episodes.jsonl, tasks.jsonl and shots.jsonl, token by token."""
    settings = RunSettings.of_file(Path(unbroken.args.output_dir) / "run.json")
    saved = [*saved_episodes(unbroken.args.output_dir, [], [*PHASES])]
    assert len(saved) == len(episodes_in(unbroken.args.output_dir)) > 0
    for record, task in saved:
        messages = prompt_messages(record, task, settings)
        assert len(record["shots"]) == 3
        assert len(unbroken.player.chat.prompt_ids(messages)) == record["prompt_tokens"]


def test_right_episodes_join_and_are_shown(unbroken, small_file):
    """The memory is what the log says: the file's, then the sampled right episodes, the last one of each task."""
    run = Path(unbroken.args.output_dir)
    assert unbroken.stateful["few_shot"] == unbroken.chooser.shots.memory
    expected, steps = load_memory(small_file, get_protocol("text")), Counter()
    tasks = {task.digest: task for task in load_tasks(run / "tasks.jsonl")}
    of_file = {example.id for example in expected}
    right_before: dict[str, int] = dict.fromkeys(of_file, -1)  # id -> the step of its episode
    for episode in episodes_in(run):
        assert all(right_before[id] < episode["step"] for id in episode["shots"])
        steps[episode["step"]] += len({*episode["shots"]} - of_file)
        if episode["right"] and episode["phase"] == "train":
            joined = Example.of(episode, tasks[episode["task_digest"]])
            if joined.readable(unbroken.player.chat.protocol):
                expected.add(joined)
                right_before.setdefault(joined.id, episode["step"])
    assert [each.id for each in unbroken.chooser.shots.memory] == [each.id for each in expected]
    assert steps[0] == 0 < steps[2] <= steps[4], "episodes of the run itself are shown"
    sizes = [entry["few_shot/memory"] for entry in unbroken.state.log_history if "few_shot/memory" in entry]
    assert 3 < sizes[0] <= sizes[-1] == len(expected)


@pytest.mark.slow
def test_a_killed_run_goes_on_exactly(unbroken, sqlite_database, small_file, tmp_path):
    """From checkpoints within a generation and at its end: the same memory, the same prompts, the same weights."""
    run = Path(unbroken.args.output_dir)
    for step in (1, 2, 3):
        folder = tmp_path / str(step)
        folder.mkdir()
        shutil.copytree(run / f"checkpoint-{step}", folder / f"checkpoint-{step}")
        for name in ("episodes.jsonl", "tasks.jsonl", "shots.jsonl"):
            shutil.copy(run / name, folder)
        (folder / "shots.jsonl").write_text((run / "shots.jsonl").read_text()[:-50])  # cut within a line

        resumed = quickstart_trainer(sqlite_database, folder, **growing(small_file))
        resumed.train(resume_from_checkpoint=True)
        assert [e.id for e in resumed.chooser.shots.memory] == [
            e.id for e in unbroken.chooser.shots.memory
        ], step
        assert shown_in(folder) == shown_in(run), step
        assert equal(weights(resumed), weights(unbroken)), step
        lines = (folder / "shots.jsonl").read_text().splitlines()
        assert {*lines} == {*(run / "shots.jsonl").read_text().splitlines()}
        assert len(lines) == len({*lines})


def weights(trainer) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in trainer.model.named_parameters()}


def shown_in(run: Path) -> list[tuple]:
    return [
        (e["step"], e["phase"], e["task_id"], e["shots"], [t["text"] for t in e["turns"]])
        for e in episodes_in(run)
    ]


def test_a_run_with_shots_is_replayed(unbroken, sqlite_database):
    replayed = [*replay(unbroken.args.output_dir, sqlite_database, progress=False)]
    assert len(replayed) == len(episodes_in(unbroken.args.output_dir))
    assert [each for each in replayed if each.differences] == []
    assert all([*each.episode.shots] == each.saved["shots"] for each in replayed)
    for each, saved in zip(replayed, episodes_in(unbroken.args.output_dir), strict=True):
        written = json.loads(json.dumps(each.to_dict()))
        assert {**written, "rewards": saved["rewards"], "advantage": saved["advantage"]} == {
            **saved,
            "saved_rewards": saved["rewards"],
            "saved_advantage": saved["advantage"],
        }


@pytest.mark.slow
def test_two_ranks_draw_the_same(small_file, tmp_path):
    """A group's samples lie on both ranks and have one prompt; what is right on either joins both memories."""
    shutil.copy(small_file, tmp_path / "memory.jsonl")
    status, output = fork_ranks(TWO_RANKS, "few_shot", "none", tmp_path)
    assert status == 0, output

    first, second = seen(tmp_path, "few_shot")
    assert first == second
    played = [e for e in episodes_in(tmp_path / "few_shot") if e["phase"] == "train"]
    assert [len({(e["task_id"], *e["shots"]) for e in played if e["step"] == step}) for step in (0, 1)] == [
        1,
        1,
    ]
    assert [len(e["shots"]) for e in played] == [3] * 8
    right_on = {place % 4 // 2 for place, e in enumerate(played) if e["right"]}
    assert right_on == {0, 1}, "episodes of both ranks"
    assert len(first["memory"]) > 3


# --- from a YAML, with kills ----------------------------------------------------------------------


def recipe_yaml(folder: Path, memory_file: Path, **more) -> Path:
    """The quickstart in small, with a memory that grows: all that is asked for stands in the YAML."""
    lines = (TINY / "train.jsonl").read_text().splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(line for line in lines if '"operation": "SELECT"' in line))
    (folder / "eval.jsonl").write_text("".join((TINY / "test.jsonl").open().readlines()[:4]))
    settings = yaml.safe_load(QUICKSTART.read_text()) | {
        "model_name_or_path": str(TINY / "model"),
        "few_shot": 3,
        "few_shot_memory": str(memory_file),
        "few_shot_update": True,
        "tasks": str(folder / "train.jsonl"),
        "eval_tasks": str(folder / "eval.jsonl"),
        "grader": "training.any_answer",
        "reward_funcs": ["training.varied"],
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "eval_steps": 1,
        "save_steps": 1,
        "disable_tqdm": True,
    }
    (folder / "few_shot.yaml").write_text(yaml.safe_dump(settings | more))
    return folder / "few_shot.yaml"


@pytest.mark.slow
def test_a_recipe_that_is_killed_ends_with_the_same_adapter(small_file, tmp_path):
    """From a YAML to an adapter; SIGKILL when the second step's episodes have been written."""
    config = recipe_yaml(tmp_path, small_file, max_steps=3, resume_from_checkpoint=True)

    def start(run: Path) -> Forked:
        command = [sys.executable, str(RECIPE), "--config", str(config), "--output_dir", str(run)]
        return Forked(command, cwd=Path(__file__).parents[1])  # where the rewards and the grader are

    def steps_in(run: Path) -> int:
        """Of the last sampled episode in the log."""
        lines = whole_lines(run / "episodes.jsonl")
        return max((e["step"] for e in map(json.loads, lines) if e["phase"] == "train"), default=-1)

    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    assert start(unbroken).wait(timeout=200) == 0
    process = start(killed)
    while steps_in(killed) < 1 and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert (killed / "checkpoint-1").exists() and not (killed / "checkpoint-3").exists()
    assert start(killed).wait(timeout=200) == 0

    assert equal(*(load_file(run / "adapter_model.safetensors") for run in (killed, unbroken)))
    assert shown_in(killed) == shown_in(unbroken)
    states = [torch.load(run / "checkpoint-3" / "states.pt") for run in (killed, unbroken)]
    assert states[0] == states[1]
    assert len(states[0]["few_shot"]["examples"]) > 3


# --- in an evaluation -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter_run(small_file, tmp_path_factory) -> Path:
    """A LoRA run whose memory grew, with held-out evaluations after each of its two updates."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        config = recipe_yaml(folder, small_file, max_steps=2, output_dir=str(folder / "run"))
        run_here(patch, RECIPE, "--config", config)
    return folder / "run"


@pytest.mark.slow
def test_an_evaluation_of_a_run_shows_what_the_run_showed(adapter_run, command, tmp_path):
    """Its held-out tasks come out as in its own last evaluation: same shots, same words; also from a checkpoint."""
    for place, step in ((adapter_run, 2), (adapter_run / "checkpoint-1", 1)):
        code, out = command("eval", place, "--json", tmp_path / "eval.json")
        assert code in (0, None), out
        assert "few_shot 3" in out
        said = json.loads((tmp_path / "eval.json").read_text())
        held_out = [e for e in episodes_in(adapter_run) if (e["phase"], e["step"]) == ("eval", step)]
        assert [by_words(e) for e in said["episodes"]] == [by_words(e) for e in held_out]
        shown = {id for e in said["episodes"] for id in e["shots"]}
        assert shown <= {each["id"] for each in said["shots"]}


def test_a_merged_model_and_samples_keep_the_memory_that_the_run_had(adapter_run, command, tmp_path):
    merged, samples, tasks = tmp_path / "merged", tmp_path / "samples", tmp_path / "tasks.jsonl"
    tasks.write_text("".join((TINY / "train.jsonl").open().readlines()[-2:]))
    assert command("merge", "--adapter", adapter_run / "checkpoint-1", "--out", merged)[0] in (0, None)
    assert command("sample", "--adapter", adapter_run, "--tasks", tasks, "--n", 1, "--out", samples)[0] in (
        0,
        None,
    )
    for place, run in ((merged, adapter_run / "checkpoint-1"), (samples, adapter_run)):
        settings, trained = RunSettings.of_file(place / "run.json"), find_trained(run)
        assert settings.few_shot_update is None
        protocol = protocol_of(settings)
        kept = load_memory(settings.few_shot_memory, protocol)
        assert [each.id for each in kept] == [each.id for each in memory_of(trained, protocol)]
    code, out = command("eval", "--model", merged, "--tasks", tasks)
    assert code in (0, None), out


def by_words(episode: dict) -> tuple:
    return (
        episode["task_id"],
        episode["shots"],
        episode["prompt_tokens"],
        [turn["text"] for turn in episode["turns"]],
    )


@pytest.mark.slow
def test_an_evaluation_without_training(command, memory_file, tmp_path):
    """The baseline: a model, a memory, and the accuracy with so many episodes in the prompt."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join((TINY / "test.jsonl").open().readlines()[:6]))
    model = (
        "eval",
        "--model",
        TINY / "model",
        "--tasks",
        tasks,
        "--database",
        "sqlite",
        "--system-prompt",
        PROMPT,
    )
    model += ("--max-turn-tokens", "48", "--max-completion-length", "128", "--json", tmp_path / "eval.json")

    def shots(*more: object) -> list[list[str]]:
        code, out = command(*model, *more)
        assert code in (0, None), out
        said = json.loads((tmp_path / "eval.json").read_text())
        return [episode.get("shots", []) for episode in said["episodes"]]

    assert shots() == [[]] * 6
    with_two = shots("--few-shot", 2, "--few-shot-memory", memory_file)
    assert [len(ids) for ids in with_two] == [2] * 6
    assert shots("--few-shot", 2, "--few-shot-memory", memory_file) == with_two
    assert shots("--few-shot", 2, "--few-shot-memory", memory_file, "--few-shot-by", "random") != with_two
    # experience replay: nothing at first; then what was right, which a prompt without examples often is
    grown = shots("--few-shot", 2, "--few-shot-update", "--batch-size", 2)
    assert grown[:2] == [[], []] and any(grown[2:])
    # samples are shown the memory alone, which the file tells as well
    both = ("--few-shot-memory", memory_file, "--few-shot-update", "--few-shot-by", "random")
    shots("--few-shot", 2, *both, "--batch-size", 2, "--samples", 1)
    said = json.loads((tmp_path / "eval.json").read_text())
    drawn = {id for episode in said["samples"] for id in episode["shots"]}
    assert drawn <= {each["id"] for each in said["shots"]}

    played = []

    def stopped_after_the_first(self: Player, starts: list, engine: object) -> list:
        played.append(starts)
        if len(played) == 2:
            raise KeyboardInterrupt
        return play_all(self, starts, engine)

    play_all = Player.play_all
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Player, "play_all", stopped_after_the_first)
        code, out = command(*model, "--few-shot", 2, "--few-shot-update", "--batch-size", 2)
    assert code != 0 and "--resume" not in out
    assert not (tmp_path / "eval.json.partial").exists(), "it cannot go on, and must not be in the way"

    code, _ = command(*model, "--few-shot", 2)
    assert str(code).startswith("error: few_shot: 2 has nothing to show")
    code, _ = command(*model, "--few-shot", 2, "--few-shot-memory", tmp_path / "eval.json")
    assert "can be shown: it has no right episode of a training task" in str(code)


def test_options_override_the_shots_of_a_run(adapter_run, memory_file):
    assert find_trained(adapter_run).settings.few_shot == 3
    none = find_trained(adapter_run, few_shot=0).settings
    assert (none.few_shot, none.few_shot_memory, none.few_shot_update) == (0, None, None)
    other = find_trained(adapter_run, few_shot_memory=str(memory_file)).settings
    assert (other.few_shot, other.few_shot_memory, other.few_shot_update) == (3, str(memory_file), None)
    assert find_trained(adapter_run / "checkpoint-1").step == 1
    assert find_trained(adapter_run).step is None


def test_the_documents_memory(tmp_path, monkeypatch, memory):
    """Run the code of docs/training.md as it stands there."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.DOTALL)
    (code,) = (block for block in blocks if "memory.jsonl" in block)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    exec(code, {})
    assert [*load_memory("memory.jsonl", get_protocol("text"))] == [*memory]
