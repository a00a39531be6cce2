"""How the ranks of a run agree: on a value of the main process, on a failure of one of them, and on the end.

Ranks that are not told of a failure would wait for the failed one in their next collective. On a single
machine the launcher ends them wherever they are; on several machines they wait until the connection breaks,
or the collective times out after `ddp_timeout` seconds. Ranks that are told end in order instead, with an
error that says where to look.

A process that has not set up accelerate is alone, and is not made to import it: that takes seconds.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from trl_dbbench.errors import RankError

T = TypeVar("T")


class Ranks:
    """The processes of a run, as accelerate has set them up by now; this process alone if it has not.

    All ranks must call the methods, in the same order.
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
        """The main process's value, on all ranks."""
        if self._state is None:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def gather(self, value: T) -> list[T]:
        """The values of all ranks in their order, on all ranks."""
        if self._state is None:
            return [value]
        from accelerate.utils import gather_object

        return gather_object([value])

    def hosts(self) -> list[str]:
        """The names of the machines on which the ranks run, in the ranks' order, on all ranks."""
        return self.gather(socket.gethostname())

    def wait(self) -> None:
        """Returns when all ranks have come here. Not to be called after one has failed: it may never come."""
        if self._state is not None:
            self._state.wait_for_everyone()


@contextmanager
def together() -> Iterator[None]:
    """A block that ends with an error on every rank if it does so on one.

    All ranks must enter it, and none may wait for another one inside.

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
    """Raises this rank's error, or a `RankError` if another rank has one. To be called on all ranks."""
    told = Ranks().gather(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for rank, text in enumerate(told):
        if text is not None:
            raise RankError(f"rank {rank} failed, and all ranks end with it. Its error: {text}")


class Trainer(Protocol):
    """What `end` needs of a transformers `Trainer`."""

    model: Any
    model_wrapped: Any
    accelerator: Any


def end(trainer: Trainer) -> None:
    """Ends trackers and the process group with its threads. Nothing can be trained after that."""
    # DistributedDataParallel would hold the group beyond its end, and DeepSpeed needs the group to end its
    # engine. Threads that are left may make Python abort at its exit, so that a run that has saved everything
    # would look as if it had failed.
    trainer.model_wrapped = trainer.model
    try:
        trainer.accelerator.free_memory()
    finally:
        trainer.accelerator.end_training()  # as Trainer.end() does, which transformers has from 5.20 on
