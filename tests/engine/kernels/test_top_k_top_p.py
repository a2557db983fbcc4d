"""Top-k and top-p: kernel and torch reference equal sorting in float64, ties included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from gatewayd_engine.kernels.base import Kernels, SamplingColumns
from gatewayd_engine.kernels.sampling import torch_sampling
from tests.engine.kernels import checks

Pivots = Callable[[torch.Tensor, torch.Tensor, SamplingColumns], torch.Tensor]
MASS = 1e-5
"""Of the probability, that may be cut or kept in error."""


def of_twin(logits: torch.Tensor, rows: torch.Tensor, columns: SamplingColumns) -> torch.Tensor:
    chosen = (columns.temperature, columns.top_k, columns.top_p, columns.min_p)
    return torch_sampling.pivots(logits.float(), *(column[rows.long()] for column in chosen))


@pytest.fixture(params=["twin", "kernel"])
def pivots(request: pytest.FixtureRequest, kernels: Kernels) -> Pivots:
    if request.param == "twin":
        return of_twin
    from gatewayd_engine.kernels.sampling.top_k_top_p import pivots

    return pivots


def kept(
    logits: NDArray[np.float64], temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tokens that must be kept, and those that may be, by sorting."""
    weight = np.exp((logits - logits.max()) / temperature)
    is_among_k = np.full(len(logits), True)
    if 0 < top_k < len(logits):
        is_among_k = logits >= np.sort(logits)[-top_k]
        weight[~is_among_k] = 0.0
    weight /= weight.sum()
    above = np.array([weight[logits > value].sum() for value in logits])
    must, may = (
        (above < top_p + error if top_p < 1 else np.full(len(logits), True))
        & (weight >= min_p * weight.max() * (1 - 10 * error))
        & is_among_k
        for error in (-MASS, MASS)
    )
    best = logits == logits.max()
    return (must & (weight > MASS / len(logits))) | best, may | best


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1 << 30),
    vocab=st.sampled_from([1, 3, 60, 300]),
    steps=st.sampled_from([0, 2, 8]),
    is_half=st.booleans(),
    temperature=st.sampled_from([0.01, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 20, 299, 1000]),
    top_p=st.sampled_from([0.0, 1e-3, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-4, 0.1, 1.0]),
)
def test_filters_keep_what_sorting_keeps(
    pivots: Pivots,
    device: torch.device,
    seed: int,
    vocab: int,
    steps: int,
    is_half: bool,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, vocab, generator=generator) * 3.0
    if steps:
        logits = (logits * steps / 3.0).round() / steps
        logits[0, 0] = -torch.inf if vocab > 1 else -0.0
    if is_half:
        logits = logits.bfloat16()
    columns = checks.columns(
        device, 2, temperature=[0.0, temperature], top_k=[1, top_k], top_p=[0.1, top_p],
        min_p=[0.5, min_p],
    )  # fmt: skip
    row = torch.ones(1, dtype=torch.int32, device=device)
    lowest = pivots(logits.to(device), row, columns).item()
    value = logits[0].double().numpy()
    must, may = kept(value, temperature, top_k, top_p, min_p)
    stays = value >= lowest
    assert not (must & ~stays).any()
    if top_k or top_p < 1 or min_p:
        assert not (stays & ~may & np.isfinite(value)).any()
    else:
        assert lowest == -np.inf


def test_filters_over_several_blocks(pivots: Pivots, device: torch.device) -> None:
    logits = checks.random(3, 9001, dtype=torch.float32, device=device, scale=2.0)
    columns = checks.columns(device, 3, top_k=[7000, 0, 50], top_p=[1.0, 0.9, 0.5])
    lowest = pivots(logits, torch.arange(3, dtype=torch.int32, device=device), columns)
    ordered = logits.double().cpu().sort(descending=True).values
    assert (logits >= lowest.unsqueeze(1)).sum(-1)[0] == 7000
    for line, count in ((1, 9001), (2, 50)):
        weight = (ordered[line, :count] - ordered[line, 0]).exp()
        weight /= weight.sum()
        before = weight.cumsum(0) - weight
        left = int((logits[line] >= lowest[line]).sum())
        assert before[left - 1] < columns.top_p[line].item() + MASS
        assert before[left] > columns.top_p[line].item() - MASS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neighbouring_floats_are_told_apart(
    pivots: Pivots, device: torch.device, dtype: torch.dtype
) -> None:
    kind = torch.int32 if dtype == torch.float32 else torch.int16
    first = torch.tensor(2.0, dtype=dtype).view(kind)
    # Two of each, so that not every count is reached exactly.
    line = (first + torch.arange(20).repeat(2).to(kind)).view(dtype)
    line[::3] *= -1
    columns = checks.columns(device, 40, top_k=[1.0 + i for i in range(40)])
    rows = torch.arange(40, dtype=torch.int32, device=device)
    lowest = pivots(line.expand(40, -1).to(device), rows, columns).cpu()
    line = line.float()
    for pivot, expected in zip(lowest, line.sort(descending=True).values, strict=True):
        assert torch.equal(line >= pivot, line >= expected)


def test_zeros_of_both_signs_weigh_alike(pivots: Pivots, device: torch.device) -> None:
    logits = torch.tensor([[2.0, *[0.0] * 3, *[-0.0] * 9, -1.0]], device=device)
    columns = checks.columns(device, 1, top_k=[2], top_p=[0.5])
    lowest = pivots(logits, torch.zeros(1, dtype=torch.int32, device=device), columns)
    assert (logits >= lowest).sum() == 13


def test_lines_whose_largest_is_not_finite_are_not_cut(
    pivots: Pivots, device: torch.device
) -> None:
    logits = torch.zeros(2, 50, device=device)
    logits[0, 3] = torch.inf
    logits[1] = -torch.inf
    columns = checks.columns(device, 1, top_k=[2], top_p=[0.5], min_p=[0.5])
    rows = torch.zeros(2, dtype=torch.int32, device=device)
    assert pivots(logits, rows, columns).tolist() == [-torch.inf, -torch.inf]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, 0, 1.0, 0.0), (0.5, 0, 1.0, 0.0), (2.0, 8, 1.0, 0.0), (1.0, 0, 0.8, 0.0),
     (1.5, 0, 1.0, 0.2), (1.3, 12, 0.9, 0.05)],
)  # fmt: skip
def test_the_twin_draws_from_softmax(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    n = 30_000
    logits = checks.random(1, 24, dtype=torch.float32, device=torch.device("cpu"), scale=1.5)
    columns = checks.columns(
        torch.device("cpu"), 1, temperature=[temperature], top_k=[top_k], top_p=[top_p],
        min_p=[min_p], seed=[11],
    )  # fmt: skip
    rows = torch.zeros(n, dtype=torch.int32)
    tokens, _ = checks.TWIN.sample(logits.expand(n, -1), rows, torch.arange(n), columns)
    value = logits[0].double().numpy()
    stays, _ = kept(value, temperature, top_k, top_p, min_p)
    weight = np.where(stays, np.exp(value / temperature), 0.0)
    counts = np.bincount(tokens.numpy(), minlength=24)
    assert counts[~stays].sum() == 0
    expected = weight[stays] / weight.sum() * n
    assert stats.chisquare(counts[stays], expected).pvalue > 1e-4
