"""Memory that a run will need, estimated before it starts.

```
total = libraries + weights + optimizer + max(rollout, update, gradients)

libraries    PyTorch, transformers and TRL in a process on a CPU, measured
weights      N untrained parameters in the model's dtype, T trained ones in their own. With LoRA, T are the
             adapters', which PEFT keeps in float32 (TRL: in bfloat16 on a quantized model); otherwise T are
             all. In a model loaded in 8 or 4 bits, linear layers except the output layer take 1 or 1/2 byte
             per parameter. A KL reference that is a separate model is added
optimizer    2 T values, AdamW's moments (Kingma and Ba, 2015), of 1 byte each if the name in `optim` has
             8bit, 1/2 byte if it has 4bit; the state of other optimizers is left out
rollout      keys and values, logits of the next token, and a layer's intermediate results
             (`engines/transformers/admission.py`); on a CPU also the weights in oneDNN's layout
update       activations and the output layer, of one forward and backward pass
gradients    T values. A backward pass frees activations as it makes gradients; with several passes in a
             step, the gradients of earlier ones are in memory already, and the two add up
buckets      T values, in which DDP sums gradients over several ranks
vLLM         if it runs in this process: its share of the device's memory; on a CPU, if
             VLLM_CPU_KVCACHE_SPACE sets the cache's size, that size plus a copy of the weights. It counts
             with the rollout if vLLM sleeps during the update, otherwise with the update
```

FSDP and ZeRO-3 divide weights, gradients and optimizer among the ranks, ZeRO-2 the last two. In mixed
precision FSDP keeps trained weights in float32 (`accelerate.utils.fsdp_utils`), and DeepSpeed's optimizer
keeps a float32 copy of them. A separate critic (`critic: model`) is a second trained model. Reward models are
not counted.

**Activations** are what autograd keeps of each token for the backward pass. In a layer (`layer_bytes`), with
hidden size H, query size Q of all heads together, key and value size K, MLP size F and c bytes per value:

```
norms        2 H in float32; queries and keys too, if they have norms
attention    (2 Q + K) c: queries, keys, values, output. With shared prompts 2 Q c more: keys and values are
             repeated for the heads that share them
MLP          3 F c: gate, its activation, and the factor that this is multiplied by
inputs       of the linear layers whose weights or adapters are trained
```

If autocast computes in fewer bytes than the weights have, it also keeps a copy of each linear layer's weights
(`copied_bytes`).

With gradient checkpointing only each layer's input is kept, and one layer at a time is recomputed.

**Output layer.** TRL computes logits in tiles of at most 4,096 tokens by 32,768 words, and recomputes them in
the backward pass. On a GPU one tile is in memory at a time. On a CPU, which runs several steps where a GPU
has one kernel, there are seven more copies, in float32 but of 1,024 words only (`utils/cpu.py`).

**glibc**, on a CPU, keeps freed memory between tensors that are still in use. Measured with
`benchmarks/memory.py`: with LoRA, half of what all layers would keep without checkpointing; less if all
weights are trained, because gradients and moments fill the gaps. With LoRA and several passes in a step, over
rows of different lengths, it keeps as much as all layers would (`benchmarks/smollm2_grpo.yaml`).
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase

from trl_dbbench.engines.base import engine_of, in_process_vllm, settings_asked
from trl_dbbench.engines.shared_prompts import WORTH, reason_against
from trl_dbbench.engines.transformers.admission import (
    TAKEN_SHARE,
    Costs,
    head_size,
    key_value_heads,
    mlp_size,
)
from trl_dbbench.engines.transformers.cache import can_keep
from trl_dbbench.engines.transformers.models import class_of
from trl_dbbench.engines.transformers.packed import PACK_MAX_BYTES
from trl_dbbench.engines.transformers.prefix import can_share
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.few_shot import Memory, Messages, load_memory, longest_shown
from trl_dbbench.training.last_words import tell
from trl_dbbench.training.unsupported import wants_bf16
from trl_dbbench.utils import cpu
from trl_dbbench.utils.memory import free_memory, total_memory

LIBRARIES_ON_CPU = 0.6e9
"""Bytes of a process that has imported all libraries and trained the smallest model for one step."""

TILE_TOKENS, TILE_WORDS = 4_096, 32_768
"""Size of TRL's tiles of logits (`TOKEN_CHUNK_SIZE` and `_CHUNKED_LOGPROB_CHUNK_SIZE`)."""

