"""Lenient reading of a run's files, which may be incomplete, with a note for every gap."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.read import loads, read_episodes, read_tasks
from trl_dbbench.runs.records import EPISODES_FILE, METRICS_FILE, TASKS_FILE, EpisodeRecord
from trl_dbbench.runs.settings import SETTINGS_FILE
from trl_dbbench.runs.stream import StreamRecord
from trl_dbbench.tasks import Task


@dataclass
class Run:
    """Readable parts of a run; `notes` tell the user what is missing."""

    name: str
    episodes: list[EpisodeRecord] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings in run.json."""
    path: Path | None = None
    """The run's folder."""
    stream: StreamRecord | None = None

    @property
    def model(self) -> str | None:
        """The trained model, or its adapter's base."""
        return str(self.settings.get("model") or "") or None

    @property
    def training(self) -> dict[str, Any]:
        """Training settings in run.json: learning rate, batch, loss. Empty in earlier versions."""
        said = self.settings.get("training")
        return said if isinstance(said, dict) else {}

    @property
    def best_step(self) -> int | None:
        """Number of updates of the weights in the folder, if `load_best_model_at_end` selected them."""
        step = self.settings.get("best_step")
        return step if isinstance(step, int) else None

    def phase(self, phase: str) -> list[EpisodeRecord]:
        return [episode for episode in self.episodes if episode["phase"] == phase]


def read_run(folder: str | Path) -> Run:
    """Read a training run's `output_dir`, whether finished, running or killed; raise ConfigError if the
    folder does not exist or has no readable part of a run."""
    folder = Path(folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise ConfigError(f"the run '{folder}' {what}. Give the output_dir of a training run, a folder.")
    run = Run(folder.resolve().name or str(folder.resolve()), path=folder.resolve())
    run.episodes.extend(record for _, record in read_episodes(folder / EPISODES_FILE, run.notes))
    _read_log(folder / METRICS_FILE, run)
    if not run.episodes and not run.log:
        reasons = " ".join(run.notes)
        raise ConfigError(f"nothing of a run can be read in '{folder}'. {reasons}")
    run.tasks.extend(read_tasks(folder / TASKS_FILE, run.notes))
    _read_settings(folder / SETTINGS_FILE, run)
    try:
        run.stream = StreamRecord.read(folder)
    except ConfigError as error:
        run.notes.append(str(error))
    # the episodes of `trl-dbbench sample` lead to no update; its run.json has no training settings
    trained = bool(not run.settings or run.training or run.settings.get("id"))
    played = max((e["step"] + (e["phase"] != "eval" and trained) for e in run.episodes), default=0)
    run.steps = max(run.steps, played)
    return run


def _read_log(path: Path, run: Run) -> None:
    lines = path.read_bytes().splitlines() if path.exists() else []
    for line in lines:
        try:
            entry = loads(line)
            run.log.append(entry | {"step": int(entry["step"])})
        except (ValueError, KeyError, TypeError, RecursionError):  # a killed run may leave half a line
            continue
    if run.log:
        run.steps = run.log[-1]["step"]
    else:
        run.notes.append(f"{path.name} has no readable line: no total reward, no KL.")


def _read_settings(path: Path, run: Run) -> None:
    try:
        settings = loads(path.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        settings = None
    if isinstance(settings, dict):
        run.settings = settings
    else:
        run.notes.append(f"{path.name} cannot be read: the settings of the run are not shown.")
