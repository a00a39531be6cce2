"""PEFT adapters: recognise them, load them, and train them further."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftConfig, PeftModel
from transformers import PreTrainedModel
from transformers.utils.peft_utils import find_adapter_config_file
from trl.trainer.utils import create_model_from_path

from trl_dbbench.engines.policy import changes_base
from trl_dbbench.engines.transformers.models import all_layers_found, check_adapter
from trl_dbbench.errors import ConfigError, load_errors, loading, one_line, why_not_loaded

logger = logging.getLogger(__name__)

ADAPTER_FILE, MODEL_FILE = "adapter_config.json", "config.json"

SHAPE = (
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "modules_to_save", "target_parameters"),
    *("trainable_token_indices", "bias", "rank_pattern", "alpha_pattern"),
)
"""LoRA settings that must agree with those of the adapter to be trained further."""


def base_model_of(adapter: str | Path) -> str | None:
    """Return the base model noted in an adapter's folder; `None` if none is noted."""
    try:
        return json.loads((Path(adapter) / ADAPTER_FILE).read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError):
        return None


def other_base_of(adapter: str | Path, model: str) -> str | None:
    """Return the base model noted in an adapter's folder if it is not `model`. Names are compared,
    because another model's layers may have the same shapes: only their last parts, as copies may move."""
    noted = base_model_of(adapter)
    same = noted is None or Path(model).resolve() == Path(noted).resolve()
    return None if same or Path(model).name == Path(str(noted)).name else noted


def warn_of_another_base(adapter: str | Path, model: str) -> None:
    """Warn if an adapter is used on a base model other than the one that it was trained on."""
    if (noted := other_base_of(adapter, model)) is not None:
        logger.warning(
            "the adapter '%s' was trained on '%s' and is used on '%s'. It fits only the weights that it was "
            "trained on; ignore this if they are the same.",
            *(adapter, noted, model),
        )


def check_is_model(name_or_path: str, setting: str = "model_name_or_path") -> None:
    """Raise ConfigError for a folder without a model, and for an adapter given as a model: transformers would
    silently load it with its base model. `setting` is the option that gives the name."""
    folder = Path(name_or_path)
    if folder.is_dir():
        if (folder / MODEL_FILE).is_file():
            return
        if not (folder / ADAPTER_FILE).is_file():
            raise ConfigError(
                f"{setting}: the folder '{name_or_path}' holds no model: it has no {MODEL_FILE}."
            )
    else:
        try:
            found = find_adapter_config_file(name_or_path)
        except (OSError, ValueError):  # loading it will fail, with a better message
            return
        if found is None:
            return
        folder = Path(found).parent
    base = base_model_of(folder) or "its base model"
    instead = f"To train it further set model_name_or_path: {base} and adapter_name_or_path: {name_or_path}"
    if setting == "--model":
        instead = f"Evaluate it by --adapter {name_or_path}"
    raise ConfigError(
        f"{setting}: '{name_or_path}' is an adapter (on '{base}'), not a model. {instead}, or make a model "
        f"of it: trl-dbbench merge --adapter {name_or_path} --out MODEL."
    )


def check_switched_off(config: PeftConfig, args: Any) -> None:
    """Raise ConfigError if training with `args`, a `DBBenchGRPOConfig`, needs the base model without its
    adapter, but the adapter changes the base model's own weights."""
    needs_base = {
        "beta": args.beta > 0 and args.kl_reference != "rollout" and not args.reference_model_name_or_path,
        "advantage: prime": args.advantage == "prime",
        f"stage_adapters: {args.stage_adapters}": args.stage_adapters != "one",
    }
    setting = changes_base(config)
    for name in (name for name, given in needs_base.items() if given and setting):
        raise ConfigError(
            f"{name} needs the base model without its adapter, and an adapter with {setting} changes the "
            "base's own weights. Leave one of the two out."
        )


def load_trainable(
    model: str | PreTrainedModel,
    args: Any,
    peft_config: PeftConfig | None = None,
    quantization_config: Any = None,
) -> PeftModel:
    """Return the model with the adapter named by `args`, a `DBBenchGRPOConfig`, to be trained further.

    Args:
        peft_config: must agree with the adapter's shape.
        quantization_config: for a model given by its name.
    """
    adapter = args.adapter_name_or_path
    check_switched_off(adapter_settings(adapter, peft_config), args)
    if isinstance(model, str):
        given = {"trust_remote_code": args.trust_remote_code, "quantization_config": quantization_config}
        with loading(f"the model '{model}'"):
            model = load_base(model, **given | (args.model_init_kwargs or {}))
    return with_adapter(model, adapter, is_trainable=True)


