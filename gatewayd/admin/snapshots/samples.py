"""Collection of the metrics of ``/metrics``: samples, and SLO figures derived from them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from gatewayd.wire.snapshot import SloView

_MOST_KEYS = 4096
"""Cached sample keys: hardly any is new in the next snapshot."""
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Collected:
    """Metrics that a registry returned at one instant.

    Attributes:
        at, unix: time of the collection, by ``time.monotonic`` and Unix time.
        samples: values by sample key, as in the exposition format. Without buckets of histograms,
            of other models, and without NaN and infinity, which JSON cannot represent.
        fault: why a collector's metrics are missing, in a sentence; empty if none are.
    """

    def __init__(self, metrics: Iterable[Metric], model: str) -> None:
        self._model = model
        self.at = time.monotonic()
        self.unix = time.time()
        self.samples: dict[str, float] = {}
        self.fault = ""
        self._by_name: dict[str, list[Sample]] = {}
        try:
            # Collected one by one, so that metrics before a fault are still shown.
            for metric in metrics:
                self._add(metric)
        except Exception as error:  # noqa: BLE001 - a collector may be a plugin's
            self.fault = f"/metrics cannot be collected: {type(error).__name__}: {error}"

    def _add(self, metric: Metric) -> None:
        samples = metric.samples
        if metric.type in ("histogram", "gaugehistogram"):
            samples = [sample for sample in samples if not sample.name.endswith("_bucket")]
        for sample in samples:
            if sample.labels.get("model_name", self._model) != self._model:
                continue
            self._by_name.setdefault(sample.name, []).append(sample)
            if math.isfinite(sample.value):
                self.samples[key_of(sample)] = float(sample.value)

    @cached_property
    def slo(self) -> list[SloView]:
        """SLO targets of classes, and their attainment."""
        targets = {_slo(one): one.value for one in self._all("gatewayd_slo_target_seconds")}
        objectives = {one.labels["class"]: one.value for one in self._all("gatewayd_slo_objective")}
        bad = {_slo(one): one.value for one in self._all("gatewayd_slo_bad_total")}
        burns: dict[tuple[str, str], dict[str, float]] = {}
        for one in self._all("gatewayd_slo_burn_rate"):
            burns.setdefault(_slo(one), {})[one.labels["window"]] = one.value
        found = []
        for one in self._all("gatewayd_slo_good_total"):
            which = priority, slo = _slo(one)
            # None for ``all``, which has no target of its own.
            target = targets.get(which)
            found.append(
                SloView(
                    priority=priority,
                    slo=slo,
                    target_ms=None if target is None else 1000 * target,
                    objective=objectives[priority],
                    good=int(one.value),
                    bad=int(bad[which]),
                    burn=burns.get(which, {}),
                )
            )
        return found

    def _all(self, name: str) -> Iterator[Sample]:
        return iter(self._by_name.get(name, ()))


def key_of(sample: Sample) -> str:
    """The key of a sample: its name and labels in the exposition format."""
    return _key_of(sample.name, tuple(sample.labels.items()))


@lru_cache(_MOST_KEYS)
def _key_of(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return name
    shown = ",".join(f'{label}="{value.translate(_ESCAPED)}"' for label, value in sorted(labels))
    return f"{name}{{{shown}}}"


def _slo(sample: Sample) -> tuple[str, str]:
    return sample.labels["class"], sample.labels["slo"]