TILES_ON_CPU = 7.25
"""Float32 copies of a tile in its backward pass on a CPU, besides the tile itself."""

KEPT_BY_GLIBC, KEPT_BY_GLIBC_IF_ALL_IS_TRAINED = 0.55, 0.25
"""Bytes that glibc keeps per byte that the layers would keep without checkpointing."""

KEPT_OF_SEVERAL = 0.5
"""Further bytes, by the same measure, if a step has several passes with LoRA."""

SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Groups of linear layers that read the same input."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model: numbers of parameters, and of values per token."""

    parameters: int
    trained: int
    quantizable: int
    """Untrained parameters that are quantized if the model is loaded in 8 or 4 bits."""
    layers: int
    hidden: int
    heads: int
    """Values of a layer's queries, over all heads."""
    key_values: int
    """Values of a layer's keys and values, over all heads."""
    between: int
    """Values between the linear layers of an MLP."""
    vocabulary: int
    linear: int = 0
    """Weights of the linear layers, including the output layer."""
    inputs: int = 0
    """Input values of a layer's trained linear layers, without `o_proj`; a shared input counts once."""
    inputs_apart: int = 0
    """The same, with a shared input counted once per layer that reads it."""
    dropped: int = 0
    """Input values of a layer's adapters that go through dropout (`lora_dropout`), counted per adapter."""
    ranks: int = 0
    """Sum of the ranks of a layer's adapters."""
    tied: bool = False
    """True if the output layer shares its weights with the embeddings."""
    normed: int = 0
    """Values of queries and keys, if they have norms of their own, as in Qwen3."""

    @classmethod
    def of(
        cls, config: PretrainedConfig, peft_config: PeftConfig | None, *, trust_remote_code: bool = False
    ) -> Sizes:
        """Build the model without weights, and count its sizes."""
        with torch.device("meta"):
            kind, trusted = class_of(config), {"trust_remote_code": trust_remote_code}
            make = kind._from_config if kind else partial(AutoModelForCausalLM.from_config, **trusted)
            model: Any = make(config)
            output = model.get_output_embeddings()
            linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear) and m is not output]
            if peft_config is not None:
                model = get_peft_model(model, deepcopy(peft_config))  # PEFT writes into it
        return cls.counted(model, sum(weight.numel() for weight in linear) if peft_config is not None else 0)

    @classmethod
    def counted(cls, model: Any, quantizable: int = 0) -> Sizes:
        """Count the sizes of an existing model."""
        text = model.config.get_text_config()
        heads, size = key_value_heads(text), head_size(text)
        counted = [(each.numel(), each.requires_grad) for each in model.parameters()]
        read: dict[str, int] = {}
        dropped = ranks = 0
        names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
        for name, module in model.named_modules():
            if ".0." not in name or name.rpartition(".")[2] in ("default", "base_layer"):
                continue  # only the first layer counts, without submodules of an adapted one
            place, features = name.rpartition(".")[2], getattr(module, "in_features", None)
            if features and any(weight.requires_grad for weight in module.parameters()):
                read[place] = features
                ranks += sum(each.out_features for each in getattr(module, "lora_A", {}).values())
                drops = getattr(module, "lora_dropout", {}).values()
                dropped += features * any(isinstance(each, nn.Dropout) for each in drops)
        read.pop("o_proj", None)
        same = {place: places[0] for places in SAME_INPUT for place in places}
        distinct = {same.get(place, place): count for place, count in read.items()}
        between = mlp_size(text)
        if experts := getattr(text, "num_experts_per_tok", None):
            between = experts * (getattr(text, "moe_intermediate_size", None) or between)
        return cls(
            parameters=sum(count for count, _ in counted),
            trained=sum(count for count, trained in counted if trained),
            quantizable=quantizable,
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            heads=text.num_attention_heads * size,
            key_values=2 * heads * size,
            between=between,
            vocabulary=text.vocab_size,
            linear=sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear)),
            inputs=sum(distinct.values()),
            inputs_apart=sum(read.values()),
            dropped=dropped,
            ranks=ranks,
            tied=bool(getattr(model.config, "tie_word_embeddings", False)),
            normed=text.num_attention_heads * size + heads * size if "q_norm" in names else 0,
        )


