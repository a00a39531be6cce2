"""Recipes and ranks as processes of their own, as a user starts them; recipes in this process, for speed."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "grpo_dbbench.py"
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
CONFIGS = ROOT / "accelerate_configs"
CPU = CONFIGS / "cpu.yaml"
TWO_RANKS = Path(__file__).with_name("two_ranks.py")

# the quickstart in small: one prompt and four samples a step, no held-out evaluation
SMALL = ["--num_generations", "4", "--per_device_train_batch_size", "4", "--eval_strategy", "no"]
SMALL += ["--eval_on_start", "false"]

TWO_CPUS = [f"--config_file={CPU}", "--multi_gpu"]
# as it is for GPUs, but for the precision
SHARDED = [f"--config_file={CONFIGS / 'fsdp2.yaml'}", "--mixed_precision=no"]


def launch(*options: object, processes: int = 1, script: Path = RECIPE) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", "--config_file", str(CPU)]
    if processes > 1:  # the flag asks for ranks; the config file keeps them off GPUs
        command += ["--multi_gpu", f"--num_processes={processes}", "--main_process_port=0"]
    return subprocess.Popen(
        [*command, str(script), "--config", str(QUICKSTART), *SMALL, *map(str, options)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def run_here(monkeypatch: pytest.MonkeyPatch, script: Path, *options: object) -> None:
    """A recipe in this process. Its logging is the tests'."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(script.parent)  # as Python does with a script
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, options)])
    monkeypatch.setattr("logging.basicConfig", lambda **settings: None)
    monkeypatch.setattr("trl_dbbench.stopping.plain_output", lambda rank: None)
    runpy.run_path(str(script), run_name="__main__")


def launch_ranks(flags: list[str], scenarios: str, model: str, folder: Path) -> tuple[int, str]:
    """The launcher's exit status and output. Fails the test if the ranks hang."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", *flags, "--num_processes=2"]
    command += ["--main_process_port=0", str(TWO_RANKS)]
    run = subprocess.Popen(
        [*command, scenarios, model, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        output, _ = run.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        run.terminate()  # the launcher ends its ranks
        output, _ = run.communicate(timeout=60)
        pytest.fail(f"the ranks hang:\n{output}")
    return run.returncode, output


def seen(folder: Path, scenario: str) -> list[dict[str, Any]]:
    """By rank 0 and by rank 1."""
    return [json.loads((folder / f"{scenario}-{rank}.json").read_text()) for rank in (0, 1)]


def quickstart_text() -> str:
    """The quickstart's YAML, whose paths lead to the same files from everywhere."""
    return QUICKSTART.read_text().replace(": tiny/", f": {QUICKSTART.parent}/tiny/")
