"""HTML page of a report: Jinja fills a template, whose script draws the curves and shows transcripts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jinja2

from trl_dbbench.evaluation.report.curves import (
    Chart,
    Comparison,
    charts,
    compare,
    evaluations,
    number,
    per_skill,
    running,
    turned_right,
    updates,
    whole_evaluations,
    y_range,
)
from trl_dbbench.evaluation.report.run import Run
from trl_dbbench.grading.statistics import Share
from trl_dbbench.runs.read import portable_digests_in, renamed, same_task_names
from trl_dbbench.runs.records import (
    PHASES,
    TASKS_FILE,
    EpisodeRecord,
    failed_statement,
    is_void,
    key_of,
    share,
)
from trl_dbbench.runs.stream import measures_text
from trl_dbbench.tasks import Task
from trl_dbbench.utils.files import shortest_names, write_atomically

Fact = tuple[str, str, str]
"""Name, value and remark."""


def head_of(run: Run) -> dict[str, list[Fact]]:
    """Return the facts at the top of a run's page, under `settings` and `results`."""
    counts: Counter[str] = Counter(episode["phase"] for episode in run.episodes)
    kinds = ", ".join(f"{counts[phase]:,} {name}" for phase, name in PHASES.items() if counts[phase])
    planned = number(run.training.get("max_steps")) or 0
    of_all = f"of {planned:,}" if planned > run.steps else ""
    results = [("Updates", f"{run.steps:,}", of_all), ("Episodes", f"{len(run.episodes):,}", kinds)]
    if run.best_step is not None:
        by = str(run.training.get("metric_for_best_model", ""))
        results.append(("Weights", f"after {updates(run.best_step)}", f"the best by {by}" if by else ""))
    return {"settings": _setting_rows(run), "results": [*results, *_accuracies(run)]}


def _setting_rows(run: Run) -> list[Fact]:
    """Return model, learning rate, batch size and loss, as far as known."""
    of = run.training
    lora, start = of.get("lora") or {}, of.get("adapter_name_or_path")
    adapter = [f"LoRA r {lora['r']}" if "r" in lora else "", f"trained on from {start}" if start else ""]
    facts = [("Model", run.model or "not recorded", ", ".join(filter(None, adapter)))]
    if (rate := number(of.get("learning_rate"))) is not None:
        facts.append(
            ("Learning rate", f"{rate:g}", f"schedule: {of.get('lr_scheduler_type', 'not recorded')}")
        )
    parts = {
        "a device": number(of.get("per_device_train_batch_size")),
        "devices": number(of.get("world_size")),
        "accumulated": number(of.get("gradient_accumulation_steps")),
    }
    known = {name: size for name, size in parts.items() if size is not None}
    if len(known) == len(parts):
        told = [f"{size:g} {name}" for name, size in known.items() if size != 1]
        size = f"{math.prod(known.values()):,g} episodes an update"
        facts.append(("Batch", size, " \N{MULTIPLICATION SIGN} ".join(told)))
    if loss := of.get("loss_type"):
        beta = number(of.get("beta"))
        facts.append(("Loss", str(loss), "" if beta is None else f"beta {beta:g}"))
    return facts


def _accuracies(run: Run) -> list[Fact]:
    """Return the accuracy at the start and at the end, or of the only evaluation."""
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
    """Return an accuracy with its interval, and the counts behind it, introduced by `where`."""
    if of.judged == 1:
        return "one episode only", f"{where}: too few for an accuracy"
    return str(of), f"{where}: {of.right:,.0f} of {of.judged:,} episodes"


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return unique names of runs, with parts of their paths if the names are the same."""
    told_apart = shortest_names([Path(run.path or run.name).parts for run in runs])
    return told_apart or [f"{run.name} ({number})" for number, run in enumerate(runs, 1)]


def charts_beside(runs: tuple[Run, Run]) -> list[Chart]:
    """Return the charts of two runs: lines share a chart, the second run's dashed; shares do not."""
    names = names_of(runs)
    drawn = [{chart.id: chart for chart in charts(run)} for run in runs]
    both: list[Chart] = []
    for id in [*(each for each in drawn[0] if each not in drawn[1]), *drawn[1]]:
        of_runs = [(name, found[id]) for name, found in zip(names, drawn, strict=True) if id in found]
        chart = of_runs[0][1]
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
    return both


