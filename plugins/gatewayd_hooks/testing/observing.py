"""Conformance tests of observers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pluggy
import pytest

from gatewayd_hooks import hookspecs
from gatewayd_hooks.events import DaemonInfo, RequestAdmitted, RequestFinished
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.markers import PROJECT

_ADMITTED = RequestAdmitted("req-1", "tenant", "/v1/completions", 12, 1)
_FINISHED = RequestFinished("req-1", "tenant", "stop", 12, 8, 5, 0.02, 0.4)
_ENDS = [
    _FINISHED,
    replace(_FINISHED, outcome="length", tenant=""),
    replace(_FINISHED, outcome="abort", completion_tokens=0, ttft_seconds=None),
    replace(_FINISHED, outcome="error", completion_tokens=0, ttft_seconds=None, seconds=0.0),
]


class ObserverConformance:
    """Subclass it and return your module, or what your entry point names, in ``make``."""

    def make(self) -> object:
        """Return the observer."""
        raise NotImplementedError("override this method to return the plugin's module")

    @contextmanager
    def plugged(self) -> Iterator[pluggy.PluginManager]:
        """Register the observer as a daemon does."""
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(hookspecs)
        observer = self.make()
        manager.register(observer)
        try:
            yield manager
        finally:
            manager.unregister(observer)

    def test_it_implements_only_existing_hooks(self) -> None:
        with self.plugged() as manager:
            callers = manager.get_hookcallers(manager.get_plugins().pop()) or []
            assert callers, "it implements no hook: is @hookimpl missing?"
            assert [caller.name for caller in callers if not caller.has_spec()] == []
            manager.check_pending()

    def test_it_offers_no_strategy(self) -> None:
        registering = {spec.hook for spec in KINDS.values()}
        with self.plugged() as manager:
            callers = manager.get_hookcallers(manager.get_plugins().pop()) or []
            assert {caller.name for caller in callers} & registering == set()

    def test_the_hooks_work_from_start_to_stop_of_a_daemon(self) -> None:
        prometheus = pytest.importorskip("prometheus_client")
        with self.plugged() as manager:
            registry = prometheus.CollectorRegistry()
            manager.hook.gatewayd_metrics(registry=registry)
            manager.hook.gatewayd_started(info=DaemonInfo("0.1.0", "nano"))
            for end in _ENDS:
                manager.hook.gatewayd_request_admitted(event=_ADMITTED)
                manager.hook.gatewayd_request_finished(event=end)
            names = {family.name for family in registry.collect()}
            manager.hook.gatewayd_stopping(reason="SIGTERM")
        others = {name for name in names if not name.startswith("gatewayd_")}
        assert others == set(), "names of metrics begin with gatewayd_<your plugin>_"

    def test_it_works_in_a_second_daemon_of_the_same_process(self) -> None:
        """Every test that starts a daemon does this."""
        prometheus = pytest.importorskip("prometheus_client")
        for _ in range(2):
            with self.plugged() as manager:
                manager.hook.gatewayd_metrics(registry=prometheus.CollectorRegistry())
