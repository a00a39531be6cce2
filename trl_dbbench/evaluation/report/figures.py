"""The report's curves as PNG files for papers, drawn by matplotlib from the same numbers."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.report.curves import COLORS, Chart, charts, y_range
from trl_dbbench.evaluation.report.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_MATPLOTLIB = "figures need matplotlib: pip install 'trl-dbbench[report]'"


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def write_figures(run: Run, folder: str | Path) -> list[Path]:
    """Write each chart that has data as a 300 dpi PNG, as wide as one column of a paper; raise ConfigError if
    the folder cannot be written."""
    import matplotlib

    folder = Path(folder)
    style: dict[Any, Any] = {
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.parse_math": False,
    }
    written = []
    with matplotlib.rc_context(style):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for chart in charts(run):
                if chart.series:
                    written.append(folder / f"{chart.id}.png")
                    _figure(chart).savefig(written[-1], dpi=300)
        except OSError as error:
            raise ConfigError(f"figures cannot be written to {folder}: {error.strerror}.") from None
    return written


def _figure(chart: Chart) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(3.5, 2.4), layout="constrained")
    axes = figure.subplots()
    if chart.kind == "shares":
        x = chart.series[0].x
        width = min((after - before for before, after in pairwise(x)), default=1.0)
        below = [0.0] * len(x)
        for series in chart.series:
            axes.bar(x, series.y, width, below, color=COLORS[series.color], label=series.name)
            below = [low + y for low, y in zip(below, series.y, strict=True)]
        axes.margins(x=0)
    else:
        for series in chart.series:
            color = COLORS[series.color]
            if series.low and series.high:
                axes.fill_between(series.x, series.low, series.high, color=color, alpha=0.18, linewidth=0)
            marker = "o" if series.points or len(series.x) == 1 else ""
            axes.plot(
                series.x, series.y, color=color, label=series.name, marker=marker, markersize=3, linewidth=1.2
            )
    axes.set_ylim(*y_range(chart))
    if chart.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if len(chart.series) > 1:
        figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=7)
    return figure
