"""Norms: torch reference equals the CPU model and float64, kernel equals the reference."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.layers import RMSNorm
from tests.engine.kernels import checks

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("n", "size"), [(0, 64), (1, 64), (3, 96), (5, 1000)])
def test_the_kernel_norms_as_its_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, adds: bool, n: int, size: int
) -> None:
    checks.add_rms_norm(kernels, device, dtype, n, size, adds)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "heads", "dim"), [(0, 2, 16), (1, 1, 64), (3, 11, 24), (2, 8, 128), (2, 1, 1536)]
)
def test_the_kernel_norms_heads_as_its_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, heads: int, dim: int
) -> None:
    checks.norm_heads(kernels, device, dtype, n, heads, dim)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_twin_norms_as_the_model_on_a_cpu(dtype: torch.dtype) -> None:
    x = checks.random(4, 64, dtype=dtype, device=torch.device("cpu"), scale=2.0)
    weight = torch.randn(64)
    expected = RMSNorm(weight, 1e-5, 1.0)(x)
    checks.close(TorchKernels().add_rms_norm(x, None, weight + 1.0, 1e-5), expected)


def test_what_is_added_is_rounded_before_the_norm_and_stays() -> None:
    x = checks.random(4, 64, dtype=torch.bfloat16, device=torch.device("cpu"))
    delta = checks.random(4, 65, dtype=torch.bfloat16, device=torch.device("cpu"))[:, :64]
    total = x + delta
    weight = torch.ones(64)
    normed = TorchKernels().add_rms_norm(x, delta, weight, 1e-5)
    wide = total.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.equal(x, total)
    checks.close(normed, exact.to(torch.bfloat16))
