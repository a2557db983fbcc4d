"""Prefix cache conformance: rejects matches of wrong pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_hooks.caching import Match
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.prefix_caching import PrefixCacheConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(PrefixCacheConformance, Kind.PREFIX_CACHE, "hash") == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def ignores_the_salt(cache: Any) -> None:
    begin = cache.begin
    cache.begin = lambda tokens, salt: begin(tokens, b"")


def ignores_forget(cache: Any) -> None:
    cache.forget = lambda page: None


def finds_a_page_less(cache: Any) -> None:
    match = cache.match
    cache.match = lambda trail: match(trail)[:-1]


def finds_them_backward(cache: Any) -> None:
    match = cache.match
    cache.match = lambda trail: match(trail)[::-1]


def takes_every_page(cache: Any) -> None:
    insert = cache.insert

    def broken(trail: Any, tokens: Any, pages: Any) -> list[int]:
        insert(trail, tokens, pages)
        return list(pages.tolist())

    cache.insert = broken


def never_takes_a_page_again(cache: Any) -> None:
    insert = cache.insert
    seen: set[int] = set()

    def broken(trail: Any, tokens: Any, pages: Any) -> list[int]:
        taken = [page for page in insert(trail, tokens, pages) if page not in seen]
        seen.update(taken)
        return taken

    cache.insert = broken


def knows_a_page_by_its_own_tokens_alone(cache: Any) -> None:
    cache._digest = lambda data: bytes(data[-8:])


def looks_at_new_pages_only(cache: Any) -> None:
    insert = cache.insert
    told: dict[int, int] = {}

    def broken(trail: Any, tokens: Any, pages: Any) -> list[int]:
        first = told.get(id(trail), 0)
        told[id(trail)] = len(pages)
        return [page for page in insert(trail, tokens, pages) if page in pages[first:]]

    cache.insert = broken


class Unique(list[bytes]):
    """A trail of which there is only one."""

    def __copy__(self) -> Unique:
        return self


def keeps_one_trail_for_all_answers(cache: Any) -> None:
    begin = cache.begin
    cache.begin = lambda tokens, salt: Unique(begin(tokens, salt))


@pytest.mark.parametrize(
    "broken",
    [
        ignores_the_salt,
        ignores_forget,
        finds_a_page_less,
        finds_them_backward,
        takes_every_page,
        never_takes_a_page_again,
        knows_a_page_by_its_own_tokens_alone,
        looks_at_new_pages_only,
        keeps_one_trail_for_all_answers,
    ],
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(PrefixCacheConformance, Kind.PREFIX_CACHE, "hash", broken)


# The same for a match that counts tokens.


def changes_the_match(change: Callable[[Match], Match]) -> Callable[[Any], None]:
    """Break a cache by what it finds."""

    def broken(cache: Any) -> None:
        match = cache.match
        cache.match = lambda trail: change(match(trail))

    return broken


def full_pages_alone(found: Match) -> Match:
    whole = found.num_tokens // 2
    return Match(found.pages[:whole], 2 * whole)


WITHIN_A_PAGE = {
    "finds a token more": lambda found: Match(found.pages, found.num_tokens + 1),
    "finds a token less": lambda found: Match(found.pages, max(0, found.num_tokens - 1)),
    "finds full pages alone": full_pages_alone,
    "ends in another page": lambda found: Match([*found.pages[:-1], 0], found.num_tokens),
    "leaves the last page out": lambda found: Match(found.pages[:-1], found.num_tokens),
}


@pytest.mark.parametrize("change", WITHIN_A_PAGE.values(), ids=WITHIN_A_PAGE)
def test_a_match_that_is_wrong_within_a_page_fails(
    catches: Catches, change: Callable[[Match], Match]
) -> None:
    broken = changes_the_match(change)
    assert catches(PrefixCacheConformance, Kind.PREFIX_CACHE, "radix", broken)


def test_a_tree_that_keeps_its_holes_fails(catches: Catches) -> None:
    def broken(cache: Any) -> None:
        cache._fill = lambda node, pages: []

    assert catches(PrefixCacheConformance, Kind.PREFIX_CACHE, "radix", broken)
