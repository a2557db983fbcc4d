"""Conformance tests of residency strategies, for any policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.targets.residency import ResidencyStrategy, ResidentModel
from gatewayd_hooks.testing.samples.campaign import campaign

_MODELS = st.lists(
    st.builds(
        ResidentModel,
        name=st.sampled_from(["a", "b", "c", "d", "e"]),
        memory=st.integers(0, 1 << 42),
        load_seconds=st.floats(0, 10_000),
        num_requests=st.integers(0, 10**9),
        request_rate=st.floats(0, 10**5),
        idle_seconds=st.floats(0, 10**7),
        num_running=st.integers(0, 10**4),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda model: model.name,
)
_TIMES = st.floats(0, 2e9)


class ResidencyConformance:
    """Subclass it and build your strategy in ``make``."""

    def make(self) -> ResidencyStrategy:
        """Build the strategy; the tests open and close it."""
        raise NotImplementedError("return your strategy, built and not opened")

    @contextmanager
    def opened(self) -> Iterator[ResidencyStrategy]:
        """Yield an opened strategy."""
        strategy = self.make()
        try:
            strategy.open(GatewayResources(model="model", num_replicas=1))
            yield strategy
        finally:
            strategy.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(turns=st.lists(st.tuples(_MODELS, _TIMES), min_size=1, max_size=20))
    def test_one_of_the_models_is_evicted(
        self, turns: Sequence[tuple[Sequence[ResidentModel], float]]
    ) -> None:
        """Until one is left, as for a model that needs the memory of all."""
        with self.opened() as strategy:
            for given_models, unix in turns:
                models = list(given_models)
                while models:
                    before = list(models)
                    name = strategy.evict("wanted", models, unix)
                    assert models == before
                    assert name in {model.name for model in models}
                    models = [model for model in models if model.name != name]

    @campaign
    @given(unix=_TIMES)
    def test_preferred_models_are_names(self, unix: float) -> None:
        with self.opened() as strategy:
            names = strategy.preferred(unix)
            assert all(isinstance(name, str) and name for name in names)
            assert len(set(names)) == len(names)
