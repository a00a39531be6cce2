"""Batches that are played while an earlier one is trained on, and how the loss corrects for their older weights."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from pathlib import Path
from threading import Event

import pytest
import torch
from launching import RECIPE, fork_ranks, small
from training import episodes_in, kill, make_trainer, sampled, train_and_look, varied
from transformers import TrainerCallback
from vllm_servers import EOS, FakeServer, completion

from trl_dbbench import ConfigError, DBBenchGRPOConfig
from trl_dbbench.errors import EngineError

STEPS = 5


@pytest.fixture
def trainer_on(tiny_model, sqlite_database, demo_tasks, tmp_path):
    """A trainer on a scripted server: two of five prompts a step, so that an epoch has two steps."""

    def make(server: FakeServer, name: str = "run", **settings):
        defaults = {"max_steps": STEPS, "per_device_train_batch_size": 8, "protocol": "text"}
        return make_trainer(
            tiny_model,
            sqlite_database,
            demo_tasks[:5],
            tmp_path / name,
            reward_funcs=[varied],
            vllm_server_urls=[server.url],
            **defaults | settings,
        )

    return make


def played(trainer) -> list[tuple]:
    """What was trained on: (step, task, seed) of each sampled episode."""
    episodes = episodes_in(trainer.args.output_dir)
    return [(e["step"], e["task_id"], e["seed"]) for e in episodes if e["phase"] == "train"]


def adapters_by_seed(server: FakeServer) -> dict[int, set[str]]:
    """The adapters that each sampled turn was asked of."""
    asked = defaultdict(set)
    for body in server.turns:
        if body["temperature"] > 0:
            asked[body["seed"]].add(body["model"])
    return asked


GENERATIONS = [
    {},
    {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "shuffle_dataset": False},
    {"per_device_train_batch_size": 4, "steps_per_generation": 2, "gradient_accumulation_steps": 1},
    {"task_sampling": "skill"},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", GENERATIONS, ids=str)
def test_the_tasks_and_random_numbers_are_those_of_a_run_without(settings, trainer_on, fakes):
    (server,) = fakes(1)
    runs = []
    for ahead in (0, 2):
        trainer = trainer_on(server, f"run-{ahead}", rollouts_ahead=ahead, **settings)
        trainer.train()
        runs.append(played(trainer))
        loaded = server.adapters.copy()
        trainer.backend.close()
        assert len(loaded) == 1
        assert server.adapters == {}, "none is left on the server"
    assert runs[1] == runs[0]
    assert len({step for step, *_ in runs[0]}) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [1, 2])
def test_a_batch_is_of_weights_that_are_so_many_updates_older(ahead, trainer_on, fakes):
    """And of one adapter, from its first turn to its last, in the samples and the greedy runs."""
    (server,) = fakes(1)
    server.turn = (11, 12, 13, 14, 15, 2)
    trainer = trainer_on(server, rollouts_ahead=ahead, protocol="tools")
    trainer.train()
    by_seed = adapters_by_seed(server)
    adapters = {}
    for episode in episodes_in(trainer.args.output_dir):
        step = episode["step"]
        assert episode["policy_step"] == max(0, step - ahead)
        if episode["phase"] == "train":
            names = set.union(*(by_seed[episode["seed"] * 1_000_003 + turn] for turn in range(3)))
            assert len(names) == 1
            adapters.setdefault(episode["policy_step"], set()).update(names)
    assert [len(names) for _, names in sorted(adapters.items())] == [1] * (STEPS - ahead)
    logged = [json.loads(line) for line in (Path(trainer.args.output_dir) / "metrics.jsonl").open()]
    stale = [entry["ahead/staleness"] for entry in logged if "ahead/staleness" in entry]
    assert stale == [min(step, ahead) for step in range(STEPS)]
    assert all(entry["ahead/waited_seconds"] >= 0 for entry in logged if "reward" in entry)


def test_a_program_plays_ahead_on_servers(trainer_on, fakes):
    """The SDK's loop, whose calls a server of vLLM answers."""
    (server,) = fakes(1)
    agent = f"{Path(__file__).parents[1] / 'harness' / 'sdk_loop.py'}:texts"
    trainer = trainer_on(server, rollouts_ahead=1, harness=agent, greedy_eval="off")
    trainer.train()
    episodes = episodes_in(trainer.args.output_dir)
    assert len(episodes) == 8 * STEPS
    assert all(episode["policy_step"] == max(0, episode["step"] - 1) for episode in episodes)
    replies = [turn for episode in episodes for turn in episode["turns"] if turn["action"] == "reply"]
    assert len(replies) == len(server.turns) >= 8 * STEPS
    assert all(turn["tokens"] > 0 for turn in replies)


