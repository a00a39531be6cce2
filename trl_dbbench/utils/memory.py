"""Memory that is free on a device, and what control groups leave of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that this process can still take on a device; `None` if unknown.

    On a GPU they include what PyTorch keeps for reuse. On a CPU the ranks of one machine get equal shares.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu" or not MEMINFO.exists():
        return None
    sizes = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
    available = 1024 * int(sizes["MemAvailable"].removesuffix("kB"))
    return max(0, min([available, *_left_by_groups()])) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def _left_by_groups() -> Iterator[int]:
    """Yield the bytes that each control group of this process leaves: a container's, a Slurm job's."""
    own = next((line[4:] for line in OWN_GROUPS.read_text().splitlines() if line.startswith("0::/")), "")
    for group in (GROUPS / own, *(GROUPS / own).parents):
        if (limit := group / "memory.max").exists() and (most := limit.read_text().strip()) != "max":
            used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # pages of files that were not read of late go when memory is short
            yield int(most) - int((group / "memory.current").read_text()) + int(used["inactive_file"])
