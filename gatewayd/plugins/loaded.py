"""Plugins of the gateway process: loading, opening and closing."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from gatewayd.config import chosen_strategies
from gatewayd.config.catalogue import model_configs
from gatewayd.config.strategies import StrategyTable
from gatewayd.config.tables import Config
from gatewayd.plugins.admission import FencedAdmission
from gatewayd.plugins.executor import FencedExecutor
from gatewayd.plugins.fenced import Fenced
from gatewayd.plugins.observers import ObserverRecord, observers_of
from gatewayd.plugins.parsers import ModelParsers, load_parsers
from gatewayd.plugins.probe_process import unimportable
from gatewayd.plugins.request_observers import Observers
from gatewayd.plugins.router import FencedRouter
from gatewayd_hooks.detection import Detector
from gatewayd_hooks.events import DaemonInfo
from gatewayd_hooks.execution import ExecutorStrategy
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import describe_error
from gatewayd_hooks.host.loading import PluginError, PluginHost, PluginRow
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.settings import decode
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.markers import PROJECT
from gatewayd_hooks.protocols import ProtocolStrategy
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.strategy import Kind, StrategyInfo

_log = logging.getLogger(__name__)

FencedT = TypeVar("FencedT", bound=Fenced[Any])

_ENABLED = ("installed", "enabled")
_LIGHT = (
    Kind.SCHEDULER,
    Kind.PREFIX_CACHE,
    Kind.EVICTION,
    Kind.PREEMPTION,
    Kind.SPEC_CONTROLLER,
)
"""Kinds whose built-in strategies read no files."""


@dataclass(frozen=True, slots=True)
class LoadedPlugins:
    """All plugins that the gateway process has loaded.

    Attributes:
        host: loads plugins.
        admission: the admission strategy.
        router: the router.
        executor: starts engines.
        protocols: APIs served in addition to OpenAI's, by name.
        observers: observers of requests.
        parsers: parsers of the model's output.
        plugin_times: costs of all of them.
        watchdog: interrupts calls that hang.
        resources: resources with which strategies are opened.
    """

    host: PluginHost
    admission: FencedAdmission
    router: FencedRouter
    executor: ExecutorStrategy
    protocols: tuple[tuple[str, ProtocolStrategy], ...]
    observers: Observers
    parsers: ModelParsers
    plugin_times: PluginTimes
    watchdog: Watchdog
    resources: GatewayResources

    @classmethod
    def load(
        cls, config: Config, *, model: str, chat_template: str = "", is_first: bool = True
    ) -> LoadedPlugins:
        """Load and open the configured plugins, and parsers that suit the chat template.

        Args:
            config: of a model.
            model: its name.
            chat_template: its source.
            is_first: whether to load protocols and observers, which all models share.

        Raises:
            PluginError: a strategy cannot be loaded, or refuses its settings.
        """
        host = PluginHost(Catalog.installed())
        resources = GatewayResources(model, config.engine.replicas, chat_template)
        plugin_times = PluginTimes(config.engine.strategy_budget_ms / 1000)
        watchdog = Watchdog(plugin_times, config.engine.strategy_hang_seconds)

        def fenced(fence: type[FencedT], table: StrategyTable) -> FencedT:
            name = table.strategy
            strategy = host.strategy(fence.kind, name, table.settings(name))
            return fence(strategy, name, plugin_times, watchdog)

        plugged = cls(
            host=host,
            admission=fenced(FencedAdmission, config.admission),
            router=fenced(FencedRouter, config.router),
            executor=fenced(FencedExecutor, config.executor),
            protocols=tuple(
                (name, host.strategy(Kind.PROTOCOL, name, settings))
                for name, settings in chosen_strategies.chosen_in(config.protocol)
                if is_first
            ),
            observers=observers_of(host, config, plugin_times, watchdog)
            if is_first
            else Observers(),
            parsers=load_parsers(config, host, resources, plugin_times, watchdog),
            plugin_times=plugin_times,
            watchdog=watchdog,
            resources=resources,
        )
        try:
            # From here on a failure must close what is open.
            plugged.admission.strategy.open(resources)
            plugged.router.strategy.open(resources)
            plugged.executor.open(resources)
            for name, protocol in plugged.protocols:
                _open_protocol(name, protocol, resources)
        except BaseException:
            plugged.close()
            raise
        return plugged

    def info(self, kind: Kind, name: str, settings: Mapping[str, Any]) -> StrategyInfo[Any]:
        """Load a plugin's info; one that was never imported is probed in another process first.

        A plugin that crashes at import must not take the daemon down.

        Raises:
            PluginError: it cannot be loaded.
        """
        entry = self.host.third_party_entry(kind, name)
        if entry is not None and (problem := unimportable(entry, settings)):
            raise PluginError(entry.plugin, f"{problem.text}; {problem.advice}")
        return self.host.info(kind, name)

    def open_strategy(self, kind: Kind, name: str, settings: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Build and open another admission or router strategy.

        Blocking; call it outside of the event loop.

        Raises:
            PluginError: it cannot be loaded or opened, or refuses its settings.
        """
        strategy = self.host.strategy(kind, name, settings)
        try:
            strategy.open(self.resources)
        except Exception as error:
            # One that could not be opened may also fail to close; the first error is the cause.
            with contextlib.suppress(Exception):
                strategy.close()
            raise PluginError(f"{kind}.{name}", f"cannot be opened: {error}") from error
        return strategy

    def is_proven(self, kind: Kind, names: Sequence[str]) -> bool:
        """Whether no engine has to try the strategies first: built-in ones that load nothing."""
        rows = self.host.report()
        ours = {row.name for row in rows if (row.kind, row.distribution) == (kind, PROJECT)}
        return not names or (kind in _LIGHT and ours.issuperset(names))

    def metrics(self, registry: CollectorRegistry) -> None:
        """Let observers add collectors."""
        self._observers_of("gatewayd_metrics")(registry=registry)

    def started(self, *, version: str, model: str) -> None:
        """Notify observers that the daemon serves."""
        self._observers_of("gatewayd_started")(info=DaemonInfo(version, model))

    def stopping(self, reason: str) -> None:
        """Notify observers that the daemon stops."""
        self._observers_of("gatewayd_stopping")(reason=reason)

    def _observers_of(self, hook: str) -> ObserverRecord:
        return ObserverRecord(self.host, hook, self.plugin_times, self.watchdog)

    def close(self) -> None:
        """Close the strategies."""
        self.admission.close()
        self.router.close()
        self.executor.close()
        self.parsers.close()
        for name, protocol in self.protocols:
            try:
                protocol.close()
            except Exception:  # noqa: BLE001 - a plugin may raise anything
                _log.exception("protocol %s failed while closing", name)


