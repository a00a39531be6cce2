"""What `make demo` has left in runs/quickstart, through the commands that the README names next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import ROOT
from required import lacking
from training import episodes_in

from trl_dbbench.runs.records import Accuracy

RUN = ROOT / "runs" / "quickstart"


@pytest.fixture(scope="module")
def held_out() -> dict[int, Accuracy]:
    """The held-out evaluations of the demo, by step."""
    if not (RUN / "adapter_model.safetensors").exists():
        lacking("demo", "make demo has left nothing in runs/quickstart")
    steps: dict[int, list[dict]] = {}
    for episode in episodes_in(RUN):
        if episode["phase"] == "eval":
            steps.setdefault(episode["step"], []).append(episode)
    return {step: Accuracy().add(episodes) for step, episodes in sorted(steps.items())}


def test_it_learns(held_out: dict[int, Accuracy]) -> None:
    first, *_, last = held_out.values()
    assert first.rate() < 0.6 < 0.95 < last.rate()


def test_eval_prints_the_runs_own_final_figure(held_out: dict[int, Accuracy], command: Callable) -> None:
    *_, last = held_out.values()
    status, shown = command("eval", RUN)
    assert status in (0, None)
    assert last.describe() in shown


def test_compare_prints_the_runs_first_and_last_figure(
    held_out: dict[int, Accuracy], command: Callable, tmp_path: Path
) -> None:
    first, *_, last = held_out.values()
    status, shown = command("compare", "--adapter", RUN, "--json", tmp_path / "comparison.json")
    assert status in (0, None)
    for accuracy in (first, last):
        assert f"{100 * accuracy.rate():.1f} %" in shown
    assert "McNemar's exact test: p = " in shown and "now right" in shown
    (pair,) = json.loads((tmp_path / "comparison.json").read_text())["pairings"]
    assert pair["mcnemar_p"] < 1e-10
    right = [accuracy.counts["overall"][0] for accuracy in (first, last)]
    assert pair["wins"] - pair["losses"] == right[1] - right[0]
