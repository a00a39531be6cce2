"""Figures of a run: accuracies with intervals, and every curve as plain lists of numbers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from trl_dbbench.episode.types import Status
from trl_dbbench.evaluation.report.run import Run
from trl_dbbench.grading.statistics import Share
from trl_dbbench.runs.records import EpisodeRecord, is_void, key_of, share, whole_steps
from trl_dbbench.tasks.skills import SKILLS

POINTS = 60
"""Most points per curve; longer runs are averaged over neighbouring steps."""

VOID_WRONG = ", void counted wrong"
"""Suffix of the names of lines that count void episodes as wrong."""


# --- accuracy ---------------------------------------------------------------------------------------


def evaluations(run: Run) -> dict[int, list[EpisodeRecord]]:
    """Return held-out episodes by the number of updates before them; of a task's repeats, only the last."""
    by_step: defaultdict[int, dict[str, EpisodeRecord]] = defaultdict(dict)
    for episode in run.phase("eval"):
        by_step[episode["step"]][key_of(episode)] = episode
    return {step: list(episodes.values()) for step, episodes in sorted(by_step.items())}


def whole_evaluations(run: Run) -> dict[int, list[EpisodeRecord]]:
    """Return the evaluations at `whole_steps`. If the run kept its best weights, theirs is the last one."""
    held_out = evaluations(run)
    if (best := run.best_step) is not None and best in held_out:
        held_out = {step: episodes for step, episodes in held_out.items() if step <= best}
    whole = whole_steps({step: map(key_of, episodes) for step, episodes in held_out.items()})
    return {step: held_out[step] for step in whole}


@dataclass(frozen=True)
class Comparison:
    """Accuracies before and after; `rows` are (`overall` or a skill, before, after)."""

    before: str
    after: str
    rows: list[tuple[str, Share, Share]]


def compare(run: Run) -> Comparison | None:
    """Compare the first and last whole held-out evaluations, or, if there are fewer than two, the first and
    last thirds of the greedy episodes. Return `None` if there are too few of both."""
    held_out = whole_evaluations(run)
    full = list(held_out)
    greedy = sorted(run.phase("greedy"), key=lambda episode: episode["step"])
    third = len(greedy) // 3
    if len(full) >= 2:
        before, after = held_out[full[0]], held_out[full[-1]]
        names = [f"held-out, {updates(step)}" for step in (full[0], full[-1])]
    elif third:
        before, after = greedy[:third], greedy[-third:]
        names = [
            f"first third of the greedy runs, to {updates(before[-1]['step'])}",
            f"last third of the greedy runs, from {updates(after[0]['step'])}",
        ]
    else:
        return None
    return Comparison(names[0], names[1], per_skill(before, after))


def per_skill(before: list[EpisodeRecord], after: list[EpisodeRecord]) -> list[tuple[str, Share, Share]]:
    """Return the rows of a comparison: overall, then every skill that occurs."""
    found = {skill for episode in (*before, *after) for skill in episode["skills"]}
    skills = [*(s for s in SKILLS if s in found), *sorted(found - set(SKILLS))]
    rows = [("overall", share(before), share(after))]
    for skill in skills:
        both = [share(e for e in episodes if skill in e["skills"]) for episodes in (before, after)]
        rows.append((skill, both[0], both[1]))
    return rows


def turned_right(before: Iterable[EpisodeRecord], after: Iterable[EpisodeRecord]) -> set[str]:
    """Return the tasks that are wrong before and right after; void episodes are ignored."""
    wrong = {key_of(e) for e in before if not (e["right"] or is_void(e))}
    return wrong & {key_of(e) for e in after if e["right"] and not is_void(e)}


def updates(step: int) -> str:
    return f"{step} update{'s' * (step != 1)}"


# --- curves -----------------------------------------------------------------------------------------


@dataclass
class Series:
    """One line, band or colour of a chart; `detail` has a remark on each point."""

    name: str
    color: int
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    low: list[float] | None = None
    high: list[float] | None = None
    detail: list[str] | None = None
    points: bool = False
    dashed: bool = False


@dataclass
class Chart:
    """Chart of several series. `kind` is `"lines"` or `"shares"` (stacked); the values of a `percent` chart
    are 0 to 1; the y-axis extends at least to `reach`."""

    id: str
    title: str
    y_label: str
    series: list[Series]
    note: str = ""
    kind: str = "lines"
    percent: bool = False
    x_label: str = "updates done"
    reach: float = 0.0


