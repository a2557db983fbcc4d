"""Gated activation: torch reference equals the CPU model, kernel equals the reference."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.quantized.base import Activation
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from tests.engine.kernels import checks

ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize(("n", "size"), [(0, 8), (1, 24), (3, 1500)])
def test_the_kernel_gates_as_its_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, act: Activation, n: int, size: int
) -> None:
    checks.gated(kernels, device, dtype, n, size, act)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_far_gates_neither_overflow_nor_lose_their_sign(
    kernels: Kernels, device: torch.device, act: Activation
) -> None:
    gate = torch.tensor([[-1e30, -100.0, -0.0, 0.0, 100.0, 1e9]], device=device)
    gated = kernels.gated(torch.cat((gate, torch.full_like(gate, 2.0)), 1), act)
    assert gated.tolist() == [[0.0, 0.0, 0.0, 0.0, 200.0, 2e9]]


def test_the_twin_is_the_formula() -> None:
    gate = torch.linspace(-6, 6, 101, dtype=torch.float64)
    gate_up = torch.cat((gate, torch.full_like(gate, 3.0))).float().unsqueeze(0)
    phi = 0.5 * (1 + torch.erf(gate / 2**0.5))
    bent = 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    for act, factor in zip(ACTIVATIONS, (torch.sigmoid(gate), phi, bent), strict=True):
        expected = (3 * gate * factor).float().unsqueeze(0)
        checks.close(TorchKernels().gated(gate_up, act), expected)
