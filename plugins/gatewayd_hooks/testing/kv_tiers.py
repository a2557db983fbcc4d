"""Conformance tests of KV tiers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatewayd_hooks.kv_tiers import KEY_BYTES, KvTierStrategy
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.samples.campaign import campaign

_PAGE_BYTES = 96
_PATIENCE = 20.0
_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "get", "release", "find"]),
        st.integers(0, 9),
        st.integers(1, 5),
    ),
    min_size=10,
    max_size=60,
)


def _key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def _page(number: int) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, _PAGE_BYTES, np.uint8)


def _keys(first: int, count: int) -> list[bytes]:
    return [_key(number) for number in range(first, first + count)]


class KvTierConformance:
    """Subclass it and build your strategy in ``make``."""

    def make(self) -> KvTierStrategy:
        """Build the strategy; the tests open and close it, and make many."""
        raise NotImplementedError("return your strategy, built and not opened")

    @contextmanager
    def opened(self) -> Iterator[KvTierStrategy]:
        """Yield an opened tier."""
        strategy = self.make()
        try:
            strategy.open(engine_resources(page_bytes=_PAGE_BYTES))
            yield strategy
        finally:
            strategy.close()

    @staticmethod
    def at_hand(strategy: KvTierStrategy, keys: Sequence[bytes]) -> list[NDArray[np.uint8]]:
        """Return the result of ``get`` once all pages were fetched."""
        fetch, ready = getattr(strategy, "fetch", None), getattr(strategy, "ready", None)
        if fetch is not None and ready is not None:
            deadline = time.monotonic() + _PATIENCE
            # A tier may lose pages meanwhile, so both are asked again.
            while ready(keys) < strategy.find(keys):
                assert time.monotonic() < deadline, "pages were fetched but never became ready"
                fetch(keys)
                time.sleep(0.0005)
        return list(strategy.get(keys))

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    def test_a_loaded_page_is_an_exact_copy(self) -> None:
        with self.opened() as strategy:
            given_ = _page(1)
            assert len(strategy) == 0
            assert strategy.find([_key(1)]) == 0
            assert len(strategy.put(_key(1), given_)) == 0
            # The engine reuses the page at once.
            given_[:] = 0
            assert strategy.find([_key(1)]) == 1
            (page,) = self.at_hand(strategy, [_key(1)])
            assert page.dtype == np.uint8
            assert page.shape == (_PAGE_BYTES,)
            assert np.array_equal(page, _page(1))
            strategy.release([_key(1)])
            assert len(strategy) == 1

    def test_only_leading_pages_are_found(self) -> None:
        with self.opened() as strategy:
            for number in (1, 2, 4):
                strategy.put(_key(number), _page(number))
            assert strategy.find(_keys(1, 4)) == 2
            assert strategy.find(_keys(3, 2)) == 0
            assert strategy.find([]) == 0
            assert len(self.at_hand(strategy, _keys(1, 4))) == 2
            assert len(self.at_hand(strategy, _keys(3, 2))) == 0

    def test_a_stored_page_is_not_stored_twice(self) -> None:
        with self.opened() as strategy:
            for _ in range(3):
                assert len(strategy.put(_key(1), _page(1))) == 0
            assert len(strategy) == 1

    @campaign
    @given(events=_EVENTS)
    def test_pages_are_unchanged_after_any_calls(
        self, events: Sequence[tuple[str, int, int]]
    ) -> None:
        """Compared with an unbounded dict: a tier may have lost a page, not changed it."""
        known: set[int] = set()
        pinned: list[tuple[list[bytes], list[NDArray[np.uint8]], int]] = []
        with self.opened() as strategy:
            for event, first, count in events:
                keys = _keys(first, count)
                if event == "put":
                    before = len(strategy)
                    evicted = strategy.put(_key(first), _page(first))
                    for key, page in evicted:
                        number = int.from_bytes(key, "big")
                        assert number in known
                        assert np.array_equal(page, _page(number)), "evicted other bytes"
                        assert strategy.find([key]) == 0, "still has a page that it evicted"
                    # Fewer is allowed: a tier may lose a page at any time.
                    assert len(strategy) <= before + 1 - len(evicted)
                    known.add(first)
                elif event == "get":
                    found = strategy.find(keys)
                    pages = self.at_hand(strategy, keys)
                    assert len(pages) <= found
                    pinned.append((keys[: len(pages)], pages, first))
                elif event == "release" and pinned:
                    keys, _, _ = pinned.pop(first % len(pinned))
                    strategy.release(keys)
                else:
                    found = strategy.find(keys)
                    assert 0 <= found <= count
                    assert set(range(first, first + found)) <= known
                for _, pages, number in pinned:
                    for i, page in enumerate(pages):
                        assert np.array_equal(page, _page(number + i)), "a page changed in use"
            counts = Counter(key for keys, _, _ in pinned for key in keys)
            for key, count in counts.items():
                for _ in range(count):
                    strategy.release([key])

    def test_pages_that_are_handed_over_are_complete(self) -> None:
        with self.opened() as strategy:
            for number in range(20):
                strategy.put(_key(number), _page(number))
            leave, keep = getattr(strategy, "leave", None), getattr(strategy, "keep", None)
            if leave is not None:
                left = list(leave())
                assert len({key for key, _ in left}) == len(left) == len(strategy)
                for key, page in left:
                    assert np.array_equal(page, _page(int.from_bytes(key, "big")))
            if keep is not None:
                given_ = range(15, 25)
                keep(((_key(n), _page(n)) for n in given_), _PATIENCE)
                for number in [n for n in given_ if strategy.find([_key(n)])]:
                    (page,) = self.at_hand(strategy, [_key(number)])
                    assert np.array_equal(page, _page(number))
                    strategy.release([_key(number)])

    def test_evicted_pages_stay_valid_until_the_next_call(self) -> None:
        with self.opened() as strategy:
            for number in range(300):
                for key, page in strategy.put(_key(number), _page(number)):
                    assert np.array_equal(page, _page(int.from_bytes(key, "big")))
            has = [number for number in range(300) if strategy.find([_key(number)])]
            assert len(has) == len(strategy)
