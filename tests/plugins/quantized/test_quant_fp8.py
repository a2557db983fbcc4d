"""``quantizer.fp8``: the kit, and rounding equals a search of all 256 codes."""

from __future__ import annotations

import pytest
import torch

from gatewayd_hooks.quantization import GroupedWeight, Matrix, QuantizerResources
from gatewayd_quant_fp8 import strategy
from gatewayd_quant_fp8.config import Fp8QuantizerConfig
from gatewayd_quant_fp8.strategy import Fp8Quantizer

FINITE = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).double()
FINITE = FINITE[FINITE.isfinite()]


def opened(device: str = "cpu", *, packed: bool = True) -> Fp8Quantizer:
    made = Fp8Quantizer(Fp8QuantizerConfig(packed=packed))
    made.open(QuantizerResources(folder="", device=device))
    return made


@pytest.mark.parametrize("block", [1, 64, 1 << 20])
def test_each_number_is_the_nearest_multiple_of_its_rows_scale(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy, "_BLOCK", block)
    weight = torch.randn(17, 64) * torch.logspace(-6, 6, 17).unsqueeze(-1)
    weight[3, 5:] *= 1e-5  # below the least normal code
    made = opened().quantize(Matrix("m", 17, 64), weight)
    assert isinstance(made, GroupedWeight)
    assert (made.bits, made.offsets, made.group_of, made.activations) == (8, None, None, "e4m3")
    scales = made.scales.double()
    assert torch.equal(made.codes.float().abs().amax(1), torch.full((17,), 448.0))
    found = (weight.double() - made.codes.double() * scales).abs()
    nearest = (weight.double().unsqueeze(-1) - FINITE * scales.unsqueeze(-1)).abs().min(-1).values
    assert (found <= nearest + 1e-6 * weight.abs()).all()
    floats = opened(packed=False).quantize(Matrix("m", 17, 64), weight)
    assert isinstance(floats, torch.Tensor)
    assert torch.equal(floats, made.codes.float() * made.scales)


def test_a_device_is_given_codes() -> None:
    made = opened("cuda:0", packed=False).quantize(Matrix("m", 4, 8), torch.randn(4, 8))
    assert isinstance(made, GroupedWeight)


def test_numbers_too_small_for_a_scale_are_kept_as_they_can_be() -> None:
    made = opened(packed=False).quantize(Matrix("m", 1, 8), torch.full((1, 8), 1e-44))
    assert isinstance(made, torch.Tensor)
    assert made.abs().max() <= torch.finfo(torch.float32).tiny
