"""The memory that a run needs, against tensors that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from launching import ROOT
from peft import LoraConfig, get_peft_model
from training import make_trainer
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, DynamicCache
from trl.trainer.utils import add_fused_lm_head

from trl_dbbench import ConfigError, DBBenchGRPOConfig
from trl_dbbench.engines.shared_prompts import Tokens, lay_out, sharing
from trl_dbbench.engines.transformers.admission import cache_bytes_per_token
from trl_dbbench.engines.transformers.models import CACHE_ARGUMENT
from trl_dbbench.training import memory
from trl_dbbench.training.memory import (
    Batch,
    Load,
    Place,
    Plan,
    Sizes,
    adapter_config,
    copied_bytes,
    layer_bytes,
    needed,
    plan,
    quantized_bits,
)

TINY = ROOT / "recipes" / "tiny" / "model"
LORA = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")


def size(tensors) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


@pytest.mark.parametrize(
    ("dtype", "lora"), [(torch.float32, True), (torch.bfloat16, True), (torch.float32, False)]
)
def test_weights_gradients_and_optimizer_are_those_of_a_step(dtype, lora):
    config = AutoConfig.from_pretrained(TINY)
    load = Load(value_bytes=dtype.itemsize, computed_bytes=dtype.itemsize, lora=lora)
    parts = needed(Sizes.of(config, LORA if lora else None), load)

    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=dtype)
    model = get_peft_model(model, deepcopy(LORA)) if lora else model
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    model(input_ids=torch.tensor([[1, 2]]), labels=torch.tensor([[1, 2]])).loss.backward()
    optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]

    assert parts["weights"] == size(model.parameters())
    assert parts["gradients"] == size(each.grad for each in trained)
    assert parts["optimizer"] == size(moments)


def test_the_cache_is_that_of_the_model():
    """3 episodes of 5 tokens, by 2 key-value heads for the model's 4 heads."""
    config = AutoConfig.from_pretrained(TINY, num_key_value_heads=2)
    cache = DynamicCache()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model(input_ids=torch.ones(3, 5, dtype=torch.long), **{CACHE_ARGUMENT: cache})
    kept = size(each for layer in cache.layers for each in (layer.keys, layer.values))
    assert 3 * 5 * cache_bytes_per_token(config, 4) == kept


SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 208,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 512,
    "pad_token_id": 0,
}
DROPPING = deepcopy(LORA)
DROPPING.lora_dropout = 0.05
SETTINGS = {
    "LoRA in fp32": (torch.float32, LORA, False),
    "LoRA in bf16": (torch.bfloat16, LORA, True),
    "LoRA with dropout in fp32": (torch.float32, DROPPING, False),
    "LoRA with dropout in bf16": (torch.bfloat16, DROPPING, True),
    "all weights in fp32": (torch.float32, None, False),
    "all weights in bf16": (torch.bfloat16, None, True),
    "all weights in fp32, computed in bf16": (torch.float32, None, True),
}


