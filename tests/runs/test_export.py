"""A run's episodes as datasets: what the rows say, and that TRL's trainers train on them as they are."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, load_dataset
from fakes import RULES, play_script
from launching import ROOT
from saved_runs import FORGOT_WHERE, LOOK, answer, count_scripts, count_task, save_episodes, save_run
from test_rollout import call
from training import ON_A_CPU, quickstart_trainer
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase
from trl import (
    DPOConfig,
    DPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

from trl_dbbench.cli import app
from trl_dbbench.cli.start import RecipeParser
from trl_dbbench.database import Database, open_database
from trl_dbbench.episode.types import Status
from trl_dbbench.runs.export import export, sft_dataset, told_by_rows
from trl_dbbench.runs.few_shot import good_episodes

MODEL = ROOT / "recipes" / "tiny" / "model"
TASKS = ROOT / "recipes" / "tiny" / "train.jsonl"
KINDS = ("sft", "preference", "kto", "prm")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of two updates on four prompts each, four samples a prompt."""
    folder = tmp_path_factory.mktemp("runs") / "grpo"
    with open_database("sqlite") as database:
        trainer = quickstart_trainer(database, folder, max_steps=2, per_device_train_batch_size=16)
        trainer.train()
    return folder


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight tasks, four samples of each, right and wrong, with their ids."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "tasks.jsonl").write_text("".join(TASKS.read_text().splitlines(keepends=True)[:8]))
    words = ["--model", MODEL, "--tasks", folder / "tasks.jsonl", "--n", 4, "--keep", "all"]
    words += ["--database", "sqlite", "--max-turn-tokens", 48, "--max-completion-length", 128]
    words += ["--system-prompt", "Work on the MySQL database.", "--out", folder / "out"]
    app(["sample", *map(str, words)], standalone_mode=False)
    return folder / "out"


