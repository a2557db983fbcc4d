"""Transfer cost fit: equals numpy's least squares."""

from __future__ import annotations

import numpy as np
import pytest

from gatewayd_engine.kv.transfer_cost import _DECAY, CostLine


def test_a_line_is_the_weighted_least_squares_one() -> None:
    random = np.random.default_rng(5)
    x = random.integers(1, 500, 80).astype(float)
    y = 0.03 + 0.0004 * x + random.normal(0, 0.002, 80)
    line = CostLine()
    for amount, seconds in zip(x, y, strict=True):
        line.add(amount, seconds)
    weights = np.sqrt(_DECAY ** np.arange(79, -1, -1))
    each, fixed = np.polyfit(x, y, 1, w=weights)
    assert line.line == pytest.approx((fixed, each))
    assert line.seconds(100) == pytest.approx(fixed + 100 * each)


def test_a_line_forgets_what_was() -> None:
    line = CostLine()
    for amount in range(1, 60):
        line.add(amount, 5.0 * amount)
    for amount in range(1, 600):
        line.add(amount % 60 + 1, 0.001 * (amount % 60 + 1))
    assert line.line == pytest.approx((0, 0.001), abs=1e-3)


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        ([], (0, 0)),
        ([(4, 2.0)], (0, 0.5)),
        ([(4, 2.0), (4, 2.0), (4, 2.0)], (0, 0.5)),  # nothing says what is fixed
        ([(1, 5.0), (2, 5.0), (3, 5.0)], (5, 0)),
    ],
)
def test_few_samples(samples: list[tuple[float, float]], wanted: tuple[float, float]) -> None:
    line = CostLine()
    for amount, seconds in samples:
        line.add(amount, seconds)
    assert line.line == pytest.approx(wanted)


def test_nothing_is_ever_negative() -> None:
    for samples in ([(1, 9.0), (9, 1.0)], [(8, 1.0), (9, 9.0)]):
        line = CostLine()
        for amount, seconds in samples:
            line.add(amount, seconds)
        assert min(line.line) == 0
        assert line.seconds(5) > 0
