"""Files that come with the package: recipes with their scripts, models and tasks, and accelerate
configurations.

```
in the repository     recipes/                accelerate_configs/
in an installation    trl_dbbench/recipes/    trl_dbbench/accelerate_configs/     (setup.py says so)
```

A recipe is a YAML file whose key `recipe:` names its training script.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from filecmp import cmp
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from trl_dbbench.errors import ConfigError, one_line
from trl_dbbench.utils.lookup import nearest

SCRIPT_KEY = "recipe"
SCRIPTS = ("grpo", "ppo", "sft", "rm", "prm", "environment")
"""Values of `recipe:`; the first is the default."""

PATHS = (
    *("model_name_or_path", "reference_model_name_or_path", "adapter_name_or_path", "chat_template"),
    *("tasks", "eval_tasks", "system_prompt", "few_shot_memory", "prelude"),
    *("episodes", "pairs", "steps", "continue_with", "reward_funcs"),
)
"""Keys of a recipe whose values may be files or folders to read."""


def shipped(folder: str) -> Path:
    """Return the folder `recipes` or `accelerate_configs`, from the installation or the repository."""
    package = Path(__file__).parents[1]
    return next(each / folder for each in (package, package.parent) if (each / folder).is_dir())


def recipes() -> dict[str, Path]:
    """Return the recipes that come with the package: name -> YAML file."""
    return {path.stem: path for path in sorted(shipped("recipes").glob("*.yaml"))}


def accelerate_configs() -> dict[str, Path]:
    """Return the accelerate configurations that come with the package: name -> YAML file."""
    return {path.stem: path for path in sorted(shipped("accelerate_configs").glob("*.yaml"))}


def scripts() -> dict[str, Path]:
    """Return the training scripts: file name -> file."""
    return {f"{name}_dbbench.py": shipped("recipes") / f"{name}_dbbench.py" for name in SCRIPTS}


def find(kind: str, name_or_path: str, ours: Mapping[str, Path]) -> Path:
    """Return the user's file at this path, or else the shipped file of this name.

    Args:
        kind: the kind of file, for the error text: `"recipe"`.
        ours: the shipped files by name.

    Raises:
        ConfigError: if there is neither.
    """
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    name = name_or_path if name_or_path in ours else name_or_path.removesuffix(".yaml")
    if name in ours:
        return ours[name]
    near = nearest(name, ours)
    raise ConfigError(
        f"no {kind} {name_or_path!r}: no such file from {Path.cwd()}, and none of that name is shipped."
        + (f" Did you mean {near}?" if near else "")
        + f" Shipped: {', '.join(ours)}."
    )


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys; PyYAML's own silently keeps the last one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in names[:place]:
                raise yaml.MarkedYAMLError(None, None, f"the key {key.value} stands twice", key.start_mark)
        return node


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the keys of a recipe."""
    try:
        keys = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"'{path}' cannot be read as YAML: {one_line(error)}") from None
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(f"'{path}' holds no keys; a recipe has lines such as `tasks: train.jsonl`.")
    return keys


def script_of(path: Path) -> Path:
    """Return the script that a recipe is for."""
    name = read_recipe(path).get(SCRIPT_KEY, SCRIPTS[0])
    if name not in SCRIPTS:
        raise ConfigError(f"'{path}' has recipe: {name!r}; allowed: {', '.join(SCRIPTS)}.")
    return scripts()[f"{name}_dbbench.py"]


# --- paths in recipes -----------------------------------------------------------------------------


def with_paths(keys: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return a recipe's keys, with `change` applied to every value that may be a path (see `PATHS`)."""

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(each) for each in value]
        if not isinstance(value, str) or not value:
            return value
        before, path, after = _around_path(value)
        return f"{before}{change(path)}{after}"

    return {key: changed(value) if key in PATHS else value for key, value in keys.items()}


def _around_path(value: str) -> tuple[str, str, str]:
    """Split a value into the text before its path, the path, and the text after it: rewards may be
    `model:PATH` or `FILE.py:name`."""
    head, colon, tail = value.partition(":")
    if head in ("model", "prm"):
        return f"{head}{colon}", tail, ""
    if head.endswith(".py"):
        return "", head, f"{colon}{tail}"
    return "", value, ""


def is_there(path: str | Path) -> bool:
    """Return whether a file or folder exists; `path` may be any text, such as a long system prompt."""
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):
        return False


def copy(name: str, out: Path) -> list[Path]:
    """Copy a recipe, script or configuration, with the files beside it that it reads; return the new paths.

    Files that already exist with the same contents are skipped.

    Raises:
        ConfigError: if `out` exists, another target exists with different contents, or writing fails.
    """
    source = find("recipe", name, {**recipes(), **accelerate_configs(), **scripts()})
    copies = {source: out}
    if source.parent == shipped("recipes") and source.suffix == ".yaml":
        copies |= {source.parent / each: out.parent / each for each in _beside(source)}
    if source.name == "ppo_dbbench.py":  # which it imports
        copies[source.parent / "grpo_dbbench.py"] = out.parent / "grpo_dbbench.py"
    copies = {each: to for each, to in copies.items() if to == out or not _is_copied(each, to)}
    if there := [str(each) for each in copies.values() if each.exists()]:
        raise ConfigError(
            f"{', '.join(there)}: already there; nothing was copied. Name another place by --out."
        )
    try:
        for each, to in copies.items():
            to.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if each.is_dir() else shutil.copy)(each, to)
    except BaseException as error:  # a full disk, or Ctrl-C
        for to in copies.values():
            shutil.rmtree(to, ignore_errors=True)
            with suppress(OSError):
                to.unlink()
        if isinstance(error, OSError):
            raise ConfigError(f"'{out}' cannot be written, nothing was copied: {one_line(error)}.") from None
        raise
    return list(copies.values())


