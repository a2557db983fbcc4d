"""Sampling noise: bits equal the CPU sampler's generator; Gumbel distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from gatewayd_engine.kernels.sampling.torch_sampling import bits, gumbel, keys
from gatewayd_engine.sampling.random import mix

WORD = 0xFFFFFFFF


def seeds_and_positions(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (n,), generator=generator)
    return seeds, torch.randint(0, 1 << 20, (n,), generator=generator)


def test_keys_are_the_bits_that_the_cpu_sampler_draws_from() -> None:
    seeds, positions = seeds_and_positions(100)
    seeds[:3] = torch.tensor([0, -1, 1])
    expected = mix(mix(seeds.numpy().view(np.uint64)) ^ positions.numpy().view(np.uint64))
    assert np.array_equal(keys(seeds, positions).numpy().view(np.uint64), expected)


def test_bits_are_three_rounds_of_multiplication() -> None:
    generator = np.random.default_rng(0)
    for key, token in zip(
        generator.integers(0, 1 << 64, 200, np.uint64),
        generator.integers(0, 1 << 18, 200),
        strict=True,
    ):
        value = int(token) ^ int(key) & WORD
        value = (value ^ value >> 17) * 0xED5AD4BB & WORD
        value ^= int(key) >> 32
        value = (value ^ value >> 11) * 0xAC4C1B51 & WORD
        value = (value ^ value >> 15) * 0x31848BAB & WORD
        value ^= value >> 14
        signed = torch.tensor(key.astype(np.int64).item())
        assert bits(signed, torch.tensor(int(token))).item() == value


@pytest.mark.parametrize("across", ["tokens", "positions", "seeds"])
def test_bits_are_uniform_and_neighbours_unrelated(across: str) -> None:
    n = 1 << 17
    count = torch.arange(n)
    if across == "tokens":
        random = bits(keys(torch.tensor(5), torch.tensor(9)), count)
    elif across == "positions":
        random = bits(keys(torch.tensor(5), count), torch.tensor(1000))
    else:
        random = bits(keys(count, torch.tensor(7)), torch.tensor(1000))
    pairs = (random >> 28) * 16 + (random.roll(1) >> 28)
    low = (random & 15) * 16 + (random.roll(1) & 15)
    for cells in (pairs, low):
        counts = torch.bincount(cells, minlength=256).numpy()
        assert stats.chisquare(counts).pvalue > 1e-4


def test_noise_has_gumbels_law() -> None:
    random = bits(keys(torch.tensor(3), torch.tensor(4)), torch.arange(1 << 16))
    assert stats.kstest(gumbel(random).numpy(), stats.gumbel_r.cdf).pvalue > 1e-3


def test_the_ends_of_the_noise_are_exact() -> None:
    ends = torch.tensor([0, 1, 1000, WORD - 1, WORD])
    exact = -np.log(-np.log1p(-(ends.numpy() + 0.5) * 2.0**-32))
    assert torch.allclose(gumbel(ends).double(), torch.from_numpy(exact), rtol=1e-6)
    assert exact.max() > 22
    assert exact.min() < -3
