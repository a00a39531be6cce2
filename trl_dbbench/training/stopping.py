"""SIGTERM and Ctrl-C: the run saves a checkpoint at the end of its step and ends, on all ranks together.

```
while it starts            Ctrl-C ends it, at the latest once its libraries are imported, and databases are
                           removed
while it trains            the first signal takes effect at the end of the step, a second one at once
while it saves and closes  the first signal has no effect, since the run ends anyway; a second one ends it at
                           once
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
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from transformers import Trainer, TrainerControl, TrainerState
from transformers.trainer_callback import DefaultFlowCallback

from trl_dbbench.training.last_words import witnessed
from trl_dbbench.utils.console import plain_output
from trl_dbbench.utils.ranks import end

NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
SAME_SIGNAL_SECONDS = 1.0  # a scheduler and a launcher may both send it
PR_SET_PDEATHSIG = 1
LAUNCHERS = {"accelerate", "torchrun", "trl-dbbench", "trl_dbbench"}
"""Names of programs and packages that start ranks."""


class _Handlers:
    """Handlers of SIGTERM and SIGINT that tell a second signal from an echo of the first.

    An echo is the same request sent twice: a terminal and a launcher both forward Ctrl-C, and the launcher's
    end sends a SIGTERM (see `stop_with_launcher`), possibly much later.
    """

    def __init__(self) -> None:
        self.number: signal.Signals | None = None  # the first one received
        self._came = 0.0  # its time.monotonic()
        self._earlier: dict[signal.Signals, Any] = {}  # previous handlers
        self._process, self._parent = os.getpid(), os.getppid()

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Handle signals during the block; ignored signals stay ignored."""
        main = threading.current_thread() is threading.main_thread()  # Python allows handlers only there
        self._process, self._parent = os.getpid(), os.getppid()
        self._earlier = {
            number: signal.getsignal(number)
            for number in NAMES
            if main and signal.getsignal(number) != signal.SIG_IGN  # nohup, or in a shell's background
        }
        for number in self._earlier:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            self.let_go()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = self.number is None
        if not self._is_echo(number):
            self._act(number, first)

    def _act(self, number: int, first: bool) -> None:
        raise NotImplementedError

    def let_go(self) -> None:
        for number, earlier in self._earlier.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)

    def _is_echo(self, number: int) -> bool:
        """Return whether this signal repeats the first. Call it once per signal."""
        now = time.monotonic()
        orphaned = number == signal.SIGTERM and os.getppid() != self._parent
        if orphaned:
            self._parent = os.getppid()  # counts once
        if self.number is None:
            self.number, self._came = signal.Signals(number), now
            return False
        return orphaned or now - self._came <= SAME_SIGNAL_SECONDS

    def say(self, text: str) -> None:
        """Print one line for all ranks; forked workers, which inherit these handlers, print nothing."""
        if os.getpid() == self._process and os.environ.get("RANK", "0") == "0":
            # not by logging, which the signal may have interrupted
            os.write(2, f"\n{text}\n".encode())


class StopSignal(_Handlers):
    """Recorder of SIGTERM and SIGINT during the block `noted`. A second signal has its usual effect."""

    trained: ClassVar[bool] = False
    """True once a training in this process has ended without an error."""

    @property
    def received(self) -> bool:
        return self.number is not None

    @contextmanager
    def noted(self) -> Iterator[None]:
        self.number = None
        with self.taking():
            yield
            StopSignal.trained = True

    def _act(self, number: int, first: bool) -> None:
        if first:
            self.say(
                f"{NAMES[signal.Signals(number)]}: the run ends after this step, with a checkpoint. A second "
                "one ends it at once."
            )
        else:
            self.let_go()
            signal.raise_signal(number)


class _ScriptSignals(_Handlers):
    """Handlers of a training script's signals before and after training."""

    def _act(self, number: int, first: bool) -> None:
        if first and StopSignal.trained:
            self.say("The run saves what it has and ends. Once more ends it at once.")
        elif first and number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


