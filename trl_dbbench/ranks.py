"""What the ranks of a run tell each other when one of them cannot go on, and how they part.

The others would wait for it in their next collective: the launcher of a single machine ends them, wherever they
are, and on several machines they wait until the collective times out, after ten minutes or thirty. Told of the
failure, they end in order instead, by an error that says where to look.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accelerate.utils import gather_object
from transformers import Trainer

from trl_dbbench.errors import RankError


@contextmanager
def together() -> Iterator[None]:
    """A block that ends by an error on every rank if it does so on one. All enter it, and none meets there.

    Raises:
        RankError: on the ranks where the block itself went well.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    raise_on_all(error)


def raise_on_all(error: Exception | None) -> None:
    """Raises this rank's error, or else a `RankError` if another rank has one. To be called on all ranks."""
    told = gather_object([None if error is None else f"{type(error).__name__}: {error}"])
    if error is not None:
        raise error
    for rank, text in enumerate(told):
        if text is not None:
            raise RankError(f"rank {rank} failed, and all ranks end with it. Its error: {text}")


def end(trainer: Trainer) -> None:
    """Ends trackers and the process group, and with it the group's threads. Nothing is trained after that."""
    trainer.end()
    # DistributedDataParallel holds the group beyond its end; Python's exit may abort on threads that are left, and
    # then a run that has saved everything looks as if it had failed
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()