def y_range(chart: Chart) -> tuple[float, float]:
    """Return the limits of a chart's y-axis, which includes 0 and `reach`; for percentages, 0 to 1."""
    if chart.percent:
        return 0.0, 1.0
    values = [y for s in chart.series for y in (*s.y, *(s.low or ()), *(s.high or ()))]
    low, high = min([0.0, *values]), max([0.0, chart.reach, *values])
    room = 0.06 * (high - low) or 1.0
    return low - room * (low < 0), high + room * (high > 0 or low == 0)


# Okabe and Ito's colours, distinct to colour-blind readers too; the page has other ones for dark screens
COLORS = ["#0072b2", "#d55e00", "#00805e", "#b0568a", "#3a8fc4", "#b87d00", "#6b7280"]

STATUSES: dict[str, int] = {
    Status.TURN_LIMIT: 5,
    Status.INVALID_ACTION: 3,
    Status.OUT_OF_TOKENS: 4,
    Status.SERVER_CRASH: 0,
    Status.HARNESS_FAULT: 1,
    Status.ENVIRONMENT_FAULT: 6,
}
"""Statuses without an answer, and their colours; answered episodes are split into right and wrong."""


class _Lines:
    """Lines of a run's figures, from its episodes or the trainer's log. A point is the mean over `width`
    neighbouring steps."""

    def __init__(self, run: Run):
        # episodes left out by dynamic sampling were not trained on, and the logged rewards omit them
        self.sampled = [episode for episode in run.phase("train") if not episode.get("left_out")]
        self.log = [entry for entry in run.log if "reward" in entry]
        steps = sorted({*(e["step"] for e in self.sampled), *map(_played_at, self.log)})
        self.width = math.ceil(len(steps) / POINTS) or 1
        self._points = [steps[i : i + self.width] for i in range(0, len(steps), self.width)]
        self._place = {step: place for place, neighbours in enumerate(self._points) for step in neighbours}

    def logged(self, name: str, color: int, metric: str) -> Series:
        """Return the line of a metric in the trainer's log."""
        values = [(_played_at(entry), number(entry.get(metric))) for entry in self.log]
        return self._line(name, color, [(step, value) for step, value in values if value is not None])

    def mean(self, name: str, color: int, values: Iterable[float | None]) -> Series:
        """Return the line of mean values, given one value per sampled episode."""
        valued = list(zip(self.sampled, values, strict=True))
        line = self._line(name, color, [(e["step"], value) for e, value in valued if value is not None])
        counts = Counter(self._place[e["step"]] for e, value in valued if value is not None)
        void = Counter(self._place[e["step"]] for e, value in valued if value is None and is_void(e))
        line.detail = [
            f"{counts[place]} episodes" + (f"; {void[place]:,} void" if void[place] else "")
            for place in sorted(counts)
        ]
        return line

    def _line(self, name: str, color: int, values: Iterable[tuple[float, float]]) -> Series:
        """Return the line of (step, value) pairs."""
        found: defaultdict[int, list[float]] = defaultdict(list)
        for step, value in values:
            found[self._place[step]].append(float(value))
        x = [fmean(self._points[place]) for place in sorted(found)]
        return Series(name, color, x, [fmean(found[place]) for place in sorted(found)])

    def family(self, prefix: str) -> list[Series]:
        """Return a line for each logged metric with this prefix, except those that are always 0."""
        metrics = sorted({name for entry in self.log for name in entry if name.startswith(prefix)})
        lines = [
            self.logged(_words(metric.removeprefix(prefix)), place % len(COLORS), metric)
            for place, metric in enumerate(metrics)
        ]
        return [line for line in lines if any(line.y)]

    def rewards(self) -> list[Series]:
        lines = [self.logged("total, as weighted", 0, "reward")]
        parts = list(dict.fromkeys(name for episode in self.sampled for name in episode["rewards"]))
        if len(parts) > 1 or not lines[0].x:
            for place, part in enumerate(parts, 1):
                values = [number(e["rewards"].get(part)) for e in self.sampled]
                lines.append(self.mean(part, place % len(COLORS), values))
        return lines

    def statuses(self) -> list[Series]:
        ended = [e["status"] for e in self.sampled]
        answers = [e["right"] if e["status"] == Status.ANSWERED else None for e in self.sampled]
        others = dict.fromkeys(sorted({*ended} - {Status.ANSWERED, *STATUSES}), 6)
        return [
            self.mean("answered, right", 2, [right is True for right in answers]),
            self.mean("answered, wrong", 1, [right is False for right in answers]),
            *(
                self.mean(_words(status), color, [each == status for each in ended])
                for status, color in {**STATUSES, **others}.items()
            ),
        ]


