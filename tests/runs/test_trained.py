"""What a run trained can be evaluated: with its weights, its prompts and its limits, by naming its folder."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import BrokenDatabase
from launching import QUICKSTART, RECIPE, ROOT, run_here
from peft import LoraConfig
from training import episodes_in, make_trainer

from trl_dbbench import DBBenchGRPOConfig, DBBenchPPOConfig, TaskArguments
from trl_dbbench.cli.options import tasks_in
from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.evaluate import open_model
from trl_dbbench.evaluation.merge import merge
from trl_dbbench.runs.settings import RunSettings, training_of
from trl_dbbench.runs.trained import find_trained, held_out_tasks
from trl_dbbench.tasks import load_tasks

MODEL = ROOT / "recipes" / "tiny" / "model"
PROMPT = "Work on the MySQL database."

# what the quickstart has, in small, with limits that are no option's default
SMALL = {
    "max_steps": 2,
    "save_steps": 1,
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 12,
    "eval_steps": 1,
    "max_turns": 2,
    "observation_characters": 60,
    "learning_rate": 0.02,
    "reward_funcs": "training.varied",
    "disable_tqdm": True,
}


@pytest.mark.slow
def test_a_run_without_its_tasks(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "copied", ignore=shutil.ignore_patterns("tasks.jsonl"))
    with pytest.raises(ConfigError, match="has no held-out evaluation whose tasks could be played"):
        held_out_tasks(copied)


def test_a_task_that_was_evaluated_twice_counts_once(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "copied")
    with (copied / "episodes.jsonl").open("a+") as file:
        file.seek(0)
        file.writelines([line for line in file if '"phase": "eval"' in line])
    assert held_out_tasks(copied) == held_out_tasks(run)


def test_a_held_out_task_that_is_lost_is_told(run: Path, held_out: Path, tmp_path: Path, caplog) -> None:
    copied, lost = shutil.copytree(run, tmp_path / "copied"), load_tasks(held_out)[0]
    lines = (copied / "tasks.jsonl").read_text().splitlines(keepends=True)
    (copied / "tasks.jsonl").write_text("".join(line for line in lines if line.strip() != lost.to_json()))
    assert held_out_tasks(copied) == [task for task in held_out_tasks(run) if task.id != lost.id]
    (message,) = caplog.messages
    assert re.search(r"copied: 1 of \d+ held-out tasks are not in tasks\.jsonl\.", message)


def test_the_memory_of_a_merged_model_moves_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    written = RunSettings("text", 800, 3, few_shot=1, few_shot_memory="/elsewhere/merged/memory.jsonl")
    written.write(tmp_path)
    assert find_trained(model=str(tmp_path)).settings.few_shot_memory == written.few_shot_memory
    (tmp_path / "memory.jsonl").touch()
    assert find_trained(model=str(tmp_path)).settings.few_shot_memory == str(tmp_path / "memory.jsonl")


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "held_out.jsonl"
    lines = (ROOT / "recipes" / "tiny" / "test.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:24]))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, held_out: Path) -> Iterator[Path]:
    """The folder of a LoRA run of two updates, with a held-out evaluation before, between and after them."""
    folder = tmp_path_factory.mktemp("runs") / "lora"
    options = {**SMALL, "eval_tasks": held_out, "output_dir": folder}
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, RECIPE, "--config", QUICKSTART, *(f"--{k}={v}" for k, v in options.items()))
    yield folder


def of_the_run(folder: Path, step: int) -> dict[str, Any]:
    """Task -> what the agent wrote and whether it was right, in the run's evaluation at this step."""
    return by_task(e for e in episodes_in(folder) if (e["phase"], e["step"]) == ("eval", step))


def by_task(episodes: Any) -> dict[str, Any]:
    return {e["task_id"]: ([turn["text"] for turn in e["turns"]], e["status"], e["right"]) for e in episodes}


def played(command: Callable, folder: Path, *arguments: object) -> tuple[dict[str, Any], str]:
    """The same of `trl-dbbench eval ...`, and what it prints."""
    figures = folder / "figures.json"
    code, out = command("eval", *arguments, "--json", figures)
    assert code == 0, code
    return by_task(json.loads(figures.read_text(encoding="utf-8"))["episodes"]), out


