"""``radix``: equals a list of everything published."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.simulation.fake_pages import FakePages
from gatewayd_prefix_radix.strategy import Radix
from gatewayd_prefix_radix.tree import HOLE

EVENTS = ("arrive", "place", "place", "compute", "compute", "compute", "end", "evict", "forget")
NUM_PAGES = 40


def opened(page_size: int = 16, num_pages: int = 64) -> Radix:
    cache = Radix()
    cache.open(engine_resources(page_size=page_size, num_pages=num_pages))
    return cache


def ids(*tokens: int) -> Any:
    return np.array(tokens, np.int32)


def nodes_of(cache: Radix) -> list[Any]:
    """Every node that can be reached from a root."""
    found = list(cache._roots.values())
    for node in found:
        found += node.children
    return found


def check_form(cache: Radix) -> None:
    """The tree is compressed, sorted, and the tables beside it are right."""
    size, nodes = cache._page_size, nodes_of(cache)
    assert {node.number for node in nodes} == set(cache._nodes)
    assert set(cache._salts) == {root.number for root in cache._roots.values()}
    placed = {}
    for node in nodes:
        assert len(node.tokens) == size * len(node.pages)
        assert node.keys == sorted(set(node.keys))
        assert node.keys == [c.tokens[:size].astype(">i4").tobytes() for c in node.children]
        for child in node.children:
            assert child.parent is node
            assert child.start == node.start + len(node.pages)
        if node.parent is not None:
            assert len(node.children) != 1, "a run is as long as it can be"
            assert node.children or node.pages[-1] != HOLE, "nothing leads to holes alone"
        else:
            assert node.children
        for index, page in enumerate(node.pages.tolist()):
            if page != HOLE:
                placed[page] = (node.number, node.start + index)
    for page, place in placed.items():
        assert (cache._node_of[page], cache._index_of[page]) == place
    assert set(np.flatnonzero(cache._node_of >= 0).tolist()) == set(placed)


class RadixMachine(RuleBasedStateMachine):
    """Sequences over few tokens are published and pages evicted, in any order."""

    @initialize(page_size=st.integers(1, 4))
    def begin(self, page_size: int) -> None:
        self.size = page_size
        self.cache = opened(page_size, NUM_PAGES)
        self.free = set(range(NUM_PAGES))
        # Every published page that is still there: salt, all tokens up to its end, and itself.
        self.known: list[tuple[bytes, list[int], int]] = []

    def look_up(self, salt: bytes, tokens: list[int]) -> dict[int, int]:
        return {len(t): page for s, t, page in self.known if s == salt and tokens[: len(t)] == t}

    @rule(
        salt=st.sampled_from([b"", b"a"]),
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=14),
        steps=st.integers(1, 3),
    )
    def publish(self, salt: bytes, tokens: list[int], steps: int) -> None:
        full = len(tokens) // self.size
        if full > len(self.free):
            return
        held = self.look_up(salt, tokens)
        fresh = sorted(self.free)
        pages = [held.get((i + 1) * self.size) for i in range(full)]
        mine = [fresh.pop() if page is None else page for page in pages]
        trail = self.cache.begin(ids(*tokens[:1]), salt)
        for step in range(1, steps + 1):
            n = full * step // steps
            taken = self.cache.insert(trail, ids(*tokens[: n * self.size]), ids(*mine[:n]))
            for i in range(n):
                if mine[i] in taken:
                    self.free.remove(mine[i])
                    self.known.append((salt, tokens[: (i + 1) * self.size], mine[i]))
        assert set(mine) <= {page for _, _, page in self.known}

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        _, _, page = self.known.pop(data.draw(st.integers(0, len(self.known) - 1)))
        self.cache.forget(page)
        self.free.add(page)

    @rule(
        salt=st.sampled_from([b"", b"a", b"b"]),
        tokens=st.lists(st.integers(0, 2), max_size=16),
    )
    def match(self, salt: bytes, tokens: list[int]) -> None:
        found = self.cache.match(self.cache.begin(ids(*tokens), salt))
        there = self.look_up(salt, tokens)
        whole = 0
        while (whole + 1) * self.size in there:
            whole += 1
        assert list(found.pages[:whole]) == [there[(i + 1) * self.size] for i in range(whole)]
        # The rest is in one page more, whose tokens begin like ours and are the most in common.
        begin, most = whole * self.size, 0
        best: set[int] = set()
        for s, t, page in self.known:
            if s == salt and len(t) == begin + self.size and t[:begin] == tokens[:begin]:
                common = 0
                while begin + common < len(tokens) and t[begin + common] == tokens[begin + common]:
                    common += 1
                if common >= most > 0 or common > most:
                    best = {page} | (best if common == most else set())
                    most = common
        assert found.num_tokens == begin + most
        assert len(found.pages) == whole + (most > 0)
        assert not most or found.pages[-1] in best

    @invariant()
    def has_its_form(self) -> None:
        check_form(self.cache)


TestRadixMachine = RadixMachine.TestCase
TestRadixMachine.settings = settings(stateful_step_count=40)


def test_a_hundred_thousand_operations_agree_with_a_dictionary_of_prefixes() -> None:
    draw = random.Random(3)
    cache = opened(2, 24)
    pages = FakePages(cache, engine_resources(page_size=2, num_pages=24))
    for turn in range(100_000):
        pages.act(draw.choice(EVENTS), draw.randrange(2**10), draw.randrange(2**12))
        if turn % 100 == 0:
            check_form(cache)
    assert pages.num_hits > 10_000


def test_a_prompt_that_leaves_the_tree_within_a_page_shares_its_beginning() -> None:
    cache = opened(page_size=4)
    cache.insert(cache.begin(ids(*range(8)), b""), ids(*range(8)), ids(10, 11))
    other = ids(0, 1, 2, 3, 4, 99, 6, 7)
    cache.insert(cache.begin(other, b""), other, ids(10, 12))
    for prompt, pages, tokens in (
        ((0, 1, 2, 3, 4, 5, 99), [10, 11], 6),
        ((0, 1, 2, 3, 4, 99, 98), [10, 12], 6),
        ((0, 1, 2, 3, 7), [10], 4),
        ((0, 1, 9), [10], 2),
        ((5,), [], 0),
        ((), [], 0),
    ):
        found = cache.match(cache.begin(ids(*prompt), b""))
        assert (list(found.pages), found.num_tokens) == (pages, tokens), prompt


def test_a_trail_does_not_change_with_the_array_it_was_made_from() -> None:
    cache = opened(page_size=2)
    row = ids(1, 2, 3, 4, 5)
    trail = cache.begin(row[:4], b"")
    cache.insert(trail, row[:4], ids(1, 2))
    row[:] = 9
    assert cache.match(trail).num_tokens == 4
    assert cache.match(cache.begin(ids(1, 2, 3, 4), b"")).num_tokens == 4
    assert cache.match(copy.copy(trail)).num_tokens == 4


def test_when_all_is_evicted_nothing_is_left() -> None:
    cache = opened(page_size=2, num_pages=1000)
    draw = random.Random(1)
    free = list(range(1000))
    for salt in (b"", b"x", b"y"):
        for _ in range(20):
            tokens = ids(*(draw.randrange(2) for _ in range(24)))
            pages = np.array([free.pop() for _ in range(12)], np.int32)
            known = cache.insert(cache.begin(tokens, salt), tokens, pages)
            free += set(pages.tolist()) - set(known)
    for page in draw.sample(range(1000), 1000):
        cache.forget(page)
    assert not cache._roots
    assert not cache._nodes
    assert not cache._salts
