"""A wrong setting or path is reported at once, with the nearest right one."""

from __future__ import annotations

import json
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from launching import RECIPE, SMALL
from test_evaluation import QUESTION, written
from test_start import Keys, folders, parsed
from torch.distributed.elastic.multiprocessing import SignalException
from transformers import TrainingArguments
from trl import GRPOConfig

from trl_dbbench import DBBenchGRPOConfig, RewardArguments, __version__, open_database
from trl_dbbench.cli.arguments import outcome_reward
from trl_dbbench.cli.bundled import launch
from trl_dbbench.cli.start import RecipeParser
from trl_dbbench.episode.types import Episode, Sampling, Status
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.runs.records import episode_record
from trl_dbbench.tasks import load_tasks
from trl_dbbench.tasks.csv_tables import read_csv_tables
from trl_dbbench.training import unsupported

__all__ = ["RECIPE", "SMALL", "folders"]


def config(tmp_path: Path, **settings: Any) -> DBBenchGRPOConfig:
    return DBBenchGRPOConfig(output_dir=str(tmp_path), **{"use_cpu": True, "bf16": False, **settings})


# --- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "nearest"),
    [
        ("loss_type", "grop", "grpo"),
        ("scale_rewards", "groups", "group"),
        ("importance_sampling_level", "tokens", "token"),
        ("multi_objective_aggregation", "sum_then_normalise", "sum_then_normalize"),
        ("optim", "adamwtorch", "adamw_torch"),
        ("lr_scheduler_type", "cosin", "cosine"),
        ("eval_strategy", "step", "steps"),
        ("save_strategy", "epochs", "epoch"),
        ("report_to", "wandbb", "wandb"),
        ("greedy_eval", "batched", "batch"),
    ],
)
def test_a_choice_that_is_misspelled(tmp_path: Path, setting: str, value: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown {setting} '{value}'; allowed: .*; nearest: {nearest}\."):
        config(tmp_path, **{setting: value})


@pytest.mark.parametrize("value", unsupported.CHOICES_OF_TRL[GRPOConfig]["loss_type"])
def test_losses_of_trl_are_allowed(tmp_path: Path, value: str) -> None:
    assert config(tmp_path, loss_type=value).loss_type == value


@pytest.mark.parametrize("value", [True, False, "group", "batch", "none"])
def test_scales_of_trl_are_allowed(tmp_path: Path, value: object) -> None:
    config(tmp_path, scale_rewards=value)


def test_bf16_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsupported, "is_torch_bf16_gpu_available", lambda: False)
    monkeypatch.setattr(unsupported.torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"bf16: no GPU is seen here. Set use_cpu: true"):
        config(tmp_path, use_cpu=False, bf16=None)


NEEDED: dict[str, dict[str, Any]] = {
    "grpo": {"tasks": "t.jsonl"},
    "environment": {"tasks": "t.jsonl"},
    "sft": {"tasks": "t.jsonl"},
    "rm": {"episodes": ["run"]},
    "prm": {"episodes": ["run"], "placeholder_token": "<step>"},
}
"""Settings that each recipe requires. The files do not exist, so loading them would be another error."""


def parsed_by(recipe: str, folder: Path, *options: str, **settings: Any) -> tuple[Any, ...]:
    """The settings of a recipe that has these in its YAML."""
    script = RECIPE.with_name(f"{recipe}_dbbench.py")
    keys = {
        "model_name_or_path": "./no-model",
        "output_dir": str(folder / "run"),
        "use_cpu": True,
        "bf16": False,
    }
    (folder / "my.yaml").write_text(yaml.safe_dump(keys | NEEDED[recipe] | settings))
    parser = RecipeParser(runpy.run_path(str(script), run_name="recipe")["ARGUMENTS"])
    return parser.parse_args_and_config(["--config", str(folder / "my.yaml"), *options])


