"""Row quantization: torch reference equals the definition, kernels equal the reference."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.quantized.quantize_rows import MOST_CODES
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from tests.engine.kernels import checks

DTYPES = [torch.float32, torch.bfloat16]
CODES = list(MOST_CODES)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_round_as_their_twins(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, codes: torch.dtype
) -> None:
    for n, size in [(0, 8), (1, 24), (3, 1500)]:
        checks.quantize(kernels, device, dtype, n, size, codes)
        checks.gated_quant(kernels, device, dtype, n, size, "silu", codes)
        for adds in (False, True):
            checks.add_rms_norm_quant(kernels, device, dtype, n, size, adds, codes)


@pytest.mark.parametrize("codes", CODES)
def test_groups_are_rounded_as_their_twins(
    kernels: Kernels, device: torch.device, codes: torch.dtype
) -> None:
    for n, size in [(0, 128), (1, 128), (3, 1408)]:  # the latter within the last power of two
        checks.quantize(kernels, device, torch.bfloat16, n, size, codes, 128)
        checks.gated_quant(kernels, device, torch.bfloat16, n, size, "silu", codes, 128)
        checks.add_rms_norm_quant(kernels, device, torch.bfloat16, n, size, True, codes, 128)
    made = kernels.quantize(torch.randn(3, 1408, device=device), codes, 128)
    assert made.scales.shape == (3, 11)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_scaled_as_their_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype
) -> None:
    for n, size, has_bias in [(0, 8, False), (1, 24, True), (3, 1500, False), (2, 1024, True)]:
        checks.scaled(kernels, device, dtype, n, size, has_bias)


@pytest.mark.parametrize("codes", CODES)
def test_rows_of_zeros_and_rows_that_are_no_numbers_keep_to_themselves(
    kernels: Kernels, device: torch.device, codes: torch.dtype
) -> None:
    for which in (kernels, TorchKernels()):
        x = torch.randn(5, 40, device=device)
        sound = which.quantize(x, codes)
        x[1], x[2, 3], x[3, 5], x[4] = 0.0, torch.nan, -torch.inf, 1e-42
        made = which.quantize(x, codes)
        assert torch.equal(made.codes[:1].float(), sound.codes[:1].float())
        assert not made.codes[1].float().any()
        assert made.scales[2:4].isnan().all()
        assert made.scales[[0, 1, 4]].isfinite().all()


def test_products_of_integers_have_enough_lines(kernels: Kernels, device: torch.device) -> None:
    x = torch.randn(3, 64, device=device)
    made = kernels.quantize(x, torch.int8)
    assert made.codes.shape == (32, 64)
    assert made.scales.shape == (3, 1)
    assert kernels.quantize(x, torch.float8_e4m3fn).codes.shape == (3, 64)
    assert kernels.quantize(x.expand(3, -1).repeat(20, 1), torch.int8).codes.shape == (60, 64)


@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("codes", CODES)
def test_the_twin_is_the_nearest_code(codes: torch.dtype, group: int) -> None:
    x = torch.randn(4, 96)
    made = TorchKernels().quantize(x, codes, group)
    assert made.scales.shape == (4, 3 if group else 1)
    by_group = torch.unflatten(made.codes.float(), 1, (made.scales.shape[1], -1))
    assert (by_group.abs().amax(-1) == MOST_CODES[codes]).all()
    every = torch.arange(256, dtype=torch.uint8).view(codes).float()
    every = every[every.isfinite() & (every >= -MOST_CODES[codes])]
    values = (x.view_as(by_group) / made.scales.unsqueeze(-1)).flatten(1)
    nearest = (values.unsqueeze(-1) - every).abs().amin(-1)
    assert torch.equal((made.codes.float() - values).abs(), nearest)
