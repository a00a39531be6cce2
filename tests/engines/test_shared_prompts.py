"""Training forwards that compute a prompt once: the tokens that they are given, and the usual forward's numbers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fakes import BrokenDatabase
from peft import LoraConfig, get_peft_model
from test_loss import LOSS_TYPES, generation, gradient
from training import make_trainer, quickstart_trainer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from trl.trainer.utils import add_fused_lm_head

from trl_dbbench import DBBenchGRPOTrainer
from trl_dbbench.engines import shared_prompts
from trl_dbbench.engines.policy import count_positions_by_row
from trl_dbbench.engines.shared_prompts import FAMILIES, Layout, Tokens, lay_out, reason_against, same_prompt
from trl_dbbench.errors import ConfigError

A, B = [11, 12, 13, 14], [21, 22]
"""Two prompts."""


def padded(
    *rows: tuple[list[int], list[int]], width: int = 4, completion: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of prompts and completions, as TRL pads them."""
    ids = [[0] * (width - len(p)) + p + c + [0] * (completion - len(c)) for p, c in rows]
    mask = [[0] * (width - len(p)) + [1] * len(p + c) + [0] * (completion - len(c)) for p, c in rows]
    return torch.tensor(ids), torch.tensor(mask)


def laid_out(ids: torch.Tensor, mask: torch.Tensor, completion: int) -> Layout:
    tokens = Tokens(ids, mask, completion)
    return lay_out(tokens, same_prompt(tokens))


def test_the_row() -> None:
    """A's episodes are side by side, though one of B was between them; a suffix starts with the prompt's last."""
    layout = laid_out(*padded((A, [31, 32]), (B, [41, 42, 43]), (A, [51])), completion=3)
    assert layout.input_ids.tolist() == [[11, 12, 13, 14, 31, 32, 14, 51, 0, 21, 22, 41, 42, 43]]
    assert layout.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 3, 4, 5, 2, 3, 4, 5, 6]], (
        "those of the padded rows"
    )
    assert layout.predicts.tolist() == [3, 4, 6, 10, 11, 12]
    assert layout.targets.tolist() == [[31, 32, 51, 41, 42, 43]]
    assert list(zip(layout.rows.tolist(), layout.columns.tolist(), strict=True)) == [
        *((0, 0), (0, 1), (2, 0)),
        *((1, 0), (1, 1), (1, 2)),
    ]
    first, second = layout.groups
    assert (first.start, first.prefix, first.rows, first.suffix) == (0, 3, 2, 3)
    assert (second.start, second.prefix, second.rows, second.suffix) == (9, 1, 1, 4)
    assert first.seen.int().tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]


def test_prompts_that_differ_in_padding_alone() -> None:
    """A prompt may begin with the token that others are padded with."""
    layout = laid_out(*padded(([0, 0, 7], [31]), ([7], [32]), completion=1), completion=1)
    assert [group.prefix for group in layout.groups] == [2, 0]
    assert layout.input_ids.tolist() == [[0, 0, 7, 31, 7, 32]]


# --- the usual forward's numbers ------------------------------------------------------------------

SIZES: dict[str, Any] = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
OWN_SIZES: dict[str, dict[str, Any]] = {
    **{"mistral": {"sliding_window": None}, "qwen3": {"head_dim": 8}, "olmoe": EXPERTS},
    "mixtral": {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {**EXPERTS, "head_dim": 8},
}


def random_model(family: str, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **OWN_SIZES.get(family, {}), **settings})
    model = AutoModelForCausalLM.from_config(config)
    add_fused_lm_head(model, temperature=0.9, outputs=("log_probs", "entropy"))
    return model


@pytest.fixture
def trainer(tiny_model: str, demo_tasks: list, tmp_path: Path) -> DBBenchGRPOTrainer:
    """Whose forward is asked; its own model is not used."""
    return make_trainer(tiny_model, BrokenDatabase(at_start=True), demo_tasks[:2], tmp_path)


def unequal_groups() -> tuple[torch.Tensor, torch.Tensor]:
    """Seven rows of four prompts: three, two, one and one, some of them between others'; one is of one token."""
    random = torch.Generator().manual_seed(3)

    def ids(count: int) -> list[int]:
        return torch.randint(3, 97, (count,), generator=random).tolist()

    prompts = [ids(40), ids(33), ids(40), ids(25)]
    rows = [(0, 9), (1, 12), (0, 4), (2, 7), (0, 12), (1, 1), (3, 5)]
    return padded(*((prompts[prompt], ids(length)) for prompt, length in rows), width=40, completion=12)


