"""A run that is pushed to the hub: what arrives there, and a model card that is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub import Hub, local_hub
from huggingface_hub import HfApi, ModelCard
from launching import QUICKSTART, RECIPE, ROOT

from trl_dbbench.errors import ConfigError
from trl_dbbench.training.model_card import _accuracy, _command
from trl_dbbench.training.resume import telling_of_the_hub

OPTIONS = {
    "max_steps": 1,
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 12,
    "eval_steps": 1,
    "temperature": 0.9,
    "push_to_hub": "true",
    "hub_model_id": "me/agent",
    "hub_token": "hf_secret",
}


def published(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The recipe with a hub at this address, on 24 tasks and 12 held-out ones."""
    for name, count in {"train": 24, "test": 12}.items():
        lines = (ROOT / "recipes" / "tiny" / f"{name}.jsonl").read_text().splitlines(keepends=True)
        (folder / f"{name}.jsonl").write_text("".join(lines[:count]))
    options = {"config": QUICKSTART, "output_dir": folder / "run", **OPTIONS}
    options |= {"tasks": folder / "train.jsonl", "eval_tasks": folder / "test.jsonl"}
    command = [sys.executable, str(RECIPE)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    away = {
        "HF_ENDPOINT": url,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
    }
    return subprocess.run(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | away,
        timeout=300,
    )


@pytest.fixture(scope="module")
def pushed(tmp_path_factory) -> tuple[Hub, Path]:
    folder = tmp_path_factory.mktemp("published")
    with local_hub() as hub:
        done = published(hub.url, folder)
    assert done.returncode == 0, done.stdout
    return hub, folder / "run"


@pytest.mark.slow
def test_what_arrives(pushed):
    """The adapter, what it takes to play it, and every episode; no checkpoint, no lock."""
    hub, run = pushed
    assert set(hub.created) == {"me/agent"}
    assert hub.tokens == {"Bearer hf_secret"}
    assert {
        *("README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja"),
        *("tokenizer.json", "tokenizer_config.json", "training_args.bin"),
        *("episodes.jsonl", "metrics.jsonl", "run.json", "tasks.jsonl"),
    } == set(hub.files)
    for name, content in hub.files.items():
        assert content == (run / name).read_bytes(), name
        assert b"hf_secret" not in content, name
    assert hub.commits[-1][0] == "End of training"


def test_the_card_is_true(pushed):
    hub, run = pushed
    card = ModelCard(hub.files["README.md"].decode())
    assert card.data.to_dict() == {
        "library_name": "peft",
        "model_name": "agent",
        "pipeline_tag": "text-generation",
        "tags": ["dbbench", "generated_from_trainer", "grpo", "lora", "trl"],
    }
    text = card.content
    for untrue in ("None", "nan", "hf_secret", "time machine", "pipeline("):
        assert untrue not in text
    assert (
        "# me/agent\n\nA LoRA adapter on a model that is not on the hub: an agent that gets a question"
        in text
    )
    evaluation = [line for line in text.splitlines() if line.startswith("| overall |")]
    before, after = held_out(run, 0), held_out(run, 1)
    assert evaluation == [f"| overall | {before} | {after} |"]
    assert "Share of 12 held-out tasks that it solved, decoding greedily; 95 % Wilson intervals" in text
    for row in (
        "| tasks | before training | after step 1 |",
        "| tasks | 24, 12 held out |",
        "| protocol | `text` |",
        "| an episode | 3 turns of 48 tokens at most, 128 in all |",
        "| sampling | 2 episodes of a prompt, temperature 0.9 |",
        "| rewards | `outcome` |",
        "| learning rate | 0.001, linear |",
    ):
        assert row in text, row
    assert f"python {RECIPE} --config {QUICKSTART} --output_dir {run} --max_steps 1 " in text
    assert "--hub_model_id me/agent --hub_token '***'" in text
    assert "hf download me/agent --local-dir run\ntrl-dbbench eval run --tasks TASKS.jsonl" in text
    assert "- TRL: 1." in text


def test_the_command_in_the_card_has_no_secrets(monkeypatch):
    urls = (
        "[mysql+pymysql://a:s3cret@h/,mysql+pymysql://:s3cret@h/,mysql+pymysql://h/?user=a&password=s3cret]"
    )
    words = ["my.py", "--database", urls, "--tasks", "generate://full?skills=select", "--hub_token=s3cret"]
    monkeypatch.setattr("sys.argv", [*words, "--api-key", "s3cret"])
    text = _command()
    assert "s3cret" not in text
    assert text.count("***") == 5
    assert "generate://full?skills=select" in text


def test_the_card_counts_void_episodes(tmp_path):
    """5 of 20 held-out tasks are right, and 15 void."""
    right = {
        "phase": "eval",
        "step": 3,
        "status": "answered",
        "right": True,
        "operation": "SELECT",
        "skills": [],
    }
    void = right | {"status": "environment_fault", "right": False}
    lines = [json.dumps(each) + "\n" for each in [*[right] * 5, *[void] * 15]]
    (tmp_path / "episodes.jsonl").write_text("".join(lines))
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir=tmp_path), greedy_eval=None, best_step=None)
    text = _accuracy(trainer)
    assert "Share of 20 held-out tasks that it solved" in text
    assert "Void are episodes whose environment failed: the share leaves them out." in text
    assert "| overall | 5/5 = 100.0 % [56.6, 100.0] (15 void, 25.0 % with those counted wrong) |" in text


def test_the_card_is_of_the_weights_that_are_kept(tmp_path):
    """With load_best_model_at_end those after step 3, and the evaluation after step 5 is of others."""
    rights = {0: [False, False], 3: [True, True], 5: [True, False]}
    lines = [
        json.dumps(
            {"phase": "eval", "step": step, "task_digest": f"{task}", "status": "answered", "right": right}
            | {"operation": "SELECT", "skills": []}
        )
        for step, of in rights.items()
        for task, right in enumerate(of)
    ]
    (tmp_path / "episodes.jsonl").write_text("".join(f"{line}\n" for line in lines))
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir=tmp_path), greedy_eval=None, best_step=3)
    text = _accuracy(trainer)
    assert "| tasks | before training | after step 3 |" in text
    assert "| overall | 0/2 = 0.0 % [0.0, 65.8] | 2/2 = 100.0 % [34.2, 100.0] |" in text


def held_out(run: Path, step: int) -> str:
    from training import episodes_in

    from trl_dbbench.runs.records import Accuracy

    episodes = [e for e in episodes_in(run) if (e["phase"], e["step"]) == ("eval", step)]
    assert len(episodes) == 12
    return Accuracy().add(episodes).describe()


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_one_line(tmp_path):
    """Asked before the training, so that nothing is lost."""
    with local_hub() as hub:
        url = hub.url
    done = published(url, tmp_path)
    assert done.returncode == 1
    *_, last = done.stdout.splitlines()
    assert last.startswith("error: the model could not be given a repository for 'me/agent': ")
    assert last.endswith(
        "Give a token (hf auth login) and hub_model_id: USER/NAME, or leave push_to_hub out."
    )
    assert "Traceback" not in done.stdout
    assert done.stdout.count("thrown while requesting") <= 1


def test_a_hub_that_may_not_be_asked_is_one_line(monkeypatch):
    """HF_HUB_OFFLINE=1, as on the compute nodes of a cluster."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    told = pytest.raises(ConfigError, match=r"not be pushed to 'me/agent': .*offline mode is enabled.* Later")
    with told, telling_of_the_hub("pushed to 'me/agent'", "Later"):
        HfApi().create_repo("me/agent", token="-")
