"""The trainer on a tiny model: what reaches the loss, what a run leaves, what resumes."""

from __future__ import annotations

import inspect
import math
import re
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet
import pytest
import torch
from datasets import Dataset
from fakes import BrokenDatabase, BrokenSandbox, ScriptedEngine
from peft import PeftModel
from torch._dynamo.utils import counters
from training import adapter_of, episodes_in, equal, kill, make_trainer, scored_batch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer, TrlParser
from trl.trainer.utils import create_model_from_path

from trl_dbbench import (
    ConfigError,
    DBBenchGRPOConfig,
    DBBenchGRPOTrainer,
    OutcomeReward,
    TaskError,
    format_reward,
    to_dataset,
)
from trl_dbbench.episode.templates import load_chat_template
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.training import memory
from trl_dbbench.training.kl import apply_kl


@pytest.fixture
def trainer_of(tiny_model, sqlite_database, demo_tasks, tmp_path):
    def make(output_dir: Path = tmp_path / "run", **settings) -> DBBenchGRPOTrainer:
        return make_trainer(tiny_model, sqlite_database, demo_tasks[:4], output_dir, **settings)

    return make


# --- what reaches the loss ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_rollouts_and_training_compute_in_the_same_precision(trainer_of, lora):
    trainer = trainer_of(lora=lora, bf16=True, max_turn_tokens=12)
    # many, so that rows end at different times
    trainer.eos_token_ids = list(range(0, trainer.model.config.vocab_size, 5))
    precisions = {True: set(), False: set()}  # with gradients and without
    layer = trainer.model.get_submodule(
        next(name for name, _ in trainer.model.named_modules() if name.endswith("up_proj"))
    )
    layer.register_forward_hook(lambda *each: precisions[torch.is_grad_enabled()].add(each[-1].dtype))
    trainer.train()
    assert precisions == {True: {torch.bfloat16}, False: {torch.bfloat16}}


def test_ids_trained_are_ids_sampled_and_the_mask_marks_them(trainer_of):
    trainer = trainer_of()
    rows, batch = scored_batch(trainer)

    for row, ids, mask, real in zip(
        rows, batch["completion_ids"], batch["tool_mask"], batch["completion_mask"], strict=True
    ):
        episode = row["episode"]
        length = int(real.sum())
        assert ids[:length].tolist() == episode.completion_ids
        assert mask[:length].tolist() == episode.mask
        sampled = [id for turn in episode.turns for id in turn.completion.ids]
        assert ids[:length][mask[:length].bool()].tolist() == sampled
        assert len(episode.turns) == 3


def test_rollout_log_probabilities_are_the_trainers_own(trainer_of):
    """fp32, temperature 0.8, top_p 0.95, three turns with observations between them."""
    trainer = trainer_of(temperature=0.8, top_p=0.95)
    _, batch = scored_batch(trainer)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    trainer.model.eval()  # the rollout runs without dropout
    with torch.no_grad():
        own, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, attention, batch["completion_ids"].shape[1]
        )
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()

    assert mask.sum() > 30
    assert torch.allclose(own[mask], batch["sampling_per_token_logps"][mask], atol=1e-4)


def test_old_log_probabilities_can_be_the_rollouts(trainer_of):
    _, batch = scored_batch(trainer_of(use_rollout_logprobs=True))
    assert torch.equal(batch["old_per_token_logps"], batch["sampling_per_token_logps"])


@pytest.mark.parametrize(
    ("settings", "scored"),
    [
        ({}, []),  # the ratio is 1
        ({"num_iterations": 2}, [4]),
        ({"num_iterations": 2, "use_rollout_logprobs": True}, []),
        ({"beta": 0.1}, [4]),  # by the reference
        ({"beta": 0.1, "kl_reference": "rollout"}, []),
    ],
)
def test_nothing_is_scored_that_is_known(trainer_of, monkeypatch, settings, scored):
    """Rows of each pass before the loss; there are four, and a greedy one."""
    trainer = trainer_of(**settings)
    passes, score = [], trainer._get_per_token_logps_and_entropies

    def count(model, input_ids, *args, **kwargs):
        passes.append(len(input_ids))
        return score(model, input_ids, *args, **kwargs)

    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", count)
    _, batch = scored_batch(trainer)
    assert passes == scored
    assert ("old_per_token_logps" in batch) == ("num_iterations" in settings)
    assert trainer.args.gradient_accumulation_steps == 1


