"""Elementary functions: close to float64 over the whole range of float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch

from gatewayd_engine.kernels.cpu import elementary
from gatewayd_engine.kernels.llvm.builder import KernelFunction, Pointer, Value
from tests.engine.kernels.cpu.emitting import FLOATS, NUMBER, Emitted, this_processor

ACTIVATIONS = ("silu", "gelu_tanh", "gelu")
SQRT_HALF = math.sqrt(0.5)
ORACLES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu": lambda x: x * torch.special.erfc(x * -SQRT_HALF) / 2,
    "gelu_tanh": lambda x: x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}
"""By name: the function of float64 numbers, for moderate ones."""


@cache
def emitted(name: str) -> Emitted:
    lanes = this_processor().lanes
    function = getattr(elementary, name)

    def emit(f: KernelFunction, x: Pointer, out: Pointer, count: Value) -> None:
        with f.loop(0, count, lanes) as at:
            out.store(function(f, x.vector(lanes, at)), at)

    return Emitted([FLOATS, FLOATS, NUMBER], emit)


def of(name: str, x: torch.Tensor) -> torch.Tensor:
    """Compute a function of some numbers."""
    lanes = this_processor().lanes
    padded = torch.zeros(-(-len(x) // lanes) * lanes)
    padded[: len(x)] = x
    out = torch.empty_like(padded)
    emitted(name)(padded, out, len(padded))
    return out[: len(x)]


def ulps(made: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Errors in units in the last place of float32."""
    spacing = 2.0 ** (torch.frexp(expected)[1] - 24.0).double()
    return (made.double() - expected).abs() / spacing


def spread(low: float, high: float) -> torch.Tensor:
    return torch.linspace(low, high, 20_001)


def test_exponentials_are_within_a_unit_in_the_last_place() -> None:
    x = torch.cat((spread(-87.3, 88.3), spread(-1, 1), spread(-1e-6, 1e-6)))
    assert ulps(of("exp", x), torch.exp(x.double())).max() < 1


def test_exponentials_of_large_numbers_are_finite() -> None:
    made = of("exp", torch.tensor([88.5, 200.0, 3e38, math.inf]))
    assert (made > 2.3e38).all()
    assert torch.isfinite(made).all()


def test_exponentials_that_would_be_denormal_are_zero() -> None:
    x = torch.tensor([-math.inf, -3e38, -200.0, -88.0, -87.34, -87.32])
    made = of("exp", x)
    assert made[:5].tolist() == [0.0] * 5
    assert made[5] >= torch.finfo().tiny


def test_the_exponential_of_zero_is_exact() -> None:
    assert of("exp", torch.tensor([0.0, -0.0, 1e-30, -1e-40])).tolist() == [1.0] * 4


def test_sigmoid_linear_units_are_within_two_units_in_the_last_place() -> None:
    x = torch.cat((spread(-80, 30), spread(-1e-3, 1e-3)))
    assert ulps(of("silu", x), ORACLES["silu"](x.double())).max() < 2


@pytest.mark.parametrize(("name", "bound"), [("gelu_tanh", 1.5e-7), ("gelu", 3e-7)])
def test_errors_of_activations_are_small_in_proportion(name: str, bound: float) -> None:
    x = torch.cat((spread(-30, 30), spread(-2, 2), spread(-1e-3, 1e-3)))
    errors = of(name, x).double() - ORACLES[name](x.double())
    assert (errors.abs() <= x.abs() * bound).all()


def test_hyperbolic_tangents_are_those_of_float64() -> None:
    x = torch.cat((spread(-30, 30), spread(-2, 2), spread(-1e-3, 1e-3)))
    assert (of("tanh", x).double() - torch.tanh(x.double())).abs().max() < 2e-7


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_large_numbers_are_these_or_zero(name: str) -> None:
    x = torch.cat((10.0 ** torch.arange(2, 39), torch.tensor([torch.finfo().max])))
    torch.testing.assert_close(of(name, x), x)
    assert of(name, -x).abs().max() < 1e-30


def test_hyperbolic_tangents_of_large_numbers_are_one() -> None:
    x = torch.tensor([20.0, 1e3, 1e20, torch.finfo().max, math.inf])
    assert of("tanh", x).tolist() == [1.0] * 5
    assert of("tanh", -x).tolist() == [-1.0] * 5


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_infinity_are_those_of_torch(name: str) -> None:
    positive, negative = of(name, torch.tensor([math.inf, -math.inf])).tolist()
    assert positive == math.inf
    assert math.isnan(negative)


@pytest.mark.parametrize("name", ["tanh", *ACTIVATIONS])
def test_functions_of_zero_are_zero(name: str) -> None:
    assert of(name, torch.tensor([0.0, -0.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["exp", "tanh", *ACTIVATIONS])
def test_nan_stays_nan_in_its_lane(name: str) -> None:
    x = spread(-3, 3)[:64]
    expected = of(name, x)
    x[5::9] = math.nan
    made = of(name, x)
    assert made[5::9].isnan().all()
    others = ~x.isnan()
    assert torch.equal(made[others], expected[others])