@pytest.fixture
def scripted(tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A run whose episodes the test has written: for each of two tasks a right one and a wrong one."""
    return save_run(
        tmp_path / "run", sqlite_database, tokenizer, count_scripts([2, 3]), model=tokenizer.name_or_path
    )


def exported(command: Callable, run: Path, kind: str, path: Path, *options: object) -> tuple[Dataset, str]:
    """What `trl-dbbench export` writes, as TRL users load it, and what it prints."""
    code, out = command("export", run, "--to", kind, "--out", path, *options)
    assert code in (0, None), code
    return load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(path.parent / "cache")
    ), out


def sampled_in(run: Path) -> list[dict]:
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    return [episode for episode in episodes if episode["phase"] == "train"]


# --- TRL's trainers ---------------------------------------------------------------------------------------


def sft(dataset: Dataset, **settings: Any) -> SFTTrainer:
    return SFTTrainer(str(MODEL), SFTConfig(**settings), train_dataset=dataset)


def dpo(dataset: Dataset, model: str = str(MODEL), **settings: Any) -> DPOTrainer:
    return DPOTrainer(model, args=DPOConfig(**settings), train_dataset=dataset)


def kto(dataset: Dataset, model: str = str(MODEL), **settings: Any) -> KTOTrainer:
    return KTOTrainer(model, args=KTOConfig(**settings), train_dataset=dataset)


def reward(dataset: Dataset, **settings: Any) -> RewardTrainer:
    model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    return RewardTrainer(model, RewardConfig(**settings), train_dataset=dataset, processing_class=tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["run", "sampled"])
@pytest.mark.parametrize(
    ("make", "kind"), [(sft, "sft"), (dpo, "preference"), (kto, "kto"), (reward, "preference")]
)
def test_trls_trainers_train_a_step(
    make: Callable, kind: str, source: str, command: Callable, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dataset, _ = exported(command, request.getfixturevalue(source), kind, tmp_path / "rows.jsonl")
    trainer = make(dataset, output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=2, **ON_A_CPU)
    assert len(trainer.train_dataset) == len(dataset), "no row is left out"
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] > 0
    assert any(not weight.equal(before[name]) for name, weight in trainer.model.named_parameters())


@pytest.mark.parametrize("protocol", ["text", "tools"])
@pytest.mark.parametrize(("make", "kind"), [(dpo, "preference"), (kto, "kto")])
def test_trl_shows_the_model_what_the_policy_read(
    make: Callable,
    kind: str,
    protocol: str,
    command: Callable,
    tmp_path: Path,
    sqlite_database: Database,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Prompt and completion, token by token: roles, observations, and the tools where there are some."""
    call = '<tool_call>\n{{"name": "execute_sql", "arguments": {{"query": "{}"}}}}\n</tool_call>'
    end = '<tool_call>\n{{"name": "commit_final_answer", "arguments": {{"answers": ["{}"]}}}}\n</tool_call>'
    scripts = {
        "text": [[LOOK, answer("[(2,)]")], [FORGOT_WHERE, answer("[(3,)]")]],
        "tools": [
            [call.format("SELECT COUNT(*) FROM orders WHERE late = 1"), end.format("2")],
            [call.format("SELECT COUNT(*) FROM orders"), end.format("3")],
        ],
    }
    played = [play_script(count_task(2), s, tokenizer, sqlite_database, protocol) for s in scripts[protocol]]
    assert [episode.right for episode in played] == [True, False]
    run = save_episodes(tmp_path / "run", sqlite_database, played, protocol=protocol)
    dataset, _ = exported(command, run, kind, tmp_path / "rows.jsonl")
    settings = {"output_dir": str(tmp_path), "max_length": None, **ON_A_CPU}
    rows = list(make(dataset, model=tokenizer.name_or_path, **settings).train_dataset)
    if kind == "kto":
        shown = [(row["prompt_ids"], row["completion_ids"]) for row in rows]
        assert [row["label"] for row in rows] == [True, False]
    else:
        shown = [(rows[0]["prompt_ids"], rows[0][side]) for side in ("chosen_ids", "rejected_ids")]
    newline = tokenizer("\n", add_special_tokens=False)["input_ids"]  # after the last turn, in this template
    assert shown == [(each.prompt_ids, each.completion_ids + newline) for each in played]


def test_the_loss_of_sft_is_on_what_was_sampled(sampled: Path, command: Callable, tmp_path: Path) -> None:
    """Id by id: TRL gets the sampled ids, and no observation is trained."""
    dataset, out = exported(command, sampled, "sft", tmp_path / "rows.jsonl")
    trainer = sft(dataset, output_dir=str(tmp_path), **ON_A_CPU)
    right = [episode for episode in sampled_in(sampled) if episode["right"]]
    assert "note" not in out
    assert len(trainer.train_dataset) == len(right)
    by_ids = {tuple(row["input_ids"]): row["labels"] for row in trainer.train_dataset}
    for episode in right:
        ids, trained = list(episode["prompt_ids"]), [-100] * len(episode["prompt_ids"])
        for turn in episode["turns"]:
            ids += turn["ids"] + turn["observation_ids"]
            trained += turn["ids"] + [-100] * len(turn["observation_ids"])
        assert by_ids[tuple(ids)] == trained


# --- the rows ---------------------------------------------------------------------------------------------


def test_texts_without_ids_are_tokenised_again(sampled: Path, command: Callable, tmp_path: Path) -> None:
    """As the rollout laid them out. This model samples the tokens that its texts are made of anyway."""
    copy = tmp_path / "run"
    shutil.copytree(sampled, copy)
    lines = []
    for episode in sampled_in(sampled):
        del episode["prompt_ids"]
        for turn in episode["turns"]:
            del turn["ids"], turn["logprobs"], turn["observation_ids"]
        lines.append(json.dumps(episode) + "\n")
    (copy / "episodes.jsonl").write_text("".join(lines))
    dataset, out = exported(command, copy, "sft", tmp_path / "again.jsonl")
    kept, _ = exported(command, sampled, "sft", tmp_path / "kept.jsonl")
    count = len(kept)
    turns = sum(len(row["completion"]) // 2 + 1 for row in kept)
    assert out.startswith(
        f"note: {count} episodes have no token ids of this tokenizer and chat template: their texts were tokenised again "
        f"with those of '{MODEL}'. As long as when they were played are {count} of {count} prompts, and {turns} of {turns} turns"
    )
    assert dataset.to_list() == kept.to_list()


@pytest.mark.parametrize("kind", ["sft", "preference", "kto", "prm"])
@pytest.mark.parametrize("field", ["text", "tokens", "observation_tokens"])
def test_a_turn_without_its_fields_leaves_its_episode_out(
    scripted: Path, kind: str, field: str, command: Callable, tmp_path: Path
) -> None:
    (first, *others) = sampled_in(scripted)
    del first["turns"][0][field]
    (scripted / "episodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (first, *others)))
    _, out = exported(command, scripted, kind, tmp_path / "rows.jsonl")
    assert f"lines that were left out: line 1 (a turn without usable '{field}')" in out


def test_a_runs_episodes_are_said_to_be_tokenised_again(run: Path, command: Callable, tmp_path: Path) -> None:
    dataset, out = exported(command, run, "sft", tmp_path / "rows.jsonl")
    count = len(dataset)
    assert f"note: {count} episodes have no token ids of this tokenizer" in out
    assert f"are {count} of {count} prompts" in out
    assert out.splitlines()[-1].startswith(f"{tmp_path / 'rows.jsonl'}: {count} rows of ")


def test_another_models_ids(scripted: Path, command: Callable, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    dataset, out = exported(command, scripted, "sft", tmp_path / "rows.jsonl", "--model", MODEL)
    assert f"tokenised again with those of '{MODEL}'" in out
    for row in dataset:
        text = tokenizer.decode(row["input_ids"])
        assert all(message["content"] in text for message in row["completion"])


def test_a_turn_that_was_cut_off_gets_no_end(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    episode = play_script(count_task(2), [LOOK, answer("[(2,)]")], tokenizer, sqlite_database)
    first = episode.turns[0].completion
    first.ids.pop(), first.logprobs.pop()  # its tokens ran out
    episode.turns[0].observation_ids.insert(0, tokenizer.eos_token_id)  # the template ends it
    limit = {"max_turn_tokens": len(first.ids)}
    run = save_episodes(tmp_path / "run", sqlite_database, [episode], model=tokenizer.name_or_path, **limit)
    (row,) = export(run, "sft")
    trained = tokenizer.decode([label for label in row["labels"] if label != -100])
    assert trained == f"{LOOK}Action: Answer\nFinal Answer: [(2,)]<|im_end|>"
    assert row["input_ids"] == [*episode.prompt_ids, *episode.completion_ids]


def test_an_answer_that_just_fits_keeps_its_end(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Its end is the last token that the limit allows."""
    episode = play_script(count_task(2), [answer("[(2,)]")], tokenizer, sqlite_database)
    known = {"model": tokenizer.name_or_path, "max_turn_tokens": episode.turns[0].tokens}
    run = save_episodes(tmp_path / "run", sqlite_database, [episode], **known)
    (row,) = export(run, "sft")
    assert row["input_ids"] == [*episode.prompt_ids, *episode.completion_ids]


@pytest.mark.parametrize("first", ["", LOOK])
def test_a_turn_whose_observation_does_not_fit_keeps_its_end(
    first: str, tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Also one that is nothing but an end."""
    length = len(tokenizer(first, add_special_tokens=False)["input_ids"]) + 1
    rules = replace(RULES, max_completion_length=length + 1)
    episode = play_script(count_task(2), [first], tokenizer, sqlite_database, "tools", rules)
    assert (episode.status, episode.turns[0].tokens) == (Status.OUT_OF_TOKENS, length)
    known = {"model": tokenizer.name_or_path, "protocol": "tools"}
    run = save_episodes(tmp_path / "run", sqlite_database, [episode], **known)
    (row,) = export(run, "prm")
    text = row["input"].replace(row["placeholder_token"], "")
    assert text == tokenizer.decode([*episode.prompt_ids, *episode.completion_ids])


def test_a_turn_keeps_its_end_whatever_another_tokenizer_makes_of_it(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The model that played wrote each turn in one token fewer than this one."""
    episode = play_script(count_task(2), [LOOK, answer("[(2,)]")], tokenizer, sqlite_database)
    run = save_episodes(tmp_path / "run", sqlite_database, [episode], model=tokenizer.name_or_path)
    record = json.loads((run / "episodes.jsonl").read_text())
    for turn in record["turns"]:
        turn["tokens"] -= 1
    (run / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    (row,) = export(run, "sft")
    assert row["input_ids"] == [*episode.prompt_ids, *episode.completion_ids]


def test_a_file_says_how_its_episodes_were_played(
    tokenizer: PreTrainedTokenizerBase, sqlite_database: Database, tmp_path: Path
) -> None:
    """Fine-tuning on it notes that, and an evaluation plays by it."""
    asked = call("commit_final_answer", answers=["2"])
    episode = play_script(count_task(2), [asked], tokenizer, sqlite_database, "tools")
    played: dict[str, Any] = {"system_prompt": "Be quick.", "chat_template_kwargs": {"thinking": False}}
    known = played | {"model": tokenizer.name_or_path, "protocol": "tools"}
    run = save_episodes(tmp_path / "run", sqlite_database, [episode], **known)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in export(run, "sft")))
    assert told_by_rows(tmp_path / "rows.jsonl") == played | {"protocol": "tools", "turns": [1]}


def test_pairs_are_right_over_wrong(scripted: Path) -> None:
    for row, number in zip(export(scripted, "preference"), (2, 3), strict=True):
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        assert f"week {number}?" in row["prompt"][1]["content"]
        assert [m["content"] for m in row["chosen"]] == [LOOK, f"[({number},)]", answer(f"[({number},)]")]
        assert row["rejected"][0]["content"] == FORGOT_WHERE
        assert row["task_id"] == f"late-{number}"


def test_steps_with_a_placeholder_after_each(scripted: Path) -> None:
    right, wrong, *_ = export(scripted, "prm")
    assert right["label"] == ["+", "+"] and wrong["label"] == ["-", "-"]
    assert (right["placeholder_token"], right["reward_tokens"]) == ("<step_0>", ["+", "-"])
    prompt, between, end = right["input"].split("<step_0>")
    assert prompt.endswith(f"<|im_start|>assistant\n{LOOK}")
    assert (
        between
        == f"<|im_end|>\n<|im_start|>user\n[(2,)]<|im_end|>\n<|im_start|>assistant\n{answer('[(2,)]')}"
    )
    assert end == "<|im_end|>"


def test_steps_by_a_step_reward(scripted: Path) -> None:
    """A turn to which it gives 0 has no label and no placeholder; the last one has the outcome then."""
    lines = [json.loads(line) for line in (scripted / "episodes.jsonl").read_text().splitlines()]
    for values, episode in zip([(0.0, 0.0), (-0.5, 0.0), (0.5, 0.5), (0.5, -0.5)], lines, strict=True):
        for turn, value in zip(episode["turns"], values, strict=True):
            turn["rewards"] = {"progress": value}
    (scripted / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = export(scripted, "prm", label_by="progress")
    assert [row["label"] for row in rows] == [["+"], ["-", "-"], ["+", "+"], ["+", "-"]]
    assert [row["input"].count("<step_0>") for row in rows] == [1, 2, 2, 2]


def test_a_text_that_has_the_placeholder_gets_another(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    script = [(count_task(2), [LOOK, answer("<step_0>")])]
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, script, model=tokenizer.name_or_path)
    (row,) = export(run, "prm")
    assert row["placeholder_token"] == "<step_1>"
    assert len(row["input"].split("<step_1>")) == 3


# --- which episodes ---------------------------------------------------------------------------------------


def contents(rows: list[dict]) -> list[list[str]]:
    return [[m["content"] for m in row["completion"] if m["role"] == "assistant"] for row in rows]


def test_the_same_actions_count_once(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    right, thinks = [LOOK, answer("[(2,)]")], [f"Let me see.\n{LOOK}", answer("[(2,)]")]
    wrong = [FORGOT_WHERE, answer("[(3,)]")]
    scripts = [(count_task(2), turns) for turns in (right, thinks, right, wrong)]
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, scripts)
    assert contents(export(run, "kto")) == [right, wrong]


def test_pairs_of_a_prompt_though_another_one_had_the_same_right_episode(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """At first the memory was empty; later the prompt showed an earlier episode."""
    earlier, first, right, wrong = (
        play_script(count_task(number), turns, tokenizer, sqlite_database)
        for number, turns in (
            (3, [LOOK, answer("[(3,)]")]),
            *[(2, [LOOK, answer("[(2,)]")])] * 2,
            (2, [FORGOT_WHERE, answer("[(3,)]")]),
        )
    )
    (example,) = good_episodes([earlier])
    right.shots = wrong.shots = [example.id]
    run = save_episodes(tmp_path, sqlite_database, [first, right, wrong])
    (run / "shots.jsonl").write_text(f"{example.line}\n")
    (row,) = export(run, "preference")
    assert len(row["prompt"]) == 6
    assert len(export(run, "kto")) == 2, "the same actions count once"


def test_a_cut_off_episode_does_not_hide_a_whole_one(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The first one gave the same answer, and talked on until its tokens ran out."""
    whole = play_script(count_task(2), [LOOK, answer("[(2,)]")], tokenizer, sqlite_database)
    limit = max(turn.tokens for turn in whole.turns)
    rules = replace(RULES, max_turn_tokens=limit)
    talks = [LOOK, answer("[(2,)]") + "\nI am sure of it." * limit]
    cut = play_script(count_task(2), talks, tokenizer, sqlite_database, rules=rules)
    assert (cut.right, cut.truncated, whole.right, whole.truncated) == (True, True, True, False)
    known = {"model": tokenizer.name_or_path, "max_turn_tokens": limit}
    run = save_episodes(tmp_path / "run", sqlite_database, [cut, whole], **known)
    (row,) = export(run, "sft")
    assert row["input_ids"] == [*whole.prompt_ids, *whole.completion_ids]


def test_evaluation_and_greedy_episodes_are_left_out_unless_asked_for(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    run = tmp_path / "run"
    for number, phase in ((2, "train"), (3, "greedy"), (4, "eval")):
        save_run(run, sqlite_database, tokenizer, count_scripts([number]), phase)
    assert {row["task_id"] for row in export(run, "kto")} == {"late-2"}
    both = export(run, "kto", phases=["train", "greedy"])
    assert {row["task_id"] for row in both} == {"late-2", "late-3"}
    assert {row["task_id"] for row in export(run, "kto", phases=["eval"])} == {"late-4"}


def test_episodes_whose_environment_failed_are_always_left_out(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    played = [play_script(task, turns, tokenizer, sqlite_database) for task, turns in count_scripts([2, 3])]
    played[3].fail("2013: lost connection")
    assert played[3].status == Status.ENVIRONMENT_FAULT
    run = save_episodes(tmp_path / "run", sqlite_database, played)
    assert [(row["task_id"], row["label"]) for row in export(run, "kto")] == [
        ("late-2", True),
        ("late-2", False),
        ("late-3", True),
    ]


def test_at_most_so_many_of_a_task(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    right = [[LOOK.replace("late = 1", f"late > {n}"), answer("[(2,)]")] for n in (0, 0.25, 0.5)]
    wrong = [[FORGOT_WHERE, answer(f"[({n},)]")] for n in (3, 4, 5)]
    scripts = [(count_task(2), turns) for turns in (*right, *wrong)]
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, scripts, model=tokenizer.name_or_path)
    sizes = {kind: (len(export(run, kind)), len(export(run, kind, max_per_task=2))) for kind in KINDS}
    assert sizes == {"sft": (3, 2), "preference": (8, 2), "kto": (6, 4), "prm": (6, 2)}


# --- files and errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_parquet_holds_the_same(scripted: Path, kind: str, command: Callable, tmp_path: Path) -> None:
    lines, _ = exported(command, scripted, kind, tmp_path / "rows.jsonl")
    code, _ = command("export", scripted, "--to", kind, "--out", tmp_path / "rows.parquet")
    assert code in (0, None)
    assert (
        Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path)).to_list()
        == lines.to_list()
    )


def test_the_file_is_in_the_runs_folder_if_none_is_named(scripted: Path, command: Callable) -> None:
    code, out = command("export", scripted, "--to", "kto")
    assert (code or 0, out) == (0, f"{scripted / 'kto.jsonl'}: 4 rows of 2 tasks\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "rlhf"], "unknown kind 'rlhf'; allowed: sft, preference, kto, prm."),
        (["--to", "kto", "--phases", "test"], "unknown phase 'test'; allowed: eval, greedy, train."),
        (["--to", "kto", "--phases", "eval"], "'{run}' has nothing for kto, which takes right and wrong episodes: of the phases eval it has 0 different episodes, 0 of them right."),
        (["--to", "kto", "--out", "rows.csv"], "'rows.csv' must end in .jsonl or .parquet."),
        (["--to", "kto", "--out", "gone/rows.jsonl"], "'gone/rows.jsonl' cannot be written"),
        (["--to", "sft", "--model", "./gone"], "the tokenizer of './gone' cannot be loaded: "),
        (["--to", "prm", "--label-by", "progress"], "no episode has the step reward 'progress' in its turns"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported(
    scripted: Path,
    command: Callable,
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _ = command("export", scripted, *options)
    assert str(code).startswith("error: " + message.format(run=scripted))
    assert "\n" not in str(code)


def test_a_run_that_does_not_say_its_model(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase, command: Callable
) -> None:
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, count_scripts([2]))
    code, _ = command("export", run, "--to", "sft")
    assert code == "error: run.json does not say which model played. Name it by --model."
    assert command("export", run, "--to", "sft", "--model", tokenizer.name_or_path)[0] in (0, None)


def test_a_programs_prompts_are_said_to_be_missing(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, count_scripts([2]), harness="mine:run")
    notes: list[str] = []
    assert export(run, "preference", notes=notes)
    assert "prompts are the protocol's, which the model has not read" in notes[0]


# --- the recipe that learns from them ---------------------------------------------------------------------


def fine_tune(episodes: Path, out: Path, *options: object) -> Any:
    """The trainer of `recipes/sft_dbbench.py --config recipes/sft_episodes.yaml --episodes ...`, after a step."""
    recipe = runpy.run_path(str(ROOT / "recipes" / "sft_dbbench.py"), run_name="recipe")
    words = ["--config", ROOT / "recipes" / "sft_episodes.yaml", "--episodes", episodes, "--output_dir", out]
    words += ["--model_name_or_path", MODEL, "--max_steps", 1, "--disable_tqdm", "true", *options]
    return recipe["main"](
        *RecipeParser(recipe["ARGUMENTS"]).parse_args_and_config([str(word) for word in words])
    )


def test_from_sampled_episodes_to_an_adapter(sampled: Path, command: Callable, tmp_path: Path) -> None:
    trainer = fine_tune(sampled, tmp_path / "sft")
    expected = export(sampled, "sft")
    assert trainer.train_dataset["input_ids"] == [row["input_ids"] for row in expected]
    assert trainer.train_dataset["labels"] == [row["labels"] for row in expected]

    tasks = ["--tasks", sampled / "tasks.jsonl", "--database", "sqlite", "--max-turn-tokens", 48]
    code, out = command("eval", "--model", MODEL, "--adapter", tmp_path / "sft", *tasks)
    assert code in (0, None)
    assert re.search(r"^overall +\d/8 = ", out, re.MULTILINE)


def test_from_an_exported_file(sampled: Path, command: Callable, tmp_path: Path) -> None:
    exported(command, sampled, "sft", tmp_path / "rows.jsonl", "--max-per-task", 1)
    trainer = fine_tune(tmp_path / "rows.jsonl", tmp_path / "sft")
    expected = export(sampled, "sft", max_per_task=1)
    assert trainer.train_dataset["labels"] == [row["labels"] for row in expected]


def test_a_model_of_another_vocabulary_gets_ids_of_its_own(
    sampled: Path, tokenizer: PreTrainedTokenizerBase, command: Callable, tmp_path: Path
) -> None:
    """From a folder, where the texts are known in full; a file of ids is refused."""
    notes: list[str] = []
    rows = sft_dataset(sampled, tokenizer, [tokenizer.eos_token_id], notes)
    assert "tokenised again" in notes[0]
    asked = "Find the total wins in teams."
    assert sum(asked in tokenizer.decode(row["input_ids"]) for row in rows) >= 1

    exported(command, sampled, "sft", tmp_path / "rows.jsonl")
    message = (
        f"row 1: its ids are of another tokenizer than that of '{tokenizer.name_or_path}'. Name this model in"
    )
    with pytest.raises(Exception, match=message):
        sft_dataset(tmp_path / "rows.jsonl", tokenizer, [tokenizer.eos_token_id], [])


def test_a_model_of_another_chat_template_gets_ids_of_its_own(
    sampled: Path, command: Callable, tmp_path: Path
) -> None:
    """Its vocabulary is the same, so that the sampled ids mean the same text to it."""
    other = shutil.copytree(MODEL, tmp_path / "other")
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.chat_template = tokenizer.chat_template.replace(r"system\n", r"system\n\n")
    tokenizer.save_pretrained(other)
    dataset, out = exported(command, sampled, "sft", tmp_path / "rows.jsonl", "--model", other)
    assert f"{len(dataset)} episodes have no token ids of this tokenizer and chat template" in out
    assert all("system\n\nWork on" in tokenizer.decode(row["input_ids"]) for row in dataset)
    rows = sft_dataset(sampled, tokenizer, [tokenizer.eos_token_id], [])
    assert list(rows["input_ids"]) == list(dataset["input_ids"])

    _, out = exported(command, sampled, "sft", tmp_path / "same.jsonl", "--model", MODEL)
    assert "tokenised again" not in out


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("empty.jsonl", "'.*empty.jsonl' is empty. Give the folder of a run"),
        (
            "gone.jsonl",
            "no episodes at '.*gone.jsonl'. Give the folder of a run, or a file of trl-dbbench export --to sft.",
        ),
        (
            "kto.jsonl",
            "'.*kto.jsonl', row 1 has no input_ids, labels. Give the folder of a run, or a file of",
        ),
        ("", "' has no right episodes to learn from."),
    ],
)
def test_what_cannot_be_learned_from(
    source: str,
    message: str,
    tmp_path: Path,
    sqlite_database: Database,
    tokenizer: PreTrainedTokenizerBase,
    command: Callable,
) -> None:
    run = save_run(tmp_path / "run", sqlite_database, tokenizer, count_scripts([2]))
    command("export", run, "--to", "kto")
    (run / "empty.jsonl").touch()
    if not source:
        save_run(tmp_path / "wrong", sqlite_database, tokenizer, count_scripts([2])[1:])
    with pytest.raises(Exception, match=message):
        fine_tune(run / source if source else tmp_path / "wrong", tmp_path / "sft")
