"""Which rows are in the loss: failed ones in no mean of any loss type, truncated ones by how they ended."""

from __future__ import annotations

from contextlib import nullcontext
from statistics import mean
from typing import Any

import pytest
import torch
from fakes import BrokenDatabase, BrokenSandbox, ScriptedEngine
from training import make_trainer, scored_batch
from trl import GRPOConfig, GRPOTrainer

from trl_dbbench import DBBenchGRPOTrainer
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.training.loss import FAILED, OVER_ROWS, OVER_TOKENS, SHARES, played_shares

LOSS_TYPES = (*OVER_ROWS, *OVER_TOKENS, "bnpo")
SAMPLES = 8


class FailingDatabase(BrokenDatabase):
    """Fails under some of the episodes, by the order in which they start."""

    def __init__(self, failing: set[int]):
        super().__init__(at_start=True)
        self.failing, self.started = failing, 0

    def fresh_sandbox(self, task):
        self.started += 1
        if self.started - 1 in self.failing:
            raise EnvironmentFault("what was done cannot be repeated", final=True)
        return BrokenSandbox()  # the agent, whose turns are random, never gets to use it


def generation(
    tiny_model, demo_tasks, tmp_path, rows: int, failed: set[int], **settings
) -> tuple[DBBenchGRPOTrainer, list[dict[str, Any]]]:
    """A trainer without dropout, and the micro-batches, of so many rows each, of its first generation."""
    trainer = make_trainer(
        tiny_model,
        FailingDatabase(failed),
        demo_tasks[:1],
        tmp_path,
        greedy_eval="off",
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=SAMPLES // rows,
        num_generations=SAMPLES,
        **settings,
    )
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = SAMPLES // rows
    trainer._prepare_inputs([dict(trainer.train_dataset[0]) for _ in range(SAMPLES)])
    for batch in trainer._buffered_inputs:  # away from 1, for the ratio and its clipping
        noise = torch.rand(batch["completion_ids"].shape, generator=torch.Generator().manual_seed(1))
        batch["old_per_token_logps"] = batch["sampling_per_token_logps"] + 0.5 * noise - 0.25
        if "ref_per_token_logps" in batch:
            batch["ref_per_token_logps"] = batch["ref_per_token_logps"] - noise
    return trainer, trainer._buffered_inputs


def without_failed_rows(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that were played, as if there had been no others; no micro-batch is empty."""
    played = [batch["tool_mask"].sum(dim=1) > 0 for batch in batches]
    return [
        {
            key: value[rows] if isinstance(value, torch.Tensor) and value.dim() else value
            for key, value in batch.items()
            if key != SHARES
        }
        for batch, rows in zip(batches, played, strict=True)
        if rows.any()
    ]


def gradient(trainer: DBBenchGRPOTrainer, batches: list[dict[str, Any]], compute_loss) -> torch.Tensor:
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = len(batches)
    trainer.model.zero_grad()
    for batch in batches:
        compute_loss(trainer, trainer.model, batch).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def test_these_are_all_loss_types_that_trl_has():
    described = GRPOConfig.__doc__.partition("loss_type (")[2].partition("mask_truncated_completions (")[0]
    assert all(f'- `"{name}"`' in described for name in LOSS_TYPES)
    assert described.count('- `"') == len(LOSS_TYPES)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("rows", [SAMPLES, 1], ids=["one micro-batch", "a micro-batch for each row"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_gradients_are_those_of_a_batch_without_the_failed_rows(
    tiny_model, demo_tasks, tmp_path, loss_type, rows, level
):
    """Three of eight rows fail. With the KL to a reference and an entropy bonus."""
    settings = {"beta": 0.1, "entropy_coef": 0.05, "importance_sampling_level": level}
    trainer, batches = generation(
        tiny_model, demo_tasks, tmp_path, rows, {1, 4, 6}, loss_type=loss_type, **settings
    )
    own = gradient(trainer, batches, type(trainer)._compute_loss)
    rest = without_failed_rows(batches)
    assert sum(len(batch["advantages"]) for batch in rest) == 5
    assert own.abs().max() > 1e-3
    torch.testing.assert_close(own, gradient(trainer, rest, GRPOTrainer._compute_loss), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss_type", (*OVER_ROWS, *OVER_TOKENS))
def test_failed_rows_that_are_spread_unevenly(tiny_model, demo_tasks, tmp_path, loss_type):
    """Of four micro-batches with two rows each, as they come after TRL's shuffling: each row weighs the same."""
    trainer, batches = generation(
        tiny_model, demo_tasks, tmp_path, 2, {0, 1, 2, 6, 7}, loss_type=loss_type, beta=0.1
    )
    played = [int((batch["tool_mask"].sum(dim=1) > 0).sum()) for batch in batches]
    assert sum(played) == 3 and set(played) != {1}, "no shuffle leaves as many in each of the four"
    own = gradient(trainer, batches, type(trainer)._compute_loss)
    rest = without_failed_rows(batches)
    whole = {
        key: torch.cat([batch[key] for batch in rest])
        for key, value in rest[0].items()
        if isinstance(value, torch.Tensor) and value.dim()
    } | {"num_items_in_batch": rest[0]["num_items_in_batch"]}
    expected = gradient(trainer, [whole], GRPOTrainer._compute_loss)
    torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)


