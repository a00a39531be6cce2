"""The memory in a recipe's head is what `trl-dbbench doctor` computes, and it is there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from launching import ROOT
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config
from typer.testing import CliRunner

from trl_dbbench.cli import app

RECIPES = ROOT / "recipes"
QWEN3 = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
MODELS: dict[str, PretrainedConfig] = {
    "Qwen/Qwen3-4B-Instruct-2507": Qwen3Config(
        **QWEN3, vocab_size=151936, hidden_size=2560, intermediate_size=9728, tie_word_embeddings=True
    ),
    "Qwen/Qwen3-8B": Qwen3Config(**QWEN3, vocab_size=151936, hidden_size=4096, intermediate_size=12288),
    "Qwen/Qwen2.5-7B-Instruct": Qwen2Config(
        **{"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944},
        **{"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4},
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": LlamaConfig(
        **{"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "tie_word_embeddings": True},
        **{"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
    ),
}
"""As their config.json says it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("qwen3-4b-lora", 24),
        ("qwen3-4b-lora", 80),
        ("qwen3-8b-lora", 24),
        ("qwen3-8b-lora", 80),
        ("qwen2.5-7b-qlora", 24),
        ("smollm2", 24),
    ],
)
def test_the_memory_in_its_head(tmp_path: Path, monkeypatch, name: str, gigabytes: int) -> None:
    text = (RECIPES / f"{name}.yaml").read_text()
    recipe = yaml.safe_load(text)
    model = tmp_path / "model"
    shutil.copytree(RECIPES / "tiny" / "model", model, ignore=shutil.ignore_patterns("*.safetensors"))
    MODELS[recipe["model_name_or_path"]].save_pretrained(model)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("trl_dbbench.cli.doctor.total_memory", lambda device: gigabytes * 1e9)

    options = ["--model_name_or_path", str(model), "--tasks", str(RECIPES / "demo_tasks.jsonl")]
    head = text[: text.index("\nrecipe:")]
    if gigabytes == 80:  # with what the head says to add
        options += re.sub(r"[#\\\n]", " ", head[head.find("#   --", head.index("On 80 GB")) :]).split()
    said = CliRunner().invoke(app, ["doctor", name, *options]).stdout
    found = re.search(r"^(ok|note) +memory: .* need about ([\d.]+) GB on each rank", said, re.M)
    assert found, said
    assert re.search(rf"\b{float(found[2]):.0f} GB\b", head), found[0]
