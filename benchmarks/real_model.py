"""From a pretrained chat model to an agent, on two CPU cores: base, warm start, GRPO, and what each can do.

    python benchmarks/real_model.py MODEL --out runs/real [--agentbench FOLDER] [--seeds 1 2 3] [--controls]

MODEL is the folder or hub id of SmolLM2-135M-Instruct. FOLDER holds AgentBench's `dev.jsonl`, which is only
measured, and `standard.jsonl`, which is learned from with the generated tasks. What is there already is not
done again, and a training that was stopped goes on: start it as often as it takes.

- base: the model as it is.
- sft: `recipes/smollm2_sft.yaml` on gold episodes of generated tasks.
- grpo: `recipes/smollm2.yaml` from there on new tasks, one run for each seed.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trl_dbbench import Episode
from trl_dbbench.evaluation.compare import mcnemar
from trl_dbbench.grading.statistics import wilson_interval
from trl_dbbench.rewards.outcome import OUTCOME_PRESETS

ROOT = Path(__file__).parents[1]
PROGRAM = Path(sys.executable).with_name("trl-dbbench")
EVERYDAY = "select,where_single_condition,where_multiple_conditions,insert,update"
"""Skills of the tasks to learn from; those of DB-Bench's tasks."""

SYSTEM_PROMPT = "Work on the MySQL database."
LIMITS = ("--max-turns", "3", "--max-turn-tokens", "96", "--max-completion-length", "400")
"""Those of the recipes."""


def shuffled_outcome(episode: Sequence[Episode], trainer_state: Any, **_: object) -> list[float | None]:
    """A control: the rewards of a batch, dealt out by chance."""
    rewards = OUTCOME_PRESETS["reinforce"](episode)
    random.Random(trainer_state.global_step).shuffle(rewards)
    return rewards


def run(*words: str | Path, log: Path) -> None:
    print("+ trl-dbbench", *words, flush=True)
    with log.open("a") as file:
        subprocess.run([PROGRAM, *map(str, words)], stdout=file, stderr=subprocess.STDOUT, check=True)