def forward(
    trainer: DBBenchGRPOTrainer, model: torch.nn.Module, way: str, batch_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Log-probabilities and entropies (7, 12), the gradient of a sum of all log-probabilities, and how many
    batches were laid out in one row."""
    trainer.args.shared_prefix = way
    model.zero_grad()
    with patch.object(shared_prompts, "lay_out", wraps=lay_out) as laying_out:
        logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
            model, *unequal_groups(), 12, batch_size, compute_entropy=True
        )
    (logps * torch.linspace(-1, 1, logps.numel()).view_as(logps)).sum().backward()
    grads = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    return logps.detach(), entropies.detach(), grads, laying_out.call_count


def check_equal(model: torch.nn.Module, trainer: DBBenchGRPOTrainer, batch_size: int | None = None) -> None:
    *usual, none = forward(trainer, model, "off")
    *shared, some = forward(trainer, model, "auto", batch_size)
    assert (none, some) == (0, 1 if batch_size is None else 3)
    for ours, theirs in zip(shared[:2], usual[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (shared[2] - usual[2]).norm() <= 1e-5 * usual[2].norm()
    assert usual[2].norm() > 0.1


@pytest.mark.parametrize("batch_size", [None, 3], ids=["one forward pass", "three"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_it_is_the_usual_forward(trainer: DBBenchGRPOTrainer, family: str, batch_size: int | None) -> None:
    check_equal(random_model(family).train(), trainer, batch_size)


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_with_gradient_checkpointing(trainer: DBBenchGRPOTrainer, family: str) -> None:
    """The backward pass computes attention once more, when the forward pass is over."""
    model = random_model(family).train()
    model.gradient_checkpointing_enable()
    check_equal(model, trainer)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_with_an_adapter(trainer: DBBenchGRPOTrainer, checkpointing: bool) -> None:
    model = random_model("llama")
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    check_equal(get_peft_model(model, lora).train(), trainer)


def test_in_bf16(trainer: DBBenchGRPOTrainer) -> None:
    """Both are as far from fp32 as bf16 is."""
    model = random_model("qwen2").train()
    exact = forward(trainer, model, "off")[0]
    with torch.autocast("cpu", torch.bfloat16):
        usual, shared = (forward(trainer, model, way)[0] for way in ("off", "auto"))
    assert (shared - exact).abs().mean() < 1.5 * (usual - exact).abs().mean() < 0.05


def test_other_forwards_of_the_model_stay_as_they_are(trainer: DBBenchGRPOTrainer) -> None:
    """To the bit, with what the shared one leaves in the model's configuration."""
    model = random_model("qwen3").eval()
    ids, mask = unequal_groups()
    before = model(input_ids=ids, attention_mask=mask).logits
    assert forward(trainer, model, "auto")[-1] == 1
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_gradients_of_every_loss(tiny_model, demo_tasks, tmp_path, loss_type: str) -> None:
    """Of eight episodes of one prompt, of which three failed, with the KL to a reference and an entropy bonus."""
    settings = {"loss_type": loss_type, "beta": 0.1, "entropy_coef": 0.05}
    trainer, batches = generation(tiny_model, demo_tasks, tmp_path, 4, {1, 4, 6}, **settings)
    found = {}
    for way in ("off", "auto"):
        trainer.args.shared_prefix = way
        with patch.object(shared_prompts, "lay_out", wraps=lay_out) as laying_out:
            found[way] = gradient(trainer, batches, type(trainer)._compute_loss)
        assert laying_out.call_count == (0 if way == "off" else 2)
    assert (found["auto"] - found["off"]).norm() <= 1e-5 * found["off"].norm()
    assert found["off"].norm() > 1e-3


@pytest.mark.slow
def test_a_run_ends_with_the_usual_weights(sqlite_database, tmp_path) -> None:
    """Of full weights, by SGD, which does not magnify what Adam would."""
    weights, episodes = {}, {}
    for way in ("off", "auto"):
        trainer = quickstart_trainer(
            *(sqlite_database, tmp_path / way),
            **{"shared_prefix": way, "max_steps": 3, "optim": "sgd", "learning_rate": 0.05, "beta": 0.02},
        )
        trainer.train()
        weights[way] = {name: each.detach() for name, each in trainer.model.named_parameters()}
        episodes[way] = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    for name, weight in weights["off"].items():
        torch.testing.assert_close(weights["auto"][name], weight, rtol=1e-5, atol=1e-6)
    assert episodes["auto"] == pytest.approx(episodes["off"], abs=1e-5)


# --- where the usual forward is taken -------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("gemma2", {"head_dim": 8}, "it is not known to be right for models of the type gemma2"),
        ("gemma3_text", {"head_dim": 8}, "it is not known to be right for models of the type gemma3_text"),
        ("mistral", {"sliding_window": 16}, "the model has layers that see a window of the past"),
        (
            *("mistral", {"sliding_window": 16, "use_sliding_window": False}),  # which Mistral ignores
            "the model has layers that see a window of the past",
        ),
        (
            *("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
            "the model has layers that see a window of the past",
        ),
        (
            *("llama", {"attn_implementation": "eager"}),
            "it needs attn_implementation 'sdpa', not 'eager'",
        ),
    ],
)
def test_models_that_cannot_share(trainer, caplog, family: str, settings: dict, reason: str) -> None:
    model = random_model(family, **settings).train()
    caplog.set_level(logging.INFO, logger="trl_dbbench")
    for _ in range(2):
        assert forward(trainer, model, "auto")[-1] == 0
    lines = [record.getMessage() for record in caplog.records if "shared_prefix" in record.getMessage()]
    assert lines == [f"Training computes each episode's prompt anew (shared_prefix: auto): {reason}."]