class Wait(TrainerCallback):
    """At the end of a step, until a batch is asked for that is trained on later."""

    def __init__(self, ready: Event):
        self.ready, self.seen = ready, []

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append(self.ready.wait(30))


def test_the_next_batch_is_played_while_one_is_trained_on(trainer_on, fakes):
    """The step's end waits for a request of the next batch; without playing ahead it would wait in vain."""
    (server,) = fakes(1)
    asked = Event()

    def note(path: str, body: dict):
        if path == "/v1/completions" and len(server.turns) > 10:  # a batch is 8 samples and 2 greedy runs
            asked.set()
        return NotImplemented

    server.interfere = note
    trainer = trainer_on(server, rollouts_ahead=1, max_steps=2)
    trainer.add_callback(wait := Wait(asked))
    trainer.train()
    assert wait.seen == [True, True]


def test_the_greedy_line_says_whose_weights_they_are(trainer_on, fakes, capsys):
    (server,) = fakes(1)
    trainer_on(server, rollouts_ahead=1, max_steps=3).train()
    lines = [line for line in capsys.readouterr().out.splitlines() if "greedy" in line]
    assert lines[0].startswith("step 0: greedy 0 of 2 right")
    assert lines[2].startswith("step 2, weights of step 1: greedy 0 of 2 right")


@pytest.mark.slow
def test_a_killed_run_plays_what_was_under_way_again(trainer_on, fakes):
    (server,) = fakes(1)
    whole = trainer_on(server, "whole", rollouts_ahead=1)
    whole.train()
    saving = {"save_strategy": "steps", "save_steps": 1}
    killed = trainer_on(server, rollouts_ahead=1, **saving)
    kill(killed, at=3)
    resumed = trainer_on(server, rollouts_ahead=1, **saving)
    resumed.train(resume_from_checkpoint=True)
    assert played(resumed) == played(whole)
    steps = {e["step"]: e["policy_step"] for e in episodes_in(resumed.args.output_dir)}
    assert steps == {0: 0, 1: 0, 2: 1, 3: 3, 4: 3}


@pytest.mark.slow
def test_an_evaluation_has_the_newest_weights_and_disturbs_nobody(trainer_on, fakes):
    (server,) = fakes(1)
    plain = trainer_on(server, "plain", rollouts_ahead=1)
    plain.train()
    trainer = trainer_on(server, rollouts_ahead=1, eval_strategy="steps", eval_steps=1)
    trainer.train()
    assert played(trainer) == played(plain)
    evaluated = [e for e in episodes_in(trainer.args.output_dir) if e["phase"] == "eval"]
    assert {e["step"] for e in evaluated} == {1, 2, 3, 4, 5}
    assert not any("policy_step" in e for e in evaluated)


def test_servers_that_are_lost_end_the_run_and_its_threads(trainer_on, fakes, monkeypatch):
    monkeypatch.setattr("trl_dbbench.engines.vllm.servers.PATIENCE_SECONDS", 0.0)
    (server,) = fakes(1)
    trainer = trainer_on(server, rollouts_ahead=2)
    trainer.backend._servers.patience = 0.0
    server.interfere = lambda path, body: None if len(server.turns) > 30 else NotImplemented
    with pytest.raises(EngineError, match="no vLLM server answered"):
        trainer.train()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("dbbench-ahead")]


@pytest.mark.slow
def test_two_ranks_play_ahead(fakes, tmp_path):
    """Each its rows, in threads of its own; what they agree on, they agree on between the batches."""
    (server,) = fakes(1)
    options = ("--vllm_server_urls", server.url, "--use_peft", "true", "--rollouts_ahead", 2)
    options += ("--max_steps", 4, "--per_device_train_batch_size", 2, "--output_dir", tmp_path)
    status, output = fork_ranks(*small(RECIPE, *options))
    assert status == 0, output
    steps = [(e["step"], e["policy_step"], e["phase"]) for e in episodes_in(tmp_path)]
    assert steps == [
        (step, max(0, step - 2), phase) for step in range(4) for phase in ("greedy", *["train"] * 4)
    ]
    assert len(adapters_by_seed(server)) == 16
    assert all(len(names) == 1 for names in adapters_by_seed(server).values())
    assert server.adapters == {}


# --- the loss -------------------------------------------------------------------------------------------


def test_the_loss_compares_with_the_policy_that_played(trainer_on, fakes):
    (server,) = fakes(1)
    trainer = trainer_on(server, rollouts_ahead=1, max_steps=2)
    for old, played in train_and_look(
        trainer, lambda batch: (batch["old_per_token_logps"], batch["sampling_per_token_logps"])
    ):
        assert torch.equal(old, played)


