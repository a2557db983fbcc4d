"""Machine usage: process numbers equal the system's; GPU stand-in."""

from __future__ import annotations

import resource
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.process import machine_usage
from gatewayd_engine.process.machine_usage import UsageMeter

GIB = 1 << 30


class Gpu:
    """What torch says of it.

    Attributes:
        asked: how often for its memory and for its use.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked = [0, 0]
        self.free, self.percent = 20 * GIB, 83
        self.lost = self.unknown = False
        patch.setattr(torch.cuda, "mem_get_info", self._memory)
        patch.setattr(torch.cuda, "utilization", self._utilization)
        # Nothing may wait for what it computes.
        patch.setattr(torch.cuda, "synchronize", None)

    def _memory(self, device: Any) -> tuple[int, int]:
        assert torch.device(device).type == "cuda"
        self.asked[0] += 1
        if self.lost:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return self.free, 80 * GIB

    def _utilization(self, device: Any) -> int:
        self.asked[1] += 1
        if self.unknown:
            raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")
        return self.percent


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """``time.monotonic``, and processor seconds, as the meter reads them."""
    times = [1000.0, 50.0]
    clock = SimpleNamespace(monotonic=lambda: times[0], process_time=lambda: times[1])
    monkeypatch.setattr(machine_usage, "time", clock)
    return times


def test_a_gpu_is_told_with_what_all_have_of_it(gpu: Gpu) -> None:
    look = UsageMeter("cuda").look()
    assert (look.device_used, look.device_total) == (60 * GIB, 80 * GIB)
    assert look.device_utilization == 0.83


def test_it_is_asked_once_a_second_whoever_looks(gpu: Gpu, clock: list[float]) -> None:
    meter = UsageMeter("cuda")
    first = meter.look()
    gpu.free, gpu.percent, clock[0] = GIB, 1, clock[0] + 0.99
    assert [meter.look() for _ in range(50)] == [first] * 50
    assert gpu.asked == [1, 1]
    clock[0] += 0.02
    later = meter.look()
    assert (later.device_used, later.device_utilization) == (79 * GIB, 0.01)
    assert gpu.asked == [2, 2]


def test_without_nvml_the_memory_is_told_all_the_same(gpu: Gpu, clock: list[float]) -> None:
    gpu.unknown = True
    meter = UsageMeter("cuda:0")
    for _ in range(3):
        look = meter.look()
        assert (look.device_total, look.device_utilization) == (80 * GIB, None)
        clock[0] += 2
    assert gpu.asked == [3, 1]  # a missing library is looked for once


def test_a_lost_gpu_is_nobody_s_error_here(gpu: Gpu, clock: list[float]) -> None:
    gpu.lost = True
    meter = UsageMeter("cuda")
    for _ in range(3):
        look = meter.look()
        assert (look.device_used, look.device_total) == (None, None)
        clock[0] += 2
    assert gpu.asked[0] == 1


def test_on_a_cpu_no_gpu_is_asked(gpu: Gpu) -> None:
    look = UsageMeter("cpu").look()
    assert (look.device_used, look.device_total, look.device_utilization) == (None, None, None)
    assert gpu.asked == [0, 0]


def test_processors_are_counted_between_two_looks(clock: list[float]) -> None:
    meter = UsageMeter("cpu")
    clock[0], clock[1] = 1004.0, 56.0
    assert meter.look().cpu_cores == 1.5
    clock[0], clock[1] = 1006.0, 57.0
    look = meter.look()
    assert (look.cpu_cores, look.cpu_seconds) == (0.5, 57.0)


def test_the_process_is_as_the_system_says() -> None:
    look = UsageMeter("cpu").look()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert look.resident_bytes is not None
    assert 0.2 * most < look.resident_bytes < 1.1 * most
    assert look.cpu_seconds == pytest.approx(time.process_time(), abs=1.0)