def kept_by_autograd(
    family: str,
    layers: int,
    dtype: torch.dtype,
    lora: LoraConfig | None,
    autocast: bool,
    tokens: int,
    **how: bool,
) -> int:
    """Bytes of the tensors that a forward pass of two rows keeps, without parameters."""
    config = AutoConfig.for_model(family, num_hidden_layers=layers, **SHAPE)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    backbone = model.base_model
    if lora is not None:
        model = get_peft_model(model, deepcopy(lora))
    model.train()
    if how.get("checkpointing"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    storages: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storages.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    ids = torch.arange(2 * tokens).reshape(2, tokens) % 500
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        if how.get("shared"):
            ids[:, : tokens // 2] = ids[0, : tokens // 2]
            layout = lay_out(Tokens(ids, torch.ones_like(ids), tokens // 2), [[0, 1]])
            with sharing(backbone, layout) as inputs:
                kept = model(**inputs, fused_lm_head=True)
        else:
            kept = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, fused_lm_head=True)
    parameters = {each.untyped_storage().data_ptr() for each in model.parameters()}
    assert kept.log_probs.requires_grad
    return sum(each.untyped_storage().nbytes() for place, each in storages.items() if place not in parameters)


@pytest.mark.parametrize("how", ["usual", "shared", "checkpointing"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_what_a_layer_keeps_of_a_token(family, settings, how):
    """The bytes that a second layer adds, in longer rows against shorter ones: copies of weights drop out."""
    dtype, lora, autocast = SETTINGS[settings]

    def of_layer(tokens: int) -> int:
        one, two = (
            kept_by_autograd(family, layers, dtype, lora, autocast, tokens, **{how: True})
            for layers in (1, 2)
        )
        return two - one

    rows = {
        tokens: Batch(2, 1, tokens // 2, tokens // 2, shared=how == "shared").tokens for tokens in (64, 96)
    }
    kept = (of_layer(96) - of_layer(64)) / (rows[96] - rows[64])
    config = AutoConfig.for_model(family, num_hidden_layers=2, **SHAPE)
    sizes = Sizes.of(config, lora)
    load = Load(
        value_bytes=dtype.itemsize,
        computed_bytes=2 if autocast else dtype.itemsize,
        lora=lora is not None,
        update=Batch(shared=how == "shared"),
        on_cpu=True,
    )
    computed = SHAPE["hidden_size"] * dtype.itemsize if how == "checkpointing" else layer_bytes(sizes, load)
    assert computed == pytest.approx(kept, rel=0.08)


@pytest.mark.parametrize("lora", [LORA, None], ids=["LoRA", "all weights"])
def test_autocast_keeps_a_copy_of_each_linear_layer(lora):
    """The bytes that a second layer adds whatever the rows' length, and none without autocast."""

    def whatever_the_length(autocast: bool) -> float:
        of_layer = [
            kept_by_autograd("llama", 2, torch.float32, lora, autocast, tokens)
            - kept_by_autograd("llama", 1, torch.float32, lora, autocast, tokens)
            for tokens in (64, 96)
        ]
        return of_layer[0] - 2 * (of_layer[1] - of_layer[0])

    def estimated(layers: int) -> float:
        config = AutoConfig.for_model("llama", num_hidden_layers=layers, **SHAPE)
        sizes = Sizes.of(config, lora)
        return copied_bytes(sizes, Load(value_bytes=4, computed_bytes=2, lora=lora is not None))

    assert estimated(2) - estimated(1) == pytest.approx(whatever_the_length(autocast=True), rel=0.1)
    assert whatever_the_length(autocast=False) == pytest.approx(0, abs=1000)


# --- at a training's start ------------------------------------------------------------------------


def test_a_training_that_cannot_fit(tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch):
    monkeypatch.setattr("trl_dbbench.training.memory.total_memory", lambda device: 5e8)
    said = r"^the training needs about 0\.\d GB \(libraries 0\.6 GB, .*\), and 0\.5 GB are there\. Less is needed with "
    with pytest.raises(ConfigError, match=said):
        make_trainer(tiny_model, sqlite_database, demo_tasks, tmp_path)


BY_BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def needed_by(
    tmp_path: Path,
    monkeypatch,
    on_disk: dict | None = None,
    argument: Any = None,
    adapter: Any = LORA,
    prompts: Sequence[list[dict[str, str]]] = (),
    tokenizer: Any = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    **kwargs: Any,
) -> dict[str, float] | None:
    """Bytes that `check_memory` computes; `None` if it computes nothing."""
    config = AutoConfig.from_pretrained(TINY)
    if on_disk is not None:
        config.quantization_config = on_disk
    config.save_pretrained(tmp_path)
    plans, told = [], []
    monkeypatch.setattr("trl_dbbench.training.memory.tell", told.append)
    monkeypatch.setattr(memory, "plan", lambda *args: plans.append(plan(*args)) or plans[-1])
    args = DBBenchGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, model_init_kwargs=kwargs, **settings)
    memory.check_memory(str(tmp_path), args, prompts, tokenizer, adapter, argument)
    return plans[0].parts if plans else None


def test_a_model_that_is_quantized_on_disk_is_counted_as_such(tmp_path, monkeypatch):
    weights = [
        found["weights"]
        for found in (
            needed_by(tmp_path, monkeypatch, **given)
            for given in (
                {},
                {"argument": BitsAndBytesConfig(load_in_4bit=True)},
                {"quantization_config": BitsAndBytesConfig(load_in_4bit=True)},
                {"on_disk": BY_BITSANDBYTES},
                {"on_disk": BY_BITSANDBYTES | {"bnb_4bit_use_double_quant": True}},
                {"on_disk": {"quant_method": "gptq", "bits": 4}},
                {"on_disk": {"quant_method": "gptq", "bits": 8}},
            )
        )
        if found is not None
    ]
    whole, asked, *others, nested, of_4_bits, of_8_bits = weights
    assert others == [asked] * 2
    assert of_4_bits < nested < asked < of_8_bits < whole


def test_the_bits_of_bitsandbytes_are_those_that_it_takes():
    """4 bits of 64 weights have a scale in float32; nested, of 8 bits each."""
    functional = pytest.importorskip("bitsandbytes.functional")
    count = 64 * 256 * 4
    for nested in (False, True):
        packed, state = functional.quantize_4bit(torch.randn(count), compress_statistics=nested)
        scales = [state.absmax, *([state.state2.absmax] if nested else [])]
        taken = 8 * sum(each.nbytes for each in (packed, *scales)) / count
        assert quantized_bits({"load_in_4bit": True, "bnb_4bit_use_double_quant": nested}) == taken


def test_a_model_that_is_quantized_to_unknown_bits_has_no_bound(tmp_path, monkeypatch):
    for given in ({"on_disk": {"quant_method": "hqq"}}, {"argument": object()}):
        assert needed_by(tmp_path, monkeypatch, **given) is None


def test_a_reference_and_moments_are_counted_where_there_are_any(tmp_path, monkeypatch):
    """With all weights trained, w bytes of them: two moments by AdamW in bytes, none that are sure of Adafactor."""

    def parts(**settings: Any) -> dict[str, float]:
        found = needed_by(tmp_path, monkeypatch, adapter=None, settings=settings)
        assert found is not None
        return found

    weights = parts()["weights"]
    assert parts(beta=0.1)["weights"] == 2 * weights
    assert parts(beta=0.1, kl_reference="rollout")["weights"] == weights, "the policy that played"
    moments = {
        optim: parts(optim=optim)["optimizer"] / parts()["optimizer"] for optim in ("adafactor", "lion_32bit")
    }
    assert moments == {"adafactor": 0, "lion_32bit": 0}
    assert parts(optim="adamw_8bit")["optimizer"] == parts()["optimizer"] / 4
    assert parts(optim="paged_adamw_8bit")["optimizer"] == 0, "it makes room where the device is full"


def test_a_prompt_without_its_tokenizer_is_counted_by_characters(tmp_path, monkeypatch):
    asked = [{"role": "user", "content": "word " * 800}]
    by_tokens = needed_by(
        tmp_path, monkeypatch, prompts=[asked], tokenizer=lambda text: {"input_ids": [5] * 1_000}
    )
    assert needed_by(tmp_path, monkeypatch, prompts=[asked]) == by_tokens


def test_earlier_episodes_in_the_prompt_are_counted(tmp_path, monkeypatch):
    def total(**settings: Any) -> float:
        settings = {"max_completion_length": 64, **settings}
        asked = [[{"role": "user", "content": "word " * 400}]] * 4
        found = needed_by(tmp_path, monkeypatch, prompts=asked, settings=settings)
        assert found is not None
        return sum(found.values())

    assert total(few_shot=2, few_shot_update=True) > total(few_shot=1, few_shot_update=True) > total()


def test_what_the_witness_is_told(tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("trl_dbbench.training.memory.tell", told.append)
    make_trainer(tiny_model, sqlite_database, demo_tasks, tmp_path)
    (text,) = told
    assert text.startswith("By its settings it needs about 0.")
    assert "max_tokens_per_forward, max_concurrent_episodes, per_device_train_batch_size" in text


def test_an_adapter_that_is_trained_further(tmp_path):
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(TINY), deepcopy(LORA))
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(TINY)
    assert Sizes.of(config, adapter_config(str(tmp_path))) == Sizes.of(config, LORA)
    assert Sizes.counted(model).trained == Sizes.of(config, LORA).trained > 0


# --- several ranks, and vLLM in the process -------------------------------------------------------

SEVEN = Sizes(
    **{"parameters": 7_600_000_000, "trained": 7_600_000_000, "quantizable": 0, "layers": 28},
    **{"hidden": 3584, "heads": 3584, "key_values": 1024, "between": 18944, "vocabulary": 152064},
)
"""The sizes of Qwen2.5-7B, all of it trained."""

LORA_OF_SEVEN = replace(SEVEN, trained=40_000_000)


def plan_of(sizes: Sizes, given: Mapping[str, Any], there: float = 80e9, **place: Any) -> Plan:
    """A plan on a GPU; `place` are fields of a `Place`."""
    settings = {"per_device_train_batch_size": 8, "max_turns": 3, "num_generations": 8, "bf16": True, **given}
    where = Place(**{"there": there, "on_cpu": False, "value_bytes": 2, "lora": sizes is not SEVEN, **place})
    return plan(SimpleNamespace(**settings), AutoConfig.from_pretrained(TINY), sizes, 300, where)


def parts_of(
    sizes: Sizes, there: float = 80e9, given: Mapping[str, Any] = MappingProxyType({}), **place: Any
) -> dict[str, float]:
    return plan_of(sizes, given, there, **place).parts


def test_fsdp_keeps_what_it_trains_in_float32():
    """accelerate casts it where there is mixed precision, whatever the weights are loaded as."""
    half = parts_of(SEVEN, ranks=8, sharing=(8, 8), full_precision=True)
    assert [half[name] * 8 for name in ("weights", "gradients", "optimizer")] == [
        4 * SEVEN.trained,
        4 * SEVEN.trained,
        8 * SEVEN.trained,
    ]


def test_deepspeeds_optimizer_has_a_copy():
    parts = parts_of(SEVEN, ranks=8, sharing=(1, 8), master=True)
    assert (parts["weights"], 8 * parts["optimizer"]) == (2 * SEVEN.trained, 12 * SEVEN.trained)


def test_ranks_that_do_not_share_gradients_have_them_twice():
    alone, two = (parts_of(SEVEN, there=400e9, ranks=ranks) for ranks in (1, 2))
    assert (alone["buckets"], two["buckets"]) == (0, 2 * SEVEN.trained)
    assert two["total"] == alone["total"] + 2 * SEVEN.trained
    assert parts_of(SEVEN, ranks=2, sharing=(2, 2))["buckets"] == 0


IN_PROCESS = {"use_vllm": True, "vllm_mode": "colocate"}


def test_a_share_that_does_not_hold_the_weights():
    said = r"vLLM's share of 42.0 GB, 0.3, does not hold its copy of the weights, 15.2 GB. .* at least 0.40"
    with pytest.raises(ConfigError, match=said):
        parts_of(LORA_OF_SEVEN, 42e9, IN_PROCESS)
    assert parts_of(LORA_OF_SEVEN, 80e9, IN_PROCESS)["vLLM"] == 0.3 * 80e9


def test_an_update_has_the_memory_of_a_vllm_that_sleeps():
    rows = {"per_device_train_batch_size": 64, "max_completion_length": 500}
    shared = {**IN_PROCESS, **rows, "vllm_gpu_memory_utilization": 0.5}
    awake, asleep = (
        plan_of(LORA_OF_SEVEN, {**shared, "vllm_enable_sleep_mode": sleeps}) for sleeps in (False, True)
    )
    assert awake.per_forward < asleep.per_forward


def test_a_critic_of_its_own_is_a_second_model():
    """Its weights, gradients and moments, and what its layers keep for the backward pass."""
    head, model = (
        parts_of(SEVEN, 1e12, {"critic": kind, "num_generations": 1}) for kind in ("head", "model")
    )
    for part in ("weights", "gradients", "optimizer"):
        assert model[part] == 2 * head[part]
    assert 1.5 < model["update"] / head["update"] <= 2


def test_vllms_memory_on_a_cpu(monkeypatch):
    """The cache that is asked for and a copy of the weights; else a share of all that the process has."""
    few = replace(LORA_OF_SEVEN, parameters=100_000_000)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert parts_of(few, 24e9, IN_PROCESS, on_cpu=True)["vLLM"] == 2 * 2**30 + 200_000_000
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE")
    assert parts_of(few, 24e9, IN_PROCESS, on_cpu=True)["vLLM"] == 0.3 * 24e9 - 0.6e9 - 200_000_000


def test_an_attention_without_shared_prompts():
    eager = {"model_init_kwargs": {"attn_implementation": "eager"}}
    assert plan_of(LORA_OF_SEVEN, {}).tokens < plan_of(LORA_OF_SEVEN, eager).tokens
