"""Services of a gateway with one model or more, for tests of its routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from gatewayd.catalogue.catalogue import Catalogue
from gatewayd.catalogue.route import ModelRoute
from gatewayd.catalogue.target import ModelTarget
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
    others: Mapping[str, Fleet] = MappingProxyType({}),
    routes: Sequence[ModelRoute] = (),
    **more: Any,
) -> Services:
    """Return the services of one model; ``more`` are further fields of it or of the services.

    ``others`` are the fleets of further models, with the text of the first.
    """
    metrics = GatewayMetrics(version, recent=recent)
    target = ModelTarget(
        names=names,
        fleet=fleet,
        text=text,
        metrics=Metrics(metrics, fleet, names[0], max_model_len=max_model_len, control=control),
        **{name: more.pop(name) for name in _OF_TARGET if name in more},
    )
    further = [
        ModelTarget(
            names=(name,),
            fleet=other,
            text=text,
            metrics=Metrics(metrics, other, name, max_model_len=max_model_len),
        )
        for name, other in others.items()
    ]
    return Services(
        target=target,
        catalogue=Catalogue(
            [target, *further], [replace(route, metrics=metrics.routes) for route in routes]
        ),
        metrics=metrics,
        version=version,
        **more,
    )


def another_target(
    services: Services, fleet: Fleet, text: TextModel, names: tuple[str, ...]
) -> ModelTarget:
    """Return a further model for the catalogue of a gateway."""
    metrics = Metrics(services.metrics, fleet, names[0], max_model_len=2048)
    return ModelTarget(names=names, fleet=fleet, text=text, metrics=metrics)


def model_metrics(fleet: Fleet, name: str = "m", **more: Any) -> Metrics:
    """Return the metrics of one model in a registry of their own."""
    version = more.pop("version", "1")
    gateway = GatewayMetrics(version, recent=more.pop("recent", None))
    return Metrics(gateway, fleet, name, **{"max_model_len": 100, **more})
