"""Model router conformance: rejects routers that leave a request without a target."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.targets.model_routing import AttemptView, CandidateView, RoutedRequest
from gatewayd_hooks.testing.targets.model_routing import ModelRouterConformance

AttemptVerdict = Callable[..., list[str]]
Catches = Callable[..., bool]


@pytest.mark.parametrize(
    "name", ["fallback", "split", "cost", "complexity", "cascade", "edge_cloud"]
)
def test_the_built_in_ones_pass(verdict: AttemptVerdict, name: str) -> None:
    assert verdict(ModelRouterConformance, Kind.MODEL_ROUTER, name) == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def changed(**fields: Any) -> Callable[[Any], None]:
    """Changes fields of each decision."""

    def broken(router: Any) -> None:
        route = router.route

        def replaced(request: RoutedRequest, candidates: Sequence[CandidateView]) -> Any:
            decision = route(request, candidates)
            made = {name: make(request, decision) for name, make in fields.items()}
            return dataclasses.replace(decision, **made)

        router.route = replaced

    return broken


def sorts_what_it_is_given(router: Any) -> None:
    route = router.route

    def broken(request: RoutedRequest, candidates: list[CandidateView]) -> Any:
        candidates.sort(key=lambda one: one.name)
        return route(request, candidates)

    router.route = broken


def judges_with_the_text(router: Any) -> None:
    judge = router.judge

    def broken(attempt: AttemptView) -> Any:
        return dataclasses.replace(judge(attempt), reason=attempt.text[:200])

    router.judge = broken


def judges_with_a_number(router: Any) -> None:
    router.judge = lambda attempt: 1.0


def has_no_judge(router: Any) -> None:
    router.judge = None


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("split", changed(order=lambda request, decision: decision.order[:0])),
        ("split", changed(order=lambda request, decision: [*decision.order, decision.order[0]])),
        ("cost", changed(order=lambda request, decision: ["unknown"])),
        ("fallback", changed(order=lambda request, decision: list(reversed(decision.order)))),
        ("split", changed(scores=lambda request, decision: {decision.order[0]: math.nan})),
        ("complexity", changed(reason=lambda request, decision: "for " + request.text[:150])),
        ("fallback", changed(retry_on=lambda request, decision: ["everything"])),
        ("fallback", sorts_what_it_is_given),
        ("cascade", judges_with_the_text),
        ("cascade", judges_with_a_number),
        ("cascade", has_no_judge),
    ],
)
def test_a_broken_one_fails(catches: Catches, name: str, broken: Callable[[Any], None]) -> None:
    assert catches(ModelRouterConformance, Kind.MODEL_ROUTER, name, broken)
