"""A run's folder and its checkpoints: which of them are complete, and which run may write there.

```
checkpoint-20/
  checkpoint-is-incomplete.txt   a mark, from before the first file until the last one is on disk
  checkpoint-files.json          the sizes of all files, written before the mark is removed
  run-id.txt                     the id of the run that saved it, as in run.json
```

A kill or crash leaves the mark, and later damage changes sizes. A run does not resume from such checkpoints,
nor from one of another run. Runs and checkpoints of early versions have no id.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trl_dbbench.errors import ConfigError, DBBenchError, StorageError
from trl_dbbench.runs.records import EPISODES_FILE, METRICS_FILE, SHOTS_FILE, TASKS_FILE
from trl_dbbench.runs.settings import SETTINGS_FILE
from trl_dbbench.runs.stream import STAGES_FOLDER, STREAM_FILE
from trl_dbbench.utils.files import free_space, is_full, locked, write_through
from trl_dbbench.utils.ranks import Ranks, together

logger = logging.getLogger(__name__)

# transformers' names, copied because its trainer takes seconds to import
PREFIX_CHECKPOINT_DIR = "checkpoint"
TRAINER_STATE_NAME = "trainer_state.json"
UNFINISHED = "checkpoint-is-incomplete.txt"  # named as in transformers
SIZES = "checkpoint-files.json"  # name -> bytes
RUN_ID = "run-id.txt"

EARLIER = "_earlier"
"""Prefix of folders for the files of an earlier run. Names with a leading `_` are not uploaded to the hub."""

_WEIGHTS = (
    *("adapter_config.json", "adapter_model.*", "config.json", "generation_config.json"),
    *("model.safetensors*", "model-*.safetensors", "pytorch_model*"),
)
_STAGES = (STREAM_FILE, STAGES_FOLDER)
"""Files of a stream: the measurements after its stages, and their adapters."""
_TABLES = "completions/*.parquet"
"""TRL's tables of completions (`log_completions`). TRL creates their folder before the run begins."""
_LOGS = (EPISODES_FILE, TASKS_FILE, METRICS_FILE, SHOTS_FILE)


def find_checkpoint(output_dir: str | Path, asked: str | bool | None) -> str | None:
    """Return the checkpoint to resume from; `None` starts from the beginning. All ranks must call it.

    `asked` is the setting `resume_from_checkpoint`: `True` or `"true"` for the last complete checkpoint in
    `output_dir`, if there is one; or a folder. Raise ConfigError if it is incomplete, or ranks see different
    checkpoints.
    """
    if asked in (None, False, "", "false", "False"):
        return None
    with together():
        found = _find_here(output_dir, asked)
    ranks = Ranks()
    names = ranks.gather(found and Path(found).name)
    for rank, (name, host) in enumerate(zip(names, ranks.hosts(), strict=True)):
        if name != names[0]:
            raise ConfigError(
                f"resume_from_checkpoint: rank 0 sees {names[0] or 'no checkpoint'} in {output_dir}, and "
                f"rank {rank} on {host} {name or 'none'}. output_dir must be one folder that all machines "
                "share; without one, copy the checkpoint to the same place on each."
            )
    return found


def _find_here(output_dir: str | Path, asked: str | bool | None) -> str | None:
    """Return the checkpoint that this process sees."""
    if asked in (True, "true", "True"):
        folders = _checkpoints(Path(output_dir))
        while folders and (wrong := flaw(folders[-1])):
            logger.warning("%s is passed over: it %s.", folders.pop(), wrong)
        if not folders:
            logger.info(
                "There is no checkpoint in %s to go on from: the run starts at its beginning.", output_dir
            )
            return None
        folder = folders[-1]
    else:
        folder = Path(str(asked))
        if wrong := flaw(folder):
            whole = ", ".join(each.name for each in whole_checkpoints(Path(output_dir))) or "none"
            raise ConfigError(
                f"resume_from_checkpoint: '{folder}' {wrong}. Whole checkpoints in {output_dir}: {whole}. "
                "Name one of them, or give true to take the last one."
            )
    # without this state, transformers would restart the optimizer and the learning rate schedule
    if not any(folder.glob("rng_state*.pth")):
        raise ConfigError(
            f"resume_from_checkpoint: '{folder}' has weights and no state of a training (it was saved with "
            "save_only_model: true). Start a run of its own from it: adapter_name_or_path, or "
            "model_name_or_path for whole weights."
        )
    logger.info("The run goes on from %s.", folder)
    return str(folder)


