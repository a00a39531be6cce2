"""The HTML file: Jinja fills the template, the template's script draws the curves and shows transcripts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2

from trl_dbbench.files import write_atomically
from trl_dbbench.report.beside import charts_beside, compare_runs, differing_episode, names_of
from trl_dbbench.report.curves import (
    Chart,
    Comparison,
    changed_episode,
    charts,
    compare,
    percent_range,
    updates,
)
from trl_dbbench.report.run import Run
from trl_dbbench.runs.records import PHASES
from trl_dbbench.tasks import Task

BLOCK = 100  # episodes, or tasks, that are unpacked together
TABLE_ROWS = 500  # of a task's table that go into the page


def write_report(run: Run, out: str | Path, other: Run | None = None) -> Path:
    """Writes the run as one HTML file.

    Args:
        other: a second run, which is shown beside it.

    Raises:
        ConfigError: if `out` cannot be written.
    """
    shown = [(run.name, run)]
    if other is None:
        drawn, compared, start = charts(run), compare(run), changed_episode(run)
    else:
        pair = (run, other)
        shown = list(zip(names_of(pair), pair, strict=True))
        drawn, compared, start = charts_beside(pair), compare_runs(pair), differing_episode(pair)
    index, episode_blocks, task_blocks = _transcripts(shown)
    in_page = [asdict(chart) | {"range": percent_range(chart) if chart.percent else None} for chart in drawn]
    steps = max(each.steps or 0 for _, each in shown)
    return render(
        "report.html.j2",
        out,
        title=" and ".join(name for name, _ in shown),
        runs=[(name, each, _facts(each, charts(each)[0], compare(each))) for name, each in shown],
        settings=_settings([each for _, each in shown]),
        charts=drawn,
        comparison=compared,
        data=_embedded({"charts": in_page, "steps": steps, "start": start, **index}),
        episode_blocks=episode_blocks,
        task_blocks=task_blocks,
    )


def render(template: str, out: str | Path, **shown: Any) -> Path:
    """Writes a page of `templates/`, all of whose texts are escaped.

    Raises:
        ConfigError: if `out` cannot be written.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trl_dbbench.report"),
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


def _facts(run: Run, accuracy: Chart, compared: Comparison | None) -> list[tuple[str, str, str]]:
    """(name, value, remark) of the page's head."""
    model = Path(run.model).name if run.model and run.model.startswith("/") else run.model
    counts: Counter[str] = Counter(episode["phase"] for episode in run.episodes)
    kinds = ", ".join(f"{counts[phase]:,} {name}" for phase, name in PHASES.items() if counts[phase])
    planned = f"of {run.planned_steps:,}" if run.planned_steps and run.planned_steps != run.steps else ""
    facts = [
        ("Model", model or "not recorded", run.adapter or ""),
        ("Updates", f"{run.steps:,}", planned),
        ("Episodes", f"{len(run.episodes):,}", kinds),
    ]
    if compared:
        _, before, after = compared.rows[0]
        facts.append(("Accuracy at the start", str(before), compared.before))
        facts.append(("Accuracy at the end", str(after), compared.after))
    elif accuracy.series:
        line = accuracy.series[0]
        for when, at in (("start", 0), ("end", -1)):
            interval = (
                f" [{100 * line.low[at]:.1f}, {100 * line.high[at]:.1f}]" if line.low and line.high else ""
            )
            remark = f"{line.name}, {updates(int(line.x[at]))}"
            if line.detail:
                remark += f": {line.detail[at]}"
            facts.append((f"Accuracy at the {when}", f"{100 * line.y[at]:.1f} %{interval}", remark))
    return facts


def _settings(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(name, a value for each run) of what run.json says, where it says something."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    rows = [(name, [_shown(run.settings.get(name)) for run in runs]) for name in names]
    return [(name, values) for name, values in rows if any(values)]


def _shown(value: Any) -> str:
    if value is None or value == {} or value == []:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _transcripts(shown: Sequence[tuple[str, Run]]) -> tuple[dict[str, Any], list[str], list[str]]:
    """The index, in columns, that the page lists and filters by; blocks of episodes; blocks of tasks.

    Episodes of one task point to it, so its question is in the page once.
    """
    recorded: dict[tuple[str, str, str], Task] = {}
    for task in (task for _, run in shown for task in run.tasks):
        recorded[task.id, task.question, task.digest] = task
        recorded.setdefault((task.id, task.question, ""), task)  # older episodes have no digest of their task
        recorded.setdefault((task.id, "", ""), task)  # still older ones do not say their question
    places: dict[tuple[str, str, str], int] = {}
    tasks: list[dict[str, Any]] = []
    details: list[dict[str, Any] | None] = []
    statuses: dict[str, int] = {}
    columns: dict[str, list] = {name: [] for name in ("run", "task", "phase", "step", "status", "right")}
    episodes = [(number, episode) for number, (_, run) in enumerate(shown) for episode in run.episodes]
    for number, episode in episodes:
        key = episode["task_id"], episode["question"], str(episode.get("task_digest") or "")
        if key not in places:
            places[key] = len(tasks)
            found = recorded.get(key)
            question = episode["question"] or (found.question if found else "")
            tasks.append(
                {"id": key[0], "question": question, "op": episode["operation"], "skills": episode["skills"]}
            )
            details.append(_task_detail(found) if found else None)
        columns["run"].append(number)
        columns["task"].append(places[key])
        columns["phase"].append(episode["phase"])
        columns["step"].append(episode["step"])
        columns["status"].append(statuses.setdefault(episode["status"], len(statuses)))
        columns["right"].append(int(episode["right"]))
    in_index = {
        "phase",
        "step",
        "status",
        "right",
        "task_id",
        "task_digest",
        "question",
        "operation",
        "skills",
    }
    dropped = in_index | {"greedy"}
    bodies = [{key: value for key, value in e.items() if key not in dropped} for _, e in episodes]
    index = {
        "runs": [name for name, _ in shown],
        "tasks": tasks,
        "statuses": list(statuses),
        "phases": PHASES,
        "block": BLOCK,
        "episodes": columns,
    }
    return index, _blocks(bodies), _blocks(details)


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


def _embedded(data: Any) -> str:
    """JSON that no HTML parser takes for the end of its script element, in ASCII (so without U+2028)."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
