"""PRIME: what pi_phi says of tokens, how it learns, what comes of it, and that nothing else meets it."""

from __future__ import annotations

import inspect
import json
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from launching import RECIPE, ROOT, SMALL, quickstart_text, run_here
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from test_advantages import NAN, episode
from test_resume import STEPS, as_it_was, episodes_of
from training import LORA, adapter_of, episodes_in, equal, make_trainer, scored_batch, varied
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from trl_dbbench import AdvantageBatch, ConfigError, DBBenchGRPOConfig
from trl_dbbench.advantages.prime import Prime, implicit_returns
from trl_dbbench.episode.judge import Verdict
from trl_dbbench.episode.types import Episode, Status

# --- advantages -----------------------------------------------------------------------------------


def test_returns_of_implicit_rewards_by_hand():
    """A group of three, of which one failed, and one alone in its group."""
    rewards = torch.tensor([[0.2, 0.4, 0.0], [0.1, NAN, 0.3], [9.0, 9.0, 9.0], [0.7, 0.0, 0.0]]).nan_to_num(
        77.0
    )
    counted = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1], [1, 0, 0]]).bool()
    known = torch.tensor([True, True, False, True])
    returns = implicit_returns(rewards, counted, torch.tensor([0, 0, 0, 1]), known)
    # the first row's mean is 0.3, the second's 0.2, each the other's baseline
    assert returns[0].tolist() == pytest.approx([0.2 - 0.2 + 0.4 - 0.2, 0.4 - 0.2, 0])
    assert returns[1].tolist() == pytest.approx([0.1 - 0.3 + 0.3 - 0.3, 0, 0.3 - 0.3])
    assert not returns[2:].any()


def rewarded(task, *turns: tuple[int, int], tokens: list[float], reward: float, **kwargs) -> Episode:
    played = episode(task, *turns, rewards={"outcome": reward}, **kwargs)
    played.token_rewards = tokens
    return played


@pytest.fixture
def group(late_orders) -> AdvantageBatch:
    episodes = [
        rewarded(late_orders, (2, 1), (1, 0), tokens=[0.1, 0.3, 0.0, 0.2], reward=1.0),
        rewarded(late_orders, (1, 0), tokens=[-0.1], reward=0.0),
        rewarded(late_orders, (1, 0), tokens=[0.5], reward=-1.0),
        rewarded(late_orders, (1, 0), tokens=[5.0], reward=NAN, status=Status.ENVIRONMENT_FAULT),
    ]
    rewards = torch.tensor([[each.rewards["outcome"]] for each in episodes])
    return AdvantageBatch(episodes, rewards, torch.ones(1), torch.zeros(4, dtype=torch.long))


def test_by_token(group):
    """Outcomes 1, 0, -1 less the others' mean: 1.5, 0, -1.5. Means of tokens: 0.2, -0.1, 0.5; the failed one is out."""
    given = Prime()(group).nan_to_num()
    assert given[0].tolist() == pytest.approx([1.5 + (0.1 + 0.3 + 0.2) - 3 * 0.2, 1.5 + 0.5 - 2 * 0.2, 0 + 1.5, 1.5 + 0.0], abs=1e-6)  # fmt: skip
    assert given[1, 0].item() == pytest.approx(0 - 0.1 - (0.2 + 0.5) / 2)
    assert given[2, 0].item() == pytest.approx(-1.5 + 0.5 - (0.2 - 0.1) / 2)


def test_by_turn(group):
    """The first episode's turns have 0.4 and 0.2, 0.3 on average; the others' one turn -0.1 and 0.5."""
    given = Prime(by="turn")(group).nan_to_num()
    first, second = 1.5 + (0.4 + 0.2) - 2 * 0.2, 1.5 + 0.2 - 0.2
    assert given[0].tolist() == pytest.approx([first, first, 0, second])
    assert given[1, 0].item() == pytest.approx(0 - 0.1 - (0.3 + 0.5) / 2)


# --- pi_phi ---------------------------------------------------------------------------------------

BETA, RATE = 0.5, 0.05


@pytest.fixture
def prime_of(tiny_model, sqlite_database, demo_tasks):
    def make(output_dir, **settings):
        defaults = {"advantage": "prime", "advantage_args": {"beta": BETA, "learning_rate": RATE}}
        defaults |= {"greedy_eval": "off", "reward_funcs": [varied]}
        return make_trainer(tiny_model, sqlite_database, demo_tasks[:6], output_dir, **defaults | settings)

    return make


