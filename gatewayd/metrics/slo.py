"""Prometheus metrics of SLOs: requests that met their class's targets, and burn rates.

A request is judged once, at its end. A failed request misses all SLOs. One whose client
disconnected is judged by the latencies measured until then and by targets already exceeded; for
the other SLOs it does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.config.slo import ClassTargets, SloTable
from gatewayd.metrics.slo_windows import SloWindows
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd_hooks.scheduling import Priority

ALL = "all"
"""Additional SLO: whether a request met all targets of its class. Those are the goodput."""
SLOS = ("ttft", "tpot", "e2e")
WINDOWS = {"5m": 300.0, "1h": 3600.0, "6h": 21600.0}


def judge(record: LatencyRecord, targets: ClassTargets) -> dict[str, bool]:
    """Return whether a request met each SLO of its class, without those it cannot be judged by."""
    outcome = record.outcome
    if outcome == "error":
        failed = [slo for slo in SLOS if getattr(targets, f"{slo}_ms") is not None]
        return dict.fromkeys([*failed, ALL], False)
    has_left, whole = outcome == "abort", record.seconds
    found: dict[str, bool] = {}
    if (limit := targets.ttft_ms) is not None:
        _judge(found, "ttft", limit, record.ttft, whole if has_left else 0.0)
    if (limit := targets.tpot_ms) is not None:
        _judge(found, "tpot", limit, record.tpot, 0.0)
    if (limit := targets.e2e_ms) is not None:
        # A client that left did not wait for the end: the time until then is only a lower bound.
        _judge(found, "e2e", limit, None if has_left else whole, whole)
    # If the client left, targets that were met until then do not add up to a verdict.
    # Without targets, every request that did not fail is good.
    is_good = False not in found.values()
    if not (has_left and is_good):
        found[ALL] = is_good
    return found


def _judge(
    found: dict[str, bool], slo: str, limit_ms: float, seconds: float | None, so_far: float
) -> None:
    """Add the verdict on one SLO, if the latency is known or has exceeded the limit already."""
    if seconds is not None:
        found[slo] = 1000 * seconds <= limit_ms
    elif 1000 * so_far > limit_ms:
        found[slo] = False


class SloCollector(Collector):
    """Prometheus collector of a model's SLO attainment by class, with burn rates by window."""

    def __init__(
        self, table: SloTable, model_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._model_name = model_name
        self._clock = clock
        self._windows: dict[tuple[Priority, str], SloWindows] = {}
        self.set_targets(table)

    def set_targets(self, table: SloTable) -> None:
        """Replace the targets for later requests; counts of earlier ones are unchanged."""
        self._targets: dict[Priority, ClassTargets] = {
            priority: getattr(table, priority.name.lower()) for priority in Priority
        }
        self._windows = {
            (priority, slo): self._windows.get((priority, slo)) or SloWindows(self._clock)
            for priority, targets in self._targets.items()
            for slo in (*SLOS, ALL)
            if slo == ALL or getattr(targets, f"{slo}_ms") is not None
        }

    def ended(self, record: LatencyRecord) -> None:
        """Judge an ended request and count it."""
        priority = Priority(record.priority)
        for slo, is_good in judge(record, self._targets[priority]).items():
            self._windows[priority, slo].add(is_good=is_good)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        model, labels = self._model_name, ["model_name", "class", "slo"]
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
            labels=["model_name", "class"],
        )
        for (priority, slo), windows in self._windows.items():
            targets, name = self._targets[priority], priority.name.lower()
            good.add_metric([model, name, slo], windows.good)
            bad.add_metric([model, name, slo], windows.bad)
            if slo != ALL:
                target.add_metric([model, name, slo], getattr(targets, f"{slo}_ms") / 1000)
            for window, seconds in WINDOWS.items():
                # The objective is below 1 by its bounds, so there is always an error budget.
                rate = windows.bad_ratio(seconds) / (1 - targets.objective)
                burn.add_metric([model, name, slo, window], rate)
        for priority, targets in self._targets.items():
            objective.add_metric([model, priority.name.lower()], targets.objective)
        yield from (good, bad, burn, target, objective)
