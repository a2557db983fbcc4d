"""What every eviction strategy must do, whatever its order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.caching import EvictionStrategy
from gatewayd_hooks.testing.campaign import campaign
from gatewayd_hooks.testing.fakes import engine_resources

_PAGES = 12
_EVENTS = st.lists(
    st.tuples(st.sampled_from(["use", "use", "victim"]), st.integers(0, _PAGES - 1)), max_size=120
)


class EvictionConformance:
    """Subclass it and build your strategy in ``make``."""

    def make(self) -> EvictionStrategy:
        """Build the strategy; the tests open and close it."""
        raise NotImplementedError("return your strategy, built and not opened")

    @contextmanager
    def opened(self, num_pages: int = _PAGES) -> Iterator[EvictionStrategy]:
        """A strategy in use."""
        strategy = self.make()
        try:
            strategy.open(engine_resources(num_pages=num_pages))
            yield strategy
        finally:
            strategy.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(events=_EVENTS)
    def test_only_released_pages_are_given_up_and_each_once(
        self, events: Sequence[tuple[str, int]]
    ) -> None:
        """Against a set; ``use`` releases a page that is held and reuses one that is cached."""
        cached: set[int] = set()
        with self.opened() as strategy:
            for event, page in events:
                if event == "victim":
                    if not cached:
                        with pytest.raises(LookupError):
                            strategy.victim()
                        continue
                    victim = strategy.victim()
                    assert victim in cached, f"page {victim} may not be evicted"
                    cached.remove(victim)
                elif page in cached:
                    strategy.reuse(page)
                    cached.remove(page)
                else:
                    strategy.release(page)
                    cached.add(page)
                assert len(strategy) == len(cached)
            drained = [strategy.victim() for _ in range(len(cached))]
            assert sorted(drained) == sorted(cached)
            assert len(strategy) == 0

    def test_with_nothing_to_evict_a_lookup_error_is_raised(self) -> None:
        with self.opened() as strategy:
            with pytest.raises(LookupError):
                strategy.victim()
            strategy.release(3)
            strategy.reuse(3)
            with pytest.raises(LookupError):
                strategy.victim()

    def test_every_page_of_a_large_pool_comes_out_once(self) -> None:
        num_pages = 5000
        with self.opened(num_pages) as strategy:
            for page in range(num_pages):
                strategy.release(page)
            assert len(strategy) == num_pages
            victims = [strategy.victim() for _ in range(num_pages)]
            assert sorted(victims) == list(range(num_pages))
