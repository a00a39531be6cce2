"""Recipes and ranks as processes of their own, as a user starts them; recipes in this process, for speed."""

from __future__ import annotations

import atexit
import gc
import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
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


def small(script: Path, *options: object) -> list[str]:
    """A recipe with the quickstart in small."""
    return [str(script), "--config", str(QUICKSTART), *SMALL, *map(str, options)]


def launch(*options: object, processes: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", "--config_file", str(CPU)]
    if processes > 1:  # the flag asks for ranks; the config file keeps them off GPUs
        command += ["--multi_gpu", f"--num_processes={processes}", "--main_process_port=0"]
    return subprocess.Popen(
        [*command, *small(RECIPE, *options)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def run_here(monkeypatch: pytest.MonkeyPatch, script: Path, *options: object, folder: Path = ROOT) -> None:
    """A recipe or another script in this process, started in a folder. Its logging is the tests'."""
    monkeypatch.chdir(folder)
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


def forkserver() -> ForkServerContext:
    """Starts processes with everything imported, which else takes each of them six seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["trl_dbbench.trainer", "trl_dbbench.start", "sqlglot", "tqdm.contrib.logging"]
    )
    return context


def fork_ranks(script: Path, *arguments: object) -> tuple[int, str]:
    """Two ranks of a script on CPUs, for what is not about the launcher: the first status that is not 0, the output.

    As with the launcher, one that fails ends the other. Fails the test if they hang.
    """
    group = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    with tempfile.NamedTemporaryFile("r") as output:
        ranks: list[BaseProcess] = []
        for rank in ("0", "1"):
            env = {**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "true"}
            words = [str(script), *map(str, arguments)]
            ranks.append(forkserver().Process(target=_rank, args=(words, env, output.name)))
            ranks[-1].start()
        deadline = time.monotonic() + 240
        while any(rank.is_alive() for rank in ranks) and not any(rank.exitcode for rank in ranks):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        statuses = [rank.exitcode for rank in ranks]
        for rank in ranks:
            rank.terminate()
            rank.join(60)
            rank.kill()
        if statuses[0] is statuses[1] is None:
            pytest.fail(f"the ranks hang:\n{output.read()}")
        return next((status for status in statuses if status), 0), output.read()


def _rank(words: list[str], env: Mapping[str, str], output: str) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    try:
        run_forked(words, Path(output))
    finally:
        atexit._run_exitfuncs()  # which a process of multiprocessing leaves out


def run_forked(words: list[str], output: Path) -> None:
    """A script with its options, in a process of `forkserver`, whose output is added to a file."""
    with output.open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    gc.freeze()  # see conftest.py
    sys.path.insert(0, str(Path(words[0]).parent))  # as Python does with a script
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def seen(folder: Path, scenario: str) -> list[dict[str, Any]]:
    """By rank 0 and by rank 1."""
    return [json.loads((folder / f"{scenario}-{rank}.json").read_text()) for rank in (0, 1)]


def quickstart_text() -> str:
    """The quickstart's YAML, whose paths lead to the same files from everywhere."""
    return QUICKSTART.read_text().replace(": tiny/", f": {QUICKSTART.parent}/tiny/")