def test_a_compiled_model_is_left_alone() -> None:
    assert reason_against(random_model("qwen2").config, compiled=True) is not None


@pytest.mark.parametrize("way", ["off", "auto"])
def test_longrope_goes_by_the_lengths_of_rows(trainer, way: str) -> None:
    """Rows of up to 20 tokens in a batch of 30 columns, where the factors change after 24."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [9.0] * 4, "rope_theta": 1e4}
    lengths = {"max_position_embeddings": 512, "original_max_position_embeddings": 24}
    model = random_model("phi3", **lengths, sliding_window=None, rope_parameters=rope)
    count_positions_by_row(model)
    trainer.args.shared_prefix = way
    long, short = list(range(3, 19)), [5, 6, 7, 8]
    rows = [
        (long, [31, 32, 33]),
        (long, [34, 35]),
        (short, list(range(40, 54))),
        (short, list(range(60, 72))),
    ]

    def scored(*rows: tuple[list[int], list[int]]) -> torch.Tensor:
        prompt, completion = (max(map(len, each)) for each in zip(*rows, strict=True))
        batch = padded(*rows, width=prompt, completion=completion)
        return trainer._get_per_token_logps_and_entropies(model, *batch, completion)[0].detach()

    together = scored(*rows)
    assert together.shape[1] == 14, "30 columns"
    for row, of_row in zip(rows, together, strict=True):
        alone = scored(row)[0]
        torch.testing.assert_close(of_row[: len(alone)], alone, rtol=0, atol=1e-5)


def test_prompts_of_one_episode_each(trainer) -> None:
    """Nothing to share, and nothing to gain."""
    model = random_model("qwen2").train()
    with patch.object(shared_prompts, "sharing", side_effect=AssertionError):
        trainer._get_per_token_logps_and_entropies(
            model, *padded((A, [1, 2, 3]), ([*A[1:], 9], [4, 5, 6])), 3
        )


def test_a_batch_without_a_token_to_score(trainer) -> None:
    model = random_model("qwen2").train()
    logps, *_ = trainer._get_per_token_logps_and_entropies(model, *padded((A, []), (A, [])), 3)
    assert logps.tolist() == [[0.0] * 3] * 2


def test_the_setting(tiny_model, demo_tasks, tmp_path) -> None:
    """A bare `off` of a YAML file is false to its reader."""
    trainer = make_trainer(
        tiny_model, BrokenDatabase(at_start=True), demo_tasks[:2], tmp_path, shared_prefix=False
    )
    assert trainer.args.shared_prefix == "off"
    with pytest.raises(ConfigError, match="unknown shared_prefix 'on'; allowed: auto, off"):
        make_trainer(tiny_model, BrokenDatabase(at_start=True), demo_tasks[:2], tmp_path, shared_prefix="on")
