"""Does the quickstart learn, and does it learn from the reward?

    python benchmarks/quickstart.py [--seeds 3] [--quick] [--json FILE]

Runs the quickstart for each seed, then two controls for the first seed: a learning rate of 0, and rewards
shuffled among the episodes of a batch. Prints the held-out greedy accuracy before and after each run.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from trl_dbbench import Episode, OutcomeReward
from trl_dbbench.grading.statistics import wilson_interval

ROOT = Path(__file__).parents[1]


def shuffled_outcome(episode: Sequence[Episode], trainer_state, **kwargs: object) -> list[float | None]:
    """The outcome rewards of the batch, each given to another episode than the one that earned it."""
    rewards = OutcomeReward()(episode)
    random.Random(trainer_state.global_step).shuffle(rewards)
    return rewards


def run(name: str, folder: Path, *options: str) -> dict:
    """One run of the recipe; its held-out accuracy before and after."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    command += ["--config_file", "accelerate_configs/cpu.yaml", "recipes/grpo_dbbench.py"]
    command += ["--config", "recipes/quickstart.yaml", "--output_dir", str(folder / name), *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\nThe run {name} failed: {' '.join(command)}")
    lines = (folder / name / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    held_out: dict[int, list[bool]] = {}
    for episode in map(json.loads, lines):
        if episode["phase"] == "eval":
            held_out.setdefault(episode["step"], []).append(episode["right"])
    before, after = held_out[min(held_out)], held_out[max(held_out)]
    return {
        "run": name,
        "tasks": len(before),
        "before": sum(before),
        "after": sum(after),
        "steps": max(held_out),
        "seconds": round(time.perf_counter() - started, 1),
    }


def describe(right: int, tasks: int) -> str:
    low, high = wilson_interval(right, tasks)
    return f"{100 * right / tasks:5.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 1 on")
    parser.add_argument("--quick", action="store_true", help="one seed, 20 steps: does it run?")
    parser.add_argument("--json", type=Path, help="writes the figures here")
    arguments = parser.parse_args()
    short = ["--max_steps", "20"] if arguments.quick else []
    seeds = range(1, 1 + (1 if arguments.quick else arguments.seeds))

    results = []
    print(
        f"{platform.processor() or platform.machine()}, {platform.system()}, Python "
        f"{platform.python_version()}"
    )
    print(f"{'run':<20} {'before':<24} {'after':<24} steps  seconds")
    with tempfile.TemporaryDirectory() as folder:
        runs = [(f"seed-{seed}", ["--seed", str(seed)]) for seed in seeds]
        runs += [
            ("learning-rate-0", ["--seed", "1", "--learning_rate", "0"]),
            ("shuffled-rewards", ["--seed", "1", "--reward_funcs", "benchmarks.quickstart.shuffled_outcome"]),
        ]
        for name, options in runs:
            result = run(name, Path(folder), *options, *short)
            results.append(result)
            before, after = (describe(result[when], result["tasks"]) for when in ("before", "after"))
            print(
                f"{name:<20} {before:<24} {after:<24} {result['steps']:>5}  {result['seconds']:>7}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
