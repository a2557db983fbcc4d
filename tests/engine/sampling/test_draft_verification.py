"""Draft verification (rejection sampling): the model's own distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from gatewayd_engine.sampling.draft_verification import DraftVerification
from gatewayd_engine.sampling.processors import Processors
from gatewayd_engine.sampling.sampler import distribution
from gatewayd_engine.sampling.token_picker import TokenPicker
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import BatchDrafts
from gatewayd_engine.state.step_result import Tokens

DRAWS = 100_000
VOCAB = 6
RANDOM = np.random.default_rng(8)
FIRST = torch.from_numpy(RANDOM.normal(size=VOCAB) * 1.5).float()
SECOND = torch.from_numpy(RANDOM.normal(size=(VOCAB, VOCAB)) * 1.5).float()
THIRD = torch.from_numpy(RANDOM.normal(size=VOCAB) * 1.5).float()
DRAFTED = torch.from_numpy(RANDOM.dirichlet(np.ones(VOCAB), size=2)).float()


def drawn(sampling: dict[str, Any]) -> tuple[Tokens, np.ndarray]:
    """Verify as many chains of two drawn drafts; the tokens, and what was drafted."""
    rows = RunningBatch(DRAWS, 8, 4)
    rows.is_greedy[:] = False
    rows.temperature[:] = sampling.get("temperature", 1.0)
    rows.top_k[:] = sampling.get("top_k", 0)
    rows.top_p[:] = sampling.get("top_p", 1.0)
    rows.is_filtered[:] = len(sampling) > 1
    rows.seed[:] = RANDOM.integers(0, 2**63, DRAWS).astype(np.uint64)
    drafts = np.stack(
        [RANDOM.choice(VOCAB, DRAWS, p=q / q.sum()) for q in DRAFTED.double().numpy()], 1
    )
    logits = torch.stack(
        [
            FIRST.expand(DRAWS, VOCAB),
            SECOND[torch.from_numpy(drafts[:, 0])],
            THIRD.expand(DRAWS, VOCAB),
        ],
        1,
    ).reshape(3 * DRAWS, VOCAB)
    lines = np.arange(DRAWS)
    verification = DraftVerification(
        lines,
        lines,
        np.zeros(DRAWS, np.int64),
        3 * lines,
        BatchDrafts(
            np.full(DRAWS, 2),
            drafts.astype(np.int32),
            None,
            DRAFTED.expand(DRAWS, 2, VOCAB),
            lines,
        ),
        logits,
        rows,
        Processors([], [], DRAWS, lambda name, error: False),
        TokenPicker(rows),
    )
    tokens = verification.run()
    assert not verification.failed
    return tokens, drafts


def wanted(logits: torch.Tensor, sampling: dict[str, Any]) -> np.ndarray:
    filters = []
    if len(sampling) > 1:
        filters = [
            torch.tensor([sampling.get("top_k", 0)]),
            torch.tensor([sampling.get("top_p", 1.0)], dtype=torch.float32),
            torch.tensor([0.0]),
        ]
    temperature = torch.tensor([sampling["temperature"]])
    return distribution(logits[None], temperature, *filters)[0].numpy()


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    if possible.sum() == 1:
        return 1.0
    expected = probabilities[possible] * counts.sum()
    return float(stats.chisquare(counts[possible], expected).pvalue)


SAMPLING = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.2, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.8},
]


@pytest.mark.parametrize("sampling", SAMPLING)
def test_each_token_has_the_distribution_of_the_model(sampling: dict[str, Any]) -> None:
    tokens, drafts = drawn(sampling)
    values = [p_value(np.bincount(tokens.ids[:, 0], minlength=VOCAB), wanted(FIRST, sampling))]
    kept = tokens.counts > 1
    assert (tokens.ids[kept, 0] == drafts[kept, 0]).all()
    for token in range(VOCAB):
        after = kept & (drafts[:, 0] == token)
        if after.sum() > 1000:
            counts = np.bincount(tokens.ids[after, 1], minlength=VOCAB)
            values.append(p_value(counts, wanted(SECOND[token], sampling)))
    both = tokens.counts > 2
    counts = np.bincount(tokens.ids[both, 2], minlength=VOCAB)
    values.append(p_value(counts, wanted(THIRD, sampling)))
    # The smallest of so many: Bonferroni.
    assert min(values) * len(values) > 0.01, values


@pytest.mark.parametrize("sampling", SAMPLING)
def test_drafts_are_kept_as_often_as_the_distributions_overlap(sampling: dict[str, Any]) -> None:
    tokens, _ = drawn(sampling)
    overlap = np.minimum(wanted(FIRST, sampling), DRAFTED[0].double().numpy()).sum()
    assert (tokens.counts > 1).mean() == pytest.approx(overlap, abs=0.01)


def test_the_chi_square_sees_drafts_that_were_not_drawn_as_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the rest of the rule, keeping alone would favour what the drafter likes."""

    def careless(self: DraftVerification, lines: Any, logits: Any, at: Any, *rest: Any) -> Any:
        return self._drafts.tokens[lines, rest[-1]].astype(np.int64)

    monkeypatch.setattr(DraftVerification, "_reject", careless)
    tokens, _ = drawn({"temperature": 1.0})
    counts = np.bincount(tokens.ids[:, 0], minlength=VOCAB)
    assert p_value(counts, wanted(FIRST, {"temperature": 1.0})) < 1e-9
