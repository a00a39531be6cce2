"""Training forwards of episodes that are several sequences, against one forward a sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes import BrokenDatabase
from peft import LoraConfig, get_peft_model
from test_shared_prompts import padded, random_model
from training import make_trainer

from trl_dbbench import DBBenchGRPOTrainer
from trl_dbbench.engines.shared_prompts import FAMILIES, Tokens
from trl_dbbench.engines.token_trees import NOTHING_BEFORE, follows_of, lay_out_trees, score_sequences
from trl_dbbench.episode.protocol import Invalid
from trl_dbbench.episode.types import Completion, Episode, Sampling, Turn
from trl_dbbench.tasks import Task

PLAIN, NEW = [-1, 0, 1, 2, 3, 4], NOTHING_BEFORE


@pytest.fixture
def trainer(tiny_model: str, demo_tasks: list, tmp_path: Path) -> DBBenchGRPOTrainer:
    """Whose forward is asked; its own model is not used."""
    return make_trainer(tiny_model, BrokenDatabase(at_start=True), demo_tasks[:2], tmp_path)


def test_the_row() -> None:
    """After the prompt 11 12, one turn says 21 22. The next reads 11 12 22 31 and says 41 42; a third reads 51 alone
    and says 61."""
    ids, mask = padded(([11, 12], [21, 22, 22, 31, 41, 42, 51, 61]), ([13], [23]), width=2, completion=8)
    follows = torch.tensor([[-1, 0, -1, 2, 3, 4, NEW, 6], [-1, 0, 1, 2, 3, 4, 5, 6]])
    layout = lay_out_trees(Tokens(ids, mask, 8, follows), [0, 1])
    assert layout.input_ids.tolist() == [[11, 12, 21, 22, 22, 31, 41, 42, 51, 61, 13, 23]]
    assert layout.position_ids.tolist() == [[0, 1, 2, 3, 2, 3, 4, 5, 0, 1, 0, 1]]
    assert layout.predicts.tolist() == [1, 2, 1, 4, 5, 6, 8, 10], "nothing predicts 51"
    assert layout.targets.tolist() == [[21, 22, 22, 31, 41, 42, 61, 23]]
    assert layout.columns.tolist() == [0, 1, 2, 3, 4, 5, 7, 0]
    first, second = layout.groups
    assert (first.start, first.end, second.start, second.end) == (0, 10, 10, 12)
    seen = [[place for place, sees in enumerate(row) if sees] for row in first.seen.tolist()]
    assert seen[3] == [0, 1, 2, 3] and seen[7] == [0, 1, 4, 5, 6, 7] and seen[9] == [8, 9]


def test_the_columns_of_a_batch(late_orders: Task) -> None:
    one = Episode(late_orders, [1, 2, 3], Sampling())
    said = Turn(Completion([7, 8], [0.0] * 2), "", Invalid(""), observation_ids=[8, 9])
    one.turns = [said, Turn(Completion([4], [0.0]), "", Invalid(""), follows=2)]
    plain = Episode(late_orders, [1], Sampling(), turns=[said])
    assert follows_of([one, plain], 6).tolist() == [[-1, 0, -1, 2, 3, 4], [-1, 0, 1, 2, 3, 4]]
    assert follows_of([plain], 6) is None


def episodes() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three rows of 40 completion columns: six turns that each drop a part of the one before, one plain, and one with
    a second conversation."""
    random = torch.Generator().manual_seed(3)

    def ids(count: int) -> list[int]:
        return torch.randint(3, 97, (count,), generator=random).tolist()

    prompts = ids(12), ids(9), ids(7)
    dropping = [-1, 0, 1, 2, 3, 4]
    for turn in range(1, 6):  # six tokens each; a turn follows what its predecessor's third token did
        dropping += [6 * turn - 4, *range(6 * turn, 6 * turn + 5)]
    plain = list(range(-1, 39))
    second = [*range(-1, 19), NEW, *range(20, 39)]
    rows = [(prompts[0], ids(36)), (prompts[1], ids(40)), (prompts[2], ids(33))]
    follows = [[*dropping, *range(35, 39)], plain, second]
    return *padded(*rows, width=12, completion=40), torch.tensor(follows)


