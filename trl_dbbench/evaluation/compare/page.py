"""HTML page of an evaluation or a comparison: one file that makes no network requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_dbbench.evaluation.compare.arms import GREEDY, Arm, by_task
from trl_dbbench.evaluation.compare.comparison import Comparison, Pairing, side_by_side
from trl_dbbench.evaluation.compare.figures import OVERALL, Figures, best_measures, figures_of
from trl_dbbench.evaluation.report.page import Fact, filters, headline, render
from trl_dbbench.runs.records import EpisodeRecord, failed_statement, is_void, key_of

MAX_ENTRIES = 400
"""Most tasks with transcripts per section; the file of --json has all."""

Values = dict[str, Any]
"""Values of the template's variables."""


def write_arm(arm: Arm, out: str | Path) -> Path:
    """Write the page of one evaluation; raise ConfigError if `out` cannot be written."""
    return write_comparison(Comparison([arm], [figures_of(arm)], [], []), out)


def write_comparison(comparison: Comparison, out: str | Path) -> Path:
    """Write the page of a comparison, or of a single arm; raise ConfigError if `out` cannot be written."""
    arms, figures, pairings = comparison.arms, comparison.figures, comparison.pairings
    names = [arm.name for arm in arms]
    if pairings:
        title, of_groups, columns = " and ".join(names), "Greedy accuracy by operation and skill", names
        groups = dict.fromkeys(group for of in figures for group in of.shares)
        rows = [(group, [of.shares.get(group, {}).get(GREEDY) for of in figures]) for group in groups]
        sections = [section for pairing in pairings for section in _flips(pairing)]
    else:
        shares = figures[0].shares
        title, of_groups = f"{names[0]}: evaluation", "By operation and skill"
        columns = best_measures(shares.get(OVERALL, {}))
        rows = [(group, [of.get(measure) for measure in columns]) for group, of in shares.items()]
        sections = [_tasks(arms[0])]
    pairs = [(f"pair-{n}", f"{pair.other} against {pair.first}") for n, pair in enumerate(pairings, 1)]
    return render(
        "judging.html.j2",
        out,
        title=title,
        parts=[*pairs, ("figures", "Figures"), ("groups", of_groups), ("tasks", "Tasks")],
        head=[*_models(arms), *_accuracies(arms, figures)],
        notes=comparison.notes,
        pairings=pairings,
        arms=arms,
        rows=side_by_side(figures),
        table={"title": of_groups, "columns": columns, "rows": rows},
        sections=sections,
        found_by=filters([entry["found_by"] for section in sections for entry in section["entries"]]),
    )


def _models(arms: Sequence[Arm]) -> list[Fact]:
    """Return each arm's model and adapter; once if all arms share them."""
    played = [(arm.model or "not recorded", f"adapter: {arm.adapter}" if arm.adapter else "") for arm in arms]
    if len(set(played)) == 1:
        return [("Model", *played[0])]
    return [(f"Model, {arm.name}", *each) for arm, each in zip(arms, played, strict=True)]


def _accuracies(arms: Sequence[Arm], figures: Sequence[Figures]) -> list[Fact]:
    facts = [("Tasks", f"{len(arms[0].keys):,}", "")]
    for arm, of in zip(arms, figures, strict=True):
        if greedy := of.shares.get(OVERALL, {}).get(GREEDY):
            facts.append((f"Greedy accuracy, {arm.name}", *headline(greedy, "greedy")))
        if arm.sampling:
            facts.append((f"Samples, {arm.name}", str(arm.sampling), ""))
    return facts


def _tasks(arm: Arm) -> Values:
    """Return a section of every task with its episodes; tasks with a wrong greedy episode come first."""
    samples = by_task(arm.samples)
    entries = []
    for episode in sorted(arm.greedy, key=lambda episode: episode["right"]):
        drawn = samples.get(key_of(episode), [])
        named = [("Greedy", episode), *((f"Sample {n}", each) for n, each in enumerate(drawn, 1))]
        result = "void" if is_void(episode) else "right" if episode["right"] else "wrong"
        entries.append(_entry(named, arm.gold.get(key_of(episode), {}), {"result": [result]}))
    return _section("", entries, "Greedy first, then the samples. Wrong ones come first.")


def _flips(pairing: Pairing) -> Iterable[Values]:
    for won, what in ((True, "now right"), (False, "now wrong")):
        found_by = {"flip": [f"{pairing.other}: {what}"]}
        entries = [
            _entry([(pairing.first, flip.first), (pairing.other, flip.other)], flip.gold, found_by)
            for flip in pairing.flips
            if flip.won is won
        ]
        title = f"{pairing.other}: {len(entries)} {what}"
        yield _section(title, entries, f"Against {pairing.first}, greedily.")


def _entry(
    episodes: Sequence[tuple[str, EpisodeRecord]],
    gold: Mapping[str, Any],
    found_by: Mapping[str, Sequence[str]],
) -> Values:
    """Return a task with its named episodes; `found_by` has, by group, the filter labels that match it."""
    failing = any(failed_statement(turn) for _, episode in episodes for turn in episode["turns"])
    first = episodes[0][1]
    return {
        "question": first["question"],
        "task_id": first["task_id"],
        "episodes": episodes,
        "gold": gold,
        "found_by": {**found_by, "sql": ["failing SQL"] if failing else [], "skill": first["skills"]},
    }


def _section(title: str, entries: Sequence[Values], note: str) -> Values:
    if len(entries) > MAX_ENTRIES:
        note += f" The first {MAX_ENTRIES} of {len(entries):,} are shown; the file of --json has all."
    return {"title": title, "entries": entries[:MAX_ENTRIES], "note": note}
