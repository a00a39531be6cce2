"""The result of a run: its weights, and the settings of its episodes, for evaluation.

```
runs/first/                  RUN
  adapter_model.safetensors  an adapter, on the base model that run.json names; or all weights of a model
  run.json                   how its episodes were played (`settings.RunSettings`)
  checkpoint-20/             earlier weights; RUN/checkpoint-20 may be named instead of RUN
```
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from trl_dbbench.episode.types import Rules
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.adapters import ADAPTER_FILE, MODEL_FILE, base_model_of, check_is_model
from trl_dbbench.runs.checkpoints import PREFIX_CHECKPOINT_DIR, whole_checkpoints
from trl_dbbench.runs.read import read_episodes, tasks_by_digest
from trl_dbbench.runs.records import EPISODES_FILE, TASKS_FILE, whole_steps
from trl_dbbench.runs.settings import SETTINGS_FILE, RunSettings
from trl_dbbench.runs.stream import STAGES_FOLDER
from trl_dbbench.tasks import Task
from trl_dbbench.utils.files import nearest_path

logger = logging.getLogger(__name__)

DEFAULTS = RunSettings(protocol="text", observation_characters=800, max_turns=Rules.max_turns)
"""Default settings of episodes, unless a run or an option gives others."""

TAKEN = (
    *("model", "model_revision", "model_config", "dtype", "protocol", "system_prompt", "chat_template"),
    *("chat_template_kwargs", "schema", "max_turns", "max_turn_tokens", "max_completion_length"),
    *("observation_characters", "grader", "harness", "history", "compaction", "compaction_tokens"),
    *("few_shot", "few_shot_memory", "few_shot_by", "few_shot_update", "few_shot_seed"),
)
"""Settings that an evaluation takes from a run."""


@dataclass(frozen=True)
class Trained:
    """A model to evaluate.

    Args:
        model, adapter: folders or hub ids; a LoRA adapter on that model.
        settings: settings of its episodes.
        run: folder of the run that trained it, if known.
        step: number of updates of the weights, if they are a checkpoint's or the best of the run.
        said: a line for the user: settings taken from the run, and those that options override.
    """

    model: str
    adapter: str | None
    settings: RunSettings
    run: Path | None = None
    said: str | None = None
    step: int | None = None


def find_trained(
    run: Path | None = None, model: str | None = None, adapter: str | None = None, **options: Any
) -> Trained:
    """Return the model to evaluate, as named by the user.

    Args:
        run: a run's folder, or a checkpoint in it.
        model: a model's folder or hub id; with an adapter, its base model.
        adapter: an adapter's folder or hub id. One in a run's folder is played with the run's settings.
        **options: fields of `RunSettings` to override, unless `None`.
    """
    if run is not None and adapter is not None:
        raise ConfigError("give RUN or --adapter, not both: RUN says itself what was trained.")
    if model is not None and run is None:
        known_run = adapter is None and (Path(model) / SETTINGS_FILE).is_file()
        if not known_run or (Path(model) / ADAPTER_FILE).is_file():
            check_is_model(model, "--model")
        if known_run:
            run, model = Path(model), None  # a run or a merged model, with its own settings
    folder = run or (Path(adapter) if adapter is not None and Path(adapter).is_dir() else None)
    weights = None if folder is None else _weights_in(folder)
    home = None if folder is None else _home_of(folder)
    known = DEFAULTS if home is None else RunSettings.of_file(home / SETTINGS_FILE)
    if home is not None and (memory := known.few_shot_memory) and not Path(memory).exists():
        beside = home / Path(memory).name  # a merged model's folder may have moved
        known = replace(known, few_shot_memory=str(beside)) if beside.is_file() else known
    if weights is not None and (weights / ADAPTER_FILE).exists():
        adapter = str(weights)
        known = replace(known, model=known.model or model or base_model_of(weights))
    elif weights is not None:
        if adapter is not None or model is not None:
            raise ConfigError(
                f"'{weights}' has all weights of a model and no adapter to merge or to switch off. "
                f"trl-dbbench eval {weights} --json FILE plays it, and compare takes such files."
            )
        known = replace(known, model=str(weights), model_revision=None, model_config=None)
    given = {name: value for name, value in {"model": model, **options}.items() if value is not None}
    settings = _overridden(known, given)
    if settings.model is None and adapter is not None:
        raise no_adapter(adapter)
    if settings.model is None:
        raise ConfigError("say what to evaluate: RUN, the output_dir of a training run, or --model.")
    said = None if home is None else _said(weights, home, known, settings, given)
    return Trained(settings.model, adapter, settings, home, said, _step_of(weights, home, known.best_step))


def no_adapter(named: str) -> ConfigError:
    """Return the error for an adapter that is not a local folder."""
    near = nearest_path(named)
    return ConfigError(
        f"--adapter: '{named}' is not an adapter's folder here{f'; nearest: {near}' if near else ''}. Give a "
        "run's output_dir or a checkpoint in it; to evaluate an adapter of the hub, name its base by --model "
        "as well."
    )


def _overridden(known: RunSettings, given: Mapping[str, Any]) -> RunSettings:
    """Override settings, and drop those that depend on an overridden one."""
    if given.get("protocol", known.protocol) != known.protocol:
        known = replace(known, system_prompt=None)  # it explains the run's own protocol
    if "dtype" in given:
        known = replace(known, autocast=None)
    if "few_shot_memory" in given or given.get("few_shot") == 0:
        known = replace(known, few_shot_memory=None, few_shot_update=None)
    if "model" in given:
        known = replace(known, model_revision=None, model_config=None)
    return replace(known, **given)


def _weights_in(folder: Path) -> Path:
    """Return the folder, or its last whole checkpoint if it has no weights; else raise ConfigError."""
    for place in (folder, *reversed(whole_checkpoints(folder))):
        if any((place / name).exists() for name in (ADAPTER_FILE, MODEL_FILE)):
            return place
    raise ConfigError(
        f"'{folder}' has neither weights nor a whole checkpoint. Give the output_dir of a training run, a "
        "checkpoint in it, or an adapter's folder."
    )


def _home_of(folder: Path) -> Path | None:
    """Return the run's folder: this one, or the one around a checkpoint or a stage's adapter; else `None`."""
    folder = folder.resolve()
    places = [folder]
    if folder.name.startswith(PREFIX_CHECKPOINT_DIR):
        places.append(folder.parent)
    if folder.parent.name == STAGES_FOLDER:
        places.append(folder.parent.parent)
    return next((place for place in places if (place / SETTINGS_FILE).exists()), None)


def _step_of(weights: Path | None, home: Path | None, best_step: int | None) -> int | None:
    if weights is None or weights.resolve() == home:
        return best_step
    kind, _, number = weights.resolve().name.rpartition("-")
    return int(number) if kind == PREFIX_CHECKPOINT_DIR and number.isdecimal() else None


def _said(
    weights: Path | None, home: Path, known: RunSettings, settings: RunSettings, given: Mapping[str, Any]
) -> str:
    """Return a line on the settings taken from the run and those overridden."""
    usual = {field.name: field.default for field in fields(RunSettings)}
    had = {name: value for name in TAKEN if (value := getattr(known, name)) not in (usual[name], None, {})}
    now = {name: getattr(settings, name) for name in (*had, *given)}
    taken = [f"{name} {_short(value)}" for name, value in had.items() if now[name] == value]
    changed = [
        f"{name} {_short(value)}" + (f" instead of {_short(had[name])}" if name in had else "")
        for name, value in now.items()
        if name not in had or had[name] != value
    ]
    said = f"The weights of {weights}, played as {home / SETTINGS_FILE} says: {', '.join(taken)}."
    if known.best_step is not None and weights is not None and weights.resolve() == home:
        said += f" They are the best of the run, those after step {known.best_step:,}."
    if known.training.get("stage_adapters") == "each" and Path(weights or home).resolve() == home.resolve():
        said += f" They are the last stage's; those of each stage are in {home / STAGES_FOLDER}."
    if changed:
        said += f" Overridden: {', '.join(changed)}."
    return said


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"({len(text):,} characters)"


def evaluated_tasks(run: Path, notes: list[str], *, last: bool = False) -> list[Task]:
    """Return the tasks of the run's held-out evaluations, in order; with `last`, only of the last one that
    was not cut short. Empty if there was none."""
    played: defaultdict[int, dict[str, None]] = defaultdict(dict)  # step -> digests
    for _, record in read_episodes(run / EPISODES_FILE, notes):
        if record["phase"] == "eval":
            played[record["step"]][record.get("task_digest", "")] = None
    if not played:
        return []
    tasks = tasks_by_digest(run / TASKS_FILE, notes)
    steps = whole_steps(played)[-1:] if last else sorted(played)
    digests = dict.fromkeys(digest for step in steps for digest in played[step])
    if lost := len(digests.keys() - tasks.keys()):
        notes.append(f"{lost} of {len(digests)} held-out tasks are not in {TASKS_FILE}.")
    return [tasks[digest] for digest in digests if digest in tasks]


def held_out_tasks(run: Path) -> list[Task]:
    """Return the tasks of the run's last held-out evaluation, in order; raise ConfigError if it had none."""
    notes: list[str] = []
    if found := evaluated_tasks(run, notes, last=True):
        for note in notes:
            logger.warning("%s: %s", run, note)
        return found
    raise ConfigError(
        f"'{run}' has no held-out evaluation whose tasks could be played. Name some by --tasks. "
        f"{' '.join(notes)}".rstrip()
    )
