"""Training with vLLM in the trainer's process, on the CPU and in fp32: what it generates is what the model says.

Needs an environment with vLLM and this package (`.ci/vllm-cpu` makes one); there `pytest -m vllm_in_process` runs it.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launching import QUICKSTART, RECIPE, TWO_RANKS, fork_ranks, seen
from peft import LoraConfig, PeftModel, get_peft_model
from required import lacking
from training import RECIPES, adapter_of, distance, episodes_in, make_trainer, train_and_look
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_dbbench import ConfigError, DBBenchGRPOTrainer, EngineError
from trl_dbbench.engines.base import EngineSettings, open_backend
from trl_dbbench.engines.policy import Policy, Precision, ServedPolicy, TrainedPolicy
from trl_dbbench.engines.shared_prompts import FOLLOWS
from trl_dbbench.engines.transformers.backend import TransformersBackend
from trl_dbbench.engines.vllm.loaded import loading_options, place_for
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Rules
from trl_dbbench.evaluation.evaluate import evaluate

pytestmark = pytest.mark.vllm_in_process

NOISE = 1e-4  # of fp32 log-probabilities, in nats
IN_PROCESS = EngineSettings(use_vllm=True)


@pytest.fixture(autouse=True)
def vllm(monkeypatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    if find_spec("vllm") is None:
        lacking("vllm_in_process", "vLLM is not in this environment; .ci/vllm-cpu makes one with it")


@pytest.fixture
def trainer_with(servable_model, sqlite_database, demo_tasks, tmp_path) -> Any:
    """A trainer with vLLM in its process, two prompts a step."""

    def make(tasks: Any = None, **settings: Any) -> DBBenchGRPOTrainer:
        settings = {
            "max_steps": 3,
            "per_device_train_batch_size": 8,
            "max_turn_tokens": 12,
            "use_vllm": True,
        } | settings
        return make_trainer(
            servable_model, sqlite_database, tasks or demo_tasks[:6], tmp_path / "run", **settings
        )

    return make


def test_three_steps_each_with_the_weights_before_its_update(trainer_with):
    """Ids and masks are those that are trained; log-probabilities those of the adapter as it was, and of no other."""
    trainer = trainer_with(use_rollout_logprobs=True)
    before = adapter_of(trainer)

    def look(batch):
        with trainer.model.disable_adapter():
            from_base = distance(trainer, batch)
        used = torch.equal(batch["old_per_token_logps"], batch["sampling_per_token_logps"])
        return distance(trainer, batch), from_base, used

    played = train_and_look(trainer, look)
    assert len(played) == 3
    for from_own, _, reaches_the_loss in played:
        assert len(from_own) > 200
        assert from_own.max() < NOISE
        assert reaches_the_loss
    from_base = [difference.max() for _, difference, _ in played]
    assert from_base[0] < NOISE, "a fresh LoRA adapter changes nothing"
    assert min(from_base[1:]) > 100 * NOISE
    assert any(not torch.equal(before[name], weight) for name, weight in adapter_of(trainer).items())


def test_a_program_plays(trainer_with):
    """The SDK's loop of `harness/sdk_loop.py`: its calls are answered by vLLM, each as it comes."""
    agent = f"{Path(__file__).parents[1] / 'harness' / 'sdk_loop.py'}:run"
    trainer = trainer_with(harness=agent, max_steps=2)
    with closing(trainer.backend):
        played = train_and_look(trainer, lambda batch: (distance(trainer, batch), trainer.batch.episodes))
    for from_own, episodes in played:
        assert len(from_own) > 100
        assert from_own.max() < NOISE
        assert {episode.status for episode in episodes} <= {"answered", "harness_fault", "turn_limit"}
        assert all("Error" not in (episode.output or "") for episode in episodes)


def test_summaries(trainer_with):
    """An episode is several sequences, whose log-probabilities are computed as a tree."""
    trainer = trainer_with(compaction_tokens=200, compaction="summary", max_steps=1)

    def look(batch):
        trainer._follows = batch[FOLLOWS]
        return distance(trainer, batch)

    with closing(trainer.backend):
        (from_own,) = train_and_look(trainer, look)
    assert all(episode.follows is not None for episode in trainer.batch.episodes)
    assert len(from_own) > 200
    assert from_own.max() < NOISE


def test_an_adapter_for_each_stage_of_a_stream(trainer_with, demo_tasks, tmp_path):
    """Held-out tasks of a stage that has ended are always played by its adapter, which vLLM loads for them."""
    selects, inserts = demo_tasks[:4], demo_tasks[15:17]
    trainer = trainer_with(
        tasks=[*selects, *inserts],
        held_out=[*demo_tasks[4:8], demo_tasks[17]],
        stream=["SELECT", "INSERT"],
        stage_steps=2,
        stage_adapters="each",
        lr_scheduler_type="constant",
        max_steps=-1,
    )
    with closing(trainer.backend):
        trainer.train()
    said: dict[tuple[int, str], list[list[str]]] = {}
    for episode in episodes_in(tmp_path / "run"):
        if episode["phase"] == "eval":
            turns = [turn["text"] for turn in episode["turns"]]
            said.setdefault((episode["step"], episode["operation"]), []).append(turns)
    assert {step for step, _ in said} == {0, 2, 4}
    assert said[0, "SELECT"] != said[2, "SELECT"] == said[4, "SELECT"]
    assert said[2, "INSERT"] != said[4, "INSERT"]


