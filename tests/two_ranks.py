"""What two ranks do in test_ranks.py: `accelerate launch ... two_ranks.py SCENARIO,SCENARIO MODEL FOLDER`.

Each scenario is played by both ranks and returns what the test is to see of its rank, for FOLDER/SCENARIO-RANK.json.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from fakes import BrokenDatabase
from torch.distributed.tensor import DTensor
from training import (
    SPLIT_ESTIMATORS,
    adapter_of,
    by_turn,
    distance,
    estimator_settings,
    make_trainer,
    quickstart_trainer,
    train_and_look,
    varied,
)
from transformers import TrainerCallback
from vllm_servers import FileClient, sent_by

from trl_dbbench import (
    DatabaseError,
    DBBenchGRPOTrainer,
    DBBenchPPOTrainer,
    EnvironmentFault,
    Task,
    load_tasks,
    open_database,
    to_dataset,
)
from trl_dbbench.advantages.registry import ADVANTAGES
from trl_dbbench.database import Database, Limits, Sandbox
from trl_dbbench.database.embedded.database import SQLiteDatabase
from trl_dbbench.engines import shared_prompts
from trl_dbbench.engines.transformers.engine import TransformersEngine
from trl_dbbench.engines.vllm.engine import VLLMEngine
from trl_dbbench.episode.types import Completion, Request
from trl_dbbench.runs.checkpoints import find_checkpoint
from trl_dbbench.training.dynamic_sampling import Batch

TINY = Path(__file__).parents[1] / "recipes" / "tiny"
TASKS = load_tasks(Path(__file__).parents[1] / "recipes" / "demo_tasks.jsonl")[:4]


def shard_on_cpus() -> None:
    """accelerate shards for accelerators only, though nothing in PyTorch's FSDP2 needs one."""
    original = AcceleratorState.__init__

    def init(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type = PartialState().distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = init


def error_of(action: Callable[[], object]) -> str:
    """What ends it on this rank."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


# --- scenarios ------------------------------------------------------------------------------------


def sharded(model: str, folder: Path, rank: int) -> dict:
    """One turn on rank 0, three on rank 1; a greedy run on each."""
    with open_database("sqlite") as database:
        trainer = make_trainer(
            *(model, database, TASKS, folder),
            **{"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 2},
            **{"save_strategy": "steps", "save_steps": 1},
        )
        rules = replace(trainer.player.rules, max_turns=(1, 3)[rank])
        trainer.player = replace(trainer.player, rules=rules)
        trainer.train()
        trainer.save_model()
        state = trainer.accelerator.get_state_dict(trainer.model)
    return {
        "sharded": all(isinstance(weight, DTensor) for weight in trainer.model.parameters()),
        "steps": trainer.state.global_step,
        "weights": {name: float(weight.double().sum()) for name, weight in state.items() if "lora" in name},
    }


class Refusing(BrokenDatabase):
    """Makes no sandbox, and to wait would not help."""

    def fresh_sandbox(self, task: Task) -> Sandbox:
        raise EnvironmentFault("1005: cannot create table", final=True)


def stays_away(model: str, folder: Path, rank: int) -> dict:
    """Rank 1's database is waited for in vain."""
    with open_database("sqlite") as database:
        mine = BrokenDatabase(at_start=True) if rank else database
        return {"error": error_of(make_trainer(model, mine, TASKS, folder, save_strategy="steps").train)}


def refuses(model: str, folder: Path, rank: int) -> dict:
    """Rank 1's database opens no sandbox; rank 0's does."""
    with open_database("sqlite") as database:
        mine = Refusing(at_start=True) if rank else database
        trainer = make_trainer(model, mine, TASKS, folder, beta=0.04)
        before = adapter_of(trainer)
        trainer.train()
        after = adapter_of(trainer)
    return {
        "steps": trainer.state.global_step,
        "finite": all(bool(weight.isfinite().all()) for weight in after.values()),
        "moved": any(not torch.equal(after[name], before[name]) for name in before),
        "weights": {name: float(weight.double().sum()) for name, weight in after.items()},
        "logged": trainer.state.log_history[0],
    }


def one_group(model: str, folder: Path, rank: int) -> dict:
    """A group of four samples, two on each rank, whose advantages differ by turn."""
    ADVANTAGES["by_turn"] = by_turn
    with open_database("sqlite") as database:
        trainer = make_trainer(
            *(model, database, TASKS, folder),
            **{"reward_funcs": [varied], "advantage": "by_turn"},
            **{"per_device_train_batch_size": 2, "max_steps": 1},
        )
        (trained,) = train_and_look(trainer, lambda batch: batch["advantages"] * batch["tool_mask"])
    return {"trained": [sorted({round(value, 4) for value in row if value}) for row in trained.tolist()]}


def chosen_prompts(model: str, folder: Path, rank: int) -> dict:
    """Three groups of four samples on all ranks, chosen at the frontier; flat ones make room. MODEL is not used."""
    settings: dict[str, Any] = {
        **{"dynamic_sampling": True, "task_sampling": "frontier", "learning_rate": 0.0, "max_steps": 3},
        "per_device_train_batch_size": 12 // PartialState().num_processes,
    }
    trained: list[list[str]] = []
    with open_database("sqlite") as database:
        trainer = quickstart_trainer(database, folder, **settings)
        record = trainer._record

        def look(batch: Batch) -> None:
            trained.append([episode.task.id for episode in batch.episodes])
            record(batch)

        trainer._record = look
        trainer.train()
        counts = trainer.chooser.order.state_dict()
    return {"trained": trained, "counts": counts}


def stages(model: str, folder: Path, rank: int) -> dict:
    """Two stages of two updates, with replay and an adapter for each; held-out rows are those of both. MODEL is not
    used."""
    operations = ["SELECT", "DELETE"]
    settings: dict[str, Any] = {
        **{"stream": operations, "stage_steps": 2, "replay": 0.5, "stage_adapters": "each", "lora": True},
        "lr_scheduler_type": "constant",
        **{"learning_rate": 0.0, "eval_on_start": True, "eval_strategy": "steps", "eval_steps": 100},
        "per_device_train_batch_size": 8 // PartialState().num_processes,
        "per_device_eval_batch_size": 3,
    }
    rows = {}
    for name, number in {"train": 10, "test": 4}.items():
        tasks = load_tasks(TINY / f"{name}.jsonl")
        chosen = [task for each in operations for task in [t for t in tasks if t.operation == each][:number]]
        rows[name] = to_dataset(chosen, "text", "Work on the MySQL database.")
    with open_database("sqlite") as database:
        trainer = quickstart_trainer(
            database, folder, dataset=rows["train"], held_out=rows["test"], **settings
        )
        trainer.train()
        assert trainer.stream is not None
        return trainer.stream.state_dict()


def few_shot(model: str, folder: Path, rank: int) -> dict:
    """A group of four samples on both ranks; right episodes of both join the memory. MODEL is not used."""
    settings: dict[str, Any] = {
        **{"few_shot": 3, "few_shot_by": "random", "few_shot_update": True},
        **{"few_shot_memory": str(folder.parent / "memory.jsonl"), "grader": "training.any_answer"},
        **{"only": "SELECT", "per_device_train_batch_size": 2, "max_steps": 2},
    }
    with open_database("sqlite") as database:
        trainer = quickstart_trainer(database, folder, **settings)
        prompts = train_and_look(trainer, lambda batch: batch["prompt_ids"].tolist())
        memory = [example.id for example in trainer.chooser.shots.memory]
    return {"prompts": prompts, "memory": memory}


def without_dropout(trainer: DBBenchGRPOTrainer) -> DBBenchGRPOTrainer:
    """Of which each rank would draw its own."""
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return trainer


def ppo(model: str, folder: Path, rank: int, critic: str = "head") -> dict:
    """What is trained of policy and critic, and each row's advantages, of four rows a step."""
    rows = 4 // PartialState().num_processes
    with open_database("sqlite") as database:
        trainer = make_trainer(
            *(model, database, TASKS, folder),
            **{"trainer_class": DBBenchPPOTrainer, "reward_funcs": [varied], "critic": critic},
            **{"per_device_train_batch_size": rows, "num_generations": 1, "max_steps": 3},
            **{"critic_learning_rate": 1e-2, "learning_rate": 1e-3, "greedy_eval": "off"},
        )
        trained = train_and_look(
            without_dropout(trainer), lambda batch: batch["advantages"] * batch["tool_mask"]
        )
    return {
        "advantages": [[row.tolist() for row in step] for step in trained],
        "policy": {name: weight.tolist() for name, weight in adapter_of(trainer).items()},
        "critic": {name: weight.tolist() for name, weight in trainer.critic.trained.items()},
    }


def ppo_model(model: str, folder: Path, rank: int) -> dict:
    return ppo(model, folder, rank, "model")


def prime(model: str, folder: Path, rank: int) -> dict:
    """What is trained of policy and pi_phi, of one group of four rows a step."""
    rows = 4 // PartialState().num_processes
    with open_database("sqlite") as database:
        trainer = make_trainer(
            *(model, database, TASKS, folder),
            **{"reward_funcs": [varied], "advantage": "prime", "learning_rate": 1e-3, "greedy_eval": "off"},
            **{"advantage_args": {"beta": 0.5, "learning_rate": 0.01}},
            **{"per_device_train_batch_size": rows, "max_steps": 3},
        )
        trained = train_and_look(
            without_dropout(trainer), lambda batch: batch["advantages"] * batch["tool_mask"]
        )
        adapter = trainer.advantage.state_dict()["adapter"]
    return {
        "advantages": [[row.tolist() for row in step] for step in trained],
        "policy": {name: weight.tolist() for name, weight in adapter_of(trainer).items()},
        "prime": {name: weight.tolist() for name, weight in adapter.items()},
    }


def estimators(model: str, folder: Path, rank: int) -> dict:
    """Each estimator on three groups of four, of which the second lies on both ranks."""
    trained = {}
    for name in SPLIT_ESTIMATORS:
        with open_database("sqlite") as database:
            trainer = make_trainer(
                *(model, database, TASKS, folder / name),
                **estimator_settings(name, rows=6),
            )
            train_and_look(trainer, lambda batch: None)
        trained[name] = len(trainer._logs["advantages"])
    return trained


def shares_prompts(model: str, folder: Path, rank: int) -> dict:
    """Trains two steps by each forward; unequal episodes on the ranks."""
    seen: dict[str, Any] = {}
    for way in ("auto", "off"):
        with open_database("sqlite") as database:
            trainer = make_trainer(
                *(model, database, TASKS, folder / way),
                **{"shared_prefix": way, "reward_funcs": [varied], "lora": False, "greedy_eval": "off"},
                **{"optim": "sgd", "learning_rate": 0.1, "beta": 0.05, "max_turns": (1, 3)[rank]},
            )
            with patch.object(shared_prompts, "lay_out", wraps=shared_prompts.lay_out) as laid_out:
                trainer.train()
            # under ZeRO-3 the first rank gets them
            weights = trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}
        norms = {name: float(weight.double().norm()) for name, weight in weights.items()}
        seen[way] = {"forwards": laid_out.call_count, "norms": norms}
    return seen


