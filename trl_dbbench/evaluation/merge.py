"""Merging of an adapter into its base model, with a check that the result gives the same logits.

```
OUT/
  config.json, generation_config.json, model.safetensors   the base model with the adapter in its weights
  tokenizer.json, chat_template.jinja, ...                 as the run used them
  run.json                                                 settings for `trl-dbbench eval --model OUT`
```

The folder appears only after its files were loaded again and gave the logits of base model and adapter.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from trl_dbbench.engines.policy import quantization_of
from trl_dbbench.errors import ConfigError, loading
from trl_dbbench.evaluation.evaluate import dtype_of, settings_apart
from trl_dbbench.runs.adapters import load_base, other_base_of, with_adapter
from trl_dbbench.runs.trained import Trained
from trl_dbbench.utils.files import check_folder

PROMPTS = (
    "How many customers live in Berlin?",
    "UPDATE orders SET state = 'sent' WHERE id = 7;",
    "Thought: one column has the price.\nAction: Operation\n```sql\nSELECT MAX(price) FROM items;\n```",
)
"""Prompts whose logits are compared before and after merging."""

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}
"""Largest allowed difference of logits, relative to the largest logit: merging rounds the weights again."""


@dataclass(frozen=True)
class Merged:
    """Result of the check of a merged model.

    `difference` is the largest difference between logits of the merged model, loaded from its folder, and of
    base model with adapter. `scale` is the largest logit, `effect` the adapter's largest change of a logit.
    """

    folder: Path
    dtype: torch.dtype
    difference: float
    scale: float
    effect: float

    def __str__(self) -> str:
        return (
            f"The merged model is in {self.folder}. On {len(PROMPTS)} prompts its logits differ from those "
            f"of base and adapter by {self.difference:.2g} at most; the adapter itself changes them by "
            f"{self.effect:.2g}, and the largest is {self.scale:.3g} "
            f"({str(self.dtype).removeprefix('torch.')}, allowed: {TOLERANCE[self.dtype] * self.scale:.2g})."
        )


def merge(
    trained: Trained, out: Path, named_model: str | None = None, trust_remote_code: bool = False
) -> Merged:
    """Merge an adapter into its base model and check that the logits stay the same.

    Args:
        trained: the adapter, its base model and the run's settings, from `find_trained`.
        out: a folder that does not exist yet, or is empty.
        named_model: the base model named by the user, if any.
        trust_remote_code: whether to run code that comes with the base model.

    Raises:
        ConfigError: if `out` is not empty, the adapter was trained on another base model, on quantised
            weights or with a resized vocabulary, loading fails, or the merged model gives other logits.
    """
    if trained.adapter is None:
        raise ConfigError(f"'{trained.model}' has all weights of a model and no adapter to merge into it.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"'{out}' is there already. Give --out a folder that is not.")
    check_folder(out, "--out")
    if named_model is not None and (noted := other_base_of(trained.adapter, named_model)) is not None:
        raise ConfigError(
            f"the adapter '{trained.adapter}' was trained on '{noted}', and --model names '{named_model}'. "
            "An adapter fits only the weights that it was trained on: leave --model out, or name a copy of "
            f"that model, in a folder '{Path(noted).name}'."
        )
    given = {"revision": trained.settings.model_revision, "trust_remote_code": trust_remote_code}
    dtype = dtype_of(trained.settings)
    with loading(f"the base model '{trained.model}'"):
        _check_not_quantised(trained, AutoConfig.from_pretrained(trained.model, **given))
        tokenizer = AutoTokenizer.from_pretrained(trained.model, **given)
        base = load_base(trained.model, dtype=dtype, **given, **(trained.settings.model_config or {}))
    if trained.settings.chat_template is not None:
        tokenizer.chat_template = trained.settings.chat_template
    _check_not_resized(base, tokenizer, trained.adapter)
    base = base.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    before = _logits(base, tokenizer)
    adapted = with_adapter(base, trained.adapter).eval()
    wanted = _logits(adapted, tokenizer)
    with _made(out) as folder:
        _part_output(base)
        merged = adapted.merge_and_unload(safe_merge=True)
        _untie(merged)
        merged.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        now: dict[str, Any] = {"model": str(out.resolve()), "model_revision": None, "model_config": None}
        settings = settings_apart(trained, folder, found_at=out)
        replace(settings, **now, id=None, best_step=None).write(folder)
        dtype, device = merged.dtype, merged.device
        del adapted, base, merged
        loaded: Any = load_base(str(folder), dtype=dtype, trust_remote_code=trust_remote_code)
        loaded = loaded.to(device).eval()
        proof = Merged(
            out,
            dtype,
            difference=_distance(_logits(loaded, tokenizer), wanted),
            scale=max(each.abs().max().item() for each in wanted),
            effect=_distance(before, wanted),
        )
        if not proof.difference <= TOLERANCE[dtype] * proof.scale:  # NaN fails too
            raise ConfigError(
                f"the merged model's logits differ from those of '{trained.model}' with '{trained.adapter}' "
                f"by up to {proof.difference:.2g}, of at most {proof.scale:.2g}: it would not answer alike. "
                "Nothing was written. --dtype float32 merges with less rounding."
            )
    return proof


@contextmanager
def _made(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `out` if the block succeeds and is removed if it fails. If `out`
    exists, the files move into it instead: a mounted folder cannot be replaced."""
    place = out if out.exists() else out.parent
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=place))
    try:
        yield folder
        if place == out:
            for file in folder.iterdir():
                file.rename(out / file.name)
        else:
            folder.chmod(0o755)  # mkdtemp makes it private
            folder.replace(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _part_output(base: Any) -> None:
    """Untie an output layer that LoRA adapts from the embeddings: merging into shared weights would change
    the embeddings too."""
    output = getattr(base.get_output_embeddings(), "base_layer", None)
    if output is not None and _is_tied(base):
        output.weight = torch.nn.Parameter(output.weight.detach().clone())


def _untie(merged: Any) -> None:
    """Untie output layer and embeddings if training made them differ, so that both are saved."""
    output, embeddings = merged.get_output_embeddings(), merged.get_input_embeddings()
    if _is_tied(merged) and not torch.equal(output.weight, embeddings.weight):
        merged.config.tie_word_embeddings = merged.config.get_text_config().tie_word_embeddings = False
        merged.all_tied_weights_keys = {}


def _is_tied(model: Any) -> bool:
    return bool(getattr(model.config, "tie_word_embeddings", False))


@torch.no_grad()
def _logits(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase) -> list[torch.Tensor]:
    """Return the logits (T, V) of each prompt, in float32 on the CPU."""
    device = next(model.parameters()).device
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]], device=device)
        found.append(model(input_ids=ids).logits[0].float().cpu())
    return found


def _distance(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """Return the largest difference between logits at the same position."""
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


def _check_not_quantised(trained: Trained, config: Any) -> None:
    """Raise ConfigError for an adapter trained on quantised weights: it gives other answers on full ones."""
    quantized = quantization_of(config) or trained.settings.quantized
    if quantized is not None:
        method = quantized["quant_method"]
        raise ConfigError(
            f"'{trained.adapter}' was trained on quantised weights ({method}) of '{trained.model}'. Merged "
            "into them it would be rounded to their few bits, merged into the whole ones it would answer "
            "otherwise. Play it as an adapter: trl-dbbench eval --adapter."
        )


def _check_not_resized(base: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, adapter: str) -> None:
    rows = base.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if len(tokenizer) > rows:
        raise ConfigError(
            f"the tokenizer has {len(tokenizer)} tokens and the base model of '{adapter}' embeds {rows}: the "
            "vocabulary was resized in training, and the base model alone does not have the new rows. Save "
            "the resized base model and name it by --model."
        )
