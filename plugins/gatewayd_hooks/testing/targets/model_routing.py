"""Conformance tests of model routers, for any policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.targets.model_routing import (
    FAILURES,
    AttemptVerdict,
    AttemptView,
    CandidateView,
    Decision,
    ModelRouterStrategy,
    RoutedRequest,
)
from gatewayd_hooks.testing.samples.campaign import campaign

_MOST_REASON = 200
_LONG = 20
_NAMES = ("small", "medium", "large", "remote")
_TEXTS = st.text(max_size=200) | st.sampled_from(
    ["", "hi", "Why? Prove it step by step: x^2 = 4", "```python\ndef f(): ...\n```", "?" * 50]
)
_REQUESTS = st.builds(
    RoutedRequest,
    request_id=st.text(min_size=1, max_size=20),
    text=_TEXTS,
    num_chars=st.integers(0, 10**7),
    num_messages=st.integers(0, 4096),
    num_tools=st.integers(0, 128),
    max_tokens=st.none() | st.integers(1, 2**62),
    priority=st.integers(0, 2),
    tenant=st.sampled_from(["default", "a", "b"]),
    key_id=st.sampled_from(["", "k1", "k2"]),
    conversation=st.text(max_size=20),
    needs_json=st.booleans(),
    needs_logprobs=st.booleans(),
)
_PRICES = st.none() | st.floats(0, 1e6)
_CANDIDATES = st.lists(
    st.builds(
        CandidateView,
        name=st.sampled_from(_NAMES),
        is_local=st.booleans(),
        is_ready=st.booleans(),
        queue_seconds=st.floats(0, 1e6),
        has_room=st.booleans(),
        input_price=_PRICES,
        output_price=_PRICES,
        quality=st.none() | st.floats(0, 1),
        context_length=st.none() | st.integers(1, 10**7),
    ),
    min_size=1,
    max_size=len(_NAMES),
    unique_by=lambda view: view.name,
)
_TURNS = st.lists(st.tuples(_REQUESTS, _CANDIDATES), min_size=1, max_size=10)
_ATTEMPTS = st.builds(
    AttemptView,
    target=st.sampled_from(_NAMES),
    text=_TEXTS,
    num_tokens=st.integers(0, 10**6),
    finish_reason=st.sampled_from(["stop", "length"]),
    mean_logprob=st.none() | st.floats(-9999, 0),
    others=st.lists(_TEXTS, max_size=5),
    request=_REQUESTS,
)


class ModelRouterConformance:
    """Subclass it and build your model router in ``make``."""

    def make(self) -> ModelRouterStrategy:
        """Build the model router; the tests open and close it."""
        raise NotImplementedError("return your model router, built and not opened")

    @contextmanager
    def opened(self, route: str = "route") -> Iterator[ModelRouterStrategy]:
        """Yield an opened model router."""
        router = self.make()
        try:
            router.open(GatewayResources(model=route, num_replicas=len(_NAMES)))
            yield router
        finally:
            router.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(turns=_TURNS)
    def test_a_decision_orders_candidates_each_once(
        self, turns: Sequence[tuple[RoutedRequest, Sequence[CandidateView]]]
    ) -> None:
        """Targets come and go between requests, and any of them may be the only one."""
        with self.opened() as router:
            for request, candidates in turns:
                _check(router.route(request, candidates), request, candidates)

    @campaign
    @given(turns=_TURNS)
    def test_a_ready_target_is_tried_before_those_that_are_not(
        self, turns: Sequence[tuple[RoutedRequest, Sequence[CandidateView]]]
    ) -> None:
        with self.opened() as router:
            for request, candidates in turns:
                ready = {one.name for one in candidates if one.is_ready}
                flags = [name in ready for name in router.route(request, candidates).order]
                assert flags == sorted(flags, reverse=True)

    @campaign
    @given(turns=_TURNS)
    def test_inputs_are_not_modified(
        self, turns: Sequence[tuple[RoutedRequest, Sequence[CandidateView]]]
    ) -> None:
        with self.opened() as router:
            for request, candidates in turns:
                views, fields = list(candidates), astuple(request)
                router.route(request, candidates)
                assert list(candidates) == views
                assert astuple(request) == fields

    @campaign
    @given(attempts=st.lists(_ATTEMPTS, min_size=1, max_size=10))
    def test_a_judge_returns_verdicts(self, attempts: Sequence[AttemptView]) -> None:
        """Only of routers that judge."""
        with self.opened() as router:
            judge = getattr(router, "judge", None)
            if judge is None:
                return
            for attempt in attempts:
                verdict = judge(attempt)
                assert isinstance(verdict, AttemptVerdict)
                assert math.isfinite(verdict.score or 0.0)
                _check_reason(verdict.reason, attempt.text)

    @campaign
    @given(request=_REQUESTS, candidates=_CANDIDATES)
    def test_a_decision_that_is_judged_has_a_judge(
        self, request: RoutedRequest, candidates: Sequence[CandidateView]
    ) -> None:
        with self.opened() as router:
            if router.route(request, candidates).is_judged:
                assert callable(getattr(router, "judge", None))


def _check(decision: Decision, request: RoutedRequest, candidates: Sequence[CandidateView]) -> None:
    names = [one.name for one in candidates]
    assert isinstance(decision, Decision)
    assert decision.order
    assert len(set(decision.order)) == len(decision.order)
    assert set(decision.order) <= set(names)
    assert set(decision.scores) <= set(names)
    assert all(map(math.isfinite, decision.scores.values()))
    assert set(decision.retry_on) <= set(FAILURES)
    assert decision.samples >= 0
    _check_reason(decision.reason, request.text)


def _check_reason(reason: str, text: str) -> None:
    """It is stored, which texts must not be."""
    assert 0 < len(reason) <= _MOST_REASON
    assert len(text) < _LONG or text not in reason
