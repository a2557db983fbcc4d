"""Random choices of tokens: those of the sampler in torch."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from gatewayd_engine.kernels.cpu.argmax import argmax
from gatewayd_engine.kernels.cpu.draw import draw
from gatewayd_engine.kernels.llvm.builder import F32, F64, I64, KernelFunction, Pointer, Value
from gatewayd_engine.sampling.sampler import sample
from tests.engine.kernels.cpu.emitting import Emitted, this_processor


@cache
def drawing(count: int) -> Emitted:
    """A function that draws a token for each row of ``count`` logits."""

    def emit(
        f: KernelFunction,
        logits: Pointer,
        rows: Value,
        temperatures: Pointer,
        uniforms: Pointer,
        out: Pointer,
    ) -> None:
        lanes = this_processor().lanes
        with f.loop(0, rows) as row:
            own = logits + row * count
            largest, _ = argmax(f, own, count, lanes)
            out[row] = draw(f, own, count, lanes, largest, temperatures[row], uniforms[row])

    return Emitted([[F32], I64, [F32], [F64], [I64]], emit)


def drawn(logits: torch.Tensor, temperature: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(logits),), -1)
    drawing(logits.shape[1])(logits, len(logits), temperature, uniform, out)
    return out


@pytest.mark.parametrize("count", [16, 17, 23, 64, 333, 4096])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_tokens_are_those_of_the_sampler(count: int, spread: float) -> None:
    chance = torch.Generator().manual_seed(count)
    logits = torch.randn(500, count, generator=chance) * spread
    logits[::3, ::5] = -torch.inf
    temperature = torch.rand(500, generator=chance) * 1.9 + 0.05
    uniform = torch.rand(500, generator=chance, dtype=torch.float64)
    made = drawn(logits, temperature, uniform)
    assert torch.equal(made, sample(logits, temperature, uniform))
    assert len(set(made.tolist())) > 5


@pytest.mark.parametrize("number", [0.0, 1.0 - 2**-53])
@pytest.mark.parametrize("count", [16, 21, 40])
def test_the_ends_of_the_unit_interval_choose_a_token_with_weight(
    number: float, count: int
) -> None:
    logits = torch.full((1, count), -torch.inf)
    logits[0, 5], logits[0, 13] = 1.0, 2.0
    made = drawn(logits, torch.ones(1), torch.tensor([number], dtype=torch.float64))
    assert made.item() == (5 if number == 0.0 else 13)


def test_a_tiny_temperature_is_greedy() -> None:
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 30
    uniform = torch.rand(50, dtype=torch.float64)
    made = drawn(logits, torch.full((50,), 1e-6), uniform)
    assert torch.equal(made, logits.argmax(-1))


def test_logits_that_no_token_can_be_drawn_from_give_one_of_the_vocabulary() -> None:
    """Their request fails by the largest of them, which is not finite."""
    logits = torch.randn(4, 40)
    logits[0, 7], logits[1], logits[2, 3], logits[3] = torch.nan, -torch.inf, torch.inf, torch.nan
    made = drawn(logits, torch.ones(4), torch.full((4,), 0.5, dtype=torch.float64))
    assert ((made >= 0) & (made < 40)).all()
