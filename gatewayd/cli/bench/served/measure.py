"""Measurement of served workloads on one server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gatewayd.cli.bench import report
from gatewayd.cli.bench.h200 import Comparison, compare, reference
from gatewayd.cli.bench.load import LoadTarget, Stop
from gatewayd.cli.bench.record import RequestRecord
from gatewayd.cli.bench.served.workloads import WORKLOADS, Served, prompts
from gatewayd.cli.bench.stats import Level
from gatewayd.cli.bench.sweep import LoadLevel, SweepPlan, measure
from gatewayd.cli.bench.tables import TableRows, number

Watcher = Callable[[str, int, int], None]
"""Called with the workload, the number of finished requests, and their total."""


@dataclass(frozen=True, slots=True)
class ServedOutcome:
    """Measurements of one workload.

    Attributes:
        workload: name of the workload.
        served: its load and lengths.
        level: the measurements.
    """

    workload: str
    served: Served
    level: Level

    def figures(self) -> dict[str, float]:
        """Return the figures by the keys of ``h200.FIGURES``, without unmeasured latencies."""
        level = self.level
        figures = {
            "seconds": level.seconds,
            "output_tokens_per_second": level.output_tokens_per_second,
            "requests_per_second": level.requests_per_second,
        }
        for name, spread in (("ttft", level.ttft), ("tpot", level.tpot)):
            if spread is not None:
                figures[f"{name}_p50_ms"] = spread.p50
                figures[f"{name}_p99_ms"] = spread.p99
        return figures

    def comparisons(self) -> list[Comparison]:
        """Compare the figures that have a goal; empty if a request failed."""
        if self.level.errors:
            return []
        return compare(self.workload, reference().served[self.workload], self.figures())

    def as_document(self) -> dict[str, Any]:
        """Convert the measurements to JSON values."""
        return {"workload": self.workload} | report.as_document(self.level)


async def run(
    target: LoadTarget,
    names: Sequence[str],
    words: Sequence[str],
    scale: float,
    watch: Watcher = lambda name, done, total: None,
) -> AsyncIterator[ServedOutcome]:
    """Run workloads in order, and yield the outcome of each."""
    # A seed for each workload, so that no prompt is in the prefix cache from the workload before.
    for seed, name in enumerate(names):
        served = WORKLOADS[name] if scale == 1 else WORKLOADS[name].scaled(scale)
        done = 0

        def advance(
            load: LoadLevel, record: RequestRecord, name: str = name, total: int = served.requests
        ) -> None:
            nonlocal done
            done += 1
            watch(name, done, total)

        watch(f"{name}, warm-up", 0, served.warmup)
        plan = SweepPlan([served.load], Stop(requests=served.requests), served.warmup)
        (level,) = await measure(target, prompts(words, served, seed), plan, advance)
        yield ServedOutcome(name, served, level)


def level_rows(outcomes: Sequence[ServedOutcome]) -> TableRows:
    """Format the latencies of each workload as rows."""
    header = ["workload", "load", "requests", "failed", "tokens in", "out", "s", "output tok/s"]
    header += [f"{name} {part}, ms" for name in ("TTFT", "TPOT", "E2E") for part in ("p50", "p99")]
    rows = []
    for one in outcomes:
        level = one.level
        latencies = [
            "-" if spread is None else number(value)
            for spread in (level.ttft, level.tpot, level.e2e)
            for value in ((spread.p50, spread.p99) if spread is not None else (0.0, 0.0))
        ]
        rows.append(
            [
                one.workload,
                str(one.served.load),
                f"{level.succeeded:,}",
                f"{sum(level.errors.values()):,}",
                f"{level.prompt_tokens:,}",
                f"{level.output_tokens:,}",
                number(level.seconds),
                number(level.output_tokens_per_second),
                *latencies,
            ]
        )
    return TableRows(header, rows)
