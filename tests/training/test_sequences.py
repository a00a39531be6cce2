"""Training on episodes that are several sequences: what is trained is what was sampled, and the loss by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_loss import gradient
from training import adapter_of, equal, make_trainer, varied

from trl_dbbench import DBBenchGRPOTrainer
from trl_dbbench.database import Database
from trl_dbbench.engines.shared_prompts import FOLLOWS
from trl_dbbench.errors import ConfigError

SAMPLES = 4


def prepared(
    tiny_model: str, database: Database, tasks: list, folder: Path, **settings
) -> DBBenchGRPOTrainer:
    """A trainer without dropout whose first generation is scored. A turn reads the one before it alone; the turns
    of the random model are invalid, and the observation says so."""
    settings = {"compaction_tokens": 1, "greedy_eval": "off", "num_generations": SAMPLES, **settings}
    trainer = make_trainer(tiny_model, database, tasks[:1], folder, **settings)
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.model.train()
    trainer._prepare_inputs([dict(trainer.train_dataset[0]) for _ in range(SAMPLES)])
    return trainer


def test_the_log_probabilities_are_those_of_the_rollout(
    tiny_model, sqlite_database, demo_tasks, tmp_path
) -> None:
    trainer = prepared(tiny_model, sqlite_database, demo_tasks, tmp_path)
    episodes = trainer.batch.episodes
    assert all(len(episode.turns) == 3 and episode.turns[2].follows is not None for episode in episodes)
    (batch,) = trainer._buffered_inputs
    assert batch[FOLLOWS].shape == batch["completion_ids"].shape
    ids, mask = (
        torch.cat([batch[f"prompt_{of}"], batch[f"completion_{of}"]], dim=1) for of in ("ids", "mask")
    )
    for way in ("auto", "off"):
        trainer.args.shared_prefix = way
        trainer._follows = batch[FOLLOWS]
        with torch.no_grad():
            logps, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, mask, batch["completion_ids"].shape[1]
            )
        sampled = batch["tool_mask"].bool()
        torch.testing.assert_close(
            logps[sampled], batch["sampling_per_token_logps"][sampled], rtol=0, atol=1e-4
        )
        trainer._follows = None
        plain, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, batch["completion_ids"].shape[1]
        )
        assert (plain - logps)[sampled].abs().max() > 1e-3, "the rows are no plain sequences"


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_the_loss_by_hand(tiny_model, sqlite_database, demo_tasks, tmp_path, loss_type: str) -> None:
    """Each turn is a sequence here: what it was sampled after, and its own tokens. Its tokens count like those of any
    other, with the episode's advantage."""
    trainer = prepared(tiny_model, sqlite_database, demo_tasks, tmp_path, loss_type=loss_type)
    batches = trainer._buffered_inputs
    (batch,) = batches
    batch["advantages"] = torch.tensor([1.0, -0.5, 0.25, 2.0])
    advantages = {  # TRL shuffles the rows
        tuple(ids[mask.bool()].tolist()): advantage
        for ids, mask, advantage in zip(
            batch["completion_ids"], batch["completion_mask"], batch["advantages"], strict=True
        )
    }
    ours = gradient(trainer, batches, type(trainer).compute_loss)

    trainer.model.zero_grad()
    loss, tokens = torch.zeros(()), 0
    for episode in trainer.batch.episodes:
        advantage = advantages[tuple(episode.completion_ids)]
        row, length = torch.zeros(()), sum(episode.mask)
        for number, turn in enumerate(episode.turns):
            earlier = episode.turns[max(0, number - 1) : number]
            read = trainer.player.chat.context_ids(episode.prompt_ids, earlier)
            ids = torch.tensor([[*read, *turn.completion.ids]])
            logits = trainer.model(input_ids=ids).logits[0, len(read) - 1 : -1]
            logps = torch.log_softmax(logits, dim=-1).gather(1, ids[0, len(read) :, None])
            row = row - (advantage * torch.exp(logps - logps.detach())).sum()
        loss = loss + (row if loss_type == "dapo" else row / length)
        tokens += length
    (loss / (tokens if loss_type == "dapo" else SAMPLES)).backward()
    theirs = torch.cat([each.grad.flatten() for each in trainer.model.parameters() if each.grad is not None])
    assert ours.norm() > 1e-4
    assert (ours - theirs).norm() <= 1e-4 * theirs.norm()


