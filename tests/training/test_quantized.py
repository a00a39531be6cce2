"""A LoRA adapter on weights of 4 bits (QLoRA), by bitsandbytes on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from launching import QUICKSTART, RECIPE, ROOT, SMALL, run_here
from peft import PeftModel
from required import lacking
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from trl_dbbench.engines.policy import Precision
from trl_dbbench.evaluation.evaluate import open_model
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.utils.cpu import leave_unpacked

MODEL = ROOT / "recipes" / "tiny" / "model"
FOUR_BITS = ["--load_in_4bit", "true", "--dtype", "bfloat16"]


def train(patch: pytest.MonkeyPatch, *options: object) -> None:
    run_here(patch, RECIPE, "--config", QUICKSTART, *SMALL, *FOUR_BITS, *options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two steps, with a checkpoint after the first."""
    if find_spec("bitsandbytes") is None:
        lacking("bitsandbytes", "bitsandbytes is not installed")
    folder = tmp_path_factory.mktemp("runs") / "qlora"
    with pytest.MonkeyPatch.context() as patch:
        train(patch, "--max_steps", 2, "--save_steps", 1, "--output_dir", folder)
    yield folder


@pytest.mark.slow
def test_an_evaluation_plays_the_adapter_on_the_weights_that_it_was_trained_on(run: Path) -> None:
    assert RunSettings.of_file(run / "run.json").quantized["load_in_4bit"]  # type: ignore[index]
    backend, policy = open_model(find_trained(run))
    backend.close()
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_compute_dtype="bfloat16", bnb_4bit_quant_type="nf4"
    )

    def logits(**given: object) -> torch.Tensor:
        base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16, **given)
        return PeftModel.from_pretrained(base, run)(torch.arange(20)[None]).logits

    found = policy.model(torch.arange(20)[None]).logits
    assert torch.equal(found, logits(quantization_config=config))
    assert not torch.allclose(found, logits(), atol=0.1), "whole weights answer otherwise"
    assert policy.computes_in == Precision("bfloat16", "bitsandbytes")


@pytest.mark.usefixtures("run")
def test_gradients_pass_after_a_forward_without_them() -> None:
    """A CPU with avx512_bf16 would pack the weights in that forward."""
    from bitsandbytes.nn import Linear4bit

    layer = Linear4bit(64, 64, compute_dtype=torch.bfloat16, quant_type="nf4").to("cpu")
    assert hasattr(layer, "support_avx512bf16_for_cpu"), "bitsandbytes' name for what is switched off"
    leave_unpacked(layer)
    inputs = torch.randn(2, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        found = layer.eval()(inputs)
    trained = layer.train()(inputs.requires_grad_())
    assert torch.equal(trained, found)
    trained.sum().backward()
    assert inputs.grad is not None and inputs.grad.abs().sum() > 0


def test_a_resumed_training_ends_as_it_would_have(run: Path, tmp_path: Path, monkeypatch) -> None:
    train(
        monkeypatch,
        *("--max_steps", 2, "--save_steps", 1, "--output_dir", tmp_path / "resumed"),
        *("--resume_from_checkpoint", run / "checkpoint-1"),
    )
    ours, theirs = (load_file(each / "adapter_model.safetensors") for each in (run, tmp_path / "resumed"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    first = load_file(run / "checkpoint-1" / "adapter_model.safetensors")
    assert any(not torch.equal(ours[name], first[name]) for name in ours), "it learned in the second step"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--load_in_4bit", "true", "--use_peft", "false"],
            "error: load_in_4bit: quantized weights stay as they are, and nothing else is trained. Set use_peft: true.",
        ),
        (
            ["--load_in_8bit", "true", "--use_peft", "false"],
            "error: load_in_8bit: quantized weights stay as they are, and nothing else is trained. Set use_peft: true.",
        ),
        (
            ["--load_in_4bit", "true", "--dtype", "auto"],
            "error: load_in_4bit: dtype 'auto' does not say what to compute in. Set dtype: bfloat16.",
        ),
    ],
)
def test_what_cannot_be_trained(monkeypatch, tmp_path, options, message):
    with pytest.raises(SystemExit) as ended:
        run_here(monkeypatch, RECIPE, "--config", QUICKSTART, *SMALL, "--output_dir", tmp_path, *options)
    assert str(ended.value) == message


def test_without_bitsandbytes(monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.quantizers.quantizer_bnb_4bit.is_bitsandbytes_available", lambda: False)
    with pytest.raises(SystemExit, match=r"^error: .*requires bitsandbytes: `pip install -U bitsandbytes"):
        train(monkeypatch, "--output_dir", tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("run")  # which skips where bitsandbytes is not there
def test_fine_tuning_on_quantized_weights(monkeypatch, tmp_path):
    script, recipe = ROOT / "recipes" / "sft_dbbench.py", ROOT / "recipes" / "sft_gold.yaml"
    options = ["--use_peft", "true", "--max_steps", 1, "--output_dir", tmp_path]
    run_here(monkeypatch, script, "--config", recipe, *FOUR_BITS, *options)
    assert RunSettings.of_file(tmp_path / "run.json").quantized["load_in_4bit"]  # type: ignore[index]
