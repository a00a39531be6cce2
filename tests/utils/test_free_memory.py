"""The memory that a process can still take."""

from __future__ import annotations

import pytest
import torch

from trl_dbbench.utils import memory
from trl_dbbench.utils.memory import free_memory, total_memory

CPU = torch.device("cpu")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8,000 kB available, whose process is in the group `jobs/one`."""
    for name, text in {
        "meminfo": "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    8000 kB\nHugePages_Total:   0\n",
        "own": "4:memory:/elsewhere\n0::/jobs/one\n",
        "groups/jobs/one/memory.max": "max\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return tmp_path


def test_a_cpu_has_what_the_kernel_calls_available(machine):
    assert free_memory(CPU) == 8_000 * 1024


def test_ranks_of_a_machine_share_it(machine, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_memory(CPU) == 2_000 * 1024


def test_a_group_above_leaves_less(machine):
    for name, text in {
        "max": "5000000",
        "current": "3000000",
        "stat": "anon 1\ninactive_file 400000\n",
    }.items():
        (machine / "groups/jobs" / f"memory.{name}").write_text(text)
    assert free_memory(CPU) == 5_000_000 - 3_000_000 + 400_000


def test_a_group_that_is_over_its_limit_leaves_nothing(machine):
    for name, text in {"max": "5000000", "current": "6000000", "stat": "inactive_file 0\n"}.items():
        (machine / "groups/jobs" / f"memory.{name}").write_text(text)
    assert free_memory(CPU) == 0


def test_a_gpu_has_what_no_process_holds_and_what_pytorch_keeps_for_reuse(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1_000, 9_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    assert free_memory(torch.device("cuda", 0)) == 1_300


def test_of_other_devices_nothing_is_known():
    assert free_memory(torch.device("meta")) is None


def test_the_first_version_of_control_groups(machine):
    (machine / "own").write_text("4:memory:/box\n0::/\n")
    for name, text in {
        "limit_in_bytes": "5000000",
        "usage_in_bytes": "3000000",
        "stat": "cache 1\ntotal_inactive_file 400000\n",
    }.items():
        path = machine / "groups/memory/box" / f"memory.{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert free_memory(CPU) == 5_000_000 - 3_000_000 + 400_000
    assert total_memory(CPU) == 5_000_000


def test_a_machine_without_limits_has_all_of_its_memory(machine):
    assert total_memory(CPU) == 16_000 * 1024