def test_samples_of_a_prompt_differ_and_come_again_with_the_seed(trainer_of, tmp_path):
    first = [row["episode"].completion_ids for row in scored_batch(trainer_of())[0]]
    again = [row["episode"].completion_ids for row in scored_batch(trainer_of(tmp_path / "again"))[0]]
    other = [row["episode"].completion_ids for row in scored_batch(trainer_of(tmp_path / "other", seed=8))[0]]

    assert len({tuple(ids) for ids in first}) == 4
    assert first == again
    assert first != other


class SometimesBroken(BrokenDatabase):
    """Every second episode is void."""

    calls = 0

    def fresh_sandbox(self, task):
        self.calls += 1
        if self.calls % 2 == 0:
            raise EnvironmentFault("what was done cannot be repeated", final=True)
        return BrokenSandbox()


def test_a_failed_environment_gives_no_reward_and_no_advantage(tiny_model, demo_tasks, tmp_path, caplog):
    """Two of four rows fail at the start. Neither loss, KL term nor a mean over tokens sees them, nor the group's mean."""

    trainer = make_trainer(
        tiny_model,
        SometimesBroken(True),
        demo_tasks[:4],
        tmp_path,
        greedy_eval="off",
        alarm_window=1,
    )
    rows, batch = scored_batch(trainer)
    failed = [row["episode"].status == "environment_fault" for row in rows]

    assert sum(failed) == 2
    for row, fault, advantage, mask in zip(
        rows, failed, batch["advantages"].tolist(), batch["tool_mask"] * batch["completion_mask"], strict=True
    ):
        assert mask.sum() == (0 if fault else 18)  # three turns of six tokens
        if fault:
            assert len(row["episode"].turns) == 3, "it played on until it needed the database"
            assert (row["episode"].rewards, advantage) == ({"outcome": None, "varied": None}, 0.0)
    assert batch["num_items_in_batch"] == 2 * 18
    assert batch["advantages"].sum() == pytest.approx(0.0, abs=1e-6)
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert (logged["status/environment_fault"], logged["accuracy_void_wrong"]) == (0.5, 0.0)
    (warning,) = [r.getMessage() for r in caplog.records if "alarm_void" in r.getMessage()]
    assert re.search(r"Most often: what was done cannot be repeated \((\d+) of \1\)\.$", warning)


def test_a_void_episode_is_no_page_of_warnings(tiny_model, demo_tasks, tmp_path, caplog):
    """TRL's warning of a row without a reward had its tables, prompt and tokens, anew for each rollout."""
    settings = {"greedy_eval": "off", "reward_funcs": [OutcomeReward()]}
    trainer = make_trainer(tiny_model, SometimesBroken(True), demo_tasks[:4], tmp_path, **settings)
    scored_batch(trainer)
    (said,) = [each.getMessage() for each in caplog.records if each.name == "trl.trainer.grpo_trainer"]
    assert said.startswith("No reward function gave a value for an episode, and the update leaves it out.")


# --- what a run does to the weights ---------------------------------------------------------------


@pytest.mark.parametrize("lora", [True, False])
def test_checkpointing_adds_no_hook_with_each_rollout(trainer_of, lora):
    """Each would be called at every token."""
    trainer = trainer_of(lora=lora, gradient_checkpointing=True, max_steps=3)
    hooks = trainer.model.get_input_embeddings()._forward_hooks
    before = len(hooks)
    trainer.train()
    assert len(hooks) == max(before, 1)


