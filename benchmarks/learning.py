"""How much does it take to learn: tokens and seconds to a held-out accuracy, by which prompts are trained on.

    python benchmarks/learning.py [--world demo mix] [--only plain frontier] [--seeds 1 2 3 4 5]

Two worlds, each held out by the quickstart's 200 tasks:

- `demo`: the quickstart, at a constant learning rate;
- `mix`: a tenth of the quickstart's tasks among tasks that its model always solves (INSERT) and tasks that it
  never solves (the generator's level `full`).

Of each run, until the accuracy is reached: the tokens that were trained on, those that were generated (of
groups that were left out too; not of the greedy evaluation, which is off), and the seconds of the steps
without those of the held-out evaluation. Controls, for the first seed: a learning rate of 0, and rewards that
are shuffled among the episodes of a batch, both with both ways.

Results are added to a file of JSON lines, one a run, as they come; a run that is there is not done again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from held_out import ROOT, train

from trl_dbbench import load_tasks
from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.tasks import Task

DYNAMIC, FRONTIER = ("--dynamic_sampling", "true"), ("--task_sampling", "frontier")
HALF = ("--per_device_train_batch_size", "32")
SETUPS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "plain, half the batch": HALF,
    "dynamic, half the batch": (*DYNAMIC, *HALF),
    "frontier": FRONTIER,
    "frontier, half the batch": (*FRONTIER, *HALF),
    "both, half the batch": (*DYNAMIC, *FRONTIER, *HALF),
    "control: learning rate 0": (*DYNAMIC, *FRONTIER, *HALF, "--learning_rate", "0"),
    "control: shuffled rewards": (
        *(*DYNAMIC, *FRONTIER, *HALF),
        *("--reward_funcs", "benchmarks.quickstart.shuffled_outcome"),
    ),
}
"""Where half of the groups teach nothing, half the batch has as many that do once those are replaced."""
WORLDS = ("demo", "mix")
EASY, HARD, USUAL = 450, 450, 100
FIGURES = ("trained", "generated", "seconds")


def mixed_tasks() -> list[Task]:
    """Those of the world `mix`."""
    usual = [task for task in load_tasks(ROOT / "recipes/tiny/train.jsonl") if task.operation != "INSERT"]
    easy = generate_tasks(EASY, seed=11, level="worlds.tiny.level", skills=("insert",))
    hard = generate_tasks(HARD, seed=12, level="full")
    return [*usual[:USUAL], *easy, *hard]


def run(world: str, setup: str, seed: int, steps: int, every: int) -> dict[str, Any]:
    """One run: its figures at each evaluation."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        options = SETUPS[setup]
        if world == "mix":
            tasks = Path(folder) / "mix.jsonl"
            tasks.write_text("".join(f"{task.to_json()}\n" for task in mixed_tasks()))
            options = ("--tasks", str(tasks), *options)
        try:
            train(folder, "quickstart.yaml", seed, steps, every, *options)
        except RuntimeError as error:
            raise RuntimeError(f"{world}, {setup}, {seed}: {error}") from None
        points = points_of(Path(folder))
    seconds = round(time.perf_counter() - started, 1)
    return {
        "world": world,
        "setup": setup,
        "seed": seed,
        "steps": steps,
        "seconds": seconds,
        "every": every,
        "points": points,
    }


def points_of(folder: Path) -> list[dict[str, float]]:
    """At each evaluation: the held-out accuracy, and what the steps before it took."""
    trained, generated, seconds = (defaultdict[int, float](float) for _ in FIGURES)
    held_out: dict[int, list[bool]] = {}
    for line in (folder / "episodes.jsonl").read_text(encoding="utf-8").splitlines():
        episode = json.loads(line)
        if episode["phase"] == "eval":
            held_out.setdefault(episode["step"], []).append(episode["right"])
        elif episode["phase"] == "train":
            tokens = sum(turn["tokens"] for turn in episode["turns"])
            generated[episode["step"]] += tokens
            trained[episode["step"]] += 0 if episode.get("left_out") else tokens
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        logged = json.loads(line)
        if "step_time" in logged:  # logged after the step, so with the number of the next one
            seconds[logged["step"] - 1] += logged["step_time"]
    return [
        {
            "step": step,
            "accuracy": statistics.mean(rights),
            "trained": sum(count for before, count in trained.items() if before < step),
            "generated": sum(count for before, count in generated.items() if before < step),
            "seconds": sum(count for before, count in seconds.items() if before < step),
        }
        for step, rights in sorted(held_out.items())
    ]


def reached(points: Sequence[dict[str, float]], accuracy: float, figure: str) -> float:
    """The figure when the held-out accuracy was first reached; infinite if it was not."""
    return next((point[figure] for point in points if point["accuracy"] >= accuracy), math.inf)


def print_table(runs: Sequence[dict[str, Any]], world: str, accuracy: float) -> None:
    percent = f"{100 * accuracy:g} %"
    print(f"\n{world}\n")
    columns = ("prompts", "runs", "before, %", "after, %", f"trained tokens to {percent}", *FIGURES[1:])
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    own: dict[str, float] = {}
    for setup in SETUPS:
        found = [each["points"] for each in runs if (each["world"], each["setup"]) == (world, setup)]
        if not found:
            continue
        after = [100 * points[-1]["accuracy"] for points in found]
        cells = []
        for figure in FIGURES:
            median = statistics.median(reached(points, accuracy, figure) for points in found)
            if setup == "plain":
                own[figure] = median
            shown = "not reached" if math.isinf(median) else f"{median:,.0f}"
            if setup != "plain" and not math.isinf(median) and own.get(figure):
                shown += f" ({median / own[figure]:.2f})"
            cells.append(shown)
        before, spread = 100 * found[0][0]["accuracy"], f"[{min(after):.1f}, {max(after):.1f}]"
        accuracies = f"{before:.1f} | {statistics.median(after):.1f} {spread}"
        print(f"| {setup} | {len(found)} | {accuracies} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--only", nargs="+", choices=list(SETUPS), default=list(SETUPS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=16, help="updates of a run")
    parser.add_argument("--every", type=int, default=1, help="updates between held-out evaluations")
    parser.add_argument("--accuracy", type=float, default=0.95, help="the held-out accuracy to reach")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs side by side")
    parser.add_argument("--results", type=Path, default=Path("runs/learning.jsonl"))
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    runs = [json.loads(line) for line in lines]
    runs = [each for each in runs if (each["steps"], each["every"]) == (arguments.steps, arguments.every)]
    done = {(each["world"], each["setup"], each["seed"]) for each in runs}
    wanted = [
        (world, setup, seed)
        for world in arguments.world
        for seed in arguments.seeds
        for setup in arguments.only
        if not setup.startswith("control") or seed == arguments.seeds[0]
    ]

    def do(one: tuple[str, str, int]) -> None:
        found = run(*one, arguments.steps, arguments.every)
        runs.append(found)
        with arguments.results.open("a") as file:
            file.write(json.dumps(found) + "\n")
        first, last = found["points"][0], found["points"][-1]
        print(
            f"{one[0]:<5} {one[1]:<26} seed {one[2]}  {100 * first['accuracy']:5.1f} % -> "
            f"{100 * last['accuracy']:5.1f} %, {last['generated']:,.0f} tokens, {found['seconds']:.0f} s",
            flush=True,
        )

    with ThreadPoolExecutor(arguments.processes) as pool:
        list(pool.map(do, [one for one in wanted if one not in done]))
    for world in arguments.world:
        print_table(runs, world, arguments.accuracy)


if __name__ == "__main__":
    main()