@pytest.mark.slow
def test_an_evaluation_is_the_runs_own(run: Path, command: Callable, tmp_path: Path) -> None:
    """Every turn of its 24 held-out episodes, at the end and at a checkpoint; without an option."""
    before, first, last = (of_the_run(run, step) for step in range(3))
    assert len(last) == 24
    assert 0 < sum(right for _, _, right in last.values()) < 24
    assert before not in (first, last), "the adapter changes what the model writes"

    episodes, out = played(command, tmp_path, run)
    assert episodes == last
    said, overall, *_ = out.splitlines()
    assert said.startswith(f'The weights of {run}, played as {run / "run.json"} says: model "{MODEL}", ')
    for setting in (f'system_prompt "{PROMPT}"', 'protocol "text"', "max_turns 2", "max_turn_tokens 48"):
        assert setting in said
    assert "max_completion_length 128, observation_characters 60." in said
    right = sum(right for _, _, right in last.values())
    assert overall.split()[:2] == ["overall", f"{right}/24"]

    assert played(command, tmp_path, run / "checkpoint-1")[0] == first
    assert played(command, tmp_path, "--adapter", run / "checkpoint-1")[0] == first


def test_a_run_knows_itself(run: Path, held_out: Path) -> None:
    """What it was sampled by, rewarded for and trained on, and which versions did it."""
    settings = RunSettings.read(run)
    assert settings.sampling == {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    assert settings.rewards == {"varied": {"function": "training.varied"}}
    assert settings.task_files["eval"] == {
        str(held_out): {
            "num_bytes": held_out.stat().st_size,
            "checksum": hashlib.sha256(held_out.read_bytes()).hexdigest(),
        }
    }
    assert settings.versions["trl"] == importlib.metadata.version("trl")


def test_tasks_and_options_of_ones_own(run: Path, held_out: Path, command: Callable, tmp_path: Path) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text("".join(held_out.read_text().splitlines(keepends=True)[:6]))
    ids = [task.id for task in load_tasks(short)]
    last = of_the_run(run, 2)
    assert played(command, tmp_path, run, "--tasks", short)[0] == {id: last[id] for id in ids}

    options = ("--max-turns", 1, "--system-prompt", "Say nothing.", "--protocol", "text")  # the run's own
    episodes, out = played(command, tmp_path, run, "--tasks", short, *options)
    assert {status for _, status, _ in episodes.values()} <= {"turn_limit", "answered", "invalid_action"}
    assert max(len(turns) for turns, _, _ in episodes.values()) == 1
    said = out.splitlines()[0]
    assert said.endswith(
        f'. Overridden: system_prompt "Say nothing." instead of "{PROMPT}", max_turns 1 instead of 2.'
    )
    assert f'system_prompt "{PROMPT}",' not in said


def test_episodes_are_sampled_as_the_run_played(
    run: Path, held_out: Path, command: Callable, tmp_path: Path
) -> None:
    """By its adapter and with its limits; never on its held-out tasks."""
    options = ("--n", 2, "--keep", "all", "--out", tmp_path / "out")
    code, _ = command("sample", run, "--tasks", held_out, *options)
    assert str(code).startswith(f"error: 24 of 24 tasks are also in the held-out tasks of '{run}': ")

    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join((ROOT / "recipes/tiny/train.jsonl").read_text().splitlines(keepends=True)[:4]))
    code, out = command("sample", run, "--tasks", tasks, *options)
    assert code in (0, None)
    assert out.startswith(f"The weights of {run}, played as {run / 'run.json'} says: ")
    mine, others = RunSettings.read(tmp_path / "out"), RunSettings.read(run)
    assert (mine.model, mine.system_prompt, mine.max_turns) == (str(MODEL), PROMPT, 2)
    assert (mine.rules, mine.observation_characters) == (others.rules, 60)
    assert json.loads((tmp_path / "out" / "sample.json").read_text())["asked"]["adapter"] == str(run)
    assert 0 < len(episodes_in(tmp_path / "out")) <= 8


