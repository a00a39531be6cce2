"""Options that vLLM in this process gets. vLLM itself is a fake here; `training/test_vllm_colocate.py` has the real one."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from peft import LoraConfig
from transformers import Phi3Config

from trl_dbbench import ConfigError
from trl_dbbench.engines.base import EngineSettings
from trl_dbbench.engines.policy import ServedPolicy
from trl_dbbench.engines.vllm.in_process import InProcessBackend
from trl_dbbench.engines.vllm.loaded import lora_options

LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 1e4}


def longrope_config(short: int = 4096) -> Phi3Config:
    """Return a config such as Phi-3.5's, with other factors for contexts beyond `short` tokens."""
    return Phi3Config(
        **{"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16},
        vocab_size=32,
        pad_token_id=0,
        max_position_embeddings=131_072,
        original_max_position_embeddings=short,
        rope_parameters=LONGROPE,
    )


@pytest.fixture
def asked(monkeypatch) -> dict[str, Any]:
    """The options of vLLM's `LLM`, which is not there."""
    options: dict[str, Any] = {}
    vllm, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
    vllm.__spec__ = ModuleSpec("vllm", None)
    vllm.LLM = lambda **given: options.update(given)
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: False)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    return options


def test_memory_sets_the_length_of_a_context(asked, tiny_model, tokenizer):
    InProcessBackend(EngineSettings(use_vllm=True), ServedPolicy(tiny_model, tokenizer))
    assert asked["max_model_len"] == -1
    assert "hf_overrides" not in asked


@pytest.mark.parametrize(("given", "length"), [(None, 4096), (2048, 2048), (16_384, 4096)])
def test_longrope_is_played_by_its_short_factors(asked, tokenizer, tmp_path, given, length):
    """vLLM takes the long ones for every token if its context is longer, and the training takes the short ones."""
    longrope_config().save_pretrained(tmp_path)
    settings = EngineSettings(use_vllm=True, vllm_max_model_length=given)
    InProcessBackend(settings, ServedPolicy(str(tmp_path), tokenizer))
    assert asked["max_model_len"] == length


def test_what_a_run_changed_in_its_models_config_reaches_vllm(asked, tiny_model, tokenizer):
    rope = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}
    policy = ServedPolicy(tiny_model, tokenizer, config_changes=rope)
    InProcessBackend(EngineSettings(use_vllm=True), policy)
    assert asked["hf_overrides"] == rope


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"r": 600}, "up to rank 512; the rank here is 600"),
        ({"use_dora": True}, "takes no adapter with use_dora, as the adapter is. Leave use_vllm out."),
        ({"modules_to_save": ["lm_head"]}, "takes no adapter with modules_to_save"),
        ({"rank_pattern": {"q_proj": 600}}, "up to rank 512; the rank here is 600"),
        ({"bias": "lora_only"}, "takes no adapter with bias: lora_only"),
        ({"trainable_token_indices": [5]}, "takes no adapter with trainable_token_indices"),
        (
            {"init_lora_weights": "pissa"},
            "with init_lora_weights: pissa, as the adapter is. Leave use_vllm out.",
        ),
    ],
)
def test_adapters_that_vllm_does_not_take(config: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        lora_options({"the adapter": LoraConfig(**config)})


def test_the_rank_is_the_least_that_vllm_has_room_for():
    assert lora_options({"a": LoraConfig(r=8), "b": LoraConfig(r=20)})["max_lora_rank"] == 32
    wider = LoraConfig(r=8, rank_pattern={"v_proj": 33}, alpha_pattern={"o_proj": 20})
    assert lora_options({"a": wider})["max_lora_rank"] == 64
