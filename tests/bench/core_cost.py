"""Benchmark: CPU time per sequence to plan, upload and complete a step on a device.

The device computes nothing here: captured steps are empty, so that what is left is the host's part
of a decode step. Launches, FlashInfer's planner and copies come on top on a GPU.

    python tests/bench/core_cost.py [--sequences 1 32 256] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from gatewayd_engine.attention.gpu_api import CapturedAttention
from gatewayd_engine.attention.paged import PagedAttention
from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.core import build as assembly
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.runner import backend
from gatewayd_engine.runner.backend import DeviceBackend
from tests.engine.core.conftest import build

_PROMPT, _OUTPUT = 128, 400
_ROUNDS, _STEPS = 9, 20


class _Nothing(CapturedAttention):
    def plan(self, host: HostPlan) -> None:
        """Nothing is planned."""

    def attended(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """What would be launched, if anything was."""
        return query.flatten(1)

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """What would be launched, if anything was."""
        return heads.flatten(1)


class _Attention(PagedAttention):
    def captured(self, inputs: StepInputs) -> list[CapturedAttention]:
        """Steps that compute nothing."""
        return [_Nothing()]


def seconds_per_step(sequences: int) -> float:
    """CPU seconds of the engine's thread for a decode step, the median of some rounds."""
    engine = build(
        max_running=sequences,
        max_batch_tokens=8192,
        kv_pages=sequences * (_PROMPT + _OUTPUT) // 16 + 64,
        kv_bytes=1 << 30,
    )
    draw = random.Random(0)
    for _ in range(sequences):
        prompt = [draw.randrange(5, 4000) for _ in range(_PROMPT)]
        engine.submit(prompt, max_tokens=_OUTPUT, ignore_eos=True)
    while engine.core.stats.num_waiting:
        engine.core.step()
    rounds = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for _ in range(_STEPS):
            engine.core.step()
        rounds.append((time.thread_time() - began) / _STEPS)
    engine.core.strategies.close()
    return statistics.median(rounds)


class _CapturesNothing:
    """Captured steps that compute nothing."""

    def whole(self, launches: Any) -> Any:
        return lambda: None

    def pieces(self, launches: Any) -> Any:
        return launches


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def backend_for(config: Any, progress: Any) -> DeviceBackend:
        return DeviceBackend(config, TorchKernels(), _CapturesNothing(), progress)

    with (
        patch.object(
            backend,
            "device_attention",
            lambda shape, pool, append, *_, **__: _Attention(shape, pool, append),
        ),
        patch.object(assembly, "backend_for", backend_for),
    ):
        found = {n: seconds_per_step(n) for n in options.sequences}
    if options.json:
        print(json.dumps(found))
        return
    for n, seconds in found.items():
        print(f"{n:5d} sequences: {seconds * 1e3:.2f} ms a step, {seconds / n * 1e6:.1f} us each")


if __name__ == "__main__":
    main()