def load_base(name_or_path: str, **kwargs: Any) -> PreTrainedModel:
    """Return a model as TRL loads it, but without a device map. `AutoModelForCausalLM` would load Qwen3.5 as
    another class, whose layer names do not match a trained adapter's, and has no class for Mistral 3."""
    return create_model_from_path(name_or_path, **{**kwargs, "device_map": None})


def with_adapter(base: PreTrainedModel, adapter: str, **kwargs: Any) -> PeftModel:
    """Return a base model with its adapter; see `put_on`. Warn if it was trained on another base model."""
    warn_of_another_base(adapter, base.config.name_or_path)
    with loading(f"the adapter '{adapter}'"):
        return put_on(base, adapter, **kwargs)


def put_on(base: PreTrainedModel, adapter: str, **kwargs: Any) -> PeftModel:
    """Return a base model with its adapter. Raise ConfigError if the adapter does not fit or
    `check_adapter` refuses it, and one of `load_errors` if its files cannot be read."""
    try:
        with all_layers_found():
            adapted = PeftModel.from_pretrained(base, adapter, **kwargs)
    except (OSError, ValueError, RuntimeError) as error:
        noted = base_model_of(adapter)
        raise ConfigError(
            f"the adapter '{adapter}' does not fit the model '{base.config.name_or_path}'"
            + (f"; it was trained on '{noted}'" if noted else "")
            + f". PEFT says: {one_line(error)[:300]}"
        ) from None
    check_adapter(adapted.active_peft_config)
    return adapted


def adapter_settings(adapter: str, given: PeftConfig | None) -> PeftConfig:
    """Return an adapter's settings; raise ConfigError if it is not one, or differs in shape from `given`."""
    try:
        known = PeftConfig.from_pretrained(adapter)
    except load_errors() as error:
        why = why_not_loaded(error)
        raise ConfigError(f"adapter_name_or_path: '{adapter}' is not an adapter: {why}") from None
    if given is not None:
        _check_shape(adapter, known, given)
    return known


def _check_shape(adapter: str, known: PeftConfig, given: PeftConfig) -> None:
    if differ := _differences(known, given, SHAPE):
        raise ConfigError(
            f"adapter_name_or_path: an adapter keeps its shape, and '{adapter}' has another than the "
            f"settings ask for: {'; '.join(differ)}. Leave out use_peft (or set use_peft: false), and the "
            "adapter's own holds."
        )


def check_resumes(model: Any, checkpoint: str | Path) -> None:
    """Raise ConfigError if a checkpoint does not hold what the model trains: all weights, or an adapter of
    this shape. PEFT would load the tensors that fit, and leave the others initialised."""
    saved, own = Path(checkpoint), getattr(model, "peft_config", {}).get("default")
    of_adapter, whole = ((saved / name).is_file() for name in (ADAPTER_FILE, MODEL_FILE))
    wrong = None
    if own is None and of_adapter:
        wrong = "holds an adapter, and the settings train all weights (use_peft: false)"
    elif own is not None and whole and not of_adapter:
        wrong = "holds all weights, and the settings train an adapter (use_peft: true)"
    elif own is not None and of_adapter:
        names = [name for name in SHAPE if name != "lora_dropout"]  # has no effect on what is loaded
        differ = _differences(PeftConfig.from_pretrained(str(saved)), own, names)
        wrong = f"holds an adapter of another shape: {'; '.join(differ)}" if differ else None
    if wrong:
        raise ConfigError(
            f"resume_from_checkpoint: '{saved}' {wrong}. Give the settings that the run began with, or leave "
            "resume_from_checkpoint out to begin another run."
        )


def _differences(known: PeftConfig, given: PeftConfig, names: Iterable[str]) -> list[str]:
    """Return how the settings of an adapter to be trained (`given`) differ from those of a saved one."""
    if not (isinstance(known, LoraConfig) and isinstance(given, LoraConfig)):
        return []
    differ = [
        f"{name} is {getattr(given, name)!r} in the settings and {getattr(known, name)!r} in the adapter"
        for name in names
        if _unordered(getattr(given, name)) != _unordered(getattr(known, name))
    ]
    wanted, has = given.target_modules, known.target_modules
    if isinstance(wanted, set) and isinstance(has, set) and wanted != has:
        differ.append(f"target_modules are {sorted(wanted)} in the settings and {sorted(has)} in the adapter")
    return differ


def _unordered(value: Any) -> Any:
    """Return a list of names as a set, and an empty value as `None`."""
    return (set(value) if isinstance(value, list) else value) or None
