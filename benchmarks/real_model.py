"""From a pretrained chat model to an agent, on two CPU cores: base, warm start, GRPO, and what each can do.

    python benchmarks/real_model.py MODEL --out runs/real [--agentbench FOLDER] [--seeds 1 2 3] [--controls]
        [--estimators grpo reinforce tree]

MODEL is the folder or hub id of SmolLM2-135M-Instruct. FOLDER holds AgentBench's `dev.jsonl`, which is only
measured, and `standard.jsonl`, which is learned from with the generated tasks. What is there already is not
done again, and a training that was stopped goes on: start it as often as it takes, with the same settings.
Seeds, controls and estimators may be added. `--seeds` without a number stops after the warm start: with more
`--sft-steps`, that is what demonstrations alone teach.

- base: the model as it is.
- sft: `recipes/smollm2_sft.yaml` on gold episodes of generated tasks.
- grpo, reinforce, tree: `recipes/smollm2.yaml` from there on new tasks, with this advantage, for each seed.
- controls: a learning rate of 0; rewards that are shuffled among the episodes of a batch.

Each is measured greedily on held-out generated tasks, which share no table and no question with the others,
and on AgentBench's dev tasks, and compared with its start task by task.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trl_dbbench import Episode, Task, load_tasks
from trl_dbbench.cli.bundled import read_recipe
from trl_dbbench.cli.tasks import write_tasks
from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.evaluation.compare.arms import mcnemar
from trl_dbbench.grading.statistics import Share
from trl_dbbench.rewards.outcome import OUTCOME_PRESETS

ROOT = Path(__file__).parents[1]
PROGRAM = Path(sys.executable).with_name("trl-dbbench")
SFT = read_recipe(ROOT / "recipes" / "smollm2_sft.yaml")
RECIPE = read_recipe(ROOT / "recipes" / "smollm2.yaml")
LIMITS = [
    word
    for key in ("max_turns", "max_turn_tokens", "max_completion_length")
    for word in (f"--{key.replace('_', '-')}", str(RECIPE[key]))
]

EVERYDAY = ("select", "where_single_condition", "where_multiple_conditions", "insert", "update")
"""Skills of level plain that are demonstrated."""

LARGEST = ("order_by_single_column", "limit_only")
"""Skills of questions for the largest or smallest. One demonstration in a hundred is of these, but two tasks
in five: what is hardly shown, GRPO has to learn from rewards."""

ESTIMATORS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "reinforce": ("--advantage", "reinforce", "--advantage_args", json.dumps({"baseline": "running"})),
    "tree": ("--advantage", "tree"),
}


def shuffled_outcome(episode: Sequence[Episode], trainer_state: Any, **_: object) -> list[float | None]:
    """A control: the rewards of a batch, dealt out by chance."""
    rewards = OUTCOME_PRESETS[RECIPE["outcome_preset"]](episode)
    random.Random(trainer_state.global_step).shuffle(rewards)
    return rewards


def run(*words: str | Path, log: Path) -> None:
    print("+ trl-dbbench", *words, flush=True)
    started = time.time()
    with log.open("a") as file:
        subprocess.run([PROGRAM, *map(str, words)], stdout=file, stderr=subprocess.STDOUT, check=True)
    print(f"  {time.time() - started:.0f} s", flush=True)


def generated(count: int, seed: int, split: str = "train", skills: Sequence[str] | None = None) -> list[Task]:
    return generate_tasks(count, seed, skills, split=split, level="plain")


class Chain:
    """The steps; each is done once."""

    def __init__(
        self,
        model: str,
        out: Path,
        agentbench: Path | None,
        database: str,
        dtype: str = RECIPE["dtype"],
        sft_steps: int = SFT["max_steps"],
    ):
        self.model, self.out, self.agentbench, self.database = model, out, agentbench, database
        self.dtype, self.sft_steps = dtype, sft_steps
        out.mkdir(parents=True, exist_ok=True)
        self.log = out / "log.txt"

    # --- tasks ------------------------------------------------------------------------------------

    def tasks(self) -> None:
        """Make the tasks for the warm start, for GRPO and to measure on."""
        self._kept("sft_tasks.jsonl", self._demonstrations)
        self._kept(
            "grpo_tasks.jsonl",
            lambda: [*generated(400, 13), *generated(400, 15, skills=LARGEST), *self._standard()],
        )
        self._kept("held_out.jsonl", lambda: generated(200, 12, "test"))

    def _demonstrations(self) -> list[Task]:
        """Up to an eighth are standard tasks that have their SQL: changes of a table."""
        count = self.sft_steps * SFT["per_device_train_batch_size"]
        standard = [task for task in self._standard() if task.gold.sql][: count // 8]
        largest = generated(max(1, count // 100), 14, skills=LARGEST)
        everyday = generated(count - len(standard) - len(largest), 11, skills=EVERYDAY)
        return [*everyday, *largest, *standard]

    def _kept(self, name: str, make: Callable[[], list[Task]]) -> None:
        if not (self.out / name).exists():
            write_tasks(self.out / name, make())

    def _standard(self) -> list[Task]:
        files = sorted(self.agentbench.glob("standard*.jsonl")) if self.agentbench else []
        return [task for file in files for task in load_tasks(file)]

    # --- training ---------------------------------------------------------------------------------

    def train(self, name: str, recipe: str, *options: str) -> Path:
        """Train by a recipe, or go on with what was stopped; return the run's folder."""
        folder = self.out / name
        if not (folder / "adapter_model.safetensors").exists():
            resumed = any(folder.glob("checkpoint-*"))
            more = ("--resume_from_checkpoint", "true") if resumed else ()
            if folder.exists() and not resumed:
                shutil.rmtree(folder)  # it was stopped before its first checkpoint
            common = ("--model_name_or_path", self.model, "--output_dir", str(folder))
            precision = ("--dtype", self.dtype, "--bf16", str(self.dtype == "bfloat16"))
            run("train", ROOT / "recipes" / recipe, *common, *precision, *options, *more, log=self.log)
        return folder

    def sft(self) -> Path:
        tasks, steps = str(self.out / "sft_tasks.jsonl"), str(self.sft_steps)
        return self.train("sft", "smollm2_sft.yaml", "--tasks", tasks, "--max_steps", steps)

    def grpo(self, name: str, start: Path, *options: str) -> Path:
        tasks = ("--tasks", str(self.out / "grpo_tasks.jsonl"))
        return self.train(name, "smollm2.yaml", "--adapter_name_or_path", str(start), *tasks, *options)

    # --- figures ----------------------------------------------------------------------------------

    def measure(self, name: str, run_folder: Path | None) -> dict[str, list[bool]]:
        """Play the held-out tasks greedily; return for each set which of its tasks went right."""
        sets = {"held_out": self.out / "held_out.jsonl"}
        if self.agentbench:
            sets["dev"] = self.agentbench / "dev.jsonl"
        who: tuple[str | Path, ...] = ("--model", self.model, "--system-prompt", RECIPE["system_prompt"])
        if run_folder is not None:
            who = (run_folder,)
        return {which: self.play(f"{name}-{which}", tasks, *who, *LIMITS) for which, tasks in sets.items()}

    def play(self, name: str, tasks: Path, *who: str | Path) -> list[bool]:
        """Play tasks greedily; return which of them went right."""
        saved = self.out / f"{name}.json"
        if not saved.exists():
            where = ("--tasks", tasks, "--database", self.database, "--json", saved, "--resume")
            run("eval", *who, "--dtype", self.dtype, *where, log=self.log)
        return [bool(episode["right"]) for episode in json.loads(saved.read_text())["episodes"]]