class FlowCallback(DefaultFlowCallback):
    """Callback that decides when to log, evaluate, save and stop: transformers' rules with four changes.

    - At the end of a step, the ranks agree whether a signal stops the run; if so, they save a checkpoint.
    - Actions due at the end of an epoch or of the run are taken with its last step, before that step's
      checkpoint, so that a kill cannot come between the two.
    - A resumed run does not repeat the evaluation before the first step.
    - A resumed run begins with the evaluation during which its checkpoint was saved, if there was one.
      Checkpoints keep `evaluation_due`.

    `any_rank` returns, on all ranks, whether any of them passed `True`.
    """

    decides_weights = False

    def __init__(self, any_rank: Callable[[bool], bool]):
        self.signal = StopSignal()
        self.stopped = self.evaluation_due = False
        self._any_rank = any_rank

    def state_dict(self) -> dict[str, bool]:
        return {"evaluation_due": self.evaluation_due}

    def load_state_dict(self, state: dict[str, bool]) -> None:
        self.evaluation_due = state["evaluation_due"]

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.stopped = False
        if state.global_step:
            args.eval_on_start = self.evaluation_due

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> TrainerControl:
        super().on_step_end(args, state, control, **kwargs)
        if _ends_epoch_or_run(state):
            super().on_epoch_end(args, state, control, **kwargs)
        if self._any_rank(self.signal.received) and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
        return control

    def on_epoch_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> TrainerControl:
        if self.stopped:
            control.should_save = True  # save_strategy: best may have reset it
        elif not _ends_epoch_or_run(state):  # another callback ended the epoch early
            super().on_epoch_end(args, state, control, **kwargs)
        return control


def _ends_epoch_or_run(state: TrainerState) -> bool:
    return float(state.epoch or 0).is_integer() or state.global_step >= state.max_steps


def stop_with_launcher() -> None:
    """Under `accelerate launch` or `trl-dbbench train` on Linux, send this process SIGTERM when its launcher
    ends.

    With a single process `accelerate launch` does not forward signals, so it alone would end.
    """
    if not sys.platform.startswith("linux"):
        return
    launcher, command = os.getppid(), b""
    # the parent is 0 for a container's first process, or one started in it from outside
    with suppress(OSError):  # it may be another user's, hidden by /proc (hidepid)
        command = Path(f"/proc/{launcher}/cmdline").read_bytes()
    if is_launcher(command):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # it has ended in the meantime
            signal.raise_signal(signal.SIGTERM)


def is_launcher(command: bytes) -> bool:
    """Return whether a command line, as in /proc, is a launcher's, by the program's path or a module."""
    words = (Path(os.fsdecode(word)).name for word in command.split(b"\0"))
    return any(word.partition(".")[0] in LAUNCHERS for word in words)


@contextmanager
def ordered_end() -> Iterator[Callable[[Trainer], None]]:
    """Run a training script that ends with its launcher, on all ranks together, and handles signals.

    If the kernel kills it for memory, a line explains it.

    ```python
    with ordered_end() as ended:
        ended(main())  # main returns the trainer
    ```

    Yields:
        A function to call with the trainer after training, once its database is closed. At the end of the
        block, a stopped run prints how to resume and exits, with 143 after SIGTERM and 130 after Ctrl-C.
    """
    stop_with_launcher()
    trainers: list[Trainer] = []
    StopSignal.trained = False
    signals = _ScriptSignals()
    with witnessed(), signals.taking():
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # `bundled.launch` blocks it
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
                how = "Start it again with --resume_from_checkpoint true to go on from there."
                if trainer.args.save_only_model:
                    how = "With save_only_model: true it cannot go on from there; the weights are saved."
                where = f"after step {state.global_step} of {state.max_steps}"
                trainer.accelerator.print(f"{NAMES[number]} ended the run {where}. {how}", flush=True)
            end(trainer)
            if stopped:
                raise SystemExit(128 + number)


def set_up_logging(rank: int) -> None:
    """Log from INFO on the main process and from WARNING on others; without a terminal, show no bars."""
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
    plain_output(rank)
    for http_client in ("httpx", "httpx2"):  # they log a line per request
        logging.getLogger(http_client).setLevel(logging.WARNING)
