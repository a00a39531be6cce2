"""Ctrl-C, at a terminal and in a pipe: the run saves, says how to resume, and leaves nothing behind.

At a terminal the launcher, the ranks and whatever they started get SIGINT at once, as one foreground group.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forking import Forked
from launching import CPU, QUICKSTART, RECIPE, ROOT
from required import LONG
from safetensors.torch import load_file
from training import equal

from trl_dbbench.training.stopping import is_launcher, stop_with_launcher

SHELL = Path(__file__).parents[1] / "shell.py"
LAUNCHER = ["-m", "accelerate.commands.launch", "--quiet", "--config_file", str(CPU)]
TWO_RANKS = [*LAUNCHER, "--multi_gpu", "--num_processes=2", "--main_process_port=0"]
WAYS = {
    "python": [str(RECIPE), "--config"],
    "launcher": [*LAUNCHER, str(RECIPE), "--config"],
    "two ranks": [*TWO_RANKS, str(RECIPE), "--config"],
    "train": ["-m", "trl_dbbench", "train"],
}

# two prompts with two samples, and a held-out evaluation every other step
OPTIONS = {
    "max_steps": 8,
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "lora_dropout": 0.05,
    "eval_steps": 2,
    "per_device_eval_batch_size": 8,
    "save_strategy": "no",
    "learning_rate": 1e-4,
    "resume_from_checkpoint": "true",
}


class Started:
    """A recipe in a session of its own, whose output goes to a terminal or a pipe.

    Its shell stays as long as anything that it has started. With `imports` it begins by importing everything.
    """

    def __init__(self, command: list[str], terminal: bool, temporary: Path, imports: bool):
        self.output, self.temporary = "", temporary
        reading, writing = pty.openpty() if terminal else os.pipe()
        self.process = (subprocess.Popen if imports else Forked)(
            [sys.executable, str(SHELL), *command],
            cwd=ROOT,
            stdin=writing if terminal else subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
        os.close(writing)
        self.terminal = reading if terminal else None
        self._reader = threading.Thread(target=self._read, args=(reading,))
        self._reader.start()

    def _read(self, reading: int) -> None:
        with contextlib.suppress(OSError):  # what Linux says when a terminal's last process has ended
            while data := os.read(reading, 65536):
                self.output += data.decode(errors="replace")

    def interrupt(self) -> None:
        """As Ctrl-C does: by the terminal's own line discipline, or for a pipeline by the shell's."""
        if self.terminal is not None:
            os.write(self.terminal, b"\x03")
        else:
            os.killpg(self.process.pid, signal.SIGINT)

    def ends(self) -> int:
        """The command's status, when all that it started has ended; a launcher may end before the run."""
        status = self.process.wait(timeout=200)
        self._reader.join(timeout=200)
        assert not self._reader.is_alive(), self.output
        return status

    def waits_for(self, text: str) -> None:
        while text not in self.output:
            assert self._reader.is_alive(), self.output
            time.sleep(0.01)

    def left(self) -> list[str]:
        """Its processes and temporary files that are still there, a moment later."""
        for _ in range(100):  # a private server's guardian looks five times a second, then removes its folder
            if not (found := self._left()):
                break
            time.sleep(0.1)
        return found

    def _left(self) -> list[str]:
        ours = (path for path in self.temporary.iterdir() if not path.name.startswith("torchelastic_"))
        found = [str(path) for path in ours]  # torch's launcher leaves an empty one, however a run ends
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended just now
                if f"TMPDIR={self.temporary}".encode() in (each / "environ").read_bytes().split(b"\0"):
                    found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found


