"""Plugin author fixtures: what the kit provides to every plugin."""

from __future__ import annotations

from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.resources import EngineResources, GatewayResources
from gatewayd_hooks.strategy import Kind


def test_the_host_loads_what_is_installed(gatewayd_host: PluginHost) -> None:
    assert gatewayd_host.info(Kind.SCHEDULER, "fcfs").name == "fcfs"


def test_the_sizes_open_an_engines_strategy(
    gatewayd_host: PluginHost, gatewayd_engine_resources: EngineResources
) -> None:
    strategy = gatewayd_host.strategy(Kind.PREFIX_CACHE, "hash", {})
    strategy.open(gatewayd_engine_resources)
    strategy.close()


def test_the_sizes_open_a_gateways_strategy(
    gatewayd_host: PluginHost, gatewayd_gateway_resources: GatewayResources
) -> None:
    strategy = gatewayd_host.strategy(Kind.ROUTER, "prefix", {})
    strategy.open(gatewayd_gateway_resources)
    strategy.close()


def test_a_host_is_fresh_in_every_test(gatewayd_host: PluginHost) -> None:
    assert {row.state for row in gatewayd_host.report() if row.distribution == "gatewayd"} == {
        "installed"
    }
