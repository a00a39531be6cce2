"""What the engine keeps from turn to turn changes nothing: each turn is what a full forward of its ids gives."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from other_device import another_device
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from trl_dbbench.engines.transformers import cache, prefix
from trl_dbbench.engines.transformers import packed as linear_layers
from trl_dbbench.engines.transformers.engine import TransformersEngine
from trl_dbbench.engines.transformers.models import CACHE_ARGUMENT, check_model
from trl_dbbench.engines.transformers.packed import packed
from trl_dbbench.engines.transformers.sampling import TokenChooser
from trl_dbbench.episode.types import Completion, Request, Sampling

VOCABULARY = 97
EOS = [3, 14, 15, 92]  # several, so that turns end early now and then
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,  # far from uniform, so that the arg max has no near ties
}


def qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE))


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None))


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16))


def sliding_window() -> PreTrainedModel:
    # Mistral's model has the window all the same
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=7, use_sliding_window=False))


def gemma4() -> PreTrainedModel:
    """Heads of two sizes, and a last layer that reads the keys and values of another."""
    config = Gemma4TextConfig(
        **SHAPE | {"num_hidden_layers": 4, "initializer_range": 0.2},
        head_dim=8,
        global_head_dim=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        num_kv_shared_layers=2,
        sliding_window=7,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
        use_double_wide_mlp=False,
    )
    return Gemma4ForCausalLM(config)


def hybrid() -> PreTrainedModel:
    config = Qwen3NextConfig(
        **SHAPE,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    return Qwen3NextForCausalLM(config)


def make(build) -> PreTrainedModel:
    torch.manual_seed(0)
    return build().eval()


@torch.no_grad()
def alone(model: PreTrainedModel, request: Request, claimed: Sequence[int]) -> Completion:
    """The turn by the definition: one row, no padding, no cache, all ids through the model.

    As long as the tokens are those claimed, one forward has the logits of them all, since no token sees a later one.
    The first that is another ends the turn.
    """
    ids = torch.tensor([[*request.ids, *claimed]])
    logits = model(ids, use_cache=False).logits[:, len(request.ids) - 1 :]
    chooser = TokenChooser([request], torch.device("cpu"))
    chosen: list[int] = []
    logprobs: list[float] = []
    for step in range(min(request.max_new_tokens, len(claimed) + 1)):
        id, logprob = chooser(logits[:, step])
        chosen.append(int(id))
        logprobs.append(float(logprob))
        if chosen[-1] in EOS or chosen != list(claimed[: step + 1]):
            break
    return Completion(chosen, logprobs)


def play(engine: TransformersEngine, rng: random.Random, sampling) -> list[tuple[Request, Completion]]:
    """Rollouts as a trainer makes them: copies of a few prompts, in any order, ragged turns, rows that leave."""
    played: list[tuple[Request, Completion]] = []
    prompts = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 40))] for _ in range(3)]
    histories = {row: list(rng.choice(prompts)) for row in range(9)}
    for turn in range(4):
        requests = [
            Request(tuple(ids), rng.randint(1, 14), sampling(row), row, turn)
            for row, ids in histories.items()
        ]
        turns = list(zip(requests, engine.complete(requests), strict=True))
        assert {request.row for request, _ in turns} == set(histories)
        played += turns
        for request, completion in turns:
            observation = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))]
            histories[request.row] += completion.ids + observation
        for row in rng.sample(sorted(histories), rng.randint(0, len(histories) // 2)):
            del histories[row]
    return played


SAMPLINGS = {
    "greedy": lambda row: Sampling(greedy=True),
    "sampled": lambda row: Sampling(0.9, seed=row),
    "mixed": lambda row: Sampling(greedy=row % 3 == 0, temperature=1.1, top_p=[1.0, 0.8][row % 2], seed=row),
}


@pytest.mark.slow
@pytest.mark.parametrize("long", [1, 10_000], ids=["prompts-shared", "prompts-copied"])
@pytest.mark.parametrize("build", [qwen2, llama, sliding_window, gemma4, hybrid])
def test_every_turn_is_what_a_full_forward_gives(build, long, monkeypatch):
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", long)
    model = make(build)
    assert cache.can_keep(model.config) == (build is not hybrid)
    turns = 0
    for seed, sampling in enumerate(2 * list(SAMPLINGS)):
        engine = TransformersEngine(model, EOS, 0)
        for request, completion in play(engine, random.Random(seed), SAMPLINGS[sampling]):
            expected = alone(model, request, completion.ids)
            assert completion.ids == expected.ids
            # linear attention computes a prompt in chunks and a token by recurrence: other sums of the same
            tolerance = 1e-3 if build is hybrid else 1e-4
            assert completion.logprobs == pytest.approx(expected.logprobs, abs=tolerance)
            turns += 1
    assert turns > 100


class TakesPastKeyValues(Qwen2ForCausalLM):
    """As transformers' own models before 5.24, and models that bring code written for these."""

    def forward(self, input_ids=None, past_key_values=None, **kwargs):
        return super().forward(input_ids, **{CACHE_ARGUMENT: past_key_values}, **kwargs)