@dataclass(frozen=True)
class Batch:
    """Rows of a forward and backward pass.

    Args:
        prompts: number of different prompts among the rows.
        prompt, completion: tokens of each prompt and completion.
        shared: whether a prompt is computed once for all its rows.
    """

    rows: int = 0
    prompts: int = 0
    prompt: int = 0
    completion: int = 0
    shared: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that go through the layers."""
        if self.shared:  # a completion is computed after its prompt's last token
            return self.prompts * (self.prompt - 1) + self.rows * (self.completion + 1)
        return self.rows * (self.prompt + self.completion)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Device that a training runs on, and how the model is loaded there.

    Args:
        there: bytes of memory available to one rank.
        value_bytes: bytes of an untrained parameter, and of a value in the cache.
        lora: whether adapters are trained.
        bits: bits per weight of the quantized layers, if the model is loaded in 8 or 4 (`quantized_bits`).
        ranks: number of ranks in the training.
        sharing: number of ranks that divide the weights, and that divide gradients and optimizer.
        full_precision: whether trained weights are kept in float32 (FSDP in mixed precision).
        master: whether the optimizer keeps a float32 copy of them (DeepSpeed in mixed precision).
    """

    there: float = math.inf
    on_cpu: bool = False
    value_bytes: int
    lora: bool = False
    bits: float | None = None
    ranks: int = 1
    sharing: tuple[int, int] = (1, 1)
    full_precision: bool = False
    master: bool = False


@dataclass(frozen=True, kw_only=True)
class Load(Place):
    """Use of a model in a training, on one rank.

    Args:
        computed_bytes: bytes of a value that the model computes; 2 with `bf16` or `fp16`.
        optimizer_bytes: bytes of optimizer state per trained parameter; `None` for twice the parameter's.
        reference: whether a second model of this size is the KL reference.
        rollout: bytes of a rollout in this process.
        update: rows of a forward and backward pass.
        accumulates: whether a step has several passes, so that earlier gradients are in memory already.
        checkpointing: whether activations are recomputed in the backward pass.
        vllm: bytes of vLLM in this process.
        vllm_sleeps: whether vLLM frees them during the update.
        models: number of trained models of this size; 2 with a separate critic.
    """

    computed_bytes: int
    optimizer_bytes: int | None = None
    reference: bool = False
    rollout: float = 0
    update: Batch = Batch()
    accumulates: bool = False
    checkpointing: bool = False
    vllm: float = 0
    vllm_sleeps: bool = False
    models: int = 1

    @property
    def trained_bytes(self) -> int:
        """Bytes of a trained parameter."""
        if self.full_precision:
            return 4
        if self.lora:
            return 2 if self.bits is not None else 4
        return self.value_bytes


def needed(sizes: Sizes, load: Load) -> dict[str, float]:
    """Return the bytes of each part, by the formula in this module's docstring; `total` is the peak."""
    untrained: float = (sizes.parameters - sizes.trained) * load.value_bytes
    if load.bits is not None:
        untrained -= sizes.quantizable * (load.value_bytes - load.bits / 8)
    reference = sizes.parameters * load.value_bytes if load.reference else 0
    optimizer = 2 * load.trained_bytes if load.optimizer_bytes is None else load.optimizer_bytes
    share_weights, share_rest = load.sharing
    trained = load.models * sizes.trained
    parts = {
        "libraries": LIBRARIES_ON_CPU if load.on_cpu else 0.0,
        "weights": (load.models * untrained + trained * load.trained_bytes + reference) / share_weights,
        "optimizer": trained * optimizer / share_rest,
        "gradients": trained * load.trained_bytes / share_rest,
        # with DDP each rank keeps its gradients twice
        "buckets": sizes.trained * load.trained_bytes if load.ranks > 1 and load.sharing == (1, 1) else 0.0,
        "rollout": load.rollout,
        "update": update_bytes(sizes, load),
        "vLLM": load.vllm,
    }
    gradients, update, rollout = parts["gradients"], parts["update"], parts["rollout"]
    # tied embeddings' gradient is summed from two: the embeddings' and the output layer's
    gradients += sizes.tied * vocabulary_bytes(sizes, load)
    training = gradients + update if load.accumulates else max(gradients, update)
    if load.vllm_sleeps:
        rollout += load.vllm
    else:
        training += load.vllm
    lasting = parts["libraries"] + parts["weights"] + parts["optimizer"] + parts["buckets"]
    return parts | {"total": lasting + max(rollout, training)}


