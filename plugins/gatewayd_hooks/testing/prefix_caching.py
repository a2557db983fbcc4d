"""Conformance tests of prefix caches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.caching import Match, PrefixCacheStrategy
from gatewayd_hooks.helpers.handover import hand_over
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.samples.campaign import campaign
from gatewayd_hooks.testing.samples.states import refuses_strange_states
from gatewayd_hooks.testing.simulation.fake_pages import FakePages

# Names that are repeated are drawn more often.
_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "place", "place", "compute", "compute", "compute", "end", "evict", "forget"]
        ),
        st.integers(0, 2**10),
        st.integers(0, 2**12),
    ),
    min_size=30,
    max_size=80,
)
_SALTED = st.tuples(
    st.binary(max_size=12), st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=6)
)


def _ids(*tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


def _full(found: Sequence[int] | Match, page_size: int = 2) -> list[int]:
    """Return the full pages of a match."""
    if isinstance(found, Match):
        return list(found.pages[: found.num_tokens // page_size])
    return list(found)


def _tokens(found: Sequence[int] | Match, page_size: int = 2) -> int:
    """Return the number of tokens of a match."""
    return found.num_tokens if isinstance(found, Match) else len(found) * page_size


class PrefixCacheConformance:
    """Subclass it and build your cache in ``make``."""

    def make(self) -> PrefixCacheStrategy[Any]:
        """Build the cache; the tests open and close it."""
        raise NotImplementedError("return your prefix cache, built and not opened")

    @contextmanager
    def opened(self, page_size: int = 2, num_pages: int = 16) -> Iterator[PrefixCacheStrategy[Any]]:
        """Yield an opened cache."""
        cache = self.make()
        try:
            cache.open(engine_resources(page_size=page_size, num_pages=num_pages))
            yield cache
        finally:
            cache.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(page_size=st.integers(1, 3), events=_EVENTS)
    def test_it_finds_the_longest_cached_prefix_and_nothing_else(
        self, page_size: int, events: Sequence[tuple[str, int, int]]
    ) -> None:
        """Compared with a dictionary of whole prefixes, under any order of events."""
        with self.opened(page_size) as cache:
            pages = FakePages(cache, engine_resources(page_size=page_size, num_pages=16))
            for event in events:
                pages.act(*event)

    @campaign
    @given(page_size=st.integers(1, 3), before=_EVENTS, after=_EVENTS)
    def test_imported_state_finds_the_same_pages(
        self,
        page_size: int,
        before: Sequence[tuple[str, int, int]],
        after: Sequence[tuple[str, int, int]],
    ) -> None:
        """Also for sequences that had begun; a cache without exported state passes."""
        with self.opened(page_size) as heir:
            with self.opened(page_size) as cache:
                pages = FakePages(cache, engine_resources(page_size=page_size, num_pages=16))
                for event in before:
                    pages.act(*event)
                if not hand_over(cache, heir):
                    return
            pages.follow(heir)
            for event in after:
                pages.act(*event)

    def test_a_state_of_another_form_is_refused(self) -> None:
        with self.opened() as cache:
            trail = cache.begin(_ids(1, 2, 3, 4), b"")
            cache.insert(trail, _ids(1, 2, 3, 4), _ids(1, 2))
            assert refuses_strange_states(cache)
            assert _full(cache.match(trail)) == [1, 2], "and nothing has changed"

    @campaign
    @given(first=_SALTED, second=_SALTED)
    def test_sequences_with_different_salts_never_share(
        self, first: tuple[bytes, list[int]], second: tuple[bytes, list[int]]
    ) -> None:
        """Also where salt and tokens together are the same bytes, split elsewhere."""
        (salt, tokens), (other_salt, other_tokens) = first, second
        # Bytes of the salt read as tokens: a key that just concatenates both would be the same.
        swapped = np.frombuffer((salt + _ids(*tokens).tobytes())[: 4 * len(tokens)], np.int32)
        with self.opened(page_size=1) as cache:
            trail = cache.begin(_ids(*tokens), salt)
            cache.insert(trail, _ids(*tokens), np.arange(len(tokens), dtype=np.int32))
            for other_salt_, ids in (
                (salt + b"\x00", _ids(*tokens)),
                (salt + _ids(*tokens[:1]).tobytes(), _ids(*tokens[1:])),
                (b"", swapped) if salt else (b"x", swapped),
                (other_salt + b"!" if other_salt == salt else other_salt, _ids(*other_tokens)),
            ):
                assert _tokens(cache.match(cache.begin(ids, other_salt_))) == 0

    def test_a_page_is_found_only_after_its_whole_prefix(self) -> None:
        with self.opened() as cache:
            trail = cache.begin(_ids(1, 2, 3, 4, 5), b"")
            assert set(cache.insert(trail, _ids(1, 2, 3, 4), _ids(7, 8))) == {7, 8}
            for prompt, pages in (
                ((1, 2, 3, 4), [7, 8]),
                ((1, 2, 3), [7]),
                ((1, 2, 3, 9), [7]),
                ((9, 2, 3, 4), []),
                ((3, 4), []),
                ((1,), []),
            ):
                assert _full(cache.match(cache.begin(_ids(*prompt), b""))) == pages

    def test_pages_of_generated_tokens_are_found(self) -> None:
        with self.opened() as cache:
            trail = cache.begin(_ids(1), b"")
            cache.insert(trail, _ids(1, 2, 3, 4), _ids(5, 6))
            assert _full(cache.match(cache.begin(_ids(1, 2, 3, 4, 5), b""))) == [5, 6]

    def test_a_second_page_with_the_same_content_is_not_inserted(self) -> None:
        with self.opened() as cache:
            for pages, taken in ((_ids(1, 2), {1, 2}), (_ids(3, 4), set()), (_ids(1, 5), set())):
                trail = cache.begin(_ids(1, 2, 3, 4), b"")
                assert set(cache.insert(trail, _ids(1, 2, 3, 4), pages)) == taken
            assert _full(cache.match(cache.begin(_ids(1, 2, 3, 4), b""))) == [1, 2]

    def test_a_removed_page_is_not_found_and_can_be_inserted_again(self) -> None:
        with self.opened() as cache:
            trail = cache.begin(_ids(1, 2, 3, 4), b"")
            cache.insert(trail, _ids(1, 2, 3, 4), _ids(1, 2))
            cache.forget(2)
            assert _full(cache.match(trail)) == [1]
            cache.forget(2)
            assert set(cache.insert(trail, _ids(1, 2, 3, 4), _ids(1, 2))) == {2}
            assert _full(cache.match(trail)) == [1, 2]

    def test_a_copied_trail_is_independent(self) -> None:
        with self.opened() as cache:
            trail = cache.begin(_ids(1, 2, 3, 4, 5), b"")
            cache.insert(trail, _ids(1, 2, 3, 4), _ids(1, 2))
            other = copy.copy(trail)
            cache.insert(trail, _ids(1, 2, 3, 4, 5, 6), _ids(1, 2, 3))
            cache.insert(other, _ids(1, 2, 3, 4, 5, 7), _ids(1, 2, 4))
            for last, page in ((6, 3), (7, 4)):
                found = cache.match(cache.begin(_ids(1, 2, 3, 4, 5, last), b""))
                assert _full(found) == [1, 2, page]

    def test_a_repeated_sequence_with_other_pages_fills_the_gap(self) -> None:
        with self.opened() as cache:
            trail = cache.begin(_ids(1, 2, 3, 4, 5, 6), b"")
            cache.insert(trail, _ids(1, 2, 3, 4, 5, 6), _ids(1, 2, 3))
            cache.forget(2)
            assert _full(cache.match(trail)) == [1], "nothing is found behind a gap"
            taken = cache.insert(trail, _ids(1, 2, 3, 4), _ids(1, 9))
            assert list(taken) == [9]
            assert _full(cache.match(trail)) == [1, 9, 3]
