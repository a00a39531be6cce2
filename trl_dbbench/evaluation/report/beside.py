"""Two runs in one report: their curves in the same charts, and what each answered in the end."""

from __future__ import annotations

from dataclasses import replace

from trl_dbbench.evaluation.report.curves import (
    Chart,
    Comparison,
    charts,
    per_skill,
    updates,
    whole_evaluations,
)
from trl_dbbench.evaluation.report.run import Run
from trl_dbbench.runs.records import EpisodeRecord, is_void
from trl_dbbench.utils.files import shortest_names


def names_of(runs: tuple[Run, Run]) -> tuple[str, str]:
    """Return the names of both, told apart by their folders where they are the same."""
    first, second = (run.name for run in runs)
    if first == second:
        paths = [run.path.parts for run in runs if run.path is not None]
        longer = shortest_names(paths) if len(paths) == 2 else None
        first, second = longer or (f"{first} (1)", f"{second} (2)")
    return first, second


def charts_beside(runs: tuple[Run, Run]) -> list[Chart]:
    """The charts of both: lines in one chart, the second run's dashed; shares in one each."""
    names = names_of(runs)
    drawn = [{chart.id: chart for chart in charts(run)} for run in runs]
    both: list[Chart] = []
    for id, chart in {**drawn[1], **drawn[0]}.items():
        of_runs = [(name, found[id]) for name, found in zip(names, drawn, strict=True) if id in found]
        if chart.kind == "shares":
            both += [
                replace(each, id=f"{id}-{n}", title=f"{each.title}: {name}")
                for n, (name, each) in enumerate(of_runs)
            ]
            continue
        series = [
            replace(line, name=f"{name}: {line.name}", dashed=name == names[1])
            for name, each in of_runs
            for line in each.series
        ]
        both.append(replace(chart, series=series))
    order = {id: place for place, id in enumerate([*drawn[0], *drawn[1]])}
    return sorted(both, key=lambda chart: order[chart.id.removesuffix("-0").removesuffix("-1")])


def _last(run: Run) -> tuple[int, dict[tuple[str, str, str], EpisodeRecord]] | None:
    """The updates before the last evaluation, and its episodes by their task."""
    held_out = whole_evaluations(run)
    if not held_out:
        return None
    step, episodes = max(held_out.items())
    return step, {(e["task_id"], e["question"], str(e.get("task_digest") or "")): e for e in episodes}


def compare_runs(runs: tuple[Run, Run]) -> Comparison | None:
    """The last evaluation of each, on the tasks that both have played; `None` if there are none."""
    last = [_last(run) for run in runs]
    if last[0] is None or last[1] is None:
        return None
    (step_a, a), (step_b, b) = last[0], last[1]
    common = [key for key in a if key in b]
    if not common:
        return None
    return Comparison(
        f"held-out, {updates(step_a)}",
        f"held-out, {updates(step_b)}",
        per_skill([a[key] for key in common], [b[key] for key in common]),
    )


def differing_episode(runs: tuple[Run, Run]) -> int | None:
    """The place, among the episodes of both, of one that the second run got right in the end and the first
    one not; else of one the other way round."""
    last = [_last(run) for run in runs]
    if last[0] is None or last[1] is None:
        return None
    a, b = ({key: e for key, e in found.items() if not is_void(e)} for _, found in (last[0], last[1]))
    ahead = [b[key] for key in a if key in b and b[key]["right"] and not a[key]["right"]]
    behind = [b[key] for key in a if key in b and a[key]["right"] and not b[key]["right"]]
    wanted = next(iter([*ahead, *behind]), None)
    places = (len(runs[0].episodes) + place for place, e in enumerate(runs[1].episodes) if e is wanted)
    return next(places, None)
