"""Observers: plugins notified about the daemon and its requests, each fenced."""

from __future__ import annotations

import dataclasses
import logging
import time

from gatewayd.config.tables import Config
from gatewayd.plugins.request_observers import Observers
from gatewayd.tracing.causes import PLUGIN
from gatewayd.tracing.request_trace import TimedSpan
from gatewayd_hooks.host.fence import Fence, StrategyFault
from gatewayd_hooks.host.ledger import Ledger
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)

FAULT_LIMIT = 3


class ObserverRecord:
    """One observer hook; each plugin is fenced.

    A plugin that raises, hangs or exceeds its time budget too often is not called any more.
    """

    def __init__(self, host: PluginHost, hook: str, ledger: Ledger, watchdog: Watchdog) -> None:
        self._hook = hook
        self._ledger = ledger
        self._watchdog = watchdog
        self._listeners = {
            plugin: ledger.timed(Kind.OBSERVER, plugin, hook, listener)
            for plugin, listener in host.listeners(hook).items()
        }
        self._fence = Fence(FAULT_LIMIT)

    @property
    def has_listeners(self) -> bool:
        """Whether any loaded plugin implements the hook."""
        return bool(self._listeners)

    def notify(self, event: object) -> None:
        """Call each plugin with an event."""
        self(event=event)

    def __call__(self, **arguments: object) -> None:
        """Call each listening plugin."""
        for plugin, listener in tuple(self._listeners.items()):
            self._watchdog.arm()
            began = time.thread_time()
            try:
                with TimedSpan(PLUGIN, f"{Kind.OBSERVER.value}.{plugin}"):
                    listener(**arguments)
                self._ledger.settle_call(Kind.OBSERVER, time.thread_time() - began)
                for overrun in self._ledger.take_overruns(Kind.OBSERVER):
                    raise StrategyFault(Kind.OBSERVER, overrun.reason)
            except Exception:  # noqa: BLE001 - a plugin may raise anything
                _log.exception("hook %s of plugin %s failed", self._hook, plugin)
                if self._fence.record(self._hook, plugin):
                    _log.error(
                        "observer %s disabled for %s after %d faults",
                        plugin,
                        self._hook,
                        FAULT_LIMIT,
                    )
                    del self._listeners[plugin]
            finally:
                self._watchdog.disarm()


def observers_of(host: PluginHost, config: Config, ledger: Ledger, watchdog: Watchdog) -> Observers:
    """Load observers; those that cannot be loaded are logged and skipped."""
    for failure in host.hooked(Kind.OBSERVER, config.plugins.observers):
        _log.error("observer %s not loaded: %s", failure.name, failure.reason)
    observers = Observers()
    # Without listeners a request must not pay for any call.
    admitted = ObserverRecord(host, "gatewayd_request_admitted", ledger, watchdog)
    if admitted.has_listeners:
        observers = dataclasses.replace(observers, admitted=admitted.notify)
    finished = ObserverRecord(host, "gatewayd_request_finished", ledger, watchdog)
    if finished.has_listeners:
        observers = dataclasses.replace(observers, finished=finished.notify)
    return observers
