"""Training on a CPU: 4-bit weights, and memory that is not fetched from the kernel again and again.

PyTorch has no pool for a CPU: a tensor is `malloc`, and glibc gives each of more than 32 MB back to the
kernel as soon as it is freed. The next one of the same size then costs a page fault for every 4 KiB.

- TRL computes logits in tiles of 4,096 tokens by 32,768 words, with about ten copies of a tile in float32.
  With a vocabulary of 49,152 that is 7 GB of page faults for 1,720 tokens. A tile of `TILE_WORDS` is smaller
  than the 32 MB.
- glibc then keeps what is freed, up to `KEPT` bytes, rather than the little that it keeps by itself.

It keeps more than that: rows of other lengths in each batch leave holes between tensors that are there, and
the next tensors do not fit. So the kernel gets all that is free when it is more than `FREE_AT_MOST` after a
rollout, and every ten updates of a training that plays nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState
from trl.trainer import utils

TILE_WORDS = 1_024
"""Words of a tile: 4,096 tokens by these are 16 MB in float32."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""

POOLED = 32 * 2**20
"""Largest block, in bytes, that glibc takes from what it keeps: where its own threshold ends. With larger
ones, PyTorch's aligned blocks leave holes that do not fit the next: logits took 2.5 times the memory."""

KEPT = 2**30
"""Free bytes at the end of the heap that glibc keeps."""

FREE_AT_MOST = 2 * KEPT
"""Free bytes that a process keeps after a rollout. To give all of it back after each one cost a tiny
model's step page faults."""


def spare_page_faults(device: torch.device) -> None:
    """Make a training on a CPU take its tensors from memory that it has. Other devices are left alone.

    The thresholds of a user stay: `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`, `GLIBC_TUNABLES`.
    """
    if device.type != "cpu":
        return
    utils._CHUNKED_LOGPROB_CHUNK_SIZE = TILE_WORDS
    own = {*os.environ} & {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}
    if platform.libc_ver()[0] == "glibc" and not own:
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, POOLED)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)


class _Mallinfo(ctypes.Structure):
    """The ten numbers that glibc's `mallinfo2` returns. `fordblks` is the number of free bytes."""

    _fields_ = (("before", 8 * ctypes.c_size_t), ("fordblks", ctypes.c_size_t), ("after", ctypes.c_size_t))


def give_back_memory(device: torch.device, most: int = 0) -> None:
    """Let the kernel have memory that glibc keeps though it is free, where a training runs on a CPU.

    Does nothing where `most` bytes or less are free, if glibc can tell (2.33 and later).
    """
    if device.type != "cpu" or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if most and hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = _Mallinfo
        if libc.mallinfo2().fordblks <= most:
            return
    libc.malloc_trim(0)


class GivesBackMemory(TrainerCallback):
    """Gives free memory back now and then. Doing it after each update cost a sixth of the time in page faults
    (SFT of SmolLM2-135M)."""

    UPDATES = 10
    """From one time to the next."""

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.UPDATES == 0:
            give_back_memory(args.device)


def leave_unpacked(model: torch.nn.Module) -> None:
    """Keep the 4-bit weights of bitsandbytes as a training needs them.

    On a CPU with avx512_bf16, bitsandbytes packs them at the first forward without gradients, as in a rollout
    or an evaluation. They stay packed, and no gradient passes through a packed layer.
    """
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
