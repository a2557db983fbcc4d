"""Sweep over load levels, each with a warm-up that is not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gatewayd.cli.bench.load import LoadTarget, Stop, closed_loop, open_loop, send
from gatewayd.cli.bench.record import RequestRecord
from gatewayd.cli.bench.stats import Level, summarize
from gatewayd.cli.bench.workload import Item


class LoadLevel(NamedTuple):
    """Load of one level."""

    kind: Literal["concurrency", "rate"]
    value: float
    """Requests in flight, or requests per second."""

    def __str__(self) -> str:
        unit = "" if self.kind == "concurrency" else "/s"
        return f"{self.kind} {self.value:g}{unit}"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Plan of a sweep.

    Attributes:
        loads: load levels in order.
        stop: end of each level.
        warmup: warm-up requests before each level, which are not measured.
        seed: for the arrival times.
    """

    loads: Sequence[LoadLevel]
    stop: Stop
    warmup: int = 8
    seed: int = 0


Watcher = Callable[[LoadLevel, RequestRecord], None]


async def measure(
    target: LoadTarget,
    items: Iterator[Item],
    plan: SweepPlan,
    watch: Watcher = lambda load, record: None,
) -> list[Level]:
    """Run a plan; every level takes new requests from ``items``, so that none repeats.

    The very first request of the run is sent alone, and its TTFT is reported as the cold TTFT.
    """
    levels: list[Level] = []
    for load in plan.loads:
        cold = None
        if plan.warmup:
            if not levels:
                cold = await send(target, next(items))
            # At the level's own concurrency, as far as there are warm-up requests.
            width = load.value if load.kind == "concurrency" else plan.warmup
            width = min(int(width), plan.warmup)
            await closed_loop(target, items, width, Stop(requests=plan.warmup))

        def progress(record: RequestRecord, load: LoadLevel = load) -> None:
            watch(load, record)

        if load.kind == "concurrency":
            records = await closed_loop(target, items, int(load.value), plan.stop, progress)
        else:
            records = await open_loop(target, items, load.value, plan.stop, plan.seed, progress)
        levels.append(summarize(load.kind, load.value, records, cold))
    return levels