def test_log_probabilities_of_another_temperature_are_the_policys_too(trainer_with):
    trainer = trainer_with(temperature=0.7, max_steps=1)
    ((from_own, _),) = train_and_look(trainer, lambda batch: (distance(trainer, batch), None))
    assert from_own.max() < NOISE


def test_later_turns_find_the_earlier_ones_in_the_prefix_cache(trainer_with):
    trainer = trainer_with(max_steps=1, per_device_train_batch_size=16, num_generations=16)
    trainer.train()
    (logged,) = [each for each in trainer.state.log_history if "rollout/cached_tokens" in each]
    assert 0.5 < logged["rollout/cached_tokens"] < 1, "16 samples of one prompt, three turns each"


def test_the_training_draws_the_same_random_numbers_as_without_it(trainer_with):
    def numbers(**settings: Any) -> list[Any]:
        with closing(trainer_with(**settings).backend):
            return [torch.rand(3).tolist(), np.random.rand(), random.random()]

    assert numbers() == numbers(use_vllm=False)


def test_each_row_has_a_seed_of_its_own(trainer_with):
    """Samples of one prompt differ, and come again with the run's seed."""
    runs = []
    for _ in range(2):
        trainer = trainer_with(max_steps=1)
        with closing(trainer.backend):
            (ids,) = train_and_look(trainer, lambda batch: batch["completion_ids"][:, :4].tolist())
        runs.append(ids)
    assert len({tuple(ids) for ids in runs[0]}) > 4
    assert runs[0] == runs[1], "the first tokens, before rounding can tell"


def test_more_prompts_than_a_step_of_vllm_computes(trainer_with):
    """Seeded rows whose prompt was split would end vLLM's CPU build."""
    trainer = trainer_with(max_steps=1, per_device_train_batch_size=64, num_generations=32)
    with closing(trainer.backend):
        (from_own,) = train_and_look(trainer, lambda batch: distance(trainer, batch))
    assert len(from_own) > 64 * 12
    assert from_own.max() < NOISE


def test_a_resumed_run(trainer_with):
    with closing(trainer_with(max_steps=2, save_strategy="steps", save_steps=1).backend) as backend:
        backend._policy.trainer.train()
    trainer = trainer_with(max_steps=2, save_strategy="steps", save_steps=1)
    with closing(trainer.backend):
        trainer.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-1"))
    assert trainer.state.global_step == 2


@pytest.mark.parametrize(("scenario", "size"), [("own_vllm", 1), ("one_vllm", 2)])
def test_two_ranks(scenario: str, size: int, servable_model, tmp_path):
    """Each with an engine of its own, or as a tensor parallel group that steps one together."""
    for left in Path("/dev/shm").glob("*-cpushm_*"):
        left.unlink()  # vLLM's CPU build leaves them, and cannot make them anew
    status, output = fork_ranks(TWO_RANKS, scenario, servable_model, tmp_path)
    assert status == 0, output
    for rank in seen(tmp_path, scenario):
        assert rank["tensor_parallel_size"] == size
        assert len(rank["differences"]) == 2
        assert max(rank["differences"]) < NOISE


# --- what cannot work -----------------------------------------------------------------------------


def test_sigterm_ends_the_engine_before_the_process_group(tmp_path):
    """vLLM has groups of its own in it, and says so if they cannot be ended."""
    options = {
        "use_vllm": "true",
        "eval_strategy": "no",
        "eval_on_start": "false",
        "output_dir": tmp_path / "run",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--per_device_train_batch_size", "8"]
    with (tmp_path / "log").open("w+") as log:
        command = [sys.executable, str(RECIPE), "--config", str(QUICKSTART), *words]
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=tmp_path)
        said = tmp_path / "log"
        while "step 1 of 40" not in said.read_text():
            assert run.poll() is None, said.read_text()
            time.sleep(0.2)
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=200) == 128 + signal.SIGTERM, said.read_text()
    shown = said.read_text()
    assert "SIGTERM ended the run" in shown
    assert "Invalid process group" not in shown and "Traceback" not in shown, shown


def test_an_engine_that_dies_ends_the_run_with_one_line(trainer_with, monkeypatch):
    trainer = trainer_with()
    steps, step = iter(range(40)), trainer.backend._llm.llm_engine.step

    def dying() -> Any:
        if next(steps, None) is None:
            raise RuntimeError("CUDA error: an illegal memory access\nwas encountered")
        return step()

    monkeypatch.setattr(trainer.backend._llm.llm_engine, "step", dying)
    with pytest.raises(EngineError) as died:
        trainer.train()
    assert str(died.value).startswith(
        "vLLM failed in the rollout: RuntimeError: CUDA error: an illegal memory access was encountered "
    )
    assert "resume_from_checkpoint" in str(died.value)


