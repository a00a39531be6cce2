"""The recipe as a user starts it: every kind of database, two ranks, a killed run, bad input."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from launching import QUICKSTART, RECIPE, ROOT, SMALL, children_of, finish, launch, run_here
from peft import PeftModel
from sqlalchemy import create_engine, text
from training import episodes_in
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_dbbench.database import Database

AGENTBENCH = ROOT.parent / "shared" / "data" / "agentbench" / "dev.jsonl"
SFT = ROOT / "recipes" / "sft_gold.yaml"


def run_recipe(monkeypatch: pytest.MonkeyPatch, *options: object) -> None:
    """In this process: most of the time of one of its own goes into imports."""
    run_here(monkeypatch, RECIPE, "--config", QUICKSTART, *SMALL, *options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "local", "docker", "url"])
def test_agentbench_tasks_on_every_kind_of_database(kind, tmp_path, request, monkeypatch, capsys):
    if not AGENTBENCH.exists():
        pytest.skip(f"AgentBench's tasks are not there: {AGENTBENCH}")
    fixture = {"url": "docker_database"}.get(kind, f"{kind}_database")
    database: Database = request.getfixturevalue(fixture)  # skips where this machine has none
    spec = database.url if kind == "url" else kind

    run_recipe(
        monkeypatch,
        *("--tasks", AGENTBENCH, "--database", spec),
        *("--max_steps", 2, "--output_dir", tmp_path),
    )

    assert "overall" in capsys.readouterr().out, "greedy accuracy is printed at the end"
    phases = [episode["phase"] for episode in episodes_in(tmp_path)]
    assert phases == ["greedy", "train", "train", "train", "train"] * 2
    assert "environment_fault" not in {episode["status"] for episode in episodes_in(tmp_path)}
    model = AutoModelForCausalLM.from_pretrained(ROOT / "recipes" / "tiny" / "model")
    PeftModel.from_pretrained(model, tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template


def databases_and_accounts(url: str) -> set[str]:
    with create_engine(url).connect() as connection:
        names = connection.execute(text("SHOW DATABASES")).scalars().all()
        return {*names, *connection.execute(text("SELECT user FROM mysql.user")).scalars().all()}


@pytest.mark.slow
def test_two_ranks_share_a_server_and_leave_nothing(tmp_path, local_database):
    """Rank r's databases are named after it; the rows of both are in one log."""
    before = databases_and_accounts(local_database.url)
    with create_engine(local_database.url).begin() as connection:
        connection.execute(text("SET GLOBAL general_log = 1, GLOBAL log_output = 'TABLE'"))
    finish(
        launch(
            *("--database", local_database.url, "--protocol", "tools", "--max_turn_tokens", 8),
            *("--max_steps", 2, "--per_device_train_batch_size", 2, "--output_dir", tmp_path),
            processes=2,
        )
    )
    with create_engine(local_database.url).begin() as connection:
        connection.execute(text("SET GLOBAL general_log = 0"))
        log = connection.execute(
            text(
                "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log WHERE argument LIKE 'CREATE DATABASE%'"
            )
        )
        created = {line.split("`")[1] for line in log.scalars()}

    # dbb_<run>_r<rank>_s<slot>, with as many digits in each run
    assert len({name.split("_")[1] for name in created}) == 1
    assert {name.split("_")[2] for name in created} == {"r00000", "r00001"}
    assert databases_and_accounts(local_database.url) == before
    assert [e["phase"] for e in episodes_in(tmp_path)] == ["greedy", "train", "train", "train", "train"] * 2


@pytest.mark.parametrize(
    ("spec", "named"), [("local", 1), pytest.param("local:2", 3, marks=pytest.mark.slow)]
)
def test_two_ranks_train_on_what_rank_0_starts(spec, named, tmp_path, local_database, monkeypatch):
    """...and that is gone afterwards, with its data."""
    with tempfile.TemporaryDirectory(prefix="ranks") as temporary:  # a socket's path must be short
        monkeypatch.setenv("TMPDIR", temporary)
        output = finish(
            launch(
                *("--database", spec, "--max_steps", 2),
                *("--per_device_train_batch_size", 2, "--output_dir", tmp_path),
                processes=2,
            )
        )
        assert list(Path(temporary).glob("dbb*")) == []
        servers = subprocess.run(["pgrep", "-f", f"datadir={temporary}"], capture_output=True, text=True)
        assert servers.stdout == ""
    assert output.count("private server") == named, "only rank 0 starts any; of several it gives figures"
    assert len(episodes_in(tmp_path)) == 10


