"""SIGTERM: the run saves a checkpoint at the end of its step and ends in order, on all ranks together."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback

from trl_dbbench.ranks import end

EXIT_STATUS = 128 + signal.SIGTERM  # what a shell says of a program that SIGTERM ended
SAME_SIGNAL_SECONDS = 1.0  # a scheduler and a launcher may both send it
PR_SET_PDEATHSIG = 1


class StopSignal:
    """Notes SIGTERM for as long as `noted` lasts. A second one does what the first would have done without
    it."""

    def __init__(self) -> None:
        self._received: float | None = None  # time.monotonic()
        self._earlier: signal.Handlers | Callable | int | None = None

    @property
    def received(self) -> bool:
        return self._received is not None

    @contextmanager
    def noted(self) -> Iterator[None]:
        self._received = None
        if threading.current_thread() is not threading.main_thread():  # Python takes handlers only there
            yield
            return
        self._earlier = signal.signal(signal.SIGTERM, self._note) or signal.SIG_DFL
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._earlier)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received = time.monotonic()
            # not by logging, which may just be at work in the code that the signal interrupts
            os.write(
                2,
                b"SIGTERM: the run ends after this step, with a checkpoint. A second one ends it at once.\n",
            )
        elif time.monotonic() - self._received > SAME_SIGNAL_SECONDS:
            signal.signal(signal.SIGTERM, self._earlier)
            signal.raise_signal(signal.SIGTERM)


class FlowCallback(DefaultFlowCallback):
    """When to log, evaluate, save and stop: transformers' own rules, with three changes.

    - A stop that a signal asks for is agreed among the ranks at the end of a step, and saves.
    - What the end of an epoch or of the run asks for is done with its last step, so that it comes before that
      step's checkpoint, and a kill cannot part the two.
    - The evaluation before the first step is not repeated in a resumed run.

    Args:
        any_rank: tells on all ranks whether it was told `True` on one.
    """

    def __init__(self, any_rank: Callable[[bool], bool]):
        self.signal = StopSignal()
        self.stopped = False
        self._any_rank = any_rank

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        self.stopped = False
        if state.global_step:
            args.eval_on_start = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> TrainerControl:
        super().on_step_end(args, state, control, **kwargs)
        if _ends_epoch_or_run(state):
            super().on_epoch_end(args, state, control, **kwargs)
        if self._any_rank(self.signal.received) and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> TrainerControl:
        if self.stopped:
            control.should_save = True  # save_strategy: best may have decided otherwise
        elif not _ends_epoch_or_run(state):  # another callback ends the epoch
            super().on_epoch_end(args, state, control, **kwargs)
        return control


def _ends_epoch_or_run(state: TrainerState) -> bool:
    return float(state.epoch or 0).is_integer() or state.global_step >= state.max_steps


def stop_with_launcher() -> None:
    """Under `accelerate launch` on Linux, this process gets SIGTERM when its launcher ends before it.

    With a single process the launcher does not pass signals on: it would end alone, and the training go on.
    """
    if not sys.platform.startswith("linux"):
        return
    launcher = os.getppid()
    command = Path(f"/proc/{launcher}/cmdline").read_bytes()
    if b"accelerate" in command or b"torchrun" in command:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # it has ended meanwhile
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def ordered_end() -> Iterator[Callable[[Trainer], None]]:
    """Around a training script: it ends when its launcher does, its ranks end together, and SIGTERM is told
    apart.

    ```python
    with ordered_end() as ended:
        ended(main())  # main returns the trainer
    ```

    Yields:
        A function that takes the trainer when it has been trained and its database is closed, which still
        needs the process group. A run that SIGTERM stopped then exits with 143, after a line that says how to
        go on.
    """
    stop_with_launcher()
    trainers: list[Trainer] = []
    yield trainers.append
    for trainer in trainers:
        stopped = getattr(trainer, "stopped", False)
        if stopped:
            state = trainer.state
            trainer.accelerator.print(
                f"SIGTERM ended the run after step {state.global_step} of {state.max_steps}. Start it again "
                "with --resume_from_checkpoint true to go on from there."
            )
        end(trainer)
        if stopped:
            raise SystemExit(EXIT_STATUS)


def set_up_logging(rank: int) -> None:
    """What a training script logs: the main process everything that a user wants to see, the others
    warnings."""
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
    for http_client in ("httpx", "httpx2"):  # a line for each request
        logging.getLogger(http_client).setLevel(logging.WARNING)
