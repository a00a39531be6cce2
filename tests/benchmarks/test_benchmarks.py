"""The benchmarks can be started; what they measure is nobody's assertion."""

from __future__ import annotations

import runpy

import pytest
from launching import ROOT

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_process_that_a_benchmark_starts_can_import_it(
    path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `multiprocessing` does, under another name than any module has."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    runpy.run_path(str(path), run_name="__mp_main__")
