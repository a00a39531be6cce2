"""Estimators in a training: what is trained, what observations do not do to it, KL, continuations, resuming."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import pytest
import torch
from launching import RECIPE, SMALL, quickstart_text, run_here
from training import (
    LORA,
    RECIPES,
    adapter_of,
    episodes_in,
    equal,
    make_trainer,
    quickstart_trainer,
    scored_batch,
    train_and_look,
    varied,
    varied_steps,
)

from trl_dbbench import ConfigError, DBBenchGRPOConfig, OutcomeReward, load_tasks, to_dataset
from trl_dbbench.advantages.registry import ADVANTAGES
from trl_dbbench.advantages.vine import _worth
from trl_dbbench.episode.protocol import Operation
from trl_dbbench.episode.types import Sampling, Start
from trl_dbbench.training.kl import apply_kl

NAMES = [
    name for name, function in ADVANTAGES.items() if function is not None and name != "gae"
]  # see test_ppo.py


def trainer_of(name, tiny_model, database, tasks, tmp_path, **settings):
    return make_trainer(
        tiny_model,
        database,
        tasks[:4],
        tmp_path,
        reward_funcs=[varied, varied_steps],
        advantage=name,
        **settings,
    )


@pytest.mark.parametrize("name", NAMES)
def test_from_a_name_to_an_adapter(tiny_model, sqlite_database, demo_tasks, tmp_path, name):
    trainer = trainer_of(name, tiny_model, sqlite_database, demo_tasks, tmp_path, max_steps=2)
    before = adapter_of(trainer)
    trainer.train()
    assert not equal(before, adapter_of(trainer))
    played = [each for each in episodes_in(tmp_path) if each["phase"] == "train"]
    assert any(each["advantage"] for each in played)
    assert all(set(each["rewards"]) == {"varied", "varied_steps"} for each in played)
    assert all("varied_steps" in turn["rewards"] for each in played for turn in each["turns"])


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_does_not_hear_what_the_policy_says_of_observations(
    tiny_model, sqlite_database, demo_tasks, tmp_path, name, monkeypatch
):
    """Any numbers in the place of their log-probabilities: the same loss and gradient."""
    trainer = trainer_of(name, tiny_model, sqlite_database, demo_tasks, tmp_path, beta=0.1)
    trainer.current_gradient_accumulation_steps = 1
    _, batch = scored_batch(trainer)
    observed = (batch["tool_mask"] * batch["completion_mask"]) == 0
    assert observed[:, :-1].any() and batch["advantages"].any()
    original = trainer._get_per_token_logps_and_entropies
    found = []
    for noise in (0.0, 3.0):
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0

        def noisy(*args, noise=noise, **kwargs):
            logps, entropies, aux = original(*args, **kwargs)
            return logps + noise * observed * torch.arange(observed.shape[1]), entropies, aux

        monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", noisy)
        trainer.model.zero_grad()
        loss = trainer._compute_loss(trainer.model, batch)
        loss.backward()
        found.append(
            [loss.detach(), *(p.grad.clone() for p in trainer.model.parameters() if p.grad is not None)]
        )
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


WITH_ARGUMENTS = {
    "reinforce": "{baseline: running}",
    "process_avg_unique": "{step_spread: turn}",
    "turn": "{gamma: 0.9}",
    "state": "{omega: 0.5, gamma: 0.9}",
    "tree": "{lam: 0.5}",
    "vine": "{continuations: 1}",
    "prime": "{beta: 0.1, learning_rate: 1.0e-4, by: turn}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", *NAMES])
def test_from_a_yaml_to_an_adapter(monkeypatch, tmp_path, name):
    """The quickstart's recipe with these lines in its YAML, and nothing else."""
    lines = [f"advantage: {name}", "reward_funcs: [outcome, executes, state_progress, answer_seen]"]
    if name in WITH_ARGUMENTS:
        lines.append(f"advantage_args: {WITH_ARGUMENTS[name]}")
    recipe = quickstart_text().replace("reward_funcs: [outcome]", "\n".join(lines))
    yaml = tmp_path / "recipe.yaml"
    yaml.write_text(recipe)
    out = tmp_path / "run"
    run_here(monkeypatch, RECIPE, "--config", yaml, *SMALL, "--max_steps", 1, "--output_dir", out)
    assert (out / "adapter_model.safetensors").is_file()
    played = [each for each in episodes_in(out) if each["phase"] == "train"]
    assert len(played) == 4 and all("executes" in each["rewards"] for each in played)
    assert json.loads((out / "run.json").read_text())["advantage"] == name