def test_moments_that_a_checkpoint_brought_do_not_come_again(trainer_of, monkeypatch):
    """Less memory is free by them, and they need none any more."""
    trainer = trainer_of(lora=False, max_steps=1)
    trained = sum(weight.nbytes for weight in trainer.model.parameters())
    monkeypatch.setattr(memory, "free_memory", lambda device: 100 * trained)
    at_first = memory.fitting(trainer)
    trainer.train()
    held = sum(value.nbytes for state in trainer.optimizer.state.values() for value in state.values())
    assert held >= 2 * trained
    monkeypatch.setattr(memory, "free_memory", lambda device: 100 * trained - held)
    assert memory.fitting(trainer) == pytest.approx(at_first, rel=1e-3)


def test_a_pass_has_the_memory_that_an_optimizer_without_moments_leaves(trainer_of, monkeypatch):
    """With three times the weights free, AdamW's moments and the gradients take all."""
    trainer = trainer_of(lora=False)
    trained = sum(weight.nbytes for weight in trainer.model.parameters())
    monkeypatch.setattr(memory, "free_memory", lambda device: 3 * trained)
    trainer.create_optimizer()
    assert memory.fitting(trainer) == 1, "a row goes alone"
    trainer.args.optim = "sgd"
    assert memory.fitting(trainer) > 1


def test_what_the_database_wrote_has_no_kl_that_is_infinite():
    """TRL's k3 of a token that the model finds next to impossible, masked after the exponent."""
    sampled = torch.tensor([[0.0, -1.0]])  # the first token is an observation's
    output = {"sampling_per_token_logps": sampled}
    args = SimpleNamespace(kl_reference="rollout", kl_in_reward=False)
    mask = torch.tensor([[0, 1]])
    apply_kl(output, mask, args, lambda values: values, training=True)
    difference = output["ref_per_token_logps"] - torch.tensor([[-95.0, -2.0]])
    assert ((difference.exp() - difference - 1) * mask).tolist() == [[0, pytest.approx(math.e - 2)]]


def test_an_evaluation_leaves_the_trainings_table_of_completions(trainer_of, tmp_path):
    def rows(name: str, **settings) -> list:
        trainer_of(output_dir=tmp_path / name, log_completions=True, max_steps=2, **settings).train()
        files = sorted((tmp_path / name / "completions").glob("*.parquet"))
        return [pyarrow.parquet.read_table(file).to_pylist() for file in files]

    plain = rows("plain")
    assert [len(each) for each in plain] == [4, 4]
    assert rows("evaluated", eval_strategy="steps", eval_steps=1) == plain


def test_lora_changes_the_adapter_and_nothing_else(trainer_of, tiny_model, tmp_path):
    trainer = trainer_of()
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.equal(trainer.model.eval()(ids).logits, base(ids).logits), (
            "a fresh adapter changes no logit"
        )
    fresh = adapter_of(trainer)

    trainer.train()
    trainer.save_model()

    assert not equal(adapter_of(trainer), fresh)
    kept = trainer.model.get_base_model().state_dict()
    for name, weight in base.state_dict().items():
        tuned = name.replace("_proj.", "_proj.base_layer.") if "q_proj" in name or "v_proj" in name else name
        assert torch.equal(kept[tuned], weight), name

    loaded = PeftModel.from_pretrained(base, trainer.args.output_dir).eval()
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, trainer.model.eval()(ids).logits)
    assert AutoTokenizer.from_pretrained(trainer.args.output_dir).chat_template


def test_greedy_evaluation_leaves_training_bit_equal(trainer_of, tmp_path):
    runs = {}
    for greedy_eval in ("separate", "off"):
        trainer = trainer_of(tmp_path / greedy_eval, greedy_eval=greedy_eval, max_steps=3)
        trainer.train()
        runs[greedy_eval] = adapter_of(trainer)

    assert equal(runs["separate"], runs["off"])
    phases = {name: [e["phase"] for e in episodes_in(tmp_path / name)] for name in runs}
    assert phases["separate"] == ["greedy", "train", "train", "train", "train"] * 3
    assert phases["off"] == ["train"] * 12


def test_greedy_rows_in_the_batch_say_what_a_pass_of_their_own_says(trainer_of, tmp_path):
    runs = {}
    for greedy_eval in ("batch", "separate"):
        trainer = trainer_of(tmp_path / greedy_eval, greedy_eval=greedy_eval, max_steps=1)
        trainer.train()
        runs[greedy_eval] = [
            (e["phase"], e["task_id"], e["status"], [turn["text"] for turn in e["turns"]])
            for e in episodes_in(tmp_path / greedy_eval)
        ]
    assert runs["batch"] == runs["separate"]


