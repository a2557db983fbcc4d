"""One level of load after the other, each warmed up apart from what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gatewayd.cli.bench.load import LoadTarget, Stop, closed_loop, open_loop, send
from gatewayd.cli.bench.record import RequestRecord
from gatewayd.cli.bench.stats import Level, summarize
from gatewayd.cli.bench.workload import Item


class LoadLevel(NamedTuple):
    """How hard to push."""

    kind: Literal["concurrency", "rate"]
    value: float
    """Requests in flight, or requests per second."""

    def __str__(self) -> str:
        unit = "" if self.kind == "concurrency" else "/s"
        return f"{self.kind} {self.value:g}{unit}"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to measure.

    Attributes:
        loads: in this order.
        stop: when each level ends.
        warmup: requests before each level that are not measured.
        seed: of the arrival times.
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
    """Run a plan; every level draws its own requests from ``items``, so none repeats another's.

    The very first request of the run is sent alone: its time to first token is reported as the
    cold one.
    """
    levels: list[Level] = []
    for load in plan.loads:
        cold = None
        if plan.warmup:
            if not levels:
                cold = await send(target, next(items))
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
