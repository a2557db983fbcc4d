"""Where rows are computed: a GPU, or for the rehearsal a CPU with Triton's interpreter."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from gatewayd.cli.bench.chips import CHIPS
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.select import choose
from gatewayd_engine.tuning.clock import GraphClock, LaunchClock
from gatewayd_engine.tuning.machine import this_machine


class WarmClock:
    """The engine's ``LaunchClock`` of graphs, for calls that may each have something to set up."""

    def __init__(self, device: torch.device) -> None:
        self._clock = GraphClock(device)

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        """See ``LaunchClock``."""
        for call in calls:
            call()
        return self._clock(calls)


class WallClock:
    """A ``LaunchClock`` for the rehearsal: no graph, and one call, once."""

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        """See ``LaunchClock``."""
        began = time.perf_counter()
        calls[0]()
        return (time.perf_counter() - began) * 1e6


def clock_of(device: torch.device) -> LaunchClock:
    """What times launches: as captured steps launch them, where there are graphs."""
    return WallClock() if device.type == "cpu" else WarmClock(device)


def kernels_of(device: torch.device) -> Kernels:
    """The Triton kernels, on a CPU in the interpreter."""
    return _interpreted() if device.type == "cpu" else choose(device)


def speed_of(device: torch.device) -> float:
    """Bytes a second that kernels get from this chip's memory; an H200's where it is unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return CHIPS.get(name, CHIPS["NVIDIA H200"]).read


def machine_of(device: torch.device) -> dict[str, Any]:
    """Chip, versions, and the date."""
    made = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    if device.type == "cpu":
        return {**made, "chip": "rehearsal on a CPU", "versions": {"torch": torch.__version__}}
    machine = this_machine(device)
    return {**made, "chip": machine.chip, "versions": machine.versions}


def _interpreted() -> Kernels:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, and at each kernel
    import triton.experimental.gluon  # noqa: F401 - the first launch would import it, too late
    import triton.language as tl
    from triton.runtime import interpreter

    from gatewayd_engine.kernels import norm_matmul
    from gatewayd_engine.kernels.triton_kernels import TritonKernels

    # What only a GPU can do changes no answer: the rest of early launches is interpreted.
    for name in ("gdc_wait", "gdc_launch_dependents"):
        setattr(tl.extra.cuda, name, lambda: None)
    norm_matmul._prefetch = lambda *_: None

    convert = interpreter._convert_float

    def rounding(array: Any, source: Any, target: Any, mode: Any) -> Any:
        """Round to e4m3 as a GPU does: the interpreter cuts off."""
        if source != tl.float32 or target != tl.float8e4nv:
            return convert(array, source, target, mode)
        numbers = torch.from_numpy(np.ascontiguousarray(array))
        return numbers.to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    interpreter._convert_float = rounding
    return TritonKernels(can_launch_early=True)
