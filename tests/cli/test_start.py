"""What all recipes begin with: paths of a YAML, what is wrong with it in one line, a folder for each start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from forking import Forked
from launching import RECIPE, ROOT, SMALL, run_here
from transformers import TrainingArguments
from trl import ModelConfig, SFTConfig

from trl_dbbench import DBBenchGRPOConfig, TaskArguments
from trl_dbbench.cli.bundled import read_recipe
from trl_dbbench.cli.start import RecipeParser, put_timestamp, use_one_gpu
from trl_dbbench.errors import ConfigError


@dataclass
class Keys:
    """Some keys of a recipe."""

    tasks: str | None = None
    system_prompt: str | None = None
    output_dir: str | None = None
    episodes: list[str] = field(default_factory=list)
    reward_funcs: list[str] = field(default_factory=list)
    reward_weights: list[float] | None = None


def parsed(yaml: str, *options: str) -> Keys:
    Path("configs").mkdir(exist_ok=True)
    Path("configs/my.yaml").write_text(yaml)
    (keys,) = RecipeParser([Keys]).parse_args_and_config(["--config", "configs/my.yaml", *options])
    return keys


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """`both.jsonl` in the working directory and beside the YAML, the others in one of them."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "both.jsonl",
        "here.jsonl",
        "configs/both.jsonl",
        "configs/beside.jsonl",
        "configs/rewards.py",
    ):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    Path("configs/runs/rm").mkdir(parents=True)


@pytest.mark.parametrize(
    ("key", "written", "read"),
    [
        ("tasks", "here.jsonl", "here.jsonl"),
        ("tasks", "both.jsonl", "both.jsonl"),
        ("tasks", "beside.jsonl", "configs/beside.jsonl"),
        ("tasks", "nowhere.jsonl", "nowhere.jsonl"),
        ("tasks", "csyq/LifelongAgentBench", "csyq/LifelongAgentBench"),
        ("system_prompt", "Work on the database. " * 50, "Work on the database. " * 50),
        ("output_dir", "runs", "runs"),
        ("episodes", ["runs/rm", "runs/first"], ["configs/runs/rm", "runs/first"]),
        (
            "reward_funcs",
            ["outcome", "model:runs/rm", "prm:runs/prm", "rewards.py:short"],
            ["outcome", "model:configs/runs/rm", "prm:runs/prm", "configs/rewards.py:short"],
        ),
    ],
)
def test_a_path_of_the_yaml(folders, key, written, read):
    assert getattr(parsed(f"{key}: {written!r}"), key) == read


def test_a_path_of_the_command_line_is_the_working_directorys_alone(folders):
    assert parsed("tasks: here.jsonl", "--tasks", "beside.jsonl").tasks == "beside.jsonl"


# --- what is wrong, in one line -------------------------------------------------------------------


def error_of(monkeypatch: pytest.MonkeyPatch, folder: Path, yaml: str, *options: str) -> str:
    (folder / "my.yaml").write_text(yaml)
    with pytest.raises(SystemExit) as ended:
        run_here(
            monkeypatch, RECIPE, "--config", folder / "my.yaml", "--output_dir", folder / "run", *options
        )
    return str(ended.value.code)


DEMO = ROOT / "recipes" / "demo_tasks.jsonl"
TINY = ROOT / "recipes" / "tiny" / "model"
CPU = "use_cpu: true\nbf16: false\n"


def test_an_error_on_a_path_names_both_places(tmp_path, monkeypatch):
    said = error_of(monkeypatch, tmp_path, f"{CPU}tasks: nowhere.jsonl\nmodel_name_or_path: some/model\n")
    assert said.startswith("error: no task file at 'nowhere.jsonl'. Give a .jsonl,")
    assert said.endswith(
        f"As a path, the YAML's 'nowhere.jsonl' leads nowhere from the working directory, {ROOT}, nor from the "
        f"YAML's folder, {tmp_path}."
    )


def test_the_folder_is_not_named_for_a_path_of_the_command_line(tmp_path, monkeypatch):
    said = error_of(monkeypatch, tmp_path, f"{CPU}tasks: nowhere.jsonl\n", "--tasks", "no.jsonl")
    assert said.startswith("error: no task file at 'no.jsonl'")
    assert "folder, " not in said


