"""The HTML page of an evaluation or a comparison: one file, without scripts and requests to a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_dbbench.judging.arms import GREEDY, Arm, by_task, key_of
from trl_dbbench.judging.comparison import Comparison, Flip, Pairing
from trl_dbbench.judging.figures import OVERALL, Figures, best_measures, figures_of
from trl_dbbench.judging.text import side_by_side
from trl_dbbench.report.page import render
from trl_dbbench.runs.records import EpisodeRecord

TEMPLATE = "judging.html.j2"

MAX_ENTRIES = 400
"""Tasks of a section with transcripts; the file of --json has all."""


@dataclass(frozen=True)
class Entry:
    """A task with transcripts: `marks` say at a glance what was right, `episodes` are shown under names."""

    question: str
    task_id: str
    marks: Sequence[EpisodeRecord]
    episodes: Sequence[tuple[str, EpisodeRecord]]
    gold: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """Tasks under a heading."""

    title: str
    entries: Sequence[Entry]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Shares of groups of tasks: `rows` have one for each column, `None` where there is none."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Any]]]


def write_arm(arm: Arm, out: str | Path) -> Path:
    """Writes the page of one evaluation.

    Raises:
        ConfigError: if `out` cannot be written.
    """
    figures = figures_of(arm)
    measures = best_measures(figures.shares.get(OVERALL, {}))
    rows = [(group, [of.get(measure) for measure in measures]) for group, of in figures.shares.items()]
    return render(
        TEMPLATE,
        out,
        title=f"{arm.name}: evaluation",
        facts=_facts([arm], [figures]),
        notes=[],
        pairings=[],
        arms=[arm],
        rows=side_by_side([figures]),
        table=Table("By operation and skill", measures, rows),
        sections=[_tasks(arm)],
    )


def write_comparison(comparison: Comparison, out: str | Path) -> Path:
    """Writes the page of a comparison.

    Raises:
        ConfigError: if `out` cannot be written.
    """
    arms, figures = comparison.arms, comparison.figures
    groups = dict.fromkeys(group for of in figures for group in of.shares)
    rows = [(group, [of.shares.get(group, {}).get(GREEDY) for of in figures]) for group in groups]
    return render(
        TEMPLATE,
        out,
        title=" and ".join(arm.name for arm in arms),
        facts=_facts(arms, figures),
        notes=comparison.notes,
        pairings=comparison.pairings,
        arms=arms,
        rows=side_by_side(figures),
        table=Table("Greedy accuracy by operation and skill", [arm.name for arm in arms], rows),
        sections=[section for pairing in comparison.pairings for section in _flips(pairing)],
    )


def _facts(arms: Sequence[Arm], figures: Sequence[Figures]) -> list[tuple[str, str, str]]:
    """(name, value, remark) of the page's head."""
    models = dict.fromkeys(Path(arm.model).name for arm in arms if arm.model)
    facts = [
        ("Model", ", ".join(models) or "not recorded", ""),
        ("Tasks", f"{len(arms[0].keys):,}", ""),
    ]
    for arm, of in zip(arms, figures, strict=True):
        if greedy := of.shares.get(OVERALL, {}).get(GREEDY):
            remark = str(arm.sampling) if arm.sampling else ""
            facts.append((f"Greedy accuracy, {arm.name}", str(greedy), remark))
    return facts


def _tasks(arm: Arm) -> Section:
    """Every task with what was played of it; those that were done wrong come first."""
    samples = by_task(arm.samples)
    entries = []
    for episode in sorted(arm.greedy, key=lambda episode: episode["right"]):
        drawn = samples.get(key_of(episode), [])
        named = [("Greedy", episode), *((f"Sample {n}", each) for n, each in enumerate(drawn, 1))]
        entries.append(_entry(episode, [episode, *drawn], named, arm.gold.get(key_of(episode), {})))
    return _section("Tasks", entries, "Greedy first, then the samples. Wrong ones come first.")


def _flips(pairing: Pairing) -> Iterable[Section]:
    for won, title in ((True, "now right"), (False, "now wrong")):
        entries = [_flip(flip, pairing) for flip in pairing.flips if flip.won is won]
        yield _section(
            f"{pairing.other}: {len(entries)} {title}", entries, f"Against {pairing.first}, greedily."
        )


def _flip(flip: Flip, pairing: Pairing) -> Entry:
    both = [(pairing.first, flip.first), (pairing.other, flip.other)]
    return _entry(flip.first, [flip.first, flip.other], both, flip.gold)


def _entry(
    of: EpisodeRecord,
    marks: Sequence[EpisodeRecord],
    episodes: Sequence[tuple[str, EpisodeRecord]],
    gold: Mapping[str, Any],
) -> Entry:
    return Entry(of["question"], of["task_id"], marks, episodes, gold)


def _section(title: str, entries: Sequence[Entry], note: str) -> Section:
    if len(entries) > MAX_ENTRIES:
        note += f" The first {MAX_ENTRIES} of {len(entries):,} are shown; the file of --json has all."
    return Section(title, entries[:MAX_ENTRIES], note)