def in_parts(model: str, folder: Path, rank: int) -> dict:
    """Trains two steps of two micro-batches, whole and in parts: two rows at a time fit on rank 0, one on rank 1."""
    seen: dict[str, Any] = {}
    for way, bound in (("whole", 10**6), ("divided", 1150)):
        with open_database("sqlite") as database:
            trainer = make_trainer(
                *(model, database, TASKS, folder / way),
                **{"shared_prefix": "off", "reward_funcs": [varied], "lora": False, "greedy_eval": "off"},
                **{"optim": "sgd", "learning_rate": 0.1, "beta": 0.05, "max_turns": (1, 3)[rank]},
                **{"gradient_accumulation_steps": 2, "max_tokens_per_forward": bound},
            )
            passes: list[int] = []

            def count(module: Any, args: Any, given: dict, passes: list[int] = passes) -> None:
                if torch.is_grad_enabled() and "labels" in given:
                    passes.append(given["input_ids"].numel())

            trainer.model.register_forward_pre_hook(count, with_kwargs=True)
            trainer.train()
            # under ZeRO-3 the first rank gets them
            weights = trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}
        norms = {name: float(weight.double().norm()) for name, weight in weights.items()}
        logged = {name: trainer.state.log_history[1][name] for name in ("loss", "grad_norm", "kl", "entropy")}
        seen[way] = {"passes": passes, "norms": norms, "logged": logged}
    return seen


