"""Sampler: chi-square against the softmax; filters equal plain Python."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from scipy import stats

from gatewayd_engine.sampling.random import fork_seed, uniform
from gatewayd_engine.sampling.sampler import distribution, sample

VOCAB = 24
DRAWS = 100_000


def numbers(count: int, seed: int = 0) -> torch.Tensor:
    """One number per position of a sequence, as the engine draws them."""
    return torch.from_numpy(uniform(np.full(count, seed, np.uint64), np.arange(count)))


def filtered(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> list[float]:
    """Probabilities by the definition, one filter after the other."""
    scaled = [value / temperature for value in logits]
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    kept = order[:top_k] if top_k else order
    weight = {i: math.exp(scaled[i] - scaled[order[0]]) for i in kept}
    total = sum(weight.values())
    chosen: list[int] = []
    mass = 0.0
    for i in kept:
        if chosen and mass >= top_p:
            break
        chosen.append(i)
        mass += weight[i] / total
    chosen = [i for i in chosen if weight[i] >= min_p * weight[order[0]]]
    rest = sum(weight[i] for i in chosen)
    return [weight[i] / rest if i in chosen else 0.0 for i in range(len(scaled))]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (1.9, 0, 1.0, 0.0),
        (1.0, 5, 1.0, 0.0),
        (1.0, 0, 0.7, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.3, 9, 0.8, 0.1),
        (1.0, 1, 1.0, 0.0),
    ],
)
def test_draws_follow_the_filtered_softmax(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    rng = random.Random(3)
    logits = [rng.gauss(0, 1.5) for _ in range(VOCAB)]
    rows = torch.tensor(logits).expand(DRAWS, -1)
    column = torch.full((DRAWS,), temperature)
    filters = (
        (torch.full((DRAWS,), top_k), torch.full((DRAWS,), top_p), torch.full((DRAWS,), min_p))
        if top_k or top_p < 1 or min_p
        else ()
    )
    drawn = sample(rows, column, numbers(DRAWS), *filters)
    counts = np.bincount(drawn.numpy(), minlength=VOCAB)
    wanted = np.array(filtered(logits, temperature, top_k, top_p, min_p))
    assert (counts[wanted == 0] == 0).all()
    possible = wanted > 0
    if possible.sum() > 1:
        result = stats.chisquare(counts[possible], wanted[possible] * DRAWS)
        assert result.pvalue > 0.01


def test_the_chi_square_sees_a_wrong_temperature() -> None:
    rng = random.Random(3)
    logits = [rng.gauss(0, 1.5) for _ in range(VOCAB)]
    drawn = sample(
        torch.tensor(logits).expand(DRAWS, -1), torch.full((DRAWS,), 1.02), numbers(DRAWS)
    )
    wanted = np.array(filtered(logits, 1.0, 0, 1.0, 0.0))
    counts = np.bincount(drawn.numpy(), minlength=VOCAB)
    assert stats.chisquare(counts, wanted * DRAWS).pvalue < 0.01


def test_filters_of_one_row_do_not_touch_another() -> None:
    rng = random.Random(4)
    rows = torch.tensor([[rng.gauss(0, 2) for _ in range(VOCAB)] for _ in range(64)])
    temperature = torch.tensor([rng.uniform(0.2, 2) for _ in range(64)])
    top_k = torch.tensor([rng.choice([0, 1, 3, 10, 400]) for _ in range(64)])
    top_p = torch.tensor([rng.choice([1.0, 0.9, 0.3, 1e-6]) for _ in range(64)])
    min_p = torch.tensor([rng.choice([0.0, 0.05, 1.0]) for _ in range(64)])
    together = sample(rows, temperature, numbers(64), top_k, top_p, min_p)
    for i in range(64):
        one = slice(i, i + 1)
        alone = sample(
            rows[one], temperature[one], numbers(64)[one], top_k[one], top_p[one], min_p[one]
        )
        assert alone.item() == together[i].item()
        allowed = filtered(
            rows[i].tolist(), float(temperature[i]), int(top_k[i]), float(top_p[i]), float(min_p[i])
        )
        assert allowed[int(together[i])] > 0


@pytest.mark.parametrize("temperature", [1e-6, 1e-3])
def test_a_tiny_temperature_is_greedy_and_finite(temperature: float) -> None:
    rows = torch.randn(50, VOCAB) * 30
    drawn = sample(rows, torch.full((50,), temperature), numbers(50))
    assert (drawn == rows.argmax(-1)).all()


@pytest.mark.parametrize("number", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval_choose_a_token_with_weight(number: float) -> None:
    rows = torch.full((1, VOCAB), -torch.inf)
    rows[0, 5], rows[0, 9] = 1.0, 2.0
    drawn = sample(rows, torch.ones(1), torch.tensor([number], dtype=torch.float64))
    assert drawn.item() == (5 if number == 0.0 else 9)


def test_numbers_are_uniform_and_independent_of_order() -> None:
    seeds = np.arange(50_000, dtype=np.uint64)
    numbers = uniform(seeds, np.full(50_000, 7))
    assert stats.kstest(numbers, "uniform").pvalue > 0.01
    assert (
        stats.kstest(uniform(np.full(50_000, 3, np.uint64), np.arange(50_000)), "uniform").pvalue
        > 0.01
    )
    order = np.random.default_rng(0).permutation(50_000)
    assert (uniform(seeds[order], np.full(50_000, 7)) == numbers[order]).all()
    assert len(np.unique(numbers)) == 50_000


def test_choices_have_seeds_of_their_own() -> None:
    assert fork_seed(11, 0) == 11
    assert len({fork_seed(seed, choice) for seed in range(100) for choice in range(16)}) == 1600


def test_filters_of_a_large_vocabulary_are_those_of_the_definition() -> None:
    """Only the likeliest tokens are sorted where these suffice, and all where they do not."""
    rng, vocab = random.Random(5), 1500
    cases = [
        # Spread of the logits, top-k, top-p, min-p.
        *((8.0, 0, 0.9, 0.0), (8.0, 40, 0.95, 0.05), (3.0, 40, 1.0, 0.0), (3.0, 256, 1.0, 0.0)),
        *((1.0, 300, 0.5, 0.0), (1.0, 0, 0.9, 0.0), (0.1, 1000, 0.99, 0.0), (2.0, 0, 1.0, 0.1)),
        *((5.0, 0, 0.999999, 0.0), (1.0, 0, 1.0, 1e-9), (4.0, 0, 1e-6, 0.0), (0.0, 0, 0.1, 0.0)),
        (0.0, 256, 1.0, 0.0),
    ]
    for spread, top_k, top_p, min_p in cases:
        # Rounded: equal logits are ordered by id.
        logits = [round(rng.gauss(0, spread), 1) for _ in range(vocab)]
        wanted = torch.tensor(filtered(logits, 1.0, top_k, top_p, min_p), dtype=torch.float64)
        made = distribution(
            torch.tensor([logits]),
            *(torch.ones(1), torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p])),
        )
        torch.testing.assert_close(made[0], wanted, atol=1e-6, rtol=1e-5)


def test_rows_of_a_large_vocabulary_do_not_touch_each_other() -> None:
    rng = torch.Generator().manual_seed(6)
    rows = torch.randn(32, 2000, generator=rng) * torch.rand(32, 1, generator=rng) * 8
    top_k, top_p = torch.tensor([0, 5, 400, 0] * 8), torch.tensor([0.9, 1.0, 0.5, 0.999] * 8)
    columns = torch.ones(32), numbers(32), top_k, top_p, torch.zeros(32)
    together = sample(rows, *columns)
    for i in range(32):
        alone = sample(rows[i : i + 1], *(column[i : i + 1] for column in columns))
        assert alone.item() == together[i].item()
