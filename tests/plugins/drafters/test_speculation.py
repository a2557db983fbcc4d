"""Model-free drafters: the kit, and drafts."""

from __future__ import annotations

import numpy as np
import pytest

from gatewayd_draft_forced.strategy import Forced
from gatewayd_draft_lookahead.config import LookaheadConfig
from gatewayd_draft_lookahead.pool import NgramPool
from gatewayd_draft_lookahead.strategy import Lookahead
from gatewayd_draft_ngram.config import NgramConfig
from gatewayd_draft_ngram.strategy import Ngram
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import Choices
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.speculation import DrafterConformance
from tests.plugins.drafters.draft_calls import batch_of


class TestNgram(DrafterConformance):
    def make(self) -> Ngram:
        return Ngram(NgramConfig())


class TestNgramThatLooksAtLittle(DrafterConformance):
    def make(self) -> Ngram:
        return Ngram(NgramConfig(min_match=1, max_match=3, window=16))


class TestLookahead(DrafterConformance):
    def make(self) -> Lookahead:
        return Lookahead(LookaheadConfig())


class TestForced(DrafterConformance):
    def make(self) -> Forced:
        return Forced()

    def resources(self) -> EngineResources:
        return engine_resources(
            max_running=4, max_model_len=96, vocab_size=16, forced=lambda row: [row, 3, 5]
        )


@pytest.mark.parametrize(
    ("history", "guess"),
    [
        ([5, 6, 7, 8, 5, 6], [7, 8, 5, 6]),
        ([1, 5, 6, 7, 2, 5, 6, 9, 2, 5, 6], [9, 2, 5, 6]),  # the longest, not the latest
        ([5, 6, 1, 5, 6, 2, 5, 6], [2, 5, 6, 2]),  # of equals the latest; it goes on repeating
        ([4, 4, 4], [4, 4, 4, 4]),
        ([1, 2, 3, 1], []),  # one token is no repetition
        ([7], []),
    ],
)
def test_ngram_guesses_what_followed(history: list[int], guess: list[int]) -> None:
    drafts = Ngram(NgramConfig()).propose(batch_of([history], 4))
    assert drafts.tokens[0, : drafts.counts[0]].tolist() == guess


def test_ngram_agrees_with_plain_python() -> None:
    config = NgramConfig(min_match=1, max_match=4, window=32)
    rng = np.random.default_rng(3)
    for _ in range(400):
        history = rng.integers(0, 4, rng.integers(1, 60)).tolist()
        seen = history[-32:]
        wanted: list[int] = []
        for size in range(min(4, len(seen) - 1), 0, -1):
            ends = [end for end in range(size, len(seen)) if seen[end - size : end] == seen[-size:]]
            if ends:
                wanted = seen[ends[-1] :]
                break
        drafts = Ngram(config).propose(batch_of([history], 3))
        given = drafts.tokens[0, : drafts.counts[0]].tolist()
        assert given == (wanted * 3)[:3]


def test_lookahead_finds_its_own_words_again() -> None:
    """A model that counts to 11 again and again; the sequence itself is not looked at."""
    drafter = Lookahead(LookaheadConfig(use_prompt=False))
    drafter.admit(0)
    sequence, steps = [1], 0
    while len(sequence) < 60:
        drafts = drafter.propose(batch_of([sequence], 16))
        count = int(drafts.counts[0])
        nodes = [sequence[-1], *drafts.tokens[0, :count].tolist()]
        drafter.learn(
            Choices(
                np.array([0]),
                drafts.tokens,
                drafts.counts.astype(np.int64),
                np.array([[(t + 1) % 12 for t in nodes]]),
            )
        )
        assert drafts.parents is not None
        at = -1
        kept: list[int] = []
        while True:
            kept.append(((sequence + kept)[-1] + 1) % 12)
            children = [
                j
                for j in range(count)
                if drafts.parents[0, j] == at and drafts.tokens[0, j] == kept[-1]
            ]
            if not children:
                break
            at = children[0]
        sequence += kept
        steps += 1
    assert sequence == [i % 12 for i in range(1, len(sequence) + 1)]
    assert steps < 40


def test_the_pool_keeps_the_latest_and_no_more_than_it_may() -> None:
    pool = NgramPool(candidates=2, most=4)
    for ngram in ([1, 2, 3], [1, 4, 5], [1, 2, 3], [1, 6, 7]):
        pool.add(ngram)
    assert pool.after(1) == [(6, 7), (2, 3)]
    for first in (2, 3, 4):
        pool.add([first, 9, 9])
    assert pool.after(1) == []
    assert pool.after(4) == [(9, 9)]