def test_the_share_in_the_prefix_cache_is_that_of_all_ranks(trainer_of, monkeypatch):
    """It was rank 0's."""
    trainer = trainer_of()
    trainer.model.train()
    other = torch.tensor([[90, 100]])
    monkeypatch.setattr(trainer.accelerator, "gather", lambda own: torch.cat([own, other]))
    trainer._note_prefix_cache(SimpleNamespace(cached_tokens=10, prompt_tokens=300))
    assert trainer._metrics["train"]["rollout/cached_tokens"] == [100 / 400]


def test_the_greedy_evaluation_precedes_every_so_many_rollouts(trainer_of, tmp_path):
    """Of five updates on one rollout each, the first, third and fifth; the samples are the same ones."""
    every = trainer_of(output_dir=tmp_path / "every", max_steps=5)
    every.train()
    second = trainer_of(output_dir=tmp_path / "second", max_steps=5, greedy_eval_every=2)
    second.train()
    greedy = [e["step"] for e in episodes_in(tmp_path / "second") if e["phase"] == "greedy"]
    assert greedy == [0, 2, 4]
    assert second.greedy_eval.accuracy.counts["overall"][1] == 3
    sampled = [
        [turn["text"] for e in episodes_in(tmp_path / name) if e["phase"] == "train" for turn in e["turns"]]
        for name in ("every", "second")
    ]
    assert sampled[0] == sampled[1]


def test_held_out_evaluation_is_greedy_and_leaves_training_bit_equal(trainer_of, tmp_path):
    runs = {}
    for strategy in ("steps", "no"):
        trainer = trainer_of(
            tmp_path / strategy, eval_strategy=strategy, eval_steps=1, per_device_eval_batch_size=2
        )
        trainer.train()
        runs[strategy] = adapter_of(trainer)

    assert equal(runs["steps"], runs["no"])
    held_out = [e for e in episodes_in(tmp_path / "steps") if e["phase"] == "eval"]
    assert len(held_out) == 4  # two tasks, after each of two steps
    assert all(e["greedy"] for e in held_out)


def test_held_out_accuracy_is_of_all_tasks_and_not_a_mean_of_batches(trainer_of, late_orders, monkeypatch):
    """Three tasks in batches of two. Each batch's first row is right: two of three, where batches have 1/2 and 1.

    The other row does not act: one turn of three, where batches have 1/2 and 0.
    """
    trainer = trainer_of(protocol="text", max_turn_tokens=64, per_device_eval_batch_size=2)
    scripts = {0: ["Action: Answer\nFinal Answer: [(2,)]"], 1: ["I do not know."]}
    engine = ScriptedEngine(trainer.processing_class, scripts)
    monkeypatch.setattr(trainer.backend, "engine", lambda: nullcontext(engine))
    metrics = trainer.evaluate(to_dataset([late_orders] * 3, "text", "Answer."))
    assert metrics["eval_accuracy"] == trainer.state.log_history[-1]["eval_accuracy"] == pytest.approx(2 / 3)
    assert metrics["eval_alarm/invalid_actions"] == pytest.approx(1 / 3)
    episodes = episodes_in(trainer.args.output_dir)
    assert [e["rewards"]["outcome"] for e in episodes] == [1.0, -0.2, 1.0]
    assert metrics["eval_rewards/outcome/mean"] == pytest.approx(0.6), "where batches have 0.4 and 1"
    assert metrics["eval_reward"] == pytest.approx(sum(sum(e["rewards"].values()) for e in episodes) / 3)
    lengths = [sum(turn["tokens"] for turn in e["turns"]) for e in episodes]
    assert metrics["eval_completions/mean_length"] == pytest.approx(sum(lengths) / 3)


