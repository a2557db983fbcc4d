"""Operations on rows: norms, rotary embedding and argmax are those of their definitions."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.kernels.cpu.argmax import argmax, cap
from gatewayd_engine.kernels.cpu.heads import rotate
from gatewayd_engine.kernels.cpu.norm import add_normalised, normalise
from gatewayd_engine.kernels.llvm.builder import KernelFunction, Pointer
from tests.engine.kernels.cpu.emitting import FLOATS, INTEGERS, Emitted, this_processor

EPS = 1e-5
COUNT = 96
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 2.0, -math.inf, math.inf, -1.0, 3e38])


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@cache
def norm(size: int, adds: bool) -> Emitted:
    lanes = this_processor().lanes
    function = add_normalised if adds else normalise

    def emit(f: KernelFunction, x: Pointer, weight: Pointer, out: Pointer) -> None:
        function(f, x, weight, out, size, lanes, EPS)

    return Emitted([FLOATS, FLOATS, FLOATS], emit)


@cache
def rotation(size: int) -> Emitted:
    def emit(f: KernelFunction, x: Pointer, angles: Pointer) -> None:
        rotate(f, x, angles, size, this_processor().lanes)

    return Emitted([FLOATS, FLOATS], emit)


@cache
def largest() -> Emitted:
    def emit(f: KernelFunction, row: Pointer, best: Pointer, index: Pointer) -> None:
        best[0], index[0] = argmax(f, row, COUNT, this_processor().lanes)

    return Emitted([FLOATS, FLOATS, INTEGERS], emit)


def found(row: torch.Tensor) -> tuple[float, int]:
    best, index = torch.empty(1), torch.empty(1, dtype=torch.int64)
    largest()(row, best, index)
    return best.item(), int(index.item())


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean() + EPS).sqrt() * weight.double()


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("size", [16, 48, 64, 80, 288, 1040])
def test_norms_are_those_of_float64(size: int, scale: float) -> None:
    x, weight, old = numbers(size) * scale, numbers(size, seed=1), numbers(size, seed=2)
    out, onto, same = torch.empty(size), old.clone(), x.clone()
    norm(size, False)(x, weight, out)
    norm(size, True)(x, weight, onto)
    norm(size, False)(same, weight, same)
    torch.testing.assert_close(out.double(), normed(x, weight), atol=0, rtol=1e-6)
    torch.testing.assert_close(onto.double(), old + normed(x, weight), atol=1e-6, rtol=1e-6)
    assert torch.equal(same, out)


def test_the_norm_of_zeros_is_zero() -> None:
    out = torch.empty(64)
    norm(64, False)(torch.zeros(64), numbers(64), out)
    assert not out.any()


@pytest.mark.parametrize("size", [16, 48, 128])
def test_pairs_are_rotated_by_their_angles(size: int) -> None:
    x, angles = numbers(size + 16), numbers(size // 2, seed=1) * 100
    turned = x.clone()
    rotation(size)(turned, torch.stack((angles.cos(), angles.sin()), 1).contiguous())
    pairs = torch.view_as_complex(x[:size].double().view(-1, 2))
    expected = torch.view_as_real(pairs * torch.exp(1j * angles.double())).flatten()
    torch.testing.assert_close(turned[:size].double(), expected, atol=1e-6, rtol=0)
    assert torch.equal(turned[size:], x[size:])


@given(row=st.lists(NUMBERS, min_size=COUNT, max_size=COUNT))
def test_the_first_of_the_largest_is_found(row: list[float]) -> None:
    numbers = np.array(row, np.float32)
    index = int(np.argmax(numbers))
    assert found(torch.tensor(row)) == (numbers[index], index)


@given(first=st.integers(0, COUNT - 1), second=st.integers(0, COUNT - 1))
def test_the_first_of_two_equal_ones_is_found(first: int, second: int) -> None:
    row = -numbers(COUNT).abs()
    row[[first, second]] = 5.0
    assert found(row) == (5.0, min(first, second))


def test_each_place_is_found() -> None:
    for place in range(COUNT):
        row = numbers(COUNT, seed=place)
        row[place] = 10.0
        assert found(row) == (10.0, place)


def test_of_nothing_but_negative_infinity_the_first_is_found() -> None:
    assert found(torch.full((COUNT,), -math.inf)) == (-math.inf, 0)


@given(place=st.integers(0, COUNT - 1), rest=st.sampled_from([0.0, math.inf, -math.inf, math.nan]))
def test_the_largest_is_nan_if_one_is(place: int, rest: float) -> None:
    row = numbers(COUNT)
    row[(place * 7 + 1) % COUNT] = rest
    row[place] = math.nan
    best, index = found(row)
    assert math.isnan(best)
    assert 0 <= index < COUNT


def test_capped_logits_are_those_of_float64() -> None:
    lanes = this_processor().lanes
    capped = Emitted([FLOATS], lambda f, row: cap(f, row, COUNT, lanes, 30.0))
    row = numbers(COUNT) * 60
    row[7] = 1e30
    made = row.clone()
    capped(made)
    expected = 30 * torch.tanh(row.double() / 30)
    torch.testing.assert_close(made.double(), expected, atol=1e-5, rtol=0)
