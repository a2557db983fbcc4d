"""Routers: equal their definitions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from gatewayd_hooks.routing import ReplicaView, RouteRequest
from gatewayd_route_least_loaded.config import LeastLoadedConfig
from gatewayd_route_least_loaded.strategy import LeastLoaded
from gatewayd_route_prefix.config import PrefixConfig
from gatewayd_route_prefix.strategy import Prefix


def replica(
    index: int, running: int = 0, waiting: int = 0, tokens: int = 0, usage: float = 0.0
) -> ReplicaView:
    return ReplicaView(index, running, waiting, tokens, usage)


def request(prompt: Sequence[int], salt: bytes = b"") -> RouteRequest:
    return RouteRequest(prompt, salt, priority=1)


@pytest.mark.parametrize(
    ("replicas", "chosen"),
    [
        ([replica(3, running=5), replica(4, running=4), replica(7, running=6)], 4),
        ([replica(0, running=1, waiting=2), replica(1, running=2)], 1),
        ([replica(0, tokens=1024), replica(1, running=1)], 1),
        ([replica(0, tokens=511), replica(1, running=1)], 0),
        ([replica(0, running=2, usage=0.9), replica(1, running=2, usage=0.1)], 1),
        ([replica(2), replica(5)], 2),
        ([replica(6, running=99, tokens=10**6, usage=1.0)], 6),
    ],
)
def test_the_least_loaded_replica_serves(replicas: list[ReplicaView], chosen: int) -> None:
    router = LeastLoaded(LeastLoadedConfig())
    assert router.route(request([1, 2, 3]), replicas) == chosen


def test_how_much_a_queued_token_weighs_is_a_setting() -> None:
    replicas = [replica(0, tokens=100), replica(1, running=1)]
    chosen = [
        LeastLoaded(LeastLoadedConfig(tokens_per_sequence=weight)).route(request([1]), replicas)
        for weight in (50, 200)
    ]
    assert chosen == [1, 0]


IDLE = [replica(index) for index in range(4)]


def prompts(count: int, length: int = 64) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(50_000) for _ in range(length)] for _ in range(count)]


def test_prompts_that_begin_alike_share_a_replica_whatever_follows() -> None:
    router = Prefix(PrefixConfig(prefix_tokens=32))
    for beginning in prompts(50, 32):
        chosen = {router.route(request(beginning + rest), IDLE) for rest in prompts(10)}
        assert len(chosen) == 1


def test_a_prompt_is_told_apart_by_its_last_prefix_token_and_its_salt() -> None:
    router = Prefix(PrefixConfig(prefix_tokens=32))
    same = [7] * 31
    by_token = {router.route(request([*same, token]), IDLE) for token in range(64)}
    by_salt = {router.route(request([*same, 0], b"%d" % salt), IDLE) for salt in range(64)}
    assert by_token == by_salt == {0, 1, 2, 3}


def test_another_router_ranks_alike_so_a_restart_loses_no_pages() -> None:
    first, second = Prefix(PrefixConfig()), Prefix(PrefixConfig())
    routed = [first.route(request(prompt), IDLE) for prompt in prompts(12)]
    assert routed == [second.route(request(prompt), IDLE) for prompt in prompts(12)]
    # Written down once: a change of the hash moves every prompt of every fleet.
    assert routed == [1, 1, 3, 2, 1, 3, 2, 3, 3, 0, 1, 1]


def test_prompts_spread_evenly() -> None:
    router = Prefix(PrefixConfig())
    counts = Counter(router.route(request(prompt), IDLE) for prompt in prompts(4000, 8))
    # Five standard deviations of a binomial around 1000.
    assert all(abs(counts[index] - 1000) < 137 for index in range(4))


def test_when_a_replica_goes_only_its_own_prompts_move() -> None:
    router = Prefix(PrefixConfig())
    before = {tuple(prompt): router.route(request(prompt), IDLE) for prompt in prompts(400)}
    left = [view for view in IDLE if view.index != 2]
    after = {prompt: router.route(request(prompt), left) for prompt in before}
    moved = {prompt for prompt in before if before[prompt] != after[prompt]}
    assert moved == {prompt for prompt, index in before.items() if index == 2}
    assert {after[prompt] for prompt in moved} == {0, 1, 3}


def test_a_busy_replica_is_passed_over_and_the_bound_is_exact() -> None:
    router = Prefix(PrefixConfig(busy_factor=2.0, busy_sequences=3))
    prompt = prompts(1)[0]
    home = router.route(request(prompt), IDLE)

    def served(load: int) -> int:
        views = [replica(i, running=load if i == home else 5) for i in range(4)]
        return router.route(request(prompt), views)

    assert served(13) == home  # 2 * 5 + 3
    elsewhere = served(14)
    assert elsewhere != home
    # The overflow has one place too, which soon has the pages.
    assert {served(load) for load in range(14, 40)} == {elsewhere}


def test_tokens_not_yet_computed_make_a_replica_busy() -> None:
    router = Prefix(PrefixConfig(busy_sequences=8, tokens_per_sequence=100))
    prompt = prompts(1)[0]
    home = router.route(request(prompt), IDLE)
    busy = [replica(i, tokens=801 if i == home else 0) for i in range(4)]
    assert router.route(request(prompt), busy) != home
    calm = [replica(i, tokens=800 if i == home else 0) for i in range(4)]
    assert router.route(request(prompt), calm) == home


def test_the_prefix_router_is_total() -> None:
    draw = random.Random(3)
    router = Prefix(PrefixConfig(busy_factor=1.0, busy_sequences=0))
    for _ in range(500):
        indices = sorted(draw.sample(range(64), draw.randint(1, 8)))
        views = [
            ReplicaView(
                index,
                draw.randrange(300),
                draw.randrange(300),
                draw.randrange(10**7),
                draw.random(),
            )
            for index in indices
        ]
        salt = draw.randbytes(draw.randrange(200))
        prompt = [draw.randrange(2**31) for _ in range(draw.randint(1, 40))]
        assert router.route(request(prompt, salt), views) in indices


def test_requests_of_one_key_go_to_one_replica_whatever_their_prompts() -> None:
    router = Prefix(PrefixConfig())
    chosen = [
        {router.route(RouteRequest(prompt, b"", 1, cache_key=key), IDLE) for prompt in prompts(20)}
        for key in map(str, range(40))
    ]
    assert all(len(replicas) == 1 for replicas in chosen)
    assert set().union(*chosen) == {0, 1, 2, 3}
    keys = [RouteRequest([1], salt, 1, cache_key="k") for salt in (b"", b"a", b"b", b"c", b"d")]
    assert len({router.route(one, IDLE) for one in keys}) > 1
