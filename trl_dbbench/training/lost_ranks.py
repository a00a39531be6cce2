"""Lost ranks, whose process or machine has ended: how long the others wait, and the error they raise."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import DistError
from torch.distributed.distributed_c10d import _set_pg_timeout

from trl_dbbench.errors import RankError, one_line
from trl_dbbench.utils.ranks import Ranks


def limit_waiting(seconds: float) -> None:
    """Limit how long a collective of this process waits for the other ranks.

    transformers applies `ddp_timeout` on GPUs only; on CPUs PyTorch's half an hour would apply.
    """
    if Ranks().count > 1:
        _set_pg_timeout(timedelta(seconds=seconds), None)


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """Name the lost rank and its host if the block fails because of a lost connection. All ranks enter it.

    Raises:
        RankError: instead of an error of gloo, NCCL or the address store. NCCL's watchdog may end the process
            before that.
    """
    ranks = Ranks()
    places = ranks.gather((socket.gethostname(), _own_address()))
    try:
        yield
    except RuntimeError as error:
        if ranks.count == 1 or not _is_lost_connection(error):
            raise
        text = re.sub(r"^\[\S+\] ", "", one_line(error))  # without the position in gloo's source
        text = text.partition(". ")[0]
        others = {rank: place for rank, place in enumerate(places) if rank != ranks.number}
        at_peer = {rank: place for rank, place in others.items() if f"[{place[1]}]" in text}
        lost = [f"rank {rank} on {host}" for rank, (host, _) in (at_peer or others).items()]
        raise RankError(
            f"rank {ranks.number} on {places[ranks.number][0]} has lost {'one of ' if len(lost) > 1 else ''}"
            f"{', '.join(lost)}: {text}. The process there has ended, and its own log says why, or its "
            "machine or the network is down. Start all ranks again with --resume_from_checkpoint true to "
            "go on from the last checkpoint."
        ) from error


def _own_address() -> str:
    """Return this machine's address in the main process's network; an empty string without IPv4."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as chosen:  # sends nothing
            chosen.connect((os.environ.get("MASTER_ADDR", ""), 1))
            return str(chosen.getsockname()[0])
    except OSError:  # for example with IPv6 only
        return ""


def _is_lost_connection(error: RuntimeError) -> bool:
    of_gloo = ("gloo/transport", "timeout caused pair closure")  # the latter follows an earlier error
    return isinstance(error, DistError) or any(each in str(error) for each in of_gloo)
