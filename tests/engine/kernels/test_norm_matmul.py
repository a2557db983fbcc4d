"""Fused norm and matmul: torch reference equals its parts, kernel equals the reference."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.quantized.base import Activation
from tests.engine.kernels import checks


@pytest.mark.parametrize(
    ("dtype", "n", "columns", "rows", "act", "has_bias"),
    [
        (torch.float32, 0, 24, 40, None, False),
        # Rows and columns that are no whole block, of all lines.
        (torch.float32, 16, 200, 70, None, True),
        (torch.float32, 3, 200, 33, "silu", True),
        (torch.bfloat16, 1, 256, 64, None, False),
        (torch.bfloat16, 5, 136, 48, "gelu_tanh", False),
    ],
)
def test_the_kernel_multiplies_as_its_twin(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    columns: int,
    rows: int,
    act: Activation | None,
    has_bias: bool,
) -> None:
    checks.norm_mm(kernels, device, dtype, n, columns, rows, act, has_bias)


@pytest.mark.parametrize("act", [None, "silu"])
def test_the_twin_is_norm_product_and_gate(act: Activation | None) -> None:
    x, scale = torch.randn(4, 64) * 3, torch.rand(64)
    weight, bias = torch.randn(48, 64) / 8, torch.randn(48)
    expected = checks.TWIN.add_rms_norm(x, None, scale, 1e-5) @ weight.t() + bias
    if act is not None:
        expected = checks.TWIN.gated(expected, act)
    out = torch.empty_like(expected)
    checks.TWIN.norm_mm(x, scale, 1e-5, weight, bias, act, out)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
