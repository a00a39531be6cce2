"""What is released: whoever builds a commit gets the same wheel, and a list of what it was tested with."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from launching import ROOT
from packaging.requirements import Requirement


def released(folder: Path) -> tuple[str, bytes]:
    """The wheel's digest and the bill of materials of `make dist`, from a clone in this folder."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    # not as a part of the `make test` that runs this
    own = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    # what `install` makes is there already
    subprocess.run(["make", "-o", "install", "dist"], cwd=folder, env=own, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    return hashlib.sha256(wheel.read_bytes()).hexdigest(), (folder / "dist" / "sbom.json").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository's commits, and this is a copy")
def test_a_commit_gives_one_wheel_and_one_bill_of_materials(tmp_path: Path) -> None:
    earlier = os.umask(0o022)
    try:
        first = released(tmp_path / "first")
        os.umask(0o077)
        second = released(tmp_path / "elsewhere" / "second")
    finally:
        os.umask(earlier)
    assert first == second
    bill = json.loads(first[1])
    listed = {f"{each['name']}=={each['version']}" for each in bill["components"]}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert listed == {line for line in lines if not line.startswith("#")}
    assert bill["metadata"]["component"]["name"] == "trl-dbbench"


# --- the ranges of pyproject.toml -----------------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WITHOUT_CAP = {"cryptography", "regex"}
"""Of calendar versions, or with fixes for safety in each."""


@pytest.mark.parametrize("written", PROJECT["dependencies"] + PROJECT["optional-dependencies"]["report"])
def test_every_dependency_has_a_range_that_was_tried(written):
    """`.ci/wheel` installs the lowest version as it is written."""
    required = Requirement(written)
    assert written.startswith(f"{required.name}>=")
    operators = sorted(each.operator for each in required.specifier)
    assert operators == ([">="] if required.name in WITHOUT_CAP else ["<", ">="])
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    assert required.specifier.contains(tested[required.name])