@pytest.mark.parametrize("tasks", [5, 7])
def test_the_last_batch_of_an_evaluation_counts_whole(trainer_of, late_orders, monkeypatch, tasks):
    """Two samples of each task in batches of eight rows: the last batch has two, or six."""
    settings = {"num_generations_eval": 2, "per_device_eval_batch_size": 8, "max_turn_tokens": 64}
    trainer = trainer_of(protocol="text", **settings)
    scripts = {row: ["Action: Answer\nFinal Answer: [(2,)]"] for row in range(8)}
    engine = ScriptedEngine(trainer.processing_class, scripts)
    monkeypatch.setattr(trainer.backend, "engine", lambda: nullcontext(engine))
    trainer.evaluate(to_dataset([late_orders] * tasks, "text", "Answer."))
    assert len(episodes_in(trainer.args.output_dir)) == 2 * tasks


@pytest.mark.slow
def test_a_compiled_model_is_compiled_for_training_only(trainer_of):
    trainer = trainer_of(torch_compile=True, torch_compile_backend="eager", max_steps=1, greedy_eval="off")
    graphs = []
    rollout_func = trainer.rollout_func

    def counted(*args):
        begin = counters["stats"]["unique_graphs"]
        rollout = rollout_func(*args)
        graphs.append(counters["stats"]["unique_graphs"] - begin)
        return rollout

    trainer.rollout_func = counted
    trainer.train()
    assert graphs == [0] and counters["stats"]["unique_graphs"] > 0


def test_an_evaluation_leaves_other_devices_alone(trainer_of, monkeypatch, recwarn):
    trainer = trainer_of()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.get_rng_state", lambda device: pytest.fail(f"device {device} was asked"))
    assert "eval_accuracy" in trainer.evaluate()
    assert not [warning for warning in recwarn if "fork_rng" in str(warning.message)]


def test_greedy_runs_come_before_the_update_with_its_weights(trainer_of, tmp_path):
    """The greedy run of step 0 says what the untrained model says."""
    trainer = trainer_of(max_steps=1)
    trainer.train()
    greedy = [e for e in episodes_in(trainer.args.output_dir) if e["phase"] == "greedy"]
    untrained = trainer_of(tmp_path / "frozen", max_steps=1, learning_rate=0.0)
    untrained.train()

    assert [e["turns"][0]["text"] for e in greedy] == [
        e["turns"][0]["text"] for e in episodes_in(untrained.args.output_dir) if e["phase"] == "greedy"
    ]
    assert trainer.greedy_eval.accuracy.counts["overall"] == [0, 1]


# --- what a run leaves ----------------------------------------------------------------------------


def test_episodes_and_metrics_of_a_run(trainer_of):
    trainer = trainer_of(reward_funcs=[OutcomeReward(), format_reward])
    trainer.train()
    sampled = [e for e in episodes_in(trainer.args.output_dir) if e["phase"] == "train"]

    assert [e["step"] for e in sampled] == [0] * 4 + [1] * 4
    first = sampled[0]
    assert first["status"] == "turn_limit"
    assert first["rewards"] == {"outcome": -0.8, "format_reward": 0.0}
    assert [turn["action"] for turn in first["turns"]] == ["invalid"] * 3
    assert first["turns"][0]["observation"] == (
        "Error: no tool call found. Call execute_sql or commit_final_answer."
    )
    logged = trainer.state.log_history[0]
    assert logged["status/turn_limit"] == 1.0
    assert logged["turns/mean"] == 3.0
    assert logged["greedy/accuracy"] == 0.0
    assert logged["rewards/outcome/mean"] == pytest.approx(-0.8)


@pytest.mark.slow
def test_a_killed_run_resumes_at_its_last_checkpoint(trainer_of, tmp_path):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    unbroken = trainer_of(tmp_path / "unbroken", **settings)
    unbroken.train()

    killed = trainer_of(tmp_path / "killed", **settings)
    kill(killed, at=3)
    assert len(episodes_in(tmp_path / "killed")) == 15  # three steps of one greedy and four sampled episodes

    resumed = trainer_of(tmp_path / "killed", **settings)
    resumed.train(resume_from_checkpoint=True)

    assert resumed.state.global_step == 4
    assert resumed.greedy_eval.accuracy.counts == unbroken.greedy_eval.accuracy.counts
    assert equal(adapter_of(resumed), adapter_of(unbroken))
    timeless = [
        [{k: v for k, v in e.items() if k != "turns"} for e in episodes_in(tmp_path / run)]
        for run in ("killed", "unbroken")
    ]
    assert timeless[0] == timeless[1]


