"""Small trainings, and what tests look at in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback

from trl_dbbench import (
    OUTCOME_PRESETS,
    AdvantageBatch,
    DBBenchGRPOTrainer,
    OutcomeReward,
    load_tasks,
    to_dataset,
)

RECIPES = Path(__file__).parent.parent / "recipes"

LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}

ON_A_CPU = {
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}
"""Settings of a training that only a test looks at."""


def varied(completion_ids, **kwargs) -> list[float]:
    """A reward that differs from sample to sample, so that a random model gets gradients."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def any_answer(answer, gold) -> bool:
    """A grader of questions for models that answer, and seldom right."""
    return True


def varied_steps(episode, **kwargs) -> list[list[float]]:
    """A reward that differs from turn to turn, so that a random model gets gradients."""
    return [[sum(turn.completion.ids) % 7 / 7 for turn in e.turns] for e in episode]


SPLIT_ESTIMATORS = (
    *("rloo", "reinforce", "reinforce_pp", "weighted", "process_avg_unique", "token_wise", "turn", "state"),
    "vine",
)


def estimator_settings(name: str, rows: int) -> dict:
    """Two steps, so many rows on each rank."""
    return {
        "reward_funcs": [varied, varied_steps],
        "advantage": name,
        "advantage_args": {"baseline": "running"} if name == "reinforce" else None,
        "per_device_train_batch_size": rows,
        "max_steps": 2,
        "lora": False,  # whose dropout draws other numbers on two ranks
        "greedy_eval": "off",
        "learning_rate": 0.0,  # the same policy in the second step, whatever the first one's rounding
    }


def make_trainer(
    tiny_model,
    database,
    tasks,
    output_dir,
    *,
    lora=True,
    reward_funcs=None,
    trainer_class=DBBenchGRPOTrainer,
    held_out=None,
    **settings,
):
    defaults = {
        "output_dir": str(output_dir),
        "protocol": "tools",  # a random model's turns are invalid, which does not end a tools episode
        "max_turns": 3,
        "max_turn_tokens": 6,
        "max_completion_length": 512,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_steps": 2,
        "learning_rate": 1e-2,
        **ON_A_CPU,
        "seed": 7,
    }
    args = trainer_class.config_cls(**{**defaults, **settings})
    return trainer_class(
        model=tiny_model,
        reward_funcs=reward_funcs or [OutcomeReward(), varied],
        args=args,
        train_dataset=to_dataset(tasks, args.protocol, "Use the tools."),
        eval_dataset=to_dataset(held_out or tasks[:2], args.protocol, "Use the tools."),
        peft_config=LoraConfig(**LORA) if lora else None,
        database=database,
    )


def quickstart_trainer(
    database,
    output_dir: Path,
    *,
    more_rewards=(),
    trainer_class=DBBenchGRPOTrainer,
    lora=False,
    only=None,
    dataset=None,
    held_out=None,
    **settings,
) -> DBBenchGRPOTrainer:
    """The quickstart's model, which writes SQL that mostly works, on a few of its tasks, or only on tasks with this
    operation, or on another dataset, with held-out rows or without."""
    defaults = {
        "output_dir": str(output_dir),
        "max_turns": 3,
        "max_turn_tokens": 48,
        "max_completion_length": 128,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "learning_rate": 1e-4,
        **ON_A_CPU,
        "seed": 3,
    }
    tasks = [t for t in load_tasks(RECIPES / "tiny/train.jsonl") if only in (None, t.operation)][:40]
    args = trainer_class.config_cls(**{**defaults, **settings})
    return trainer_class(
        model=str(RECIPES / "tiny/model"),
        reward_funcs=[OUTCOME_PRESETS["greedy_then_grpo"], *more_rewards],
        args=args,
        train_dataset=dataset or to_dataset(tasks, args.protocol, "Work on the MySQL database."),
        eval_dataset=held_out,
        processing_class=AutoTokenizer.from_pretrained(RECIPES / "tiny/model"),
        peft_config=LoraConfig(**LORA) if lora else None,
        database=database,
    )


def adapter_of(trainer: DBBenchGRPOTrainer) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters() if "lora" in n}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def episodes_in(output_dir: str | Path) -> list[dict]:
    return [json.loads(line) for line in (Path(output_dir) / "episodes.jsonl").read_text().splitlines()]


def scored_batch(trainer: DBBenchGRPOTrainer) -> tuple[list[dict], dict[str, torch.Tensor]]:
    rows = [dict(trainer.train_dataset[0]) for _ in range(4)]
    trainer.model.train()
    return rows, trainer._generate_and_score_completions(rows)


@torch.no_grad()
def own_logprobs(trainer, batch) -> torch.Tensor:
    """What TRL's scoring says of the completions, (B, T)."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    training = trainer.model.training
    trainer.model.eval()  # a rollout is without dropout
    logprobs, _, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, attention, batch["completion_ids"].shape[1]
    )
    trainer.model.train(training)
    return logprobs


def sampled(batch) -> torch.Tensor:
    return (batch["completion_mask"] * batch["tool_mask"]).bool()


def distance(trainer, batch) -> torch.Tensor:
    """Of each sampled token's log-probability in the rollout from the trainer's, in nats."""
    return (own_logprobs(trainer, batch) - batch["sampling_per_token_logps"])[sampled(batch)].abs()


def train_and_look(trainer, look) -> list:
    """What `look` says of each step's batch before it is trained on."""
    score, seen = trainer._generate_and_score_completions, []

    def score_and_look(inputs):
        batch = score(inputs)
        seen.append(look(batch))
        return batch

    trainer._generate_and_score_completions = score_and_look
    trainer.train()
    return seen


def by_turn(batch: AdvantageBatch) -> torch.Tensor:
    """(N, T): the reward less the mean of its group of four, once for the first turn, twice for the second, ..."""
    groups = batch.weighted.view(-1, 4)
    centred = (groups - groups.mean(dim=1, keepdim=True)).flatten()
    return centred[:, None] * (batch.turns + 1)


class StopAfter(TrainerCallback):
    """Ends the process's training as a kill would: at a step, without a word to anyone."""

    def __init__(self, step: int):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def kill(trainer: DBBenchGRPOTrainer, at: int) -> None:
    """Train until the step `at` begins, and end there as a kill would."""
    trainer.add_callback(StopAfter(at))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
