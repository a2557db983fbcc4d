"""KV tier conformance: rejects lost counts and lost bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.kv_tiers import KvTierConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(KvTierConformance, Kind.KV_TIER, "host") == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def keeps_no_copy(tier: Any) -> None:
    pages: dict[bytes, Any] = {}
    put = tier.put

    def broken(key: bytes, page: Any) -> Any:
        pages.setdefault(key, page)
        return put(key, page)

    tier.put = broken
    tier.get = lambda keys: [pages[key] for key in keys[: tier.find(keys)]]


def counts_what_does_not_lead(tier: Any) -> None:
    find = tier.find
    tier.find = lambda keys: sum(find([key]) for key in keys)


def writes_over_what_is_in_use(tier: Any) -> None:
    tier._memory = 4 * 96
    get = tier.get

    def broken(keys: Sequence[bytes]) -> Any:
        pages = get(keys)
        tier.release(keys)
        return pages

    tier.get = broken


def has_what_it_gave_up(tier: Any) -> None:
    tier._memory = 4 * 96
    find = tier.find
    known: set[bytes] = set()
    put = tier.put

    def broken(key: bytes, page: Any) -> Any:
        known.add(key)
        return put(key, page)

    tier.put = broken
    tier.find = lambda keys: max(
        find(keys), next((i for i, key in enumerate(keys) if key not in known), len(keys))
    )


def forgets_at_once_what_it_gives_up(tier: Any) -> None:
    tier._memory = 4 * 96
    put = tier.put

    def broken(key: bytes, page: Any) -> Any:
        given_up = put(key, page)
        for _, left in given_up:
            left[:] = 0
        return given_up

    tier.put = broken


@pytest.mark.parametrize(
    "broken",
    [
        keeps_no_copy,
        counts_what_does_not_lead,
        writes_over_what_is_in_use,
        has_what_it_gave_up,
        forgets_at_once_what_it_gives_up,
    ],
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(KvTierConformance, Kind.KV_TIER, "host", broken)
