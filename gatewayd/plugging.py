"""The gateway process's plugins: router, executor and observers, from the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gatewayd_hooks.catalog import Catalog
from gatewayd_hooks.loading import PluginError, PluginHost
from prometheus_client import CollectorRegistry

from gatewayd.config import Config, SlotTable
from gatewayd.launch import NO_PREFIX_CACHE
from gatewayd.pipeline import Observers
from gatewayd_hooks.execution import ExecutorStrategy
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.routing import RouterStrategy
from gatewayd_hooks.strategy import Kind


@dataclass(frozen=True, slots=True)
class Plugged:
    """What the gateway process has loaded.

    Attributes:
        router: chooses replicas.
        executor: starts engines.
        observers: told about requests.
    """

    host: PluginHost
    router: RouterStrategy
    executor: ExecutorStrategy
    observers: Observers

    @classmethod
    def load(cls, config: Config, *, model: str) -> Plugged:
        """Load and open what the configuration names.

        Raises:
            PluginError: a strategy cannot be loaded, or refuses its settings.
        """
        host = PluginHost(Catalog.installed())
        resources = GatewayResources(model, config.engine.replicas)
        router, executor = config.router, config.executor
        plugged = cls(
            host=host,
            router=host.strategy(Kind.ROUTER, router.strategy, router.settings(router.strategy)),
            executor=host.strategy(
                Kind.EXECUTOR, executor.strategy, executor.settings(executor.strategy)
            ),
            observers=Observers(),
        )
        try:
            plugged.router.open(resources)
            plugged.executor.open(resources)
        except BaseException:
            plugged.close()
            raise
        return plugged

    def metrics(self, registry: CollectorRegistry) -> None:
        """Let observers add collectors."""

    def started(self, *, version: str, model: str) -> None:
        """Tell observers that the daemon serves."""

    def stopping(self, reason: str) -> None:
        """Tell observers that the daemon stops."""

    def close(self) -> None:
        """Close the strategies."""
        self.router.close()
        self.executor.close()


def check_strategies(config: Config) -> list[str]:
    """Load every configured strategy and let it take its settings; opens and starts nothing.

    Returns:
        One sentence for each that cannot be used.
    """
    host = PluginHost(Catalog.installed())
    problems = []
    for kind, name, table in _configured(config):
        try:
            host.strategy(kind, name, table.settings(name))
        except PluginError as error:
            problems.append(str(error))
    return problems


def _configured(config: Config) -> Iterator[tuple[Kind, str, SlotTable]]:
    for kind in Kind:
        table = getattr(config, kind.value, None)
        if table is None:
            continue  # observers have no slot
        names = [table.strategy] if hasattr(table, "strategy") else table.strategies
        for name in names:
            if (kind, name) != (Kind.PREFIX_CACHE, NO_PREFIX_CACHE):
                yield kind, name, table