def played_by_a_program(model: str, folder: Path, rank: int) -> dict:
    """A group of four samples on both ranks, by our own rollout, by the SDK's loop that speaks its protocol, and by
    one that leaves out turns, so that each episode is several sequences."""
    agent = f"{Path(__file__).parent / 'harness' / 'sdk_loop.py'}:run"
    seen = {}
    ways: dict[str, dict[str, Any]] = {
        "own": {},
        "program": {"harness": agent},
        "forgets": {"compaction_tokens": 1},
    }
    for way, settings in ways.items():
        with open_database("sqlite") as database:
            trainer = make_trainer(
                *(model, database, TASKS, folder / way),
                **{"reward_funcs": [varied], "greedy_eval": "off", "per_device_train_batch_size": 2},
                **{"max_turn_tokens": 12, "max_steps": 2, **settings},
            )
            trainer.train()
            several = sum(episode.follows is not None for episode in trainer.batch.episodes)
        weights = {name: float(weight.double().sum()) for name, weight in adapter_of(trainer).items()}
        seen[way] = {"weights": weights, "several": several}
    return seen


def reward_fails(model: str, folder: Path, rank: int) -> dict:
    """In the second step, on rank 1."""

    def picky(completion_ids, trainer_state, **kwargs) -> list[float]:
        if rank == 1 and trainer_state.global_step == 1:
            raise KeyError("no such column")
        return varied(completion_ids)

    with open_database("sqlite") as database:
        trainer = make_trainer(model, database, TASKS, folder, reward_funcs=[varied, picky])
        return {"error": error_of(trainer.train), "steps": trainer.state.global_step}


