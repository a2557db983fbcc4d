"""``quantizer.int8``: the kit, and codes equal float64 division."""

from __future__ import annotations

import pytest
import torch

from gatewayd_hooks.quantization import Matrix
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_int8 import strategy
from gatewayd_quant_int8.strategy import Int8Quantizer


class TestInt8(QuantizerConformance):
    def make(self) -> Int8Quantizer:
        return Int8Quantizer()


@pytest.mark.parametrize("block", [1, 64, 1 << 20])
def test_the_largest_number_of_a_row_is_127_and_the_rest_in_proportion(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy, "_BLOCK", block)
    weight = torch.randn(33, 64) * torch.logspace(-6, 6, 33).unsqueeze(-1)
    made = Int8Quantizer().quantize(Matrix("m", 33, 64), weight)
    largest = weight.abs().amax(1, keepdim=True).double()
    assert torch.equal(made.codes.abs().amax(1), torch.full((33,), 127, dtype=torch.int8))
    exact = weight.double() * 127 / largest
    assert ((made.codes.double() - exact).abs() <= 0.5 + 1e-4).all()
    assert (made.bits, made.offsets, made.group_of, made.activations) == (8, None, None, "int8")


def test_numbers_too_small_for_a_scale_are_kept_as_they_can_be() -> None:
    weight = torch.full((1, 8), 1e-44)
    made = Int8Quantizer().quantize(Matrix("m", 1, 8), weight)
    assert made.scales.isfinite().all()
    assert made.scales.min() > 0
    assert (made.codes * made.scales).abs().max() <= torch.finfo(torch.float32).tiny
