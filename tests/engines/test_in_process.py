"""What vLLM in this process is asked to load, without vLLM; with it, see `training/test_vllm_colocate.py`."""

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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"r": 600}, "up to rank 512; the rank here is 600"),
        ({"use_dora": True}, "takes no adapter with use_dora, as the adapter is"),
        ({"modules_to_save": ["lm_head"]}, "takes no adapter with modules_to_save"),
        ({"rank_pattern": {"q_proj": 20}}, "takes no adapter with rank_pattern"),
        ({"alpha_pattern": {"q_proj": 20}}, "takes no adapter with alpha_pattern"),
        ({"bias": "lora_only"}, "takes no adapter with bias: lora_only"),
    ],
)
def test_adapters_that_vllm_does_not_take(config: dict[str, Any], message: str):
    """It reads one rank and one alpha, and scales the adapters of all layers by these."""
    with pytest.raises(ConfigError, match=message):
        lora_options([LoraConfig(**config)], ["the adapter"])


def test_the_rank_is_the_least_that_vllm_has_room_for():
    assert lora_options([LoraConfig(r=8), LoraConfig(r=20)], ["a", "b"])["max_lora_rank"] == 32
