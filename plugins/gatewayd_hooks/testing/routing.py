"""Conformance tests of routers, for any policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.routing import ReplicaView, RouteRequest, RouterStrategy
from gatewayd_hooks.testing.samples.campaign import campaign

_REPLICAS = 6
_REQUESTS = st.builds(
    RouteRequest,
    prompt=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=80),
    salt=st.binary(max_size=8),
    priority=st.integers(0, 2),
)
_READY = st.lists(
    st.builds(
        ReplicaView,
        index=st.integers(0, _REPLICAS - 1),
        num_running=st.integers(0, 256),
        num_waiting=st.integers(0, 10_000),
        queued_tokens=st.integers(0, 10**6),
        kv_usage=st.floats(0, 1),
    ),
    min_size=1,
    max_size=_REPLICAS,
    unique_by=lambda view: view.index,
).map(lambda views: sorted(views, key=lambda view: view.index))
_TURNS = st.lists(st.tuples(_REQUESTS, _READY), min_size=1, max_size=20)


class RouterConformance:
    """Subclass it and build your router in ``make``."""

    def make(self) -> RouterStrategy:
        """Build the router; the tests open and close it."""
        raise NotImplementedError("return your router, built and not opened")

    @contextmanager
    def opened(self, num_replicas: int = _REPLICAS) -> Iterator[RouterStrategy]:
        """Yield an opened router."""
        router = self.make()
        try:
            router.open(GatewayResources(model="model", num_replicas=num_replicas))
            yield router
        finally:
            router.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(turns=_TURNS)
    def test_every_request_goes_to_one_of_the_ready_replicas(
        self, turns: Sequence[tuple[RouteRequest, Sequence[ReplicaView]]]
    ) -> None:
        """Replicas come and go between requests, and any of them may be the only one."""
        with self.opened() as router:
            for request, replicas in turns:
                assert router.route(request, replicas) in {view.index for view in replicas}

    @campaign
    @given(turns=_TURNS)
    def test_inputs_are_not_modified(
        self, turns: Sequence[tuple[RouteRequest, Sequence[ReplicaView]]]
    ) -> None:
        with self.opened() as router:
            for request, replicas in turns:
                prompt, views = list(request.prompt), list(replicas)
                router.route(request, replicas)
                assert request.prompt == prompt
                assert replicas == views

    def test_a_single_replica_serves_all_requests(self) -> None:
        with self.opened(1) as router:
            for load in range(20):
                view = ReplicaView(0, load, load, load * 100, min(1.0, load / 10))
                assert router.route(RouteRequest([load], b"", 1), [view]) == 0