def engine_fails(model: str, folder: Path, rank: int) -> dict:
    def out_of_memory(self, *requests):
        raise MemoryError("16 GiB")

    with open_database("sqlite") as database:
        trainer = make_trainer(model, database, TASKS, folder)
        with patch.object(TransformersEngine, "complete", out_of_memory) if rank == 0 else nullcontext():
            return {"error": error_of(trainer.train)}


def episode_fails(model: str, folder: Path, rank: int) -> dict:
    """A bug, not a fault of the database."""
    with open_database("sqlite") as database:
        if rank == 1:
            database.sandbox = lambda task: 1 // 0  # type: ignore[method-assign, assignment]
        return {"error": error_of(make_trainer(model, database, TASKS, folder).train)}


def opening_fails(model: str, folder: Path, rank: int) -> dict:
    refused = patch("trl_dbbench.database.open._start", side_effect=DatabaseError("no route to host"))
    try:
        with refused if rank == 1 else nullcontext(), open_database("sqlite"):
            return {"error": "none"}
    except DatabaseError as error:
        return {"error": str(error)}


def opening_fails_elsewhere(model: str, folder: Path, rank: int) -> dict:
    """Rank 0 starts a server, which rank 1 cannot reach from another machine."""
    host = patch("socket.gethostname", return_value=("alpha", "beta")[rank])
    opened: Any = (SQLiteDatabase(Limits()), DatabaseError("2003: cannot connect."))[rank]
    with host, patch("trl_dbbench.database.open._start", side_effect=[opened]):
        return {"error": error_of(lambda: open_database("local").__enter__())}


def sees_another_checkpoint(model: str, folder: Path, rank: int) -> dict:
    """Each machine has a folder of its own under the same name."""
    if rank == 0:
        (folder / "0" / "checkpoint-3").mkdir(parents=True)
        (folder / "0" / "checkpoint-3" / "trainer_state.json").write_text("{}")
        (folder / "0" / "checkpoint-3" / "rng_state_0.pth").touch()
    with patch("socket.gethostname", return_value=("alpha", "beta")[rank]):
        return {"error": error_of(lambda: find_checkpoint(folder / str(rank), True))}


def train_and_compare(trainer: DBBenchGRPOTrainer) -> list[float]:
    """Of each step, how far the log-probabilities of this rank's episodes are from the trained model's, in nats."""
    return train_and_look(trainer, lambda batch: float(distance(trainer, batch).max()))


def sends_full_weights(model: str, folder: Path, rank: int) -> dict:
    """Sharded, and gathered for a real vLLM server before each rollout."""
    with sent_by(FileClient), open_database("sqlite") as database:
        trainer = full_weights_trainer(model, database, folder, max_steps=3)
        # vLLM on a CPU packs a head that is tied to the embeddings, and reloading leaves the packed one as it was
        trainer.model.get_input_embeddings().requires_grad_(False)
        gate = trainer.model.model.layers[0].mlp.gate_proj
        before = gate.weight.detach().clone()
        differences = train_and_compare(trainer)
        moved = float((gate.weight.full_tensor() - before).abs().max())
    return {"sharded": isinstance(gate.weight, DTensor), "differences": differences, "moved": moved}