class Chain:
    """The steps; each is done once."""

    def __init__(self, model: str, out: Path, agentbench: Path | None, database: str):
        self.model, self.out, self.agentbench, self.database = model, out, agentbench, database
        out.mkdir(parents=True, exist_ok=True)
        self.log = out / "log.txt"

    # --- tasks ------------------------------------------------------------------------------------

    def tasks(self) -> None:
        """Tasks for the warm start, for GRPO and to measure on."""
        self._generated("sft_tasks.jsonl", 1200, 400, 11, "train")
        self._generated("grpo_tasks.jsonl", 800, 200, 13, "train")
        self._generated("held_out.jsonl", 100, 100, 12, "test")
        if self.agentbench:
            for name, source in (("dev.jsonl", "dev"), ("standard.jsonl", "standard*")):
                (found,) = self.agentbench.glob(f"{source}.jsonl")
                if not (self.out / name).exists():
                    run("convert", found, self.out / name, log=self.log)
            grpo = self.out / "grpo_tasks.jsonl"
            if (standard := (self.out / "standard.jsonl").read_text()) not in grpo.read_text():
                grpo.write_text(grpo.read_text() + standard)

    def _generated(self, name: str, plain: int, full: int, seed: int, split: str) -> None:
        path = self.out / name
        if path.exists():
            return
        parts = []
        for level, number in (("plain", plain), ("full", full)):
            part = self.out / f"{level}-{name}"
            skills = ("--skills", EVERYDAY) if (level, split) == ("plain", "train") else ()
            common = ("--num-tasks", str(number), "--seed", str(seed), "--split", split, "--level", level)
            run("generate", *common, *skills, "--out", part, log=self.log)
            parts += list(_in_labels(part))
        path.write_text("".join(f"{line}\n" for line in parts))

    # --- training ---------------------------------------------------------------------------------

    def train(self, name: str, recipe: str, *options: str) -> Path:
        """Train by a recipe, or go on with what was stopped; return the run's folder."""
        folder = self.out / name
        if not (folder / "adapter_model.safetensors").exists():
            resumed = any(folder.glob("checkpoint-*"))
            more = ("--resume_from_checkpoint", "true") if resumed else ()
            if folder.exists() and not resumed:
                shutil.rmtree(folder)  # it was stopped before its first checkpoint
            started = time.time()
            common = ("--model_name_or_path", self.model, "--output_dir", str(folder))
            run("train", ROOT / "recipes" / recipe, *common, *options, *more, log=self.log)
            with (folder / "seconds.txt").open("a") as file:
                print(f"{time.time() - started:.0f}", file=file)
        return folder

    def sft(self) -> Path:
        return self.train("sft", "smollm2_sft.yaml", "--tasks", str(self.out / "sft_tasks.jsonl"))

    def grpo(self, name: str, start: Path, *options: str) -> Path:
        tasks = ("--tasks", str(self.out / "grpo_tasks.jsonl"))
        return self.train(name, "smollm2.yaml", "--adapter_name_or_path", str(start), *tasks, *options)

    # --- figures ----------------------------------------------------------------------------------

    def measure(self, name: str, run_folder: Path | None) -> dict[str, list[bool]]:
        """Play the held-out tasks greedily; return for each set which of its tasks went right."""
        right = {}
        for which in ("held_out", *(["dev"] if self.agentbench else [])):
            saved = self.out / f"{name}-{which}.json"
            if not saved.exists():
                who: tuple[Any, ...] = ("--model", self.model)
                who += ("--system-prompt", SYSTEM_PROMPT) if run_folder is None else (run_folder,)
                where = ("--tasks", self.out / f"{which}.jsonl", "--database", self.database)
                run("eval", *who, *LIMITS, *where, "--dtype", "float32", "--json", saved, log=self.log)
            episodes = json.loads(saved.read_text())["episodes"]
            right[which] = [bool(episode["right"]) for episode in episodes]
        return right


def _in_labels(path: Path) -> Iterator[str]:
    """Yield the tasks; an answer of one column is one of labels, as AgentBench has them."""
    for line in path.read_text().splitlines():
        task = json.loads(line)
        answer = task["answer"]
        if answer is not None and task["grader"] and all(len(row) == 1 for row in answer):
            task |= {"grader": None, "answer": [str(cell) for row in answer for cell in row]}
        yield json.dumps(task, ensure_ascii=False)


def line_of(name: str, right: dict[str, list[bool]], start: dict[str, list[bool]] | None) -> str:
    """A line of the table: accuracy with its interval, and the paired test against its start."""
    cells = [f"{name:<16}"]
    for which, values in right.items():
        low, high = wilson_interval(sum(values), len(values))
        text = f"{100 * sum(values) / len(values):5.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
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
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=100, help="updates of GRPO")
    parser.add_argument("--controls", action="store_true")
    given = parser.parse_args()
    chain = Chain(given.model, given.out, given.agentbench, given.database)
    chain.tasks()
    base = chain.measure("base", None)
    print(line_of("base", base, None), flush=True)
    start = chain.sft()
    sft = chain.measure("sft", start)
    print(line_of("sft", sft, base), flush=True)
    steps = ("--max_steps", str(given.steps))
    for seed in given.seeds:
        folder = chain.grpo(f"grpo-{seed}", start, *steps, "--seed", str(seed))
        print(line_of(f"grpo, seed {seed}", chain.measure(f"grpo-{seed}", folder), sft), flush=True)
    if given.controls:
        controls = {
            "no learning": ("--learning_rate", "0"),
            "shuffled": ("--reward_funcs", "real_model.shuffled_outcome"),
        }
        for name, options in controls.items():
            folder = chain.grpo(name.replace(" ", "-"), start, *steps, *options)
            print(line_of(name, chain.measure(name.replace(" ", "-"), folder), sft), flush=True)


if __name__ == "__main__":
    main()
