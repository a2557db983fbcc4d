"""Services of a gateway with one model, or with more, for tests of its routes."""

from __future__ import annotations

from typing import Any

from gatewayd.catalogue.catalogue import Catalogue
from gatewayd.catalogue.target import Target
from gatewayd.engines.api import Fleet
from gatewayd.http.services import Services
from gatewayd.metrics.engines import ControlFigures
from gatewayd.metrics.registry import GatewayMetrics, Metrics
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.recent import RecentLatencyRecords

_OF_TARGET = ("live", "parsers", "guides", "detector")


def one_model(
    fleet: Fleet,
    text: TextModel,
    *,
    names: tuple[str, ...] = ("nano",),
    version: str = "1",
    max_model_len: int = 2048,
    control: ControlFigures | None = None,
    recent: RecentLatencyRecords | None = None,
    **more: Any,
) -> Services:
    """Return the services of one model; ``more`` are further fields of it or of the services."""
    metrics = GatewayMetrics(version, recent=recent)
    target = Target(
        names=names,
        fleet=fleet,
        text=text,
        metrics=Metrics(metrics, fleet, names[0], max_model_len=max_model_len, control=control),
        **{name: more.pop(name) for name in _OF_TARGET if name in more},
    )
    return Services(
        target=target, catalogue=Catalogue([target]), metrics=metrics, version=version, **more
    )


def another_target(
    services: Services, fleet: Fleet, text: TextModel, names: tuple[str, ...]
) -> Target:
    """Return a further model for the catalogue of a gateway."""
    metrics = Metrics(services.metrics, fleet, names[0], max_model_len=2048)
    return Target(names=names, fleet=fleet, text=text, metrics=metrics)


def model_metrics(fleet: Fleet, name: str = "m", **more: Any) -> Metrics:
    """Return the metrics of one model in a registry of their own."""
    version = more.pop("version", "1")
    gateway = GatewayMetrics(version, recent=more.pop("recent", None))
    return Metrics(gateway, fleet, name, **{"max_model_len": 100, **more})
