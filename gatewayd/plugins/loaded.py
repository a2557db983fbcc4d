"""The gateway process's plugins: admission, router, executor, protocols, observers."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from gatewayd.config import chosen_strategies
from gatewayd.config.tables import Config
from gatewayd.plugins.admission import FencedAdmission
from gatewayd.plugins.executor import GuardedExecutor
from gatewayd.plugins.observers import ObserverRecord, observers_of
from gatewayd.plugins.parsers import ModelParsers, load_parsers
from gatewayd.plugins.probe_process import unimportable
from gatewayd.plugins.request_observers import Observers
from gatewayd.plugins.router import FencedRouter
from gatewayd_hooks.detection import Detector
from gatewayd_hooks.events import DaemonInfo
from gatewayd_hooks.execution import ExecutorStrategy
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import told
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.host.loading import PluginError, PluginHost, PluginRow
from gatewayd_hooks.host.settings import decode
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.markers import PROJECT
from gatewayd_hooks.protocols import ProtocolStrategy
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.strategy import Kind, StrategyInfo

_log = logging.getLogger(__name__)

_ENABLED = ("installed", "enabled")
_LIGHT = (
    Kind.SCHEDULER,
    Kind.PREFIX_CACHE,
    Kind.EVICTION,
    Kind.PREEMPTION,
    Kind.SPEC_CONTROLLER,
)
"""Kinds whose strategies of this project read no file."""


@dataclass(frozen=True, slots=True)
class Plugged:
    """What the gateway process has loaded.

    Attributes:
        host: holds the plugins.
        admission: takes requests on.
        router: chooses replicas.
        executor: starts engines.
        protocols: other APIs that are served, by name.
        observers: told about requests.
        parsers: read the model's answers.
        ledger: what all of them have cost.
        watchdog: interrupts them.
        resources: what a strategy that comes later is opened with.
    """

    host: PluginHost
    admission: FencedAdmission
    router: FencedRouter
    executor: ExecutorStrategy
    protocols: tuple[tuple[str, ProtocolStrategy], ...]
    observers: Observers
    parsers: ModelParsers
    ledger: Ledger
    watchdog: Watchdog
    resources: GatewayResources

    @classmethod
    def load(cls, config: Config, *, model: str, chat_template: str = "") -> Plugged:
        """Load and open what the configuration names, and parsers that suit the template.

        Raises:
            PluginError: a strategy cannot be loaded, or refuses its settings.
        """
        host = PluginHost(Catalog.installed())
        resources = GatewayResources(model, config.engine.replicas, chat_template)
        router, executor = config.router.strategy, config.executor.strategy
        admission = config.admission.strategy
        ledger = Ledger(config.engine.strategy_budget_ms / 1000)
        watchdog = Watchdog(ledger, config.engine.strategy_hang_seconds)
        plugged = cls(
            host=host,
            admission=FencedAdmission(
                host.strategy(Kind.ADMISSION, admission, config.admission.settings(admission)),
                admission,
                ledger,
                watchdog,
            ),
            router=FencedRouter(
                host.strategy(Kind.ROUTER, router, config.router.settings(router)),
                router,
                ledger,
                watchdog,
            ),
            executor=GuardedExecutor(
                host.strategy(Kind.EXECUTOR, executor, config.executor.settings(executor)),
                executor,
                ledger,
                watchdog,
            ),
            protocols=tuple(
                (name, host.strategy(Kind.PROTOCOL, name, settings))
                for name, settings in chosen_strategies.chosen_in(config.protocol)
            ),
            observers=observers_of(host, config, ledger, watchdog),
            parsers=load_parsers(config, host, resources, ledger, watchdog),
            ledger=ledger,
            watchdog=watchdog,
            resources=resources,
        )
        try:
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
        """What a plugin offers; one that nobody has imported yet is tried elsewhere before.

        A plugin that crashes when it is imported must not take the daemon with it.

        Raises:
            PluginError: it cannot be loaded.
        """
        entry = self.host.stranger(kind, name)
        if entry is not None and (problem := unimportable(entry, settings)):
            raise PluginError(entry.plugin, f"{problem.text}; {problem.advice}")
        return self.host.info(kind, name)

    def open_strategy(self, kind: Kind, name: str, settings: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Build and open another admission or router.

        Not in the event loop, for it may take long.

        Raises:
            PluginError: it cannot be loaded or opened, or refuses its settings.
        """
        strategy = self.host.strategy(kind, name, settings)
        try:
            strategy.open(self.resources)
        except Exception as error:
            with contextlib.suppress(Exception):
                strategy.close()
            raise PluginError(f"{kind}.{name}", f"cannot be opened: {error}") from error
        return strategy

    def is_proven(self, kind: Kind, names: Sequence[str]) -> bool:
        """Whether no engine has to try what fills a slot: it is ours and loads nothing."""
        rows = self.host.report()
        ours = {row.name for row in rows if (row.kind, row.distribution) == (kind, PROJECT)}
        return not names or (kind in _LIGHT and ours.issuperset(names))

    def metrics(self, registry: CollectorRegistry) -> None:
        """Let observers add collectors."""
        self._told("gatewayd_metrics")(registry=registry)

    def started(self, *, version: str, model: str) -> None:
        """Tell observers that the daemon serves."""
        self._told("gatewayd_started")(info=DaemonInfo(version, model))

    def stopping(self, reason: str) -> None:
        """Tell observers that the daemon stops."""
        self._told("gatewayd_stopping")(reason=reason)

    def _told(self, hook: str) -> ObserverRecord:
        return ObserverRecord(self.host, hook, self.ledger, self.watchdog)

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
    """Open it.

    Raises:
        PluginError: it cannot be.
    """
    try:
        protocol.open(resources)
    except Exception as error:
        plugin = f"{Kind.PROTOCOL}.{name}"
        raise PluginError(plugin, f"cannot be opened: {told(error)}") from error


