"""Training on a CPU: memory that is reused instead of fetched from the kernel again, and 4-bit weights.

PyTorch has no memory pool for the CPU. It allocates each tensor with `malloc`, and glibc returns every block
of more than 32 MB to the kernel as soon as it is freed. The next tensor of the same size then costs a page
fault for every 4 KiB.

- TRL computes logits in tiles of 4,096 tokens by 32,768 words, with about ten copies of a tile in float32.
  With a vocabulary of 49,152 words, that is 7 GB of page faults for 1,720 tokens. A tile of `TILE_WORDS`
  words stays below 32 MB.
- glibc keeps up to `KEPT` freed bytes at the end of the heap, far more than by default.

In practice it keeps even more: sequence lengths differ from batch to batch, so freed blocks leave holes that
the next tensors do not fit. All free memory is therefore returned to the kernel when it exceeds
`FREE_AT_MOST` after a rollout, and every ten updates of a training without rollouts.
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
"""Vocabulary words per tile of logits: with 4,096 tokens, a tile takes 16 MB in float32."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""

POOLED = 32 * 2**20
"""Largest block, in bytes, that glibc serves from memory it keeps: the maximum of its own adaptive threshold.
Above it, PyTorch's aligned blocks leave holes that the next ones do not fit: logits took 2.5 times the
memory."""

KEPT = 2**30
"""Free bytes at the end of the heap that glibc keeps."""

FREE_AT_MOST = 2 * KEPT
"""Most free bytes that a process keeps after a rollout. Returning all of them after every rollout made a tiny
model's steps slower through page faults."""


def spare_page_faults(device: torch.device) -> None:
    """Let training on a CPU reuse the memory of freed tensors. Does nothing for other devices.

    Thresholds that the user sets are kept: `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`,
    `GLIBC_TUNABLES`.
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
    """Ten numbers that glibc's `mallinfo2` returns; `fordblks` is the number of free bytes."""

    _fields_ = (("before", 8 * ctypes.c_size_t), ("fordblks", ctypes.c_size_t), ("after", ctypes.c_size_t))


def give_back_memory(device: torch.device, most: int = 0) -> None:
    """Return free memory that glibc keeps to the kernel, if training runs on a CPU.

    Does nothing if at most `most` bytes are free and glibc can tell so (2.33 and later).
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
    """Callback that returns free memory to the kernel every `UPDATES` updates.

    Returning it after every update spent a sixth of the time on page faults (SFT of SmolLM2-135M).
    """

    UPDATES = 10
    """Updates between two returns."""

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.UPDATES == 0:
            give_back_memory(args.device)


def leave_unpacked(model: torch.nn.Module) -> None:
    """Prevent bitsandbytes from packing 4-bit weights, which would break training.

    On a CPU with avx512_bf16, it packs them in the first forward pass without gradients, such as a rollout or
    an evaluation. They stay packed, and no gradient passes through a packed layer.
    """
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
