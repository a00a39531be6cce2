"""Memory and time of an update by the tokens of a forward pass (`max_tokens_per_forward`).

    python benchmarks/updates.py MODEL [--bounds auto 1024 none] [--prompts 4] [--samples 8] [--prompt 300]
        [--completion 200] [--equal 0] [--rounds 3] [--full] [--float32] [--checkpointing]

One micro-batch of random tokens, with LoRA (r 32, all linear layers) unless `--full`, in bfloat16 unless
`--float32`. Completions have from half of `--completion` tokens to all. Each bound has a process of its own,
which prints the most resident memory, that before the update, and the seconds of the fastest round: as they
pass, and the processors', which neighbours disturb less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig

from trl_dbbench import DBBenchGRPOConfig, DBBenchGRPOTrainer, OutcomeReward, open_database, to_dataset
from trl_dbbench.tasks import load_tasks

DEMO = Path(__file__).parents[1] / "recipes" / "demo_tasks.jsonl"


def resident() -> float:
    """Return the most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def micro_batch(args: argparse.Namespace, vocabulary: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    rows, width = args.prompts * args.samples, args.completion
    prompts = torch.randint(10, vocabulary, (args.prompts, args.prompt), generator=random)
    lengths = torch.randint(width // 2, width + 1, (rows, 1), generator=random)
    mask = (torch.arange(width) < lengths).long()
    advantages = torch.randn(rows, generator=random)
    advantages[: args.equal * args.samples] = 0.0
    return {
        "prompt_ids": prompts.repeat_interleave(args.samples, dim=0),
        "prompt_mask": torch.ones(rows, args.prompt).long(),
        "completion_ids": torch.randint(10, vocabulary, (rows, width), generator=random),
        "completion_mask": mask,
        "tool_mask": mask,
        "advantages": advantages,
        "num_items_in_batch": mask.sum(),
    }


def measure(args: argparse.Namespace, bound: str) -> None:
    with tempfile.TemporaryDirectory() as folder, open_database("sqlite") as database:
        settings = DBBenchGRPOConfig(
            **{"output_dir": folder, "report_to": "none", "use_cpu": True, "bf16": not args.float32},
            **{"model_init_kwargs": {"dtype": "float32" if args.float32 else "bfloat16"}},
            **{"per_device_train_batch_size": 8, "gradient_checkpointing": args.checkpointing},
            max_tokens_per_forward=int(bound) if bound.isdecimal() else None,
        )
        adapter = LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM")
        tasks = load_tasks(DEMO)[:1]
        trainer = DBBenchGRPOTrainer(
            *(args.model, [OutcomeReward()], settings, to_dataset(tasks)),
            peft_config=None if args.full else adapter,
            database=database,
        )
        if bound == "auto":
            trainer.forwards.settle()
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        batch = micro_batch(args, trainer.model.config.vocab_size)
        before, passed, used = resident(), [], []
        for _ in range(args.rounds):
            start, cpu = time.perf_counter(), time.process_time()
            trainer.compute_loss(trainer.model, batch).backward()
            passed.append(time.perf_counter() - start)
            used.append(time.process_time() - cpu)
    memory = f"{resident():5.2f} GB | {before:5.2f} GB "
    print(
        f"{trainer.forwards.bound or bound:>6} | {memory} | {min(passed):6.1f} s | {min(used):6.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--bounds", nargs="+", default=["auto", "1024", "none"], help="tokens, auto or none")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=300, help="tokens")
    parser.add_argument("--completion", type=int, default=200, help="tokens at most")
    parser.add_argument("--equal", type=int, default=0, help="prompts whose samples have equal rewards")
    parser.add_argument("--rounds", type=int, default=3)
    for flag in ("--full", "--float32", "--checkpointing"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    print(" bound | most     | at start | passed   | processors'")
    for bound in args.bounds:
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(args, bound))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
