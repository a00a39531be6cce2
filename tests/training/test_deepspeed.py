"""Two ranks under DeepSpeed train as two that each have the whole model. On CPUs, where it works with gloo.

Needs DeepSpeed, or a folder with it that `TRL_DBBENCH_DEEPSPEED` names (`.ci/deepspeed` makes one).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from forking import Forked
from launching import CONFIGS, RECIPE, ROOT, TWO_RANKS, finish, launch, seen, small
from required import lacking
from safetensors.torch import load_file
from test_ranks import check_divided, check_shared
from training import episodes_in
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow

ADAPTER = "adapter_model.safetensors"
STEPS = ["--max_steps", "2", "--save_strategy", "steps", "--save_steps", "1"]
WHOLE = ["--use_peft", "false", "--learning_rate", "1e-4", "--beta", "0.1"]
"""Full weights, and a reference, which ZeRO-3 divides, too."""


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    folder = os.environ.get("TRL_DBBENCH_DEEPSPEED")
    variables = {**os.environ, "DS_ACCELERATOR": "cpu"}
    if folder and (Path(folder) / "deepspeed").is_dir():
        # ninja, with which it compiles what its ranks communicate with
        variables |= {"PYTHONPATH": folder, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    elif find_spec("deepspeed") is None:
        lacking("deepspeed", "no DeepSpeed here: .ci/deepspeed FOLDER, TRL_DBBENCH_DEEPSPEED=FOLDER")
    return variables


def run(environment: dict[str, str], stage: int, *script: object) -> None:
    """A script on two ranks, with the shipped configuration but for the precision. Fails the test if it fails."""
    flags = [f"--config_file={CONFIGS / f'zero{stage}.yaml'}", "--mixed_precision=no", "--num_processes=2"]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", *flags, "--main_process_port=0"]
    launched = Forked(
        [*command, *map(str, script)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    finish(launched)


def turns(folder: Path) -> list[list[str]]:
    return [[turn["text"] for turn in episode["turns"]] for episode in episodes_in(folder)]


def largest_difference(one: Path, other: Path) -> float:
    weights, others = load_file(one), load_file(other)
    assert weights.keys() == others.keys()
    return max(float((weight - others[name]).abs().max()) for name, weight in weights.items())


def test_it_plays_and_trains_as_two_whole_models_do(environment: dict[str, str], tmp_path: Path) -> None:
    usual, two, three = (tmp_path / name for name in ("usual", "two", "three"))
    finish(launch("--output_dir", usual, *STEPS, processes=2))
    run(environment, 2, *small(RECIPE, "--output_dir", two, *STEPS))
    run(environment, 3, *small(RECIPE, "--output_dir", three, *STEPS))
    for divided in (two, three):
        assert (divided / "checkpoint-1" / "global_step1").is_dir(), "DeepSpeed's own"
        assert turns(divided) == turns(usual)
        for place in (Path("checkpoint-1") / ADAPTER, ADAPTER):
            assert largest_difference(divided / place, usual / place) < 1e-5
    assert largest_difference(three / "checkpoint-1" / ADAPTER, three / ADAPTER) > 1e-4, "it went on learning"

    # as if it had been killed after the first step
    killed = tmp_path / "killed"
    shutil.copytree(three, killed, ignore=shutil.ignore_patterns("checkpoint-2"))
    run(environment, 3, *small(RECIPE, "--output_dir", killed, *STEPS, "--resume_from_checkpoint", "true"))
    assert turns(killed) == turns(three)
    assert largest_difference(killed / ADAPTER, three / ADAPTER) == 0


def test_full_weights_with_a_reference(environment: dict[str, str], tmp_path: Path) -> None:
    """What it divides it saves as one model, which can be loaded."""
    finish(launch("--output_dir", tmp_path / "usual", *STEPS, *WHOLE, processes=2))
    run(environment, 3, *small(RECIPE, "--output_dir", tmp_path / "divided", *STEPS, *WHOLE))
    assert turns(tmp_path / "divided") == turns(tmp_path / "usual")
    models = [tmp_path / each / "model.safetensors" for each in ("divided", "usual")]
    assert largest_difference(*models) < 1e-5
    AutoModelForCausalLM.from_pretrained(tmp_path / "divided")


def test_shared_prompts_and_parts_with_one_turn_here_and_three_there(
    environment: dict[str, str], tiny_model: str, tmp_path: Path
) -> None:
    """Every layer's forward is a collective, for which both ranks must be at the same token."""
    run(environment, 3, TWO_RANKS, "shares_prompts,in_parts", tiny_model, tmp_path)
    first, second = seen(tmp_path, "shares_prompts")
    check_shared(first, second)
    check_divided(*seen(tmp_path, "in_parts"))
    assert first["auto"]["norms"]
    assert not second["auto"]["norms"], "ZeRO-3 gathers the weights for the first"