def test_a_bug_in_an_episode_ends_the_rollout_and_leaves_nothing_in_the_engine(trainer_with, monkeypatch):
    trainer = trainer_with()

    def bug(text: str) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(type(trainer.player.chat.protocol), "parse", staticmethod(bug))
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert not trainer.backend._llm.llm_engine.has_unfinished_requests()


def test_full_weights_cannot_go_to_the_cpu_build(trainer_with):
    with pytest.raises(ConfigError, match=r"vLLM's CPU build cannot take new weights.*use_peft: true"):
        trainer_with(lora=False)


def test_restricted_draws_that_are_trained_on(trainer_with):
    with pytest.raises(ConfigError, match=r"top_p or top_k restrict the draw at a temperature of 0.7"):
        trainer_with(top_p=0.9, temperature=0.7, use_rollout_logprobs=True)


def test_a_model_longer_than_memory_has_room_for(trainer_with):
    with pytest.raises(ConfigError, match=r"vLLM cannot load '.*': .*keys that begin with vllm_"):
        trainer_with(vllm_max_model_length=1_000_000)


def test_an_adapter_goes_through_memory_where_those_of_all_ranks_fit(monkeypatch):
    free = shutil.disk_usage("/dev/shm").free
    assert place_for(1_000) == Path("/dev/shm")
    assert place_for(free) is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert place_for(free // 4) is None
    monkeypatch.setattr("os.access", lambda *_: False)
    assert place_for(1_000) is None


def test_the_revision_that_is_trained_is_the_one_that_plays(trainer_with):
    trainer = trainer_with(use_vllm=False, model_init_kwargs={"dtype": "float32"})
    assert loading_options(TrainedPolicy(trainer)) == {"dtype": "float32"}
    trainer.args.model_init_kwargs["revision"] = "v2"
    assert loading_options(TrainedPolicy(trainer)) == {"dtype": "float32", "revision": "v2"}


# --- without a trainer ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapters(servable_model, tmp_path_factory) -> list[str]:
    """Two adapters of one model that write other tokens than it and than one another.

    The second has other ranks and alphas in some layers."""
    folders = []
    patterns: dict[str, Any] = {"rank_pattern": {"v_proj": 11, "up_proj": 2}, "alpha_pattern": {"o_proj": 24}}
    for seed, more in ((1, {}), (2, patterns)):
        torch.manual_seed(seed)
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(servable_model),
            LoraConfig(r=4 * seed, target_modules="all-linear", **more),
        )
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3)
        folders.append(str(tmp_path_factory.mktemp("adapter")))
        model.save_pretrained(folders[-1])
    return folders


def test_one_engine_plays_the_base_and_each_adapter(servable_model, adapters, sqlite_database, demo_tasks):
    """Greedily, and as transformers does with the same weights."""
    tokenizer = AutoTokenizer.from_pretrained(servable_model)
    rules = Rules(max_turns=2, max_turn_tokens=12, max_completion_length=200)

    def ids_of(backend: Any, policy: Any) -> list[list[int]]:
        player = Player.of(
            tokenizer, sqlite_database, protocol="tools", eos_token_ids=policy.eos_token_ids, rules=rules
        )
        return [e.completion_ids for e in evaluate(demo_tasks[:4], player, backend, progress=False).episodes]

    served = ServedPolicy(str(servable_model), tokenizer, adapters=adapters, computes_in=Precision("float32"))
    played = {}
    with closing(open_backend(IN_PROCESS, served)) as backend:
        for adapter in (None, *adapters, None):
            served.adapter = adapter
            ids = ids_of(backend, served)
            assert played.setdefault(adapter, ids) == ids, "the base again after the adapters"
    assert len({str(ids) for ids in played.values()}) == 3
    for adapter, ids in played.items():
        model = AutoModelForCausalLM.from_pretrained(servable_model, dtype=torch.float32)
        if adapter is not None:
            model = PeftModel.from_pretrained(model, adapter)
        policy = Policy(model.eval(), tokenizer)
        assert ids_of(TransformersBackend(policy), policy) == ids


def test_the_commands_play_with_it(command, servable_model, adapters, tmp_path):
    """`eval` with an adapter, and `compare` of two with the base: one line for each arm."""
    tasks = ("--tasks", RECIPES / "demo_tasks.jsonl", "--limit", "3", "--database", "sqlite", "--use-vllm")
    short = ("--model", servable_model, "--max-turn-tokens", "8", "--max-turns", "2", "--dtype", "float32")
    code, out = command("eval", *short, "--adapter", adapters[0], *tasks)
    assert code == 0
    assert out.startswith("overall ")
    both = [word for adapter in adapters for word in ("--adapter", adapter)]
    code, out = command("compare", *short, *both, *tasks, "--json", tmp_path / "compared.json")
    assert code == 0
    names = [arm["name"] for arm in json.loads((tmp_path / "compared.json").read_text())["arms"]]
    assert names == ["base", *(Path(adapter).name for adapter in adapters)]
