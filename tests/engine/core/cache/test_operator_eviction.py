"""Operator eviction: pages of a tenant, a page and its descendants, or all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import Evict, PinPrefix
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_evict_lru.strategy import Lru
from gatewayd_hooks.caching import Match
from tests.engine.core.conftest import Harness, MakeEngine
from tests.engine.core.tiered_engines import host

pytestmark = pytest.mark.usefixtures("small_model")

SHARED = [300 + i * 7 % 3001 for i in range(64)]
"""Four pages."""


def evict(engine: Harness, page: int | None = None, tenant: str | None = None) -> tuple[int, int]:
    found = engine.core.operator.evict(Evict(1, page, tenant))
    engine.core.check()
    assert not found.left
    return found.pages, found.kept


def answer(engine: Harness, prompt: list[int], **fields: Any) -> int:
    """Serve a prompt; how many tokens of it were cached."""
    (one,) = engine.submit(prompt, max_tokens=1, **fields)
    found = engine.run()[one].admitted
    assert found is not None
    return found.cached_tokens


def page_of(engine: Harness, prompt: list[int], at: int, salt: bytes = b"") -> int:
    """Which page holds the beginning of a prompt, by its place."""
    plan = engine.core.strategies.plan
    assert plan.begin is not None
    assert plan.match is not None
    found = plan.match(plan.begin(np.array(prompt, np.int32), salt))
    pages = found.pages if isinstance(found, Match) else found
    return int(pages[at])


@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("eviction", ["lru", "lfu", "cost", "retention"])
def test_a_page_goes_with_all_that_is_behind_it(
    make_engine: MakeEngine, cache: str, eviction: str
) -> None:
    engine = make_engine(
        prefix_cache=StrategyChoice(cache), eviction=StrategyChoice(eviction), kv_pages=64
    )
    left, right = [*SHARED, *range(10, 58)], [*SHARED, *range(1010, 1042)]
    answer(engine, left)
    answer(engine, right)
    before = engine.core.stats
    # Behind the second page: two shared ones, three of one prompt and two of the other.
    assert evict(engine, page_of(engine, left, 1)) == (1 + 2 + 3 + 2, 0)
    after = engine.core.stats
    assert after.free_pages == before.free_pages + 8
    assert after.cached_pages == before.cached_pages - 8
    assert answer(engine, [*left, 5]) == 16
    # A branch alone leaves the other one.
    answer(engine, [*right, 5])
    assert evict(engine, page_of(engine, left, 4))[0] in (3, 4)  # and the tail behind it
    assert answer(engine, [*left, 5]) == 64
    assert answer(engine, [*right, 5]) == 96


def test_pages_in_use_stay_and_are_counted(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_pages=64)
    answer(engine, [*SHARED, *range(10, 58)])
    (one,) = engine.submit([*SHARED, 7], max_tokens=6, ignore_eos=True)
    engine.step()
    assert evict(engine, page_of(engine, SHARED, 0)) == (3, 4)
    engine.run()
    assert answer(engine, [*SHARED, 9]) == 64
    alone = make_engine(kv_pages=64)
    assert engine.answers[one].tokens == alone.generate([*SHARED, 7], max_tokens=6, ignore_eos=True)


@pytest.mark.usefixtures("depth")
def test_all_of_a_tenant_goes_and_nothing_of_others(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_pages=64)
    for tenant in ("ant", "bee"):
        # A client may salt its prompts, so that one tenant has several salts.
        for salt in (b"1", b"2"):
            answer(engine, SHARED, tenant=tenant, salt=tenant.encode() + salt)
    had = engine.core.stats.cached_pages
    assert evict(engine, tenant="ant") == (had // 2, 0)
    assert evict(engine, tenant="ant") == (0, 0)
    assert answer(engine, [*SHARED, 5], tenant="ant", salt=b"ant1") == 0
    assert answer(engine, [*SHARED, 5], tenant="bee", salt=b"bee2") == 64
    evict(engine)
    assert engine.core.stats.cached_pages == 0
    assert engine.core.stats.free_pages == 64


def test_what_is_evicted_is_not_kept_in_a_tier(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_pages=64, kv_tiers=[host("4MiB")])
    answer(engine, SHARED)
    tiered = engine.core._placement.offload._tiered
    assert tiered is not None
    assert tiered._key_of
    evict(engine)
    assert not tiered._key_of, "what comes to these pages is not kept under their names"
    assert answer(engine, [*SHARED, 5]) == 0
    assert engine.core.stats.tier_hits.get("host", 0) == 0


def test_a_pinned_page_goes_too_and_its_pin_with_it(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_pages=24, eviction=StrategyChoice("retention"))
    answer(engine, SHARED)
    page = page_of(engine, SHARED, 2)
    assert engine.core.pin(PinPrefix(1, b"", 60.0, page=page)) == 48
    for i in range(12):
        answer(engine, [3500 + i, *range(20, 114)])
    assert answer(engine, [*SHARED, 5]) == 48, "it outlived what is newer, and what is behind it"
    assert evict(engine, page_of(engine, SHARED, 0))[0] >= 4
    answer(engine, SHARED)
    for i in range(12):
        answer(engine, [3600 + i, *range(20, 114)])
    assert answer(engine, [*SHARED, 5]) == 0, "the pin is gone"
    assert engine.core.pin(PinPrefix(1, b"", 60.0, page=10_000)) == 0


def test_many_go_in_parts(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatewayd_engine.core.operator_actions._MOST_EVICTED", 3)
    engine = make_engine(kv_pages=64)
    answer(engine, [*SHARED, *range(10, 58)])
    page = page_of(engine, SHARED, 0)
    left: list[int] = []
    while not left or left[-1]:
        before = engine.core.stats.free_pages
        found = engine.core.operator.evict(Evict(1, page))
        assert engine.core.stats.free_pages == before + found.pages
        left.append(found.left)
    assert left == [4, 1, 0]
    assert engine.core.stats.cached_pages == 0


def test_what_is_not_cached_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_pages=64)
    for page in (3, 64, -1):
        with pytest.raises(RequestRejected, match=f"page {page} is not cached"):
            evict(engine, page)


def test_an_eviction_that_gives_up_only_what_it_has_chosen_is_left_alone(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Lru, "drop")
    engine = make_engine(kv_pages=64)
    answer(engine, SHARED)
    with pytest.raises(RequestRejected, match="only pages that it has chosen"):
        evict(engine)
    assert answer(engine, [*SHARED, 5]) == 64


def test_an_eviction_that_fails_at_it_is_replaced_and_all_goes(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, page: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("gatewayd_evict_lfu.strategy.Lfu.drop", broken)
    engine = make_engine(kv_pages=64, eviction=StrategyChoice("lfu"))
    answer(engine, SHARED)
    assert evict(engine)[0] >= 4
    assert engine.core.stats.faults == 1
    assert engine.core.stats.free_pages == 64