# --- settings -------------------------------------------------------------------------------------


def test_a_reference_of_its_own_is_frozen_and_used(trainer_of, tiny_model, tmp_path):
    other = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    other.save_pretrained(tmp_path / "reference")
    weights = {name: weight.clone() for name, weight in other.state_dict().items()}

    adapters_off = trainer_of(tmp_path / "a", beta=0.1, max_steps=1)
    adapters_off.train()
    separate = trainer_of(
        tmp_path / "b", beta=0.1, max_steps=1, reference_model_name_or_path=str(tmp_path / "reference")
    )
    separate.train()

    assert adapters_off.ref_model is None
    assert adapters_off.state.log_history[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert separate.state.log_history[0]["kl"] > 1e-4
    assert equal({n: w for n, w in separate.ref_model.state_dict().items() if n in weights}, weights)


def test_a_reference_of_its_own_that_is_not_there(trainer_of, tmp_path):
    with pytest.raises(ConfigError, match=r"the reference model '.*no-such' cannot be loaded: "):
        trainer_of(beta=0.1, reference_model_name_or_path=str(tmp_path / "no-such"))


def test_a_reference_of_its_own_is_of_its_own_revision(trainer_of, tiny_model, monkeypatch):
    loaded = []

    def load(name: str, **kwargs):
        loaded.append(kwargs)
        return create_model_from_path(name, **kwargs)

    monkeypatch.setattr("trl_dbbench.training.kl.create_model_from_path", load)
    trainer_of(
        beta=0.1,
        reference_model_name_or_path=str(tiny_model),
        model_init_kwargs={"revision": "main"},
        trust_remote_code=True,
    )
    (kwargs,) = loaded
    assert "revision" not in kwargs
    assert kwargs["trust_remote_code"]


def test_without_lora_the_whole_model_is_trained(trainer_of):
    trainer = trainer_of(lora=False)
    before = trainer.model.get_input_embeddings().weight.detach().clone()
    trainer.train()
    assert not torch.equal(trainer.model.get_input_embeddings().weight, before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"protocol": "morse"}, "unknown protocol 'morse'; allowed: text, tools"),
        ({"greedy_eval": "often"}, "unknown greedy_eval 'often'; allowed: batch, separate, off"),
        ({"max_turns": 0}, "max_turns must be at least 1, is 0"),
        ({"max_concurrent_episodes": 0}, "max_concurrent_episodes must be at least 1, is 0"),
        (
            {"max_concurrent_episodes": 4, "vllm_server_urls": ["http://127.0.0.1:1"]},
            "max_concurrent_episodes=4 has no effect on vLLM",
        ),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, is 1.5"),
        ({"top_entropy_quantile": 20}, "top_entropy_quantile must be above 0 and at most 1, is 20"),
        (
            {"rollout_correction": "token_tis", "vllm_importance_sampling_clip_max": 0.0},
            "vllm_importance_sampling_clip_max must be above 0, is 0.0",
        ),
        ({"num_generations_eval": 0}, "num_generations_eval must be at least 1, is 0"),
        ({"model_init_kwargs": "eager"}, "model_init_kwargs must be names with values.*; given is 'eager'"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs must be names with values"),
        ({"vllm_server_timeout": 5.0}, "vllm_server_timeout: 5.0 is used only with vllm_server_urls"),
        (
            {"vllm_group_port": 6000, "use_vllm": True},
            "vllm_group_port: 6000 is used only with vllm_server_urls",
        ),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1 has no effect"),
        ({"reference_model_name_or_path": "x"}, "reference_model_name_or_path: x is used only with beta"),
        ({"compaction": "summary"}, "compaction: summary is used only with compaction_tokens; set that"),
        ({"harness_seconds": 20.0}, "harness_seconds: 20.0 is used only with harness; set that"),
        ({"dynamic_sampling_rounds": 5}, "dynamic_sampling_rounds: 5 is used only with dynamic_sampling;"),
    ],
)
def test_settings_that_cannot_work(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)


