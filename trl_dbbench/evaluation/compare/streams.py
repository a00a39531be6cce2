"""Comparison of runs on task streams: what each method of continual learning kept, lost and cost. Runs that
differ only in the seed count as one method, shown as the mean over seeds with a 95 % interval."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from trl_dbbench.evaluation.report.run import Run, read_run
from trl_dbbench.grading.continual import Continual
from trl_dbbench.grading.statistics import mean_interval
from trl_dbbench.runs.stream import StreamRecord
from trl_dbbench.utils.console import columns

OF_A_SEED = ("seed", "max_steps", "id", "few_shot_seed", "versions")
"""Settings that may differ between runs of the same method."""


@dataclass(frozen=True)
class StreamFigures:
    """Figures of a run on a stream; accuracies are 0 to 1, or `None` if unknown.

    Attributes:
        prequential: greedy accuracy on the training tasks, each played before it is trained on; the area
            under the accuracy curve over the stream.
        tokens: tokens sampled in training, greedy episodes included.
        seconds: total time of the training steps.
        way: settings of the method, as JSON; equal for runs that differ only in the seed.
    """

    name: str
    measures: Continual
    prequential: float | None
    tokens: int
    seconds: float | None
    way: str
    seed: int | None = None

    @classmethod
    def of(cls, run: Run, record: StreamRecord, name: str) -> StreamFigures:
        shares = record.prequential(run.episodes)
        judged = sum(share.judged for share in shares)
        # an entry logs the mean over the steps since the previous entry
        logged = [(entry["step"], entry["step_time"]) for entry in run.log if "step_time" in entry]
        before = [0, *(step for step, _ in logged)]
        times = [seconds * (step - last) for (step, seconds), last in zip(logged, before, strict=False)]
        played = [episode for episode in run.episodes if episode["phase"] != "eval"]
        settings = {name: value for name, value in run.settings.items() if name not in OF_A_SEED}
        settings["training"] = {name: value for name, value in run.training.items() if name not in OF_A_SEED}
        return cls(
            name,
            record.measures,
            sum(share.right for share in shares) / judged if judged else None,
            sum(turn["tokens"] for episode in played for turn in episode["turns"]),
            sum(times) if times else None,
            json.dumps(settings, sort_keys=True),
            run.training.get("seed"),
        )


def stream_figures(folders: Sequence[Path], names: Sequence[str]) -> list[StreamFigures]:
    """Return the figures of the folders that are runs with a stream."""
    found = []
    for folder, name in zip(folders, names, strict=True):
        record = StreamRecord.read(folder) if folder.is_dir() else None
        if record is not None:
            found.append(StreamFigures.of(read_run(folder), record, name))
    return found


def streams_text(figures: Sequence[StreamFigures]) -> str:
    """Return a table with a line for each method; accuracies and differences are in percentage points."""
    ways: dict[tuple[str, int], list[StreamFigures]] = {}
    for number, each in enumerate(figures):
        same = [other.seed for other in figures[:number] if other.way == each.way]
        # a second run with the same seed gets its own line
        ways.setdefault((each.way, same.count(each.seed)), []).append(each)
    titles = [each.name.replace("_", " ") for each in fields(Continual)]
    rows = [("stream", [*titles, "prequential", "tokens", "seconds"])]
    for runs in ways.values():
        name = runs[0].name if len(runs) == 1 else f"{runs[0].name} ({len(runs)} seeds)"
        points = zip(*([*astuple(run.measures), run.prequential] for run in runs), strict=True)
        cells = [_cell(shares, ".1f", 100) for shares in points]
        cells += [_cell([run.tokens for run in runs], ",.0f"), _cell([run.seconds for run in runs], ",.0f")]
        rows.append((name, cells))
    return "\n".join(columns(rows, numbers=True))


def _cell(values: Iterable[float | None], form: str, scale: int = 1) -> str:
    """Return the mean over seeds with its interval, or the value of a single run."""
    known = [scale * value for value in values if value is not None]
    if not known:
        return "-"
    if len(known) == 1:
        return format(known[0], form)
    middle, half = mean_interval(known)
    return f"{middle:{form}} ± {half:{form}}"