@pytest.mark.parametrize("place", ["the YAML", "the command line"])
@pytest.mark.parametrize(
    ("recipe", "setting", "value", "said"),
    [
        ("sft", "loss_type", "nnl", "unknown loss_type 'nnl'; allowed: nll, dft, .*; nearest: nll"),
        ("prm", "loss_type", "dtf", "unknown loss_type 'dtf'; allowed: nll, dft, .*; nearest: dft"),
        ("environment", "loss_type", "grop", "unknown loss_type 'grop'; allowed: grpo, dapo, .*; nearest: grpo"),
        ("sft", "packing_strategy", "bdf", "unknown packing_strategy 'bdf'; .*; nearest: bfd"),
        ("rm", "optim", "adamwtorch", "unknown optim 'adamwtorch'; .*; nearest: adamw_torch"),
        ("sft", "lr_scheduler_type", "cosin", "unknown lr_scheduler_type 'cosin'; .*; nearest: cosine"),
        ("prm", "save_strategy", "epochs", "unknown save_strategy 'epochs'; .*; nearest: epoch"),
        ("rm", "dtype", "bfloat61", "unknown dtype 'bfloat61'; .*; nearest: bfloat16"),
        ("rm", "report_to", "wandbb", "unknown report_to 'wandbb'; .*; nearest: wandb"),
        ("grpo", "schema", "ful", "unknown schema 'ful'; .*; nearest: full"),
        ("sft", "save_dtype", "bfloat61", "unknown save_dtype 'bfloat61'; .*; nearest: bfloat16"),
        ("sft", "protocol", "texts", "unknown protocol 'texts'; .* Nearest: text"),
        ("rm", "held_out_share", 20, "held_out_share must be a share from 0 to 1, is 20"),
        ("rm", "pairs_per_task", 0, "pairs_per_task must be at least 1, is 0"),
        ("prm", "continuations", 0, "continuations must be at least 1, is 0"),
        ("prm", "reward_tokens", "+", "reward_tokens, one for good and one for bad"),
        ("prm", "chat_template", "qwen3_trainig", "qwen3_trainig"),
    ],
)  # fmt: skip
def test_every_recipe_checks_all_settings_before_anything_is_loaded(
    tmp_path: Path, recipe: str, setting: str, value: Any, said: str, place: str
) -> None:
    in_yaml = place == "the YAML"
    more = [] if in_yaml else [f"--{setting}", str(value)]
    listed = setting in ("bad_habit_skills", "reward_tokens")
    with pytest.raises(ConfigError, match=said):
        parsed_by(recipe, tmp_path, *more, **({setting: [value] if listed else value} if in_yaml else {}))


@pytest.mark.parametrize("recipe", NEEDED)
def test_lora_that_is_not_switched_on(recipe: str, tmp_path: Path) -> None:
    """All weights would be trained, at a learning rate for LoRA."""
    with pytest.raises(ConfigError, match="lora_r is used only with use_peft: true; set that"):
        parsed_by(recipe, tmp_path, lora_r=8)
    for asked in (True, False):
        *_, model = parsed_by(recipe, tmp_path, lora_r=8, use_peft=asked)
        assert model.lora_r == 8


@pytest.mark.parametrize("recipe", NEEDED)
@pytest.mark.parametrize(("name", "value"), [("bnb_4bit_quant_type", "fp4"), ("use_bnb_nested_quant", True)])
def test_how_4_bits_are_made_goes_with_them(recipe: str, name: str, value: Any, tmp_path: Path) -> None:
    for others in ({}, {"load_in_8bit": True, "use_peft": True}):
        with pytest.raises(
            ConfigError, match=f"{name} is used only with load_in_4bit: true; set that, or leave"
        ):
            parsed_by(recipe, tmp_path, **{name: value}, **others)
    quantized = {"load_in_4bit": True, "use_peft": True, "dtype": "bfloat16"}
    *_, model = parsed_by(recipe, tmp_path, **{name: value}, **quantized)
    assert getattr(model, name) == value


@pytest.mark.parametrize("recipe", NEEDED)
def test_bf16_without_a_gpu_in_every_recipe(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsupported, "is_torch_bf16_gpu_available", lambda: False)
    monkeypatch.setattr(unsupported.torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"bf16: no GPU is seen here. Set use_cpu: true"):
        parsed_by(recipe, tmp_path, use_cpu=False, bf16=True)


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("recipe", NEEDED)
def test_right_settings_are_let_through(recipe: str, tmp_path: Path) -> None:
    *_, args, _ = parsed_by(recipe, tmp_path, optim="adamw_torch", save_strategy=False, report_to="none")
    assert (args.optim, args.save_strategy) == ("adamw_torch", "no"), "as YAML reads a bare `no`"


def test_a_bare_off_is_a_choice(tmp_path: Path) -> None:
    *_, args, _ = parsed_by("grpo", tmp_path, greedy_eval=False)
    assert args.greedy_eval == "off"


