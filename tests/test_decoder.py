"""The forward that rollouts on a CPU use gives what transformers' own does, or leaves it to that."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from trl_dbbench.engines.transformers import decoder
from trl_dbbench.engines.transformers.packed import packed

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 12,
    "initializer_range": 0.4,
}
FAMILIES = {
    "llama": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "mistral": {"sliding_window": None, "num_key_value_heads": 4},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "tie_word_embeddings": True},
}


def make(family: str, **settings) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SHAPE, **FAMILIES[family], **settings})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # weights of norms and biases are ones and zeros otherwise
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0, 0.3)
    return model


@torch.no_grad()
def feed(model: nn.Module, **options) -> tuple[list[torch.Tensor], DynamicCache]:
    """Logits after a prompt, a token and an observation, of two rows of which one has two pads, and the cache."""
    past, logits = DynamicCache(), []
    ids = torch.arange(30).view(2, 15) * 7 % 97
    start = torch.tensor([[0], [2]])
    for begin, end in ((0, 8), (8, 9), (9, 15)):
        output = model(
            input_ids=ids[:, begin:end],
            attention_mask=(torch.arange(end) >= start).long(),
            position_ids=(torch.arange(begin, end) - start).clamp(min=0),
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
            **options,
        )
        logits.append(output.logits[:, -1])
    return logits, past


@pytest.fixture
def taken(monkeypatch) -> list[nn.Module]:
    """The models that were given to `Decoder`."""
    models: list[nn.Module] = []
    init = decoder.Decoder.__init__

    def remembered(self, model, join):
        models.append(model)
        init(self, model, join)

    monkeypatch.setattr(decoder.Decoder, "__init__", remembered)
    return models


def assert_same(model: nn.Module, **options) -> None:
    expected, expected_past = feed(model, **options)
    with packed(model):
        found, past = feed(model, **options)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)
    for one, other in zip(past.layers, expected_past.layers, strict=True):
        # a pad's numbers are anything: nothing sees them
        torch.testing.assert_close(one.keys[0], other.keys[0], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(one.values[1, :, 2:], other.values[1, :, 2:], atol=2e-5, rtol=1e-5)
    after, _ = feed(model, **options)
    assert all(map(torch.equal, after, expected)), "the rollout is over"


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_tokens_and_observations_are_as_transformers_computes_them(family, taken):
    model = make(family)
    assert_same(model)
    assert taken == [model.model]


@pytest.mark.parametrize("targets", [["q_proj", "up_proj"], "all-linear"])
def test_adapters_are_computed_by_themselves(targets, taken):
    model = get_peft_model(make("qwen2"), LoraConfig(target_modules=targets, init_lora_weights=False))
    assert_same(model.eval())
    assert taken == [model.base_model.model.model]


def test_a_hook_on_a_linear_layer_still_runs(taken):
    model = make("llama")
    model.model.layers[1].mlp.up_proj.register_forward_hook(lambda layer, inputs, output: output * 2)
    assert_same(model)
    assert taken


def with_a_hook(model: PreTrainedModel) -> None:
    model.model.layers[1].register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 2, *inputs[1:]))


def with_a_forward_of_its_own(model: PreTrainedModel) -> None:
    norm = model.model.norm
    norm.forward = lambda hidden: hidden * norm.weight


def with_another_norm(model: PreTrainedModel) -> None:
    model.model.layers[0].input_layernorm = nn.LayerNorm(32)


def with_another_attention(model: PreTrainedModel) -> None:
    model.config._attn_implementation = "eager"


def in_half_precision(model: PreTrainedModel) -> None:
    model.to(torch.bfloat16)


def with_all_hidden_states(model: PreTrainedModel) -> None:
    model.config.output_hidden_states = True


@pytest.mark.parametrize(
    "change",
    [
        with_a_hook,
        with_a_forward_of_its_own,
        with_another_norm,
        with_another_attention,
        in_half_precision,
        with_all_hidden_states,
    ],
)
def test_a_model_with_parts_of_its_own_is_left_as_it_is(change, taken):
    model = make("qwen3")
    change(model)
    expected, _ = feed(model)
    with packed(model):
        found, _ = feed(model)
    assert all(map(torch.equal, found, expected))
    assert not taken


def test_a_subclass_is_left_as_it_is(taken):
    class Louder(Qwen2ForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            self.model.__class__ = type("LouderModel", (type(self.model),), {})

    assert_same(Louder(Qwen2Config(**SHAPE, num_key_value_heads=2)).eval())
    assert not taken


def test_what_a_rollout_does_not_ask_for_is_left_to_transformers():
    """All hidden states, embeddings in the place of ids, another precision, no cache."""
    model = make("qwen2")
    ids = torch.arange(6)[None]
    embedded = model.get_input_embeddings()(ids).detach()
    asked = (
        lambda: model(ids, output_hidden_states=True).hidden_states[2],
        lambda: model(inputs_embeds=embedded, use_cache=True).logits,
        lambda: model(ids, use_cache=False).logits,
        lambda: model(ids, position_ids=ids, past_key_values=DynamicCache(), output_attentions=False).logits,
    )
    with torch.no_grad():
        expected = [each() for each in asked]
        with packed(model):
            assert all(map(torch.equal, [each() for each in asked], expected))
            with torch.autocast("cpu", torch.bfloat16):
                assert feed(model)[0][0].dtype == torch.bfloat16
