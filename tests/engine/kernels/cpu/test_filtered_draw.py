"""Random choices of tokens with top-k, top-p and min-p: those of the sampler in torch."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from gatewayd_engine.kernels.cpu.argmax import argmax
from gatewayd_engine.kernels.cpu.filtered_draw import FilteredDraw, Filters
from gatewayd_engine.kernels.llvm.builder import F32, F64, I64, KernelFunction, Pointer, Value
from gatewayd_engine.sampling.sampler import sample
from tests.engine.kernels.cpu.emitting import Emitted, this_processor

ROWS = 300


@cache
def drawing(count: int) -> Emitted:
    """A function that draws a token for each row of ``count`` logits."""

    def emit(
        f: KernelFunction,
        logits: Pointer,
        rows: Value,
        temperatures: Pointer,
        uniforms: Pointer,
        top_k: Pointer,
        top_p: Pointer,
        min_p: Pointer,
        out: Pointer,
    ) -> None:
        lanes = this_processor().lanes
        drawer = FilteredDraw(f.ir.module, count, lanes)
        with f.loop(0, rows) as row:
            own = logits + row * count
            largest, _ = argmax(f, own, count, lanes)
            filters = Filters(top_k[row], top_p[row], min_p[row])
            out[row] = drawer.emit(f, own, largest, temperatures[row], uniforms[row], filters)

    return Emitted([[F32], I64, [F32], [F64], [I64], [F32], [F32], [I64]], emit)


def drawn(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    uniform: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    out = torch.full((len(logits),), -1)
    given = logits, len(logits), temperature, uniform, top_k, top_p, min_p, out
    drawing(logits.shape[1])(*given)
    return out


def random_filters(rows: int, chance: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Filters of rows: none, one, or several of them."""
    top_k = torch.randint(1, 60, (rows,), generator=chance)
    top_p = torch.rand(rows, generator=chance)
    min_p = torch.rand(rows, generator=chance) ** 3
    some = torch.rand(3, rows, generator=chance) < 0.6
    return (
        torch.where(some[0], top_k, 0),
        torch.where(some[1], top_p, 1.0),
        torch.where(some[2], min_p, 0.0),
    )


@pytest.mark.parametrize("count", [16, 17, 23, 64, 333, 4096])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 8.0])
@pytest.mark.parametrize("rounding", [0.0, 0.5])
def test_tokens_are_those_of_the_sampler(count: int, spread: float, rounding: float) -> None:
    """Rounded logits are equal in groups, which the order of tokens goes through by index."""
    chance = torch.Generator().manual_seed(count)
    logits = torch.randn(ROWS, count, generator=chance) * spread
    if rounding:
        logits = (logits / rounding).round() * rounding
    logits[::3, ::5] = -torch.inf
    temperature = torch.rand(ROWS, generator=chance) * 1.9 + 0.05
    uniform = torch.rand(ROWS, generator=chance, dtype=torch.float64)
    filters = random_filters(ROWS, chance)
    made = drawn(logits, temperature, uniform, *filters)
    assert torch.equal(made, sample(logits, temperature, uniform, *filters))
    assert len(set(made.tolist())) > 3


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_so_they_are_of_a_large_vocabulary(spread: float) -> None:
    chance = torch.Generator().manual_seed(1)
    logits = torch.randn(24, 128_256, generator=chance) * spread
    uniform = torch.rand(24, generator=chance, dtype=torch.float64)
    top_k = torch.tensor([0, 0, 50, 20_000] * 6)
    top_p = torch.tensor([0.95, 0.5, 1.0, 0.9, 1.0, 1.0] * 4)
    min_p = torch.tensor([0.0] * 12 + [0.05, 0.3] * 6)
    filters = top_k, top_p, min_p
    made = drawn(logits, torch.ones(24), uniform, *filters)
    assert torch.equal(made, sample(logits, torch.ones(24), uniform, *filters))


@pytest.mark.parametrize("number", [0.0, 1.0 - 2**-53])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "last"),
    [(3, 1.0, 0.0, 4), (0, 0.7, 0.0, 4), (0, 1.0, 0.4, 4), (1, 1.0, 0.0, 2), (0, 0.0, 0.0, 2)],
)
def test_the_ends_of_the_unit_interval_choose_the_first_and_the_last_token(
    number: float, top_k: int, top_p: float, min_p: float, last: int
) -> None:
    """Of weights 1, 1, 0.5, 0.25, 0.25: two are equal to the likeliest, and come by index."""
    logits = torch.full((1, 20), -torch.inf)
    weights = torch.tensor([0.25, 1.0, 1.0, 0.5, 0.25])
    logits[0, [1, 2, 3, 4, 17]] = weights[[0, 1, 2, 3, 4]].log()
    made = drawn(
        logits,
        torch.ones(1),
        torch.tensor([number], dtype=torch.float64),
        torch.tensor([top_k]),
        torch.tensor([top_p]),
        torch.tensor([min_p]),
    )
    assert made.item() == (2 if number == 0.0 else last)


def test_top_p_that_tokens_reach_exactly_keeps_no_other() -> None:
    uniform = torch.tensor([1.0 - 2**-53], dtype=torch.float64)
    filters = torch.tensor([0]), torch.tensor([0.5]), torch.tensor([0.0])
    given = torch.zeros(1, 16), torch.ones(1), uniform, *filters
    assert drawn(*given).item() == sample(*given).item() == 7


def test_logits_that_no_token_can_be_drawn_from_give_one_of_the_vocabulary() -> None:
    """Their request fails by the largest of them, which is not finite."""
    logits = torch.randn(4, 40)
    logits[0, 7], logits[1], logits[2, 3], logits[3] = torch.nan, -torch.inf, torch.inf, torch.nan
    half = torch.full((4,), 0.5)
    made = drawn(logits, torch.ones(4), half.double(), torch.full((4,), 3), half, half)
    assert ((made >= 0) & (made < 40)).all()