def load_detector(config: Config, host: PluginHost | None = None) -> Detector | None:
    """Make what finds the mark that answers carry; of several marks, the first one's.

    Raises:
        PluginError: a logits processor cannot be loaded, or refuses its settings.
    """
    host = host or PluginHost(Catalog.installed())
    table = config.logits_processor
    found = (host.detector(name, table.settings(name)) for name in table.strategies)
    return next((detector for detector in found if detector is not None), None)


def check_strategies(config: Config) -> list[str]:
    """Load every configured plugin and check its settings; builds and opens nothing.

    Returns:
        One sentence for each that cannot be used.
    """
    return _load_configured(PluginHost(Catalog.installed()), config)


def report(config: Config) -> list[PluginRow]:
    """Every installed plugin; what the configuration names is loaded and called enabled."""
    host = PluginHost(Catalog.installed())
    _load_configured(host, config)
    # Only to say what is wrong with them: the daemon has no use for parts of the console.
    host.hooked(Kind.CONSOLE, config.plugins.console)
    return chosen_rows(host, config)


def chosen_rows(host: PluginHost, config: Config) -> list[PluginRow]:
    """Every installed plugin; what the configuration chooses is enabled, whoever has loaded it."""
    chosen = chosen_strategies.enabled(config)
    return [
        dataclasses.replace(row, state=_ENABLED[f"{row.kind}.{row.name}" in chosen])
        if row.state in _ENABLED
        else row
        for row in host.report()
    ]


def _load_configured(host: PluginHost, config: Config) -> list[str]:
    problems = []
    for kind, name, table in chosen_strategies.configured(config):
        try:
            info = host.info(kind, name)
            decode(f"{kind}.{name}", info.config_type, table.settings(name))
        except PluginError as error:
            problems.append(str(error))
    failures = host.hooked(Kind.OBSERVER, config.plugins.observers)
    return problems + [f"{failed.kind}.{failed.name} {failed.reason}" for failed in failures]
