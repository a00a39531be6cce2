"""Memory that a training needs on a device, computed before it starts.

```
needed = weights + gradients + optimizer + max(KV cache, activations)

weights      N untrained parameters in the type of the model, T trained ones in theirs. With LoRA, T are those
             of the adapters, which PEFT keeps in float32; else T are all, in the type of the model. Loaded in
             8 or 4 bits, linear layers but the output take 1 or 1/2 byte. A KL reference that is a model of
             its own comes on top
gradients    T values
optimizer    2 T values, AdamW's moments (Kingma and Ba, 2015), of 1 byte each where `optim` has 8bit in its
             name; none with SGD
KV cache     rows * tokens * layers * 2 * key-value heads * their size, with every episode at its full length
activations  rows * tokens * layers * hidden size, the input of each layer, with gradient checkpointing; 17
             values in the place of 1 without (34 bytes in half precision: Korthikanti et al., 2022,
             equation 2 without the attention matrix, which fused kernels do not keep)
```

FSDP and ZeRO-3 divide weights, gradients and optimizer among the ranks, ZeRO-2 the last two. The formula
leaves out the buffers of libraries, fragmentation, a critic of its own and reward models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

TRAINED_BYTES_OF_LORA = 4
UNCHECKPOINTED_VALUES = 17


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model: numbers of parameters, and the shape of its activations."""

    parameters: int
    trained: int
    quantizable: int
    """Parameters, among the untrained ones, that loading in 8 or 4 bits makes smaller."""
    layers: int
    hidden: int
    key_values: int
    """Values that a layer keeps of a token: keys and values of all their heads."""

    @classmethod
    def of(cls, config: PretrainedConfig, peft_config: PeftConfig | None) -> Sizes:
        """Build the model without weights, and count."""
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
            output = model.get_output_embeddings()
            linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear) and m is not output]
            if peft_config is not None:
                model = get_peft_model(model, peft_config)
        text = config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        counted = [(each.numel(), each.requires_grad) for each in model.parameters()]
        return cls(
            parameters=sum(count for count, _ in counted),
            trained=sum(count for count, trained in counted if trained),
            quantizable=sum(weight.numel() for weight in linear) if peft_config is not None else 0,
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            key_values=2 * heads * size,
        )


@dataclass(frozen=True)
class Load:
    """Use of a model in a training, on one rank.

    Args:
        value_bytes: of a parameter that is not trained, and of a value in the cache.
        lora: whether adapters are trained.
        bits: that the model is loaded in, if in 8 or 4.
        optimizer_bytes: of what the optimizer keeps of a trained parameter; `None` is twice the parameter's.
        reference: whether another model of this size is the KL reference.
        rollout: episodes played at once, and the tokens of one; 0 where none are played in this process.
        update: rows of a forward and backward pass, and the tokens of one.
        checkpointing: whether activations are computed again in the backward pass.
        ranks: that share the weights, and that share gradients and optimizer.
    """

    value_bytes: int
    lora: bool = False
    bits: int | None = None
    optimizer_bytes: int | None = None
    reference: bool = False
    rollout: tuple[int, int] = (0, 0)
    update: tuple[int, int] = (0, 0)
    checkpointing: bool = False
    ranks: tuple[int, int] = (1, 1)


def needed(sizes: Sizes, load: Load) -> dict[str, float]:
    """Return the bytes of each part, by the formula at the head of this module; the sum is in `total`."""
    of_trained = max(load.value_bytes, TRAINED_BYTES_OF_LORA) if load.lora else load.value_bytes
    untrained: float = (sizes.parameters - sizes.trained) * load.value_bytes
    if load.bits is not None:
        untrained -= sizes.quantizable * (load.value_bytes - load.bits / 8)
    reference = sizes.parameters * load.value_bytes if load.reference else 0
    optimizer = 2 * of_trained if load.optimizer_bytes is None else load.optimizer_bytes
    share_weights, share_rest = load.ranks
    values = UNCHECKPOINTED_VALUES if not load.checkpointing else 1
    parts = {
        "weights": (untrained + sizes.trained * of_trained + reference) / share_weights,
        "gradients": sizes.trained * of_trained / share_rest,
        "optimizer": sizes.trained * optimizer / share_rest,
        "KV cache": load.rollout[0] * load.rollout[1] * sizes.layers * sizes.key_values * load.value_bytes,
        "activations": load.update[0]
        * load.update[1]
        * sizes.layers
        * sizes.hidden
        * values
        * load.value_bytes,
    }
    lasting = parts["weights"] + parts["gradients"] + parts["optimizer"]
    return parts | {"total": lasting + max(parts["KV cache"], parts["activations"])}
