"""Routing time budget: a slow router is dropped, a slow machine is not its fault."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.plugins.router import FAULT_LIMIT, FencedRouter
from gatewayd_hooks.host.budgets import PATIENCE
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.routing import ReplicaView, RouteRequest
from tests.clock import Clock

VIEWS = [ReplicaView(0, 0, 0, 0, 0.0), ReplicaView(1, 5, 5, 5, 0.5)]


class Second:
    """Chooses the fuller replica, after some time.

    Args:
        works, waits: seconds, with a processor and without.
    """

    def __init__(self, clock: Clock, works: float, waits: float) -> None:
        self._clock = clock
        self._works = works
        self._waits = waits

    def open(self, resources: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def route(self, request: RouteRequest, replicas: Any) -> int:
        self._clock.spend(self._works)
        self._clock.wait(self._waits)
        return 1


@pytest.mark.parametrize(
    ("works", "waits", "is_kept"),
    [(0.2, 0.0, False), (0.0, 0.2, False), (0.03, 0.3, True), (0.03, 0.0, True)],
)
def test_only_a_router_that_is_slow_itself_is_asked_no_more(
    monkeypatch: pytest.MonkeyPatch, works: float, waits: float, is_kept: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr("gatewayd_hooks.host.plugin_times.time", clock)
    monkeypatch.setattr("gatewayd.plugins.fenced.time", clock)
    plugin_times = PluginTimes(0.05)
    router = FencedRouter(
        Second(clock, works, waits), "second", plugin_times, Watchdog(plugin_times, 60.0)
    )
    request = RouteRequest((1, 2, 3), b"", 0)
    for _ in range(FAULT_LIMIT * PATIENCE):
        assert router.route(request, VIEWS) == 1
    assert router.is_quarantined is not is_kept
    assert router.route(request, VIEWS) == (1 if is_kept else 0)
