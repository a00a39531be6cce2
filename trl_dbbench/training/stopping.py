"""SIGTERM and Ctrl-C: the run saves a checkpoint at the end of its step and ends, on all ranks together.

```
while it starts         Ctrl-C ends it: nothing is to be saved, databases are removed
while it trains         the first signal is noted and waits for the step's end, the second ends it at once
while it saves, closes  the first signal changes nothing: it ends anyway; the second ends it at once
```
"""

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
from typing import Any, ClassVar

from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback

from trl_dbbench.utils.console import plain_output
from trl_dbbench.utils.ranks import end

NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
SAME_SIGNAL_SECONDS = 1.0  # a scheduler and a launcher may both send it
PR_SET_PDEATHSIG = 1

Handler = Callable[[int, FrameType | None], Any]


class _Handlers:
    """Takes SIGTERM and SIGINT for a while, and tells a new one from an echo of the first.

    An echo is the same wish, sent twice: a terminal and a launcher both pass Ctrl-C on, and a launcher that
    it has ended takes its end for a SIGTERM (see `stop_with_launcher`), however long that takes.
    """

    def __init__(self) -> None:
        self.number: signal.Signals | None = None  # the first that came
        self._came = 0.0  # time.monotonic()
        self._earlier: dict[signal.Signals, Handler | int | None] = {}
        self._process, self._parent = os.getpid(), os.getppid()

    @contextmanager
    def taking(self, handler: Handler) -> Iterator[None]:
        """Sends signals to `handler` while the block lasts; those that the process ignores stay ignored."""
        main = threading.current_thread() is threading.main_thread()  # Python takes handlers only there
        self._process, self._parent = os.getpid(), os.getppid()
        self._earlier = {
            number: signal.getsignal(number)
            for number in NAMES
            if main and signal.getsignal(number) != signal.SIG_IGN  # nohup, a shell's background
        }
        for number in self._earlier:
            signal.signal(number, handler)
        try:
            yield
        finally:
            self.let_go()

    def let_go(self) -> None:
        for number, earlier in self._earlier.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)

    def is_echo(self, number: int) -> bool:
        """Whether the wish that this signal brings is known; to be asked once for each."""
        now = time.monotonic()
        orphaned = number == signal.SIGTERM and os.getppid() != self._parent
        if orphaned:
            self._parent = os.getppid()  # counts once
        if self.number is None:
            self.number, self._came = signal.Signals(number), now
            return False
        return orphaned or now - self._came <= SAME_SIGNAL_SECONDS

    def say(self, text: str) -> None:
        """One line for all ranks; not from workers, which were forked with these handlers."""
        if os.getpid() == self._process and os.environ.get("RANK", "0") == "0":
            # not by logging, which may just be at work in the code that the signal interrupts
            os.write(2, f"\n{text}\n".encode())


class StopSignal(_Handlers):
    """Notes SIGTERM and SIGINT for as long as `noted` lasts. A second one does what the first would have done
    without it."""

    trained: ClassVar[bool] = False
    """A training of this process has ended well, and what it leaves behind is being put in order."""

    @property
    def received(self) -> bool:
        return self.number is not None

    @contextmanager
    def noted(self) -> Iterator[None]:
        self.number = None
        with self.taking(self._note):
            yield
            StopSignal.trained = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        first = not self.received
        if self.is_echo(number):
            return
        if first:
            self.say(
                f"{NAMES[signal.Signals(number)]}: the run ends after this step, with a checkpoint. A second "
                "one ends it at once."
            )
        else:
            self.let_go()
            signal.raise_signal(number)


class _ScriptSignals(_Handlers):
    """What signals do in a training script before and after its training."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        first = self.number is None
        if self.is_echo(number):
            return
        if first and StopSignal.trained:
            self.say("The run saves what it has and ends. Once more ends it at once.")
        elif first and number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


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
    """Around a training script: it ends when its launcher does, its ranks end together, and signals are told
    apart.

    ```python
    with ordered_end() as ended:
        ended(main())  # main returns the trainer
    ```

    Yields:
        A function that takes the trainer when it has been trained and its database is closed, which still
        needs the process group. A run that SIGTERM stopped then exits with 143, one that Ctrl-C stopped with
        130, after a line that says how to go on.
    """
    stop_with_launcher()
    trainers: list[Trainer] = []
    StopSignal.trained = False
    signals = _ScriptSignals()
    with signals.taking(signals.handle):
        try:
            yield trainers.append
        except KeyboardInterrupt:
            signals.say(
                "Ctrl-C ended it at once. --resume_from_checkpoint true goes on from the last checkpoint."
            )
            raise SystemExit(128 + signal.SIGINT) from None
        for trainer in trainers:
            stopped = getattr(trainer, "stopped", False)
            number = (trainer.flow.signal.number if stopped else None) or signal.SIGTERM
            if stopped:
                state = trainer.state
                trainer.accelerator.print(
                    f"{NAMES[number]} ended the run after step {state.global_step} of {state.max_steps}. "
                    "Start it again with --resume_from_checkpoint true to go on from there.",
                    flush=True,
                )
            end(trainer)
            if stopped:
                raise SystemExit(128 + number)


def set_up_logging(rank: int) -> None:
    """What a training script logs: the main process everything that a user wants to see, the others
    warnings. Where it does not write to a terminal, it has lines and no bars."""
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
    plain_output(rank)
    for http_client in ("httpx", "httpx2"):  # a line for each request
        logging.getLogger(http_client).setLevel(logging.WARNING)
