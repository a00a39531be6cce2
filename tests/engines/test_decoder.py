"""The forward that rollouts on a CPU use gives what transformers' own does, or leaves it to that."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from peft import LNTuningConfig, LoraConfig, get_peft_model
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from trl_dbbench.engines import shared_prompts
from trl_dbbench.engines.transformers import decoder
from trl_dbbench.engines.transformers.cache import RowCache
from trl_dbbench.engines.transformers.models import CACHE_ARGUMENT
from trl_dbbench.engines.transformers.packed import packed

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 12,
    "initializer_range": 0.4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "mistral": {"sliding_window": None, "num_key_value_heads": 4},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "tie_word_embeddings": True},
}
IDS = torch.arange(30).view(2, 15) * 7 % 97
STARTS = torch.tensor([[0], [2]])
LAYERS = SHAPE["num_hidden_layers"]


def make(family: str, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SHAPE, **FAMILIES[family], **settings})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # weights of norms and biases are ones and zeros otherwise
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0, 0.3)
    return model


@torch.no_grad()
def feed(model: nn.Module, past: Any = None) -> tuple[list[torch.Tensor], RowCache]:
    """Logits after a prompt, a token and an observation, of two rows of which one has two pads, and the cache."""
    past, logits = RowCache() if past is None else past, []
    for begin, end in ((0, 8), (8, 9), (9, 15)):
        output = model(
            input_ids=IDS[:, begin:end],
            attention_mask=(torch.arange(end) >= STARTS).long(),
            position_ids=(torch.arange(begin, end) - STARTS).clamp(min=0),
            **{CACHE_ARGUMENT: past},
            use_cache=True,
            logits_to_keep=1,
        )
        logits.append(output.logits[:, -1])
    return logits, past


@pytest.fixture
def computed(monkeypatch) -> list[int]:
    """The layers that `Decoder` computed."""
    layers: list[int] = []
    call = decoder._Layer.__call__

    def remembered(layer, *args):
        layers.append(layer._attention.layer_idx)
        return call(layer, *args)

    monkeypatch.setattr(decoder._Layer, "__call__", remembered)
    return layers


def assert_same(model: nn.Module) -> None:
    """In a rollout a model gives what a copy of it gives by transformers' forward, and does so itself
    afterwards."""
    expected, expected_past = feed(deepcopy(model))
    with packed(model):
        found, past = feed(model)
    for one, other in zip(found, expected, strict=True):
        scale = other.abs().max()  # of what is rounded, by as much as the processor's kernels happen to
        torch.testing.assert_close(one / scale, other / scale, atol=2e-5, rtol=1e-5)
    for one, other in zip(past.layers, expected_past.layers, strict=True):
        # a pad's numbers are anything: nothing sees them
        torch.testing.assert_close(one.keys[0, :, :15], other.keys[0, :, :15], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(one.values[1, :, 2:15], other.values[1, :, 2:15], atol=2e-5, rtol=1e-5)
    after, _ = feed(model)
    assert all(map(torch.equal, after, expected)), "the rollout is over"


ALL = [*range(LAYERS)] * 3
"""Each layer for the prompt, the token and the observation."""


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_tokens_and_observations_are_as_transformers_computes_them(family, computed):
    assert_same(make(family))
    assert computed == ALL


def test_a_model_that_was_trained_with_shared_prompts(computed):
    """Its attention has another name from then on."""
    model = make("qwen2")
    model.config._attn_implementation = shared_prompts.ATTENTION
    assert_same(model)
    assert computed == ALL


@pytest.mark.parametrize("task_type", [None, "CAUSAL_LM"])  # PEFT passes other arguments for one
@pytest.mark.parametrize("targets", [["q_proj", "up_proj"], "all-linear"])
@pytest.mark.parametrize("family", FAMILIES)
def test_lora_is_computed_by_itself(family, targets, task_type, computed):
    config = LoraConfig(target_modules=targets, init_lora_weights=False, task_type=task_type)
    assert_same(get_peft_model(make(family), config).eval())
    assert computed == ALL


def test_lora_without_its_adapter(computed):
    """As the reference of a KL penalty is computed."""
    model = get_peft_model(make("qwen3"), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    with model.eval().disable_adapter():
        assert_same(model)
    assert computed == ALL


def test_layers_of_which_some_have_a_bias(computed):
    model = make("mistral")
    model.model.layers[1].self_attn.v_proj.bias = nn.Parameter(torch.ones(48))
    assert_same(model)
    assert computed == ALL


def test_another_activation(computed):
    assert_same(make("qwen2", hidden_act="gelu"))
    assert computed == ALL


def test_layers_beyond_the_configured_number_are_not_computed(computed):
    model = make("llama")
    model.config.num_hidden_layers = 2
    assert_same(model)
    assert computed == [0, 1] * 3


def test_a_model_that_was_asked_for_its_hidden_states_before(computed):
    """transformers leaves hooks in it."""
    model = make("qwen2")
    model(IDS, output_hidden_states=True)
    assert model.model.layers[0]._forward_hooks
    assert_same(model)
    assert computed == ALL


def test_positions_that_all_rows_share(computed):
    model, copy = make("qwen2"), make("qwen2")
    asked = {"input_ids": IDS, "position_ids": torch.arange(15)[None], "logits_to_keep": 1}
    with torch.no_grad(), packed(model):
        found = model(**asked, **{CACHE_ARGUMENT: RowCache()}).logits
        torch.testing.assert_close(found, copy(**asked).logits, atol=2e-5, rtol=1e-5)
    assert computed == [0, 1, 2]


# --- what is left to transformers -----------------------------------------------------------------


def doubled(output: Any) -> Any:
    return (output[0] * 2, *output[1:]) if isinstance(output, tuple) else output * 2


class Doubling(ModelHook):
    def post_forward(self, module: nn.Module, output: Any) -> Any:
        return doubled(output)


def hooked(model: PreTrainedModel, name: str) -> None:
    model.model.get_submodule(name).register_forward_hook(lambda module, inputs, output: doubled(output))


def hooked_before(model: PreTrainedModel, name: str) -> None:
    def pre_hook(module: nn.Module, inputs: Any, options: Any) -> Any:
        return tuple(input * 2 for input in inputs), {
            key: value * 2 if key == "hidden_states" else value for key, value in options.items()
        }

    model.model.get_submodule(name).register_forward_pre_hook(pre_hook, with_kwargs=True)


def hooked_by_accelerate(model: PreTrainedModel, name: str) -> None:
    add_hook_to_module(model.model.get_submodule(name), Doubling())


def of_a_subclass(model: PreTrainedModel, name: str) -> None:
    part = model.model.get_submodule(name)
    part.__class__ = type("Own", (type(part),), {"__module__": __name__})


PARTS = [
    *("norm", "layers.1", "layers.0.self_attn", "layers.2.mlp", "layers.0.self_attn.q_norm"),
    *("layers.1.self_attn.k_norm", "layers.1.input_layernorm", "layers.2.post_attention_layernorm"),
    *(f"layers.1.self_attn.{name}_proj" for name in "qkvo"),
    *(f"layers.2.mlp.{name}_proj" for name in ("gate", "up", "down")),
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", [hooked, hooked_before, hooked_by_accelerate, of_a_subclass])
def test_a_model_with_a_changed_part(change, part, computed):
    model = make("qwen3")
    change(model, part)
    assert_same(model)
    assert not computed


@pytest.mark.parametrize("part", ["", ".base_layer", ".lora_A.default"])
@pytest.mark.parametrize("change", [hooked, hooked_by_accelerate])
def test_a_changed_lora(change, part, computed):
    model = get_peft_model(make("qwen2"), LoraConfig(target_modules=["k_proj"], init_lora_weights=False))
    change(model.base_model.model, f"layers.1.self_attn.k_proj{part}")
    assert_same(model.eval())
    assert not computed


def test_lora_of_another_layer(computed):
    """Which looks at all tokens."""

    class Summing(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input.cumsum(dim=-2))

    model = make("qwen2")
    model.model.layers[0].self_attn.o_proj.__class__ = Summing
    assert_same(get_peft_model(model, LoraConfig(target_modules=["o_proj"], init_lora_weights=False)).eval())
    assert not computed


def test_a_changed_class(computed, monkeypatch):
    """As libraries of kernels change them."""
    model = make("llama")
    mlp = type(model.model.layers[0].mlp)
    monkeypatch.setattr(mlp, "forward", lambda self, hidden: self.down_proj(self.up_proj(hidden)))
    assert_same(model)
    assert not computed


def test_a_changed_rotation(computed, monkeypatch):
    model = make("llama")
    name = f"{type(model.model).__module__}.apply_rotary_pos_emb"
    monkeypatch.setattr(name, lambda query, key, *rotation, **options: (query, key))
    assert_same(model)
    assert not computed


def test_a_forward_of_the_model_s_own_is_kept(computed):
    """As `accelerate` gives it one, and as a rollout within a rollout finds it."""
    model = make("qwen2")
    usual = model.model.forward
    model.model.forward = own = lambda **asked: usual(**asked)
    assert_same(model)
    assert model.model.forward is own
    assert not computed


def test_a_rollout_within_a_rollout(computed, monkeypatch):
    monkeypatch.setattr("trl_dbbench.engines.transformers.packed.PACK_MIN_WEIGHTS", 1)
    model, copy = make("qwen2"), make("qwen2")
    with packed(model):
        with packed(model):
            feed(model)
        torch.testing.assert_close(feed(model)[0], feed(copy)[0], atol=2e-5, rtol=1e-5)
    assert computed == ALL * 2


def test_a_model_of_a_subclass(computed):
    model = make("qwen2")
    of_a_subclass(model, "")
    assert_same(model)
    assert not computed


def test_hooks_on_all_modules(computed):
    model = make("qwen2")
    usual, _ = feed(model)
    handle = register_module_forward_hook(
        lambda module, inputs, output: output * 2 if isinstance(module, nn.Linear) else None
    )
    try:
        assert_same(model)
        assert not torch.equal(feed(model)[0][0], usual[0])
    finally:
        handle.remove()
    assert not computed


def a_pruned_layer(model: PreTrainedModel) -> None:
    class Passing(nn.Module):
        def forward(self, hidden_states: torch.Tensor, **options: Any) -> torch.Tensor:
            return hidden_states

    model.model.layers[2] = Passing()


def no_layers(model: PreTrainedModel) -> None:
    model.config.num_hidden_layers = 0


def no_last_norm(model: PreTrainedModel) -> None:
    model.model.norm = nn.Identity()


def another_attention(model: PreTrainedModel) -> None:
    model.config._attn_implementation = "eager"


def half_precision(model: PreTrainedModel) -> None:
    model.to(torch.bfloat16)


def all_hidden_states(model: PreTrainedModel) -> None:
    model.config.output_hidden_states = True


@pytest.mark.parametrize(
    "change",
    [a_pruned_layer, no_layers, no_last_norm, another_attention, half_precision, all_hidden_states],
)
def test_a_model_of_another_kind(change, computed):
    model = make("qwen3")
    change(model)
    assert not list(decoder.decoders(model))
    assert_same(model)
    assert not computed


def test_a_model_of_two_precisions():
    model = make("qwen3")
    model.model.layers[1].input_layernorm.to(torch.float64)
    assert not list(decoder.decoders(model))


def test_a_model_that_sees_a_window(computed):
    """Mistral's model ignores `use_sliding_window`."""
    assert_same(make("mistral", sliding_window=4, use_sliding_window=False))
    assert not computed