def whole_checkpoints(output_dir: Path) -> list[Path]:
    """Return the checkpoints that a run can resume from, by step."""
    return [folder for folder in _checkpoints(output_dir) if flaw(folder) is None]


def _checkpoints(output_dir: Path) -> list[Path]:
    """Return checkpoint folders by step; other names, such as `checkpoint-5-old`, are ignored."""
    steps = (folder.name.partition("-")[2] for folder in output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*"))
    return [
        output_dir / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        for step in sorted(map(int, filter(str.isdecimal, steps)))
    ]


def _step(checkpoint: Path) -> int:
    """Return the number of updates before a whole checkpoint was saved."""
    return int(json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))["global_step"])


def flaw(folder: Path) -> str | None:
    """Return why a run cannot resume from a checkpoint; `None` if it can.

    Checkpoints of early versions, transformers and TRL have no sizes and no run id.
    """
    if not folder.is_dir():
        return "does not exist"
    try:
        json.loads((folder / TRAINER_STATE_NAME).read_text(encoding="utf-8"))  # transformers writes it last
    except (OSError, ValueError):
        return "was not written to its end"
    if (folder / UNFINISHED).exists():
        return "was not written to its end"
    if (folder.parent / SETTINGS_FILE).exists() and run_id_of(folder) != run_id_in(folder.parent):
        return f"is of another run than the {SETTINGS_FILE} beside it"
    try:
        sizes = json.loads((folder / SIZES).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return f"is damaged: {SIZES} cannot be read ({error})"
    for name, size in sizes.items():
        if not (folder / name).is_file():
            return f"is damaged: {name} is missing"
        if (found := (folder / name).stat().st_size) != size:
            return f"is damaged: {name} has {found:,} bytes instead of {size:,}"
    return None


def mark_unfinished(folder: Path) -> None:
    """Create a checkpoint folder marked as incomplete; the mark survives a crash of the machine."""
    # left by a killed run, or by a run that this one resumed at an earlier step
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / UNFINISHED).write_text("This checkpoint was not written to its end.\n")
    for path in (folder / UNFINISHED, folder, folder.parent):
        write_through(path)


def seal(folder: Path, run_id: str | None = None) -> None:
    """Record a checkpoint's file sizes and run id, and remove its mark once everything is on disk."""
    if run_id is not None:
        (folder / RUN_ID).write_text(run_id)
    paths = [path for path in folder.rglob("*") if path.name != UNFINISHED]
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in paths if path.is_file()}
    (folder / SIZES).write_text(json.dumps(sizes, indent=1))
    for path in (*paths, folder / SIZES, folder):
        write_through(path)
    (folder / UNFINISHED).unlink()
    write_through(folder)


@contextmanager
def running_in(output_dir: str | Path) -> Iterator[None]:
    """Lock a training's folder during the block, and explain a full disk. All ranks must enter it, and all
    raise an error if another run is training there."""
    folder = Path(output_dir)
    with ExitStack() as held, telling_of_a_full_disk(folder):
        with together():
            if Ranks().is_main:
                held.enter_context(locked(folder))
        yield


def run_id_in(folder: Path) -> str | None:
    """Return the id of a run's folder; `None` if it has none, as in early versions."""
    try:
        return json.loads((folder / SETTINGS_FILE).read_bytes()).get("id")
    except (OSError, ValueError, AttributeError):
        return None


