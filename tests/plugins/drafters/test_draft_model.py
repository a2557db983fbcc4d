"""``draft_model``: the kit, drafts, loading and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_draft_model.config import DraftModelConfig
from gatewayd_draft_model.strategy import DraftModelDrafter
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.speculation import DrafterConformance
from tests.plugins.drafters.draft_calls import batch_of


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
    def make(self) -> DraftModelDrafter:
        return DraftModelDrafter(
            DraftModelConfig(model="/tmp", min_confidence=0.2, max_catch_up=16)
        )

    def resources(self) -> EngineResources:
        return engine_resources(
            max_running=4,
            max_model_len=96,
            vocab_size=16,
            load_model=lambda folder: Bigrams(16, 4, 80),
        )


class Guessing(Bigrams):
    """The same, which goes on from its own guesses.

    Attributes:
        asked: new tokens of each row, by call.
    """

    def __init__(self, vocab_size: int, rows: int, max_model_len: int) -> None:
        super().__init__(vocab_size, rows, max_model_len)
        self.asked: list[list[int]] = []

    def guess(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        tokens: np.ndarray,
        steps: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append(counts.tolist())
        guesses, shares = [], []
        for depth in range(steps):
            best = self.extend(rows, starts, counts, tokens).softmax(-1).max(-1)
            guesses.append(best.indices.numpy().astype(np.int32))
            shares.append(best.values.numpy())
            starts, counts = starts + counts, np.ones_like(counts)
            tokens = guesses[depth][:, None]
        return np.stack(guesses, 1), np.stack(shares, 1)


def small_model(model: Bigrams, **settings: Any) -> DraftModelDrafter:
    drafter = DraftModelDrafter(DraftModelConfig(model="/tmp", **settings))
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


def test_a_model_that_guesses_by_itself_is_asked_once_for_what_another_is_asked_for_in_turn() -> (
    None
):
    """Limits that differ, a row that is nearly full, and guesses that were wrong."""
    plain, guessing = Bigrams(16, 4, 40), Guessing(16, 4, 40)
    drafters = [small_model(model, min_confidence=0.25) for model in (plain, guessing)]
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 16, size).tolist() for size in (3, 20, 37)]
    for drafter in drafters:
        for row in range(3):
            drafter.admit(row)
    most = 0
    for _ in range(6):
        batch = batch_of(sequences, 4)._replace(limits=np.array([1, 4, 4]))
        mine, other = (drafter.propose(batch) for drafter in drafters)
        # All of its rows take four steps, for which the last has no room.
        assert mine.counts[:2].tolist() == other.counts[:2].tolist()
        for i in range(2):
            count = int(mine.counts[i])
            most = max(most, count)
            assert other.tokens[i, :count].tolist() == mine.tokens[i, :count].tolist()
            # The first half of the guesses was right.
            sequences[i] += [*mine.tokens[i, : count // 2].tolist(), int(rng.integers(0, 16))]
        assert other.counts[2] == 0
    assert most > 1
    # Guesses that were right are computed already.
    assert guessing.asked == [[3, 20], *[[1, 1]] * 5]


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
        ({"load_model": None}, "does not load draft models"),
        ({"vocab_size": 17}, "has 16 tokens, the served model 17"),
    ],
)
def test_a_small_model_that_does_not_fit_is_refused(
    changes: dict[str, object], sentence: str
) -> None:
    fields = {"vocab_size": 16, "load_model": lambda folder: Bigrams(16, 4, 96), **changes}
    with pytest.raises(ValueError, match=sentence):
        DraftModelDrafter(DraftModelConfig(model="/tmp")).open(engine_resources(**fields))


def test_a_small_model_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"no draft model in /no/such-draft; name its folder"):
        DraftModelDrafter(DraftModelConfig()).open(
            engine_resources(folder="/no/such", load_model=lambda folder: Bigrams(16, 4, 96))
        )