def test_a_key_that_is_missing(tmp_path, monkeypatch):
    """argparse would print all options."""
    said = error_of(monkeypatch, tmp_path, CPU)
    assert said == "error: the following arguments are required: --tasks. --help lists all options."


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        (
            "tasks: [a.jsonl, b.jsonl]",
            "tasks takes one value; the YAML gives a list, ['a.jsonl', 'b.jsonl'].",
        ),
        ("tasks:", "tasks is empty in the YAML. Give it a value."),
        (
            "tasks: t.jsonl\neval_tasks: [a.jsonl]",
            "eval_tasks takes one value; the YAML gives a list, ['a.jsonl'].",
        ),
        (f"tasks: {DEMO}", "say which model to train: model_name_or_path, a folder or a hub id."),
        (f"tasks: {DEMO}\nschema: off", "unknown schema 'False'; allowed: names, full, none."),
        (f"tasks: {DEMO}\nstream: no", "stream must be a text, is False; in a YAML a bare no is False."),
        (f"tasks: {DEMO}\nharness: no", "harness must be a text, is False; in a YAML a bare no is False."),
        (f"tasks: {DEMO}\nsystem_prompt: {{a: 1}}", "system_prompt must be a text, is {'a': 1};"),
        (f"tasks: {DEMO}\nreward_weights: [1.0, much]", "reward_weights must be a number, is 'much'."),
        (f"tasks: {DEMO}\naccelerator_config: {{x: 1}}", "got an unexpected keyword argument 'x'"),
        *(
            (
                f"tasks: {DEMO}\nmodel_name_or_path: {TINY}\nmodel_init_kwargs: {{{name}: x}}",
                f"model_init_kwargs: {name} does not count for all that is loaded. Leave it out and set {own}.",
            )
            for name, own in (("revision", "model_revision"), ("torch_dtype", "dtype"))
        ),
    ],
)
def test_a_key_whose_value_is_of_the_wrong_kind(yaml, said, tmp_path, monkeypatch):
    assert said in error_of(monkeypatch, tmp_path, f"{CPU}{yaml}\n")


@pytest.mark.parametrize("yaml", ["tasks: [a", "- tasks", "1: 2", ""])
def test_a_yaml_without_keys(folders, yaml):
    with pytest.raises(ConfigError, match=r"'configs/my.yaml' (cannot be read as YAML|holds no keys)"):
        parsed(yaml)


@pytest.mark.parametrize(
    ("yaml", "key", "line"),
    [
        ("tasks: a.jsonl\noutput_dir: o\ntasks: b.jsonl", "tasks", 3),
        ("outcome:\n  wrong: -1\n  wrong: -0.5\n", "wrong", 3),
    ],
)
def test_a_key_that_stands_twice(folders, yaml, key, line):
    """The last would win."""
    with pytest.raises(ConfigError, match=rf"my.yaml' cannot be read as YAML: the key {key} .* line {line},"):
        parsed(yaml)
    merged = "x: &x {tasks: a.jsonl}\ny: {<<: *x, tasks: b.jsonl}\n"
    Path("merged.yaml").write_text(merged)
    assert read_recipe(Path("merged.yaml"))["y"] == {"tasks": "b.jsonl"}


def test_a_path_from_the_home_directory(folders, monkeypatch):
    monkeypatch.setenv("HOME", str(Path("configs").resolve()))
    assert parsed("tasks: ~/beside.jsonl").tasks == str(Path("configs/beside.jsonl").resolve())
    assert parsed("reward_funcs: [model:~/runs/rm]").reward_funcs == [
        f"model:{Path('configs/runs/rm').resolve()}"
    ]


def test_ways_to_name_the_yaml(folders):
    assert parsed("tasks: here.jsonl").tasks == "here.jsonl"
    (keys,) = RecipeParser([Keys]).parse_args_and_config(["--config=configs/my.yaml"])
    assert keys.tasks == "here.jsonl"
    for words in (["--config"], ["--config", "no.yaml"]):
        with pytest.raises(ConfigError, match="cannot be read as YAML"):
            RecipeParser([Keys]).parse_args_and_config(words)


def test_a_list_of_one_is_written_as_its_entry(folders):
    assert parsed("reward_funcs: outcome").reward_funcs == ["outcome"]


def test_numbers_in_a_list_and_names_of_digits(folders):
    """YAML reads 1e-1 as a text, and a name of digits as a number."""
    keys = parsed("reward_weights: [1e-1, 2]\noutput_dir: 20261129")
    assert keys.reward_weights == [0.1, 2.0] and keys.output_dir == "20261129"


def test_an_empty_text_is_no_folder(folders):
    """It was the YAML's folder, whose name an agent then had for its system prompt."""
    assert parsed("system_prompt: ''\ntasks: ''") == Keys(tasks="", system_prompt="")


