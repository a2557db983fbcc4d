"""Parts of a daemon for its upstreams: a fleet for each, and a target for each of its models."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatewayd.catalogue.target import UpstreamTarget
from gatewayd.config.tables import Config
from gatewayd.config.upstreams import UpstreamEntry
from gatewayd.metrics.registry import GatewayMetrics, Metrics
from gatewayd.metrics.upstreams import UpstreamCollector
from gatewayd.pipeline.generation import Generation
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd_hooks.host.errors import describe_error
from gatewayd_hooks.host.loading import PluginError, PluginHost
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.upstreams import UpstreamResources, UpstreamStrategy

if TYPE_CHECKING:
    from gatewayd.upstreams.fleet import UpstreamFleet

_log = logging.getLogger("gatewayd.daemon")

_USUAL_CONTEXT = 131_072
"""Bound of histograms where the context's length is not configured."""


@dataclass(frozen=True, eq=False, kw_only=True)
class UpstreamParts:
    """Parts of one upstream.

    Attributes:
        fleet: relays requests.
        targets: its models.
    """

    fleet: UpstreamFleet
    targets: Sequence[UpstreamTarget]


def compose_upstreams(
    config: Config, host: PluginHost, metrics: GatewayMetrics, undo: ExitStack
) -> list[UpstreamParts]:
    """Build the parts of all upstreams; nothing is connected yet.

    Args:
        config: configuration of the daemon.
        host: loads plugins.
        metrics: of the gateway, to which those of the models are added.
        undo: closes the strategies if a later part of the daemon cannot be built.

    Raises:
        PluginError: a strategy cannot be loaded or opened, or refuses its settings.
    """
    found = [_compose(name, entry, host, metrics, undo) for name, entry in config.upstreams.items()]
    if found:
        metrics.registry.register(UpstreamCollector([one.fleet for one in found]))
    return found


def _compose(
    name: str, entry: UpstreamEntry, host: PluginHost, metrics: GatewayMetrics, undo: ExitStack
) -> UpstreamParts:
    # Imported late: a daemon without upstreams has no HTTP client, which takes long to import.
    from gatewayd.upstreams.fleet import UpstreamFleet

    strategy: UpstreamStrategy = host.strategy(Kind.UPSTREAM, entry.strategy, entry.settings)
    try:
        strategy.open(UpstreamResources(name, entry.secret))
    except Exception as error:
        plugin = f"{Kind.UPSTREAM}.{entry.strategy}"
        raise PluginError(plugin, f"cannot be opened: {describe_error(error)}") from error
    undo.callback(strategy.close)
    fleet = UpstreamFleet(name, entry, strategy)
    targets = [_target(name, entry, ours, fleet, metrics) for ours in entry.models]
    return UpstreamParts(fleet=fleet, targets=targets)


def _target(
    upstream: str, entry: UpstreamEntry, name: str, fleet: UpstreamFleet, metrics: GatewayMetrics
) -> UpstreamTarget:
    live = LiveRequests[Generation]()
    return UpstreamTarget(
        names=(name,),
        fleet=fleet,
        metrics=Metrics(
            metrics,
            fleet,
            name,
            max_model_len=entry.context_length or _USUAL_CONTEXT,
            running=live.generated,
        ),
        live=live,
        upstream=upstream,
        model=entry.models[name],
        context_length=entry.context_length,
        max_output_tokens=entry.max_output_tokens,
    )
