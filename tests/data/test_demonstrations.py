"""Gold episodes for the warm start: laid out as a rollout lays them out, by a teacher with or without bad habits."""

from __future__ import annotations

import random
import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import RULES, ScriptedEngine
from launching import ROOT
from transformers import AutoTokenizer
from trl import SFTTrainer
from worlds.habits import Habits, spoil

from trl_dbbench.cli.arguments import read_template_kwargs
from trl_dbbench.cli.start import RecipeParser
from trl_dbbench.data.demonstrations import demonstrate, misspelled, to_sft_dataset, with_mistakes
from trl_dbbench.database import open_database
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.episode.types import Status
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.runs.checkpoints import RUN_ID, find_checkpoint
from trl_dbbench.runs.trained import find_trained

RECIPES = ROOT / "recipes"


def test_a_demonstration_token_by_token(late_orders, tokenizer, sqlite_database):
    (episode,) = demonstrate([late_orders], ChatFormat(tokenizer, get_protocol("text")), sqlite_database)
    (row,) = to_sft_dataset([episode])

    trained = [id for id in row["labels"] if id != -100]
    assert tokenizer.decode(trained) == (
        "Action: Operation\n```sql\nSELECT COUNT(*) FROM orders WHERE late = 1\n```<|im_end|>"
        "Action: Answer\nFinal Answer: [(2,)]<|im_end|>"
    )
    context = [id for id, label in zip(row["input_ids"], row["labels"], strict=True) if label == -100]
    assert tokenizer.decode(context).endswith(
        "<|im_start|>assistant\n\n<|im_start|>user\n[(2,)]<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_demonstration_of_labels_from_several_columns(late_orders, tokenizer, sqlite_database):
    """All of them."""
    gold = replace(
        late_orders.gold, sql="SELECT id, late FROM orders WHERE id < 3 ORDER BY id", answer=("1", "0", "2")
    )
    task = replace(late_orders, gold=gold, grader="agentbench_fc")
    for protocol in ("text", "tools"):
        (episode,) = demonstrate([task], ChatFormat(tokenizer, get_protocol(protocol)), sqlite_database)
        assert episode.answer.text == "['1', '0', '2', '1']"


def test_a_demonstration_of_tool_calls(late_orders, tokenizer, sqlite_database):
    (episode,) = demonstrate([late_orders], ChatFormat(tokenizer, get_protocol("tools")), sqlite_database)

    assert [turn.text for turn in episode.turns] == [
        '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT COUNT(*) FROM orders WHERE late = 1"}}'
        "\n</tool_call>",
        '<tool_call>\n{"name": "commit_final_answer", "arguments": {"answers": ["(2,)"]}}\n</tool_call>',
    ]
    assert episode.right


@pytest.mark.parametrize("given", [None, '{"tone": "POLITE"}'])
def test_the_recipe_hands_settings_to_the_chat_template(tiny_model, late_orders, tmp_path, given):
    """As in GRPO; from a YAML they come as a mapping, from the command line as JSON."""
    model, tasks = tmp_path / "model", tmp_path / "tasks.jsonl"
    shutil.copytree(tiny_model, model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{{ tone or 'PLAIN' }}" + tokenizer.chat_template
    tokenizer.save_pretrained(model)
    tasks.write_text(late_orders.to_json())
    recipe = runpy.run_path(str(RECIPES / "sft_dbbench.py"), run_name="recipe")
    options = ["--config", str(RECIPES / "sft_gold.yaml"), "--tasks", str(tasks), "--max_steps", "1"]
    options += [
        "--model_name_or_path",
        str(model),
        "--output_dir",
        str(tmp_path / "sft"),
        "--max_length",
        "4096",
    ]
    options += ["--chat_template_kwargs", given] if given else []
    trainer = recipe["main"](*RecipeParser(recipe["ARGUMENTS"]).parse_args_and_config(options))
    shown = tokenizer.decode(trainer.train_dataset[0]["input_ids"])
    assert shown.startswith("POLITE" if given else "PLAIN")

    # an evaluation of the run shows it the same, at its end and at its checkpoints
    found = find_trained(run=tmp_path / "sft").settings
    assert (found.protocol, found.system_prompt) == ("text", "Work on the MySQL database.")
    assert found.chat_template == tokenizer.chat_template
    assert found.chat_template_kwargs == ({"tone": "POLITE"} if given else {})
    assert (found.dialect, found.max_turns, found.dtype) == ("sqlite", 3, "float32")
    assert found.id is not None


def test_a_template_that_keeps_thoughts_is_saved(tiny_model, late_orders, tmp_path):
    """A server of the trained model must render what it was trained on."""
    model, tasks = tmp_path / "model", tmp_path / "tasks.jsonl"
    shutil.copytree(tiny_model, model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = load_chat_template("qwen3")
    tokenizer.save_pretrained(model)
    tasks.write_text(late_orders.to_json())
    sft(tmp_path / "sft", tasks, "--max_steps", 1, "--model_name_or_path", model)
    saved = AutoTokenizer.from_pretrained(tmp_path / "sft").chat_template
    assert saved == find_trained(run=tmp_path / "sft").settings.chat_template
    assert saved == load_chat_template("qwen3_training")


def sft(folder: Path, tasks: Path | None, *options: object) -> SFTTrainer:
    """The recipe with the demo's model, for one step or more."""
    recipe = runpy.run_path(str(RECIPES / "sft_dbbench.py"), run_name="recipe")
    given = [
        "--config",
        RECIPES / ("sft_gold.yaml" if tasks else "sft_episodes.yaml"),
        "--output_dir",
        folder,
    ]
    given += ["--tasks", tasks] if tasks else []
    given += ["--model_name_or_path", RECIPES / "tiny/model", "--max_length", "4096", *options]
    return recipe["main"](*RecipeParser(recipe["ARGUMENTS"]).parse_args_and_config(list(map(str, given))))


def test_the_recipe_takes_no_checkpoint_of_an_earlier_run(late_orders, tmp_path):
    """Of TRL's own trainer, whose checkpoints get the id of the run as well."""
    (tmp_path / "tasks.jsonl").write_text(late_orders.to_json())
    folder, tasks = tmp_path / "sft", tmp_path / "tasks.jsonl"
    every = ("--save_strategy", "steps", "--save_steps", 1)
    sft(folder, tasks, "--max_steps", 2, *every)
    first = find_trained(run=folder / "checkpoint-2").settings.id
    assert (folder / "checkpoint-2" / RUN_ID).read_text() == first
    assert find_checkpoint(folder, True) == str(folder / "checkpoint-2")

    sft(folder, tasks, "--max_steps", 1)
    assert find_checkpoint(folder, True) is None
    assert find_trained(run=folder).settings.id != first
    assert find_trained(run=folder / "_earlier.1").settings.id == first


def test_a_recipe_that_cannot_evaluate_says_so(late_orders, tmp_path):
    with pytest.raises(ConfigError, match=r"eval_tasks: fine-tuning plays no episodes.*trl-dbbench eval"):
        sft(tmp_path / "sft", tmp_path / "tasks.jsonl", "--eval_tasks", "held_out.jsonl")


@pytest.mark.parametrize("given", ["polite", "[1]", 3])
def test_settings_of_the_chat_template_that_are_none(given):
    with pytest.raises(ConfigError, match=r"chat_template_kwargs must be names with values.* Given is "):
        read_template_kwargs(given)


def test_a_demonstration_that_begins_with_a_mistake(late_orders, tokenizer, sqlite_database):
    """The failing statement and its error are in the context; the loss is on what follows."""
    chat = ChatFormat(tokenizer, get_protocol("text"))
    (episode,) = demonstrate([late_orders], chat, sqlite_database, teacher=with_mistakes(1.0, seed=0))
    wrong, gold = episode.statements
    assert wrong in set(misspelled(late_orders)) and gold == late_orders.gold.sql
    assert episode.turns[0].result.error in episode.turns[0].observation
    assert episode.right

    (row,) = to_sft_dataset([episode], imitate_errors=False)
    assert row["input_ids"] == [*episode.prompt_ids, *episode.completion_ids]
    assert [id for id in row["labels"] if id != -100] == [
        id for turn in episode.turns[1:] for id in turn.completion.ids
    ]
    (imitating,) = to_sft_dataset([episode])
    assert sum(label != -100 for label in imitating["labels"]) == sum(episode.mask)


def test_names_are_written_wrongly_as_weak_models_do(late_orders):
    assert set(misspelled(late_orders)) == {
        "SELECT COUNT(*) FROM orders WHERE `lates` = 1",
        "SELECT COUNT(*) FROM `orderss` WHERE late = 1",
        "SELECT COUNT(*) FROM `order` WHERE late = 1",
    }
    table = replace(late_orders.tables[0], name="Late Orders (EU)")
    sql = "SELECT COUNT(*) FROM `Late Orders (EU)`"
    spaced = replace(late_orders, tables=(table,), gold=replace(late_orders.gold, sql=sql))
    assert {sql.removeprefix("SELECT COUNT(*) FROM ") for sql in misspelled(spaced)} == {
        *("`Late_Orders_(EU)`", "`Late Orders (EU)s`", "`Late Orders`", "`Orders (EU)`", "Late Orders (EU)"),
    }


def test_mistakes_are_a_share_of_the_demonstrations(late_orders, sqlite_database):
    protocol, teacher = get_protocol("text"), with_mistakes(0.25, seed=1)
    lengths = [len(teacher(late_orders, protocol, sqlite_database)) for _ in range(200)]
    assert 30 < lengths.count(3) < 70 and lengths.count(2) == 200 - lengths.count(3)
    never = with_mistakes(0.0)
    assert [len(never(late_orders, protocol, sqlite_database)) for _ in range(5)] == [2] * 5


def test_the_recipe_demonstrates_mistakes(late_orders, tmp_path):
    (tmp_path / "tasks.jsonl").write_text(late_orders.to_json())
    trainer = sft(tmp_path / "sft", tmp_path / "tasks.jsonl", "--max_steps", 1, "--mistakes", 1)
    (row,) = trainer.train_dataset
    text = trainer.processing_class.decode(row["input_ids"])
    learned = trainer.processing_class.decode([id for id in row["labels"] if id != -100])
    assert text.count("Action: Operation") == 2 and learned.count("Action: Operation") == 1
    with pytest.raises(ConfigError, match=r"mistakes must be a share from 0 to 1, is 20"):
        sft(tmp_path / "sft", tmp_path / "tasks.jsonl", "--mistakes", 20)


@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_demonstrations_have_the_ids_and_masks_of_a_rollout(protocol, full_tasks, tiny_tasks, tokenizer):
    """An agent that says the same texts in a rollout is trained on the same ids."""
    tasks = [*full_tasks[:80], *tiny_tasks[:20]]
    chat = ChatFormat(tokenizer, get_protocol(protocol))
    with open_database("sqlite") as database:
        taught = demonstrate(tasks, chat, database)
        texts = {row: [turn.text for turn in episode.turns] for row, episode in enumerate(taught)}
        player = Player(chat, database, Judge(database), RULES)
        played = player.play_all([player.start(task) for task in tasks], ScriptedEngine(tokenizer, texts))

    for gold, episode, row in zip(taught, played, to_sft_dataset(taught), strict=True):
        assert (gold.status, gold.right) == (Status.ANSWERED, True), repr(gold.turns)
        assert row["input_ids"] == [*episode.prompt_ids, *episode.completion_ids]
        assert [label != -100 for label in row["labels"]] == [False] * len(episode.prompt_ids) + [
            bit == 1 for bit in episode.mask
        ]


@pytest.mark.parametrize(
    ("sql", "spoiled"),
    [
        ("SELECT COUNT(*) FROM t WHERE a = 1", {"SELECT COUNT(*) FROM t"}),
        ("SELECT SUM(a) FROM t", {"SELECT MAX(a) FROM t"}),
        ("SELECT MAX(a) FROM t", {"SELECT MAX(a) FROM t"}),
        ("SELECT a FROM t ORDER BY b DESC LIMIT 1", {"SELECT a FROM t ORDER BY b LIMIT 1"}),
        ("SELECT a FROM t ORDER BY b ASC", {"SELECT a FROM t ORDER BY b ASC"}),
        ("DELETE FROM t WHERE a = 1", {"DELETE FROM t"}),
        ("SELECT MIN(a) FROM t WHERE b = 1", {"SELECT MAX(a) FROM t WHERE b = 1", "SELECT MIN(a) FROM t"}),
        ("INSERT INTO t (a) VALUES (1)", {"INSERT INTO t (a) VALUES (1)"}),
    ],
)
def test_one_believable_mistake(sql, spoiled):
    assert {spoil(sql, random.Random(seed)) for seed in range(20)} == spoiled


def test_bad_habits_spoil_their_share_of_the_skills_named(late_orders):
    sql = late_orders.gold.sql
    tasks = [replace(late_orders, id=str(number)) for number in range(400)]
    habits = Habits(share=0.65, skills=frozenset({"where_single_condition"}))
    spoiled = sum(habits.apply(task, sql) != sql for task in tasks)

    assert spoiled == pytest.approx(260, abs=30)  # three standard deviations
    assert spoiled == sum(habits.apply(task, sql) != sql for task in tasks), "the same ones each time"
    assert Habits(share=1.0, skills=frozenset({"limit_only"})).apply(late_orders, sql) == sql


def test_a_task_without_gold_sql_cannot_be_demonstrated(late_orders, tokenizer, sqlite_database):
    task = replace(late_orders, gold=replace(late_orders.gold, sql=None))
    with pytest.raises(TaskError, match="task 'late-orders' has no gold SQL to demonstrate"):
        demonstrate([task], ChatFormat(tokenizer, get_protocol("text")), sqlite_database)


def test_the_recipe_leaves_out_what_it_cannot_demonstrate(late_orders, tmp_path, caplog):
    """A task without gold SQL, one whose gold answer is another, and an episode that is too long."""
    tasks = [
        late_orders,
        replace(late_orders, id="blind", gold=replace(late_orders.gold, sql=None)),
        replace(late_orders, id="wrong", gold=replace(late_orders.gold, answer=((77,),))),
        replace(late_orders, id="long", question="How many? " * 400),
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(task.to_json() + "\n" for task in tasks))
    with caplog.at_level("WARNING"):
        trainer = sft(tmp_path / "sft", tmp_path / "tasks.jsonl", "--max_steps", 1, "--max_length", 600)
    assert len(trainer.train_dataset) == 1
    assert "1 of 4 tasks have no gold SQL to demonstrate" in caplog.text
    assert "The others are left out" in caplog.text
    assert "1 of 2 rows are longer than max_length 600" in caplog.text


@pytest.mark.parametrize(("option", "value"), [("--tasks", "t.jsonl"), ("--mistakes", 0.5)])
def test_episodes_and_demonstrations_at_once_are_refused(tmp_path, option, value):
    with pytest.raises(
        ConfigError, match=rf"{option[2:]}: .* is for demonstrations; leave it or episodes out"
    ):
        sft(tmp_path / "sft", None, "--episodes", tmp_path, option, value)
