"""Routes of a daemon: their model routers, loaded and opened."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TypeVar

from gatewayd.catalogue.route import CandidateFacts, ModelRoute
from gatewayd.catalogue.target import Target
from gatewayd.config.routes import RouteEntry, problem_of
from gatewayd.config.tables import Config
from gatewayd.daemon.options import StartError
from gatewayd.metrics.routes import RouteCollector
from gatewayd.plugins.loaded import LoadedPlugins
from gatewayd.plugins.model_router import FencedModelRouter
from gatewayd_hooks.host.errors import PluginError, describe_error
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger("gatewayd.daemon")


def compose_routes(
    config: Config,
    served: Sequence[Target],
    stated: Collection[str],
    plugged: LoadedPlugins,
    metrics: RouteCollector,
) -> list[ModelRoute]:
    """Build the routes of a configuration, with open model routers.

    Args:
        config: the whole configuration.
        served: all targets.
        stated: names of all models of the configuration; an operator may have removed some of
            them, and an added one may not be servable.
        plugged: loads the model routers.
        metrics: counts the attempts of all routes.

    Raises:
        StartError: a target of a route is no model.
        PluginError: a model router cannot be loaded or opened, or refuses its settings.
    """
    names = [name for target in served for name in target.names]
    known = list(dict.fromkeys((*names, *stated)))
    for name, entry in config.routes.items():
        if problem := problem_of(name, entry, known):
            raise StartError(problem)
        if missing := [target for target in entry.targets if target not in names]:
            _log.warning("the route %s lacks %s, not served now", name, ", ".join(missing))
    routes: list[ModelRoute] = []
    try:
        for name, entry in config.routes.items():
            router = open_router(name, entry, plugged, FencedModelRouter)
            facts = {
                target: CandidateFacts(about.input_price, about.output_price, about.quality)
                for target, about in entry.candidates.items()
            }
            targets = tuple(entry.targets)
            routes.append(
                ModelRoute(name=name, targets=targets, router=router, facts=facts, metrics=metrics)
            )
    except BaseException:
        close_routes(routes)
        raise
    return routes


def close_routes(routes: list[ModelRoute]) -> None:
    """Close the model routers."""
    for route in routes:
        route.router.close()


RouterT = TypeVar("RouterT", bound=FencedModelRouter)


def open_router(
    name: str, entry: RouteEntry, plugged: LoadedPlugins, kind: type[RouterT]
) -> RouterT:
    """Load and open the model router of a route.

    Args:
        name: of the route.
        entry: its table.
        plugged: loads the strategy.
        kind: class of the router.

    Raises:
        PluginError: it cannot be loaded or opened, or refuses its settings.
    """
    plugin = f"{Kind.MODEL_ROUTER}.{entry.strategy}"
    settings = entry.settings(entry.strategy)
    strategy = plugged.host.strategy(Kind.MODEL_ROUTER, entry.strategy, settings)
    router = kind(strategy, entry.strategy, plugged.plugin_times, plugged.watchdog)
    try:
        strategy.open(GatewayResources(model=name, num_replicas=len(entry.targets)))
    except Exception as error:
        router.close()
        raise PluginError(plugin, f"cannot be opened: {describe_error(error)}") from error
    return router
