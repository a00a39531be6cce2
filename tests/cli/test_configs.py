"""The accelerate configurations are ones that accelerate reads, and start what their names say; so are the recipes."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate import DistributedType
from accelerate.commands.config.config_args import load_config_from_file
from forking import Forked

from trl_dbbench.cli.bundled import script_of
from trl_dbbench.cli.start import RecipeParser

ROOT = Path(__file__).parents[2]
ACCELERATE_CONFIGS = ROOT / "accelerate_configs"

KINDS = {
    "cpu": DistributedType.NO,
    "single_gpu": DistributedType.NO,
    "multi_gpu": DistributedType.MULTI_GPU,
    "zero2": DistributedType.DEEPSPEED,
    "zero3": DistributedType.DEEPSPEED,
    "fsdp2": DistributedType.FSDP,
    "multi_node": DistributedType.MULTI_GPU,
    "multi_node_zero3": DistributedType.DEEPSPEED,
}
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_no_unknown_keys_and_is_documented(name, tmp_path, monkeypatch):
    recipe = ROOT / "recipes" / f"{name}.yaml"
    monkeypatch.syspath_prepend(ROOT / "recipes")
    arguments = runpy.run_path(str(script_of(recipe)), run_name="recipe")["ARGUMENTS"]
    on_a_cpu = ["--use_cpu", "true", "--bf16", "false", "--output_dir", str(tmp_path)]
    options = ["--config", str(recipe), *on_a_cpu]
    RecipeParser(arguments).parse_args_and_config(options, fail_with_unknown_args=True)
    assert f"`recipes/{name}.yaml`" in (ROOT / "docs" / "training.md").read_text()


def test_every_accelerate_config_is_listed_here():
    assert {path.stem for path in ACCELERATE_CONFIGS.iterdir()} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_reads_it(name):
    config = load_config_from_file(str(ACCELERATE_CONFIGS / f"{name}.yaml"))  # refuses unknown keys
    assert config.distributed_type == KINDS[name]
    assert config.use_cpu == (name == "cpu")
    assert config.mixed_precision == ("no" if name == "cpu" else "bf16")
    assert (config.num_processes > 1) == (config.distributed_type != DistributedType.NO)
    assert bool(config.deepspeed_config) == (config.distributed_type == DistributedType.DEEPSPEED)
    assert (config.num_machines > 1) == name.startswith("multi_node")
    assert bool(config.fsdp_config) == (config.distributed_type == DistributedType.FSDP)


def test_the_sharded_ones_are_of_the_stage_in_their_name():
    assert load_config_from_file(str(ACCELERATE_CONFIGS / "zero2.yaml")).deepspeed_config["zero_stage"] == 2
    for name in ("zero3", "multi_node_zero3"):
        config = load_config_from_file(str(ACCELERATE_CONFIGS / f"{name}.yaml"))
        assert config.deepspeed_config["zero_stage"] == 3
    assert load_config_from_file(str(ACCELERATE_CONFIGS / "fsdp2.yaml")).fsdp_config["fsdp_version"] == 2


@pytest.mark.parametrize(
    "flags, ranks", [([], 1), (["--multi_gpu", "--num_processes", "2", "--main_process_port", "0"], 2)]
)
def test_cpu_starts_one_rank_or_several(tmp_path, flags, ranks):
    script = tmp_path / "ranks.py"
    script.write_text(
        "import os\nfrom accelerate import PartialState as S\ns = S(cpu=True)\n"
        # one write: print's parts may come between those of another rank
        "os.write(1, f'rank {s.num_processes} {s.device.type}\\n'.encode())\n"
    )
    # as the command `accelerate launch` does; cpu=True is what `use_cpu: true` of a recipe comes to
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(ACCELERATE_CONFIGS / "cpu.yaml"), *flags, str(script)]
    run = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert output.splitlines() == [f"rank {ranks} cpu"] * ranks
