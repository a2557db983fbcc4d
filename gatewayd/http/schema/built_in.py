"""Request schemas of built-in protocol plugins, for the documentation."""

from __future__ import annotations

from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.markers import PROJECT
from gatewayd_hooks.requests.tables import RequestTable
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.fake_gateway import FakeGateway


def built_in_tables() -> dict[str, type[RequestTable]]:
    """Return each schema by its name in ``/openapi.json``: ``<protocol>.<table>``."""
    catalog = Catalog.installed()
    host = PluginHost(catalog)
    return {
        f"{entry.name}.{route.request.__name__}": route.request
        for entry in catalog.entries
        if entry.kind == Kind.PROTOCOL and entry.distribution == PROJECT
        for route in host.strategy(Kind.PROTOCOL, entry.name, {}).routes(FakeGateway())
        if route.request is not None
    }