@pytest.mark.slow
def test_a_killed_process_resumes_at_its_last_checkpoint(tmp_path, monkeypatch):
    options = ("--max_steps", 40, "--save_steps", 2, "--output_dir", tmp_path)
    process = launch(*options)
    checkpoint = tmp_path / "checkpoint-2" / "trainer_state.json"
    deadline = time.monotonic() + 200
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    for each in (process.pid, *children_of(process.pid)):
        os.kill(each, signal.SIGKILL)
    process.communicate()

    run_recipe(monkeypatch, *options[2:], "--max_steps", 6, "--resume_from_checkpoint", "true")

    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["global_step"] == 6
    states = torch.load(tmp_path / "checkpoint-6" / "states.pt", weights_only=True)
    right, played = states["greedy_eval"]["counts"]["overall"]
    assert (right, played) == (sum(e["right"] for e in episodes_in(tmp_path) if e["phase"] == "greedy"), 6)
    greedy = [e["step"] for e in episodes_in(tmp_path) if e["phase"] == "greedy"]
    assert greedy == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_the_warm_start(tmp_path, tiny_tasks, monkeypatch, caplog):
    """Gold episodes of generated tasks; the model and tokenizer that come out go into GRPO."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f"{task.to_json()}\n" for task in tiny_tasks[:40]))
    options = ["--tasks", tasks, "--output_dir", tmp_path / "sft", "--max_steps", 3]
    options += ["--per_device_train_batch_size", 8]
    with caplog.at_level(logging.INFO):
        run_here(monkeypatch, ROOT / "recipes" / "sft_dbbench.py", "--config", SFT, *options)
    assert "40 demonstrations, " in caplog.text

    warm = tmp_path / "sft"
    run_recipe(
        monkeypatch,
        *("--model_name_or_path", warm, "--tasks", tasks, "--max_steps", 1),
        *("--system_prompt", "Work on the MySQL database.", "--output_dir", tmp_path / "grpo"),
    )
    adapter = json.loads((tmp_path / "grpo" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(warm)


@pytest.mark.slow
def test_a_warm_start_resumes_the_adapter_that_it_trained(tmp_path, monkeypatch):
    sft = [
        ROOT / "recipes" / "sft_dbbench.py",
        "--config",
        SFT,
        "--output_dir",
        tmp_path,
        "--use_peft",
        "true",
    ]
    sft += ["--save_strategy", "steps", "--save_steps", 1, "--per_device_train_batch_size", 4]
    run_here(monkeypatch, *sft, "--lora_r", 4, "--max_steps", 1)
    again = ["--max_steps", 2, "--resume_from_checkpoint", "true"]
    with pytest.raises(SystemExit, match="checkpoint-1' holds an adapter of another shape: r is 8"):
        run_here(monkeypatch, *sft, "--lora_r", 8, *again)
    run_here(monkeypatch, *sft, "--lora_r", 4, *again)
    assert (tmp_path / "checkpoint-2").exists()


# --- bad input: one clear line, no traceback ------------------------------------------------------


def error_of(monkeypatch: pytest.MonkeyPatch, *options: object) -> str:
    """What the recipe ends with."""
    with pytest.raises(SystemExit) as ended:
        run_recipe(monkeypatch, *options)
    assert ended.value.__suppress_context__, "no traceback from the depths"
    return str(ended.value.code)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "nowhere.jsonl"], "error: no task file at 'nowhere.jsonl'"),
        (
            ["--num_generations", "3"],
            r"error: generation_batch_size \(4\) must be divisible by num_generations \(3\)",
        ),
        (["--database", "oracle"], "error: .*oracle"),
        (["--database", "mysql+pymysql://root@127.0.0.1:9/"], "error: .*127.0.0.1:9"),
        (
            ["--reward_funcs", "luck"],
            "error: unknown reward function 'luck'; allowed: outcome, answer_seen, efficiency",
        ),
        (
            ["--reward_funcs", "no_such_module.luck"],
            "error: the reward function 'no_such_module.luck' cannot be imported",
        ),
        (["--model_name_or_path", "no-such-model"], "error: the model 'no-such-model' cannot be loaded"),
        (["--system_prompt", "nowhere.txt"], "error: the system prompt cannot be read"),
        (["--max_turns", "0"], "error: max_turns must be at least 1"),
    ],
)
def test_bad_input_ends_in_one_clear_error(options, message, monkeypatch, tmp_path):
    assert __import__("re").match(message, error_of(monkeypatch, "--output_dir", tmp_path, *options))


def test_docker_named_but_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert "Docker" in error_of(monkeypatch, "--output_dir", tmp_path, "--database", "docker")


def test_an_unknown_yaml_key_is_refused(monkeypatch, tmp_path):
    config = tmp_path / "typo.yaml"
    config.write_text(QUICKSTART.read_text() + "\nlearning_rat: 1.0e-5\n")
    monkeypatch.setattr(sys.modules[__name__], "QUICKSTART", config)
    assert "learning_rat" in error_of(monkeypatch)


def test_a_long_prompt_is_named(monkeypatch, tmp_path):
    tasks = tmp_path / "long.jsonl"
    table = {"name": "t", "columns": [{"name": "a"}], "rows": []}
    tasks.write_text(
        json.dumps(
            {"id": "epic", "question": " ".join(map(str, range(3000))), "tables": [table], "answer": [[1]]}
        )
    )
    assert "the prompt of task 'epic' has" in error_of(
        monkeypatch, "--tasks", tasks, "--output_dir", tmp_path
    )