def compare_runs(runs: tuple[Run, Run]) -> Comparison | None:
    """Compare the last evaluations of two runs on their common tasks; return `None` if there are none."""
    (step_a, a), (step_b, b) = (max(whole_evaluations(run).items(), default=(0, [])) for run in runs)
    common = {*map(key_of, a)} & {*map(key_of, b)}
    if not common:
        return None
    return Comparison(
        f"held-out, {updates(step_a)}",
        f"held-out, {updates(step_b)}",
        per_skill(*([e for e in episodes if key_of(e) in common] for episodes in (a, b))),
    )


def opened_at(runs: Sequence[Run]) -> int | None:
    """Return the index, among all episodes, of the one that the page shows first; `None` if there is none.

    Its task is wrong in the first evaluation and right in the last one. With two runs, it is wrong in the
    first run's last evaluation and right in the second's, or else the reverse."""
    held_out = [list(whole_evaluations(run).values()) for run in runs]
    if not all(held_out):
        return None
    before, after = held_out[0][0] if len(runs) == 1 else held_out[0][-1], held_out[-1][-1]
    wanted = turned_right(before, after) or (turned_right(after, before) if len(runs) > 1 else set())
    shown = next((e for e in after if key_of(e) in wanted), None)
    places = (place for place, e in enumerate(e for run in runs for e in run.episodes) if e is shown)
    return next(places, None)


BLOCK = 100
"""Episodes, or tasks, per compressed block."""

TABLE_ROWS = 500
"""Most rows of a task's table in the page."""

IN_INDEX = frozenset(
    {"phase", "step", "status", "right", "greedy", "operation", "skills"}
    | {"task_id", "task_digest", "question"}
)
"""Fields of an episode that its block omits, because the index or another field holds them."""


