"""The cost of page faults in a training on a CPU: TRL's output layer, forward and backward, as for SmolLM2.

    python benchmarks/page_faults.py

`stock` is TRL as it is, `spared` is the same after `utils/cpu.py`. Each is a process of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import torch
from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer import utils

from trl_dbbench.utils.cpu import spare_page_faults

TOKENS, HIDDEN, WORDS = 1_720, 576, 49_152  # 4 rows of 430 tokens


def measure(how: str) -> None:
    if how == "spared":
        spare_page_faults(torch.device("cpu"))
    torch.set_num_threads(1)
    hidden = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    weight, targets = torch.randn(WORDS, HIDDEN, dtype=torch.bfloat16), torch.randint(WORDS, (TOKENS,))
    for _ in range(2):  # the first takes the memory
        before = resource.getrusage(resource.RUSAGE_SELF)
        tile = utils._CHUNKED_LOGPROB_CHUNK_SIZE
        logprobs, *_ = ChunkedLogProbFunction.apply(
            hidden, weight, None, targets, 1.0, tile, None, 1.0, ("entropy",)
        )
        logprobs.sum().backward()
    after = resource.getrusage(resource.RUSAGE_SELF)
    faults, computing = after.ru_minflt - before.ru_minflt, after.ru_utime - before.ru_utime
    kernel, peak = after.ru_stime - before.ru_stime, after.ru_maxrss / 1e6
    print(
        f"{how:7} {faults:>9,} faults, CPU seconds: {computing:.2f} computing, {kernel:.2f} in the kernel; "
        f"peak {peak:.2f} GB"
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1])
    else:
        for each in ("stock", "spared"):
            subprocess.run([sys.executable, __file__, each], check=True)
