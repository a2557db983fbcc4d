"""What ``/metrics`` shows of what classes are promised: who kept it, and how fast the rest goes.

A request is judged once, at its end. One that failed kept nothing. One whose client left is judged
by what had come, and by what was late already; for the rest it does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.config.slo import ClassTargets, SloTable
from gatewayd.metrics.slo_windows import Windows
from gatewayd.tracing.time_ledger import TimeLedger
from gatewayd_hooks.scheduling import Priority

ALL = "all"
"""Beside the promises: whether a request kept all of its class. Those are the goodput."""
SLOS = ("ttft", "tpot", "e2e")
WINDOWS = {"5m": 300.0, "1h": 3600.0, "6h": 21600.0}


def judge(ledger: TimeLedger, targets: ClassTargets) -> dict[str, bool]:
    """Which promises of its class a request has kept, those that it can be judged by."""
    has_failed, has_left = ledger.outcome == "error", ledger.outcome == "abort"
    found: dict[str, bool] = {}
    for name, limit, seconds, so_far in (
        ("ttft", targets.ttft_ms, ledger.ttft, ledger.seconds),
        ("tpot", targets.tpot_ms, ledger.tpot, 0.0),
        ("e2e", targets.e2e_ms, None if has_left else ledger.seconds, ledger.seconds),
    ):
        if limit is None:
            continue
        if has_failed:
            found[name] = False
        elif seconds is not None:
            found[name] = 1000 * seconds <= limit
        elif has_left and 1000 * so_far > limit:
            found[name] = False
    if found and not (has_left and all(found.values())):
        found[ALL] = all(found.values())
    elif not found and not has_left:
        found[ALL] = not has_failed
    return found


class SloCollector(Collector):
    """Counts, by class and promise; what is spent of the error budget is told by window."""

    def __init__(self, table: SloTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[tuple[Priority, str], Windows] = {}
        self.promise(table)

    def promise(self, table: SloTable) -> None:
        """Judge by these from now on; what was judged before stays as it is."""
        self._targets: dict[Priority, ClassTargets] = {
            priority: getattr(table, priority.name.lower()) for priority in Priority
        }
        self._windows = {
            (priority, slo): self._windows.get((priority, slo)) or Windows(self._clock)
            for priority, targets in self._targets.items()
            for slo in (*SLOS, ALL)
            if slo == ALL or getattr(targets, f"{slo}_ms") is not None
        }

    def ended(self, ledger: TimeLedger) -> None:
        """Judge a request."""
        priority = Priority(ledger.priority)
        for slo, is_good in judge(ledger, self._targets[priority]).items():
            self._windows[priority, slo].add(is_good=is_good)

    def collect(self) -> Iterator[Metric]:
        """Give all of it."""
        labels = ["class", "slo"]
        good = CounterMetricFamily(
            "gatewayd_slo_good", "Requests that met the SLO of their class.", labels=labels
        )
        bad = CounterMetricFamily(
            "gatewayd_slo_bad", "Requests that missed the SLO of their class.", labels=labels
        )
        burn = GaugeMetricFamily(
            "gatewayd_slo_burn_rate",
            "SLO error-budget burn rate.",
            labels=[*labels, "window"],
        )
        target = GaugeMetricFamily(
            "gatewayd_slo_target_seconds", "SLO target in seconds.", labels=labels
        )
        objective = GaugeMetricFamily(
            "gatewayd_slo_objective",
            "Share of requests that must meet each SLO of the class.",
            labels=["class"],
        )
        for (priority, slo), windows in self._windows.items():
            targets, name = self._targets[priority], priority.name.lower()
            good.add_metric([name, slo], windows.good)
            bad.add_metric([name, slo], windows.bad)
            if slo != ALL:
                target.add_metric([name, slo], getattr(targets, f"{slo}_ms") / 1000)
            for window, seconds in WINDOWS.items():
                rate = windows.share_bad(seconds) / (1 - targets.objective)
                burn.add_metric([name, slo, window], rate)
        for priority, targets in self._targets.items():
            objective.add_metric([priority.name.lower()], targets.objective)
        yield from (good, bad, burn, target, objective)
