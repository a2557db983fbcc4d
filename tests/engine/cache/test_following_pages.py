"""Index of following pages: equals a dictionary with linear search."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gatewayd_engine.cache.following_pages import Before, FollowingPages

PAGES = 12
_TOKENS = st.lists(st.sampled_from([0, 1, 255, 256, 65_536]), min_size=1, max_size=6)
_BEFORE = st.sampled_from([b"", b"salt", 0, 1])


class FollowingMachine(RuleBasedStateMachine):
    """Pages that stand behind others, are found and forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.index = FollowingPages()
        self.naive: dict[int, tuple[Before, list[int]]] = {}

    @rule(before=_BEFORE, tokens=_TOKENS, page=st.integers(0, PAGES - 1))
    def add(self, before: Before, tokens: list[int], page: int) -> None:
        if page == before or page in self.naive:
            return
        self.index.add(before, np.array(tokens, np.int32), page)
        self.naive[page] = before, tokens

    @rule(page=st.integers(0, PAGES - 1))
    def forget(self, page: int) -> None:
        self.index.discard(page)
        self.naive = {
            one: (before, tokens)
            for one, (before, tokens) in self.naive.items()
            if page not in (one, before)
        }

    @rule(before=_BEFORE, tokens=_TOKENS)
    def find(self, before: Before, tokens: list[int]) -> None:
        page, common = self.index.find(before, np.array(tokens, np.int32))
        having = {one: _common(t, tokens) for one, (b, t) in self.naive.items() if b == before}
        assert common == max(having.values(), default=0)
        assert having[page] == common if common else page == -1

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.naive.clear()

    @invariant()
    def counts(self) -> None:
        assert len(self.index) == len(self.naive)


def _common(some: list[int], others: list[int]) -> int:
    count = 0
    for a, b in zip(some, others, strict=False):
        if a != b:
            break
        count += 1
    return count


TestTails = FollowingMachine.TestCase
TestTails.settings = settings(stateful_step_count=40)