def test_an_adaptive_entropy_bonus_keeps_its_coefficient(tiny_model, demo_tasks, tmp_path):
    adaptive = {"use_adaptive_entropy": True, "entropy_coef": 0.05, "entropy_target": 9.0}
    trainer, batches = generation(tiny_model, demo_tasks, tmp_path, 4, {0, 1, 2}, beta=0.1, **adaptive)
    for batch in batches:
        trainer._compute_loss(trainer.model, batch)
    assert trainer.beta == 0.1 and trainer.current_gradient_accumulation_steps == 2
    assert trainer.entropy_coef in (pytest.approx(0.055), pytest.approx(0.06)), "TRL's steps of 0.005"


def test_a_batch_without_failures_goes_to_trl_as_it_is(tiny_model, demo_tasks, tmp_path, monkeypatch):
    trainer, batches = generation(tiny_model, demo_tasks, tmp_path, 4, set(), beta=0.1)
    assert [batch[SHARES] for batch in batches] == [(1.0, 1.0)] * 2
    seen = []
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, model, inputs: seen.append(inputs))
    for batch in batches:
        trainer._compute_loss(trainer.model, batch)
    assert seen[0] is batches[0] and seen[1] is batches[1]


def test_shares_of_rows_and_of_micro_batches():
    failed = torch.tensor([[0, 0], [0, 1], [1, 1], [1, 1]]).bool()
    assert played_shares(failed) == (3 / 8, 2 / 4)
    assert played_shares(torch.ones(4, 2).bool()) == (1.0, 1.0), "nothing is trained"


def test_a_training_step_in_which_all_rows_fail_changes_nothing(tiny_model, demo_tasks, tmp_path):
    trainer = make_trainer(
        tiny_model, FailingDatabase(set(range(8))), demo_tasks[:2], tmp_path, greedy_eval="off", max_steps=2
    )
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.model.named_parameters())


def test_an_environment_that_fails_under_a_reward_function(tiny_model, sqlite_database, demo_tasks, tmp_path):
    """The row leaves the loss too: its tokens are masked and not counted, and its shares are those of three."""

    def fails_once(episode, **kwargs):
        episode[1].fail("the database went away")
        return [1.0, 2.0, 3.0, 4.0]

    trainer = make_trainer(
        tiny_model, sqlite_database, demo_tasks[:1], tmp_path, greedy_eval="off", reward_funcs=[fails_once]
    )
    trainer.model.train()
    inputs = trainer._prepare_inputs([dict(trainer.train_dataset[0]) for _ in range(4)])
    sampled = (inputs["completion_mask"] * inputs["tool_mask"]).sum(dim=1)
    assert sorted(sampled.tolist()) == [0, 18, 18, 18]
    assert inputs["num_items_in_batch"] == 3 * 18
    assert inputs[SHARES] == (3 / 4, 1.0)


# --- truncated episodes ---------------------------------------------------------------------------

ANSWER = "Action: Answer\nFinal Answer: [(2,)]"
QUERY = "Which orders were late? Let me see them all.\nAction: Operation\n```sql\nSELECT * FROM orders\n```"


@pytest.mark.parametrize("mask", [False, True])
def test_truncated_is_what_did_not_come_to_its_end(
    tiny_model, sqlite_database, late_orders, tokenizer, tmp_path, monkeypatch, mask
):
    """By the last id: the second would not be truncated, as it ends on the end of a turn."""
    longest = len(tokenizer(QUERY, add_special_tokens=False)["input_ids"]) + 1
    trainer = make_trainer(
        tiny_model,
        sqlite_database,
        [late_orders],
        tmp_path,
        protocol="text",
        greedy_eval="off",
        max_turn_tokens=longest,
        max_completion_length=longest + 2,
        mask_truncated_completions=mask,
    )
    turns = {
        0: [ANSWER],
        1: [QUERY],  # after which the observation does not fit
        2: ["I wonder how many of them were late. " * 20],  # cut off at `max_turn_tokens`
        3: ["I do not know."],
    }
    engine = ScriptedEngine(trainer.processing_class, turns)
    monkeypatch.setattr(trainer.backend, "engine", lambda: nullcontext(engine))
    rows, batch = scored_batch(trainer)
    episodes = [row["episode"] for row in rows]

    assert [str(e.status) for e in episodes] == [
        "answered", "out_of_tokens", "invalid_action", "invalid_action"
    ]  # fmt: skip
    assert [e.truncated for e in episodes] == [False, True, True, False]
    lengths = [len(e.completion_ids) for e in episodes]
    assert (batch["completion_mask"] * batch["tool_mask"]).sum(dim=1).tolist() == [
        0 if mask and e.truncated else length for e, length in zip(episodes, lengths, strict=True)
    ]
    metrics = {name: mean(values) for name, values in trainer._metrics["train"].items()}
    ended = [lengths[0], lengths[3]]
    assert metrics["completions/clipped_ratio"] == 0.5
    assert metrics["completions/mean_length"] == sum(lengths) / 4, "of what was sampled, masked or not"
    assert metrics["completions/max_length"] == longest
    assert metrics["completions/mean_terminated_length"] == sum(ended) / 2
    assert metrics["completions/min_terminated_length"] == min(ended)
    assert metrics["completions/max_terminated_length"] == max(ended)


def test_failed_episodes_are_neither_truncated_nor_of_any_length(tiny_model, demo_tasks, tmp_path):
    """The turns of the model, which is random, are cut off after six tokens."""
    trainer = make_trainer(tiny_model, FailingDatabase({0, 3}), demo_tasks[:1], tmp_path, greedy_eval="off")
    rows, batch = scored_batch(trainer)
    assert sorted(row["episode"].truncated for row in rows) == [False, False, True, True]
    assert sorted(batch[FAILED].tolist()) == [False, False, True, True]
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    assert metrics["completions/clipped_ratio"] == 1.0
    assert metrics["completions/min_length"] == metrics["completions/mean_length"] == 18