# --- REINFORCE ------------------------------------------------------------------------------------------


def test_reinforce_has_the_gradient_of_plain_autograd(tiny_model, sqlite_database, demo_tasks, tmp_path):
    """- sum of r_i log pi(sampled tokens of all turns of i), over the number of sampled tokens."""
    trainer = make_trainer(
        tiny_model,
        sqlite_database,
        demo_tasks[:4],
        tmp_path,
        advantage="reinforce",
        num_generations=1,
        max_turns=2,
        loss_type="dapo",
    )
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.current_gradient_accumulation_steps = 1
    rows, batch = scored_batch(trainer)
    rewards = [sum(row["episode"].rewards.values()) for row in rows]
    assert len(set(rewards)) > 1 and all(len(row["episode"].turns) == 2 for row in rows)
    trainer.model.zero_grad()
    trainer._compute_loss(trainer.model, batch).backward()
    given = [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]

    trainer.model.zero_grad()
    total, count = 0.0, 0
    for row, reward in zip(rows, rewards, strict=True):
        episode = row["episode"]
        ids = torch.tensor([[*episode.prompt_ids, *episode.completion_ids]])
        logprobs = trainer.model(input_ids=ids).logits[0, :-1].log_softmax(dim=-1)
        for place, sampled in enumerate(episode.mask, len(episode.prompt_ids)):
            if sampled:
                total, count = total - reward * logprobs[place - 1, ids[0, place]], count + 1
    (total / count).backward()
    expected = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_one_sample_a_prompt_trains_with_reinforce(tiny_model, sqlite_database, demo_tasks, tmp_path):
    """As the predecessor did: batches of one episode, of which any number is a multiple of 1."""
    trainer = make_trainer(
        tiny_model,
        sqlite_database,
        demo_tasks[:4],
        tmp_path,
        advantage="reinforce",
        num_generations=1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=3,
    )
    before = adapter_of(trainer)
    trainer.train()
    assert not equal(before, adapter_of(trainer))
    played = [each for each in episodes_in(tmp_path) if each["phase"] == "train"]
    assert len(played) == 6
    assert all(each["advantage"] == pytest.approx(sum(each["rewards"].values())) for each in played)


@pytest.mark.parametrize("name", ["grpo", *(n for n in NAMES if n != "reinforce")])
def test_an_advantage_of_groups_with_one_sample_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"'{name}' compares the samples of a prompt, and num_generations"):
        DBBenchGRPOConfig(str(tmp_path), advantage=name, num_generations=1, use_cpu=True, bf16=False)


def test_a_process_estimator_without_step_rewards_is_refused_at_the_start(
    tiny_model, sqlite_database, demo_tasks, tmp_path
):
    with pytest.raises(ConfigError, match="such as executes or state_progress"):
        make_trainer(
            tiny_model,
            sqlite_database,
            demo_tasks[:4],
            tmp_path,
            reward_funcs=[OutcomeReward()],
            advantage="process_avg_unique",
        )