def transcripts(shown: Sequence[tuple[str, Run]]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the index, in columns, by which the page lists and filters; blocks of episodes; blocks of tasks.
    Episodes refer to tasks by number, so that each question is in the page once."""
    recorded = {task.digest: task for _, run in shown for task in run.tasks}
    places: dict[str, int] = {}
    tasks: list[dict[str, Any]] = []
    details: list[dict[str, Any] | None] = []
    episodes = [(number, episode) for number, (_, run) in enumerate(shown) for episode in run.episodes]
    for _, episode in episodes:
        key = key_of(episode)
        if key not in places:
            places[key] = len(tasks)
            found = recorded.get(key)
            of_task = {"id": episode["task_id"], "question": episode["question"], "op": episode["operation"]}
            tasks.append(of_task | {"skills": episode["skills"]})
            details.append(_task_detail(found) if found else None)
    flipped = _flipped(episodes)
    for key, place in places.items():
        tasks[place]["flipped"] = key in flipped
    statuses = list(dict.fromkeys(episode["status"] for _, episode in episodes))
    index = {
        "runs": [name for name, _ in shown],
        "tasks": tasks,
        "statuses": statuses,
        "phases": PHASES,
        "block": BLOCK,
        "episodes": {
            "run": [number for number, _ in episodes],
            "task": [places[key_of(e)] for _, e in episodes],
            "phase": [e["phase"] for _, e in episodes],
            "step": [e["step"] for _, e in episodes],
            "status": [statuses.index(e["status"]) for _, e in episodes],
            "right": [int(e["right"]) for _, e in episodes],
            "failing": [int(any(map(failed_statement, e["turns"]))) for _, e in episodes],
        },
    }
    bodies = [{key: value for key, value in e.items() if key not in IN_INDEX} for _, e in episodes]
    return index, _blocks(bodies), _blocks(details)


def _flipped(episodes: Iterable[tuple[int, EpisodeRecord]]) -> set[str]:
    """Return the tasks that are right in one evaluation and wrong in another, held-out or greedy before an
    update. If a task was played twice in one, the last episode counts, as in accuracies. `episodes` are (run
    number, episode)."""
    ends: defaultdict[str, dict[tuple[int, str, int], bool]] = defaultdict(dict)
    for place, episode in episodes:
        if episode["phase"] != "train" and not is_void(episode):
            ends[key_of(episode)][place, episode["phase"], episode["step"]] = episode["right"]
    return {key for key, of in ends.items() if len(set(of.values())) == 2}


def _task_detail(task: Task) -> dict[str, Any]:
    tables = [
        {
            "name": table.name,
            "columns": [f"{column.name} {column.type}" for column in table.columns],
            "rows": table.rows[:TABLE_ROWS],
            "count": None if task.source else len(table.rows),
        }
        for table in task.tables
    ]
    gold = task.gold.shown
    answer = None if gold is None else json.dumps(gold, ensure_ascii=False)
    return {"tables": tables, "sql": task.gold.sql, "answer": answer}


def _blocks(entries: Sequence[Any]) -> list[str]:
    blocks = (entries[start : start + BLOCK] for start in range(0, len(entries), BLOCK))
    texts = (json.dumps(block, separators=(",", ":"), default=str) for block in blocks)
    return [base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode() for text in texts]


def write_report(run: Run, out: str | Path, other: Run | None = None) -> Path:
    """Write one run, or two side by side, as one HTML file; raise ConfigError if it cannot be written."""
    shown = [(run.name, run)]
    if other is None:
        drawn, compared = charts(run), compare(run)
    else:
        names = same_task_names(
            *(portable_digests_in(Path(each.path or "", TASKS_FILE)) for each in (run, other))
        )
        pair = (run, replace(other, episodes=renamed(other.episodes, names)))
        shown = list(zip(names_of(pair), pair, strict=True))
        drawn, compared = charts_beside(pair), compare_runs(pair)
    index, episode_blocks, task_blocks = transcripts(shown)
    in_page = [asdict(chart) | {"range": y_range(chart)} for chart in drawn]
    steps, start = max(each.steps for _, each in shown), opened_at([each for _, each in shown])
    return render(
        "report.html.j2",
        out,
        title=" and ".join(name for name, _ in shown),
        runs=[(name, each, head_of(each)) for name, each in shown],
        settings=_settings([each for _, each in shown]),
        charts=drawn,
        comparison=compared,
        streams=[(name, stream) for name, each in shown if (stream := _stream(each))],
        counts={
            "flipped": sum(task["flipped"] for task in index["tasks"]),
            "failing": sum(index["episodes"]["failing"]),
        },
        data=_embedded({"charts": in_page, "steps": steps, "start": start, **index}),
        episode_blocks=episode_blocks,
        task_blocks=task_blocks,
    )


def _stream(run: Run) -> dict[str, Any] | None:
    """Return the page's values for a run's stream; `None` if the run has none or nothing was measured."""
    if (record := run.stream) is None or not record.matrix:
        return None
    shares = record.prequential(run.episodes)
    rows = [[Share(right, judged) for right, judged in row] for row in record.matrix]
    return {
        "groups": record.groups,
        "rows": list(zip(record.row_names, rows, strict=True)),
        "measures": measures_text(record.measures),
        "prequential": [each for each in zip(record.stages, shares, strict=True) if each[1].judged],
    }


def render(template: str, out: str | Path, **shown: Any) -> Path:
    """Write a page from `templates/`, with all text escaped; raise ConfigError if it cannot be written."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trl_dbbench.evaluation.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["csp_hash"] = lambda script: (
        "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    )
    environment.filters["signed"] = lambda value: f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")
    html = environment.get_template(template).render(**shown)
    with write_atomically(out) as file:
        file.write(html)
    return Path(out)


def filters(found_by: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, Any]:
    """Return the filters of a page's tasks: `skills`, and `chips` of other groups as (group, label, number of
    tasks). `found_by` has, for each task, the labels that match it, by group."""
    counted = Counter((group, label) for each in found_by for group in each for label in set(each[group]))
    order = list(found_by[0]) if found_by else []
    chips = sorted(counted, key=lambda chip: (order.index(chip[0]), chip[1]))
    return {
        "skills": [label for group, label in chips if group == "skill"],
        "chips": [(group, label, counted[group, label]) for group, label in chips if group != "skill"],
    }


def _settings(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return (name, one value per run) for the settings in run.json, training settings first."""
    said = [{**run.settings, **run.training, "training": None} for run in runs]
    names = dict.fromkeys(
        name for of in ([run.training for run in runs], said) for each in of for name in each
    )
    rows = [(name, [_shown(each.get(name)) for each in said]) for name in names]
    return [(name, values) for name, values in rows if any(values)]


def _shown(value: Any) -> str:
    if value is None or value == {} or value == []:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _embedded(data: Any) -> str:
    """Return JSON that cannot end the script element around it, in ASCII (so without U+2028)."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
