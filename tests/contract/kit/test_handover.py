"""State handover conformance: rejects incomplete or foreign state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_hooks.helpers.handover import HandoverState
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.eviction import EvictionConformance
from gatewayd_hooks.testing.prefix_caching import PrefixCacheConformance
from gatewayd_hooks.testing.speculation import SpecControllerConformance

Catches = Callable[..., bool]
REFUSES = "test_a_state_of_another_form_is_refused"


def takes_anything(strategy: Any) -> None:
    strategy.import_state = lambda state: True


def forgets_a_page(eviction: Any) -> None:
    leave = eviction.export_state
    eviction.export_state = lambda: HandoverState(leave().form, leave().content[1:])


def makes_pages_up(eviction: Any) -> None:
    leave = eviction.export_state
    eviction.export_state = lambda: HandoverState(leave().form, (*leave().content, 99))


def keeps_its_key(cache: Any) -> None:
    leave = cache.export_state
    cache.export_state = lambda: HandoverState(leave().form, (b"another", *leave().content[1:]))


def shares_what_closing_empties(cache: Any) -> None:
    take = cache.import_state

    def broken(state: HandoverState) -> bool:
        taken = take(state)
        if taken:
            _, _, cache._page_of, cache._digest_of, _ = state.content
        return bool(taken)

    cache.import_state = broken


@pytest.mark.parametrize(
    ("conformance", "kind", "name", "broken", "fails"),
    [
        (EvictionConformance, Kind.EVICTION, "lru", takes_anything, REFUSES),
        (EvictionConformance, Kind.EVICTION, "lru", forgets_a_page, "evicts_the_same_pages"),
        (EvictionConformance, Kind.EVICTION, "lru", makes_pages_up, "evicts_the_same_pages"),
        (PrefixCacheConformance, Kind.PREFIX_CACHE, "radix", takes_anything, REFUSES),
        (PrefixCacheConformance, Kind.PREFIX_CACHE, "hash", keeps_its_key, "finds_the_same_pages"),
        (
            PrefixCacheConformance,
            Kind.PREFIX_CACHE,
            "hash",
            shares_what_closing_empties,
            "finds_the_same_pages",
        ),
        (SpecControllerConformance, Kind.SPEC_CONTROLLER, "adaptive", takes_anything, REFUSES),
    ],
)
def test_a_broken_one_fails(
    catches: Catches,
    conformance: type[Any],
    kind: Kind,
    name: str,
    broken: Callable[[Any], None],
    fails: str,
) -> None:
    assert catches(conformance, kind, name, broken, fails)
