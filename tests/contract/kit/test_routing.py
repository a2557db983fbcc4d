"""Router conformance: rejects routers that leave a request without a replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_hooks.routing import ReplicaView, RouteRequest
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.routing import RouterConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(RouterConformance, Kind.ROUTER, "least_loaded") == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def a_place_instead_of_an_index(router: Any) -> None:
    router.route = lambda request, replicas: len(replicas) - 1


def nobody_when_all_are_busy(router: Any) -> None:
    route = router.route
    router.route = lambda request, replicas: route(
        request, [view for view in replicas if view.kv_usage < 0.9]
    )


def sorts_what_it_is_given(router: Any) -> None:
    def broken(request: RouteRequest, replicas: list[ReplicaView]) -> int:
        replicas.sort(key=lambda view: view.num_running)
        return replicas[0].index

    router.route = broken


@pytest.mark.parametrize(
    "broken", [a_place_instead_of_an_index, nobody_when_all_are_busy, sorts_what_it_is_given]
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(RouterConformance, Kind.ROUTER, "least_loaded", broken)
