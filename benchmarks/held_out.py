"""Trainings that benchmarks of learning compare: the same but for some options, held-out tasks as they go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def train(
    folder: str,
    config: str,
    seed: int,
    steps: int,
    every: int,
    *options: str,
    recipe: str = "grpo_dbbench.py",
) -> None:
    """A run at a constant learning rate, on one thread, without the greedy evaluation.

    Args:
        folder: its `output_dir`.
        config, recipe: names in `recipes/`.
        steps: updates.
        every: updates between held-out evaluations.
        options: of the recipe; they win.

    Raises:
        RuntimeError: if it fails, with the end of what it printed.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    command += ["--config_file", "accelerate_configs/cpu.yaml", f"recipes/{recipe}"]
    command += ["--config", f"recipes/{config}", "--output_dir", folder, "--seed", str(seed)]
    command += ["--max_steps", str(steps), "--eval_steps", str(every), "--save_strategy", "no"]
    command += ["--lr_scheduler_type", "constant", "--greedy_eval", "off", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