@pytest.fixture
def start(tmp_path) -> Iterator:
    """`start(folder, way, terminal, ...)` starts the recipe."""
    for name, lines in {"train": slice(0, 8), "test": slice(8, 12)}.items():
        tasks = (ROOT / "recipes" / "tiny" / "train.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / f"{name}.jsonl").write_text("".join(tasks[lines]))
    given = {"tasks": tmp_path / "train.jsonl", "eval_tasks": tmp_path / "test.jsonl"}
    started: list[Started] = []

    def start(
        folder: Path, way: str = "python", terminal: bool = True, imports: bool = False, **more: object
    ) -> Started:
        options = {**given, **OPTIONS, "output_dir": folder, **more}
        command = [*WAYS[way], str(QUICKSTART)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        temporary = tmp_path / f"tmp-{len(started)}"
        temporary.mkdir()
        started.append(Started(command, terminal, temporary, imports))
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)


TELLS = "--resume_from_checkpoint true to go on from there."


@pytest.mark.slow
def test_the_train_command_waits_for_its_run(start, tmp_path):
    """It is in the terminal's foreground group, too, and gives the prompt back when the run has saved."""
    run = start(tmp_path / "run", "train", max_steps=400)
    run.waits_for("step 0: greedy")
    run.interrupt()
    assert run.ends() != 0
    assert "Traceback" not in run.output
    assert run.output.index(TELLS) < run.output.index("the prompt is back")
    assert run.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_two_ranks_save_together(start, tmp_path, terminal):
    """The launcher passes on what both have got from the terminal: still it is one wish, told of once."""
    run = start(tmp_path / "run", "two ranks", terminal, max_steps=400)
    run.waits_for("step 0: greedy")
    run.interrupt()
    run.ends()
    assert run.output.count("Ctrl-C: the run ends after this step") == 1
    assert run.output.count(TELLS) == 1
    assert len(steps_of(tmp_path / "run")) == 1
    assert run.left() == []


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_at_once(start, tmp_path):
    run = start(
        tmp_path / "run", max_steps=400, per_device_eval_batch_size=1, eval_tasks="recipes/tiny/test.jsonl"
    )
    run.waits_for("Database: ")
    time.sleep(3)  # an evaluation of 200 episodes, one after the other, is under way
    run.interrupt()
    run.waits_for("A second one ends it at once.")  # two that come before it looks up are one
    time.sleep(1.5)
    run.interrupt()
    assert run.ends() == 130, run.output
    assert (
        "Ctrl-C ended it at once. --resume_from_checkpoint true goes on from the last checkpoint."
        in run.output
    )
    assert "Traceback" not in run.output
    assert run.left() == []


LOCAL = "local" if shutil.which("mysqld") or shutil.which("mariadbd") else "sqlite"


@pytest.mark.parametrize("count", [pytest.param(4, marks=pytest.mark.slow), pytest.param(12, marks=LONG)])
def test_ctrl_c_at_random_moments(count, start, tmp_path):
    """While it imports, starts its database, plays, trains, evaluates, saves or closes; in each of the ways."""
    begin = time.monotonic()
    unbroken = start(tmp_path / "unbroken", terminal=False, database=LOCAL)
    assert unbroken.ends() == 0, unbroken.output
    seconds = time.monotonic() - begin

    moments, runs, told, interrupted = random.Random(15), [], 0, 0
    ways = [(way, terminal) for terminal in (True, False) for way in ("python", "launcher")]
    # in a short run most moments are before the training, of which a Ctrl-C tells
    while interrupted < count or (told < count / 4 and interrupted < 3 * count):
        if not runs or (runs[-1] / "adapter_model.safetensors").exists():
            runs.append(tmp_path / f"run-{len(runs)}")
        way, terminal = ways[interrupted % len(ways)]
        begin, moment = time.monotonic(), moments.uniform(0.2, 1.0) * seconds
        imports = interrupted % 5 == 0  # which takes longer than the rest
        run = start(runs[-1], way, terminal, imports, database=LOCAL)
        while (passed := time.monotonic() - begin) < moment and run.process.poll() is None:
            time.sleep(0.05)
        if run.process.poll() is None:
            interrupted += 1
            run.interrupt()
        elif not imports:  # it was faster than the one before, or had less to do
            seconds = passed
        run.ends()
        told += TELLS in run.output
        assert run.left() == [], run.output
    assert told >= count / 4
    while not (runs[-1] / "adapter_model.safetensors").exists():
        assert start(runs[-1], terminal=False, database=LOCAL).ends() == 0
    for each in runs:
        same_run(each, tmp_path / "unbroken")


def steps_of(folder: Path) -> list[int]:
    return sorted(int(each.name.removeprefix("checkpoint-")) for each in folder.glob("checkpoint-*"))


def lines_of(folder: Path, name: str) -> list[dict]:
    """Of a JSONL file, without what is measured in seconds."""
    clocks = ("seconds", "runtime", "per_second", "step_time", "profiling")

    def timeless(value):
        if isinstance(value, dict):
            return {n: timeless(each) for n, each in value.items() if not any(clock in n for clock in clocks)}
        return [timeless(each) for each in value] if isinstance(value, list) else value

    entries = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [timeless(entry) for entry in entries if "train_loss" not in entry]  # of the process


def same_run(one: Path, other: Path) -> None:
    assert equal(*(load_file(run / "adapter_model.safetensors") for run in (one, other)))
    for name in ("episodes.jsonl", "metrics.jsonl", "tasks.jsonl"):
        assert lines_of(one, name) == lines_of(other, name)


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_resume(start, tmp_path):
    """At a terminal, after the first step; the resumed run ends as the one that nobody stopped."""
    unbroken = start(tmp_path / "unbroken", terminal=False, imports=True, max_steps=4)
    assert unbroken.ends() == 0, unbroken.output

    run = start(tmp_path / "run", max_steps=4)
    run.waits_for("step 0: held-out greedy accuracy")
    run.interrupt()
    assert run.ends() == 130, run.output
    (step,) = steps_of(tmp_path / "run")
    assert (
        "Ctrl-C: the run ends after this step, with a checkpoint. A second one ends it at once." in run.output
    )
    assert (
        f"Ctrl-C ended the run after step {step} of 4. Start it again with --resume_from_checkpoint true to go on "
        "from there." in run.output
    )
    assert "Traceback" not in run.output
    assert run.left() == []

    resumed = start(tmp_path / "run", terminal=False, max_steps=4)
    assert resumed.ends() == 0, resumed.output
    assert f"The run goes on from {tmp_path / 'run'}/checkpoint-{step}." in resumed.output
    same_run(tmp_path / "run", tmp_path / "unbroken")
    plain_lines(unbroken.output)


def plain_lines(output: str) -> None:
    """What a piped run of four steps writes: a line for each step, no bar, no warning twice."""
    lines = output.splitlines()
    assert "\r" not in output
    assert "it/s" not in output
    steps = [line.partition(":")[0] for line in lines if ": reward " in line]
    assert steps == [f"step {step} of 4" for step in (1, 2, 3, 4)]
    warned = [line for line in lines if "arning" in line]
    assert len(warned) == len(set(warned)), warned


@pytest.mark.parametrize(
    ("command", "launches"),
    [
        ("/venv/bin/python /venv/bin/trl-dbbench train quickstart", True),
        ("python3 -m trl_dbbench train quickstart", True),
        ("/venv/bin/python /venv/bin/accelerate launch recipes/grpo_dbbench.py", True),
        ("python -m accelerate.commands.launch --quiet recipes/grpo_dbbench.py", True),
        ("/venv/bin/python /venv/bin/torchrun recipes/grpo_dbbench.py", True),
        # a script that starts a run in the background, and ends
        ("bash /home/ann/accelerate/start.sh accelerate_configs/cpu.yaml", False),
        ("bash train-with-accelerate.sh", False),
    ],
)
def test_which_parent_is_a_launcher(command: str, launches: bool) -> None:
    """After `trl-dbbench train` was killed its run went on alone, and one whose parent had a path with
    "accelerate" in it was stopped."""
    assert is_launcher(command.replace(" ", "\0").encode()) == launches


def test_a_container_s_first_process_has_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `docker run IMAGE python recipes/grpo_dbbench.py`, and in what `docker exec` starts."""
    monkeypatch.setattr(os, "getppid", lambda: 0)
    stop_with_launcher()


def test_a_parent_that_proc_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `sudo -u agent python recipes/grpo_dbbench.py` has, where /proc is mounted with hidepid=2."""
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)  # above the largest number of a process
    stop_with_launcher()
