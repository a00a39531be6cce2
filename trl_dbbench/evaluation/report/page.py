"""The HTML file: Jinja fills the template, the template's script draws the curves and shows transcripts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2

from trl_dbbench.evaluation.report.beside import charts_beside, compare_runs, differing_episode, names_of
from trl_dbbench.evaluation.report.curves import changed_episode, charts, compare, y_range
from trl_dbbench.evaluation.report.head import head_of
from trl_dbbench.evaluation.report.run import Run
from trl_dbbench.evaluation.report.transcripts import transcripts
from trl_dbbench.utils.files import write_atomically


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
    index, episode_blocks, task_blocks = transcripts(shown)
    in_page = [asdict(chart) | {"range": y_range(chart)} for chart in drawn]
    steps = max(each.steps or 0 for _, each in shown)
    return render(
        "report.html.j2",
        out,
        title=" and ".join(name for name, _ in shown),
        runs=[(name, each, head_of(each)) for name, each in shown],
        settings=_settings([each for _, each in shown]),
        charts=drawn,
        comparison=compared,
        counts={
            "flipped": sum(task["flipped"] for task in index["tasks"]),
            "failing": sum(index["episodes"]["failing"]),
        },
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
    """Return the filters of a page's tasks: `skills`, and `chips` as (group, label, number of tasks).

    Args:
        found_by: for each task, the labels of each group that leave it. The group "skill" has no chips.
    """
    counted = Counter((group, label) for each in found_by for group in each for label in set(each[group]))
    order = list(found_by[0]) if found_by else []
    chips = sorted(counted, key=lambda chip: (order.index(chip[0]), chip[1]))
    return {
        "skills": [label for group, label in chips if group == "skill"],
        "chips": [(group, label, counted[group, label]) for group, label in chips if group != "skill"],
    }


def _settings(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(name, a value for each run) of what run.json says, where it says something: of the training first."""
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
    """JSON that no HTML parser takes for the end of its script element, in ASCII (so without U+2028)."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
