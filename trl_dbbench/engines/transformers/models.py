"""Which models the engine can generate with."""

from __future__ import annotations

import inspect

from peft import PeftConfig
from torch import nn

from trl_dbbench.errors import ConfigError


def check_model(model: nn.Module | type[nn.Module]) -> None:
    """Finds a model that cannot be generated with.

    The engine hands each forward pass the past as keys and values. State-space models (Mamba, RWKV, xLSTM)
    keep a state of their own instead; they would pass over it and see the last token alone.

    Args:
        model: a model, with an adapter or without, or the class of one.

    Raises:
        ConfigError: if it takes no such past, or its adapter is one of prompt learning.
    """
    for adapter in getattr(model, "peft_config", {}).values():
        check_adapter(adapter)
    base = getattr(model, "get_base_model", lambda: model)()
    kind = base if isinstance(base, type) else type(base)
    # of its bases, too: a class of one's own may pass on whatever it gets
    forwards = [vars(each)["forward"] for each in kind.__mro__ if "forward" in vars(each)]
    if not any("past_key_values" in inspect.signature(forward).parameters for forward in forwards):
        raise ConfigError(
            f"{kind.__name__} cannot play episodes: its forward pass takes no past_key_values, the keys "
            "and values of what came before. State-space models (Mamba, RWKV, xLSTM) have none. Take a "
            "model with attention layers; hybrids of both kinds work."
        )


def check_adapter(config: PeftConfig | None) -> None:
    """Finds an adapter of prompt learning: its virtual tokens are put before whatever a forward pass is fed,
    and a rollout feeds an episode in parts.

    Raises:
        ConfigError: if it is one.
    """
    if config is not None and config.is_prompt_learning:
        raise ConfigError(
            f"a peft adapter of the type {config.peft_type.value} (prompt learning) would sample from "
            "another policy than it trains. Take one that changes layers, such as peft.LoraConfig."
        )
