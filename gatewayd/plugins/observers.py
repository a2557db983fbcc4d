"""Observers: plugins notified about the daemon and its requests, each fenced."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from gatewayd.config.tables import Config
from gatewayd.plugins.fenced import FAULT_LIMIT, Fenced
from gatewayd.plugins.request_observers import Observers
from gatewayd.tracing.causes import PLUGIN
from gatewayd.tracing.request_trace import TimedSpan
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.strategy import Kind

_log = logging.getLogger(__name__)


class FencedListener(Fenced[Callable[..., None]]):
    """One plugin's implementation of an observer hook.

    Args:
        listener: the implementation.
        name: name of the plugin.
        hook: name of the hook.
        plugin_times: accounts its calls.
        watchdog: interrupts calls that hang.
    """

    kind = Kind.OBSERVER

    def __init__(
        self,
        listener: Callable[..., None],
        name: str,
        hook: str,
        plugin_times: PluginTimes,
        watchdog: Watchdog,
    ) -> None:
        super().__init__(listener, name, plugin_times, watchdog)
        self._hook = hook
        self._timed = plugin_times.timed(self.kind, name, hook, listener)

    def __call__(self, **arguments: object) -> None:
        """Call the plugin."""
        self._call(lambda: self._notify(arguments))

    def _notify(self, arguments: dict[str, object]) -> None:
        with TimedSpan(PLUGIN, f"{self.kind.value}.{self.name}"):
            self._timed(**arguments)

    @property
    def _label(self) -> str:
        return f"hook {self._hook} of observer {self.name}"

    def _log_quarantine(self) -> None:
        _log.error(
            "observer %s disabled for %s after %d faults", self.name, self._hook, FAULT_LIMIT
        )


class ObserverRecord:
    """One observer hook, and the plugins that implement it."""

    def __init__(
        self, host: PluginHost, hook: str, plugin_times: PluginTimes, watchdog: Watchdog
    ) -> None:
        # A fence for each hook: an observer that is disabled for one still gets the others.
        self._listeners = [
            FencedListener(listener, plugin, hook, plugin_times, watchdog)
            for plugin, listener in host.listeners(hook).items()
        ]

    @property
    def has_listeners(self) -> bool:
        """Whether any loaded plugin implements the hook."""
        return bool(self._listeners)

    def notify(self, event: object) -> None:
        """Call each plugin with an event."""
        self(event=event)

    def __call__(self, **arguments: object) -> None:
        """Call each plugin."""
        for listener in self._listeners:
            listener(**arguments)


def observers_of(
    host: PluginHost, config: Config, plugin_times: PluginTimes, watchdog: Watchdog
) -> Observers:
    """Load observers; those that cannot be loaded are logged and skipped."""
    for failure in host.hooked(Kind.OBSERVER, config.plugins.observers):
        _log.error("observer %s not loaded: %s", failure.name, failure.reason)
    observers = Observers()
    # Without listeners a request must not pay for any call.
    admitted = ObserverRecord(host, "gatewayd_request_admitted", plugin_times, watchdog)
    if admitted.has_listeners:
        observers = dataclasses.replace(observers, admitted=admitted.notify)
    finished = ObserverRecord(host, "gatewayd_request_finished", plugin_times, watchdog)
    if finished.has_listeners:
        observers = dataclasses.replace(observers, finished=finished.notify)
    return observers