def layer_bytes(sizes: Sizes, load: Load) -> float:
    """Return the bytes that autograd keeps per token and layer."""
    computed, trains_norms = load.computed_bytes, not load.lora
    casts = load.trained_bytes != computed  # then each linear layer reads its own copy of an input
    norms = 2 * sizes.hidden * (4 + load.value_bytes * trains_norms)
    norms += sizes.normed * (4 + computed * trains_norms)
    attention = 2 * sizes.heads + sizes.key_values
    apart = casts or sizes.dropped > 0
    inputs = sizes.inputs_apart if apart else sizes.inputs
    if load.lora and apart:
        inputs += sizes.heads
    if load.update.shared:
        attention += 2 * sizes.heads
        inputs += 0 if load.lora and apart else sizes.heads  # the attention's output, put together
    masks = sizes.dropped * (load.trained_bytes if load.on_cpu else 1)
    return norms + (attention + 3 * sizes.between + inputs + sizes.ranks) * computed + masks


def output_bytes(sizes: Sizes, load: Load, tokens: int) -> float:
    """Return the bytes of the output layer's backward pass."""
    words = cpu.TILE_WORDS if load.on_cpu else TILE_WORDS
    tile = min(tokens, TILE_TOKENS) * min(sizes.vocabulary, words)
    copies = load.computed_bytes + (4 * TILES_ON_CPU if load.on_cpu else 0)
    return tile * copies + tokens * sizes.hidden * 4 + vocabulary_bytes(sizes, load)


def vocabulary_bytes(sizes: Sizes, load: Load) -> float:
    """Return the bytes of the output layer's float32 gradient; 0 with LoRA."""
    return 0 if load.lora else sizes.vocabulary * sizes.hidden * 4


def update_bytes(sizes: Sizes, load: Load) -> float:
    """Return the peak bytes of a forward and backward pass."""
    batch = load.update
    of_layer = layer_bytes(sizes, load)
    kept = sizes.hidden * load.value_bytes if load.checkpointing else of_layer
    # gradients between an MLP's linear layers, and activations that are recomputed
    under_way = 3 * sizes.between * load.computed_bytes + (of_layer if load.checkpointing else 0)
    share = KEPT_BY_GLIBC if load.lora else KEPT_BY_GLIBC_IF_ALL_IS_TRAINED
    share += KEPT_OF_SEVERAL * (load.lora and load.accumulates)
    lost = share * of_layer if load.on_cpu else 0
    every = batch.tokens * (sizes.layers * (kept + lost) + 2 * sizes.hidden * 4)
    # on a CPU, TRL scores the tokens of prompts as well
    scored = batch.rows * batch.completion if batch.shared or not load.on_cpu else batch.tokens
    copies = copied_bytes(sizes, load)
    return load.models * (every + copies) + max(output_bytes(sizes, load, scored), batch.tokens * under_way)


def copied_bytes(sizes: Sizes, load: Load) -> float:
    """Return the bytes of the copies that autocast makes of linear layers' weights for the backward pass."""
    if load.value_bytes <= load.computed_bytes or load.bits is not None:
        return 0
    weights = sizes.linear - sizes.vocabulary * sizes.hidden  # the output layer is scored in tiles
    return weights * load.computed_bytes / (sizes.layers if load.checkpointing else 1)


# --- what fits ------------------------------------------------------------------------------------

UPDATE_ON_CPU = 4e9
"""Bytes of a pass on a CPU, where longer passes are no faster per token; larger models get as many as their
weights."""

SHARE_OF_FREE = 0.8
"""Share of the free memory that a pass may take; the rest covers what the estimate leaves out."""

MAX_TOKENS = 2**24
"""Maximum number of tokens of a pass, even if more would fit."""