def played_by(trainer, right: list[bool]) -> list[Episode]:
    """Episodes of the trainer's policy, judged so."""
    rows, _ = scored_batch(trainer)
    for row, is_right in zip(rows, right, strict=True):
        row["episode"].verdict = Verdict(is_right, "by the test")
    return [row["episode"] for row in rows]


def plain_model(path: str, adapter: dict[str, torch.Tensor]) -> PeftModel:
    """pi_phi, made of the base alone."""
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(path), LoraConfig(**LORA | {"lora_dropout": 0.0})
    )
    set_peft_model_state_dict(model, adapter)
    return model


def plain_logprobs(model, played: Episode) -> torch.Tensor:
    """(T,), of one episode without any padding."""
    ids = torch.tensor([played.prompt_ids + played.completion_ids])
    logits = model(ids).logits[0, len(played.prompt_ids) - 1 : -1]
    return logits.log_softmax(dim=1).gather(1, ids[0, len(played.prompt_ids) :, None])[:, 0]


def test_a_resumed_run_may_have_another_learning_rate(prime_of, tmp_path):
    trainer = prime_of(tmp_path, max_steps=1)
    trainer.train()
    resumed = Prime(BETA, RATE / 2)
    resumed.load_state_dict(trainer.advantage.state_dict())
    with resumed._model(trainer) as (_, optimizer):
        assert [group["lr"] for group in optimizer.param_groups] == [RATE / 2]
        assert optimizer.state, "the moments are those of the checkpoint"


@pytest.mark.parametrize("bound", [None, 1], ids=["three at once", "one after the other"])
def test_rewards_are_the_log_ratio_and_a_step_is_one_of_cross_entropy(prime_of, tiny_model, tmp_path, bound):
    """Both by hand: a plain model, one episode after the other, plain AdamW. The last one's environment failed."""
    trainer = prime_of(tmp_path, max_grad_norm=0.0, max_tokens_per_forward=bound)
    prime: Prime = trainer.advantage
    played = played_by(trainer, [True, False, True, True])
    played[3].fail("the server is gone")
    assert not any(any(each.token_rewards) for each in played), "before the first step it is the base"

    for _ in range(2):
        before = deepcopy(prime.state_dict())
        prime.prepare(trainer, played)
        model = plain_model(tiny_model, before["adapter"])
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
        optimizer.load_state_dict(before["optimizer"])
        losses = []
        for each in played[:3]:
            with torch.no_grad(), model.disable_adapter():
                base = plain_logprobs(model, each)
            ratio = BETA * (plain_logprobs(model, each) - base) * torch.tensor(each.mask)
            torch.testing.assert_close(torch.tensor(each.token_rewards), ratio.detach(), rtol=1e-3, atol=1e-5)
            losses.append(F.binary_cross_entropy_with_logits(ratio.sum(), torch.tensor(float(each.right))))
        torch.stack(losses).mean().backward()
        optimizer.step()
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                own = prime.state_dict()["adapter"][name.replace(".default", "")]
                torch.testing.assert_close(own, weight.detach(), rtol=1e-3, atol=1e-4)
        assert trainer._metrics["train"]["prime/loss"][-1] == pytest.approx(sum(losses).item() / 3, abs=1e-4)
    assert max(abs(value) for value in played[0].token_rewards) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("right", [[True] * 4, [False] * 4, [True, False, False, True]])
def test_it_learns_which_episodes_are_right(prime_of, tmp_path, right):
    """Of a batch that it sees again and again; also where all of it is right, or wrong."""
    trainer = prime_of(tmp_path)
    played = played_by(trainer, right)
    for _ in range(12):
        trainer.advantage.prepare(trainer, played)
    losses = trainer._metrics["train"]["prime/loss"][1:]
    assert losses[-1] < 0.5 * losses[0]
    assert trainer._metrics["train"]["prime/accuracy"][-1] == 1
    assert [sum(each.token_rewards) > 0 for each in played] == right


def test_where_every_environment_failed_nothing_is_learned(prime_of, tmp_path):
    trainer = prime_of(tmp_path)
    played = played_by(trainer, [True] * 4)
    before = deepcopy(trainer.advantage.state_dict()["adapter"])
    for each in played:
        each.fail("the server is gone")
    trainer.advantage.prepare(trainer, played)
    assert equal(trainer.advantage.state_dict()["adapter"], before)


