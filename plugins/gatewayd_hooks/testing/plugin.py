"""Pytest fixtures for plugin authors.

Loaded into every pytest run where gatewayd is installed: so their names have a prefix, and nothing
is imported before a test requests it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gatewayd_hooks.host.loading import PluginHost
    from gatewayd_hooks.resources import EngineResources, GatewayResources


@pytest.fixture
def gatewayd_host() -> PluginHost:
    """Loader of the installed plugins, as in a daemon."""
    from gatewayd_hooks.host.catalog import Catalog
    from gatewayd_hooks.host.loading import PluginHost

    return PluginHost(Catalog.installed())


@pytest.fixture
def gatewayd_engine_resources() -> EngineResources:
    """Resources of a small engine on a CPU."""
    from gatewayd_hooks.testing.fakes import engine_resources

    return engine_resources()


@pytest.fixture
def gatewayd_gateway_resources() -> GatewayResources:
    """Resources of a gateway with three engines."""
    from gatewayd_hooks.resources import GatewayResources

    return GatewayResources(model="nano", num_replicas=3)
