"""Ways to learn on: what each keeps, loses and costs on a stream of eight stages.

    python benchmarks/in_context.py --out runs/in_context
    python benchmarks/lifelong.py --model runs/in_context [--seeds 1 2 3] [--only WAY ...] [--figure FILE]

Each way is `recipes/lifelong.yaml` with other settings, on the questions over several tables of
`recipes/tiny_sql`, whose eight kinds are the stages. All make as many updates from as many samples. A seed
draws the order of the stages, the tasks and the samples. The model has learned to use examples
(`benchmarks/in_context.py`), or the ways that show some would only confuse it. A run that is there is not
done again; one that was stopped goes on. The runs of a seed come before those of the next.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from trl_dbbench.evaluation.compare.streams import StreamFigures, stream_figures, streams_text
from trl_dbbench.grading.statistics import mean_interval

ROOT = Path(__file__).parents[1]
PROGRAM = Path(sys.executable).with_name("trl-dbbench")
RECIPES = ROOT / "recipes"
WORLD = (
    *("--tasks", str(RECIPES / "tiny_sql" / "train.jsonl")),
    *("--eval_tasks", str(RECIPES / "tiny_sql" / "test.jsonl")),
    *("--system_prompt", "Answer with MySQL.", "--protocol", "text_sql", "--grader", "strict"),
    *("--max_turns", "1", "--max_turn_tokens", "96", "--max_completion_length", "96"),
)
FROZEN = ("--learning_rate", "0", "--replay", "0")
SHOWN = ("--few_shot", "4", "--few_shot_update", "true")
WAYS: dict[str, tuple[str, ...]] = {
    "frozen": FROZEN,
    "one adapter": ("--replay", "0"),
    "kl to the stage before": ("--replay", "0", "--kl_reference", "stage", "--beta", "0.05"),
    "replay": (),
    "replay by accuracy": ("--replay_by", "accuracy"),
    "an adapter a stage": ("--replay", "0", "--stage_adapters", "each"),
    "merged by ties": ("--replay", "0", "--stage_adapters", "ties"),
    "retrieval and training": ("--replay", "0", *SHOWN),
    "retrieval, training, replay": SHOWN,
    "experience replay": (*FROZEN, *SHOWN, "--few_shot_by", "latest"),
    "retrieval": (*FROZEN, *SHOWN),
    "mixed": ("--replay", "0", "--stream_order", "mixed"),
}
"""`one adapter` is LoRA and GRPO on the stage alone; `mixed`, all stages at once, is what none should beat.
Those with a learning rate of 0 are the frozen model, `experience replay` as LifelongAgentBench has it."""


def folder_of(way: str, seed: int, out: Path) -> Path:
    return out / f"{way.replace(',', '').replace(' ', '-')}-{seed}"


def run(way: str, seed: int, out: Path, model: str, rate: str) -> None:
    """Train unless it is done. What the run says goes into a log beside its folder."""
    folder = folder_of(way, seed, out)
    if (folder / "adapter_model.safetensors").exists():
        return
    print(f"+ {folder.name}", flush=True)
    resumed = ("--resume_from_checkpoint", "true") if [*folder.glob("checkpoint-*")] else ()
    own: tuple[str, ...] = ("--model_name_or_path", model, "--output_dir", str(folder), "--seed", str(seed))
    own += ("--learning_rate", rate)  # which a way may set itself
    recipe = str(RECIPES / "lifelong.yaml")
    command = [str(PROGRAM), "train", recipe, *WORLD, *own, *WAYS[way], *resumed]
    with folder.with_suffix(".log").open("a") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)


def draw(ways: dict[str, list[StreamFigures]], path: Path) -> None:
    """Draw what each way ends with and what it forgets on the way: means over seeds, 95 % intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panels = {"average accuracy, %": "average_accuracy", "forgetting, points": "forgetting"}
    for axes, (title, measure) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        for place, runs in enumerate(ways.values()):
            known = [getattr(each.measures, measure) for each in runs]
            points = [100 * value for value in known if value is not None]
            if not points:  # what is learned all at once forgets nothing on the way
                continue
            middle, half = mean_interval(points) if len(points) > 1 else (points[0], 0.0)
            axes.plot(points, [place] * len(points), "o", color="silver", markersize=4)
            axes.errorbar(middle, place, xerr=half, fmt="o", color="C0", capsize=3)
        axes.set(xlabel=title, xlim=(-5, 105), yticks=range(len(ways)), yticklabels=list(ways))
        axes.grid(axis="x", linewidth=0.3)
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="runs/in_context")
    parser.add_argument("--out", type=Path, default=Path("runs/lifelong_ways"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--learning-rate", default="3e-3", help="with the recipe's 1e-3 little is forgotten")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs side by side")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the runs' threads would wait for one another
    with ThreadPoolExecutor(given.processes) as pool:
        jobs = [
            pool.submit(run, way, seed, given.out, given.model, given.learning_rate)
            for seed, way in product(given.seeds, given.only)
        ]
        for job in jobs:
            job.result()
    figures = {
        way: stream_figures(
            [folder_of(way, seed, given.out) for seed in given.seeds], [way] * len(given.seeds)
        )
        for way in given.only
    }
    print(streams_text([each for runs in figures.values() for each in runs]))
    if given.figure:
        draw(figures, given.figure)


if __name__ == "__main__":
    main()
