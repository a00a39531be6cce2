"""Scripts in the Python of another environment, for what cannot be installed beside our own dependencies."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from launching import ROOT
from required import lacking

STARTER = """
import runpy, site, sys
sys.path.insert(0, sys.argv.pop(1))
site.addsitedir(sys.argv.pop(1))  # behind its own packages
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def python_of(part: str) -> str:
    """The environment's Python: `TRL_DBBENCH_OPENENV` names that of `openenv`."""
    variable = f"TRL_DBBENCH_{part.upper()}"
    if variable not in os.environ:
        lacking(part, f"{variable} names no Python with {part}; .ci/trainer-venv makes one")
    return os.environ[variable]


def in_python_of(part: str, script: Path, *words: object) -> list[str]:
    """The words that run a script there, with this environment's packages behind its own."""
    given = (ROOT, sysconfig.get_path("purelib"), script, *words)
    return [python_of(part), "-c", STARTER, *map(str, given)]
