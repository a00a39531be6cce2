"""Which estimator of credit learns with the fewest generated tokens, in a world of several turns?

    python benchmarks/credit.py [--only grpo turn vine] [--seeds 1 2 3] [--tune] [--figure FILE]

Each run is the recipe of `recipes/multi.yaml` with another `advantage`: the same start, the same tasks, the
same held-out tasks, a constant learning rate. The tokens of a run are all that were sampled for its updates,
those of vine's continuations too. `--tune` tries each estimator with every learning rate of the grid, on
seeds of their own, and prints the grid; the runs that follow take the best. Controls: a learning rate of 0,
rewards that are shuffled among the episodes of a batch, and step rewards that are shuffled among its turns.

Results are added to a file of JSON lines, one a run, as they come; a run of as many updates that is there is
not done again. `benchmarks/results/credit.jsonl` has those of docs/credit.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from held_out import train

from trl_dbbench import Episode, OutcomeReward, open_database
from trl_dbbench.rewards.steps import StateProgress, answer_seen

RATES = (1e-3, 1.4e-3, 2e-3)
TUNING_SEEDS = (101, 102)
TARGET = 0.9
"""The held-out accuracy of the race; the best that grpo comes to, at the median, if that is lower."""

STEPS = ("--reward_funcs", "outcome", "state_progress", "answer_seen")
SETUPS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "grpo, step rewards": STEPS,
    "rloo": ("--advantage", "rloo"),
    "reinforce": ("--advantage", "reinforce"),
    "reinforce, running baseline": (
        "--advantage",
        "reinforce",
        "--advantage_args",
        '{"baseline": "running"}',
    ),
    "reinforce_pp": ("--advantage", "reinforce_pp"),
    "weighted": ("--advantage", "weighted"),
    "process_avg_unique": ("--advantage", "process_avg_unique", *STEPS),
    "token_wise": ("--advantage", "token_wise", *STEPS),
    "turn": ("--advantage", "turn", *STEPS),
    "state": ("--advantage", "state"),
    "state, step rewards": ("--advantage", "state", *STEPS),
    "tree": ("--advantage", "tree"),
    "tree, step rewards": ("--advantage", "tree", *STEPS),
    "vine": ("--advantage", "vine", "--advantage_args", '{"continuations": 2}'),
    "prime": ("--advantage", "prime"),
    "ppo": (),
    "outcome preset reinforce": ("--outcome_preset", "reinforce"),
    "control: learning rate 0": (),
    "control: shuffled rewards": ("--reward_funcs", "credit.shuffled_outcome"),
    "control: shuffled turns": (
        *("--advantage", "turn", "--reward_funcs", "credit.shuffled_outcome"),
        *("credit.shuffled_steps",),
    ),
}
FIXED_RATES = {"control: learning rate 0": 0.0}
AS = {
    "control: shuffled rewards": "grpo",
    "control: shuffled turns": "turn",
    "outcome preset reinforce": "grpo",
}
"""What takes the learning rate of another setup."""
RECIPE, RECIPES = "grpo_dbbench.py", {"ppo": "ppo_dbbench.py"}


# --- rewards of the controls, found by their dotted paths --------------------------------------------------


def shuffled_outcome(episode: Sequence[Episode], trainer_state, **kwargs: object) -> list[float | None]:
    """The outcome rewards of the batch, each given to another episode than the one that earned it."""
    rewards = OutcomeReward()(episode)
    random.Random(trainer_state.global_step).shuffle(rewards)
    return rewards


def shuffled_steps(episode: Sequence[Episode], trainer_state, **kwargs: object) -> list[list[float]]:
    """The step rewards of the batch, each given to another turn than the one that earned it."""
    with open_database("sqlite") as database:
        progress = StateProgress(database)(episode)
    seen = answer_seen(episode)
    values = [(p or s or [0.0] * len(e.turns)) for e, p, s in zip(episode, progress, seen, strict=True)]
    flat = [value or 0.0 for each in values for value in each]
    random.Random(trainer_state.global_step).shuffle(flat)
    place = iter(flat)
    return [[next(place) for _ in each] for each in values]


# --- runs --------------------------------------------------------------------------------------------------


def run(setup: str, rate: float, seed: int, steps: int, every: int) -> dict:
    """One run: its held-out accuracy after so many generated tokens."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        options = ("--learning_rate", str(rate), *SETUPS[setup])
        try:
            train(folder, "multi.yaml", seed, steps, every, *options, recipe=RECIPES.get(setup, RECIPE))
        except RuntimeError as error:
            raise RuntimeError(f"{setup}, {rate}, {seed}: {error}") from None
        curve = curve_of(Path(folder) / "episodes.jsonl")
    return {
        "setup": setup,
        "rate": rate,
        "seed": seed,
        "steps": steps,
        "seconds": round(time.perf_counter() - started, 1),
        "curve": curve,
    }