def test_summaries_are_trained(tiny_model, sqlite_database, demo_tasks, tmp_path) -> None:
    """With the log-probabilities that they were sampled with. A replay leaves them out."""
    trainer = prepared(
        *(tiny_model, sqlite_database, demo_tasks, tmp_path), compaction_tokens=200, compaction="summary"
    )
    (batch,) = trainer._buffered_inputs
    for episode in trainer.batch.episodes:
        assert [type(turn.action).__name__ for turn in episode.turns] == [
            *("Invalid", "Reply", "Invalid", "Reply", "Invalid")
        ]
        assert sum(episode.mask) == sum(len(turn.completion.ids) for turn in episode.turns)
    ids, mask = (
        torch.cat([batch[f"prompt_{of}"], batch[f"completion_{of}"]], dim=1) for of in ("ids", "mask")
    )
    trainer._follows = batch[FOLLOWS]
    with torch.no_grad():
        logps, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, batch["completion_ids"].shape[1]
        )
    sampled = batch["tool_mask"].bool()
    torch.testing.assert_close(logps[sampled], batch["sampling_per_token_logps"][sampled], rtol=0, atol=1e-4)


def test_a_pass_has_no_more_tokens_where_sequences_go_apart(
    tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch
) -> None:
    """As with flash attention: each of the two sequences of an episode has the prompt anew."""
    trainer = prepared(tiny_model, sqlite_database, demo_tasks, tmp_path)
    (batch,) = trainer._buffered_inputs
    trainer.args.shared_prefix = "off"
    passes: list[torch.Size] = []
    trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    ids, mask = (
        torch.cat([batch[f"prompt_{of}"], batch[f"completion_{of}"]], dim=1) for of in ("ids", "mask")
    )
    trainer._follows, scored = batch[FOLLOWS], []
    for bound in (None, ids.numel()):  # which the rows themselves would fit
        trainer.forwards.bound = bound
        passes.clear()
        with torch.no_grad():
            logps, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, mask, batch["completion_ids"].shape[1]
            )
        assert sum(shape[0] for shape in passes) == 2 * SAMPLES
        assert bound is None or max(shape.numel() for shape in passes) <= bound
        scored.append(logps[batch["tool_mask"].bool()])
    torch.testing.assert_close(*scored, rtol=0, atol=1e-5)


def test_a_run_with_micro_batches_and_several_iterations(
    tiny_model, sqlite_database, demo_tasks, tmp_path
) -> None:
    trainer = make_trainer(
        *(tiny_model, sqlite_database, demo_tasks[:2], tmp_path),
        **{"compaction_tokens": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        **{"num_iterations": 2, "beta": 0.1, "max_steps": 4},
    )
    trainer.train()
    ratios = [line["clip_ratio/region_mean"] for line in trainer.state.log_history if "loss" in line]
    assert len(ratios) == 4 and all(line["kl"] >= 0 for line in trainer.state.log_history if "kl" in line)


@pytest.mark.slow
@pytest.mark.parametrize("compaction", ["drop", "summary"])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    tiny_model, sqlite_database, demo_tasks, tmp_path, compaction: str
) -> None:
    """To the bit."""
    settings = {"compaction_tokens": 200, "compaction": compaction, "max_steps": 4, "save_steps": 2}
    settings |= {"save_strategy": "steps", "reward_funcs": [varied]}
    whole = make_trainer(tiny_model, sqlite_database, demo_tasks[:2], tmp_path / "whole", **settings)
    whole.train()
    resumed = make_trainer(tiny_model, sqlite_database, demo_tasks[:2], tmp_path / "whole", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert equal(adapter_of(resumed), adapter_of(whole))
    assert any(episode.follows is not None for episode in resumed.batch.episodes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compaction_tokens": 0}, "compaction_tokens must be at least 1, is 0"),
        ({"history": "short"}, "unknown history 'short'; allowed: kept, template"),
        (
            {"history": "template", "advantage": "prime"},
            "history: template and advantage: prime exclude each other: .* the latter needs one",
        ),
        ({"compaction_tokens": 9, "use_liger_kernel": True}, "use_liger_kernel"),
    ],
)
def test_what_cannot_be(tiny_model, sqlite_database, demo_tasks, tmp_path, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(tiny_model, sqlite_database, demo_tasks[:1], tmp_path, **settings)
