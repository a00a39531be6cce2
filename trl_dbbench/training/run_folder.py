"""Run folders of TRL's own trainers: the run's id and its run.json.

```python
with run_folder(trainer, checkpoint, settings):
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(args.output_dir)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState

from trl_dbbench.engines.policy import autocast_of, quantization_of
from trl_dbbench.episode.types import Rules
from trl_dbbench.runs.adapters import check_resumes
from trl_dbbench.runs.checkpoints import PREFIX_CHECKPOINT_DIR, RUN_ID, begin_run, running_in
from trl_dbbench.runs.settings import RunSettings, training_of, versions
from trl_dbbench.utils.cpu import GivesBackMemory, leave_unpacked
from trl_dbbench.utils.files import found_from_everywhere, write_through
from trl_dbbench.utils.ranks import Ranks, together


def played_as(protocol: str, turns: Sequence[int] = (), **known: Any) -> RunSettings:
    """Return settings that play episodes like those trained on.

    Args:
        turns: turn counts of those episodes; the limit is at least their maximum.
        known: other fields of `RunSettings`, and limits that replace the usual ones.
    """
    usual = Rules(max_turns=max([Rules.max_turns, *turns]))
    limits = {
        name: getattr(usual, name) for name in ("max_turns", "max_turn_tokens", "max_completion_length")
    }
    return RunSettings(protocol, **{"observation_characters": 800} | limits | known)


@contextmanager
def run_folder(trainer: Any, checkpoint: str | None, played: RunSettings) -> Iterator[None]:
    """Lock a run's folder and write its id and settings there. All ranks enter it.

    The block trains and saves the model.

    Args:
        played: settings of the episodes that the model is trained on, or will play.

    Raises:
        ConfigError: if another run trains in the folder, or the checkpoint holds other weights.
        StorageError: if the disk is full.
    """
    args = trainer.args
    leave_unpacked(trainer.model)
    trainer.add_callback(GivesBackMemory())
    with running_in(args.output_dir):
        if checkpoint is not None:
            check_resumes(trainer.model, checkpoint)
        run_id = begin_run(args.output_dir, checkpoint, [trainer.model.config.name_or_path])
        with together():
            if Ranks().is_main:
                folder = Path(args.output_dir)
                folder.mkdir(parents=True, exist_ok=True)
                replace(_trained_by(trainer, played), id=run_id).write(folder)
        if run_id is not None:
            trainer.add_callback(_IdOfCheckpoints(run_id))
        yield


def _trained_by(trainer: Any, played: RunSettings) -> RunSettings:
    """Return `played` with this training's model and arguments instead of those of the run that played."""
    model, args = trainer.model, trainer.args
    name = model.config.name_or_path
    return replace(
        played,
        model=found_from_everywhere(name) if name else None,
        model_revision=(getattr(args, "model_init_kwargs", None) or {}).get("revision"),
        dtype=str(model.dtype).removeprefix("torch."),
        autocast=autocast_of(trainer.accelerator),
        quantized=quantization_of(model.config),
        rewards={},
        advantage=RunSettings.advantage,
        advantage_args=None,
        training=training_of(args, model),
        sampling={},
        task_files={},
        versions=versions(),
        best_step=None,
    )


class _IdOfCheckpoints(TrainerCallback):
    """Callback that writes the run's id into each checkpoint."""

    def __init__(self, run_id: str):
        self.run_id = run_id

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if args.should_save:
            file = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", RUN_ID)
            file.write_text(self.run_id)
            write_through(file)