def forward(
    trainer: DBBenchGRPOTrainer, model: torch.nn.Module, way: str, batch_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities, entropies (3, 40) and the gradient of a weighted sum of the former."""
    trainer.args.shared_prefix = way
    model.zero_grad()
    ids, mask, trainer._follows = episodes()
    logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
        model, ids, mask, 40, batch_size, compute_entropy=True
    )
    (logps * torch.linspace(-1, 1, logps.numel()).view_as(logps)).sum().backward()
    grads = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    return logps.detach(), entropies.detach(), grads


def check_equal(model: torch.nn.Module, trainer: DBBenchGRPOTrainer, batch_size: int | None = None) -> None:
    sequences, trees = forward(trainer, model, "off"), forward(trainer, model, "auto", batch_size)
    mask = episodes()[1][:, -40:].bool()
    mask[2, 20] = False  # nothing is before it
    for one, other in zip(trees[:2], sequences[:2], strict=True):
        torch.testing.assert_close(one[mask], other[mask], rtol=0, atol=1e-5)
    assert (trees[2] - sequences[2]).norm() <= 1e-5 * sequences[2].norm()
    assert sequences[2].norm() > 0.1


@pytest.mark.parametrize("batch_size", [None, 2], ids=["one forward pass", "two"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_it_is_one_forward_a_sequence(trainer, family: str, batch_size: int | None) -> None:
    check_equal(random_model(family).train(), trainer, batch_size)


def test_with_an_adapter_and_checkpointing(trainer: DBBenchGRPOTrainer) -> None:
    model = random_model("llama")
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    check_equal(get_peft_model(model, lora).train(), trainer)


@pytest.mark.parametrize("family", ["gemma2", "qwen2"])
def test_each_sequence_by_hand(trainer: DBBenchGRPOTrainer, family: str) -> None:
    """The values of a row's second sequence are those of a plain forward of its tokens; models that cannot share
    prompts have nothing else."""
    model = random_model(family, **({"head_dim": 8} if family == "gemma2" else {})).eval()
    ids, mask, follows = episodes()

    def usual(ids, mask, completion, batch_size):
        width = ids.shape[1] - completion
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)
        ).logits
        logps = torch.log_softmax(logits[:, width - 1 : -1], dim=-1)
        return logps.gather(2, ids[:, width:, None])[..., 0], None

    values, none = score_sequences(usual, Tokens(ids, mask, follows.shape[1], follows))
    assert none is None
    prompt, row = ids[2, 5:12].tolist(), ids[2, 12:].tolist()
    for sequence, columns in ((prompt + row[:20], range(20)), (row[20:33], range(20, 33))):
        tokens = torch.tensor([sequence])
        logps = torch.log_softmax(model(input_ids=tokens).logits[0, :-1], dim=-1)
        plain = logps.gather(1, tokens[0, 1:, None])[:, 0]
        scored = [column for column in columns if follows[2, column] != NEW]
        torch.testing.assert_close(values[2, scored], plain[-len(scored) :], rtol=0, atol=1e-5)


def test_parts_of_a_micro_batch(trainer: DBBenchGRPOTrainer) -> None:
    """A bound on a pass's tokens divides the rows, and the trees with them."""
    model = random_model("qwen2").eval()
    with torch.no_grad():
        trainer.args.shared_prefix = "auto"
        ids, mask, trainer._follows = episodes()
        whole, *_ = trainer._get_per_token_logps_and_entropies(model, ids, mask, 40)
        trainer.forwards.bound = 60
        parts, *_ = trainer._get_per_token_logps_and_entropies(model, ids, mask, 40)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)