def run_id_of(checkpoint: Path) -> str | None:
    """Return the id of the run that saved a checkpoint; `None` if it has none."""
    try:
        return (checkpoint / RUN_ID).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def begin_run(output_dir: str | Path, checkpoint: str | None, reads: Iterable[str | None] = ()) -> str | None:
    """Prepare the folder of a run that starts or resumes from a checkpoint, and return the run's id.

    All ranks must call it, within `running_in`. Files of another run are moved into a subfolder, so that they
    are not mistaken for this run's. Paths that the run `reads` at each start, such as its initial weights,
    stay. If the checkpoint is in another folder, such as this subfolder, the logs of its run are copied.
    """
    folder, kept = Path(output_dir), {Path(path).resolve() for path in reads if path}
    with together():
        run_id = secrets.token_hex(8) if checkpoint is None else run_id_of(Path(checkpoint))
        if Ranks().is_main:
            weights = () if folder.resolve() in kept else _WEIGHTS
            if checkpoint and _is_own(folder, Path(checkpoint), run_id):
                step = _step(Path(checkpoint))
                # of a branch that this run abandons: the next resume would continue it
                later = [path.name for path in whole_checkpoints(folder) if _step(path) > step]
                _set_aside(folder, [*weights, *later], kept, f"what the run had made after step {step}")
            else:
                stages = _STAGES if weights else ()
                patterns = [SETTINGS_FILE, *_LOGS, _TABLES, *weights, *stages, f"{PREFIX_CHECKPOINT_DIR}-*"]
                _set_aside(folder, patterns, kept, "another run, which this one does not go on with")
            if checkpoint and run_id is not None and run_id == run_id_in(Path(checkpoint).parent):
                _bring_logs(Path(checkpoint).parent, folder)
    return Ranks().from_main(run_id)


def _is_own(folder: Path, checkpoint: Path, run_id: str | None) -> bool:
    if checkpoint.parent.resolve() == folder.resolve() or not (folder / SETTINGS_FILE).exists():
        return True  # `find_checkpoint` has checked the id
    return run_id is not None and run_id == run_id_in(folder)


def _bring_logs(source: Path, folder: Path) -> None:
    for name in _LOGS:
        if (source / name).exists() and not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, folder / name)


def _set_aside(folder: Path, patterns: Sequence[str], kept: Collection[Path], what: str) -> None:
    found = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    needed = {*kept, *(parent for path in kept for parent in path.parents)}
    found = [path for path in found if path.resolve() not in needed]
    if not found:
        return
    number = 1
    while (aside := folder / f"{EARLIER}.{number}").exists():
        number += 1
    aside.mkdir()
    for path in found:
        place = aside / path.relative_to(folder)
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
    names = dict.fromkeys(path.relative_to(folder).parts[0] for path in found)
    logger.warning("%s holds %s: %s are in %s now.", folder, what, ", ".join(names), aside.name)
    if any(path.name.startswith(PREFIX_CHECKPOINT_DIR) for path in found):
        logger.warning("Start with resume_from_checkpoint: %s/checkpoint-N to go on with that one.", aside)


@contextmanager
def telling_of_a_full_disk(folder: Path) -> Iterator[None]:
    """Raise StorageError, which says how to resume, if the block fails because the disk is full."""
    try:
        yield
    except Exception as error:
        others = isinstance(error, DBBenchError) and not isinstance(error, StorageError)
        if others or not is_full(error, folder):
            raise
        whole = whole_checkpoints(folder)
        place = whole[-1].name if whole else "its beginning, as no checkpoint is whole yet"
        raise StorageError(
            f"no space is left for the run's files: {free_space(folder, tempfile.gettempdir())}. Free some "
            "(save_total_limit keeps fewer checkpoints), then start again with resume_from_checkpoint: true, "
            f"which goes on from {place}. What failed: {error}"
        ) from error