class TakesCache(Qwen2ForCausalLM):
    """As transformers' own models from 5.24 on."""

    def forward(self, input_ids=None, cache=None, **kwargs):
        return super().forward(input_ids, **{CACHE_ARGUMENT: cache}, **kwargs)


class PassesOn(Qwen2ForCausalLM):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("lora", [False, True], ids=["alone", "lora"])
@pytest.mark.parametrize("kind", [TakesPastKeyValues, TakesCache, PassesOn])
def test_both_names_that_transformers_had_for_the_cache(kind, lora):
    model = make(lambda: kind(Qwen2Config(**SHAPE)))
    if lora:
        model = get_peft_model(model, LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM")).eval()
    check_model(model)
    for request, completion in play(TransformersEngine(model, EOS, 0), random.Random(0), SAMPLINGS["greedy"]):
        expected = alone(model, request, completion.ids)
        assert completion.ids == expected.ids
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_a_wrapper_that_does_not_say_what_it_passes_on():
    """As FSDP's: it gets the name of the installed transformers."""

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module, self.config = module, module.config

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs)

    model, request = make(qwen2), Request((1, 2, 3), 5, Sampling(greedy=True), 0, 0)
    (completion,) = TransformersEngine(Wrapper(model), EOS, 0).complete([request])
    assert completion.ids == alone(model, request, completion.ids).ids


@pytest.mark.parametrize(
    ("tokens", "prompts", "samples", "shared"),
    [(60, 2, 8, True), (60, 2, 2, False), (200, 2, 2, True), (200, 4, 1, False)],
    ids=["short-with-many-rows", "short-with-few-rows", "long-with-few-rows", "a-row-each"],
)
def test_prompts_are_shared_where_that_pays(tokens, prompts, samples, shared):
    engine = TransformersEngine(make(qwen2), EOS, 0)
    ids = [(prompt, *[5] * tokens) for prompt in range(prompts) for _ in range(samples)]
    engine.complete([Request(each, 1, Sampling(greedy=True), row, 0) for row, each in enumerate(ids)])
    assert (engine._prompts is not None) == shared


@pytest.mark.slow
@pytest.mark.parametrize("past", ["shared", "copied", "prefilled again"])
@pytest.mark.parametrize("build", [qwen2, llama, sliding_window])
def test_all_is_computed_where_the_model_lies(build, past, monkeypatch):
    """There is no GPU here; `other_device` refuses what one would refuse."""
    monkeypatch.setattr(
        "trl_dbbench.engines.transformers.engine.can_keep", lambda _: past != "prefilled again"
    )
    long = 1 if past == "shared" else 10_000
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", long)
    with another_device() as move:
        engine = TransformersEngine(move(make(build)), EOS, 0)
        played = play(engine, random.Random(0), SAMPLINGS["mixed"])
    assert (engine._prompts is not None) == (past == "shared" and build is not sliding_window)
    model = make(build)
    for request, completion in played:
        expected = alone(model, request, completion.ids)
        assert completion.ids == expected.ids
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-3)