@pytest.mark.slow
def test_a_running_baseline_goes_on_in_a_resumed_run(tiny_model, sqlite_database, demo_tasks, tmp_path):
    def train(folder, resume=False, **settings):
        trainer = make_trainer(
            tiny_model,
            sqlite_database,
            demo_tasks[:4],
            folder,
            advantage="reinforce",
            advantage_args={"baseline": "running"},
            num_generations=1,
            save_strategy="steps",
            save_steps=1,
            **settings,
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = train(tmp_path / "whole", max_steps=3)
    broken = tmp_path / "broken"
    shutil.copytree(tmp_path / "whole" / "checkpoint-1", broken / "checkpoint-1")
    resumed = train(broken, resume=True, max_steps=3)
    assert resumed.advantage.state_dict() == whole.advantage.state_dict()
    assert resumed.advantage.state_dict()["count"] == 12
    assert equal(adapter_of(whole), adapter_of(resumed))


# --- KL -------------------------------------------------------------------------------------------------


def test_kl_against_the_rollout_needs_no_other_model(
    tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch
):
    trainer = make_trainer(
        tiny_model, sqlite_database, demo_tasks[:4], tmp_path, lora=False, beta=0.5, kl_reference="rollout"
    )
    assert trainer.ref_model is None
    scored = []
    original = trainer._get_per_token_logps_and_entropies
    monkeypatch.setattr(
        trainer,
        "_get_per_token_logps_and_entropies",
        lambda *args, **kwargs: (scored.append(1), original(*args, **kwargs))[1],
    )
    _, batch = scored_batch(trainer)
    assert not scored, "no model scores the completions"
    sampled = batch["tool_mask"].bool()
    assert torch.equal(batch["ref_per_token_logps"][sampled], batch["sampling_per_token_logps"][sampled])
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, batch)
    assert trainer.beta == 0.5
    assert trainer._metrics["train"]["kl"][-1] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("adapter", [False, True])
def test_the_kl_of_equal_weights_is_0_whatever_the_dropout(
    tiny_model, sqlite_database, demo_tasks, tmp_path, adapter
):
    """The reference is the model without an adapter, or a copy of the adapter that is trained further."""
    settings = {"beta": 0.1, "max_steps": 1, "learning_rate": 0.0, "greedy_eval": "off"}
    assert LORA["lora_dropout"] > 0
    if adapter:
        first = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path / "first")
        for name, weight in first.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.5)
        first.save_model(str(tmp_path / "first"))
        settings |= {"adapter_name_or_path": str(tmp_path / "first"), "lora": False}
    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path / "second", **settings)
    rows, batch = scored_batch(trainer)
    assert trainer.model.training
    for row, reference in zip(rows, batch["ref_per_token_logps"], strict=True):
        sampled = torch.tensor(row["episode"].mask).bool()
        played = torch.tensor(row["episode"].logprobs)[sampled]
        assert reference[: len(sampled)][sampled].tolist() == pytest.approx(played.tolist(), abs=1e-4)


def test_kl_in_the_reward_is_the_log_ratio_of_the_sampled_tokens(
    tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch
):
    """r_i - beta sum_t log(pi / pi_ref), before the group's mean is taken; the loss has no KL of its own."""
    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path, beta=0.1, kl_in_reward=True)
    for name, weight in trainer.model.named_parameters():  # an adapter that has learnt something
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    seen = []
    monkeypatch.setattr(
        "trl_dbbench.training.trainer.apply_kl", lambda *args: seen.append(apply_kl(*args)) or seen[-1]
    )
    rows, batch = scored_batch(trainer)
    assert "ref_per_token_logps" not in batch and trainer.beta == 0
    penalties = []
    for row in rows:
        episode = row["episode"]
        ids = torch.tensor([[*episode.prompt_ids, *episode.completion_ids]])
        with torch.no_grad(), trainer.model.disable_adapter():
            logprobs = trainer.model.eval()(input_ids=ids).logits[0, :-1].log_softmax(dim=-1)
        ratio = sum(
            played - logprobs[place - 1, ids[0, place]].item()
            for place, (played, sampled) in enumerate(
                zip(episode.logprobs, episode.mask, strict=True), len(episode.prompt_ids)
            )
            if sampled
        )
        penalties.append(0.1 * ratio)
    assert seen[0].tolist() == pytest.approx(penalties, abs=1e-4)
    assert max(map(abs, penalties)) > 0.01
    rewards = torch.tensor([sum(row["episode"].rewards.values()) for row in rows]) - torch.tensor(penalties)
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert batch["advantages"].tolist() == pytest.approx(expected.tolist(), abs=1e-3)