def check_settings(out: Path, given: dict[str, Any]) -> None:
    """Keep the settings of the first call in `settings.json`; exit if later ones differ."""
    kept = out / "settings.json"
    if not kept.exists():
        kept.write_text(json.dumps(given, indent=2))
    first = json.loads(kept.read_text())
    differing = [
        f"{name} {first[name]}, not {value}" for name, value in given.items() if first[name] != value
    ]
    if differing:
        raise SystemExit(f"{out} was begun with {'; '.join(differing)}. Name another --out.")


def line_of(name: str, right: dict[str, list[bool]], start: dict[str, list[bool]] | None) -> str:
    """A line of the table: accuracy with its interval, and the paired test against its start."""
    cells = [f"{name:<16}"]
    for which, values in right.items():
        text = str(Share(sum(values), len(values)))
        if start is not None:
            pairs = list(zip(start[which], values, strict=True))
            wins, losses = pairs.count((False, True)), pairs.count((True, False))
            text += f" +{wins} -{losses} p={mcnemar(wins, losses):.2g}"
        cells.append(f"{text:<48}")
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("runs/real"))
    parser.add_argument("--agentbench", type=Path)
    parser.add_argument("--database", default="auto", help="to measure on")
    parser.add_argument("--dtype", default=RECIPE["dtype"], choices=("float32", "bfloat16"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--sft-steps", type=int, default=SFT["max_steps"], help="updates of the warm start")
    parser.add_argument("--steps", type=int, default=RECIPE["max_steps"], help="updates of GRPO")
    parser.add_argument("--learning-rate", type=float, default=RECIPE["learning_rate"], help="of GRPO")
    parser.add_argument("--controls", action="store_true")
    parser.add_argument("--estimators", nargs="+", choices=list(ESTIMATORS), default=["grpo"])
    given = parser.parse_args()
    chain = Chain(given.model, given.out, given.agentbench, given.database, given.dtype, given.sft_steps)
    added = ("out", "seeds", "controls", "estimators")
    check_settings(given.out, {name: str(value) for name, value in vars(given).items() if name not in added})
    chain.tasks()
    base = chain.measure("base", None)
    print(line_of("base", base, None), flush=True)
    start = chain.sft()
    sft = chain.measure("sft", start)
    print(line_of("sft", sft, base), flush=True)
    steps = ("--max_steps", str(given.steps), "--learning_rate", str(given.learning_rate))
    runs = {
        f"{name}-{seed}": (*ESTIMATORS[name], "--seed", str(seed))
        for name in given.estimators
        for seed in given.seeds
    }
    if given.controls:
        # two updates tell as much as sixty: the weights stay as they are
        runs["no-learning"] = ("--learning_rate", "0", "--max_steps", "2")
        runs["shuffled"] = ("--reward_funcs", f"{Path(__file__).resolve()}:shuffled_outcome")
    for name, options in runs.items():
        folder = chain.grpo(name, start, *steps, *options)
        print(line_of(name, chain.measure(name, folder), sft), flush=True)


if __name__ == "__main__":
    main()