def charts(run: Run) -> list[Chart]:
    """Return the run's curves, from its episodes and the trainer's log."""
    lines = _Lines(run)
    turns = lines.mean("turns", 0, [len(e["turns"]) for e in lines.sampled])
    tokens = [
        lines.mean("written by the agent", 0, [_tokens(e, "tokens") for e in lines.sampled]),
        lines.mean("observations", 1, [_tokens(e, "observation_tokens") for e in lines.sampled]),
    ]
    note = "Sampled episodes."
    if lines.width > 1:
        note += f" A point is the mean of {lines.width} steps."
    kl = [lines.logged("KL to the reference", 0, "kl")]
    no_kl = "No KL in the log: it is computed with beta above 0."
    drawn = [
        Chart("reward", "Reward", "mean reward", lines.rewards(), note, reach=1.0),
        Chart("kl", "KL", "nats per token", kl, note if kl[0].x else no_kl),
        Chart(
            "status", "How episodes end", "share of episodes", lines.statuses(), note, "shares", percent=True
        ),
        Chart("turns", "Turns per episode", "mean turns", [turns], note),
        Chart("tokens", "Tokens per episode", "mean tokens", tokens, f"{note} Prompts not counted."),
    ]
    entropy = [lines.logged("entropy", 0, "entropy")]
    alarms, errors = lines.family("alarm/"), lines.family("error/")
    tasks = [
        lines.logged("drawn tasks: expected accuracy", 0, "frontier/expected"),
        lines.logged("drawn tasks that had been played", 2, "frontier/known"),
        lines.logged("groups without spread, left out", 1, "dynamic/left_out"),
    ]
    watched = [
        Chart("tasks", "Which tasks are trained on", "share", tasks, note, percent=True),
        Chart("entropy", "Entropy", "nats per token", entropy, note),
        Chart("alarms", "What the alarms watch", "share", alarms, note, percent=True),
        Chart("errors", "SQL that failed", "share of statements", errors, note, percent=True),
    ]
    # not every run logs these
    drawn += [chart for chart in watched if any(series.x for series in chart.series)]
    for chart in drawn:
        shown = any if chart.kind == "shares" else len  # a status that never occurred is left out
        chart.series = [series for series in chart.series if shown(series.y)]
    return [_accuracy_chart(run), *drawn]


def _accuracy_chart(run: Run) -> Chart:
    note = "Bands are 95 % intervals. Running: all greedy runs so far, each played before its update."
    held_out = _accuracy("held-out", 0, {step: share(e) for step, e in evaluations(run).items()})
    for line in held_out:
        line.points = True
    greedy = _accuracy("greedy, running", 1, running(run.phase("greedy")))
    series = [*held_out, *greedy]
    if any(line.name.endswith(VOID_WRONG) for line in series):
        note += " Void are episodes whose environment failed; the other lines leave them out."
    if not series:
        note = "Neither held-out nor greedy episodes were recorded."
    return Chart("accuracy", "Greedy accuracy", "accuracy", series, note, percent=True)


def running(greedy: Iterable[EpisodeRecord]) -> dict[int, Share]:
    """Return, by step, the accuracy over all greedy episodes up to that step."""
    by_step: defaultdict[int, list[EpisodeRecord]] = defaultdict(list)
    for episode in greedy:
        by_step[episode["step"]].append(episode)
    so_far = Share(0, 0)
    running = {}
    for step in sorted(by_step):
        batch = share(by_step[step])
        so_far = Share(so_far.right + batch.right, so_far.judged + batch.judged, so_far.void + batch.void)
        running[step] = so_far
    every = math.ceil(len(running) / (4 * POINTS)) or 1
    last = next(reversed(running), None)
    return {step: of for i, (step, of) in enumerate(running.items()) if i % every == 0 or step == last}


def _accuracy(name: str, color: int, shares: Mapping[int, Share]) -> list[Series]:
    """Return the line of judged episodes and, if any are void, a line that counts them as wrong."""
    judged = {step: of for step, of in shares.items() if of.judged}
    line = Series(
        name,
        color,
        x=list(judged),
        y=[of.rate for of in judged.values()],
        low=[of.interval[0] for of in judged.values()],
        high=[of.interval[1] for of in judged.values()],
        detail=[of.counts for of in judged.values()],
    )
    lines = [line] if judged else []
    if any(of.void for of in shares.values()):
        y = [of.void_wrong for of in shares.values()]
        detail = [f"{of.right} of {of.judged + of.void}" for of in shares.values()]
        lines.append(Series(name + VOID_WRONG, color + 3, list(shares), y, detail=detail))
    return lines


def number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _tokens(episode: EpisodeRecord, key: str) -> float:
    return sum(number(turn.get(key)) or 0 for turn in episode["turns"])


def _played_at(entry: Mapping[str, Any]) -> float:
    """Return the number of updates before an entry's episodes: the trainer logs after the update."""
    return entry["step"] - 1


def _words(name: str) -> str:
    return name.replace("_", " ")