def test_the_logged_penalty_is_the_mean_of_the_episodes_that_have_a_reward(
    tiny_model, sqlite_database, demo_tasks, tmp_path, monkeypatch
):
    def fails_once(episode, **kwargs):
        episode[1].fail("the database went away")
        return [1.0, 2.0, 3.0, 4.0]

    trainer = make_trainer(
        tiny_model,
        sqlite_database,
        demo_tasks[:1],
        tmp_path,
        reward_funcs=[fails_once],
        beta=0.1,
        kl_in_reward=True,
    )
    penalties = torch.tensor([0.5, 0.0, 0.25, 0.75])
    monkeypatch.setattr("trl_dbbench.training.trainer.apply_kl", lambda *_: penalties)
    scored_batch(trainer)
    logged = trainer._metrics["train"]["kl_penalty"]
    assert sum(logged) / len(logged) == 0.5


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"kl_reference": "old", "beta": 0.1}, "unknown kl_reference 'old'; allowed: base, rollout"),
        ({"kl_reference": "rollout"}, "kl_reference: rollout is used only with beta; set that"),
        ({"kl_in_reward": True}, "kl_in_reward: true is used only with beta"),
        (
            {"kl_in_reward": True, "kl_reference": "rollout", "beta": 0.1},
            "kl_in_reward: true and kl_reference: rollout exclude each other: .* Leave one of them out",
        ),
        (
            {"kl_reference": "rollout", "reference_model_name_or_path": "m", "beta": 0.1},
            "kl_reference: rollout and reference_model_name_or_path: m exclude each other",
        ),
        ({"kl_in_reward": True, "beta": 0.1, "scale_rewards": "none"}, "rloo scales nothing"),
        (
            {"kl_in_reward": True, "beta": 0.1, "advantage": "process_avg_unique"},
            "advantage: process_avg_unique exclude each other: this advantage does not go by",
        ),
        (
            {"kl_in_reward": True, "beta": 0.1, "advantage": "vine"},
            "advantage: vine exclude each other: this advantage does not go by",
        ),
        (
            {"kl_in_reward": True, "beta": 0.1, "multi_objective_aggregation": "normalize_then_sum"},
            "the sum of the rewards, not from each of them. Leave one of them out",
        ),
    ],
)
def test_settings_of_the_kl_that_cannot_work(tmp_path, settings, error):
    with pytest.raises(ConfigError, match=error):
        DBBenchGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **settings)


# --- the real tables ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_continuations(tmp_path_factory, sqlite_database):
    folder = tmp_path_factory.mktemp("vine")
    trainer = quickstart_trainer(
        sqlite_database,
        folder,
        advantage="vine",
        advantage_args={"continuations": 2},
        max_steps=2,
        save_strategy="no",
    )
    values = train_and_look(trainer, lambda batch: batch["advantages"].shape)
    return folder, values


def test_turns_of_mixed_groups_get_the_worth_of_their_continuations(with_continuations):
    folder, shapes = with_continuations
    assert all(len(shape) == 2 for shape in shapes)
    played = [each for each in episodes_in(folder) if each["phase"] == "train"]
    mixed = 0
    for start in range(0, len(played), 4):
        group = played[start : start + 4]
        rewards = [sum(each["rewards"].values()) for each in group]
        later = [turn for each in group for turn in each["turns"][1:]]
        if len(set(rewards)) == 1:
            assert not any("value" in turn for turn in later)
            assert all(each["advantage"] == 0 and "branch_tokens" not in each for each in group)
            continue
        mixed += 1
        assert all(-1 <= turn["value"] <= 1 for turn in later)
        for each, reward in zip(group, rewards, strict=True):
            values = [sum(rewards) / 4, *(turn["value"] for turn in each["turns"][1:]), reward]
            changes = [after - before for before, after in pairwise(values)]
            given = [turn.get("advantage", each["advantage"]) for turn in each["turns"]]
            assert given == pytest.approx(changes, abs=1e-5)
            assert each.get("branch_tokens", 0) >= 2 * (len(each["turns"]) - 1)
    assert mixed