def test_a_run_that_was_killed_is_evaluated_at_its_last_whole_checkpoint(run: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    shutil.copytree(run, killed)
    for file in killed.glob("adapter_*"):
        file.unlink()
    assert find_trained(killed).adapter == str(killed / "checkpoint-2")
    (killed / "checkpoint-2" / "trainer_state.json").unlink()
    assert find_trained(killed).adapter == str(killed / "checkpoint-1")
    assert find_trained(killed).settings == find_trained(run).settings


def test_all_weights_of_a_model(run: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(MODEL, whole)
    shutil.copy(run / "run.json", whole)
    trained = find_trained(whole)
    assert (trained.model, trained.adapter) == (str(whole), None)
    assert trained.settings.system_prompt == PROMPT
    with pytest.raises(
        ConfigError,
        match=r"has all weights of a model and no adapter .* trl-dbbench eval \S+ --json FILE plays it",
    ):
        find_trained(adapter=str(whole))


def test_a_run_of_an_earlier_version(run: Path, held_out: Path, command: Callable, tmp_path: Path) -> None:
    """Its run.json lacks half of it: PEFT knows the base model, options say the rest, replay reads it as ever."""
    old = tmp_path / "old"
    shutil.copytree(run, old)
    settings = json.loads((old / "run.json").read_text())
    for name in ("model", "model_revision", "dtype", "autocast", "system_prompt", "max_turn_tokens"):
        del settings[name]
    for name in ("chat_template", "chat_template_kwargs"):
        del settings[name]
    (old / "run.json").write_text(json.dumps(settings))

    trained = find_trained(old)
    assert Path(ROOT, trained.model) == MODEL  # as the recipe names it
    assert (trained.settings.system_prompt, trained.settings.rules.max_turn_tokens) == (None, 512)
    options = ("--model", MODEL, "--system-prompt", PROMPT, "--max-turn-tokens", 48, "--dtype", "float32")
    assert played(command, tmp_path, old, *options)[0] == of_the_run(run, 2)

    code, out = command("replay", old, "--phase", "eval", "--steps", "2:3")
    assert code == 0
    assert "24 of 24 episodes came out equal" in out


@pytest.mark.parametrize("name", ["replay", "report"])
def test_other_commands_read_the_run(run: Path, command: Callable, name: str, tmp_path: Path) -> None:
    options = {"replay": ["--steps", "0:1"], "report": ["--no-figures", "--out", tmp_path / "page.html"]}
    assert command(name, run, *options[name])[0] in (0, None)


def test_the_report_says_how_the_run_was_trained(run: Path, command: Callable, tmp_path: Path) -> None:
    command("report", run, "--no-figures", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)<", page)
    assert facts[:2] == [("Model", str(MODEL)), ("Learning rate", "0.02")]
    assert [name for name, _ in facts[2:4]] == ["Batch", "Loss"]
    training = json.loads((run / "run.json").read_text())["training"]
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size")
    episodes = math.prod(training[name] for name in sizes)
    assert dict(facts)["Batch"] == f"{episodes} episodes an update"
    assert len([e for e in episodes_in(run) if (e["phase"], e["step"]) == ("train", 0)]) == episodes
    assert f"<code>loss_type</code></th><td>{training['loss_type']}</td>" in page


def test_the_runs_chat_template_is_used(run: Path, tmp_path: Path) -> None:
    settings = RunSettings.of_file(run / "run.json")
    other = tmp_path / "other"
    shutil.copytree(run, other)
    loud = str(settings.chat_template).replace("<|im_start|>", "<|im_start|>LOUD ")
    values = json.loads((run / "run.json").read_text()) | {"chat_template": loud}
    (other / "run.json").write_text(json.dumps(values))
    backend, policy = open_model(find_trained(other))
    backend.close()
    rendered = policy.tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False)
    assert "LOUD" in rendered


def test_what_computes_in_another_precision_does_so_again(run: Path, tmp_path: Path) -> None:
    import torch

    other = tmp_path / "other"
    shutil.copytree(run, other)
    values = json.loads((run / "run.json").read_text()) | {"autocast": "bfloat16"}
    (other / "run.json").write_text(json.dumps(values))
    backend, policy = open_model(find_trained(other))
    backend.close()
    with policy.autocast():
        assert policy.model(torch.tensor([[1]])).logits.dtype == torch.bfloat16
    backend, policy = open_model(find_trained(other, dtype="float32"))
    backend.close()
    with policy.autocast():
        assert policy.model(torch.tensor([[1]])).logits.dtype == torch.float32


@pytest.mark.slow
def test_a_config_that_a_run_changed_is_changed_again(tiny_model, demo_tasks, tmp_path: Path) -> None:
    """As rope_parameters for a longer context: the adapter was trained with it, on a base model without it."""
    changed = {"rms_norm_eps": 0.5}
    trainer = make_trainer(
        *(tiny_model, BrokenDatabase(at_start=True), demo_tasks[:2], tmp_path / "run"),
        model_init_kwargs=changed,
    )
    trainer.save_model(str(tmp_path / "run"))
    RunSettings.of(trainer, {}).write(tmp_path / "run")
    trained = find_trained(tmp_path / "run")
    assert trained.settings.model_config == changed
    _, policy = open_model(trained)
    assert policy.model.config.rms_norm_eps == 0.5
    merge(trained, tmp_path / "merged")
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["rms_norm_eps"] == 0.5
    assert find_trained(model=str(tmp_path / "merged")).settings.model_config is None


def test_tasks_of_ones_own_have_the_schema_of_the_recipe(tiny_model, demo_tasks, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f"{task.to_json()}\n" for task in demo_tasks[:2]))
    trainer = make_trainer(tiny_model, BrokenDatabase(at_start=True), demo_tasks[:2], tmp_path / "run")
    assert RunSettings.of(trainer, {}).schema is None
    trainer.train_dataset, _ = TaskArguments(tasks=str(file), schema="full").datasets("tools")
    trainer.save_model(str(tmp_path / "run"))
    RunSettings.of(trainer, {}).write(tmp_path / "run")
    trained = find_trained(tmp_path / "run")
    assert 'schema "full"' in str(trained.said)
    assert {task.schema for task in tasks_in(str(file), trained)} == {"full"}
    assert {task.schema for task in load_tasks(file)} == {"names"}


