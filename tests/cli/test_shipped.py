"""The recipes that come with the package: found by name, started, copied, and all of them in the wheel."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from launching import ROOT
from typer.testing import CliRunner

from trl_dbbench.cli import app
from trl_dbbench.cli import bundled as shipped
from trl_dbbench.errors import ConfigError

RECIPES, CONFIGS = ROOT / "recipes", ROOT / "accelerate_configs"


def command(*words: object, **options: object) -> list[str]:
    """What follows `python -m accelerate.commands.launch --quiet`, with files by their names."""
    settings = {"num_processes": None, "config_file": None, **options}
    given = shipped.launch_command(Path(words[0]), [str(word) for word in words[1:]], **settings)
    assert given[:4] == [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    return [Path(word).name if word.startswith("/") else word for word in given[4:]]


# --- which script, which configuration ------------------------------------------------------------


def test_the_quickstart_is_started_as_the_readme_starts_it():
    started = " ".join(command(RECIPES / "quickstart.yaml", "--max_steps", 2))
    assert started == "--config_file cpu.yaml grpo_dbbench.py --config quickstart.yaml --max_steps 2"


@pytest.mark.parametrize(
    ("yaml_keys", "options", "settings", "expected"),
    [
        ("tasks: a", [], {}, "--config_file single_gpu.yaml grpo_dbbench.py"),
        ("recipe: rm", [], {}, "--config_file single_gpu.yaml rm_dbbench.py"),
        ("use_cpu: true", ["--use_cpu", "false"], {}, "--config_file single_gpu.yaml grpo_dbbench.py"),
        ("tasks: a", ["--use_cpu"], {}, "--config_file cpu.yaml grpo_dbbench.py"),
        ("tasks: a", ["--use-cpu=true", "--seed", "1"], {}, "--config_file cpu.yaml grpo_dbbench.py"),
        (
            "use_cpu: true",
            [],
            {"num_processes": 2},
            "--config_file cpu.yaml --num_processes 2 --multi_gpu --main_process_port 0 grpo_dbbench.py",
        ),
        *(
            (
                "use_cpu: true",
                [],
                {"num_processes": 2, "config_file": named},
                f"--config_file {name} --num_processes 2 --multi_gpu --main_process_port 0 grpo_dbbench.py",
            )
            for named, name in (
                (str(RECIPES.parent / "accelerate_configs" / "cpu.yaml"), "cpu.yaml"),
                ("single_gpu", "single_gpu.yaml"),
            )
        ),
        (
            "tasks: a",
            [],
            {"num_processes": 4},
            "--config_file multi_gpu.yaml --num_processes 4 --main_process_port 0 grpo_dbbench.py",
        ),
        (
            "recipe: sft",
            [],
            {"num_processes": 4, "config_file": "zero3"},
            "--config_file zero3.yaml --num_processes 4 --main_process_port 0 sft_dbbench.py",
        ),
    ],
)
def test_what_is_started(tmp_path, yaml_keys, options, settings, expected):
    recipe = tmp_path / "my.yaml"
    recipe.write_text(yaml_keys)
    assert command(recipe, *options, **settings) == [*expected.split(), "--config", "my.yaml", *options]


def test_a_file_comes_before_a_shipped_recipe_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shipped.find("recipe", "quickstart", shipped.recipes()) == RECIPES / "quickstart.yaml"
    Path("quickstart").write_text("tasks: mine.jsonl")
    assert shipped.find("recipe", "quickstart", shipped.recipes()) == Path("quickstart")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["doctor", "--config", "quickstart"], "--config stands where the recipe should. Name that first"),
        (["train", "--max_steps", "5", "quickstart"], "--max_steps stands where the recipe should."),
        (["train", "quikstart"], "no recipe 'quikstart': no such file from .* Did you mean quickstart\\?"),
        (["train", "quickstart", "--config-file", "zero4"], "no accelerate configuration 'zero4'.* zero3\\?"),
        (["train", "broken.yaml"], "'broken.yaml' cannot be read as YAML"),
        (["train", "text.yaml"], "'text.yaml' holds no keys"),
        (["train", "other.yaml"], "'other.yaml' has recipe: 'dpo'; allowed: grpo, ppo, sft, rm, prm"),
        (["recipes", "--out", "my.yaml"], "say what to copy"),
    ],
)
def test_what_cannot_be_started(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("broken.yaml").write_text("a: [")
    Path("text.yaml").write_text("only words")
    Path("other.yaml").write_text("recipe: dpo")
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize("name", sorted(shipped.recipes()))
def test_the_files_that_a_recipe_names_lie_beside_it(name):
    """Wherever it is started from; what is left are hub ids, and files that its page says how to make."""
    recipe = yaml.safe_load(shipped.recipes()[name].read_text())
    for key in ("model_name_or_path", "tasks", "eval_tasks", "few_shot_memory", "prelude"):
        named = recipe.get(key) or ""
        if (ROOT / named).exists() or (RECIPES / named).exists():
            assert not named or (RECIPES / named).exists(), f"{key}: {named}"


# --- lists and copies -----------------------------------------------------------------------------


def test_the_list_says_what_each_is_for():
    listed = CliRunner().invoke(app, ["recipes"], catch_exceptions=False).stdout
    for name in (*shipped.recipes(), *shipped.scripts(), *shipped.accelerate_configs()):
        assert sum(line.split()[:1] == [name] for line in listed.splitlines()) == 1
    assert (
        "Watch GRPO teach a model to use a database: no GPU, no Docker, no download, two minutes.\n" in listed
    )
    assert "Train an agent by GRPO on a database.\n" in listed


def test_a_copy_reads_what_was_copied_with_it(tmp_path):
    words = ["recipes", "quickstart", "--out", str(tmp_path / "new" / "my.yaml")]
    CliRunner().invoke(app, words, catch_exceptions=False)
    copied = tmp_path / "new"
    assert sorted(path.name for path in copied.iterdir()) == ["my.yaml", "tiny"]
    keys = yaml.safe_load((copied / "my.yaml").read_text())
    for key in ("tasks", "eval_tasks"):
        assert (copied / keys[key]).read_bytes() == (RECIPES / keys[key]).read_bytes()
    assert (copied / keys["model_name_or_path"] / "model.safetensors").exists()
    with pytest.raises(ConfigError, match=r"my.yaml: already there; nothing was copied"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_second_recipe_is_copied_beside_the_first(tmp_path):
    assert [path.name for path in shipped.copy("quickstart", tmp_path / "my.yaml")] == [
        *("my.yaml", "model", "train.jsonl", "test.jsonl")
    ]
    assert shipped.copy("ppo_quickstart", tmp_path / "my2.yaml") == [tmp_path / "my2.yaml"]
    (tmp_path / "tiny" / "train.jsonl").write_text("my own tasks\n")
    (tmp_path / "tiny" / "model" / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"^\S*tiny/model, \S*tiny/train.jsonl: already there"):
        shipped.copy("quickstart", tmp_path / "my3.yaml")
    assert (tmp_path / "tiny" / "train.jsonl").read_text() == "my own tasks\n"


def test_a_copy_that_is_stopped_leaves_nothing(tmp_path, monkeypatch):
    """By a disk that is full, or by Ctrl-C, while the second of four is copied."""
    for error, says in (
        (OSError(28, "No space left on device"), "cannot be written, nothing was copied: .* No space left"),
        (KeyboardInterrupt(), ""),
    ):

        def half(source, to, error=error):
            to.mkdir()
            (to / "config.json").write_text("{")
            raise error

        monkeypatch.setattr(shipped.shutil, "copytree", half)
        with pytest.raises(ConfigError if says else KeyboardInterrupt, match=says):
            shipped.copy("quickstart", tmp_path / "my.yaml")
        assert [path for path in tmp_path.rglob("*") if path.name != "tiny"] == []
    monkeypatch.undo()
    assert len(shipped.copy("quickstart", tmp_path / "my.yaml")) == 4


def test_a_copy_below_a_file_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"my\.yaml' cannot be written, nothing was copied: "):
        shipped.copy("quickstart", tmp_path / "file" / "my.yaml")


def test_a_script_is_copied_with_the_one_that_it_imports(tmp_path):
    written = shipped.copy("ppo_dbbench.py", tmp_path / "my_ppo.py")
    assert [path.name for path in written] == ["my_ppo.py", "grpo_dbbench.py"]


def test_without_out_it_is_shown():
    shown = CliRunner().invoke(app, ["recipes", "zero3"], catch_exceptions=False).stdout
    assert shown == (CONFIGS / "zero3.yaml").read_text()


# --- the wheel ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, because setuptools leaves a folder beside its sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("trl_dbbench", "recipes", "accelerate_configs"):
        shutil.copytree(ROOT / name, source / name)  # caches too, as they lie in a folder that is worked in
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    subprocess.run([*build, "--wheel-dir", source / "dist"], cwd=source, check=True)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_has_all_that_a_training_needs(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(inside / path.relative_to(folder.parent))
        for inside, folder in (
            (Path(), ROOT / "trl_dbbench"),
            (Path("trl_dbbench"), RECIPES),
            (Path("trl_dbbench"), CONFIGS),
        )
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    beside = {name for name in names if ".dist-info/" in name}
    assert names - beside == expected
    assert any(name.endswith("licenses/LICENSE") for name in beside)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The `bin` of an environment that has the wheel and sees this one's packages, but not this repository."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    ours = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(ours) + "\n")  # their own .pth files are not read
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*install, "--force-reinstall", wheel], check=True)
    return folder / "bin"


@pytest.fixture
def run(installed, tmp_path) -> Iterator[object]:
    """Runs a program of the environment in an empty folder; returns its output."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(program: str, *words: object) -> str:
        ended = subprocess.run(
            [installed / program, *map(str, words)],
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    yield run


@pytest.mark.slow
def test_the_installed_package_finds_its_own_recipes(run, installed):
    code = "import trl_dbbench.cli.bundled as s; print(s.recipes()['quickstart'])"
    assert run("python", "-c", code).startswith(str(installed.parent / "lib"))
    assert "trl-dbbench train NAME" in run("python", "-m", "trl_dbbench", "recipes")


@pytest.mark.slow
def test_from_nothing_but_the_wheel_to_a_merged_model(run, tmp_path):
    """The quickstart as it is, but for its length."""
    options = ("--max_steps", 2, "--eval_steps", 2, "--eval_on_start", "false")
    trained = run("trl-dbbench", "train", "quickstart", *options)
    assert "held-out greedy accuracy" in trained
    assert "The model is in runs/quickstart, every episode in runs/quickstart/episodes.jsonl." in trained
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert run("trl-dbbench", "report", "runs/quickstart").startswith("runs/quickstart/report.html: ")
    evaluated = run("trl-dbbench", "eval", "runs/quickstart")
    held_out = trained.rpartition("step 2: held-out greedy accuracy ")[2].split()[0]
    assert f"/200 = {held_out} %" in evaluated

    run("trl-dbbench", "recipes", "quickstart", "--out", "my.yaml")  # with the tasks that it reads
    play = ("--tasks", "tiny/test.jsonl", "--limit", 40)
    assert "McNemar's exact test: p = " in run(
        "trl-dbbench", "compare", "--adapter", "runs/quickstart", *play
    )
    run("trl-dbbench", "merge", "--adapter", "runs/quickstart", "--out", "runs/merged")
    run("trl-dbbench", "eval", "runs/quickstart", *play, "--json", "adapter.json")
    run("trl-dbbench", "eval", "--model", "runs/merged", *play, "--json", "merged.json")
    assert "wins 0, losses 0, ties 40" in run("trl-dbbench", "compare", "adapter.json", "merged.json")
    texts = [
        [[turn["text"] for turn in episode["turns"]] for episode in json.loads(path.read_text())["episodes"]]
        for path in (tmp_path / "adapter.json", tmp_path / "merged.json")
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 40


# --- the page ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path, monkeypatch):
    """Run the first part's lines in order, in one folder; of `train`, doctor checks the settings."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "training.md").read_text().partition("## Train from Python")[0]
    lines = [line for line in page.splitlines() if line.startswith("trl-dbbench ")]
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "train":
            words[0] = "doctor"
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, f"{line}: {done.stdout}"
    assert len(lines) == 8