def test_a_continuation_that_nothing_scores_is_worth_nothing_known(
    tiny_model, sqlite_database, demo_tasks, tmp_path
):
    def every_other(episode, **kwargs):
        return [2.0 if number % 2 else None for number in range(len(episode))]

    def never(episode, **kwargs):
        return [None] * len(episode)

    trainer = make_trainer(
        *(tiny_model, sqlite_database, demo_tasks[:4], tmp_path),
        reward_funcs=[every_other, never],
        advantage="vine",
        advantage_args={"continuations": 1},
    )
    rows, _ = scored_batch(trainer)
    assert _worth(trainer, [row["episode"] for row in rows]) == [None, 2.0, None, 2.0]


def test_reward_functions_get_for_continuations_what_they_get_for_episodes(sqlite_database, tmp_path):
    """A column of the dataset, and TRL's functions to log by, which log nothing here."""
    tasks = load_tasks(RECIPES / "tiny/train.jsonl")[:8]
    numbers = {task.id: number for number, task in enumerate(tasks)}
    dataset = to_dataset(tasks, "text", "Work on the MySQL database.").add_column("number", range(8))
    by_trl = []

    def told(episode, number, completion_ids, log_extra, log_metric, **kwargs):
        assert number == [numbers[each.task.id] for each in episode]
        log_extra("number", number)
        log_metric("asked", 1.0)
        by_trl.append(log_metric == trainer._log_metric)
        return varied(completion_ids)

    trainer = quickstart_trainer(
        *(sqlite_database, tmp_path),
        dataset=dataset,
        more_rewards=[told],
        advantage="vine",
        advantage_args={"continuations": 1},
        max_steps=1,
    )
    trainer.train()
    assert set(by_trl) == {True, False}


def test_an_episode_goes_on_from_the_turns_of_another_on_tables_of_its_own(sqlite_database, tmp_path):
    """The statements before are executed again; the tokens are the same up to there."""
    trainer = quickstart_trainer(sqlite_database, tmp_path)
    tasks = load_tasks(RECIPES / "tiny/train.jsonl")[:8]
    starts = [trainer.player.start(task, Sampling(seed=3), "Work on the MySQL database.") for task in tasks]
    with trainer.engine() as engine:
        first = trainer.player.play_all(starts, engine)
    episode = next(e for e in first if len(e.turns) > 1 and isinstance(e.turns[0].action, Operation))
    with trainer.engine() as engine:
        (second,) = trainer.player.play_all(
            [Start(episode.task, episode.prompt_ids, Sampling(greedy=True), episode.turns[:1])], engine
        )
    episode.turns[0].rewards["outcome"] = 1.0
    assert second.turns[0].result is episode.turns[0].result and len(second.turns) > 1
    assert not second.turns[0].rewards, "what the turn is worth there"
    used = len(episode.turns[0].completion.ids) + len(episode.turns[0].observation_ids)
    assert second.completion_ids[:used] == episode.completion_ids[:used]


def test_turns_are_told_the_tables_that_they_started_from(sqlite_database, tmp_path):
    trainer = quickstart_trainer(sqlite_database, tmp_path, advantage="state", max_steps=1)
    trainer.train()
    played = [each for each in episodes_in(tmp_path) if each["phase"] == "train"]
    for each in played:
        digests = [turn["state"] for turn in each["turns"]]
        changed = [bool(turn["affected"]) for turn in each["turns"]]
        assert all(len(digest) == 24 for digest in digests)
        for number in range(1, len(digests)):
            if not any(changed[:number]):
                assert digests[number] == digests[0]
    assert {each["task_id"]: each["turns"][0]["state"] for each in played}.items() >= {
        (each["task_id"], each["turns"][0]["state"]) for each in played
    }, "all samples of a task start from the same tables"