def curve_of(log: Path) -> list[tuple[int, float]]:
    """(tokens generated for the updates before, held-out accuracy) of each evaluation."""
    tokens: dict[int, int] = {}
    held_out: dict[int, list[bool]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        episode = json.loads(line)
        if episode["phase"] == "eval":
            held_out.setdefault(episode["step"], []).append(episode["right"])
        elif episode["phase"] == "train":
            sampled = sum(turn["tokens"] for turn in episode["turns"]) + episode.get("branch_tokens", 0)
            tokens[episode["step"]] = tokens.get(episode["step"], 0) + sampled
    return [
        (sum(count for before, count in tokens.items() if before < step), statistics.mean(right))
        for step, right in sorted(held_out.items())
    ]


def tokens_to(curve: Sequence[Sequence[float]], accuracy: float) -> float:
    """Tokens until this held-out accuracy, on the line between two evaluations; infinite if never."""
    before, level = curve[0]
    for tokens, found in curve:
        if found >= accuracy:
            share = (accuracy - level) / (found - level) if found > level else 0.0
            return before + share * (tokens - before)
        before, level = tokens, found
    return float("inf")


def area(curve: Sequence[Sequence[float]], budget: float) -> float:
    """The mean held-out accuracy over the tokens up to a budget, the last one kept to the end."""
    total, before, level = 0.0, 0.0, curve[0][1]
    for tokens, found in [*curve[1:], (budget, curve[-1][1])]:
        until = min(tokens, budget)
        total += (until - before) * level
        before, level = max(before, until), found
    return total / budget


class Results:
    """The runs of so many updates that are done, in a file."""

    def __init__(self, path: Path, steps: int):
        self.path, self.steps = path, steps
        lines = path.read_text().splitlines() if path.exists() else []
        self.runs = [each for each in map(json.loads, lines) if each["steps"] == steps]

    def of(self, setup: str, rate: float | None = None, seeds: Sequence[int] | None = None) -> list[dict]:
        return [
            each
            for each in self.runs
            if each["setup"] == setup
            and (rate is None or each["rate"] == rate)
            and (seeds is None or each["seed"] in seeds)
        ]

    def add(self, wanted: Sequence[tuple[str, float, int]], every: int, processes: int) -> None:
        missing = [one for one in wanted if not self.of(one[0], one[1], [one[2]])]

        def do(one: tuple[str, float, int]) -> None:
            try:
                found = run(*one, self.steps, every)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                return
            self.runs.append(found)
            with self.path.open("a") as file:
                file.write(json.dumps(found) + "\n")
            last = found["curve"][-1]
            print(
                f"{one[0]:<28} lr {one[1]:<7g} seed {one[2]:<4} {100 * found['curve'][0][1]:5.1f} % -> "
                f"{100 * last[1]:5.1f} % after {last[0] / 1000:.0f}k tokens, {found['seconds']:.0f} s",
                flush=True,
            )

        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(do, missing))


