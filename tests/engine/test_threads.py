"""What the engine's process arranges before torch is there."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource
from gatewayd_engine.threads import settle
settle(1)
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is glibc's")
def test_memory_of_a_step_is_kept_for_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, check=True)
    # 4 MiB are 1,024 pages, each time.
    assert int(done.stdout) < 1024
