"""Free and total memory of a device, within the limits of control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that this process can still allocate on a device; `None` if unknown.

    On a GPU they include memory that PyTorch keeps for reuse. On a CPU, the ranks of a machine get equal
    shares.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu" or not MEMINFO.exists():
        return None
    left = [limit - used for limit, used in _groups()]
    return max(0, min([_meminfo("MemAvailable"), *left])) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def total_memory(device: torch.device) -> float:
    """Return a device's memory in bytes, or what control groups allow of it; infinity if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    if device.type != "cpu" or not MEMINFO.exists():
        return math.inf
    return min([_meminfo("MemTotal"), *(limit for limit, _ in _groups())])


def _meminfo(name: str) -> int:
    sizes = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
    return 1024 * int(sizes[name].removesuffix("kB"))


FILES = (
    ("0::", "memory.max", "memory.current", "inactive_file"),
    (":memory:", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of control groups, version 2 and version 1: mark of the group's line in `OWN_GROUPS`, limit, usage,
and the entry of `memory.stat` for file pages not read lately, which the kernel frees when memory is short."""


def _groups() -> Iterator[tuple[int, int]]:
    """Yield the limit and the usage, in bytes, of each limited control group above this process.

    Containers and Slurm jobs run in such groups.
    """
    own = OWN_GROUPS.read_text().splitlines()
    for version, (mark, most, current, inactive) in enumerate(FILES):
        path = next((line.partition(mark)[2] for line in own if mark in line), None)
        if path is None:
            continue
        top = GROUPS / "memory" if version else GROUPS
        for group in (top / path.lstrip("/"), *(top / path.lstrip("/")).parents):
            limit = group / most
            if limit.exists() and limit.read_text().strip() != "max":
                used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                yield (
                    int(limit.read_text()),
                    int((group / current).read_text()) - int(used.get(inactive, 0)),
                )
