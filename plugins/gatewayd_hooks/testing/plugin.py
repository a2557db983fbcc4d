"""Fixtures for plugin authors.

Loaded into every pytest run where gatewayd is installed: so their names have a prefix, and
nothing is imported before a test asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gatewayd_hooks.host.loading import PluginHost
    from gatewayd_hooks.resources import EngineResources, GatewayResources


@pytest.fixture
def gatewayd_host() -> PluginHost:
    """The loader over what is installed, as a daemon has it."""
    from gatewayd_hooks.host.catalog import Catalog
    from gatewayd_hooks.host.loading import PluginHost

    return PluginHost(Catalog.installed())


@pytest.fixture
def gatewayd_engine_resources() -> EngineResources:
    """What a small engine on a CPU hands to ``open``."""
    from gatewayd_hooks.testing.fakes import engine_resources

    return engine_resources()


@pytest.fixture
def gatewayd_gateway_resources() -> GatewayResources:
    """What a gateway in front of three engines hands to ``open``."""
    from gatewayd_hooks.resources import GatewayResources

    return GatewayResources(model="nano", num_replicas=3)
