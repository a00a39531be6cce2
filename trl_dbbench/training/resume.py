"""A killed run resumes exactly where it stopped.

transformers restores weights, optimizer, schedule and random generators, and finds its place in the data.
This module adds what else a GRPO run needs to end with the same weights:

```
kill while a checkpoint is written      it is marked until it is complete; a marked one is never used
checkpoint damaged later                its files' sizes are recorded; if they differ, it is skipped
checkpoint between two steps of one     the rollouts still to be trained on are saved, one file per rank, and
generation                              TRL's count of micro-steps is restored
checkpoint in the middle of a step      it holds the state before; the step or evaluation is repeated as a
or of an evaluation                     whole
kill after the last step                no further step is made
```
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import torch
from accelerate.utils import send_to_device
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars
from torch.optim.lr_scheduler import LambdaLR
from transformers.trainer_callback import DefaultFlowCallback
from transformers.trainer_utils import rotate_checkpoints
from trl import GRPOTrainer

from trl_dbbench.episode.types import Status
from trl_dbbench.errors import ConfigError, DatabaseError
from trl_dbbench.runs.adapters import check_resumes
from trl_dbbench.runs.checkpoints import (
    PREFIX_CHECKPOINT_DIR,
    begin_run,
    find_checkpoint,
    mark_unfinished,
    running_in,
    seal,
    telling_of_a_full_disk,
)
from trl_dbbench.runs.settings import SETTINGS_FILE, RunSettings
from trl_dbbench.training.stopping import FlowCallback
from trl_dbbench.utils.lookup import nearest
from trl_dbbench.utils.ranks import Ranks

logger = logging.getLogger(__name__)

ALL_VOID = f"eval_status/{Status.ENVIRONMENT_FAULT}"
"""Metric: share of an evaluation's episodes whose environment failed."""

STATES_FILE = "states.pt"
"""File in a checkpoint with the states of the run's `stateful` objects."""