def test_nothing_else_meets_the_second_adapter(prime_of, tmp_path):
    """The policy, what of it is trained, which adapter is on, and the random numbers are as they were."""
    trainer = prime_of(tmp_path)
    played = played_by(trainer, [True, False, True, False])
    weights = {name: (w, w.detach().clone(), w.requires_grad) for name, w in trainer.model.named_parameters()}
    random = torch.get_rng_state()
    trainer.advantage.prepare(trainer, played)
    now = dict(trainer.model.named_parameters())
    assert now.keys() == weights.keys()
    for name, (weight, value, trained) in weights.items():
        assert now[name] is weight and torch.equal(weight, value) and weight.requires_grad == trained
        assert weight.grad is None
    assert list(trainer.model.peft_config) == ["default"] == trainer.model.active_adapters
    assert torch.equal(torch.get_rng_state(), random)
    assert trainer.model.training


def test_the_learning_rate_of_the_policy_is_not_its(prime_of, tmp_path):
    trainer = prime_of(tmp_path, learning_rate=0.0, max_steps=2)
    before = adapter_of(trainer)
    trainer.train()
    assert equal(adapter_of(trainer), before)
    assert any(weight.abs().max() > 0 for name, weight in trainer.advantage.state_dict()["adapter"].items() if "lora_B" in name)  # fmt: skip


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_resumed_run_ends_as_the_unbroken_one(prime_of, tmp_path):
    """From within a generation and from its end: the policy, pi_phi with its optimizer, the episodes."""
    settings = {**STEPS, "max_steps": 4}
    unbroken = prime_of(tmp_path / "unbroken", **settings)
    unbroken.train()
    for step in (1, 3):
        folder = as_it_was(unbroken.args.output_dir, step, tmp_path / str(step))
        resumed = prime_of(folder, **settings)
        resumed.train(resume_from_checkpoint=True)
        assert equal(adapter_of(resumed), adapter_of(unbroken)), step
        states = resumed.advantage.state_dict(), unbroken.advantage.state_dict()
        torch.testing.assert_close(*states, rtol=0, atol=0)
        assert episodes_of(folder) == episodes_of(unbroken.args.output_dir)


# --- as a user starts it --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("by", ["token", "turn"])
def test_from_a_yaml_to_an_adapter(monkeypatch, tmp_path, by):
    """What is saved is the policy's adapter alone."""
    config = tmp_path / "prime.yaml"
    arguments = json.dumps({"beta": 0.05, "learning_rate": 1e-3, "by": by})
    config.write_text(f"{quickstart_text()}\nadvantage: prime\nadvantage_args: {arguments}\n")
    run = tmp_path / "run"
    run_here(monkeypatch, RECIPE, "--config", config, *SMALL, "--max_steps", 2, "--output_dir", run)
    base = AutoModelForCausalLM.from_pretrained(ROOT / "recipes" / "tiny" / "model")
    assert list(PeftModel.from_pretrained(base, run).peft_config) == ["default"]
    assert not list(run.rglob("*prime*"))
    assert [e["phase"] for e in episodes_in(run)].count("train") == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": 0}, "advantage_args.beta must be above 0, is 0"),
        ({"learning_rate": "fast"}, "advantage_args.learning_rate must be a number, is 'fast'"),
        ({"by": "word"}, "unknown advantage_args.by 'word'; allowed: token, turn"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(
            str(tmp_path), advantage="prime", advantage_args=arguments, use_cpu=True, bf16=False
        ).advantage_function()


def test_it_needs_lora(prime_of, tmp_path):
    with pytest.raises(
        ConfigError, match="'prime' trains a second LoRA adapter beside the policy's, which has none"
    ):
        prime_of(tmp_path, lora=False)


def test_it_needs_the_whole_model(prime_of, tmp_path):
    trainer = prime_of(tmp_path)
    trainer.is_fsdp_enabled = True
    with pytest.raises(ConfigError, match="'prime' needs all weights on each rank, and FSDP and DeepSpeed"):
        trainer.advantage.check(trainer)


def test_trl_scores_as_prime_counts_on():
    parameters = list(inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters)
    assert parameters[:5] == ["self", "model", "input_ids", "attention_mask", "logits_to_keep"]