def test_unknown_keys_name_the_nearest(folders: None) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'system_promt'; nearest: system_prompt\. --help"):
        parsed("system_promt: hello")
    with pytest.raises(ConfigError, match=r"unknown setting 'outputdir'; nearest: output_dir\."):
        RecipeParser([Keys]).parse_args_and_config(["--outputdir", "runs"])


def test_choices_of_the_command_line_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown lr_scheduler_type 'cosin'; .*; nearest: cosine\."):
        RecipeParser([TrainingArguments]).parse_args_and_config(["--lr_scheduler_type", "cosin"])


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize(
    "given", [["--gradient_checkpointing", "true"], ["--gradient-checkpointing=true"], []]
)
def test_settings_that_were_renamed_warn_of_nothing(given: list[str], tmp_path: Path) -> None:
    yaml = tmp_path / "my.yaml"
    yaml.write_text("gradient_checkpointing: false\nuse_cpu: true\nbf16: false\n")
    command = ["--config", str(yaml), "--output_dir", str(tmp_path), *given]
    (args,) = RecipeParser([TrainingArguments]).parse_args_and_config(command)
    assert args.gradient_checkpointing is bool(given), "the command line wins"


def test_the_older_and_the_newer_name_of_a_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is the older name of activation_checkpointing; give one of them"):
        parsed_by("sft", tmp_path, "--gradient_checkpointing", "false", activation_checkpointing=True)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_defaults_of_trl_warn_of_nothing(tmp_path: Path) -> None:
    assert config(tmp_path).gradient_checkpointing is True