def loads_adapters(model: str, folder: Path, rank: int) -> dict:
    """Each rank has the whole model; rank 0 loads its adapter into a real vLLM server for both."""
    with open_database("sqlite") as database:
        trainer = make_trainer(
            model, database, TASKS, folder, max_steps=3, vllm_server_urls=[os.environ["VLLM_SERVER"]]
        )
        before = adapter_of(trainer)
        differences = train_and_compare(trainer)
        after = adapter_of(trainer)
    return {
        "differences": differences,
        "moved": max(float((after[name] - before[name]).abs().max()) for name in before),
    }


def own_vllm(model: str, folder: Path, rank: int, **settings: Any) -> dict:
    """Each rank has vLLM in its process, for its own episodes."""
    with open_database("sqlite") as database:
        trainer = make_trainer(model, database, TASKS, folder, max_steps=2, use_vllm=True, **settings)
        differences = train_and_compare(trainer)
    parallel = trainer.backend._llm.llm_engine.vllm_config.parallel_config.tensor_parallel_size
    return {"differences": differences, "tensor_parallel_size": parallel}


def one_vllm(model: str, folder: Path, rank: int) -> dict:
    """Both ranks share one, each with half of every layer."""
    return own_vllm(model, folder, rank, vllm_tensor_parallel_size=2)


class LostOnTheWay(FileClient):
    """The server of the second rollout is lost when some of the weights have been sent."""

    sent = 0

    def update_named_params(self, metadata: list, named_params: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.sent += 1
        if self.sent == 2:
            next(named_params)
            next(named_params)
            raise ConnectionError("reset by peer")
        super().update_named_params(metadata, named_params)


def server_lost_on_the_way(model: str, folder: Path, rank: int) -> dict:
    """Rank 0 sends the sharded weights, and rank 1 helps to gather them."""
    with sent_by(LostOnTheWay), open_database("sqlite") as database:
        trainer = full_weights_trainer(model, database, folder)
        return {"error": error_of(trainer.train), "steps": trainer.state.global_step}


def rollout_fails_beside_sharded_weights(model: str, folder: Path, rank: int) -> dict:
    async def out_of_memory(self: VLLMEngine, request: Request) -> Completion:
        raise MemoryError("16 GiB")

    failing = patch.object(VLLMEngine, "generate", out_of_memory) if rank == 1 else nullcontext()
    with sent_by(FileClient), open_database("sqlite") as database, failing:
        return {"error": error_of(full_weights_trainer(model, database, folder).train)}


class WithoutGPU(FileClient):
    """As TRL's client where rank 0 has none."""

    def init_communicator(self, device: object = None) -> None:
        raise RuntimeError("no CUDA device.")


def cannot_send_full_weights(model: str, folder: Path, rank: int) -> dict:
    with sent_by(WithoutGPU), open_database("sqlite") as database:
        return {"error": error_of(lambda: full_weights_trainer(model, database, folder))}


def full_weights_trainer(model: str, database: Database, folder: Path, **settings: Any) -> DBBenchGRPOTrainer:
    settings |= {"learning_rate": 1e-3, "vllm_server_urls": [os.environ["VLLM_SERVER"]]}
    return make_trainer(model, database, TASKS, folder, lora=False, **settings)


class Crash(TrainerCallback):
    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a bug outside of the rollout")


def crash(model: str, folder: Path, rank: int) -> dict:
    """Rank 1 ends where nothing is agreed on, while rank 0, which owns the server, is in the next collective."""
    with open_database("local") as database:
        trainer = make_trainer(model, database, TASKS, folder)
        if rank == 1:
            trainer.add_callback(Crash())
        trainer.train()
    return {}


if __name__ == "__main__":
    names, model, folder = sys.argv[1].split(","), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    shard_on_cpus()
    rank = PartialState(cpu=True).process_index
    for name in names:
        scenario: Callable[[str, Path, int], dict] = globals()[name]
        seen = scenario(model, folder / name, rank)
        (folder / f"{name}-{rank}.json").write_text(json.dumps(seen))
    PartialState().wait_for_everyone()
    PartialState().destroy_process_group()
    gc.collect()  # the trainers, which hold the group beyond its end; see trl_dbbench.utils.ranks.end
