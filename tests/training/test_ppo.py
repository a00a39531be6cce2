"""PPO: generalised advantages over sampled tokens, a critic on the policy's trunk or of its own, what is saved of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from launching import ROOT, run_here
from peft import PeftModel
from test_advantages import NAN, episode
from test_resume import STEPS, as_it_was, episodes_of
from training import (
    adapter_of,
    episodes_in,
    equal,
    make_trainer,
    quickstart_trainer,
    sampled,
    scored_batch,
    varied,
)
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from trl_dbbench import AdvantageBatch, ConfigError, DBBenchPPOConfig, DBBenchPPOTrainer
from trl_dbbench.advantages.gae import GAE, explained_variance, gae, whitened
from trl_dbbench.episode.types import Status
from trl_dbbench.training import memory
from trl_dbbench.training.critic import WEIGHTS, trunk_of
from trl_dbbench.training.ppo import RETURNS, SAMPLED, VALUES, value_errors

KINDS = ("head", "model")


# --- advantages -----------------------------------------------------------------------------------


def direct_sum(rewards, values, gamma, lam) -> list[float]:
    """A_t = sum over l of (gamma lam)^l delta_(t+l), of sampled tokens alone."""
    ahead = [*values, 0.0][1:]
    deltas = [r + gamma * after - v for r, after, v in zip(rewards, ahead, values, strict=True)]
    return [
        sum((gamma * lam) ** far * delta for far, delta in enumerate(deltas[t:])) for t in range(len(deltas))
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.8), (0.99, 0.0), (0.0, 1.0)])
def test_gae_equals_a_direct_sum_over_sampled_tokens(gamma, lam):
    """Rows of ragged lengths, with observations inside; one without a sampled token."""
    mask = torch.tensor([[1, 1, 0, 0, 1, 1], [1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    random = torch.Generator().manual_seed(4)
    rewards, values = torch.randn(4, 6, generator=random), torch.randn(4, 6, generator=random)
    advantages = gae(rewards, values, mask, gamma, lam)
    for row in range(4):
        places = mask[row].bool()
        expected = direct_sum(rewards[row][places].tolist(), values[row][places].tolist(), gamma, lam)
        assert advantages[row][places].tolist() == pytest.approx(expected, abs=1e-6)
        assert not advantages[row][~places].any()


def test_gae_by_hand():
    """Two turns of two tokens; the observation between them is skipped, whatever stands there."""
    mask = torch.tensor([[1, 1, 0, 1, 1]])
    rewards = torch.tensor([[0.0, 0.1, NAN, 0.0, 1.0]])  # the first turn earns 0.1, the answer 1
    values = torch.tensor([[0.5, 0.6, NAN, 0.8, 0.9]])
    # with lam 1 it is what was earned from there on, less the value
    assert gae(rewards, values, mask)[0].tolist() == pytest.approx([0.6, 0.5, 0, 0.2, 0.1])
    # with lam 0 the deltas: 0 + 0.6 - 0.5,  0.1 + 0.8 - 0.6,  0 + 0.9 - 0.8,  1 + 0 - 0.9
    assert gae(rewards, values, mask, lam=0.0)[0].tolist() == pytest.approx([0.1, 0.3, 0, 0.1, 0.1])


def told(played, values: list[float]):
    """An episode with what a critic says of its tokens."""
    played.token_values = values
    return played


def test_rewards_stand_at_the_ends_of_turns(late_orders):
    """A step reward at its turn's last sampled token, all others at the episode's; weights count."""
    played = told(episode(late_orders, (2, 2), (1, 0), rewards={"outcome": 1.0, "steps": 0.3}), [0.0] * 5)
    played.turns[0].rewards, played.turns[1].rewards = {"steps": 0.1}, {"steps": 0.2}
    batch = AdvantageBatch(
        [played], torch.tensor([[1.0, 0.3]]), torch.tensor([2.0, 10.0]), torch.zeros(1, dtype=torch.long)
    )
    advantage = GAE(whiten=False)
    # of tokens without any value, the rewards from there on: 1.0 * 2 at the end, 0.1 * 10 and 0.2 * 10 at the turns'
    assert advantage(batch)[0].tolist() == pytest.approx([5, 5, 0, 0, 4])
    assert advantage.returns[0].tolist() == pytest.approx([5, 5, 0, 0, 4])


def test_whitening_is_over_all_sampled_tokens_of_what_was_played(late_orders):
    """An episode whose environment failed is in neither mean nor spread, and gets nothing."""
    episodes = [
        told(episode(late_orders, (1, 2), (1, 0), rewards={"outcome": 1.0}), [0.5, 99.0, -99.0, 0.25]),
        told(episode(late_orders, (2, 0), rewards={"outcome": 0.0}), [0.0, 0.125]),
        told(episode(late_orders, (1, 0), status=Status.ENVIRONMENT_FAULT), [50.0]),
    ]
    rewards = torch.tensor([[1.0], [0.0], [NAN]])
    advantage = GAE()
    given = advantage(AdvantageBatch(episodes, rewards, torch.ones(1), torch.arange(3)))
    plain = torch.tensor([0.5, 0.75, 0.0, -0.125])  # 1 - 0.5, 1 - 0.25, 0 - 0, 0 - 0.125
    expected = ((plain - plain.mean()) / (plain.std() + 1e-6)).tolist()
    assert given[0].tolist() == pytest.approx([expected[0], 0, 0, expected[1]])
    assert given[1].tolist() == pytest.approx([*expected[2:], 0, 0])
    assert not given[2].any()
    assert advantage.returns[advantage.sampled].tolist() == pytest.approx([1, 1, 0, 0])


def test_advantages_that_are_all_alike_are_whitened_to_0():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert not whitened(torch.full((2, 3), 0.7), mask).any()
    assert not whitened(torch.full((2, 3), 0.7), torch.zeros(2, 3, dtype=torch.bool)).any()


def test_explained_variance():
    returns = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(returns, torch.zeros(4)) == 0
    assert explained_variance(returns, -returns) == -3
    assert math.isnan(explained_variance(torch.ones(4), torch.zeros(4)))


def test_values_that_have_moved_far_gain_nothing_from_moving_on():
    """Half the squared distance from the return, 1; before the update all values were 0, and 0.5 is far."""
    values = torch.tensor([0.25, 0.5, 0.75, -0.75], requires_grad=True)
    errors, held = value_errors(values, torch.zeros(4), torch.ones(4), 0.5)
    # 0.75 counts as 0.5; -0.75 is farther from 1 than -0.5 is, and is pulled back
    assert errors.tolist() == pytest.approx([0.5 * 0.75**2, 0.5 * 0.5**2, 0.5 * 0.5**2, 0.5 * 1.75**2])
    assert held.tolist() == [False, False, True, False]
    errors.sum().backward()
    assert values.grad.tolist() == pytest.approx([-0.75, -0.5, 0, -1.75])
    errors, held = value_errors(values, torch.zeros(4), torch.ones(4), 0)
    assert errors[2].item() == pytest.approx(0.5 * 0.25**2) and not held.any()


# --- the critic -----------------------------------------------------------------------------------


@pytest.fixture
def ppo_of(tiny_model, sqlite_database, demo_tasks):
    def make(output_dir: Path, tasks: int = 6, **settings) -> DBBenchPPOTrainer:
        defaults = {"trainer_class": DBBenchPPOTrainer, "critic_learning_rate": 1e-2, "greedy_eval": "off"}
        return make_trainer(
            tiny_model, sqlite_database, demo_tasks[:tasks], output_dir, **defaults | settings
        )

    return make


def gradients(trainer: DBBenchPPOTrainer, batch) -> dict[str, torch.Tensor]:
    """Of policy and critic, and the loss."""
    trainer.current_gradient_accumulation_steps = 1
    for module in (trainer.model, trainer.critic):
        module.zero_grad()
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    named = [*trainer.model.named_parameters(), *trainer.critic.named_parameters("critic")]
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None} | {
        "loss": loss.detach()
    }


def without_dropout(trainer: DBBenchPPOTrainer) -> DBBenchPPOTrainer:
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return trainer


@pytest.mark.parametrize("kind", KINDS)
def test_observations_count_for_nothing(ppo_of, tmp_path, monkeypatch, kind):
    """Any number in the place of what policy and critic say of them: the same advantages, loss and gradients."""
    trainer = without_dropout(ppo_of(tmp_path, critic=kind))
    with torch.no_grad():
        trainer.critic.head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(2))
    _, batch = scored_batch(trainer)
    observed = ~sampled(batch) & batch["completion_mask"].bool()
    assert observed.sum() > 20
    plain = gradients(trainer, batch)
    assert plain["critic.head.weight"].abs().max() > 0

    score, say = trainer._get_per_token_logps_and_entropies, trainer.critic.forward
    noise = 100 * torch.randn(observed.shape, generator=torch.Generator().manual_seed(3))

    def noisy_score(*args, **kwargs):
        logps, *others = score(*args, **kwargs)
        return torch.where(observed, noise, logps), *others

    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", noisy_score)
    monkeypatch.setattr(trainer.critic, "forward", lambda *args: torch.where(observed, noise, say(*args)))
    _, again = scored_batch(trainer)  # the same episodes, for their seeds are the step's
    assert torch.equal(again["completion_ids"], batch["completion_ids"])
    for name in ("advantages", RETURNS):
        assert torch.equal(again[name], batch[name])
    noisy = gradients(trainer, again)
    assert noisy.keys() == plain.keys()
    assert all(torch.equal(noisy[name], plain[name]) for name in plain)


def test_values_are_read_off_where_the_token_is_chosen(ppo_of, tmp_path):
    """V of a token is of the state before it: it changes with the tokens before, and not with the token."""
    trainer = ppo_of(tmp_path)
    torch.nn.init.normal_(trainer.critic.head.weight)
    _, batch = scored_batch(trainer)
    values = trainer.values_of(batch)
    place = 4
    other = {**batch, "completion_ids": batch["completion_ids"].clone()}
    other["completion_ids"][:, place] += 1
    changed = (trainer.values_of(other) != values).any(dim=0)
    assert not changed[: place + 1].any()
    assert changed[place + 1]
    assert not trainer.model.training or trainer._trunk.training, "as it was"


def test_a_turn_is_told_what_was_expected_at_its_start(ppo_of, tmp_path):
    trainer = ppo_of(tmp_path)
    torch.nn.init.normal_(trainer.critic.head.weight)
    rows, batch = scored_batch(trainer)
    for row, values, mask in zip(rows, batch[VALUES], batch["tool_mask"], strict=True):
        starts = [t for t in range(len(mask)) if mask[t] and (t == 0 or not mask[t - 1])]
        assert len(starts) == 3
        assert [turn.value for turn in row["episode"].turns] == [values[t].item() for t in starts]


def test_a_head_trains_the_trunk_and_a_model_only_itself(ppo_of, tmp_path):
    """Of a batch whose advantages are all 0, the gradients are those of the values alone."""
    seen = {}
    for kind in KINDS:
        trainer = without_dropout(ppo_of(tmp_path / kind, critic=kind))
        torch.nn.init.ones_(trainer.critic.head.weight)
        _, batch = scored_batch(trainer)
        found = gradients(trainer, {**batch, "advantages": torch.zeros_like(batch["advantages"])})
        seen[kind] = {name for name, gradient in found.items() if gradient.abs().max() > 0}
    assert any("lora_B" in name and not name.startswith("critic") for name in seen["head"])
    assert all(name.startswith("critic") for name in seen["model"] - {"loss"})
    assert any("lora_B" in name for name in seen["model"]), "with LoRA, it has adapters of its own"
    assert {"critic.head.weight", "critic.head.bias"} <= seen["head"] & seen["model"]


@pytest.mark.parametrize("lora", [True, False])
def test_what_is_trained_of_a_critic_of_its_own(ppo_of, tmp_path, lora):
    trainer = ppo_of(tmp_path, critic="model", lora=lora)
    names = trainer.critic.trained
    assert any("lora" in name for name in names) == lora
    assert any("embed_tokens" in name for name in names) != lora
    policy = {weight.data_ptr() for weight in trunk_of(trainer.model).parameters()}
    assert not policy & {weight.data_ptr() for weight in trainer.critic.parameters()}


def test_a_pass_leaves_room_for_a_critic_of_its_own(ppo_of, tmp_path, monkeypatch):
    """It keeps what its own layers compute, and its gradients and moments are still to come."""
    trainers = [ppo_of(tmp_path / kind, critic=kind, lora=False) for kind in ("head", "model")]
    trained = sum(weight.nbytes for weight in trainers[0].model.parameters())
    monkeypatch.setattr(memory, "free_memory", lambda device: 100 * trained)
    head, model = map(memory.fitting, trainers)
    assert model < 0.8 * head
    monkeypatch.setattr(memory, "free_memory", lambda device: 5 * trained)
    head, model = map(memory.fitting, trainers)
    assert head > model == 1


def test_an_episode_without_a_reward_teaches_the_critic_nothing(ppo_of, tmp_path):
    """The gradient is that of the other episodes."""

    def every_other(episode, **kwargs):
        return [5.0 if number % 2 else None for number in range(len(episode))]

    trainer = without_dropout(ppo_of(tmp_path, reward_funcs=[every_other]))
    torch.nn.init.ones_(trainer.critic.head.weight)
    _, batch = scored_batch(trainer)
    scored = [number % 2 == 1 for number in range(len(batch[SAMPLED]))]
    assert batch[SAMPLED].any(dim=1).tolist() == scored
    found = gradients(trainer, batch)
    batch[RETURNS][::2] = 1000.0
    again = gradients(trainer, batch)
    assert all(torch.equal(again[name], found[name]) for name in found)
    batch[RETURNS][1::2] += 1.0
    assert not torch.equal(gradients(trainer, batch)["critic.head.bias"], found["critic.head.bias"])


def test_learning_rates_of_policy_and_critic_follow_one_schedule(ppo_of, tmp_path):
    trainer = ppo_of(tmp_path, learning_rate=1e-3, critic_learning_rate=4e-3, max_steps=4)
    trainer.train()
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert rates[-1] == 4 * rates[0] == trainer.lr_scheduler.get_last_lr()[-1]
    assert trainer.create_optimizer() is trainer.optimizer
    assert len(trainer.optimizer.param_groups) == len(rates) == 3, "joined once"
    assert all(weight.grad is None for weight in trainer.critic.parameters()), "each step begins anew"


@pytest.mark.parametrize("kind", ["head", pytest.param("model", marks=pytest.mark.slow)])
def test_the_critic_learns_what_episodes_are_worth(sqlite_database, tmp_path, kind):
    """A prompt that asks to read is worth 1 more than the outcome, others 1 less: after one batch of eight it knows
    something of the next eight."""

    def reading(episode, **kwargs):
        return [1.0 if each.task.operation == "SELECT" else -1.0 for each in episode]

    trainer = quickstart_trainer(
        sqlite_database,
        tmp_path,
        trainer_class=DBBenchPPOTrainer,
        lora=True,
        more_rewards=[reading],
        reward_weights=[0.0, 1.0],
        critic=kind,
        critic_learning_rate={"head": 3e-2, "model": 3e-3}[kind],
        value_clip=0,
        num_generations=1,
        num_iterations=8,
        max_steps=9,
        lr_scheduler_type="constant",
        greedy_eval="off",
    )
    trainer.train()
    first, second = [e["value/explained_variance"] for e in trainer.state.log_history if "reward" in e]
    assert first == 0
    assert second > 0.1


def test_one_sample_of_a_prompt_is_enough(ppo_of, tmp_path):
    trainer = ppo_of(tmp_path, num_generations=1, reward_funcs=[varied], max_steps=2)
    before = adapter_of(trainer)
    trainer.train()
    assert not equal(adapter_of(trainer), before)
    assert len({e["task_id"] for e in episodes_in(tmp_path)}) > 2
    assert any(turn.get("advantage") for e in episodes_in(tmp_path) for turn in e["turns"])


def test_an_evaluation_has_no_values(ppo_of, tmp_path):
    trainer = ppo_of(tmp_path, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=2, max_steps=1)
    trainer.train()
    (evaluated,) = [entry for entry in trainer.state.log_history if "eval_reward" in entry]
    assert not any("value/" in name for name in evaluated)


# --- checkpoints ----------------------------------------------------------------------------------


def critic_of(trainer: DBBenchPPOTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.critic.trained.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_as_the_unbroken_one(ppo_of, tmp_path, kind):
    """From checkpoints within a generation and at its end: the same policy, critic, optimizer and episodes."""
    settings = {**STEPS, "critic": kind, "max_steps": 4, "tasks": 6}
    unbroken = ppo_of(tmp_path / "unbroken", **settings)
    unbroken.train()
    assert critic_of(unbroken)["head.weight"].abs().max() > 0
    for step in (1, 3) if kind == "head" else (2,):
        folder = as_it_was(unbroken.args.output_dir, step, tmp_path / str(step))
        resumed = ppo_of(folder, **settings)
        resumed.train(resume_from_checkpoint=True)
        assert equal(adapter_of(resumed), adapter_of(unbroken)), step
        assert equal(critic_of(resumed), critic_of(unbroken)), step
        assert episodes_of(folder) == episodes_of(unbroken.args.output_dir)
        states = [
            torch.load(Path(each.args.output_dir) / "checkpoint-4" / "optimizer.pt")
            for each in (resumed, unbroken)
        ]
        torch.testing.assert_close(*states, rtol=0, atol=0)


def test_a_checkpoint_without_a_critic_is_refused(ppo_of, tiny_model, sqlite_database, demo_tasks, tmp_path):
    """As of GRPO, or of PPO with another critic."""
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path / "grpo", **settings).train()
    ppo_of(tmp_path / "head", **settings).train()
    for name, wrong in (("grpo", "no critic"), ("head", "another critic")):
        trainer = ppo_of(tmp_path / name, **{**settings, "critic": "model", "max_steps": 2})
        with pytest.raises(
            ConfigError, match=f"checkpoint-1' holds {wrong}: PPO goes on only from a checkpoint of PPO"
        ):
            trainer.train(resume_from_checkpoint=True)


# --- as a user starts it --------------------------------------------------------------------------

RECIPE = ROOT / "recipes" / "ppo_dbbench.py"
YAML = ROOT / "recipes" / "ppo_quickstart.yaml"
SMALL = ["--per_device_train_batch_size", "4", "--eval_strategy", "no", "--eval_on_start", "false"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_from_a_yaml_to_an_adapter(monkeypatch, tmp_path, kind):
    options = [*SMALL, "--critic", kind, "--max_steps", 2, "--output_dir", tmp_path]
    run_here(monkeypatch, RECIPE, "--config", YAML, *options)
    base = AutoModelForCausalLM.from_pretrained(ROOT / "recipes" / "tiny" / "model")
    PeftModel.from_pretrained(base, tmp_path)
    assert (tmp_path / WEIGHTS).is_file()
    assert [e["phase"] for e in episodes_in(tmp_path)].count("train") == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage": "rloo", "num_generations": 2}, "PPO goes by a critic, which the advantage 'rloo' does not"),
        ({"critic": "table"}, "unknown critic 'table'; allowed: head, model"),
        ({"critic_learning_rate": 0.0}, "critic_learning_rate must be above 0, is 0.0"),
        ({"value_loss_weight": -1.0}, "value_loss_weight must be above 0, is -1.0"),
        ({"value_clip": -0.5}, "value_clip must be 0 or more, is -0.5"),
        ({"advantage_args": {"lam": 1.5}}, "advantage_args.lam must be a share from 0 to 1, is 1.5"),
        ({"advantage_args": {"whiten": "yes"}}, "whiten in advantage_args must be true or false, is 'yes'"),
        ({"advantage_args": {"lambda": 1}}, "the advantage 'gae' cannot .* 'lambda'; allowed are gamma, lam, whiten"),
        ({"fp16": True}, "PPO trains its critic without a loss scaler; set fp16: false"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        DBBenchPPOConfig(str(tmp_path), **{"use_cpu": True, "bf16": False} | settings)


def test_gae_is_refused_where_there_is_no_critic(tiny_model, sqlite_database, demo_tasks, tmp_path):
    with pytest.raises(
        ConfigError, match="the advantage 'gae' asks a critic, which GRPO has not; train with"
    ):
        make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path, advantage="gae")


def test_policies_that_are_divided_over_ranks_are_refused(ppo_of, tmp_path, monkeypatch):
    monkeypatch.setattr(GRPOTrainer, "is_fsdp_enabled", True, raising=False)
    monkeypatch.setattr(
        "trl_dbbench.training.ppo.DBBenchGRPOTrainer.__init__", lambda self, *args, **kwargs: None
    )
    monkeypatch.setattr(GRPOTrainer, "is_deepspeed_enabled", False, raising=False)
    with pytest.raises(ConfigError, match="the critic of PPO needs all weights on each rank"):
        ppo_of(tmp_path)
