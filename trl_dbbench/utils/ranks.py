"""Agreement between the ranks of a run: a value of the main process, a failure of one rank, the end.

A rank that does not learn of another rank's failure waits for it in the next collective; on several machines,
until the connection breaks or `ddp_timeout` passes. Ranks that learn of it end with an error that says where
to look.

A process in which accelerate is not imported counts as the only rank; importing it would take seconds.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from trl_dbbench.errors import RankError

T = TypeVar("T")


class Ranks:
    """Processes of a run as accelerate has set them up; without accelerate, this process alone.

    All ranks must call every method except `own`, in the same order.
    """

    def __init__(self) -> None:
        self._state: Any = None
        self.number, self.count, self.is_main = 0, 1, True
        module = sys.modules.get("accelerate.state")
        if module is not None and module.PartialState._shared_state:
            state = module.PartialState()
            if state.num_processes > 1:
                self._state = state
                self.number, self.count = state.process_index, state.num_processes
                self.is_main = state.is_main_process

    def from_main(self, value: T) -> T:
        """Return the main process's value on all ranks."""
        if self._state is None:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in order, on all ranks."""
        if self._state is None:
            return [value]
        from accelerate.utils import gather_object

        return gather_object([value])

    def own(self, of_all: Any) -> Any:
        """Return this rank's slice of a list or tensor that holds equal slices of all ranks, in order."""
        each = len(of_all) // self.count
        return of_all[self.number * each : (self.number + 1) * each]

    def hosts(self) -> list[str]:
        """Return the host name of every rank, in order, on all ranks."""
        return self.gather(socket.gethostname())

    def wait(self) -> None:
        """Wait for all ranks. After a failure on one rank this may never return."""
        if self._state is not None:
            self._state.wait_for_everyone()


@contextmanager
def together() -> Iterator[None]:
    """Make a block fail on every rank if it fails on one.

    All ranks must enter the block, and none may wait for another rank inside.

    Raises:
        RankError: on the ranks where the block itself succeeded.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    raise_on_all(error)


def raise_on_all(error: Exception | None) -> None:
    """Raise this rank's error, or a `RankError` if another rank has one. All ranks must call it."""
    said = None if error is None else f"{type(error).__name__}: {error}"
    told = Ranks().gather("; ".join([said, *getattr(error, "__notes__", ())]) if said else None)
    if error is not None:
        raise error
    for rank, text in enumerate(told):
        if text is not None:
            raise RankError(f"rank {rank} failed, and all ranks end with it. Its error: {text}")


def end(trainer: Any) -> None:
    """End a `Trainer`'s engine, trackers, and process group with its threads. It cannot train afterwards."""
    # DistributedDataParallel would keep the group alive, and DeepSpeed needs the group to end its engine.
    # Threads left behind can make Python abort at exit, so that a completed run looks failed.
    trainer.model_wrapped = trainer.model
    backend = getattr(trainer, "backend", None)
    try:
        trainer.accelerator.free_memory()
        if backend is not None:
            backend.close()  # vLLM's own process groups cannot be ended after the default one
    finally:
        trainer.accelerator.end_training()  # as Trainer.end() does, which transformers has from 5.20 on