def test_a_lora_that_looks_at_all_tokens(computed):
    """aLoRA is on from its invocation on, wherever that is."""
    config = LoraConfig(target_modules=["q_proj"], init_lora_weights=False, alora_invocation_tokens=[7, 14])
    config.task_type = "CAUSAL_LM"  # the only one it is for
    assert_same(get_peft_model(make("qwen2"), config).eval())
    assert not computed


def test_adapters_of_norms(computed):
    model = get_peft_model(make("qwen3"), LNTuningConfig(target_modules=["q_norm", "input_layernorm"])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * parameter.requires_grad)
    assert_same(model)
    assert not computed


def test_what_a_rollout_does_not_ask_for(computed):
    """All hidden states, embeddings in the place of ids, no positions, no cache, one that is not a rollout's."""
    model, copy = make("qwen2"), make("qwen2")
    embedded = model.get_input_embeddings()(IDS).detach()
    mask = (torch.arange(15) >= STARTS).long()
    places = {"position_ids": (3 * torch.arange(15) - STARTS).clamp(min=0), "attention_mask": mask}
    asked = (
        lambda it: it(IDS, **{CACHE_ARGUMENT: RowCache()}, **places, output_hidden_states=True).hidden_states[
            2
        ],
        lambda it: it(inputs_embeds=embedded, **{CACHE_ARGUMENT: RowCache()}, **places).logits,
        lambda it: it(IDS, **{CACHE_ARGUMENT: RowCache()}, attention_mask=mask).logits,
        lambda it: it(IDS, use_cache=False, **places).logits,
        lambda it: it(IDS, **{CACHE_ARGUMENT: DynamicCache()}, **places).logits,
    )
    with torch.no_grad(), packed(model):
        for each in asked:
            found, expected = each(model), each(copy)
            torch.testing.assert_close(found[mask > 0], expected[mask > 0], atol=2e-5, rtol=1e-5)
        assert getattr(model(IDS, use_cache=False, **places), CACHE_ARGUMENT) is None
    with packed(model), torch.autocast("cpu", torch.bfloat16):
        assert feed(model)[0][0].dtype == torch.bfloat16
    assert not computed


def test_gradients_and_dropout(computed):
    model = make("qwen2")
    asked = {"input_ids": IDS, "position_ids": torch.arange(15)[None]}
    with packed(model):
        model(**asked, **{CACHE_ARGUMENT: RowCache()}).logits.sum().backward()
        with torch.no_grad():
            model.train()(**asked, **{CACHE_ARGUMENT: RowCache()})
    assert model.get_input_embeddings().weight.grad is not None
    assert not computed
