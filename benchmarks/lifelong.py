"""Ways to learn on: what each keeps, loses and costs on a stream of stages, on the tiny world.

    python benchmarks/in_context.py --out runs/in_context
    python benchmarks/lifelong.py --model runs/in_context [--seeds 1 2 3] [--only WAY ...]

Each way is `recipes/lifelong.yaml` with other settings, so its updates and samples are as many. A seed draws
the order of the stages, the tasks and the samples. The model has learned to use examples
(`benchmarks/in_context.py`), or the ways that show some would only confuse it. A run that is there is not
done again; one that was stopped goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from trl_dbbench.evaluation.compare.streams import stream_figures, streams_text

ROOT = Path(__file__).parents[1]
PROGRAM = Path(sys.executable).with_name("trl-dbbench")
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


def run(way: str, seed: int, out: Path, model: str) -> Path:
    folder = out / f"{way.replace(',', '').replace(' ', '-')}-{seed}"
    if not (folder / "adapter_model.safetensors").exists():
        print(f"+ {folder.name}", flush=True)
        resumed = ("--resume_from_checkpoint", "true") if [*folder.glob("checkpoint-*")] else ()
        own = ("--model_name_or_path", model, "--output_dir", str(folder), "--seed", str(seed))
        recipe = str(ROOT / "recipes" / "lifelong.yaml")
        command = [str(PROGRAM), "train", recipe, *own, *WAYS[way], *resumed]
        with (out / "log.txt").open("a") as log:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="runs/in_context")
    parser.add_argument("--out", type=Path, default=Path("runs/lifelong_ways"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    folders = [run(way, seed, given.out, given.model) for seed in given.seeds for way in given.only]
    print(streams_text(stream_figures(folders, [folder.name for folder in folders])))


if __name__ == "__main__":
    main()
