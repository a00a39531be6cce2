"""Checks that the engine can generate with a model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import transformers
from peft import PeftConfig
from torch import nn
from transformers.masking_utils import create_causal_mask

from trl_dbbench.errors import ConfigError

CACHE_ARGUMENTS = ("past_key_values", "cache")
"""Names of a forward pass's argument for past keys and values: transformers renamed `past_key_values` to
`cache` in 5.24. A model with custom code may use the other name than the installed transformers."""


def cache_argument_of(function: Callable[..., Any]) -> str | None:
    """Return the name of a function's argument for keys and values; `None` if it has none."""
    parameters = inspect.signature(function).parameters
    return next((name for name in CACHE_ARGUMENTS if name in parameters), None)


CACHE_ARGUMENT = cache_argument_of(create_causal_mask) or CACHE_ARGUMENTS[0]
"""Name that the installed transformers uses."""


def cache_argument(model: nn.Module | type[nn.Module]) -> str | None:
    """Return the name of a model's argument for keys and values, with or without an adapter, if any."""
    # of its base classes too: a custom class may just pass on its arguments
    forwards = [vars(each)["forward"] for each in _kind(model).__mro__ if "forward" in vars(each)]
    return next(filter(None, map(cache_argument_of, forwards)), None)


def _kind(model: Any) -> type[nn.Module]:
    base = getattr(model, "get_base_model", lambda: model)()
    return base if isinstance(base, type) else type(base)


def class_of(config: transformers.PretrainedConfig) -> type[transformers.PreTrainedModel] | None:
    """Return the class that TRL loads a model as; `None` for one with custom code."""
    return getattr(transformers, (config.architectures or [""])[0], None)


@contextmanager
def all_layers_found() -> Iterator[None]:
    """Raise ValueError if the model lacks layers of the adapter; PEFT only warns and skips them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")
        try:
            yield
        except UserWarning as warning:
            raise ValueError(str(warning)) from None


def check_model(model: nn.Module | type[nn.Module]) -> None:
    """Raise ConfigError for a model, or a model class, that the engine cannot generate with.

    The engine passes the past to each forward pass as keys and values. State-space models (Mamba, RWKV,
    xLSTM) keep a state instead; they would ignore the argument and see only the last token.
    """
    for adapter in getattr(model, "peft_config", {}).values():
        check_adapter(adapter)
    kind = _kind(model)
    if cache_argument(kind) is None or _has_state_only(kind):
        raise ConfigError(
            f"{kind.__name__} cannot play episodes: its forward pass takes no keys and values of what came "
            f"before ({' or '.join(CACHE_ARGUMENTS)}). State-space models (Mamba, RWKV, xLSTM) have none. "
            "Take a model with attention layers; hybrids of both kinds work."
        )


def _has_state_only(kind: type[nn.Module]) -> bool:
    """Return whether all layers are recurrent; transformers 5.24 passes such models a `cache` of states."""
    names = ("sdpa", "flash_attn", "attention_backend")
    attends = any(getattr(kind, f"_supports_{name}", False) for name in names)
    return getattr(kind, "_is_stateful", False) and not attends


def check_adapter(config: PeftConfig | None) -> None:
    """Raise ConfigError for an adapter that is sampled differently than trained, or loaded differently than
    saved.

    Prompt learning puts its virtual tokens before the input of every forward pass, and a rollout feeds an
    episode in parts. `pissa_niter_*` subtracts a random part of the base weights from them, again whenever
    the adapter is loaded.
    """
    if config is not None and config.is_prompt_learning:
        raise ConfigError(
            f"a peft adapter of the type {config.peft_type.value} (prompt learning) would sample from "
            "another policy than it trains. Take one that changes layers, such as peft.LoraConfig."
        )
    begun = getattr(config, "init_lora_weights", None)
    if isinstance(begun, str) and begun.startswith("pissa_niter_"):
        raise ConfigError(
            f"init_lora_weights: {begun} begins at random whenever the adapter is loaded, so a resumed run, "
            "an evaluation and a merge would go on from other weights. Set init_lora_weights: pissa."
        )
