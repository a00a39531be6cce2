"""Reads what a run left behind: leniently, since it may be half of it, and with a note for every gap."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.checkpoints import is_of_another_run
from trl_dbbench.runs.read import loads, read_episodes, read_tasks
from trl_dbbench.runs.records import EPISODES_FILE, METRICS_FILE, TASKS_FILE, EpisodeRecord
from trl_dbbench.runs.settings import SETTINGS_FILE
from trl_dbbench.tasks import Task

STATE_FILE = "trainer_state.json"


@dataclass
class Run:
    """The readable parts of a run; `notes` tell the user what is missing."""

    name: str
    model: str | None = None
    adapter: str | None = None
    episodes: list[EpisodeRecord] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    steps: int | None = None
    planned_steps: int | None = None
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings in run.json."""
    path: Path | None = None
    """The run's folder."""

    @property
    def training(self) -> dict[str, Any]:
        """Training settings in run.json: learning rate, batch, loss. Empty in earlier versions."""
        said = self.settings.get("training")
        return said if isinstance(said, dict) else {}

    @property
    def best_step(self) -> int | None:
        """Updates of the weights in the folder, if `load_best_model_at_end` has chosen them."""
        step = self.settings.get("best_step")
        return step if isinstance(step, int) else None

    def phase(self, phase: str) -> list[EpisodeRecord]:
        return [episode for episode in self.episodes if episode["phase"] == phase]


def read_run(folder: str | Path) -> Run:
    """Read a training run's `output_dir`, finished, running or killed.

    Raises:
        ConfigError: if the folder is not there or holds nothing of a run that can be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise ConfigError(f"the run '{folder}' {what}. Give the output_dir of a training run, a folder.")
    run = Run(folder.resolve().name or str(folder.resolve()), path=folder.resolve())
    run.episodes.extend(record for _, record in read_episodes(folder / EPISODES_FILE, run.notes))
    _read_log(folder, run)
    _read_metrics(folder / METRICS_FILE, run)
    if not run.episodes and not run.log:
        reasons = " ".join(run.notes)
        raise ConfigError(f"nothing of a run can be read in '{folder}'. {reasons}")
    _read_tasks(folder / TASKS_FILE, run)
    _read_model(folder, run)
    _read_settings(folder / SETTINGS_FILE, run)
    # no update follows the episodes of `sample`, whose run.json names no training
    trained = bool(not run.settings or run.training or run.settings.get("id"))
    played = max((e["step"] + (e["phase"] != "eval" and trained) for e in run.episodes), default=0)
    if run.log and run.steps is not None and played > run.steps + 1:
        run.notes.append(
            f"The trainer's log was last saved after {run.steps} updates; episodes go on to update {played}. "
            "Total reward and KL end with the log."
        )
    run.steps = max(run.steps or 0, played)
    return run


def _read_log(folder: Path, run: Run) -> None:
    """Take the furthest readable state of the trainer: beside the episodes, or in a checkpoint."""
    found: list[tuple[int, dict[str, Any]]] = []
    for path in [folder / STATE_FILE, *sorted(folder.glob("checkpoint-*/"))]:
        path = path if path.name == STATE_FILE else path / STATE_FILE
        if path.parent == folder and not path.exists():
            continue
        if path.parent != folder and is_of_another_run(path.parent):
            run.notes.append(f"{path.parent.name} is of another run and was left out.")
            continue
        try:
            state = loads(path.read_bytes())
            found.append((int(state["global_step"]), state))
        except FileNotFoundError:
            run.notes.append(f"{path.relative_to(folder)} is not there: this checkpoint was left out.")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            run.notes.append(f"{path.relative_to(folder)} cannot be read and was left out.")
    if not found:
        return
    run.steps, state = max(found, key=lambda entry: entry[0])
    log = state.get("log_history")
    run.log = [entry for entry in log if isinstance(entry, dict)] if isinstance(log, list) else []
    planned = state.get("max_steps")
    run.planned_steps = planned if isinstance(planned, int) and planned > 0 else None


def _read_metrics(path: Path, run: Run) -> None:
    """Take the log of each step where it goes on after the last saved state."""
    entries = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                entry = loads(line)
                entries.append(entry | {"step": int(entry["step"])})
            except (ValueError, KeyError, TypeError, RecursionError):  # half a line, of a killed run
                continue
    if entries and (run.steps is None or entries[-1]["step"] > run.steps):
        run.log, run.steps = entries, entries[-1]["step"]
    elif run.steps is None:
        run.notes.append(
            f"Neither {METRICS_FILE} nor a checkpoint with a {STATE_FILE} was found: no total reward, no KL."
        )


def _read_tasks(path: Path, run: Run) -> None:
    if path.exists():
        run.tasks.extend(read_tasks(path, run.notes))
    elif run.episodes:
        run.notes.append(f"{path.name} is not there: the tables that the agent worked on are not shown.")


def _read_settings(path: Path, run: Run) -> None:
    try:
        settings = loads(path.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        settings = None
    if isinstance(settings, dict):
        run.settings = settings
        run.model = str(settings.get("model") or run.model or "") or None
    else:
        run.notes.append(f"{path.name} cannot be read: the settings of the run are not shown.")


def _read_model(folder: Path, run: Run) -> None:
    checkpoints = sorted(folder.glob("checkpoint-*/"), key=lambda path: path.stat().st_mtime, reverse=True)
    for place in (folder, *checkpoints):
        for name, key in (
            ("adapter_config.json", "base_model_name_or_path"),
            ("config.json", "_name_or_path"),
        ):
            try:
                config = loads((place / name).read_bytes())
            except (OSError, ValueError, RecursionError):
                continue
            if not isinstance(config, dict):
                continue
            # a local model's config has no name of its own
            run.model = str(config.get(key) or config.get("model_type") or "") or None
            if "r" in config and "peft_type" in config:
                run.adapter = f"{str(config['peft_type']).replace('LORA', 'LoRA')} r {config['r']}"
            return
