"""`stream.json` in a run's folder: the stages of its task stream, and the accuracies after each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trl_dbbench.errors import ConfigError
from trl_dbbench.grading.continual import Continual
from trl_dbbench.grading.statistics import Share
from trl_dbbench.runs.records import EpisodeRecord, is_void
from trl_dbbench.utils.console import columns
from trl_dbbench.utils.files import write_atomically

STREAM_FILE = "stream.json"
STAGES_FOLDER = "stages"
"""Folder of the stages' adapters, in a run's folder."""


@dataclass
class StageRecord:
    """A stage, its number of training tasks, and the number of updates before it and at its end."""

    name: str
    tasks: int
    first_step: int | None = None
    last_step: int | None = None


@dataclass
class StreamRecord:
    """Progress of a stream.

    Attributes:
        by, order: how the recipe divides and orders the tasks.
        stages: the stages, in order.
        groups: names of the matrix's columns; the stages' names if each stage has a column.
        matrix: [right, judged] counts of held-out episodes, shape (measurements, groups); the first row is
            from before the training, row i from the end of stage i.
    """

    by: str
    order: str
    stages: list[StageRecord]
    groups: list[str]
    matrix: list[list[list[int]]] = field(default_factory=list)

    @property
    def accuracies(self) -> list[list[float | None]]:
        """Matrix R of `grading.continual`."""
        return [[right / judged if judged else None for right, judged in row] for row in self.matrix]

    @property
    def told(self) -> str:
        """Text with the stages and their numbers of tasks, for a message."""
        return ", ".join(f"{stage.name} ({stage.tasks})" for stage in self.stages)

    @property
    def row_names(self) -> list[str]:
        """The names of the matrix's rows."""
        names = ["before the training", *(f"after {stage.name}" for stage in self.stages)]
        return names[: len(self.matrix)]

    @property
    def measures(self) -> Continual:
        """Average accuracy, forgetting and transfer so far; all `None` before the first measurement."""
        if not self.matrix:
            return Continual()
        measured = Continual.of(self.accuracies)
        one_by_one = [stage.name for stage in self.stages] == self.groups
        return measured if one_by_one else Continual(measured.average_accuracy)

    def stage_at(self, step: int) -> int | None:
        """Return the number of the stage that the run is in after `step` updates; `None` if in none."""
        for number, stage in enumerate(self.stages):
            if stage.first_step is None or step < stage.first_step:
                return None
            if stage.last_step is None or step < stage.last_step:
                return number
        return None

    def prequential(self, episodes: Iterable[EpisodeRecord]) -> list[Share]:
        """Return each stage's greedy accuracy on its training tasks, each counted at its first occurrence.
        `episodes` are the run's, in order."""
        counts = [[0, 0] for _ in self.stages]
        met: set[str] = set()
        for episode in episodes:
            stage = self.stage_at(episode["step"]) if episode["phase"] != "eval" else None
            if stage is None or episode["task_digest"] in met:
                continue
            met.add(episode["task_digest"])  # with greedy_eval_every, some tasks have no greedy episode first
            if episode["phase"] == "greedy" and not is_void(episode):
                counts[stage][0] += episode["right"]
                counts[stage][1] += 1
        return [Share(right, judged) for right, judged in counts]

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with write_atomically(folder / STREAM_FILE) as file:
            file.write(json.dumps(asdict(self)) + "\n")

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> StreamRecord:
        return cls(**{**value, "stages": [StageRecord(**stage) for stage in value["stages"]]})

    @classmethod
    def read(cls, folder: Path) -> StreamRecord | None:
        """Read a run's stream; `None` if it has none. Raise ConfigError if the file is damaged."""
        file = folder / STREAM_FILE
        if not file.exists():
            return None
        try:
            return cls.from_dict(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{file} is damaged ({error}); delete it to read the run without it.") from None


def matrix_text(record: StreamRecord) -> str:
    """Return the matrix as lines of text, in percent; `-` where nothing was judged."""
    rows = [("", record.groups)]
    for name, row in zip(record.row_names, record.accuracies, strict=True):
        rows.append((name, ["-" if value is None else f"{100 * value:.1f}" for value in row]))
    return "\n".join(columns(rows, numbers=True))


def measures_text(measures: Continual) -> str:
    """Return the measures as a line of text, in percentage points."""
    known = {name: value for name, value in asdict(measures).items() if value is not None}
    said = [f"{name.replace('_', ' ')} {100 * value:.1f}" for name, value in known.items()]
    return ", ".join(said) or "nothing was measured"
