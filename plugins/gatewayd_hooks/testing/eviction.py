"""Conformance tests of eviction strategies, for any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.caching import EvictionStrategy, PageOrigin
from gatewayd_hooks.helpers.handover import hand_over
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.samples.campaign import campaign
from gatewayd_hooks.testing.samples.states import refuses_strange_states

_PAGES = 12
# Names that are repeated are drawn more often.
_EVENTS = st.lists(
    st.tuples(st.sampled_from(["use", "use", "victim"]), st.integers(0, _PAGES - 1)), max_size=120
)
_ORIGINS = st.lists(
    st.tuples(
        st.sampled_from(
            ["come", "come", "release", "release", "reuse", "again", "pin", "drop", "victim"]
        ),
        st.integers(0, 1000),
        st.integers(0, 100),
        st.sampled_from([0.0, 1e-6, 3600.0]),
    ),
    max_size=80,
)


def _play(strategy: EvictionStrategy, events: Sequence[tuple[str, int]], cached: set[int]) -> None:
    """Apply uses and evictions of pages; ``cached`` is the expected set of evictable pages."""
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


def _drain(strategy: EvictionStrategy, cached: set[int]) -> None:
    drained = [strategy.victim() for _ in range(len(cached))]
    assert sorted(drained) == sorted(cached)
    assert len(strategy) == 0


class EvictionConformance:
    """Subclass it and build your strategy in ``make``."""

    def make(self) -> EvictionStrategy:
        """Build the strategy; the tests open and close it."""
        raise NotImplementedError("return your strategy, built and not opened")

    @contextmanager
    def opened(self, num_pages: int = _PAGES) -> Iterator[EvictionStrategy]:
        """Yield an opened strategy."""
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
    def test_only_released_pages_are_evicted_and_each_once(
        self, events: Sequence[tuple[str, int]]
    ) -> None:
        """Compared with a set; ``use`` releases a held page and reuses a cached one."""
        cached: set[int] = set()
        with self.opened() as strategy:
            _play(strategy, events, cached)
            _drain(strategy, cached)

    @campaign
    @given(before=_EVENTS, after=_EVENTS)
    def test_imported_state_evicts_the_same_pages(
        self, before: Sequence[tuple[str, int]], after: Sequence[tuple[str, int]]
    ) -> None:
        """Compared with a set; a strategy without exported state passes."""
        cached: set[int] = set()
        with self.opened() as heir:
            with self.opened() as strategy:
                _play(strategy, before, cached)
                if not hand_over(strategy, heir):
                    return
            assert len(heir) == len(cached), "all its pages"
            _play(heir, after, cached)
            _drain(heir, cached)

    def test_a_state_of_another_form_is_refused(self) -> None:
        with self.opened() as strategy:
            strategy.release(3)
            assert refuses_strange_states(strategy)
            assert len(strategy) == 1, "and nothing has changed"
            assert strategy.victim() == 3

    def test_with_nothing_to_evict_a_lookup_error_is_raised(self) -> None:
        with self.opened() as strategy:
            with pytest.raises(LookupError):
                strategy.victim()
            strategy.release(3)
            strategy.reuse(3)
            with pytest.raises(LookupError):
                strategy.victim()

    def test_every_page_of_a_large_pool_is_evicted_once(self) -> None:
        num_pages = 5000
        with self.opened(num_pages) as strategy:
            for page in range(num_pages):
                strategy.release(page)
            assert len(strategy) == num_pages
            victims = [strategy.victim() for _ in range(num_pages)]
            assert sorted(victims) == list(range(num_pages))

    @campaign
    @given(events=_ORIGINS)
    def test_each_page_is_evicted_once_after_any_events(
        self, events: Sequence[tuple[str, int, int, float]]
    ) -> None:
        """Prefixes are cached, reused, retained, pinned, dropped and evicted in any order."""
        free, held, cached = list(range(_PAGES)), list[int](), set[int]()
        with self.opened() as strategy:
            on_cached, pin = getattr(strategy, "cached", None), getattr(strategy, "pin", None)
            drop = getattr(strategy, "drop", None)
            for event, which, priority, seconds in events:
                if event == "come" and free:
                    page = free.pop(which % len(free))
                    # Any page but the new one may be its parent, in any order of eviction.
                    parents = [-1, *held, *cached]
                    origin = PageOrigin(
                        parents[which % len(parents)], which % 5, b"", priority, seconds
                    )
                    if on_cached is not None:
                        on_cached(page, origin)
                    held.append(page)
                elif event == "again" and held and on_cached is not None:
                    on_cached(held[which % len(held)], PageOrigin(-1, 0, b"", priority, seconds))
                elif event == "release" and held:
                    page = held.pop(which % len(held))
                    strategy.release(page)
                    cached.add(page)
                elif event == "reuse" and cached:
                    page = sorted(cached)[which % len(cached)]
                    strategy.reuse(page)
                    cached.remove(page)
                    held.append(page)
                elif event == "pin" and pin is not None:
                    pin(which % _PAGES, seconds)
                elif event == "drop" and cached and drop is not None:
                    page = sorted(cached)[which % len(cached)]
                    drop(page)
                    cached.remove(page)
                    free.append(page)
                elif event == "victim" and cached:
                    page = strategy.victim()
                    assert page in cached, f"page {page} may not be evicted"
                    cached.remove(page)
                    free.append(page)
                assert len(strategy) == len(cached)
            drained = [strategy.victim() for _ in range(len(cached))]
            assert sorted(drained) == sorted(cached), "every page is evicted in the end"

    def test_a_prefix_is_evictable_while_its_last_page_is_in_use(self) -> None:
        with self.opened() as strategy:
            on_cached = getattr(strategy, "cached", None)
            for page in range(3):
                if on_cached is not None:
                    on_cached(page, PageOrigin(page - 1, page))
            strategy.release(1)
            strategy.release(0)
            assert {strategy.victim(), strategy.victim()} == {0, 1}

    def test_pinned_pages_and_their_prefixes_are_evicted_last(self) -> None:
        with self.opened() as strategy:
            on_cached, pin = getattr(strategy, "cached", None), getattr(strategy, "pin", None)
            if pin is None:
                return
            pinned = getattr(strategy, "pinned", None)
            for page in range(6):
                if on_cached is not None:
                    on_cached(page, PageOrigin(page - 1 if page % 3 else -1, page % 3))
            pin(1, 3600.0)
            # As an engine does, the ends of prefixes first.
            for page in (2, 1, 0, 5, 4, 3):
                strategy.release(page)
            pin(5, 3600.0)
            pin(5, 0.0)
            if on_cached is not None and pinned is not None:
                assert sorted(pinned()) == [0, 1], "it lists pinned pages"
            order = [strategy.victim() for _ in range(6)]
            assert 1 in order[-2:], "pinned"
            assert on_cached is None or set(order[-2:]) == {0, 1}, "and what comes before it"
            assert pinned is None or not list(pinned()), "and no evicted page"
            for page in reversed(order):
                strategy.release(page)
            # Were the pins still in force, both pages would be among the last two.
            first = {strategy.victim() for _ in range(4)}
            assert first & set(order[-2:]), "a pin ends when its page is evicted"

    def test_a_dropped_page_starts_without_history(self) -> None:
        with self.opened() as strategy:
            on_cached, pin = getattr(strategy, "cached", None), getattr(strategy, "pin", None)
            drop = getattr(strategy, "drop", None)
            if drop is None:
                return
            for page in (0, 1, 2):
                if on_cached is not None:
                    on_cached(page, PageOrigin(-1, 0))
            for _ in range(5):
                strategy.release(0)
                strategy.reuse(0)
            for page in (0, 1, 2):
                strategy.release(page)
            if pin is not None:
                pin(0, 3600.0)
            drop(0)
            assert len(strategy) == 2
            if on_cached is not None:
                on_cached(0, PageOrigin(-1, 0))
            for page in (2, 1):
                strategy.reuse(page)
            for page in (0, 1, 2):
                strategy.release(page)
            assert strategy.victim() == 0, "neither its uses nor its pin are remembered"

    def test_unpinning_a_page_keeps_prefixes_of_other_pinned_pages(self) -> None:
        with self.opened() as strategy:
            on_cached, pin = getattr(strategy, "cached", None), getattr(strategy, "pin", None)
            if on_cached is None or pin is None:
                return
            for page, parent in enumerate((-1, 0, 1, 1, -1, 4)):
                on_cached(page, PageOrigin(parent, 0))
            for page in (3, 2, 1, 0, 5, 4):
                strategy.release(page)
            for page in (2, 3):
                pin(page, 3600.0)
            pin(3, 0.0)
            order = [strategy.victim() for _ in range(6)]
            assert set(order[-3:]) == {0, 1, 2}, "pinned, and what comes before it"