# --- the devices ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "gpus", "seen"),
    [
        ({}, 8, "0"),
        ({}, 1, None),
        ({"WORLD_SIZE": "8"}, 8, None),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 1, "3"),
    ],
)
def test_a_process_alone_trains_on_one_gpu(environment, gpus, seen, monkeypatch, capfd):
    """With several, TRL would refuse nn.DataParallel, after the model is loaded."""
    monkeypatch.setattr(os, "environ", dict(environment))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    use_one_gpu()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
    assert ("Training on GPU 0 of 8." in capfd.readouterr().err) == (not environment and gpus == 8)


@pytest.mark.parametrize(
    ("key", "precision"), [("bf16: false", "no"), ("fp16: true", "fp16"), ("bf16: true", "bf16")]
)
def test_a_recipe_says_the_precision_and_not_accelerates_configuration(key, precision, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    (tmp_path / "my.yaml").write_text(f"use_cpu: true\n{key}\n")
    (args,) = RecipeParser([SFTConfig]).parse_args_and_config(
        ["--config", str(tmp_path / "my.yaml"), "--output_dir", str(tmp_path)]
    )
    assert args.mixed_precision == precision


@pytest.mark.parametrize(("written", "read"), [("False", "none"), ("true", "group"), ("batch", "batch")])
def test_scale_rewards_on_the_command_line(tmp_path, monkeypatch, written, read):
    """TRL refused the texts True and False after the first rollout."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("output_dir: out\nbf16: false\nuse_cpu: true\n")
    options = ["--config", "my.yaml", "--scale_rewards", written]
    (args,) = RecipeParser([DBBenchGRPOConfig]).parse_args_and_config(options)
    assert args.scale_rewards == read


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[query_key_value]", ["query_key_value"]),  # the text would be a pattern of a module's whole path
        ("query_key_value", ["query_key_value"]),
        ("[q_proj, v_proj]", ["q_proj", "v_proj"]),
        ("[all-linear]", "all-linear"),
        (r"'.*\.[01]\..*q_proj'", r".*\.[01]\..*q_proj"),
    ],
)
def test_layers_of_lora(tmp_path, monkeypatch, written, read):
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(f"use_peft: true\nlora_target_modules: {written}\n")
    (model,) = RecipeParser([ModelConfig]).parse_args_and_config(["--config", "my.yaml"])
    assert model.lora_target_modules == read


# --- a folder for each start ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("yaml", "options", "expected"),
    [
        ("eval_tasks: held_out.jsonl", [], ("steps", 0.9999999, True)),
        ("tasks: a.jsonl", ["--eval-tasks", "held_out.jsonl"], ("steps", 0.9999999, True)),
        ("eval_tasks: held_out.jsonl\neval_steps: 5", [], ("steps", 5, True)),
        ("eval_tasks: held_out.jsonl", ["--eval_on_start=false"], ("steps", 0.9999999, False)),
        ("eval_tasks: held_out.jsonl", ["--eval_strategy", "no"], ("no", None, False)),
        ("eval_tasks: held_out.jsonl\neval_strategy: epoch", [], ("epoch", None, False)),
        ("eval_tasks: held_out.jsonl\neval_strategy: no", [], ("no", None, False)),
        ("eval_tasks: null", [], ("no", None, False)),
    ],
)
def test_held_out_tasks_are_played_before_and_after_where_nothing_says_when(
    tmp_path, monkeypatch, yaml, options, expected
):
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(f"{yaml}\noutput_dir: out\nbf16: false\nuse_cpu: true\n")
    parser = RecipeParser([TaskArguments, TrainingArguments])
    tasks = [] if "tasks: a" in yaml else ["--tasks", "a.jsonl"]
    _, args = parser.parse_args_and_config(["--config", "my.yaml", *tasks, *options])
    assert (args.eval_strategy, args.eval_steps, args.eval_on_start) == expected


def test_the_evaluation_after_the_training_chooses_no_weights(tmp_path, monkeypatch):
    """The user read of eval_steps 0.9999999, which nobody had set."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(
        "tasks: a.jsonl\neval_tasks: b.jsonl\noutput_dir: out\nbf16: false\nuse_cpu: true\n"
    )
    parser = RecipeParser([TaskArguments, TrainingArguments])
    args = ["--config", "my.yaml", "--metric_for_best_model", "reward"]
    for asked in ("--load_best_model_at_end=true", "--save_strategy=best"):
        with pytest.raises(
            ConfigError, match=r"and eval_strategy is no. Set eval_strategy: steps, and eval_steps"
        ):
            parser.parse_args_and_config([*args, asked])
        parser.parse_args_and_config([*args, asked, "--eval_steps=5", "--save_steps=5"])


