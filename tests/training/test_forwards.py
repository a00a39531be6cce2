"""A micro-batch that goes through the model in parts: how rows are divided, and the loss and metrics of the whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from fakes import BrokenDatabase
from hypothesis import given
from hypothesis import strategies as st
from test_loss import LOSS_TYPES, SAMPLES, generation, gradient
from test_shared_prompts import padded, random_model
from training import adapter_of, equal, make_trainer, scored_batch, varied

from trl_dbbench import ConfigError, DBBenchGRPOTrainer, DBBenchPPOTrainer
from trl_dbbench.training import memory
from trl_dbbench.training.forwards import Forwards
from trl_dbbench.training.memory import (
    UPDATE_ON_CPU,
    Batch,
    Load,
    Sizes,
    tokens_within,
    update_budget,
    update_bytes,
)
from trl_dbbench.training.packing import Part, Row, Tokens, fit, pack, rows_of, tokens_of

# --- how rows are divided -------------------------------------------------------------------------

A, B = [11, 12, 13, 14], [21, 22]
"""Two prompts."""


def tokens(*rows: tuple[list[int], list[int]]) -> Tokens:
    return Tokens(*padded(*rows, width=6, completion=5), 5)


def test_rows_of_one_prompt_are_together():
    batch = tokens((A, [31, 32]), (B, [41, 42, 43]), (A, [51]))
    assert rows_of(batch) == [Row(0, 0, 4, 2), Row(2, 0, 4, 1), Row(1, 1, 2, 3)]


def test_the_tokens_of_a_pass():
    """Three rows of one prompt: each with its padding, or the prompt once, less its last token, which each begins."""
    rows = [Row(0, 0, 40, 3), Row(1, 0, 40, 2), Row(2, 0, 40, 1)]
    assert tokens_of(rows, shared=False) == 3 * (40 + 3)
    assert tokens_of(rows, shared=True) == 39 + 3 * (1 + 3)
    assert tokens_of(rows[:1], shared=True) == 43, "alone there is nothing to share"


def test_parts_by_hand():
    """Of at most 20 tokens, the longest rows first; one of 30 goes alone."""
    rows = [Row(0, 0, 4, 4), Row(1, 1, 4, 26), Row(2, 0, 4, 5), Row(3, 2, 6, 1), Row(4, 2, 4, 6)]
    assert [[row.place for row in part] for part in pack(rows, 20, shared=False)] == [[1], [4, 2], [0, 3]]


def test_a_prompts_rows_are_kept_together_where_they_share_it():
    """Sorted by length alone, the parts would be [2, 0], [3, 1], and both prompts computed twice."""
    rows = [Row(0, 0, 40, 7), Row(1, 0, 40, 5), Row(2, 1, 40, 8), Row(3, 1, 40, 6)]
    assert [[row.place for row in part] for part in pack(rows, 60, shared=True)] == [[2, 3], [0, 1]]


PROMPTS = st.lists(st.integers(1, 60), min_size=5, max_size=5)
ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), min_size=1, max_size=30)


@given(PROMPTS, ROWS, st.integers(1, 400), st.integers(1, 30), st.booleans(), st.randoms())
def test_any_rows(prompts, drawn, bound, count, shared, random):
    """Each row is in one part, no part of several rows is over the bound, and there are as many as asked for."""
    rows = [Row(place, prompt, prompts[prompt], own) for place, (prompt, own) in enumerate(drawn)]
    count = min(count, len(rows))
    parts = pack(rows, bound, shared, count)
    assert sorted(row.place for part in parts for row in part) == list(range(len(rows)))
    assert all(len(part) == 1 or tokens_of(part, shared) <= bound for part in parts)
    assert len(parts) >= count
    random.shuffle(rows)
    assert pack(rows, bound, shared, count) == parts, "whatever their order"


def test_a_part_has_no_column_that_none_of_its_rows_uses():
    batch = tokens((A, [31]), (B, [41, 42, 43]), (B, [51, 52]))
    ids, mask, completion, *_ = Part.of(0, rows_of(batch)[1:], torch.device("cpu")).cut(batch)
    assert ids.tolist() == [[21, 22, 41, 42, 43], [21, 22, 51, 52, 0]]
    assert mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert completion == 3


def test_what_fits_stays_whole():
    batch = tokens((A, [31, 32, 33, 34]), (A, [41, 42, 43, 44]), (B, [51]))  # 3 rows of 11 columns
    assert fit(batch, None, shared=False, bound=33)
    assert not fit(batch, None, shared=False, bound=32)
    assert fit(batch, 2, shared=False, bound=22), "passes of two rows"
    assert fit(batch, None, shared=True, bound=16), "3 + 2 * 5 and 1 + 1 * 2 in one row"
    assert not fit(batch, None, shared=True, bound=15)


def test_ranks_that_wait_for_each_other_divide_alike():
    """Passes of one row, of at most 4 tokens. On one rank four rows of 4 tokens fit as they are; on the other a row
    of 5 does not, and its rows make three parts: [5], [2 + 2], [2]. Both take four."""
    batches = [
        Tokens(*padded(*[(A[:2], [31, 32])] * 4, width=2, completion=2), 2),
        Tokens(*padded((A[:1], [31, 32, 33, 34]), *[(A[:1], [41])] * 3, width=1, completion=4), 4),
    ]
    reported: list[torch.Tensor] = []

    def parts_of(batch: Tokens, gather: Callable[[torch.Tensor], torch.Tensor]) -> int:
        accelerator = SimpleNamespace(num_processes=2, device=torch.device("cpu"), gather=gather)
        forwards = Forwards(SimpleNamespace(accelerator=accelerator), bound=4)
        return len(forwards._rows(batch, 1, shared=False, bound=4, together=True))

    def report(own: torch.Tensor) -> torch.Tensor:
        reported.append(own)
        return own

    for batch in batches:
        parts_of(batch, report)
    assert [parts_of(batch, lambda own: torch.cat(reported)) for batch in batches] == [4, 4]


# --- the loss -------------------------------------------------------------------------------------


def test_a_loss_by_hand():
    """Rows of 1, 3 and 2 tokens that each get w; the loss is their mean over the six tokens, w * 10 / 6."""
    weight = torch.tensor(2.0, requires_grad=True)
    factors = torch.tensor([[1.0, 0, 0], [1, 2, 3], [1, 2, 0]])
    batch = {
        "prompt_ids": torch.tensor([[7], [7], [7]]),
        "prompt_mask": torch.ones(3, 1).long(),
        "completion_ids": torch.tensor([[10, 0, 0], [11, 12, 13], [11, 12, 0]]),
        "completion_mask": torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]]),
        "advantages": torch.ones(3),
    }
    trainer = SimpleNamespace(
        accelerator=Accelerator(cpu=True),
        shares_prompts=lambda model: False,
        aux_loss_enabled=False,
        beta=0.0,
        _entropy_bonus_enabled=False,
        top_entropy_quantile=1.0,
        _entropy_window_stats=None,
        _metrics={"train": defaultdict(list)},
    )
    divided, passes = Forwards(trainer, bound=6), []

    def model(part: Tokens, rows: int | None) -> tuple[torch.Tensor]:
        passes.append(part.input_ids.tolist())
        worth = (
            torch.where(part.input_ids == 10, 11, part.input_ids)[:, 1:] - 10
        )  # both 10 and 11 are worth 1
        return (weight * worth * part.attention_mask[:, 1:],)

    def compute() -> torch.Tensor:
        (values,) = divided.score("values", model, Tokens.of(batch))
        trainer._metrics["train"]["loss"].append(values.sum().item() / 6)
        return values.sum() / batch["completion_mask"].sum()

    loss = divided.loss(torch.nn.Module(), batch, compute)
    assert passes == [[[7, 11, 12, 13]], [[7, 11, 12], [7, 10, 0]]], "four tokens, and twice three"
    assert weight.grad == pytest.approx(6 / 6), "of the first part"
    loss.backward()
    assert loss.item() == pytest.approx(2 * factors.sum().item() / 6)
    assert weight.grad == pytest.approx(10 / 6)
    assert trainer._metrics["train"]["loss"] == [pytest.approx(20 / 6)], "logged once"


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_rows_without_an_advantage_keep_nothing_for_a_backward_pass(
    tiny_model, demo_tasks, tmp_path, loss_type: str
) -> None:
    """Loss, gradient and metrics are those of the whole batch; half of its rows are computed without gradients."""
    trainer, batches = generation(tiny_model, demo_tasks, tmp_path, SAMPLES, set(), loss_type=loss_type)
    (batch,) = ragged(batches)
    batch["advantages"][[0, 2, 3, 6]] = 0.0
    found = {}
    for by_advantages in (False, True):
        trainer.forwards.by_advantages = by_advantages
        graded: list[tuple[int, bool]] = []
        hook = trainer.model.register_forward_pre_hook(
            lambda module, args, given, graded=graded: graded.append(
                (len(given["input_ids"]), torch.is_grad_enabled())
            ),
            with_kwargs=True,
        )
        trainer.args.shared_prefix = "off"
        found[by_advantages] = seen(trainer, batches, None), graded
        hook.remove()
    (usual, whole), (ours, parts) = found[False], found[True]
    assert (whole, parts) == ([(8, True)], [(4, False), (4, True)])
    assert ours["losses"] == pytest.approx(usual["losses"], abs=1e-6)
    assert (ours["gradient"] - usual["gradient"]).norm() <= 1e-5 * usual["gradient"].norm()
    assert ours["logged"].keys() == usual["logged"].keys()
    for name, values in usual["logged"].items():
        assert ours["logged"][name] == pytest.approx(values, rel=1e-5, abs=1e-6), name


def test_a_batch_without_any_advantage(tiny_model, demo_tasks, tmp_path) -> None:
    """One row is there for the backward pass."""
    trainer, batches = generation(tiny_model, demo_tasks, tmp_path, SAMPLES, set())
    batches[0]["advantages"][:] = 0.0
    assert seen(trainer, batches, None)["gradient"].abs().max() == 0


@pytest.mark.parametrize("settings", [{"beta": 0.1}, {"entropy_coef": 0.05}], ids=["KL", "entropy bonus"])
def test_where_rows_without_an_advantage_have_a_gradient(tiny_model, demo_tasks, tmp_path, settings) -> None:
    trainer, (batch,) = generation(tiny_model, demo_tasks, tmp_path, SAMPLES, set(), **settings)
    batch["advantages"][:4] = 0.0
    assert trainer.forwards._idle(batch) == frozenset()


def ragged(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with completions of unequal length."""
    for batch in batches:
        width = batch["completion_ids"].shape[1]
        for row in range(len(batch["completion_ids"])):
            batch["completion_mask"][row, width - 5 * row :] = 0
        batch["num_items_in_batch"] = (batch["completion_mask"] * batch["tool_mask"]).sum()
    return batches