def _is_copied(source: Path, to: Path) -> bool:
    """Return whether a file, or every file of a folder, already has an identical copy at `to`."""
    files = [each for each in source.rglob("*") if each.is_file()] if source.is_dir() else [source]
    copies = {each: to / each.relative_to(source) for each in files}
    return all(copy.is_file() and cmp(each, copy, shallow=False) for each, copy in copies.items())


def _beside(recipe: Path) -> list[str]:
    """Return the paths in a recipe that exist relative to its folder."""
    found: list[str] = []

    def note(path: str) -> str:
        found.extend([path] if is_there(recipe.parent / path) else [])
        return path

    with_paths(read_recipe(recipe), note)
    return found


def about(path: Path) -> str:
    """Return the first sentence of a file's opening comment or docstring."""
    lines = path.read_text(encoding="utf-8").removeprefix('"""').splitlines()
    head = takewhile(lambda line: line.startswith("#") or path.suffix == ".py", lines)
    return re.split(r"(?<=\.)(?: |$)", " ".join(line.removeprefix("# ") for line in head), maxsplit=1)[0]


# --- how a recipe is started ----------------------------------------------------------------------


def launch_command(
    recipe: Path, options: Sequence[str], num_processes: int | None, config_file: str | None
) -> list[str]:
    """Return the command that starts a recipe with accelerate's launcher.

    Args:
        options: command-line options of the recipe, which override its keys.
        num_processes: number of ranks, one per GPU; by default the configuration's.
        config_file: an accelerate configuration: a file, or the name of a shipped one. By default `cpu` for a
            recipe with `use_cpu: true`, else `single_gpu`, or `multi_gpu` for several processes.

    Raises:
        ConfigError: if there is no such configuration.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    several = num_processes is not None and num_processes > 1
    if config_file is None:
        config_file = "cpu" if wants_cpu(recipe, options) else "multi_gpu" if several else "single_gpu"
    configuration = find("accelerate configuration", config_file, accelerate_configs())
    command += ["--config_file", str(configuration)]
    if num_processes is not None:
        command += ["--num_processes", str(num_processes)]
    settings = read_recipe(configuration)
    if several and settings.get("distributed_type") in ("NO", False):  # a bare NO is false in YAML
        command += ["--multi_gpu"]  # makes the launcher start ranks; use_cpu keeps them off GPUs
    if several and settings.get("num_machines", 1) == 1:
        command += ["--main_process_port", "0"]  # any free port
    return [*command, str(script_of(recipe)), "--config", str(recipe), *options]


def wants_cpu(recipe: Path, options: Sequence[str]) -> bool:
    """Return whether a recipe, with these options, sets `use_cpu`."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    in_recipe = read_recipe(recipe).get("use_cpu", False)
    parser.add_argument("--use_cpu", "--use-cpu", nargs="?", const="true", default=in_recipe)
    given = parser.parse_known_args(options)[0].use_cpu
    return str(given).lower() in ("true", "1", "yes", "y", "t")


def launch(command: list[str]) -> None:
    """Run accelerate's launcher until the run ends.

    A terminal sends Ctrl-C to all of its processes. The run saves and ends, and this process waits for it;
    `accelerate launch` would end at once with a traceback. While the run still imports its libraries, SIGINT
    stays pending until `ordered_end`, because processes inherit their parent thread's signal mask. SIGTERM,
    which `kill` and `docker stop` send to this process alone, is passed on. Ignored signals stay ignored.

    Raises:
        SystemExit: with the launcher's status if the run fails, 130 if Ctrl-C ended it, 143 if SIGTERM did.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser

    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if not (started := _children()):
            raise SystemExit(128 + number)
        for process in started:
            os.kill(process, number)

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        signal.SIGINT: lambda number, frame: received.append(number),
        signal.SIGTERM: pass_on,
    }
    for number, handler in handlers.items():
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)  # processes that it starts do not inherit the handler
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # gets Ctrl-C, which is blocked here
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        launch_command(launch_command_parser().parse_args(command[3:]))
    except (Exception, SystemExit) as error:
        # the launcher turns every status into 1; the one for several ranks handles signals itself
        ended_by: int | None = received[0] if received else getattr(error, "sigval", None)
        if ended_by is None:
            raise
        raise SystemExit(128 + ended_by) from None


def _children() -> list[int]:
    """Return the ids of the processes that this thread has started."""
    with suppress(OSError):  # not on Linux
        return [int(process) for process in Path("/proc/thread-self/children").read_text().split()]
    return []
