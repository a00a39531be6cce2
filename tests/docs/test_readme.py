"""The Python of README.md, word for word, in an empty folder on a CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_snippet_trains(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps = [json.loads(line)["step"] for line in (tmp_path / "runs/first/metrics.jsonl").open()]
    assert steps[-1] == 3


def test_the_fields_of_an_episode_that_it_names_are_there(tmp_path: Path) -> None:
    from trl_dbbench.runs.records import EpisodeRecord, TurnRecord

    (told,) = re.findall(r"`episodes\.jsonl` with every episode \((.*?)\)", README, re.DOTALL)
    fields = re.findall(r"`(\w+)`", told)
    known = EpisodeRecord.__annotations__.keys() | TurnRecord.__annotations__.keys()
    assert fields and set(fields) <= known, set(fields) - known


def test_the_keys_that_it_names_are_there() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"Ten keys matter most:\n(.*?)\n\n", README, re.DOTALL)
    keys = re.findall(r"`(\w+)`", told)
    assert len(keys) == 10
    assert [key for key in keys if f"| `{key}` |" not in reference] == []
