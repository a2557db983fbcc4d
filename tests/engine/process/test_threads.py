"""Thread settings: arranged before torch is imported."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource
from gatewayd_engine.process.threads import configure_threads
configure_threads(1)
import torch
def work():
    return torch.zeros(512, 2048).mul_(2.0).sum()
for _ in range(50):  # until the heap has grown to what is needed
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

_HEAPS = """
import ctypes, threading
from gatewayd_engine.process.threads import configure_threads
configure_threads(1)
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
places, meet = [], threading.Barrier(3)
def work():
    meet.wait()
    places.append(malloc(ctypes.c_size_t(1 << 20)))
    meet.wait()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
lines = [line.split() for line in open("/proc/self/maps") if "[heap]" in line]
heap = [[int(end, 16) for end in line[0].split("-")] for line in lines]
print([any(low <= place < high for low, high in heap) for place in places])
"""

_BOUND = """
import os
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_engine.process.threads import choose, settle_cpus
first = min(os.sched_getaffinity(0))
none = StrategyChoice("none")
config = EngineConfig(
    model="", scheduler=none, prefix_cache=None, eviction=none, preemption=none,
    cpus=[first], device="{device}",
)
before = choose(config)
print(settle_cpus(config), os.sched_getaffinity(0) == {{first}}, choose(config) == before)
"""

ON_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is glibc's")


@ON_GLIBC
def test_memory_of_a_step_is_kept_for_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, check=True)
    # 4 MiB are 1,024 pages, each time.
    assert int(done.stdout) < 1024


@ON_GLIBC
def test_what_one_thread_has_freed_is_there_for_all() -> None:
    """All allocate in the one heap of the process."""
    done = subprocess.run([sys.executable, "-c", _HEAPS], capture_output=True, check=True)
    assert done.stdout.split() == [b"[True,", b"True,", b"True]"]


@pytest.mark.skipif(platform.system() != "Linux", reason="CPUs of a process are Linux's")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_engine_is_kept_to_its_cpus_and_finds_as_many_afterwards(device: str) -> None:
    program = _BOUND.format(device=device)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"1", b"True", b"True"]
