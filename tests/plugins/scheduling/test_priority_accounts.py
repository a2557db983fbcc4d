"""``priority`` class accounts: by themselves."""

import random

import pytest

from gatewayd_sched_priority.shares import Shares


def brute_force(
    budget: int, levels: list[float], weights: tuple[float, ...], demands: list[int]
) -> list[int]:
    """Hand out single tokens, each to the lowest class that can take one."""
    grants = [0 for _ in demands]
    for _ in range(min(budget, sum(demands))):
        number = min(
            (i for i, demand in enumerate(demands) if grants[i] < demand),
            key=lambda i: levels[i] + grants[i] / weights[i],
        )
        grants[number] += 1
    return grants


def test_a_budget_is_divided_as_if_token_by_token() -> None:
    draw = random.Random(5)
    for _ in range(500):
        weights = tuple(draw.choice([0.5, 1.0, 5.0, 10.0]) for _ in range(3))
        shares = Shares(weights)
        shares.levels = [draw.choice([0.0, 10.0, draw.uniform(0, 100)]) for _ in range(3)]
        demands = [draw.choice([0, 1, draw.randrange(200)]) for _ in range(3)]
        budget = draw.randrange(1, 300)
        grants = shares.divide(budget, demands)
        assert sum(grants) == min(budget, sum(demands))
        expected = brute_force(budget, shares.levels, weights, demands)
        # A tie or a rounding may go either way by a token.
        assert grants == pytest.approx(expected, abs=2)
        assert all(0 <= grant <= demand for grant, demand in zip(grants, demands, strict=True))


def test_odd_weights_and_large_levels_lose_no_token() -> None:
    shares = Shares((1e-3, 1e6, 7.0))
    for _ in range(1000):
        grants = shares.divide(100, [90, 90, 90])
        assert sum(grants) == 100
        for number, grant in enumerate(grants):
            shares.charge(number, grant)


def test_the_content_are_brought_up_to_the_lowest_that_want_more() -> None:
    shares = Shares((1.0, 1.0, 1.0))
    shares.levels = [5.0, 30.0, 20.0]
    shares.remove_credit([False, True, True])
    assert shares.levels == [20.0, 30.0, 20.0]


def test_a_debt_is_kept_while_others_want_more() -> None:
    shares = Shares((1.0, 1.0))
    shares.levels = [50.0, 20.0]
    shares.remove_credit([False, True])
    assert shares.levels == [50.0, 20.0]


def test_when_all_are_content_all_are_level() -> None:
    shares = Shares((1.0, 1.0, 1.0))
    shares.levels = [5.0, 30.0, 20.0]
    shares.remove_credit([False, False, False])
    assert shares.levels == [30.0, 30.0, 30.0]
