"""The head of a report: how a run was trained, and what came of it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from trl_dbbench.evaluation.report.curves import charts, compare, evaluations, number, running, updates
from trl_dbbench.evaluation.report.run import Run
from trl_dbbench.grading.statistics import Share
from trl_dbbench.runs.records import PHASES, share

Fact = tuple[str, str, str]
"""Name, value and remark."""


@dataclass(frozen=True)
class Head:
    """The facts of a run."""

    settings: list[Fact]
    results: list[Fact]


def head_of(run: Run) -> Head:
    """Return the facts of a run, for the top of its page."""
    counts: Counter[str] = Counter(episode["phase"] for episode in run.episodes)
    kinds = ", ".join(f"{counts[phase]:,} {name}" for phase, name in PHASES.items() if counts[phase])
    planned = f"of {run.planned_steps:,}" if run.planned_steps and run.planned_steps != run.steps else ""
    results = [("Updates", f"{run.steps:,}", planned), ("Episodes", f"{len(run.episodes):,}", kinds)]
    return Head(_settings(run), [*results, *(_accuracies(run) or _logged(run))])


def _settings(run: Run) -> list[Fact]:
    """Model, learning rate, batch and loss, as far as known."""
    of = run.training
    facts = [("Model", run.model or "not recorded", run.adapter or "")]
    logged = [rate for entry in run.log if (rate := number(entry.get("learning_rate"))) is not None]
    if (rate := number(of.get("learning_rate"))) is not None:
        facts.append(
            ("Learning rate", f"{rate:g}", f"schedule: {of.get('lr_scheduler_type', 'not recorded')}")
        )
    elif logged:
        facts.append(("Learning rate", f"{max(logged):g}", "the highest in the trainer's log"))
    parts = {
        "a device": number(of.get("per_device_train_batch_size")),
        "devices": number(of.get("world_size")),
        "accumulated": number(of.get("gradient_accumulation_steps")),
    }
    known = {name: size for name, size in parts.items() if size is not None}
    if len(known) == len(parts):
        remark = " \N{MULTIPLICATION SIGN} ".join(
            f"{size:g} {name}" for name, size in known.items() if size != 1
        )
        facts.append(("Batch", f"{math.prod(known.values()):,g} episodes an update", remark))
    if loss := of.get("loss_type"):
        beta = number(of.get("beta"))
        facts.append(("Loss", str(loss), "" if beta is None else f"beta {beta:g}"))
    return facts


def _accuracies(run: Run) -> list[Fact]:
    """Accuracy at the start and at the end; of a single evaluation, its accuracy."""
    if compared := compare(run):
        _, before, after = compared.rows[0]
        ends = [(compared.before, before), (compared.after, after)]
    else:
        held_out = {step: share(episodes) for step, episodes in evaluations(run).items()}
        name = "held-out" if held_out else "greedy, running"
        shares = held_out or running(run.phase("greedy"))
        ends = [
            (f"{name}, {updates(step)}", shares[step])
            for step in sorted({*list(shares)[:1], *list(shares)[-1:]})
        ]
    names = ["Accuracy"] if len(ends) == 1 else ["Accuracy at the start", "Accuracy at the end"]
    return [(name, *headline(of, where)) for name, (where, of) in zip(names, ends, strict=False)]


def headline(of: Share, where: str) -> tuple[str, str]:
    """Return an accuracy with its interval, and the episodes that it comes from. One episode has none.

    Args:
        where: what these episodes are.
    """
    if of.judged == 1:
        return "one episode only", f"{where}: too few for an accuracy"
    return str(of), f"{where}: {of.right:,.0f} of {of.judged:,} episodes"


def _logged(run: Run) -> list[Fact]:
    """The accuracies of the trainer's log."""
    line = next(iter(charts(run)[0].series), None)
    if line is None:
        return []
    single = {"Accuracy": 0}
    facts = []
    for name, at in (
        single if len(line.x) == 1 else {"Accuracy at the start": 0, "Accuracy at the end": -1}
    ).items():
        interval = f" [{100 * line.low[at]:.1f}, {100 * line.high[at]:.1f}]" if line.low and line.high else ""
        remark = f"{line.name}, {updates(int(line.x[at]))}; the log does not say of how many episodes"
        facts.append((name, f"{100 * line.y[at]:.1f} %{interval}", remark))
    return facts
