"""The recipes of SmolLM2 with real tokenizers, and real shapes cut to two layers with random weights.

SmolLM2 has a vocabulary of 49,152, Qwen3-0.6B one of 151,936. `TRL_DBBENCH_SMOLLM2` and `TRL_DBBENCH_QWEN3` name
their folders, which `.ci/models` makes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launching import RECIPE, ROOT, run_here
from required import lacking
from training import distance, episodes_in, make_trainer, sampled, scored_batch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from trl_dbbench import load_tasks, to_dataset
from trl_dbbench.cli.tasks import write_tasks
from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.database import Database
from trl_dbbench.tasks import Task

SFT = ROOT / "recipes" / "sft_dbbench.py"


@pytest.fixture(scope="module", params=["smollm2", "qwen3"])
def cut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers with random weights."""
    family, variable = request.param, f"TRL_DBBENCH_{request.param.upper()}"
    whole = os.environ.get(variable, "")
    if not whole or not Path(whole, "config.json").is_file():
        lacking(family, f"no {family} here: {variable} is to be its folder (.ci/models makes one)")
    folder = tmp_path_factory.mktemp(f"{family}-2-layers")
    config = AutoConfig.from_pretrained(whole)
    config.num_hidden_layers = 2
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(whole).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def tokenizer(cut: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(cut)


@pytest.fixture(scope="module")
def plain_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tasks = tmp_path_factory.mktemp("tasks") / "train.jsonl"
    write_tasks(tasks, generate_tasks(16, 11, level="plain"))
    return tasks


@pytest.fixture
def train(
    cut: str, plain_tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Run a script with one of the two recipes; return the run's folder."""

    def run(script: Path, recipe: str, *options: object) -> Path:
        folder = tmp_path / recipe
        given = ("--model_name_or_path", cut, "--tasks", plain_tasks, "--output_dir", folder)
        run_here(monkeypatch, script, "--config", ROOT / "recipes" / f"{recipe}.yaml", *given, *options)
        return folder

    return run


def test_the_chain_of_both_recipes(
    train: Callable[..., Path],
    plain_tasks: Path,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    command: Callable[..., tuple[int | str | None, str]],
) -> None:
    """Warm start, GRPO from its adapter, and an evaluation, all with the recipe's prompt, not the template's own."""
    warm = train(SFT, "smollm2_sft", "--max_steps", 2, "--per_device_train_batch_size", 4)
    small = ("--num_generations", 4, "--per_device_train_batch_size", 8, "--max_steps", 2)
    short = ("--max_turns", 2, "--max_turn_tokens", 32)  # random weights seldom end a turn
    tuned = train(RECIPE, "smollm2", "--adapter_name_or_path", warm, *small, *short)
    status, output = command("eval", tuned, "--tasks", plain_tasks, "--json", tmp_path / "eval.json")
    assert status == 0 and "first turns unreadable" in output

    episodes = episodes_in(tuned)
    assert {episode["phase"] for episode in episodes} == {"greedy", "train"}
    assert "environment_fault" not in {episode["status"] for episode in episodes}
    evaluated = json.loads((tmp_path / "eval.json").read_text())["episodes"]
    for task in load_tasks(plain_tasks):
        (row,) = to_dataset([task], "text", "Work on the MySQL database.")
        opening = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        assert "Work on the MySQL database." in opening and "named SmolLM" not in opening
        played = {e["prompt_tokens"] for e in [*episodes, *evaluated] if e["task_id"] == task.id}
        assert played == {len(tokenizer(opening).input_ids)}


def test_what_is_sampled_is_what_is_trained(
    cut: str, sqlite_database: Database, demo_tasks: list[Task], tmp_path: Path
) -> None:
    """Prompts of hundreds of tokens and turns of a hundred, log-probabilities over the whole vocabulary."""
    limits = {"max_turn_tokens": 100, "max_turns": 2, "max_completion_length": 400, "protocol": "text"}
    asked = replace(demo_tasks[0], question=" ".join([demo_tasks[0].question] * 40))
    trainer = make_trainer(cut, sqlite_database, [asked], tmp_path, **limits)
    _, batch = scored_batch(trainer)
    assert batch["prompt_ids"].shape[1] > 300 and sampled(batch).sum(dim=1).max() >= 90
    assert distance(trainer, batch).max() < 1e-3
    trainer.train()
    assert trainer.state.global_step == 2