def test_what_is_said_is_what_is_played(run: Path) -> None:
    """The run's own protocol keeps the run's system prompt; another one drops it, and that is said."""
    own = find_trained(run, protocol="text")
    assert own.settings == find_trained(run).settings and own.said == find_trained(run).said
    other = find_trained(run, protocol="tools").said
    assert 'Overridden: protocol "tools" instead of "text", system_prompt null instead of ' in other


def test_a_folder_named_by_a_number_is_no_checkpoint(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "7")
    assert find_trained(tmp_path / "7").step is None


def test_another_protocol_has_its_own_system_prompt(run: Path) -> None:
    assert find_trained(run, protocol="tools").settings.system_prompt is None
    assert find_trained(run, protocol="tools", system_prompt="?").settings.system_prompt == "?"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to evaluate: RUN, the output_dir of a training run, or --model."),
        (["{run}", "--adapter", "x"], "give RUN or --adapter, not both"),
        (["{empty}"], "'{empty}' has neither weights nor a whole checkpoint. Give the output_dir"),
        (["{empty}/gone"], "'{empty}/gone' has neither weights nor a whole checkpoint."),
        (["--model", "{model}"], "say by --tasks what to play"),
    ],
)
def test_what_cannot_be_evaluated(
    run: Path, command: Callable, tmp_path: Path, arguments: list[str], message: str
) -> None:
    names = {"run": run, "empty": tmp_path, "model": MODEL}
    code, _ = command("eval", *(word.format(**names) for word in arguments))
    assert str(code).startswith(f"error: {message.format(**names)}")


def test_a_run_without_held_out_tasks_asks_for_some(run: Path, command: Callable, tmp_path: Path) -> None:
    without = tmp_path / "without"
    shutil.copytree(run, without)
    lines = (run / "episodes.jsonl").read_text().splitlines(keepends=True)
    (without / "episodes.jsonl").write_text("".join(line for line in lines if '"phase": "eval"' not in line))
    code, _ = command("eval", without)
    assert str(code).startswith(f"error: '{without}' has no held-out evaluation whose tasks could be played.")


def test_what_decides_what_is_learned_is_recorded():
    """`compare` tells ways of learning apart by these settings."""
    settings = {"output_dir": "unused", "use_cpu": True, "bf16": False}
    usual, other = (
        DBBenchGRPOConfig(**settings, **more)
        for more in ({}, {"dynamic_sampling": True, "optim": "sgd", "adapter_name_or_path": "runs/first"})
    )
    known, changed = training_of(usual, None), training_of(other, None)
    assert {name: changed[name] for name in changed.keys() - known.keys()} == {
        "dynamic_sampling": True,
        "optim": "sgd",
        "adapter_name_or_path": "runs/first",
    }
    with_critic = training_of(DBBenchPPOConfig(**settings, critic="model"), None)
    assert with_critic["critic"] == "model"
    adapted = SimpleNamespace(peft_config={"default": LoraConfig(r=4, target_modules=["q_proj", "k_proj"])})
    asked = {"r": 4, "lora_alpha": 8, "target_modules": ["k_proj", "q_proj"]}
    assert training_of(usual, adapted)["lora"] == asked