def test_an_engine_that_knows_no_log_probabilities_is_named(trainer_on, fakes):
    (server,) = fakes(1)
    trainer = trainer_on(server, rollouts_ahead=1, max_steps=1)
    trainer.backend._servers.servers[0].processed = True  # of another temperature than 1, they are not ours
    trainer.temperature, trainer.top_p = 0.7, 0.9
    with pytest.raises(ConfigError, match="does not know them all"):
        trainer.train()


RATIOS = {
    "token_tis": lambda ratios, mask: ratios.clamp(max=1.5),
    "token_mask": lambda ratios, mask: ratios.where((ratios >= 0.5) & (ratios <= 1.5), 0),
    "sequence_tis": lambda ratios, mask: product(ratios, mask).clamp(max=1.5),
    "sequence_mask": lambda ratios, mask: product(ratios, mask).where(
        (product(ratios, mask) >= 0.5) & (product(ratios, mask) <= 1.5), 0
    ),
}


def product(ratios: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Over the sampled tokens of each row, (B, 1)."""
    return ratios.where(mask, 1).prod(dim=1, keepdim=True)


@pytest.mark.parametrize("correction", RATIOS)
def test_importance_sampling_by_hand(correction, trainer_on, fakes):
    """The server's log-probabilities are -1/8, -2/8, ...; the trainer's own are what the model says."""
    (server,) = fakes(1)
    bounds = {"vllm_importance_sampling_clip_max": 1.5}
    if correction.endswith("mask"):
        bounds["vllm_importance_sampling_clip_min"] = 0.5
    trainer = trainer_on(server, rollout_correction=correction, rollouts_ahead=1, max_steps=1, **bounds)
    (batch,) = train_and_look(trainer, lambda batch: batch)
    mask = sampled(batch)
    ratios = torch.exp(batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).where(mask, 1)
    wanted = RATIOS[correction](ratios, mask)
    got = batch["importance_sampling_ratio"]
    assert torch.allclose(got.expand_as(mask)[mask], wanted.expand_as(mask)[mask], atol=1e-5)
    assert not torch.equal(batch["old_per_token_logps"][mask], batch["sampling_per_token_logps"][mask])


def test_the_loss_of_each_token_is_multiplied_with_its_ratio(trainer_on, fakes):
    """As the ratios are all doubled, so is the loss."""
    (server,) = fakes(1)

    def other_ids(path: str, body: dict):
        if path != "/v1/completions" or body["top_k"] == 1:
            return NotImplemented
        return 200, completion((11 + body["seed"] % 7, 12, EOS), [-1.0, -2.0, -3.0])

    server.interfere = other_ids
    trainer = trainer_on(server, rollout_correction="token_tis", max_steps=1)
    seen = {}

    def look(batch):
        trainer.current_gradient_accumulation_steps = 1
        for scale in (0.0, 1.0, 2.0):
            changed = {**batch, "importance_sampling_ratio": batch["importance_sampling_ratio"] * scale}
            torch.manual_seed(0)
            seen[scale] = trainer._compute_loss(trainer.model, changed).item()

    train_and_look(trainer, look)
    assert seen[0.0] == 0.0
    assert abs(seen[1.0]) > 1e-4
    assert seen[2.0] == pytest.approx(2 * seen[1.0])


# --- what cannot be together -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollouts_ahead": 3}, "rollouts_ahead must be 0, 1 or 2, is 3"),
        (
            {"rollouts_ahead": 1, "dynamic_sampling": True},
            "dynamic_sampling: true exclude each other: the latter chooses what is played by",
        ),
        (
            {"rollouts_ahead": 1, "task_sampling": "frontier"},
            "task_sampling: frontier exclude each other: the latter chooses",
        ),
        ({"rollouts_ahead": 1, "advantage": "vine"}, "vine plays on from the middle"),
        ({"rollout_correction": "tis"}, "unknown rollout_correction 'tis'; allowed: none, token_tis"),
        ({"vllm_importance_sampling_clip_max": 2.0}, "is used only with rollout_correction; set that"),
        ({"rollout_correction": "token_tis", "use_rollout_logprobs": True}, "Leave one of them out"),
        ({"rollout_correction": "sequence_tis", "loss_type": "vespo"}, "set token_tis or token_mask"),
        ({"vllm_importance_sampling_mode": "token_mask"}, "rollout_correction says how"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_together(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)


def test_the_model_in_this_process_cannot_play_ahead(tiny_model, sqlite_database, demo_tasks, tmp_path):
    with pytest.raises(
        ConfigError, match="rollouts_ahead: 1 needs an engine that goes on with older weights"
    ):
        make_trainer(tiny_model, sqlite_database, demo_tasks[:2], tmp_path, rollouts_ahead=1)