@pytest.mark.parametrize(
    "name",
    [
        *("few_shot", "temperature", "top_p", "beta", "observation_characters", "protocol", "advantage"),
        *("max_turns", "replay", "alarm_window", "compaction", "harness_seconds", "greedy_eval"),
    ],
)
def test_an_empty_setting_that_needs_a_value(name, tmp_path):
    default = DBBenchGRPOConfig.__dataclass_fields__[name].default
    message = f"^{name} is empty; give it a value, or leave it out for its default, {default!r}\\.$"
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **{name: None})


def test_settings_that_may_be_empty(tmp_path):
    TrlParser(DBBenchGRPOConfig)  # it changes the types of the fields
    empty = dict.fromkeys(each.name for each in fields(DBBenchGRPOConfig) if each.default is None)
    given = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "num_generations_eval": None}
    DBBenchGRPOConfig(**empty | given)


def test_a_dataset_of_another_kind_is_refused(trainer_of, tiny_model, sqlite_database, tmp_path):
    with pytest.raises(TaskError, match=r"has the columns \['prompt'\], needed are 'prompt' and 'task'"):
        DBBenchGRPOTrainer(
            tiny_model,
            [OutcomeReward()],
            DBBenchGRPOConfig(
                output_dir=str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=8
            ),
            Dataset.from_list([{"prompt": [{"role": "user", "content": "?"}]}]),
            database=sqlite_database,
        )


def test_a_prompt_longer_than_the_context_is_named(tiny_model, sqlite_database, late_orders, tmp_path):
    from dataclasses import replace

    with pytest.raises(
        ConfigError, match=r"the prompt of task 'late-orders' has \d+ tokens, the model's context 2048"
    ):
        make_trainer(tiny_model, sqlite_database, [replace(late_orders, question="ß" * 4000)], tmp_path)


def test_a_model_without_a_chat_template_is_refused(tiny_model, sqlite_database, late_orders, tmp_path):
    model = tmp_path / "plain"
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(model)
    with pytest.raises(ConfigError, match=r"has no chat template\. Take an instruction-tuned model"):
        make_trainer(str(model), sqlite_database, [late_orders], tmp_path)


def test_a_template_of_trl_s_replaces_the_model_s(tiny_model, sqlite_database, late_orders, tmp_path):
    settings = {"protocol": "tools", "chat_template": "qwen3"}
    trainer = make_trainer(tiny_model, sqlite_database, [late_orders], tmp_path, **settings)
    prompt = trainer._tokenizer.decode(trainer.player.chat.prompt_ids([{"role": "user", "content": "?"}]))
    assert "You are provided with function signatures within <tools></tools> XML tags" in prompt
    trainer.save_model()
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == load_chat_template("qwen3")
    with pytest.raises(ConfigError, match="the chat_template 'qwen9' cannot be read"):
        make_trainer(tiny_model, sqlite_database, [late_orders], tmp_path, chat_template="qwen9")


def test_a_template_that_keeps_thoughts_is_saved(tiny_model, sqlite_database, late_orders, tmp_path):
    """A server of the trained model must render what it was trained on."""
    model = tmp_path / "qwen3"
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = load_chat_template("qwen3")
    tokenizer.save_pretrained(model)
    make_trainer(str(model), sqlite_database, [late_orders], tmp_path, protocol="text").save_model()
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == load_chat_template("qwen3_training")


def test_the_seams_of_trl_are_where_they_were():
    """What `DBBenchGRPOTrainer` overrides or sets; a change here means to read TRL's release notes."""
    arguments = {
        name: list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
        for name in ("_generate", "_generate_and_score_completions", "_calculate_rewards")
    }
    assert arguments == {
        "_generate": ["self", "prompts"],
        "_generate_and_score_completions": ["self", "inputs"],
        "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    }
    assert "self.rollout_func(prompts, self)" in inspect.getsource(GRPOTrainer._generate)
    assert 'extra_fields.pop("env_mask", None)' in inspect.getsource(GRPOTrainer._generate)
