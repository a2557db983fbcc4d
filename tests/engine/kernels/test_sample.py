"""Sampling kernel: tokens equal the torch reference's in any batch; extreme logits."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from tests.engine.kernels import checks

DTYPES = (torch.float32, torch.bfloat16)
INF, NAN = torch.inf, torch.nan
VOCAB = 4096 + 77
"""Several blocks of each kernel, the last of them not full."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "vocab"), [(0, 10), (1, 1), (9, 50), (8, VOCAB)])
def test_the_kernel_draws_as_its_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, vocab: int
) -> None:
    checks.sample(kernels, device, dtype, n, vocab)


def test_noise_is_the_twins(kernels: Kernels, device: torch.device) -> None:
    """Where all logits are equal, the token is where the noise is largest."""
    n = 24
    logits = torch.zeros(1, VOCAB, device=device).expand(n, VOCAB)
    columns = checks.columns(device, n)
    rows = torch.arange(n, dtype=torch.int32, device=device)
    positions = torch.arange(n, device=device) * 12345
    drawn, _ = kernels.sample(logits, rows, positions, columns)
    assert torch.equal(drawn, checks.TWIN.sample(logits, rows, positions, columns)[0])
    assert len(set(drawn.tolist())) > n // 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_seed_repeats_in_any_row_of_any_batch(
    kernels: Kernels, device: torch.device, dtype: torch.dtype
) -> None:
    logits = checks.random(7, VOCAB, dtype=dtype, device=device)
    columns = checks.mixed_columns(device, 7)
    rows = torch.arange(7, dtype=torch.int32, device=device)
    positions = torch.arange(7, dtype=torch.int32, device=device) + 100
    together, _ = kernels.sample(logits, rows, positions, columns)
    for order in ([5], [3, 1], [6, 5, 4, 3, 2, 1, 0]):
        index = torch.tensor(order, device=device)
        apart, _ = kernels.sample(logits[index], rows[index], positions[index].long(), columns)
        assert torch.equal(apart, together[index])


def test_greedy_rows_take_the_first_of_the_largest(kernels: Kernels, device: torch.device) -> None:
    logits = torch.zeros(4, VOCAB, device=device)
    logits[0, [3000, 4100]] = 3.0
    logits[1, [30, 20]] = 1e-3
    logits[2] = -INF
    logits[2, -1] = -1e30
    columns = checks.columns(device, 1, temperature=[1e-8], top_k=[1], top_p=[0.1])
    rows, positions = torch.zeros(2, 4, dtype=torch.int32, device=device)
    tokens, best = kernels.sample(logits, rows, positions, columns)
    assert tokens.tolist() == [3000, 20, VOCAB - 1, 0]
    assert best.tolist() == pytest.approx([3.0, 1e-3, -1e30, 0.0])


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_odd_lines_give_valid_tokens_and_tell(
    kernels: Kernels, device: torch.device, temperature: float, top_p: float
) -> None:
    logits = checks.random(7, VOCAB, dtype=torch.float32, device=device)
    logits[0, 3000] = NAN
    logits[1] = NAN
    logits[2] = -INF
    logits[3, 4100] = INF
    logits[4] = -INF
    logits[4, 4172] = -1e30
    logits[5, 4] = 3e38
    logits[6] = -3e38
    rows = torch.zeros(7, dtype=torch.int32, device=device)
    columns = checks.columns(device, 1, temperature=[temperature], top_p=[top_p])
    tokens, best = kernels.sample(logits, rows, rows, columns)
    assert ((tokens >= 0) & (tokens < VOCAB)).all()
    assert best[:2].isnan().all()
    assert best[2:].tolist() == logits[2:].amax(-1).tolist()
    assert tokens[3:6].tolist() == [4100, 4172, 4]


@pytest.mark.parametrize("dtype", DTYPES)
def test_forbidden_tokens_are_never_drawn(
    kernels: Kernels, device: torch.device, dtype: torch.dtype
) -> None:
    logits = checks.random(7, VOCAB, dtype=dtype, device=device)
    logits[:, torch.arange(VOCAB, device=device) % 1000 != 7] = -INF
    columns = checks.mixed_columns(device, 7)
    rows = torch.arange(7, dtype=torch.int32, device=device)
    tokens, _ = kernels.sample(logits, rows, rows, columns)
    assert (tokens % 1000 == 7).all()


def test_a_tiny_temperature_still_draws_among_equals(
    kernels: Kernels, device: torch.device
) -> None:
    n = 40
    logits = torch.zeros(1, 2100, device=device)
    logits[0, [50, 2080]] = 20.0
    rows = torch.zeros(n, dtype=torch.int32, device=device)
    columns = checks.columns(device, 1, temperature=[1e-6], seed=[3])
    positions = torch.arange(n, device=device)
    tokens, _ = kernels.sample(logits.expand(n, -1), rows, positions, columns)
    counts = torch.bincount(tokens.long(), minlength=2100)
    assert counts[50] + counts[2080] == n
    assert 8 < counts[50].item() < 32