def _open_protocol(name: str, protocol: ProtocolStrategy, resources: GatewayResources) -> None:
    """Open a protocol.

    Raises:
        PluginError: it cannot be opened.
    """
    try:
        protocol.open(resources)
    except Exception as error:
        plugin = f"{Kind.PROTOCOL}.{name}"
        raise PluginError(plugin, f"cannot be opened: {describe_error(error)}") from error


def load_detector(config: Config, host: PluginHost | None = None) -> Detector | None:
    """Load the detector of the watermark in responses; of several, the first.

    Raises:
        PluginError: a logits processor cannot be loaded, or refuses its settings.
    """
    host = host or PluginHost(Catalog.installed())
    table = config.logits_processor
    found = (host.detector(name, table.settings(name)) for name in table.strategies)
    return next((detector for detector in found if detector is not None), None)


def check_strategies(config: Config) -> list[str]:
    """Load each configured plugin and validate its settings, without building or opening any.

    Returns:
        One sentence for each that cannot be used; it names the models unless it is about all.
    """
    host = PluginHost(Catalog.installed())
    models = model_configs(config)
    tables: dict[str, list[str]] = {}
    for model in models:
        for problem in _load_configured(host, model.config):
            tables.setdefault(problem, []).append(model.table)
    return [
        problem if len(found) == len(models) else f"{', '.join(found)}: {problem}"
        for problem, found in tables.items()
    ]


def report(config: Config) -> list[PluginRow]:
    """List all installed plugins; configured ones are loaded, and marked as enabled."""
    host = PluginHost(Catalog.installed())
    for model in model_configs(config):
        _load_configured(host, model.config)
    # Loaded only to report their errors: the daemon itself does not use console plugins.
    host.hooked(Kind.CONSOLE, config.plugins.console)
    return chosen_rows(host, config)


def chosen_rows(host: PluginHost, config: Config) -> list[PluginRow]:
    """List all installed plugins; configured ones are marked as enabled."""
    # The host marks all that it has built; only the configuration tells what is in use now.
    chosen = chosen_strategies.enabled(config)
    return [
        dataclasses.replace(row, state=_ENABLED[f"{row.kind}.{row.name}" in chosen])
        if row.state in _ENABLED
        else row
        for row in host.report()
    ]


def _load_configured(host: PluginHost, config: Config) -> list[str]:
    problems = []
    chosen = chain(chosen_strategies.configured(config), chosen_strategies.routed(config))
    for kind, name, table in chosen:
        try:
            info = host.info(kind, name)
            decode(f"{kind}.{name}", info.config_type, table.settings(name))
        except PluginError as error:
            problems.append(str(error))
    for name, upstream in config.upstreams.items():
        try:
            info = host.info(Kind.UPSTREAM, upstream.strategy)
            decode(f"upstreams.{name}.settings", info.config_type, upstream.settings)
        except PluginError as error:
            problems.append(str(error))
    failures = host.hooked(Kind.OBSERVER, config.plugins.observers)
    return problems + [f"{failed.kind}.{failed.name} {failed.reason}" for failed in failures]