@pytest.mark.parametrize("flag", ["--no_gradient_checkpointing", "--gradient_checkpointing=false"])
def test_the_command_line_wins_over_the_yaml_under_an_older_name(tmp_path, monkeypatch, flag):
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("gradient_checkpointing: true\noutput_dir: out\nbf16: false\nuse_cpu: true\n")
    (args,) = RecipeParser([DBBenchGRPOConfig]).parse_args_and_config(["--config", "my.yaml", flag])
    assert not args.gradient_checkpointing


def output_dir(pattern: str, **settings: object) -> str:
    arguments = TrainingArguments(output_dir=pattern, use_cpu=True, report_to=[], **settings)
    put_timestamp(arguments)
    return arguments.output_dir


def checkpoint(folder: str) -> None:
    """One that is whole: transformers' last file is there."""
    Path(folder).mkdir(parents=True)
    (Path(folder) / "trainer_state.json").write_text("{}")


def test_a_run_has_the_time_of_its_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert re.fullmatch(r"runs/first-\d{8}-\d{6}", output_dir("runs/first-{TIMESTAMP}"))
    assert output_dir("runs/first") == "runs/first"
    both = TrainingArguments(output_dir="runs/{TIMESTAMP}", run_name="try {TIMESTAMP}", use_cpu=True)
    put_timestamp(both)
    assert both.run_name == both.output_dir.replace("runs/", "try ")


def test_a_resumed_run_keeps_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old, last, empty = "runs/a-20260101-120000", "runs/a-20260102-120000", "runs/a-20260103-120000"
    checkpoint(f"{old}/checkpoint-9")
    checkpoint(f"{last}/checkpoint-2")
    Path(empty).mkdir()  # a run that was killed before its first checkpoint
    checkpoint("runs/a-latest/checkpoint-2")
    pattern = "runs/a-{TIMESTAMP}"
    assert output_dir(pattern, resume_from_checkpoint="true") == last
    for named in (f"{old}/checkpoint-9", f"./{old}/checkpoint-9", str(tmp_path / old / "checkpoint-9")):
        assert output_dir(pattern, resume_from_checkpoint=named) == old
    new = output_dir(pattern, resume_from_checkpoint="false")
    assert new not in (old, last, empty)
    assert output_dir("runs/b-{TIMESTAMP}", resume_from_checkpoint="true").startswith("runs/b-2")


@pytest.mark.slow
def test_ranks_share_a_folder_and_the_same_command_resumes_in_it(tmp_path):
    command = [sys.executable, "-m", "trl_dbbench", "train", "quickstart", "--num-processes", "2", *SMALL]
    command += ["--per_device_train_batch_size", "2", "--output_dir", "runs/{TIMESTAMP}"]
    command += ["--resume_from_checkpoint", "true"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for steps in ("1", "2"):
        run = Forked([*command, "--max_steps", steps], cwd=tmp_path, env=environment)
        assert run.wait(timeout=300) == 0
        (folder,) = (tmp_path / "runs").iterdir()
        assert re.fullmatch(r"\d{8}-\d{6}", folder.name)
        assert (folder / f"checkpoint-{steps}" / "trainer_state.json").exists()


# --- make -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("3.9", "PYTHON=3.9 is not a program that runs Python 3.11 or newer: .*not found"),
        ("./python3.9", "PYTHON=./python3.9 is not a program that runs Python 3.11 or newer: Python 3.9.2"),
        ("./no-venv", "./no-venv cannot make a virtual environment"),
    ],
)
def test_make_with_a_python_that_will_not_do(tmp_path, python, said):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    scripts = {
        "python3.9": '[ "$1" = --version ] && echo Python 3.9.2 && exit; exit 1',
        "no-venv": '[ "$1" = -c ] && exit; mkdir -p .venv/bin; echo ensurepip is not available; exit 1',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    # not as a part of the `make test` that runs this
    own = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    run = subprocess.run(
        ["make", "install", f"PYTHON={python}"], cwd=tmp_path, env=own, capture_output=True, text=True
    )
    assert run.returncode != 0
    assert re.match(said, run.stdout.splitlines()[-1])
    assert not (tmp_path / ".venv").exists()