@pytest.mark.parametrize("at_once", [1, 2**25], ids=["a-query-at-a-time", "all-queries"])
@pytest.mark.parametrize("build", [qwen2, llama, qwen3])
def test_prompts_are_shared_without_the_kernel_of_cpus(build, at_once, monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(prefix, "fused", None)
    monkeypatch.setattr(prefix, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", 1)
    model = make(build)
    engine = TransformersEngine(model, EOS, 0)
    for request, completion in play(engine, random.Random(0), SAMPLINGS["mixed"]):
        expected = alone(model, request, completion.ids)
        assert completion.ids == expected.ids
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert engine._prompts is not None


def test_parameters_may_be_offloaded():
    """As FSDP's are: they lie on the CPU until a layer needs them."""
    with another_device() as move:
        model = move(make(qwen2))
        device = model.device
        model.register_parameter("offloaded", torch.nn.Parameter(torch.zeros(1)))
        assert next(model.parameters()).device.type == "cpu"
        request = Request((1, 2, 3), 5, Sampling(greedy=True), 0, 0)
        (completion,) = TransformersEngine(model, EOS, 0, device=device).complete([request])
    assert completion.ids == alone(make(qwen2), request, completion.ids).ids


def test_full_determinism_on_a_gpu(request):
    """A draw adds up probabilities, for which PyTorch has no deterministic kernel there."""
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    torch.use_deterministic_algorithms(True)
    asked = Request((1, 2, 3), 5, Sampling(0.9, top_p=0.8, seed=1), 0, 0)
    with another_device() as move:
        (completion,) = TransformersEngine(move(make(qwen2)), EOS, 0).complete([asked])
    assert completion.ids == alone(make(qwen2), asked, completion.ids).ids


def test_devices_are_not_mixed():
    with another_device() as move:
        layer = move(torch.nn.Linear(2, 2))
        assert layer(torch.ones(2, device=layer.weight.device)).device == layer.weight.device
        with pytest.raises(AssertionError, match=r"mixes devices: \[\(1, 2\)\] on the CPU"):
            layer(torch.ones(1, 2))


@pytest.mark.parametrize("kernel", [prefix.fused, None], ids=["as-on-cpus", "as-on-gpus"])
@pytest.mark.parametrize("long", [1, 10_000], ids=["prompts-shared", "prompts-copied"])
def test_every_token_is_computed_in_the_precision_of_training(long, kernel, monkeypatch):
    """Also those after the end of another row, and what follows from turn to turn."""
    monkeypatch.setattr(prefix, "fused", kernel)
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", long)
    model = make(qwen2)
    autocast = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    precisions = set()
    model.model.layers[1].mlp.up_proj.register_forward_hook(lambda *each: precisions.add(each[-1].dtype))
    engine = TransformersEngine(model, EOS, 0, autocast=autocast)
    played = play(engine, random.Random(0), SAMPLINGS["sampled"])
    assert precisions == {torch.bfloat16} and not torch.is_autocast_enabled("cpu")
    for request, completion in played:
        with torch.no_grad(), autocast():
            ids = torch.tensor([[*request.ids, *completion.ids]])
            logits = model(ids).logits[0, len(request.ids) - 1 : -1].float() / 0.9
        logprobs = logits.log_softmax(-1).gather(1, ids[0, len(request.ids) :, None])[:, 0]
        assert completion.logprobs == pytest.approx(logprobs.tolist(), abs=0.2), "but for the rounding"


def test_what_lies_in_the_spare_columns_of_a_buffer_is_not_seen(monkeypatch):
    buffer = cache._buffer

    def littered(like: torch.Tensor, rows: int, length: int, room: int) -> torch.Tensor:
        new = buffer(like, rows, length, room)
        new[:, :, length:] = 1e4
        return new

    monkeypatch.setattr(cache, "_buffer", littered)
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.OWN_SPARE_COLUMNS", 3)
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", 1)
    model = make(qwen2)
    engine = TransformersEngine(model, EOS, 0)
    for request, completion in play(engine, random.Random(1), SAMPLINGS["mixed"]):
        assert completion.ids == alone(model, request, completion.ids).ids
    for layer in engine._cache.layers:
        assert layer.length <= layer.keys.shape[2] <= layer.length + 3


def test_rows_come_and_go_and_no_second_copy_is_kept():
    """Ten columns of two rows; three of the second are kept, before an empty row."""
    past = cache.RowCache()
    keys = torch.arange(20.0).reshape(2, 1, 10, 1)
    past.update(keys, -keys, layer_idx=0)
    new = cache.RowCache.of([cache.Piece(past, 1, 2, 3), None], 4, room=2)
    (layer,) = new.layers
    assert layer.length == 4
    assert layer.keys[:, 0, :, 0].tolist() == [[0, 12, 13, 14, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert layer.values[:, 0, :, 0].tolist() == [[0, -12, -13, -14, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert past.layers[0].keys is None and past.layers[0].values is None


class Counted:
    """A model that remembers the shapes it was fed."""

    def __init__(self, model: PreTrainedModel):
        self.fed: list[tuple[int, int]] = []
        model.register_forward_pre_hook(self._remember, with_kwargs=True)

    def _remember(self, _module, _args, kwargs) -> None:
        self.fed.append(tuple(kwargs["input_ids"].shape))


def test_a_prompt_is_computed_once_and_a_turn_feeds_what_is_new():
    model = make(qwen2)
    counted = Counted(model)
    engine = TransformersEngine(model, [], 0)  # nothing ends a turn but its budget
    prompts = [(5,) * 30, (6,) * 20]
    first = [
        Request(prompts[row // 4], 3, Sampling(greedy=row % 4 == 0, seed=row), row, 0) for row in range(8)
    ]
    turns = engine.complete(first)
    # both prompts but for their last ids; then three tokens for each of eight rows
    assert counted.fed == [(2, 29), (8, 1), (8, 1), (8, 1)]

    counted.fed.clear()
    second = [Request((*r.ids, *turns[r.row].ids, 7, 8, 9), 2, r.sampling, r.row, 1) for r in first[2:]]
    engine.complete(second)
    assert counted.fed == [(6, 4), (6, 1)], "the last sampled id and three of the observation"


def test_a_shared_prompt_stays_where_the_history_after_it_is_rewritten(monkeypatch):
    """As with `history: template`: the second turn reads another first turn than was sampled."""
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", 1)
    model = make(qwen2)
    counted = Counted(model)
    engine = TransformersEngine(model, [], 0)
    prompts = [(5,) * 30, (6,) * 20]
    first = [Request(prompts[row // 4], 3, Sampling(seed=row), row, 0) for row in range(8)]
    engine.complete(first)
    assert counted.fed == [(2, 29), (8, 1), (8, 1), (8, 1)]
    counted.fed.clear()
    second = [Request((*r.ids, 50, 7, 8), 2, r.sampling, r.row, 1) for r in first]
    turns = engine.complete(second)
    assert counted.fed == [(8, 4), (8, 1)], "a prompt's last id and what follows it"
    for request, turn in zip(second, turns, strict=True):
        assert turn.ids == alone(make(qwen2), request, turn.ids).ids


@pytest.mark.parametrize("long", [1, 10_000], ids=["prompts-shared", "prompts-copied"])
def test_many_prompts_are_computed_in_parts(long, monkeypatch):
    """What a layer computes on the way takes memory for every token of a part."""
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", long)
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.PREFILL_TOKENS_ON_CPU", 25)
    model = make(qwen2)
    prompts = [(5 + number,) * (11 - number) for number in range(5)]
    requests = [Request(prompts[row // 2], 4, Sampling(greedy=True), row, 0) for row in range(10)]
    counted = Counted(model)
    turns = TransformersEngine(model, [], 0).complete(requests)
    for request, turn in zip(requests, turns, strict=True):
        assert turn.ids == alone(make(qwen2), request, turn.ids).ids
    assert counted.fed[:3] == [(2, 10), (3, 8), (10, 1)], "prompts but for their last ids, then ten rows"


def test_rows_that_are_done_leave_the_batch():
    model = make(qwen2)
    counted = Counted(model)
    budgets = [2, 2, 3, 6]
    requests = [Request((5, 6, row), new, Sampling(greedy=True), row, 0) for row, new in enumerate(budgets)]
    done = []
    TransformersEngine(model, [], 0).complete(
        requests,
        lambda request, completion: done.append((request.row, len(completion.ids), len(counted.fed))),
    )
    assert done == [(0, 2, 3), (1, 2, 3), (2, 3, 4), (3, 6, 7)], "each as soon as it is finished"
    assert [rows for rows, _ in counted.fed] == [1, 4, 4, 2, 1, 1, 1], "the shared prefix, then six tokens"


def test_a_model_whose_past_cannot_be_kept_says_so(caplog):
    with caplog.at_level(logging.INFO, "trl_dbbench"):
        TransformersEngine(make(hybrid), EOS, 0)
    assert "Qwen3Next has layers whose past cannot be kept" in caplog.text


@pytest.mark.parametrize(("build", "sharing"), [(qwen2, True), (llama, True), (sliding_window, False)])
def test_a_long_prompt_is_kept_once_where_attention_allows_it(build, sharing):
    model = make(build)
    engine = TransformersEngine(model, [], 0)
    requests = [Request((5,) * 200, 2, Sampling(seed=row), row, 0) for row in range(6)]
    engine.complete(requests)
    columns = engine._cache.get_seq_length()
    assert columns == (2 if sharing else 201), "what a row keeps of its own"
    assert model.config._attn_implementation == "sdpa", "the usual attention is back"


@pytest.fixture
def computed(monkeypatch) -> list[torch.nn.Linear]:
    """The linear layers that were computed with weights laid out anew, whatever their size."""
    layers: list[torch.nn.Linear] = []
    forward = linear_layers._forward

    def remembered(layer, kept, input):
        layers.append(layer)
        return forward(layer, kept, input)

    monkeypatch.setattr(linear_layers, "_forward", remembered)
    monkeypatch.setattr(linear_layers, "PACK_MIN_WEIGHTS", {torch.float32: 1, torch.bfloat16: 1})
    return layers


@pytest.mark.parametrize("long", [1, 10_000], ids=["prompts-shared", "prompts-copied"])
@pytest.mark.parametrize("build", [qwen2, llama, mistral, qwen3, sliding_window, hybrid])
def test_weights_laid_out_anew_give_the_turns_of_a_full_forward(build, long, computed, monkeypatch):
    monkeypatch.setattr("trl_dbbench.engines.transformers.engine.SHARE_PREFIX_MIN_TOKENS", long)
    model = make(build)
    with packed(model):
        played = play(TransformersEngine(model, EOS, 0), random.Random(0), SAMPLINGS["mixed"])
    assert model.lm_head in computed
    computed.clear()
    for request, completion in played:
        expected = alone(model, request, completion.ids)
        assert completion.ids == expected.ids
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-3 if build is hybrid else 1e-4)
    assert not computed, "the rollout is over"


def test_float32_is_laid_out_where_a_cpu_has_no_bfloat16(monkeypatch):
    """As processors with AVX2 alone."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    large = torch.nn.Linear(256, 256)
    with packed(torch.nn.Sequential(large)):
        assert "forward" in vars(large)
    assert not linear_layers._packs(large, torch.bfloat16)


def test_each_rollout_lays_out_the_weights_of_its_time(computed):
    model = make(qwen2)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        for scale in (1.0, -2.0):  # as after an update
            model.lm_head.weight.mul_(scale)
            expected = model(ids).logits
            with packed(model):
                torch.testing.assert_close(model(ids).logits, expected, atol=1e-4, rtol=0)


def test_a_rollout_lays_out_the_weights_below_lora(computed):
    model = get_peft_model(make(qwen2), LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False))
    engine = TransformersEngine(model, [], 0)
    requests = [Request((5, 6, 7), 2, Sampling(greedy=True), 0, 0)]
    expected = engine.complete(requests)

    episode = ThreadPoolExecutor(1).submit(asyncio.run, engine.generate(requests[0]))
    engine.serve([episode])
    assert episode.result().ids == expected[0].ids
    assert model.base_model.model.model.layers[0].mlp.up_proj.base_layer in computed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_compute_in_what_autocast_sets(computed, dtype):
    """Those of LoRA too, which are float32 beside frozen weights in bfloat16."""
    model = make(qwen2).to(dtype)
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(torch.arange(8)[None]).logits
        with packed(model):
            found = model(torch.arange(8)[None]).logits
    lora = model.base_model.model.model.layers[0].mlp.up_proj
    assert {lora.base_layer, lora.lora_A["default"], lora.lora_B["default"]} <= {*computed}
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-2)


def test_a_turn_fed_with_its_observation_multiplies_whole_rows_by_the_vocabulary():
    """PyTorch would copy frozen weights once for each row of a slice."""
    model = make(qwen2).to(torch.bfloat16).requires_grad_(False)
    contiguous = []
    model.lm_head.register_forward_hook(
        lambda layer, inputs, output: contiguous.append(inputs[0].is_contiguous())
    )
    engine = TransformersEngine(model, [], 0)
    for turn, ids in enumerate([(5, 6, 7), (5, 6, 7, 8, 9, 10, 11)]):
        engine.complete([Request(ids, 1, Sampling(greedy=True), row, turn) for row in (0, 1)])
    assert all(contiguous) and len(contiguous) >= 2


def test_copies_of_weights_are_bounded(computed, monkeypatch):
    model = make(qwen2)
    first, second = (model.model.layers[number].mlp.gate_proj for number in (0, 1))
    room = sum(layer.weight.nbytes for layer in linear_layers._layers(model.model.layers[0]))
    monkeypatch.setattr(linear_layers, "PACK_MAX_BYTES", room)
    with packed(model), torch.no_grad():
        model(torch.arange(8)[None])
    assert first in computed
    assert second not in computed