def test_a_library_says_a_warning_once() -> None:
    """A library with a handler of its own would say it there and by the root's."""
    script = (
        "import logging, sys; logging.basicConfig(stream=sys.stdout); import huggingface_hub\n"
        "from trl_dbbench.utils.console import plain_output; plain_output()\n"
        "logging.getLogger('huggingface_hub.file_download').warning('Retrying in 1s')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout + done.stderr).count("Retrying in 1s") == 1


# --- paths and commands -----------------------------------------------------------------------------------


def test_no_adapter(command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first").mkdir()
    for words in (["merge", "--out", "x"], ["eval", "--tasks", "t.jsonl"]):
        assert command(*words, "--adapter", "frist")[0].startswith(
            "error: --adapter: 'frist' is not an adapter's folder here; nearest: first."
        )


def test_no_model_and_no_run(command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    said = "error: --model: the folder 'folder' holds no model: it has no config.json."
    assert command("eval", "--model", "folder", "--tasks", "t.jsonl")[0] == said
    assert "'nope' has no episodes.jsonl" in command("export", "nope", "--to", "sft")[0]


def test_a_file_that_may_not_be_read_is_one_line(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", "t.jsonl")

    monkeypatch.setattr("trl_dbbench.cli.tasks.load_tasks", refused)
    assert command("skills", "t.jsonl")[0] == "error: [Errno 13] Permission denied: 't.jsonl'"


def test_no_csv_file(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("a\n1\n")
    with pytest.raises(TaskError, match=r"there is no file '.*order.csv'; nearest: .*orders.csv\."):
        read_csv_tables([tmp_path / "order.csv"])
    with pytest.raises(TaskError, match=r"no task file at '.*order.csv'; nearest: .*orders.csv\."):
        load_tasks(tmp_path / "order.csv")


def test_the_version(command: Callable) -> None:
    assert command("--version") == (0, f"trl-dbbench {__version__}\n")


INTERRUPTED_WHILE_IT_IMPORTS = """
import os, signal, subprocess, sys
import accelerate.commands.launch as launcher
from trl_dbbench.cli.bundled import launch

def launched(args):
    child = subprocess.Popen([sys.executable, "-c", SCRIPT])
    os.killpg(0, signal.SIGINT)  # as a terminal does
    child.wait()
    sys.exit(1)  # whatever the script's status is

SCRIPT = '''
from trl_dbbench.training.stopping import ordered_end
with ordered_end():
    print("it trains")
'''
launcher.launch_command = launched
launch(["python", "-m", "accelerate", "script.py"])
"""


@pytest.mark.slow
def test_ctrl_c_while_a_run_still_imports() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IT_IMPORTS],
        check=False,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert "Ctrl-C ended it at once." in ended.stderr
    assert "Traceback" not in ended.stderr


TERMINATED = """
import signal, subprocess, sys
import accelerate.commands.launch as launcher
from trl_dbbench.cli.bundled import launch

def launched(args):
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE)
    child.stdout.readline()
    signal.raise_signal(signal.SIGTERM)  # as `docker stop` does
    print(child.communicate()[0].decode(), flush=True)
    sys.exit(1)  # whatever the script's status is

SCRIPT = r'''
import os, signal, sys, time
def save(*_):
    os.write(1, b"it saves\\n")  # print may be what the signal has interrupted
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
os.write(1, b"it trains\\n")
time.sleep(30)
'''
launcher.launch_command = launched
launch(["python", "-m", "accelerate", "script.py"])
"""


def test_sigterm_is_passed_on_to_the_run_and_waits_for_it() -> None:
    """The command ended at once, and its run went on alone; a container's first process passed over it."""
    ended = subprocess.run([sys.executable, "-c", TERMINATED], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (143, "it saves\n\n"), ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_signal_ends_several_ranks_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their launcher, PyTorch's elastic agent, takes signals itself, and raises."""

    def launched(args: object) -> None:
        raise SignalException("Process 7 got signal: 2", sigval=signal.SIGINT)

    monkeypatch.setattr("accelerate.commands.launch.launch_command", launched)
    for name in ("signal", "pthread_sigmask"):
        monkeypatch.setattr(signal, name, lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        launch([sys.executable, "-m", "accelerate.commands.launch", "script.py"])
    assert ended.value.code == 128 + signal.SIGINT


def test_a_signal_that_the_command_ignores_is_ignored_by_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `&` in a script: what handles a signal cannot hand on that it is ignored."""
    handled: list[int] = []
    monkeypatch.setattr("accelerate.commands.launch.launch_command", lambda args: None)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    monkeypatch.setattr(signal, "signal", lambda number, handler: handled.append(number))
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    launch([sys.executable, "-m", "accelerate.commands.launch", "script.py"])
    assert not handled


def test_ctrl_c_while_the_command_still_imports() -> None:
    script = (
        "import signal, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'trl_dbbench.cli':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from trl_dbbench.__main__ import main\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_sqlite_tasks_need_no_server(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = written(tmp_path / "t.jsonl", replace(QUESTION, dialect="sqlite"))
    (tmp_path / "p.json").write_text('{"dear": "SELECT name FROM fruits WHERE price > 2"}')
    monkeypatch.setenv("PATH", "")  # no docker and no mariadbd
    code, out = command("scores", tasks, tmp_path / "p.json")
    assert (code, "100.0%" in out) == (0, True)
    assert command("validate", tasks)[0] == 0


def test_a_report_without_matplotlib_is_a_report(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trl_dbbench.evaluation.report.figures.find_spec", lambda name: None)
    record = episode_record(Episode(QUESTION, [], Sampling(), status=Status.TURN_LIMIT), "train", 0)
    (tmp_path / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    code, out = command("report", tmp_path)
    assert code == 0, code
    assert "note: no PNG files: figures need matplotlib" in out
    assert (tmp_path / "report.html").is_file()
    code, _ = command("report", tmp_path, "--figures", tmp_path / "f")
    assert code.startswith("error: --figures: figures need matplotlib")


@pytest.mark.parametrize(
    ("recipe", "setting", "value", "said"),
    [
        ("grpo", "max_turns", 2.5, "max_turns must be a whole number, is 2.5"),
        ("grpo", "seed", 1.5, "seed must be a whole number, is 1.5"),
        ("grpo", "few_shot", True, "few_shot must be a whole number, is True"),
        ("grpo", "stage_steps", 2.5, "stage_steps must be a whole number, is 2.5"),
        ("grpo", "max_concurrent_episodes", float("nan"), "must be a whole number, is nan"),
        ("grpo", "reward_weights", [1.0, float("nan")], "reward_weights must be a number, is nan"),
        ("sft", "learning_rate", True, "learning_rate must be a number, is True"),
        ("rm", "max_steps", 2.5, "max_steps must be a whole number, is 2.5"),
    ],
)
def test_what_is_no_number(recipe: str, setting: str, value: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parsed_by(recipe, tmp_path, **{setting: value})


def test_what_is_no_number_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="temperature must be a number, is nan"):
        parsed_by("grpo", tmp_path, "--temperature", "nan")


def test_a_whole_float_is_a_whole_number(tmp_path: Path) -> None:
    *_, args, _ = parsed_by("grpo", tmp_path, max_turns=4.0, max_grad_norm=float("inf"))
    assert (args.max_turns, type(args.max_turns), args.max_grad_norm) == (4, int, float("inf"))


@pytest.mark.parametrize(
    "name",
    [
        *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"),
        *("generation_batch_size", "num_generations", "num_iterations", "per_device_eval_batch_size"),
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_of_nothing(name: str, value: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, is {value}"):
        config(tmp_path, **{name: value})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beta": -0.1}, "beta must be 0 or more, is -0.1. Below, a KL would be paid for."),
        ({"learning_rate": -1e-5}, "learning_rate must be 0 or more, is -1e-05."),
        ({"learning_rate": float("inf")}, "learning_rate must be a finite number, is inf."),
        ({"epsilon": -0.2}, "epsilon must be 0 or more, is -0.2."),
        ({"temperature": float("inf")}, "temperature must be a finite number, is inf."),
        ({"temperature": -1.0}, "temperature must be above 0, is -1.0."),
        ({"max_steps": 0}, "max_steps must be at least 1, or -1 to go by num_train_epochs, is 0."),
        ({"num_train_epochs": 0}, "num_train_epochs must be above 0, is 0."),
        ({"adam_beta2": 1.0}, "adam_beta2 must be a share from 0 on and below 1, is 1.0."),
        ({"seed": -1}, "seed must be from 0 to 4294967295, is -1."),
        ({"vllm_gpu_memory_utilization": 30}, "vllm_gpu_memory_utilization must be above 0 and at most 1, is 30."),
        ({"vllm_max_model_length": 0}, "vllm_max_model_length must be at least 1, is 0. Leave it out for"),
        ({"vllm_tensor_parallel_size": 0}, "vllm_tensor_parallel_size must be at least 1, is 0."),
    ],
)  # fmt: skip
def test_out_of_range(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        config(tmp_path, **settings)
    with pytest.raises(ConfigError, match=re.escape(said)):
        parsed_by("grpo", tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learning_rate": "abc"}, "learning_rate must be a number, is 'abc'."),
        ({"num_generations": "8"}, "num_generations must be a whole number, is '8'."),
        ({"max_steps": 2.5}, "max_steps must be a whole number, is 2.5."),
        ({"beta": float("nan")}, "beta must be a number, is nan."),
        ({"reward_weights": [1.0, "2"]}, "reward_weights must be a number, is '2'."),
        ({"logging_steps": [1]}, "logging_steps must be a number, is [1]."),
    ],
)
def test_a_number_in_python(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        config(tmp_path, **settings)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    args = config(tmp_path, learning_rate=np.float32(0.5), max_steps=np.int64(3))
    assert (args.learning_rate, args.max_steps) == (0.5, 3)


def test_a_text_is_a_list_of_one_in_python(tmp_path: Path) -> None:
    args = config(tmp_path, vllm_server_urls="http://10.0.0.7:8000/", stream="skills", stage_steps=2)
    assert (args.vllm_server_urls, args.stream) == (["http://10.0.0.7:8000"], "skills")
    with open_database("sqlite") as database:
        (reward,) = RewardArguments("outcome").load(database)
    assert reward.__name__ == "outcome"


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ({"wrong": float("nan")}, "outcome: wrong must be a number, is nan."),
        ('{"wrong": Infinity}', "outcome: wrong must be a finite number, is inf."),
        ({"wrong": "-1"}, "outcome: wrong must be a number, is '-1'."),
        ({"wrongg": -1}, "outcome must give numbers for some of right, wrong,"),
        ("low", "outcome must give numbers for some of right, wrong,"),
    ],
)
def test_values_of_the_outcome(outcome: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        outcome_reward("reinforce", outcome)


@pytest.mark.parametrize(
    "url", [5, None, "http://[::1", "http://a:999999", "http://a:80:90", "http://a:x", "http://a b:80"]
)
def test_addresses_of_no_server(url: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a server's address; give scheme, host and port alone"):
        config(tmp_path, use_vllm=True, vllm_mode="server", vllm_server_urls=[url])


def test_an_empty_host(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vllm_server_host is empty"):
        config(tmp_path, use_vllm=True, vllm_mode="server", vllm_server_host=None)