def update_budget(free: float | None, weights: float, on_cpu: bool) -> float | None:
    """Return the bytes that a forward and backward pass may take; `None` for no limit.

    `free` are the bytes left by weights, gradients and optimizer; `None` if unknown.
    """
    of_free = [] if free is None else [SHARE_OF_FREE * free]
    return min([*of_free, *([max(UPDATE_ON_CPU, weights)] if on_cpu else [])], default=None)


def tokens_within(budget: float, sizes: Sizes, load: Load) -> int:
    """Return the tokens of the longest pass that takes at most `budget` bytes; at least 1."""

    def taken(tokens: int) -> float:
        row = Batch(rows=1, prompts=1, prompt=1, completion=tokens - 1, shared=load.update.shared)
        return update_bytes(sizes, replace(load, update=row))

    return max(1, bisect_right(range(1, MAX_TOKENS), budget, key=taken))


def fitting(trainer: Any) -> int | None:
    """Return the tokens of the longest pass that fits into the free memory; `None` if unknown."""
    args, model, device = trainer.args, trainer.model, trainer.accelerator.device
    critic = getattr(trainer, "critic", None)
    weights = [*model.parameters(), *(() if critic is None else critic.parameters())]
    free = free_memory(device)
    if free is not None:
        # still to be allocated: gradients, and the optimizer's moments unless a checkpoint has loaded them
        trained = [weight for weight in weights if weight.requires_grad]
        kept = optimizer_bytes(args.optim)
        moments = sum(2 * _bytes(each) if kept is None else kept * _numbers(each) for each in trained)
        to_come = sum(map(_bytes, trained)) + max(0, moments - _moments(trainer.optimizer))
        free = max(0, free - to_come)
    on_cpu = device.type == "cpu"
    budget = update_budget(free, sum(map(_bytes, weights)), on_cpu)
    if budget is None:
        return None
    value_bytes = model.get_input_embeddings().weight.element_size()
    load = Load(
        value_bytes=value_bytes,
        computed_bytes=2 if args.bf16 or args.fp16 else value_bytes,
        lora=isinstance(model, PeftModel),
        bits=4 if getattr(model, "is_quantized", False) else None,
        update=Batch(shared=trainer.shares_prompts(model)),
        checkpointing=bool(getattr(args, "activation_checkpointing", args.gradient_checkpointing)),
        on_cpu=on_cpu,
        models=2 if getattr(critic, "trunk", None) is not None else 1,
    )
    try:
        return tokens_within(budget, Sizes.counted(model), load)
    except AttributeError:  # a config without the sizes of a transformer
        return None


def _moments(optimizer: Any) -> int:
    """Return the bytes of the optimizer's present state."""
    states = [] if optimizer is None else optimizer.state.values()
    return sum(_bytes(each) for state in states for each in state.values() if isinstance(each, torch.Tensor))


def _bytes(weight: torch.Tensor) -> int:
    """Return the bytes of this rank's part of a weight."""
    return _numbers(weight) * weight.element_size()


def _numbers(weight: torch.Tensor) -> int:
    return (weight.to_local() if isinstance(weight, DTensor) else weight).numel()


# --- the plan of a training -----------------------------------------------------------------------

REMEDIES = (
    "Less is needed with a smaller max_tokens_per_forward, max_concurrent_episodes, "
    "per_device_train_batch_size or max_completion_length, or with gradient_checkpointing: true"
)

MASTER_BYTES = 12
"""Bytes that DeepSpeed's optimizer keeps per trained parameter in mixed precision: a float32 copy and two
moments."""


@dataclass(frozen=True)
class Plan:
    """Amount of work that a training does at once on one rank, and the bytes that it needs.

    Args:
        episodes: episodes of a generation, greedy ones included; `at_once` of them play at a time.
        tokens: tokens of a micro-batch; `per_forward` of them go through the model together.
    """

    parts: dict[str, float]
    episodes: int = 0
    at_once: int = 0
    tokens: int = 0
    per_forward: int = 0

    @property
    def total(self) -> float:
        return self.parts["total"]

    def __str__(self) -> str:
        """Return the parts in one line, then the bounds that apply."""
        listed = ", ".join(
            f"{name} {gb(size)}" for name, size in self.parts.items() if size and name != "total"
        )
        bounds = []
        if self.at_once < self.episodes:
            bounds.append(f"{self.at_once:,} of {self.episodes:,} episodes play at a time")
        if self.per_forward < self.tokens:
            bounds.append(f"{self.per_forward:,} of {self.tokens:,} tokens go through the model together")
        return "; ".join([listed, *bounds])


def gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 5e7 else f"{size / 1e6:,.1f} MB"


def plan(settings: Any, config: PretrainedConfig, sizes: Sizes, prompt: int, place: Place) -> Plan:
    """Return what a training needs if it does as much at once as fits.

    Args:
        settings: object with the fields of a `DBBenchGRPOConfig`, or of the config of another trainer, which
            plays no episodes.
        prompt: tokens of the longest prompt.
    """

    def get(name: str, default: Any = None) -> Any:
        found = getattr(settings, name, None)
        return default if found is None else found

    plays = hasattr(settings, "max_turns")
    rows = int(get("per_device_train_batch_size", 8))
    passes, samples = int(get("gradient_accumulation_steps", 1)), int(get("num_generations", 8))
    episodes = rows * int(get("steps_per_generation", passes))
    if get("generation_batch_size"):
        episodes = int(get("generation_batch_size")) // place.ranks
    prompts = -(-episodes // samples)
    completion = int(get("max_completion_length", 256) if plays else get("max_length", 1024))
    usual = Batch(rows, min(rows, prompts), prompt, completion)
    attending = copy(config)
    loaded_with = get("model_init_kwargs") if isinstance(get("model_init_kwargs"), dict) else {}
    asked_attention = loaded_with.get("attn_implementation") or get("attn_implementation")
    attending._attn_implementation = asked_attention or "sdpa"
    shared = replace(usual, shared=True)
    shares = plays and get("shared_prefix", "auto") == "auto" and reason_against(attending) is None
    shares = shares and get("critic") is None  # the critic's passes share no prompts
    half = wants_bf16(settings) or get("fp16", False)
    asked = settings_asked(get)
    colocated = in_process_vllm(asked)
    load = Load(
        **vars(place),
        computed_bytes=2 if half else place.value_bytes,
        optimizer_bytes=MASTER_BYTES if place.master else optimizer_bytes(get("optim", "")),
        reference=plays
        and (
            bool(get("reference_model_name_or_path"))
            or (float(get("beta", 0)) > 0 and not place.lora and get("kl_reference") != "rollout")
        ),
        accumulates=passes > 1,
        checkpointing=bool(get("activation_checkpointing", get("gradient_checkpointing"))),
        vllm=_vllm(get, sizes, place) if colocated else 0,
        vllm_sleeps=colocated and bool(get("vllm_enable_sleep_mode")),
        models=2 if get("critic") == "model" else 1,
    )
    lasting = needed(sizes, load)
    free = max(0.0, place.there - lasting["total"])
    parts: dict[str, int] = {}
    if plays and engine_of(asked) == "transformers":
        if get("greedy_eval") == "batch":
            episodes += prompts
        costs = Costs.of(
            config.get_text_config(),
            torch.bfloat16 if load.computed_bytes == 2 else torch.float32,
            shares=can_share(attending),
            keeps=can_keep(config.get_text_config()),
        )
        # copies of the linear layers' weights (`engines/transformers/packed.py`)
        packed = load.computed_bytes * sizes.linear if place.on_cpu and place.bits is None else 0

        def taken(count: int) -> float:
            """Return the bytes of `count` episodes that play at once."""
            of_prompts = (-(-count * prompts // episodes), prompt) if costs.shares else ()
            longest = completion if costs.shares else prompt + completion
            return costs.taken(count, longest, *of_prompts) + min(packed, PACK_MAX_BYTES)

        fitting = bisect_right(range(1, episodes + 1), TAKEN_SHARE * free, key=taken)
        at_once = min(episodes, int(get("max_concurrent_episodes", max(1, fitting))))
        load = replace(load, rollout=taken(at_once))
        parts |= {"episodes": episodes, "at_once": at_once}
    batch = shared if shares and shared.tokens <= WORTH * usual.tokens else usual
    load = replace(load, update=batch)
    most = get("max_tokens_per_forward")
    if most is None and plays:
        if load.vllm_sleeps:
            free = max(0.0, place.there - needed(sizes, replace(load, vllm=0, update=Batch()))["total"])
        budget = update_budget(free, lasting["weights"], place.on_cpu)
        most = None if budget is None else tokens_within(budget, sizes, load)
    longest = prompt + completion
    share = 1.0 if most is None else min(1.0, max(most, longest) / max(1, batch.tokens))
    if share < 1:
        count = max(1, math.floor(share * rows))
        divided = replace(batch, rows=count, prompts=max(1, math.ceil(share * batch.prompts)))
        load = replace(load, update=divided, accumulates=True)
    parts |= {"tokens": batch.tokens, "per_forward": load.update.tokens}
    return Plan(needed(sizes, load), **parts)


def _vllm(get: Callable[..., Any], sizes: Sizes, place: Place) -> float:
    """Return the bytes of vLLM in this process.

    Raise ConfigError if its share of the memory is too small for its copy of the weights, of at most 2 bytes
    each.
    """
    weights = sizes.parameters * place.value_bytes
    if place.on_cpu and (cache := os.environ.get("VLLM_CPU_KVCACHE_SPACE")):
        return int(cache) * 2**30 + weights
    if math.isinf(place.there):
        return 0
    share = float(get("vllm_gpu_memory_utilization", 0.3))
    least = sizes.parameters * min(place.value_bytes, 2) - (
        sizes.quantizable * (2 - place.bits / 8) if place.bits is not None else 0
    )
    least /= int(get("vllm_tensor_parallel_size", 1))
    if share * place.there < least:
        raise ConfigError(
            f"vllm_gpu_memory_utilization: vLLM's share of {gb(place.there)}, {share:g}, does not hold its "
            f"copy of the weights, {gb(least)}. Set it to at least {1.1 * least / place.there:.2f}."
        )
    # on a CPU, vLLM's share includes what the process already holds
    held = LIBRARIES_ON_CPU + weights if place.on_cpu else 0
    return max(least, share * place.there - held)


# --- before a training starts ---------------------------------------------------------------------

CHARACTERS_PER_TOKEN = 4
"""Characters per token of a prompt, if the tokenizer is not known yet: few prompts have fewer tokens."""

SURE = 0.85
"""Share of the estimated bytes that a training surely takes."""


def adapter_config(name_or_path: str | None) -> PeftConfig | None:
    """Return the config of an adapter to be trained further; `None` without one."""
    if name_or_path is None:
        return None
    config = PeftConfig.from_pretrained(name_or_path)
    config.inference_mode = False  # saved configs have it true
    return config


IN_4_BITS = 4 + 32 / 64
"""Bits per weight: 64 weights share a float32 scale (`bitsandbytes.functional.quantize_4bit`)."""

IN_4_BITS_NESTED = 4 + 8 / 64 + 32 / (64 * 256)
"""Bits per weight with `use_bnb_nested_quant`: scales have 8 bits, and 256 of them share a float32 one."""


def quantized_bits(*given: Any) -> float | None:
    """Return the bits per weight of a model's quantized linear layers; `None` if it is not quantized.

    The first `quantization_config` that is not `None`, an object or a dictionary, counts. Raise ValueError if
    it does not give the bits, as with some quantization methods.
    """
    found = next((each for each in given if each is not None), None)
    if found is None:
        return None

    def get(name: str) -> Any:
        return found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)

    of_4_bits = IN_4_BITS_NESTED if get("bnb_4bit_use_double_quant") else IN_4_BITS
    bits = of_4_bits if get("load_in_4bit") else 8 if get("load_in_8bit") else get("bits")
    if not isinstance(bits, int | float):
        method = getattr(get("quant_method"), "value", get("quant_method"))
        raise ValueError(f"the model is quantized by {method}, which does not say to how many bits")
    return bits


def bytes_of(dtype: str | torch.dtype, config: PretrainedConfig) -> int:
    """Return the bytes of a number of this dtype; `auto` is the dtype of the model's config."""
    if dtype == "auto":
        dtype = getattr(config, "dtype", None) or "float32"
    # an unknown dtype is reported by the check of the settings
    return int(getattr(torch, str(dtype).removeprefix("torch."), torch.float32).itemsize)


def optimizer_bytes(optimizer: str) -> int | None:
    """Return an optimizer's bytes of state per trained parameter, as `Load.optimizer_bytes` has it.

    A paged optimizer is not counted: it moves its moments to main memory when the device is full.
    """
    if optimizer and not optimizer.startswith("adamw"):
        return 0
    return 2 if "8bit" in optimizer else 1 if "4bit" in optimizer else None


def longest_prompt(
    settings: Any,
    config: PretrainedConfig,
    prompts: Sequence[Messages],
    memory: Memory,
    tokens: Callable[[str], int],
) -> int:
    """Return the tokens of the longest prompt, including the earlier episodes of `memory` that it may show.

    `settings` may come from the parser of another recipe. `tokens` counts the tokens of a text.
    """
    protocol = get_protocol(settings.protocol, grader=settings.grader)
    own = prompts if getattr(settings, "few_shot_update", False) else ()
    shown = longest_shown(getattr(settings, "few_shot", 0), memory, protocol, own)
    texts = ("".join(each["content"] for each in prompt) for prompt in prompts)
    alone = tokens(max(texts, key=len, default=""))
    both = alone + tokens("".join(each["content"] for each in shown))
    context = getattr(config.get_text_config(), "max_position_embeddings", math.inf)
    # examples that do not fit are not shown
    return max(alone, int(min(both, context - (settings.max_completion_length or 0))))


def check_memory(
    model: Any,
    args: Any,
    prompts: Sequence[Messages],
    tokenizer: PreTrainedTokenizerBase | None,
    peft_config: PeftConfig | None,
    quantization_config: Any,
) -> None:
    """Estimate the memory of a training before it loads a model, and tell it to the run's witness.

    Raise ConfigError if the device surely has too little. Nothing is estimated if ranks share the weights, or
    for a model that has no transformer's sizes or is quantized to unknown bits.
    """
    shared = (os.environ.get(f"ACCELERATE_USE_{kind}") == "true" for kind in ("FSDP", "DEEPSPEED"))
    if any(shared) or args.fsdp or args.deepspeed:
        return
    kwargs = args.model_init_kwargs or {}
    sizes_of = partial(Sizes.of, trust_remote_code=args.trust_remote_code)
    try:
        peft_config = peft_config or adapter_config(args.adapter_name_or_path)
        if isinstance(model, str):
            config = AutoConfig.from_pretrained(
                model, revision=kwargs.get("revision"), trust_remote_code=args.trust_remote_code
            )
            sizes = sizes_of(config, peft_config)
            value_bytes = bytes_of(kwargs.get("dtype") or "float32", config)
        else:
            config, has_adapter = model.config, hasattr(model, "peft_config")
            sizes = Sizes.counted(model) if has_adapter else sizes_of(config, peft_config)
            value_bytes = model.get_input_embeddings().weight.element_size()
        bits = quantized_bits(
            quantization_config,
            kwargs.get("quantization_config"),
            getattr(config, "quantization_config", None),
        )
    except (OSError, ValueError, AttributeError):  # loading the model raises a better error
        return
    memory = Memory()
    if args.few_shot and args.few_shot_memory:
        memory = load_memory(args.few_shot_memory, get_protocol(args.protocol, grader=args.grader))

    def tokens(text: str) -> int:
        return len(tokenizer(text)["input_ids"]) if tokenizer else len(text) // CHARACTERS_PER_TOKEN

    on_cpu = args.device.type == "cpu"
    place = Place(
        there=total_memory(args.device) / (int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if on_cpu else 1),
        on_cpu=on_cpu,
        value_bytes=value_bytes,
        lora=peft_config is not None or hasattr(model, "peft_config"),
        bits=bits,
        ranks=args.world_size,
    )
    planned = plan(args, config, sizes, longest_prompt(args, config, prompts, memory, tokens), place)
    needs = f"{gb(planned.total)} ({planned})"
    if SURE * planned.total > place.there:
        raise ConfigError(
            f"the training needs about {needs}, and {gb(place.there)} are there. {REMEDIES}, or use_peft."
        )
    tell(
        f"By its settings it needs about {needs}. {REMEDIES}. Start it again with --resume_from_checkpoint "
        "true to go on from the last checkpoint."
    )
