"""Routes for tests: model routers behind their fence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gatewayd.catalogue.route import CandidateFacts, ModelRoute
from gatewayd.plugins.model_router import FencedModelRouter
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.targets.model_routing import ModelRouterStrategy

TARGETS = ("nano", "large")


def strategy_of(name: str, **settings: Any) -> ModelRouterStrategy:
    """A built-in model router, open."""
    host = PluginHost(Catalog.installed())
    strategy: ModelRouterStrategy = host.strategy(Kind.MODEL_ROUTER, name, settings)
    strategy.open(GatewayResources("route", 2))
    return strategy


def route_over(
    strategy: Any,
    targets: Sequence[str] = TARGETS,
    name: str = "smart",
    facts: Mapping[str, CandidateFacts] | None = None,
) -> ModelRoute:
    """A route to fake fleets, with a strategy of a test's own."""
    times = PluginTimes(0.05)
    router = FencedModelRouter(strategy, "tested", times, Watchdog(times, 2.0))
    return ModelRoute(name=name, targets=tuple(targets), router=router, facts=facts or {})


def fallback(*targets: str, **settings: Any) -> ModelRoute:
    """A route that tries the targets in turn."""
    return route_over(strategy_of("fallback", **settings), targets or TARGETS)
