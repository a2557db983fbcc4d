"""Benchmark: plugin overhead in the engine: hook calls per step, and a no-op plugin.

Hooks register and protocols run, so a step must call no hook at all: every call of pluggy is
counted over 1,000 steps. The plugin is a logits processor that wants every row and changes
nothing; runs with and without it alternate.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pluggy
from numpy.typing import NDArray

from gatewayd_hooks.strategy import Kind
from tests.bench import report
from tests.bench.in_process_engine import Drive, Job, make_core

if TYPE_CHECKING:
    import torch  # at run time only after ``in_process_engine`` has settled its threads

STEPS = 1000
BATCH = 16
CONTEXT = 2048
AT_LEAST = 0.99


class Idle:
    """A logits processor that wants every row and leaves it as it is."""

    def open(self, resources: object) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to release."""

    def admit(
        self, row: int, params: object, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> bool:
        """Every row is wanted."""
        return True

    def remove(self, row: int) -> None:
        """Nothing was kept."""

    def append(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Nothing is kept."""

    def apply(self, logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Nothing is changed."""


IDLE = {(Kind.LOGITS_PROCESSOR, "idle"): Idle}


@contextmanager
def counting_hook_calls() -> Iterator[list[str]]:
    """Note the name of every hook that pluggy calls, through whatever manager."""
    calls: list[str] = []
    original = pluggy.HookCaller.__call__

    def counted(self: pluggy.HookCaller, **arguments: object) -> Any:
        calls.append(self.name)
        return original(self, **arguments)

    pluggy.HookCaller.__call__ = counted  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        pluggy.HookCaller.__call__ = original  # type: ignore[method-assign]


def calls_in_steps(num_steps: int, batch: int = BATCH) -> int:
    """Hook calls inside so many steps of a busy engine."""
    drive = busy(make_core(), num_steps, batch)
    with counting_hook_calls() as calls:
        for _ in range(num_steps):
            drive.step()
    return len(calls)


def counter_works() -> bool:
    """A call that is certainly made is counted, or a count of 0 would say nothing."""
    spec, impl = pluggy.HookspecMarker("probe"), pluggy.HookimplMarker("probe")

    class Specs:
        @spec
        def probed(self) -> None:
            """Called once."""

    class Plugin:
        @impl
        def probed(self) -> None:
            """Answer."""

    manager = pluggy.PluginManager("probe")
    manager.add_hookspecs(Specs)
    manager.register(Plugin())
    with counting_hook_calls() as calls:
        manager.hook.probed()
    return calls == ["probed"]


def busy(core: Any, num_steps: int, batch: int) -> Drive:
    """A batch that keeps decoding for so many steps, and some turnover in it."""
    drive = Drive(core)
    for index in range(batch):
        drive.submit(Job([300 + index] * 16, min(num_steps + 2, CONTEXT - 16)))
    for index in range(num_steps // 50):
        drive.submit(Job([400 + index] * 16, 20))
    drive.step()
    return drive


def speed(processors: tuple[str, ...], num_steps: int) -> float:
    """Tokens per second of plain decoding."""
    core = make_core(extra=IDLE, processors=processors, prefix_cache=None, max_running=BATCH)
    drive = Drive(core)
    for index in range(BATCH):
        drive.submit(Job([300 + index] * 16, num_steps + 8))
    for _ in range(4):
        drive.step()
    begin = time.perf_counter()
    for _ in range(num_steps):
        drive.step()
    return num_steps * BATCH / (time.perf_counter() - begin)


def main() -> int:
    """Run the comparison.

    Raises:
        RuntimeError: hook calls would not be seen.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=300, help="of each round")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    if not counter_works():
        raise RuntimeError("pluggy calls its hooks in a way that is not counted here")
    num_calls = calls_in_steps(STEPS)
    ratios, plain, with_plugin = [], [], []
    for turn in range(args.rounds):
        if turn % 2:
            with_plugin.append(speed(("idle",), args.steps))
            plain.append(speed((), args.steps))
        else:
            plain.append(speed((), args.steps))
            with_plugin.append(speed(("idle",), args.steps))
        ratios.append(with_plugin[-1] / plain[-1])
    middle = report.median(plain)
    findings = [
        report.Finding(
            f"hook calls in {STEPS} steps", "calls", num_calls, 1, "one call", 0.0, sign="="
        ),
        report.Finding(
            "with a no-op plugin, median of pairs",
            "tok/s",
            middle * report.median(ratios),
            middle,
            "without it",
            AT_LEAST,
        ),
    ]
    return report.publish(
        *("What plugins cost in the engine", where, findings),
        as_json=args.json,
        strict=args.strict,
        details={"plain": plain, "with_plugin": with_plugin},
    )


if __name__ == "__main__":
    sys.exit(main())
