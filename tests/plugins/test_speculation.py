"""Built-in drafters and controllers: the kit, and what each does beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_draft_forced.strategy import Forced
from gatewayd_draft_lookahead.config import LookaheadConfig
from gatewayd_draft_lookahead.pool import NgramPool
from gatewayd_draft_lookahead.strategy import Lookahead
from gatewayd_draft_model.config import DraftModelConfig
from gatewayd_draft_model.strategy import SmallModel
from gatewayd_draft_ngram.config import NgramConfig
from gatewayd_draft_ngram.strategy import Ngram
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import Choices, DraftBatch, SpecReport, SpecView
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.speculation import DrafterConformance, SpecControllerConformance
from gatewayd_spec_adaptive.config import AdaptiveConfig
from gatewayd_spec_adaptive.cost import StepCost
from gatewayd_spec_adaptive.strategy import Adaptive
from gatewayd_spec_fixed.config import FixedConfig
from gatewayd_spec_fixed.strategy import Fixed


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


class Bigrams:
    """A model of the last token alone, and a check of how it is called."""

    def __init__(self, vocab_size: int, rows: int, max_model_len: int) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._logits = torch.randn(vocab_size, vocab_size, generator=torch.manual_seed(1)) * 3
        self._held: list[list[int]] = [[] for _ in range(rows)]
        self.computed = 0

    def extend(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        tokens: np.ndarray,
    ) -> torch.Tensor:
        last = []
        for i, row in enumerate(rows.tolist()):
            start, end = int(starts[i]), int(starts[i] + counts[i])
            assert start <= len(self._held[row]), "nothing may be left out"
            self._held[row][start:] = tokens[i, : end - start].tolist()
            last.append(self._held[row][-1])
            self.computed += end - start
        return self._logits[torch.tensor(last)].clone()


class TestSmallModel(DrafterConformance):
    def make(self) -> SmallModel:
        return SmallModel(DraftModelConfig(model="/tmp", min_confidence=0.2, max_catch_up=16))

    def resources(self) -> EngineResources:
        return engine_resources(
            max_running=4,
            max_model_len=96,
            vocab_size=16,
            load_model=lambda folder: Bigrams(16, 4, 80),
        )


class TestAdaptive(SpecControllerConformance):
    def make(self) -> Adaptive:
        return Adaptive(AdaptiveConfig())


class TestFixed(SpecControllerConformance):
    def make(self) -> Fixed:
        return Fixed(FixedConfig())


def batch_of(rows: Sequence[Sequence[int]], limit: int, temperature: float = 0.0) -> DraftBatch:
    """Rows 0, 1, ... with these tokens, which may all have as many drafts."""
    n = len(rows)
    tokens = np.zeros((n, 96), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return DraftBatch(
        np.arange(n),
        np.array([len(row) for row in rows]),
        np.full(n, limit),
        tokens,
        np.full(n, temperature, np.float32),
        np.random.default_rng(0).random((n, limit)),
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


def small_model(model: Bigrams, **settings: Any) -> SmallModel:
    drafter = SmallModel(DraftModelConfig(model="/tmp", **settings))
    drafter.open(
        engine_resources(
            max_running=4,
            max_model_len=96,
            vocab_size=model.vocab_size,
            load_model=lambda folder: model,
        )
    )
    return drafter


def test_the_small_model_guesses_its_likeliest_tokens_and_reads_each_token_once() -> None:
    model = Bigrams(16, 4, 96)
    drafter = small_model(model, min_confidence=0.0)
    drafter.admit(0)
    sequence = [3, 1, 4, 1, 5]
    for _ in range(6):
        wanted, last = [], sequence[-1]
        for _ in range(4):
            last = int(model._logits[last].argmax())
            wanted.append(last)
        before = model.computed
        drafts = drafter.propose(batch_of([sequence], 4))
        assert drafts.tokens[0].tolist() == wanted
        assert model._held[0][: len(sequence)] == sequence
        # Its guesses but the last are computed; those that were kept are not computed again.
        assert model.computed - before <= (8 if len(sequence) == 5 else 5)
        sequence += [*wanted[:2], 7]


def test_the_small_model_says_what_it_draws_from() -> None:
    """Chi-square of 20,000 draws against the probabilities that it claims."""
    from scipy import stats

    model = Bigrams(16, 4, 96)
    drafter = small_model(model, min_confidence=0.0)
    counts = np.zeros(16)
    rng = np.random.default_rng(6)
    said = None
    for _ in range(5_000):
        for row in range(4):
            drafter.admit(row)
        batch = batch_of([[2]] * 4, 1, temperature=1.3)._replace(uniform=rng.random((4, 1)))
        drafts = drafter.propose(batch)
        assert drafts.probs is not None
        said = drafts.probs[0, 0].double().numpy()
        counts += np.bincount(drafts.tokens[:, 0], minlength=16)
    assert said is not None
    likely = said * 20_000 > 5
    assert likely.sum() > 5
    other, wanted = counts[likely], said[likely]
    assert stats.chisquare(other, wanted / wanted.sum() * other.sum()).pvalue > 0.01
    assert stats.chisquare(other, np.full(len(other), other.sum() / len(other))).pvalue < 1e-9


def test_the_small_model_stops_where_it_is_not_sure() -> None:
    model = Bigrams(16, 4, 96)
    best = model._logits.softmax(-1).max(-1).values
    drafter = small_model(model, min_confidence=float(best.median()))
    for row in range(4):
        drafter.admit(row)
    starts = [int(i) for i in best.argsort()[[0, 1, -2, -1]]]
    drafts = drafter.propose(batch_of([[start] for start in starts], 3))
    assert drafts.counts[:2].tolist() == [0, 0]
    assert (drafts.counts[2:] > 0).all()


def test_a_long_prompt_is_read_in_pieces_before_anything_is_guessed() -> None:
    model = Bigrams(16, 4, 96)
    drafter = small_model(model, min_confidence=0.0, max_catch_up=16)
    drafter.admit(0)
    prompt = [i % 16 for i in range(50)]
    counts = [int(drafter.propose(batch_of([prompt], 2)).counts[0]) for _ in range(5)]
    assert counts == [0, 0, 0, 2, 2]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"load_model": None}, "loads no other models"),
        ({"vocab_size": 17}, "has 16 tokens, the served model 17"),
    ],
)
def test_a_small_model_that_does_not_fit_is_refused(
    changes: dict[str, object], sentence: str
) -> None:
    fields = {"vocab_size": 16, "load_model": lambda folder: Bigrams(16, 4, 96), **changes}
    with pytest.raises(ValueError, match=sentence):
        SmallModel(DraftModelConfig(model="/tmp")).open(engine_resources(**fields))


def test_a_small_model_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"no draft model in /no/such-draft; name its folder"):
        SmallModel(DraftModelConfig()).open(
            engine_resources(folder="/no/such", load_model=lambda folder: Bigrams(16, 4, 96))
        )


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


def played(
    alpha: float, per_token: float, rows: int, steps: int, draft_seconds: float = 0.0
) -> tuple[float, float]:
    """Tokens per second with the controller and without, on a machine of known cost.

    Args:
        alpha: probability that a draft is kept.
        per_token: seconds of a token beside the 1 ms of every step.
        rows: sequences.
        steps: how long.
        draft_seconds: of guessing.
    """
    controller = Adaptive(AdaptiveConfig())
    controller.open(engine_resources(max_running=rows))
    rng = np.random.default_rng(1)
    tokens = seconds = 0.0
    for _ in range(steps):
        view = SpecView(np.arange(rows), np.full(rows, 20), 512, rows)
        asked = controller.decide(view)
        kept = np.array(
            [int((np.cumprod(rng.random(count) < alpha)).sum()) for count in asked.tolist()]
        )
        num_tokens = rows + int(asked.sum())
        took = (1e-3 + per_token * num_tokens) * rng.uniform(0.95, 1.05)
        drafting = draft_seconds if asked.any() else 0.0
        controller.report(
            SpecReport(np.arange(rows), asked, asked, kept, num_tokens, drafting, took)
        )
        tokens += rows + float(kept.sum())
        seconds += took + drafting
    return tokens / seconds, rows / (1e-3 + per_token * rows)


@pytest.mark.parametrize(
    ("alpha", "per_token", "rows", "least"),
    [
        (0.9, 2e-5, 1, 3.0),  # a token more costs little: deep
        (0.6, 2e-5, 1, 1.7),
        (0.9, 2e-5, 16, 1.9),
        (0.05, 2e-5, 1, 0.97),  # nothing is kept
        (0.0, 2e-4, 16, 0.97),
        (0.6, 1e-3, 32, 0.97),  # every token costs as much as a step
        (0.95, 1e-3, 32, 0.97),
    ],
)
def test_the_controller_gains_where_it_can_and_loses_nowhere(
    alpha: float, per_token: float, rows: int, least: float
) -> None:
    with_drafts, without = played(alpha, per_token, rows, steps=1_500)
    assert with_drafts >= least * without


def test_a_machine_that_was_slow_for_a_while_is_given_another_chance() -> None:
    """While drafts were tried for the first time, everything took five times as long."""
    controller = Adaptive(AdaptiveConfig())
    controller.open(engine_resources(max_running=1))
    row, drafts = np.array([0]), []
    for step in range(600):
        asked = controller.decide(SpecView(row, np.array([20]), 512, 1))
        slow = 5.0 if step < 3 or 10 < step < 14 else 1.0
        took = slow * (1e-3 + 5e-5 * (1 + int(asked[0])))
        kept = asked - (asked > 3)  # nearly all
        controller.report(SpecReport(row, asked, asked, kept, 1 + int(asked[0]), 1e-5, took))
        drafts.append(int(asked[0]))
    assert np.mean(drafts[-200:]) > 4


def test_guessing_that_takes_longer_than_it_saves_ends() -> None:
    with_drafts, without = played(0.7, 2e-5, 1, steps=1_500, draft_seconds=4e-3)
    assert with_drafts >= 0.95 * without


def test_the_cost_of_a_step_is_between_those_of_its_neighbours() -> None:
    cost = StepCost()
    assert cost.seconds(np.array([3.0])).tolist() == [1.0]
    cost.note(1, 0.1)
    cost.note(5, 0.3)
    cost.note(1000, 9.0)
    assert cost.seconds(np.array([1.0, 3.0, 5.0])).tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert 0.3 < cost.seconds(np.array([400.0]))[0] < 9.0
    for _ in range(100):
        cost.note(1, 0.2)
    cost.note(1, 50.0)  # a hiccup
    assert cost.seconds(np.array([1.0]))[0] == pytest.approx(0.2, rel=0.25)
