"""Block-scaled matmuls: two implementations compared at any size on any device."""

from __future__ import annotations

import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.quantized.block_scales import GROUP, Blocks, blocks
from gatewayd_engine.kernels.quantized.scratch import DequantizeScratch
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.weights import to_device
from gatewayd_hooks.quantization import GroupedWeight
from tests.engine.kernels.checks import random

TWIN = TorchKernels()
E4M3 = torch.float8_e4m3fn


def in_blocks(rows: int, columns: int, tall: int = 128) -> GroupedWeight:
    """A weight of random codes, of which so many rows and 128 columns share a scale."""
    generator = torch.Generator().manual_seed(rows + columns + tall)
    numbers = torch.randn(rows, columns, generator=generator) * 40
    numbers.view(-1)[:3] = torch.tensor([2.0**-9, -3 * 2.0**-9, 448.0])
    scales = torch.rand(-(-rows // tall), columns // GROUP, generator=generator) + 0.5
    scales = scales.repeat_interleave(tall, 0)[:rows] / 64
    return GroupedWeight(numbers.to(E4M3), scales, activations="e4m3")


def made_blocks(weight: GroupedWeight, device: torch.device) -> tuple[Blocks, DequantizeScratch]:
    there = to_device(weight, device)
    assert isinstance(there, GroupedWeight)
    made = blocks(there)
    assert made is not None
    room = DequantizeScratch(device, torch.bfloat16)
    room.reserve_parts(made)
    return made, room


def block_mm(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    rows: int,
    columns: int,
    tall: int = 128,
    has_bias: bool = False,
) -> None:
    weight, room = made_blocks(in_blocks(rows, columns, tall), device)
    assert weight.tall == (128 if tall % 128 == 0 else 1)
    x = random(n, columns, dtype=torch.float32, device=device)
    x *= 10 ** random(n, 1, dtype=torch.float32, device=device)
    given = TWIN.quantize(x, E4M3, GROUP)
    bias = random(rows, dtype=dtype, device=device) if has_bias else None
    # Into something wider.
    mine, other = torch.zeros(2, n, rows + 16, dtype=dtype, device=device)
    TWIN.block_mm(given, weight, bias, room, mine[:, :rows])
    for _ in range(2):
        kernels.block_mm(given, weight, bias, room, other[:, :rows])
        assert torch.isfinite(other).all()
        scale = mine.float().abs().amax(1, keepdim=True)
        bound = (1e-5 if dtype == torch.float32 else 2**-7) * scale
        assert ((other.float() - mine.float()).abs() <= bound).all()
        assert not other[:, rows:].any()
        assert not room.arrived.any()