def best_rate(results: Results, setup: str, rates: Sequence[float]) -> float:
    """The learning rate with the highest mean accuracy over the tokens, on the tuning seeds."""
    if setup in FIXED_RATES:
        return FIXED_RATES[setup]
    tuned = {rate: results.of(AS.get(setup, setup), rate, TUNING_SEEDS) for rate in rates}
    budget = min((each["curve"][-1][0] for runs in tuned.values() for each in runs), default=1)
    means = {
        rate: statistics.mean(area(each["curve"], budget) for each in runs)
        for rate, runs in tuned.items()
        if runs
    }
    return max(means, key=means.__getitem__) if means else rates[len(rates) // 2]


def print_grid(results: Results, setups: Sequence[str], rates: Sequence[float]) -> None:
    print("\n| estimator | " + " | ".join(f"lr {rate:g}" for rate in rates) + " |")
    print("|---|" + "---|" * len(rates))
    for setup in setups:
        cells = []
        for rate in rates:
            runs = results.of(setup, rate, TUNING_SEEDS)
            cells.append(", ".join(f"{100 * each['curve'][-1][1]:.0f}" for each in runs) or "-")
        print(f"| {setup} | " + " | ".join(cells) + " |")


def print_table(
    results: Results, setups: Sequence[str], rates: dict[str, float], seeds: Sequence[int]
) -> None:
    base = [each["curve"] for each in results.of("grpo", rates["grpo"], seeds)]
    best = [max(found for _, found in curve) for curve in base]
    target = min(TARGET, statistics.median(best)) if best else TARGET
    own = statistics.median(tokens_to(curve, target) for curve in base) if base else float("inf")
    print(f"\n| estimator | lr | runs | before, % | after, % | tokens to {100 * target:.1f} % | of grpo's |")
    print("|---" * 7 + "|")
    for setup in setups:
        runs = results.of(setup, rates[setup], seeds)
        if not runs:
            continue
        reached = [tokens_to(each["curve"], target) for each in runs]
        median = statistics.median(reached)
        ratio = f"{median / own:.2f}" if median < float("inf") > own > 0 else "-"
        after = [100 * each["curve"][-1][1] for each in runs]
        shown = f"{median / 1000:.0f}k" if median < float("inf") else "not reached"
        print(
            f"| {setup} | {rates[setup]:g} | {len(runs)} | {100 * runs[0]['curve'][0][1]:.1f} | "
            f"{statistics.median(after):.1f} [{min(after):.1f}, {max(after):.1f}] | {shown} | {ratio} |"
        )


def draw(
    results: Results, setups: Sequence[str], rates: dict[str, float], seeds: Sequence[int], path: Path
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for setup in setups:
        runs = results.of(setup, rates[setup], seeds)
        if not runs:
            continue
        length = min(len(each["curve"]) for each in runs)
        tokens = [statistics.median(each["curve"][k][0] for each in runs) / 1000 for k in range(length)]
        found = [[100 * each["curve"][k][1] for each in runs] for k in range(length)]
        (line,) = axes.plot(
            tokens,
            [statistics.median(values) for values in found],
            label=setup,
            linestyle=":" if setup.startswith("control") else "-",
        )
        axes.fill_between(
            tokens, [min(v) for v in found], [max(v) for v in found], color=line.get_color(), alpha=0.1
        )
    axes.axhline(100 * TARGET, color="grey", linewidth=0.5)
    axes.set(xlabel="generated tokens, thousands", ylabel="held-out greedy accuracy, %", ylim=(0, 100))
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(SETUPS), default=list(SETUPS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40, help="updates of a run")
    parser.add_argument("--every", type=int, default=2, help="updates between held-out evaluations")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help="the grid")
    parser.add_argument("--tune", action="store_true", help="try the grid first, on seeds of its own")
    parser.add_argument("--tuning-seeds", type=int, nargs="+", default=list(TUNING_SEEDS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs side by side")
    parser.add_argument("--results", type=Path, default=Path("runs/credit.jsonl"))
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.results, arguments.steps)
    tuned = [name for name in arguments.only if name not in AS and name not in FIXED_RATES]
    every, processes = arguments.every, arguments.processes
    if arguments.tune:
        grid = [
            (name, rate, seed)
            for seed in arguments.tuning_seeds
            for name in tuned
            for rate in arguments.rates
        ]
        results.add(grid, every, processes)
        print_grid(results, tuned, arguments.rates)
    rates = {name: best_rate(results, name, arguments.rates) for name in SETUPS}
    wanted = [(name, rates[name], seed) for seed in arguments.seeds for name in arguments.only]
    results.add(wanted, every, processes)
    print_table(results, arguments.only, rates, arguments.seeds)
    if arguments.figure:
        draw(results, arguments.only, rates, arguments.seeds, arguments.figure)


if __name__ == "__main__":
    main()