def seen(trainer: DBBenchGRPOTrainer, batches: list[dict[str, Any]], bound: int | None) -> dict[str, Any]:
    """Loss, gradient, logged metrics, and the tokens of each forward pass."""
    passes: list[int] = []
    hook = trainer.model.register_forward_pre_hook(
        lambda module, args, given: passes.append(given["input_ids"].numel()), with_kwargs=True
    )
    trainer._metrics["train"].clear()
    trainer.forwards.bound = bound
    losses: list[float] = []

    def compute(trainer: DBBenchGRPOTrainer, model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        loss = trainer.compute_loss(model, batch)
        losses.append(loss.item())
        return loss

    grads = gradient(trainer, batches, compute)
    hook.remove()
    logged = {name: list(values) for name, values in trainer._metrics["train"].items()}
    return {"losses": losses, "gradient": grads, "logged": logged, "passes": passes}


def check_same(trainer: DBBenchGRPOTrainer, batches: list[dict[str, Any]], bound: int, passes: int) -> None:
    controller = {name: getattr(trainer, name) for name in ("entropy_coef", "_last_world_entropy")}
    whole = seen(trainer, batches, None)
    vars(trainer).update(controller)
    divided = seen(trainer, batches, bound)
    assert max(divided["passes"]) <= bound < max(whole["passes"])
    assert len(divided["passes"]) == passes
    assert divided["losses"] == pytest.approx(whole["losses"], rel=1e-6, abs=1e-7)
    assert (divided["gradient"] - whole["gradient"]).norm() <= 2e-6 * whole["gradient"].norm()
    assert whole["gradient"].norm() > 1e-3
    assert divided["logged"].keys() == whole["logged"].keys()
    for name, values in whole["logged"].items():
        assert divided["logged"][name] == pytest.approx(values, rel=1e-5, abs=1e-7), name


@pytest.mark.slow
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_gradient_and_metrics_are_those_of_the_whole(tiny_model, demo_tasks, tmp_path, loss_type, level):
    """Eight rows, of which one failed, with the KL to a reference and an entropy bonus."""
    settings = {"beta": 0.1, "entropy_coef": 0.05, "importance_sampling_level": level, "shared_prefix": "off"}
    trainer, batches = generation(tiny_model, demo_tasks, tmp_path, 8, {1}, loss_type=loss_type, **settings)
    row = ragged(batches)[0]["prompt_ids"].shape[1] + batches[0]["completion_ids"].shape[1]
    check_same(trainer, batches, 3 * row, passes=3)


OTHERS: dict[str, dict[str, Any]] = {
    "two micro-batches": {"rows": 4},
    "the most uncertain tokens": {"top_entropy_quantile": 0.3, "entropy_coef": 0.05},
    "an adaptive entropy bonus": {"use_adaptive_entropy": True, "entropy_coef": 0.05, "entropy_target": 9.0},
    "an off-policy mask": {"off_policy_mask_threshold": 0.01},
    "importance sampling": {"rollout_correction": "token_tis"},
    "importance sampling of rows": {"rollout_correction": "sequence_mask"},
    "the log-probabilities of now": {"use_rollout_logprobs": False},
    "recomputed activations": {"gradient_checkpointing": True},
    "all weights": {"lora": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS.keys())
def test_with(tiny_model, demo_tasks, tmp_path, settings):
    """As above; each token has its own advantage, as step rewards give them."""
    settings = {"beta": 0.1, "shared_prefix": "off", "rows": 8} | settings
    trainer, batches = generation(tiny_model, demo_tasks, tmp_path, settings.pop("rows"), {1}, **settings)
    for batch in ragged(batches):
        batch["advantages"] = torch.linspace(-1, 1, batch["completion_ids"].numel()).view_as(
            batch["completion_ids"]
        )
        if settings.get("use_rollout_logprobs") is False:
            del batch["old_per_token_logps"]
    row = batches[0]["prompt_ids"].shape[1] + batches[0]["completion_ids"].shape[1]
    forwards = 3 if settings.get("top_entropy_quantile") is None else 6  # once more, for the quantile
    coefficient = trainer.entropy_coef
    check_same(trainer, batches, 3 * row, passes=forwards + len(batches) - 1)
    if settings.get("use_adaptive_entropy"):
        assert trainer.entropy_coef == pytest.approx(coefficient + 0.005), (
            "one of TRL's steps, not one for each part"
        )


def test_with_shared_prompts(tiny_model, demo_tasks, tmp_path):
    """The prompt is counted once for each part."""
    trainer, batches = generation(tiny_model, demo_tasks, tmp_path, 8, {1}, beta=0.1)
    (batch,) = ragged(batches)
    longest = batch["completion_ids"].shape[1]
    check_same(trainer, batches, batch["prompt_ids"].shape[1] + 4 * longest, passes=3)


def test_experts_are_balanced_within_parts(trainer, monkeypatch):
    """The load-balancing loss is the mean over the parts; TRL's is over micro-batches."""
    model = random_model("qwen3_moe").train()
    trainer.aux_loss_enabled, trainer.router_aux_loss_coef = True, 0.5
    batch = Tokens(*padded((A, [31, 32]), (A, [41, 42, 43]), (B, [51])), 3)
    balances: list[float] = []

    def balance(bound: int | None) -> torch.Tensor:
        trainer.forwards.bound = bound
        *_, balance = trainer._get_per_token_logps_and_entropies(
            model, *batch[:3], compute_entropy=True, compute_aux_loss=True
        )
        return balance

    with torch.no_grad():
        divided = balance(7)
        trainer.forwards.bound = None
        for part in ([1], [0], [2]):
            rows = [row for row in rows_of(batch) if row.place in part]
            cut = Part.of(0, rows, torch.device("cpu")).cut(batch)
            *_, own = trainer._get_per_token_logps_and_entropies(model, *cut[:3], compute_aux_loss=True)
            balances.append(own.item())
    assert divided.item() == pytest.approx(sum(balances) / 3)


@pytest.fixture
def trainer(tiny_model, demo_tasks, tmp_path) -> DBBenchGRPOTrainer:
    return make_trainer(tiny_model, BrokenDatabase(at_start=True), demo_tasks[:2], tmp_path)


@pytest.mark.parametrize("critic", ["head", "model"])
def test_with_a_critic(tiny_model, sqlite_database, demo_tasks, tmp_path, critic):
    trainer = make_trainer(
        *(tiny_model, sqlite_database, demo_tasks[:1], tmp_path),
        **{
            "trainer_class": DBBenchPPOTrainer,
            "critic": critic,
            "shared_prefix": "off",
            "greedy_eval": "off",
            "reward_funcs": [varied],
        },
    )
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.current_gradient_accumulation_steps = 1
    _, batch = scored_batch(trainer)
    del batch["environment_failed"]
    row = batch["prompt_ids"].shape[1] + batch["completion_ids"].shape[1]
    torch.nn.init.normal_(trainer.critic.head.weight, std=0.1)

    def of_critic() -> torch.Tensor:
        return torch.cat([weight.grad.flatten() for weight in trainer.critic.trained.values()])

    check_same(trainer, ragged([batch]), 2 * row, passes=2)
    expected = of_critic() / 2  # of both ways, for the trainer zeroes the policy's alone
    trainer.critic.zero_grad()
    seen(trainer, [batch], None)
    assert (of_critic() - expected).norm() <= 2e-6 * expected.norm()
    whole = trainer.values_of(batch)
    trainer.forwards.bound = row
    torch.testing.assert_close(
        trainer.values_of(batch) * batch["completion_mask"], whole * batch["completion_mask"]
    )


# --- the bound that memory sets -------------------------------------------------------------------


def test_what_a_pass_may_take():
    assert update_budget(10e9, 1e9, on_cpu=False) == 8e9
    assert update_budget(None, 1e9, on_cpu=False) is None
    assert update_budget(20e9, 1e9, on_cpu=True) == update_budget(None, 1e9, on_cpu=True) == UPDATE_ON_CPU
    assert update_budget(20e9, 6e9, on_cpu=True) == 6e9, "as much as the weights"
    assert update_budget(1e9, 6e9, on_cpu=True) == 0.8e9


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_longest_pass_within_a_budget(checkpointing):
    sizes = Sizes.counted(random_model("llama"))
    load = Load(value_bytes=4, computed_bytes=4, on_cpu=True, checkpointing=checkpointing)
    tokens = tokens_within(1e8, sizes, load)
    shortest, longest = (
        update_bytes(sizes, replace(load, update=Batch(rows=1, prompts=1, prompt=1, completion=count)))
        for count in (tokens - 1, tokens)
    )
    assert shortest <= 1e8 < longest
    assert tokens_within(1.0, sizes, load) == 1, "a row goes alone"


@pytest.mark.slow
def test_a_resumed_run_keeps_its_bound(tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch):
    """Whatever is free by then."""
    settings = {"save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}
    settings |= {"reward_funcs": [varied], "greedy_eval": "off"}

    def run(folder: str, free: float, resume: bool = False, **others: Any) -> DBBenchGRPOTrainer:
        monkeypatch.setattr(memory, "free_memory", lambda device: free)
        trainer = make_trainer(
            tiny_model, sqlite_database, demo_tasks, tmp_path / folder, **settings | others
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    unbroken = run("unbroken", 5e7)
    assert 1 < unbroken.forwards.bound < 4 * 500, "the four rows are divided"
    run("broken", 5e7, max_steps=1)
    resumed = run("broken", 1e9, resume=True)
    assert resumed.forwards.bound == unbroken.forwards.bound
    assert equal(adapter_of(resumed), adapter_of(unbroken))
    assert run("broken", 1e9, resume=True, max_steps=3, max_tokens_per_forward=700).forwards.bound == 700


def test_a_run_that_goes_on_with_much_less_memory_has_a_smaller_bound(
    tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch
):
    """On a smaller GPU the bound of the larger one would not fit."""
    settings = {"save_strategy": "steps", "save_steps": 1, "reward_funcs": [varied], "greedy_eval": "off"}
    bounds_of = []
    for free, steps in ((1e9, 1), (5e7, 2)):
        monkeypatch.setattr(memory, "free_memory", lambda device, free=free: free)
        trainer = make_trainer(tiny_model, sqlite_database, demo_tasks, tmp_path, max_steps=steps, **settings)
        trainer.train(resume_from_checkpoint=bool(bounds_of))
        bounds_of.append(trainer.forwards.bound)
    assert bounds_of[1] < bounds_of[0] / 2


def test_small_models_are_not_divided(tiny_model, sqlite_database, demo_tasks, tmp_path):
    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks, tmp_path, max_steps=1)
    trainer.train()
    assert trainer.forwards.bound > 32 * 1024


# --- scoring, and a run ---------------------------------------------------------------------------


def test_scoring_without_gradients(tiny_model, demo_tasks, tmp_path):
    trainer, (batch,) = generation(tiny_model, demo_tasks, tmp_path, 8, set(), shared_prefix="off")
    ragged([batch])
    tokens, passes = Tokens.of(batch), []
    trainer.model.register_forward_pre_hook(
        lambda module, args, given: passes.append(given["input_ids"].numel()), with_kwargs=True
    )
    with torch.no_grad():
        whole = trainer._get_per_token_logps_and_entropies(
            trainer.model, *tokens[:3], 4, compute_entropy=True
        )
        trainer.forwards.bound = tokens.input_ids.numel() // 3
        divided = trainer._get_per_token_logps_and_entropies(
            trainer.model, *tokens[:3], 4, compute_entropy=True
        )
    assert passes[:2] == [tokens.input_ids.numel() // 2] * 2, "as TRL asks for"
    assert max(passes[2:]) <= trainer.forwards.bound
    for ours, theirs in zip(divided[:2], whole[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert divided[2] is whole[2] is None


@pytest.mark.slow
def test_a_run(tiny_model, sqlite_database, demo_tasks, tmp_path):
    """Two steps with a held-out evaluation; no pass is longer than a row, and the weights are the same."""
    weights, passes = [], {}
    for bound in (None, 1):
        trainer = make_trainer(
            *(tiny_model, sqlite_database, demo_tasks, tmp_path / str(bound)),
            **{
                "max_tokens_per_forward": bound,
                "lora": False,
                "optim": "sgd",
                "learning_rate": 0.1,
                "beta": 0.1,
            },
            **{"reward_funcs": [varied], "greedy_eval": "off", "eval_strategy": "steps", "eval_steps": 1},
        )
        passes[bound] = []
        trainer.model.register_forward_pre_hook(
            lambda module, args, given, of=passes[bound]: of.extend(
                [len(given["input_ids"])] * ("labels" in given)
            ),
            with_kwargs=True,
        )
        trainer.train()
        weights.append(torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()]))
    assert set(passes[1]) == {1}
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_below_one_is_refused(tmp_path, bound, tiny_model, demo_tasks, sqlite_database):
    with pytest.raises(ConfigError, match=f"max_tokens_per_forward must be at least 1, is {bound}"):
        make_trainer(tiny_model, sqlite_database, demo_tasks, tmp_path, max_tokens_per_forward=bound)
