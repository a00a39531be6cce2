"""Peak memory of a training on a CPU, measured and as it is computed beforehand.

    python benchmarks/memory.py --model FOLDER [--shapes 1x4x100x60 ...] [--dtypes float32] [--only lora]

A shape is prompts x samples x tokens of a prompt x tokens of a completion. Each case is a training of three
steps in a process of its own: LoRA or full weights, with gradient checkpointing and without. The completions
are random tokens of the wanted length, so that no time goes into sampling.

Prints the peak of the resident memory while it trains (the kernel's VmHWM), what
`trl_dbbench/training/memory.py` computes, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

SHAPES = ("1x4x100x60", "2x4x150x60", "4x2x150x40")
STEPS = 3
LORA_RANK = 32
TASKS = Path(__file__).parents[1] / "recipes" / "tiny" / "train.jsonl"


class RandomTokens:
    """A backend and engine whose turns are random tokens, as many as are allowed."""

    detached = collective = False
    contexts = ()

    def __init__(self, args: Any, policy: Any):
        self.policy = policy

    @contextlib.contextmanager
    def engine(self) -> Iterator[RandomTokens]:
        yield self

    def close(self) -> None:
        """Nothing to do."""

    async def generate(self, request: Any) -> Any:
        from trl_dbbench.episode.types import Completion

        await asyncio.sleep(0)
        ids = random.Random(request.seed).choices(range(100, 1_000), k=request.max_new_tokens)
        return Completion(ids, [-1.0] * len(ids))

    def serve(self, episodes: Sequence[Future]) -> None:
        wait(episodes)


def reward(completion_ids: list[list[int]], **others: object) -> list[float]:
    """A reward that differs from episode to episode."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def measure(case: dict[str, Any]) -> dict[str, float]:
    """Train, and return the peak and what was computed, in bytes."""
    import torch
    from peft import LoraConfig
    from transformers import AutoConfig, AutoTokenizer

    from trl_dbbench import DBBenchGRPOConfig, DBBenchGRPOTrainer, load_tasks, open_database, to_dataset
    from trl_dbbench.training.memory import Batch, Load, Sizes, needed

    torch.set_num_threads(1)
    prompts, samples, prompt, completion = (int(each) for each in case["shape"].split("x"))
    bf16 = case["dtype"] == "bfloat16"
    tokenizer = AutoTokenizer.from_pretrained(case["model"])
    task = load_tasks(TASKS)[0]
    padding = prompt - len(tokenizer(task.question)["input_ids"]) - 40
    tasks = [
        replace(task, id=f"task {number}", question=f"{task.question}{' a' * (padding - number)}")
        for number in range(prompts)
    ]
    adapter = (
        LoraConfig(r=LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM") if case["lora"] else None
    )
    with open_database("sqlite") as database, tempfile.TemporaryDirectory() as folder:
        trainer = DBBenchGRPOTrainer(
            model=case["model"],
            reward_funcs=reward,
            args=DBBenchGRPOConfig(
                output_dir=folder,
                engine="memory.RandomTokens",
                max_turns=1,
                max_turn_tokens=completion,
                max_completion_length=completion,
                num_generations=samples,
                per_device_train_batch_size=prompts * samples,
                max_steps=STEPS,
                gradient_checkpointing=case["checkpointing"],
                model_init_kwargs={"dtype": case["dtype"]},
                learning_rate=1e-5,
                use_cpu=True,
                bf16=bf16,
                greedy_eval="off",
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=to_dataset(tasks, system_prompt="Work."),
            processing_class=tokenizer,
            peft_config=adapter,
            database=database,
        )
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here, without loading
        trainer.train()
        played = trainer.batch.episodes
    sizes = Sizes.of(AutoConfig.from_pretrained(case["model"]), adapter)
    batch = Batch(
        rows=len(played),
        prompts=prompts,
        prompt=max(len(each.prompt_ids) for each in played),
        completion=completion,
        shared=True,
    )
    load = Load(
        value_bytes=2 if bf16 else 4,
        computed_bytes=2 if bf16 else 4,
        lora=case["lora"],
        update=batch,
        checkpointing=case["checkpointing"],
        on_cpu=True,
    )
    return {"measured": status("VmHWM"), "computed": needed(sizes, load)["total"]}


def status(key: str) -> int:
    """Return a size that the kernel knows of this process, in bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{key}:")[2].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--dtypes", nargs="+", default=("float32", "bfloat16"))
    parser.add_argument("--only", choices=("lora", "full"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(json.loads(args.case))))
        return
    print("dtype     trained  checkpointing  shape         measured  computed  ratio")
    trained = ("lora", "full") if args.only is None else (args.only,)
    for dtype, what, checkpointing, shape in product(args.dtypes, trained, (True, False), args.shapes):
        case = {"model": args.model, "dtype": dtype, "lora": what == "lora", "shape": shape}
        case["checkpointing"] = checkpointing
        command = [sys.executable, __file__, "--model", args.model, "--case", json.dumps(case)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        measured, computed = found["measured"] / 1e9, found["computed"] / 1e9
        print(
            f"{dtype:<8}  {what:<7}  {'on' if checkpointing else 'off':<13}  {shape:<12}  "
            f"{measured:>5.2f} GB  {computed:>5.2f} GB  {computed / measured:>5.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
