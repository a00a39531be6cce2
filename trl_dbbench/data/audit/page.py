"""The report of an audit as one HTML file, which makes no network requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trl_dbbench.data.audit import DOUBTS, KINDS, Audited, counts
from trl_dbbench.evaluation.report.page import filters, render

MAX_ENTRIES = 1000
"""Largest number of tasks on the page; the JSON file has all."""

OUTCOMES = {
    "dropped": "Dropped",
    "faulty": "With faults",
    "repaired": "Repaired",
    "sound": "Sound, with doubts",
}
"""Outcome -> heading of its section, in the order of the page."""


def write_page(audited: Sequence[Audited], title: str, out: str | Path) -> Path:
    """Write the page: counts by outcome and kind of finding, then each task that has findings."""
    outcomes, kinds = counts(audited)
    shown = [each for each in audited if each.findings][:MAX_ENTRIES]
    return render(
        "audit.html.j2",
        out,
        title=f"{title}: audit",
        head=[("Tasks", f"{len(audited):,}", "")]
        + [(outcome.capitalize(), f"{count:,}", "") for outcome, count in outcomes.items()],
        kinds=[(kind, KINDS[kind], kinds[kind], kind in DOUBTS) for kind in KINDS if kinds[kind]],
        sections=[
            (name, [(each, _found_by(each)) for each in shown if each.outcome == outcome])
            for outcome, name in OUTCOMES.items()
        ],
        found_by=filters([_found_by(each) for each in shown]),
        left_out=sum(bool(each.findings) for each in audited) - len(shown),
    )


def _found_by(audited: Audited) -> dict[str, list[str]]:
    kinds = dict.fromkeys(found.kind for found in audited.findings)
    return {"outcome": [OUTCOMES[audited.outcome]], "kind": list(kinds)}
