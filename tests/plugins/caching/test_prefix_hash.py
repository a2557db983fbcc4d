"""``hash``: long runs, speed, secret digests."""

import random
import time

import numpy as np

from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.simulation.fake_pages import FakePages
from gatewayd_prefix_hash.strategy import HashChain

EVENTS = ("arrive", "place", "place", "compute", "compute", "compute", "end", "evict", "forget")


def opened(page_size: int = 16, num_pages: int = 64) -> HashChain:
    cache = HashChain()
    cache.open(engine_resources(page_size=page_size, num_pages=num_pages))
    return cache


def test_a_hundred_thousand_operations_agree_with_a_dictionary_of_prefixes() -> None:
    draw = random.Random(3)
    pages = FakePages(opened(2, 24), engine_resources(page_size=2, num_pages=24))
    for _ in range(100_000):
        pages.act(draw.choice(EVENTS), draw.randrange(2**10), draw.randrange(2**12))
    assert pages.num_hits > 10_000


def test_digests_differ_between_processes_and_have_sixteen_bytes() -> None:
    tokens = np.arange(64, dtype=np.int32)
    first, second = (opened().begin(tokens, b"salt") for _ in range(2))
    assert len(first) == 1 + 4
    assert {len(digest) for digest in first} == {16}
    assert not set(first) & set(second)


def test_the_prompt_may_be_any_slice_of_an_array() -> None:
    cache = opened()
    tokens = np.arange(256, dtype=np.int32)
    cache.insert(cache.begin(tokens[::2], b""), tokens[::2], np.arange(8, dtype=np.int32))
    assert list(cache.match(cache.begin(np.arange(0, 256, 2, dtype=np.int32), b""))) == [*range(8)]


def test_a_match_takes_a_microsecond_a_page_at_most() -> None:
    num_pages = 4096
    cache = opened(num_pages=num_pages)
    tokens = np.arange(16 * num_pages, dtype=np.int32)
    trail = cache.begin(tokens, b"")
    cache.insert(trail, tokens, np.arange(num_pages, dtype=np.int32))
    times = []
    for _ in range(20):
        began = time.thread_time()
        assert len(cache.match(trail)) == num_pages
        times.append(time.thread_time() - began)
    assert min(times) / num_pages < 1e-6


def test_a_page_more_of_a_long_sequence_does_not_cost_all_pages_again() -> None:
    num_pages = 4096
    cache = opened(num_pages=num_pages)
    tokens = np.arange(16 * num_pages, dtype=np.int32)
    pages = np.arange(num_pages, dtype=np.int32)
    trail = cache.begin(tokens[:16], b"")
    cache.insert(trail, tokens[:-32], pages[:-2])
    times = []
    for full in (num_pages - 1, num_pages):
        began = time.thread_time()
        assert len(cache.insert(trail, tokens[: 16 * full], pages[:full])) == 1
        times.append(time.thread_time() - began)
    # Hashing all of them again would take several milliseconds.
    assert min(times) < 1e-3
