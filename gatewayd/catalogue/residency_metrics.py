"""Prometheus metrics of models that are loaded and unloaded."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.catalogue.model_residency import ModelResidency


class ResidencyCollector(Collector):
    """Prometheus collector of the catalogue's models and of their memory."""

    def __init__(self, residency: ModelResidency) -> None:
        self._residency = residency

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        labels = ["model_name"]
        loaded = GaugeMetricFamily(
            "gatewayd_model_loaded", "1 if the model's engines are loaded, else 0.", labels=labels
        )
        memory = GaugeMetricFamily(
            "gatewayd_model_memory_bytes",
            "Memory that the model holds or will hold when it is loaded, by where it is.",
            labels=[*labels, "memory"],
        )
        loads = CounterMetricFamily("gatewayd_model_loads", "Loads of the model.", labels=labels)
        unloads = CounterMetricFamily(
            "gatewayd_model_unloads", "Times it was unloaded for another model.", labels=labels
        )
        seconds = GaugeMetricFamily(
            "gatewayd_model_load_seconds", "Time of the model's last load.", labels=labels
        )
        for model in self._residency.models:
            loaded.add_metric([model.name], float(model.fleet.is_resident))
            memory.add_metric([model.name, "host"], model.footprint.host)
            memory.add_metric([model.name, "device"], model.footprint.device)
            loads.add_metric([model.name], model.loads)
            unloads.add_metric([model.name], model.unloads)
            if model.loads:
                seconds.add_metric([model.name], model.load_seconds)
        used, limits = self._residency.used, self._residency.limits.budget
        held = GaugeMetricFamily(
            "gatewayd_catalogue_memory_bytes",
            "Memory of loaded models: held, and the limit if there is one.",
            labels=["memory", "state"],
        )
        for place, now, limit in (
            ("host", used.host, limits.host),
            ("device", used.device, limits.device),
        ):
            held.add_metric([place, "held"], now)
            if limit is not None:
                held.add_metric([place, "limit"], limit)
        yield from (loaded, memory, loads, unloads, seconds, held)
