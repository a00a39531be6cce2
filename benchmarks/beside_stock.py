"""A real model in our trainer and in stock TRL's, from one warm start: seconds to the same held-out accuracy.

    python benchmarks/beside_stock.py MODEL --out runs/beside [--agentbench FOLDER] [--steps 12]

MODEL is the folder or hub id of SmolLM2-135M-Instruct. It gets Qwen2.5's chat template, since TRL's tool
loop needs one whose calls it can read; both play the protocol `tools`. The warm start is made as in
`real_model.py` and merged into the weights, since the recipe of stock TRL has no key for an adapter to go
on with. Tasks, rewards, batch, LoRA, rates and sampling are the same; what TRL's loop lacks, such as a
limit on a turn's tokens, it does without. Neither evaluates as it trains: each checkpoint is played
afterwards. Seconds are the sum of the updates' `step_time`, which TRL logs.

What is there already is not done again, and a training that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import AutoPeftModelForCausalLM
from real_model import RECIPE, Chain, check_settings, line_of
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.chat_template_utils import qwen2_5_chat_template

SHARED = (
    *("use_peft", "lora_r", "lora_alpha", "lora_target_modules", "lora_dropout", "system_prompt", "database"),
    *("max_turns", "temperature", "reward_funcs", "outcome_preset", "num_generations", "lr_scheduler_type"),
    *("beta", "use_cpu", "gradient_checkpointing", "logging_steps", "report_to", "seed"),
)
"""Keys of `recipes/smollm2.yaml` that both trainers have."""

TURN_TOKENS, COMPLETION_TOKENS = 128, 600
SAMPLES = RECIPE["num_generations"]
LIMITS = (
    *("--max-turns", str(RECIPE["max_turns"]), "--max-turn-tokens", str(TURN_TOKENS)),
    *("--max-completion-length", str(COMPLETION_TOKENS)),
)

FORWARD_ROWS = 8
"""Rows of a forward in stock TRL; 16 take 22 GB."""


def arms(rows: int) -> dict[str, dict[str, Any]]:
    """Return what the recipes of both have alone: name -> keys; `rows` are the episodes of an update."""
    return {
        "ours": {
            "recipe": "grpo",
            "max_turn_tokens": TURN_TOKENS,
            "greedy_eval": "off",
            "per_device_train_batch_size": rows,
        },
        "stock": {
            "recipe": "environment",
            "per_device_train_batch_size": FORWARD_ROWS,
            "gradient_accumulation_steps": rows // FORWARD_ROWS,
        },
    }


class Beside(Chain):
    """The warm start by tool calls, and both trainers from there."""

    def with_template(self) -> None:
        """Give the model a chat template whose calls TRL can read."""

        def write(folder: Path) -> None:
            tokenizer = AutoTokenizer.from_pretrained(self.model)
            tokenizer.chat_template = qwen2_5_chat_template
            tokenizer.save_pretrained(folder)
            AutoModelForCausalLM.from_pretrained(self.model).save_pretrained(folder)

        self._becomes("model", write)

    def merge(self, adapter: Path) -> None:
        """Put an adapter into the model's weights."""

        def write(folder: Path) -> None:
            AutoTokenizer.from_pretrained(self.model).save_pretrained(folder)
            both = AutoPeftModelForCausalLM.from_pretrained(adapter, dtype=torch.float32)
            both.merge_and_unload().save_pretrained(folder)

        self._becomes("start", write)

    def _becomes(self, name: str, write: Callable[[Path], None]) -> None:
        """Go on with another model; what was stopped half-way is written again."""
        if not (self.out / name).exists():
            write(self.out / f"{name}.partial")
            (self.out / f"{name}.partial").rename(self.out / name)
        self.model = str(self.out / name)

    def arm(self, name: str, options: dict[str, Any]) -> Path:
        """Train by one of the trainers; return the run's folder."""
        recipe = {key: RECIPE[key] for key in SHARED} | options
        recipe |= {"tasks": str(self.out / "grpo_tasks.jsonl"), "protocol": "tools"}
        recipe |= {"max_completion_length": COMPLETION_TOKENS}
        file = self.out / f"{name}.yaml"
        file.write_text(yaml.safe_dump(recipe, sort_keys=False))
        return self.train(name, str(file.resolve()))


def seconds(checkpoint: Path) -> float:
    """Return how long the updates up to a checkpoint took, rollouts included."""
    log = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return sum(each.get("step_time", 0.0) for each in log)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("runs/beside"))
    parser.add_argument("--agentbench", type=Path, help="standard*.jsonl in it is learned from")
    parser.add_argument("--database", default="auto", help="to measure on")
    parser.add_argument("--dtype", default=RECIPE["dtype"], choices=("float32", "bfloat16"))
    parser.add_argument("--sft-steps", type=int, default=60, help="updates of the warm start")
    parser.add_argument("--prompts", type=int, default=4, help=f"of an update, {SAMPLES} samples each")
    parser.add_argument("--steps", type=int, default=12, help="updates of each trainer")
    parser.add_argument("--save-steps", type=int, default=4, help="updates from one checkpoint to the next")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--arms", nargs="+", choices=list(arms(0)), default=list(arms(0)))
    given = parser.parse_args()
    chain = Beside(given.model, given.out, given.agentbench, given.database, given.dtype, given.sft_steps)
    settings = {
        name: str(value) for name, value in vars(given).items() if name not in ("out", "arms", "steps")
    }
    check_settings(given.out, settings)
    chain.tasks()
    chain.with_template()
    tasks = ("--tasks", str(given.out / "sft_tasks.jsonl"), "--protocol", "tools")
    adapter = chain.train("sft", "smollm2_sft.yaml", *tasks, "--max_steps", str(given.sft_steps))
    chain.merge(adapter)
    held_out = given.out / "held_out.jsonl"
    played = ("--protocol", "tools", "--system-prompt", RECIPE["system_prompt"])
    start = chain.play("start", held_out, "--model", chain.model, *played, *LIMITS)
    print(line_of("start", {"held_out": start}, None), flush=True)
    options = {"max_steps": given.steps, "save_steps": given.save_steps, "learning_rate": given.learning_rate}
    for name in given.arms:
        folder = chain.arm(name, options | {"warmup_steps": 2} | arms(given.prompts * SAMPLES)[name])
        for update in range(given.save_steps, given.steps + 1, given.save_steps):
            checkpoint = folder / f"checkpoint-{update}"
            right = chain.play(f"{name}-{update}", held_out, checkpoint, *LIMITS)
            line = line_of(f"{name}, {update} updates", {"held_out": right}, {"held_out": start})
            print(f"{line} after {seconds(checkpoint):.0f} s", flush=True)


if __name__ == "__main__":
    main()
