"""Page faults of a training on a CPU, counted by the kernel, with the vocabulary of SmolLM2."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch
from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer import utils

from trl_dbbench.utils import cpu
from trl_dbbench.utils.cpu import TILE_WORDS, spare_page_faults

VOCABULARY = 49_152

COUNT = f"""
import resource, torch
from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer import utils
from trl_dbbench.utils.cpu import spare_page_faults

hidden = torch.randn(800, 16, requires_grad=True)
weight, targets = torch.randn({VOCABULARY}, 16), torch.randint({VOCABULARY}, (800,))

def faults():
    for _ in range(2):  # the first takes the memory
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tile = utils._CHUNKED_LOGPROB_CHUNK_SIZE
        logprobs, *_ = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, tile, None, 1.0, ())
        logprobs.sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

stock = faults()
spare_page_faults(torch.device("cpu"))
print(stock, faults())
"""


@pytest.mark.slow
def test_a_step_takes_the_memory_of_the_step_before():
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    stock, spared = map(int, done.stdout.split())
    assert stock > 200_000
    assert spared < stock / 100


HOLES = """
from types import SimpleNamespace
import torch
from trl_dbbench.utils.cpu import GivesBackMemory, give_back_memory, spare_page_faults

def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

spare_page_faults(torch.device("cpu"))
tensors = [torch.ones(250_000) for _ in range(400)]  # 1 MB each
del tensors[::2]
before = held()
give_back_memory(torch.device("cpu"), 300_000_000)
print(before - held())
GivesBackMemory().on_step_end(SimpleNamespace(device=torch.device("cpu")), SimpleNamespace(global_step=10), None)
print(before - held())
"""


@pytest.mark.slow
def test_what_is_free_between_tensors_goes_back_to_the_kernel():
    """Half of 400 MB, a tensor here and a hole there: left alone where 300 MB may be free."""
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    kept, given_back = map(float, done.stdout.split())
    assert kept < 1
    assert given_back > 150


def test_the_tile_of_another_size_computes_the_same():
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 16, requires_grad=True), torch.randn(VOCABULARY, 16)
    targets = torch.randint(VOCABULARY, (50,))

    def computed(tile: int) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, *_ = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 0.8, tile, None, 1.0, ())
        (grad,) = torch.autograd.grad(logprobs.sum(), hidden)
        return logprobs, grad

    for ours, stock in zip(computed(TILE_WORDS), computed(32_768), strict=True):
        torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)


@pytest.fixture
def asked(monkeypatch) -> list[tuple[int, int]]:
    """Record the calls of glibc's mallopt."""
    calls: list[tuple[int, int]] = []

    class Libc:
        mallopt = staticmethod(lambda *given: calls.append(given))

    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda name: Libc)
    monkeypatch.setattr(utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", 32_768)
    return calls


def test_another_device_is_left_alone(asked):
    spare_page_faults(torch.device("cuda"))
    assert (asked, utils._CHUNKED_LOGPROB_CHUNK_SIZE) == ([], 32_768)


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072")],
)
def test_thresholds_of_the_user_stay(asked, monkeypatch, name, value):
    spare_page_faults(torch.device("cpu"))
    assert len(asked) == 2
    monkeypatch.setenv(name, value)
    spare_page_faults(torch.device("cpu"))
    assert len(asked) == 2


@pytest.mark.slow
def test_glibc_takes_these_thresholds():
    libc = ctypes.CDLL(None)
    assert libc.mallopt(cpu.M_MMAP_THRESHOLD, cpu.POOLED) == 1
    assert libc.mallopt(cpu.M_TRIM_THRESHOLD, cpu.KEPT) == 1
