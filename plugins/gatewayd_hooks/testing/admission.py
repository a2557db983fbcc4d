"""Conformance tests of admission strategies, for any policy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.admission import AdmissionRequest, AdmissionStrategy, Load
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.testing.samples.campaign import campaign

_REQUESTS = st.builds(
    AdmissionRequest,
    prompt_tokens=st.integers(1, 100_000),
    max_tokens=st.integers(1, 10_000),
    num_choices=st.integers(1, 8),
    priority=st.integers(0, 2),
    tenant=st.sampled_from(["", "a", "b"]),
    deadline=st.none() | st.floats(0.001, 1000),
)


@st.composite
def _loads(draw: st.DrawFn) -> Load:
    # Including the extremes: an empty queue, a full one, all of it of one tenant.
    requests = draw(st.sampled_from([0, 2047]) | st.integers(0, 2047))
    own = draw(st.sampled_from([0, requests]) | st.integers(0, requests))
    tokens = draw(st.integers(requests, 4_000_000)) if requests else 0
    return Load(
        requests=requests,
        tokens=tokens,
        limit_requests=2048,
        limit_tokens=4_000_000,
        urgent_tokens=draw(st.integers(0, tokens)),
        tenant_requests=own,
        tenant_tokens=draw(st.integers(0, tokens)) if own else 0,
        num_tenants=draw(st.integers(1, 50)),
        num_replicas=draw(st.integers(0, 8)),
    )


_TURNS = st.lists(
    st.tuples(_REQUESTS, _loads(), st.none() | st.floats(1e-4, 1e4)), min_size=1, max_size=40
)
_IDLE = Load(0, 0, 2048, 4_000_000, 0, 0, 0, 1, 1)


class AdmissionConformance:
    """Subclass it and build your admission in ``make``."""

    def make(self) -> AdmissionStrategy:
        """Build the admission; the tests open and close it."""
        raise NotImplementedError("return your admission, built and not opened")

    @contextmanager
    def opened(self) -> Iterator[AdmissionStrategy]:
        """Yield an opened admission strategy."""
        admission = self.make()
        try:
            admission.open(GatewayResources(model="model", num_replicas=1))
            yield admission
        finally:
            admission.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(turns=_TURNS)
    def test_every_refusal_has_a_reason_and_a_retry_time(
        self, turns: Sequence[tuple[AdmissionRequest, Load, float | None]]
    ) -> None:
        with self.opened() as admission:
            for request, load, seconds in turns:
                refusal = admission.admit(request, load)
                if refusal is not None:
                    assert re.fullmatch(r"[a-z0-9_]+", refusal.reason)
                    assert refusal.message
                    assert 0 < refusal.retry_after < math.inf
                    assert request.tenant or not refusal.is_tenants, "it has no tenant"
                    for offer in refusal.offers:
                        assert offer, "an offer must change something"
                elif seconds is not None:
                    admission.began(request, load, seconds)

    @campaign
    @given(turns=_TURNS, last=_REQUESTS)
    def test_an_idle_machine_admits_every_request(
        self,
        turns: Sequence[tuple[AdmissionRequest, Load, float | None]],
        last: AdmissionRequest,
    ) -> None:
        """Whatever came before: a strategy that refuses everything would never learn again."""
        with self.opened() as admission:
            for request, load, seconds in turns:
                if admission.admit(request, load) is None and seconds is not None:
                    admission.began(request, load, seconds)
            assert admission.admit(last, _IDLE) is None

    @campaign
    @given(turns=_TURNS)
    def test_the_same_events_give_the_same_decisions(
        self, turns: Sequence[tuple[AdmissionRequest, Load, float | None]]
    ) -> None:
        def play() -> list[bool]:
            answers = []
            with self.opened() as admission:
                for request, load, seconds in turns:
                    answers.append(admission.admit(request, load) is None)
                    if answers[-1] and seconds is not None:
                        admission.began(request, load, seconds)
            return answers

        assert play() == play()