class Unlogged:
    """Metrics of the steps since the last log, kept in checkpoints because the next log includes them."""

    decides_weights = False

    def __init__(self, trainer: ResumableGRPOTrainer):
        self._trainer = trainer

    def state_dict(self) -> dict[str, list[float]]:
        return {name: list(values) for name, values in self._trainer._metrics["train"].items()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        metrics = self._trainer._metrics["train"]
        metrics.clear()
        for name, values in state.items():
            metrics[name] += values


class ResumableGRPOTrainer(GRPOTrainer):
    """TRL's trainer, with checkpoints from which a run ends with the same weights as an uninterrupted run.

    SIGTERM saves a checkpoint at the end of the step and ends training; `stopped` is then true.
    `stateful` holds, by name, objects with `state_dict` and `load_state_dict` that checkpoints keep. Their
    states must be equal on all ranks.

    `_save_checkpoint` may be called in the middle of a step, on all ranks, outside contexts that gather
    weights: the run then resumes from the start of that step.
    """

    _step: int
    _buffered_inputs: list[dict[str, Any]] | None
    _before: tuple[int, Callable[[], None]] | None = None
    """Global step of the step or evaluation under way, and a function that restores the state before it."""
    _saved: int | None = None  # global step of the last checkpoint
    best_step: int | None = None
    """Updates of the best weights, once `load_best_model_at_end` has loaded them."""
    run_id: str | None = None
    """Id of the run, set when `train` begins; `None` if an earlier version began the run."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.stateful: dict[str, Any] = {"unlogged": Unlogged(self)}
        super().__init__(*args, **kwargs)
        self.flow = self.stateful["flow"] = FlowCallback(self._any_rank)
        self.callback_handler.callbacks = [
            self.flow if type(callback) is DefaultFlowCallback else callback
            for callback in self.callback_handler.callbacks
        ]

    @property
    def stopped(self) -> bool:
        """True if a signal ended the training before its last step."""
        return self.flow.stopped

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any):
        """Train as [`~transformers.Trainer`] does; `True` skips unfinished, damaged and foreign checkpoints.

        Without a checkpoint the run starts from the beginning, and files of an earlier run in `output_dir`
        are moved aside.

        Raises:
            ConfigError: if the named folder is not a checkpoint, or is unfinished, damaged or of another run,
                if it holds other weights than the settings train, or if another run trains in `output_dir`.
            StorageError: if the disk is full.
        """
        with running_in(self.args.output_dir), self.flow.signal.noted():
            checkpoint = find_checkpoint(self.args.output_dir, resume_from_checkpoint)
            if checkpoint is not None:
                check_resumes(self.model, checkpoint)
            self.run_id = begin_run(self.args.output_dir, checkpoint, self._weights_read())
            return super().train(checkpoint, *args, **kwargs)

    def _weights_read(self) -> list[str | None]:
        """Return the paths that the next start of this run loads weights from."""
        names = ("adapter_name_or_path", "reference_model_name_or_path")
        return [self.model.config.name_or_path, *(getattr(self.args, name, None) for name in names)]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False, **kwargs: Any) -> None:
        # the final model is saved after the training
        with telling_of_a_full_disk(Path(self.args.output_dir)):
            super().save_model(output_dir, _internal_call, **kwargs)
            if not _internal_call:  # PEFT has added its lines to the card
                self.create_model_card(model_name=Path(self.args.output_dir).name)

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        wanted = self.args.hub_model_id or self.args.output_dir
        instead = "Give a token (hf auth login) and hub_model_id: USER/NAME, or leave push_to_hub out."
        with telling_of_the_hub(f"given a repository for '{wanted}'", instead):
            super().init_hf_repo(*args, **kwargs)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        folder, name = self.args.output_dir, self.hub_model_id
        instead = f"It is in {folder}, whole. Later: hf upload {name} {folder} --exclude 'checkpoint-*' '_*'"
        self._quiet_hub()
        with telling_of_the_hub(f"pushed to '{name}'", instead):
            return super().push_to_hub(*args, **kwargs)

    def _quiet_hub(self) -> None:
        if self.args.disable_tqdm:  # transformers re-enables the hub's progress bars
            disable_progress_bars()

    def _init_training_state(self, max_steps, *args: Any, **kwargs: Any):
        # transformers would compare shares with a checkpoint's numbers of steps, and keep those numbers
        names = ("logging_steps", "eval_steps", "save_steps")
        given = {name: getattr(self.args, name) for name in names}
        shares = {name: value for name, value in given.items() if value is not None and 0 < value < 1}
        counted = {name: math.ceil(max_steps * value) for name, value in shares.items()}
        with replaced(self.args, **counted):
            trained = super()._init_training_state(max_steps, *args, **kwargs)
        self.state.compute_steps(self.args, max_steps)
        return trained

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        # TRL's count starts at 0 in each process; compute it as transformers finds its place in the data
        accumulation, in_epoch = self.args.gradient_accumulation_steps, len(train_dataloader)
        epochs, steps = divmod(self.state.global_step, math.ceil(in_epoch / accumulation))
        self._step = epochs * in_epoch + steps * accumulation
        self._buffered_inputs = self._before = self._saved = None
        self.flow.evaluation_due = False
        if resume_from_checkpoint is not None:
            self._load_rollouts(Path(resume_from_checkpoint))
            self._load_states(Path(resume_from_checkpoint) / STATES_FILE)
            if self.state.best_global_step:
                # transformers saved the best checkpoint's path, but the folder may have moved since
                name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
                places = (Path(self.args.output_dir), Path(resume_from_checkpoint).parent)
                if best := next((place / name for place in places if (place / name).is_dir()), None):
                    logger.info("The best checkpoint so far is %s.", best)
                    self.state.best_model_checkpoint = str(best)
            self.flow.evaluation_due &= self.eval_dataset is not None
            if Path(resume_from_checkpoint).resolve() == self._checkpoint_folder().resolve():
                self._saved = self.state.global_step
        return prepared

    def _run_epoch(self, *args: Any, **kwargs: Any):
        # transformers would make one more step in a run that was killed after its last
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any):
        # called first in a step; at the start of an epoch it draws a random number
        self._before = self.state.global_step, self._noted()
        return super().get_batch_samples(*args, **kwargs)

    def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        dtypes = {name: each.dtype for name, each in self.model.named_parameters() if each.requires_grad}
        super()._load_from_checkpoint(*args, **kwargs)
        for name, weight in self.model.named_parameters():
            # PEFT loads adapters as fp32; on quantized weights they are trained in bf16
            if dtypes.get(name, weight.dtype) != weight.dtype:
                weight.data = weight.data.to(dtypes[name])

    def _load_optimizer_and_scheduler(self, checkpoint):
        optimizer, schedule = self.optimizer, self.lr_scheduler
        names = ("weight_decay", "betas", "eps")
        given = [{name: group[name] for name in names if name in group} for group in optimizer.param_groups]
        rates = list(getattr(schedule, "base_lrs", ()))
        settings = [set(group) for group in optimizer.param_groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        if any(own - set(group) for own, group in zip(settings, optimizer.param_groups, strict=True)):
            raise ConfigError(
                f"resume_from_checkpoint: '{checkpoint}' holds the state of another optimizer than optim: "
                f"{self.args.optim.value} makes. Give the run's own optim, or leave out "
                "resume_from_checkpoint to begin another run."
            )
        # keep the checkpoint's moments and position in the schedule, but this start's settings
        for group, own in zip(optimizer.param_groups, given, strict=True):
            group.update(own)
        if isinstance(schedule, LambdaLR) and schedule.base_lrs != rates:
            schedule.base_lrs = rates
            shares = [rate_of(schedule.last_epoch) for rate_of in schedule.lr_lambdas]
            schedule._last_lr = [rate * share for rate, share in zip(rates, shares, strict=True)]
            for group, rate, now in zip(optimizer.param_groups, rates, schedule._last_lr, strict=True):
                group["initial_lr"], group["lr"] = rate, now

    def _load_rng_state(self, checkpoint):
        super()._load_rng_state(checkpoint)
        self._before = self.state.global_step, self._noted()

    def _determine_best_metric(self, metrics: dict[str, Any], trial: Any) -> bool:
        asked = self.args.metric_for_best_model or ""
        name = asked if asked.startswith("eval_") else f"eval_{asked}"
        if asked and metrics.get(name) is None:
            if name not in metrics and metrics.get(ALL_VOID) != 1:
                near = f"; nearest: {nearest(name, metrics)}" if nearest(name, metrics) else ""
                raise ConfigError(f"metric_for_best_model: an evaluation has no {name!r}{near}.")
            return False  # the evaluation judged no episode
        return super()._determine_best_metric(metrics, trial)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self.best_step = self.state.best_global_step
        folder = Path(self.args.output_dir)
        if self.args.should_save and (folder / SETTINGS_FILE).exists():
            replace(RunSettings.of_file(folder / SETTINGS_FILE), best_step=self.best_step).write(folder)

    def _finalize_training(self, *args: Any, **kwargs: Any):
        # a stopped run resumes later, but transformers would delete its last checkpoint in favour of the best
        kept = {"load_best_model_at_end": False, "save_total_limit": None} if self.stopped else {}
        with replaced(self.args, **kept):
            return super()._finalize_training(*args, **kwargs)

    def _save_checkpoint(self, model, trial):
        if self._saved == self.state.global_step:
            return
        folder, limit = self._checkpoint_folder(trial), self.args.save_total_limit
        with self._before_the_step():
            if self.args.should_save:
                mark_unfinished(folder)
            self.accelerator.wait_for_everyone()
            with replaced(self.args, save_total_limit=None, push_to_hub=False):  # only once it is complete
                super()._save_checkpoint(model, trial)
            self._save_rollouts(folder)
            if self.args.should_save:
                states = {name: each.state_dict() for name, each in self.stateful.items()}
                torch.save(states, folder / STATES_FILE)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            seal(folder, self.run_id)
        self._saved = self.state.global_step
        if self.args.push_to_hub:
            self._quiet_hub()
            self._push_from_checkpoint(str(folder))
        if self.args.should_save:
            rotate_checkpoints(str(folder.parent), limit, self.state.best_model_checkpoint, use_mtime=True)

    def _stop_without_database(self, why: str | None) -> None:
        """Save a checkpoint and raise DatabaseError if a rank has given up waiting for its database.

        All ranks must call it. `why` is the reason for giving up this rank's database; `None` if it answers.
        """
        for reason in filter(None, Ranks().gather(why)):
            text = f"{reason}. The database was waited for, by database_patience, and is still away."
            if self.is_in_train:
                self._save_checkpoint(self.model, trial=None)
                text += (
                    f" Step {self.state.global_step} is saved in {self.args.output_dir}: start again with "
                    "resume_from_checkpoint: true when the database is back."
                )
            raise DatabaseError(text)

    @contextmanager
    def _before_the_step(self) -> Iterator[None]:
        """Restore, during the block, the state before the step or evaluation under way, if any."""
        if (restore := self._restore_before) is None:
            yield
            return
        now = self._noted()
        restore()
        try:
            yield
        finally:
            now()

    @property
    def _restore_before(self) -> Callable[[], None] | None:
        """Function that restores the state before the step or evaluation under way; `None` between them."""
        step, restore = self._before or (None, None)
        return restore if step == self.state.global_step else None

    def _noted(self) -> Callable[[], None]:
        """Save what a step changes, except weights and optimizer; return a function that restores it."""
        device = self.accelerator.device
        on_device = None if device.type == "cpu" else torch.get_device_module(device)
        step, rollouts, seen = self._step, self._buffered_inputs, self.state.num_input_tokens_seen
        generators = torch.get_rng_state(), on_device and on_device.get_rng_state()
        states = {
            name: deepcopy(each.state_dict())
            for name, each in self.stateful.items()
            if getattr(each, "changes_within_a_step", True)  # objects with large weights opt out
        }

        def restore() -> None:
            self._step, self._buffered_inputs = step, rollouts
            self.state.num_input_tokens_seen = seen
            for name, state in states.items():
                self.stateful[name].load_state_dict(state)
            torch.set_rng_state(generators[0])
            if on_device is not None:
                on_device.set_rng_state(generators[1])

        return restore

    def _checkpoint_folder(self, trial: Any = None) -> Path:
        return Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"

    # --- rollouts that are still to be trained on -------------------------------------------------

    @property
    def _micro_steps(self) -> int:
        """Number of micro-steps of a generation."""
        return self.args.steps_per_generation * self.num_iterations

    def _within_generation(self) -> bool:
        return self._step % self._micro_steps != 0

    def _shape_of_rollouts(self) -> dict[str, int]:
        """Return the values that must be equal for saved rollouts to be usable."""
        return {
            "micro_step": self._step,
            "ranks": self.accelerator.num_processes,
            "batches": self.args.steps_per_generation,
            "rows": self.args.per_device_train_batch_size,
        }

    def _rollouts_file(self, folder: Path) -> Path:
        return folder / f"rollouts_{self.accelerator.process_index}.pt"

    def _save_rollouts(self, folder: Path) -> None:
        if self._within_generation() and self._buffered_inputs is not None:
            saved = {"shape": self._shape_of_rollouts(), "batches": self._buffered_inputs}
            torch.save(saved, self._rollouts_file(folder))

    def _load_rollouts(self, folder: Path) -> None:
        if not self._within_generation():
            return
        saved = None
        if (file := self._rollouts_file(folder)).exists():
            saved = torch.load(file, map_location="cpu", weights_only=True)
        usable = saved is not None and saved["shape"] == self._shape_of_rollouts()
        if self._any_rank(not usable):
            logger.warning(
                "%s lies within the steps of a generation and has no rollouts for the rest of them that "
                "fit this run (made by an older version, or with another batch size or number of ranks). "
                "They are played again, so the weights will differ from those of an unbroken run.",
                folder,
            )
        elif saved is not None:
            self._buffered_inputs = send_to_device(saved["batches"], self.accelerator.device)

    def _load_states(self, file: Path) -> None:
        states = torch.load(file, map_location="cpu", weights_only=True) if file.exists() else {}
        for name, each in self.stateful.items():
            if name in states:
                each.load_state_dict(states[name])
            elif getattr(each, "decides_weights", True):
                logger.warning(
                    "%s holds nothing for the run's %s, which begins anew: the weights will differ from "
                    "those of an unbroken run.",
                    file.parent,
                    name,
                )

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        # an evaluation draws from the global generators; it must not change the training that follows
        device = self.accelerator.device
        used = [] if device.type == "cpu" else [device]  # not all GPUs of the machine
        self.flow.evaluation_due = self.is_in_train  # for a checkpoint saved meanwhile
        before = self.state.global_step, self._restore_before or self._noted()
        # TRL's table of completions has one file per step, for training only
        apart = replaced(self, _logs=deepcopy(self._logs), log_completions=False, _before=before)
        with torch.random.fork_rng(used, device_type=device.type), apart:
            metrics = super().evaluate(*args, **kwargs)
        self.flow.evaluation_due = False
        return metrics

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        # an evaluation that a resumed run makes up for at its start counts like any other
        late = skip_scheduler and self.state.global_step > 0
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler and not late)
        if late and self._determine_best_metric(metrics, trial) and self._checkpoint_folder().exists():
            self.state.best_model_checkpoint = str(self._checkpoint_folder())
        return metrics

    def _any_rank(self, yes: bool) -> bool:
        return bool(self.accelerator.gather(torch.tensor([yes], device=self.accelerator.device)).any())


@contextmanager
def replaced(settings: object, **values: Any) -> Iterator[None]:
    """Set attributes to other values during the block."""
    before = {name: getattr(settings, name) for name in values}
    vars(settings).update(values)
    try:
        yield
    finally:
        vars(settings).update(before)


@contextmanager
def telling_of_the_hub(what: str, instead: str) -> Iterator[None]:
    """Raise a one-line ConfigError if the hub refuses a request in the block, does not answer, or may not be
    asked (`HF_HUB_OFFLINE`).

    `what` completes "the model could not be ...", as in "pushed to 'me/agent'"; `instead` tells the user what
    to do.
    """
    try:
        yield
    except (HfHubHTTPError, httpx2.HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"the model could not be {what}: {said} {instead}") from None
