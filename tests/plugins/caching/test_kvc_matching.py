"""``matching`` KV compression: each fit equals its definition; the kit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from gatewayd_hooks.kv_compression import KvCompressionStrategy
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.testing.kv_compression import KvCompressionConformance
from gatewayd_hooks.testing.simulation.decoding import SHAPE
from gatewayd_hooks.testing.simulation.resources import engine_resources
from gatewayd_kvc_matching.bounded_least_squares import bounded_least_squares
from gatewayd_kvc_matching.config import MatchingConfig
from gatewayd_kvc_matching.fitting import FittedPositions, fit, fit_bias
from gatewayd_kvc_matching.strategy import Matching


class TestShare(KvCompressionConformance):
    def make(self) -> KvCompressionStrategy:
        return Matching(MatchingConfig(at_least=150))


class TestGreedy(KvCompressionConformance):
    def make(self) -> KvCompressionStrategy:
        return Matching(MatchingConfig(at_least=150, choose="greedy", ratio=8))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(rows: int, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    matrix, target = random(rows, size, seed=seed), random(rows, seed=seed + 1)
    gram = matrix.T @ matrix + 1e-6 * torch.eye(size, dtype=torch.float64)
    return gram, matrix.T @ target


@pytest.mark.parametrize(("rows", "size"), [(40, 12), (12, 40), (200, 120), (1, 5)])
def test_nothing_contradicts_bounded_least_squares(rows: int, size: int) -> None:
    at_bound = 0
    for seed in range(8):
        gram, target = problem(rows, size, seed)
        found = bounded_least_squares(gram, target, 0.25)
        slope = gram @ found - target
        is_bound = found <= 0.25
        at_bound += int(is_bound.sum())
        # Karush, Kuhn and Tucker: feasible, flat where it is free, and rising where it is not.
        assert bool((found >= 0.25).all())
        assert float(slope[~is_bound].abs().max().nan_to_num() if (~is_bound).any() else 0) < 1e-7
        assert bool((slope[is_bound] > -1e-7).all())
    assert at_bound


def test_bounded_least_squares_is_the_best_of_all_sets() -> None:
    gram, target = problem(9, 6, 3)
    found = bounded_least_squares(gram, target, 0.0)
    costs = []
    for chosen in product((False, True), repeat=6):
        free = torch.tensor(chosen).nonzero().squeeze(1)
        one = torch.zeros(6, dtype=torch.float64)
        if len(free):
            one[free] = torch.linalg.solve(gram[free][:, free], target[free])
        if bool((one >= 0).all()):
            costs.append(float(one @ gram @ one - 2 * target @ one))
    assert float(found @ gram @ found - 2 * target @ found) == pytest.approx(min(costs), abs=1e-12)


def test_all_of_them_stand_for_themselves() -> None:
    q, k, v = random(50, 8, seed=1), random(32, 8, seed=2), random(32, 8, seed=3)
    few = fit(q, k, v, 32)
    assert few.places.tolist() == list(range(32))
    assert torch.allclose(few.bias, torch.zeros_like(few.bias), atol=1e-9)
    assert torch.allclose(few.values, v, atol=1e-9)


def test_a_key_that_stands_for_equal_ones_weighs_as_much_as_they() -> None:
    distinct, many = random(5, 8, seed=4), [1, 3, 2, 7, 4]
    keys = distinct.repeat_interleave(torch.tensor(many), 0)
    first = np.cumsum([0, *many[:-1]])
    values = random(len(keys), 8, seed=5)
    q = random(400, 8, seed=6)
    shares = torch.softmax(q @ keys.T, -1)[:, first]
    assert torch.allclose(fit_bias(shares, 1e-10).exp(), torch.tensor(many).double(), atol=1e-4)
    few = fit(q, keys, values, len(keys), ridge=1e-10)
    assert torch.allclose(few.values, values, atol=1e-4)


def test_values_are_those_of_ridge_least_squares() -> None:
    q, k, v = random(60, 8, seed=1), random(40, 8, seed=2), random(40, 8, seed=3)
    few = fit(q, k, v, 12, ridge=1e-2)
    weights = torch.softmax(q @ k[few.places].T + few.bias, -1)
    damping = 1e-2 * weights.square().sum(0).mean()
    rows = torch.cat((weights, damping.sqrt() * torch.eye(12, dtype=torch.float64)))
    wanted = torch.cat((torch.softmax(q @ k.T, -1) @ v, damping.sqrt() * v[few.places]))
    assert torch.allclose(few.values, torch.linalg.lstsq(rows, wanted).solution, atol=1e-9)


def losses(
    few: FittedPositions, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[float, float]:
    """Relative errors of answers, and of masses."""
    scores, kept = q @ k.T, q @ k[few.places].T + few.bias
    answer, wanted = torch.softmax(kept, -1) @ few.values, torch.softmax(scores, -1) @ v
    mass = (kept.logsumexp(-1) - scores.logsumexp(-1)).exp()
    return float((answer - wanted).norm() / wanted.norm()), float((mass - 1).norm() / len(q) ** 0.5)


@pytest.mark.parametrize("greedy", [False, True])
def test_each_fit_is_worth_it(greedy: bool) -> None:
    q, k, v = random(200, 16, seed=1) / 4, random(96, 16, seed=2), random(96, 16, seed=3)
    plain = losses(fit(q, k, v, 24, greedy=greedy, fits_mass=False, fits_values=False), q, k, v)
    mass = losses(fit(q, k, v, 24, greedy=greedy, fits_values=False), q, k, v)
    both = losses(fit(q, k, v, 24, greedy=greedy), q, k, v)
    assert mass[1] < plain[1] / 4
    assert both[1] == mass[1]
    assert both[0] < plain[0] / 2


def test_greedy_keys_explain_more_of_the_mass() -> None:
    # Many keys alike have the largest shares; one apart is what is missing.
    like, apart = random(1, 16, seed=1).expand(60, -1), random(20, 16, seed=2)
    k = torch.cat((like * 2, apart))
    q, v = torch.cat((like[:30], apart * 3)), random(80, 16, seed=3)
    errors = [losses(fit(q, k, v, 16, greedy=greedy), q, k, v)[1] for greedy in (False, True)]
    assert errors[1] < errors[0] / 2


def opened(config: MatchingConfig, resources: EngineResources | None = None) -> Matching:
    strategy = Matching(config)
    strategy.open(resources or replace(engine_resources(), kv_shape=SHAPE))
    return strategy


@pytest.mark.parametrize(
    ("tokens", "expected"), [(1023, (0, 0)), (1024, (960, 240)), (1030, (960, 240))]
)
def test_what_is_compacted_of_a_prompt(tokens: int, expected: tuple[int, int]) -> None:
    assert opened(MatchingConfig()).sizes(tokens) == expected


def test_the_latest_tokens_stay_and_pages_are_whole() -> None:
    strategy = opened(MatchingConfig(at_least=64, recent=100, ratio=3))
    assert strategy.sizes(99) == (0, 0)
    assert strategy.sizes(200) == (96, 32)
    assert strategy.sizes(230) == (128, 48)


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        (replace(SHAPE, softcap=30.0), "softcap"),
        (replace(SHAPE, windows=(0, 64, 0)), "windows"),
        (None, "kv_shape"),
    ],
)
def test_models_that_cannot_be_fitted_are_refused(shape: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        opened(MatchingConfig(), replace(engine_resources(), kv_shape=shape))  # type: ignore[arg-type]
