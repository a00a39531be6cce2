"""Recipes and ranks as processes of their own, by `forking.Forked`; recipes in this process, for speed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from forking import Forked

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
    """A recipe with the quickstart in small, by accelerate's launcher."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", "--config_file", str(CPU)]
    if processes > 1:  # the flag asks for ranks; the config file keeps them off GPUs
        command += ["--multi_gpu", f"--num_processes={processes}", "--main_process_port=0"]
    return Forked(
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


def children_of(process: int) -> list[int]:
    """The processes that it has started."""
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def run_here(monkeypatch: pytest.MonkeyPatch, script: Path, *options: object, folder: Path = ROOT) -> None:
    """A recipe or another script in this process, started in a folder. Its logging is the tests'."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(script.parent)  # as Python does with a script
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, options)])
    monkeypatch.setattr("logging.basicConfig", lambda **settings: None)
    monkeypatch.setattr("trl_dbbench.training.stopping.plain_output", lambda rank: None)
    runpy.run_path(str(script), run_name="__main__")


def launch_ranks(flags: list[str], scenarios: str, model: str, folder: Path) -> tuple[int, str]:
    """The launcher's exit status and output. Fails the test if the ranks hang."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", *flags, "--num_processes=2"]
    command += ["--main_process_port=0", str(TWO_RANKS)]
    run = Forked(
        [*command, scenarios, model, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = run.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        run.terminate()  # the launcher ends its ranks
        output, _ = run.communicate(timeout=60)
        pytest.fail(f"the ranks hang:\n{output}")
    return run.returncode, output


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
    command = [sys.executable, str(script), *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as output:
        ranks: list[Forked] = []
        for rank in ("0", "1"):
            env = {**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "true"}
            ranks.append(Forked(command, cwd=ROOT, env=env, stdout=output, stderr=output))
        deadline = time.monotonic() + 240
        while any(rank.poll() is None for rank in ranks) and not any(rank.returncode for rank in ranks):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        statuses = [rank.returncode for rank in ranks]
        for rank in ranks:
            rank.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(60)
            rank.kill()
            rank.wait()
        output.seek(0)
        if statuses[0] is statuses[1] is None:
            pytest.fail(f"the ranks hang:\n{output.read()}")
        return next((status for status in statuses if status), 0), output.read()


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.cycle(range(20_000 + 1_000 * _WORKER, 21_000 + 1_000 * _WORKER))


def free_port() -> int:
    """A port for a server that starts later. No other test gets it before then.

    The kernel may give the same port twice if it chooses, as long as nobody listens there. So these are below its own.
    """
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("a cycle has no end")


def seen(folder: Path, scenario: str) -> list[dict[str, Any]]:
    """By rank 0 and by rank 1."""
    return [json.loads((folder / f"{scenario}-{rank}.json").read_text()) for rank in (0, 1)]


def quickstart_text() -> str:
    """The quickstart's YAML, whose paths lead to the same files from everywhere."""
    return QUICKSTART.read_text().replace(": tiny/", f": {QUICKSTART.parent}/tiny/")
