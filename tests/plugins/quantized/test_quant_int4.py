"""``quantizer.int4``: the kit, and codes equal a search of all sixteen."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from gatewayd_hooks.quantization import Matrix
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_int4 import strategy
from gatewayd_quant_int4.config import Int4QuantizerConfig
from gatewayd_quant_int4.strategy import Int4Quantizer

SETTINGS: list[dict[str, Any]] = [
    {"group_size": size, "symmetric": is_symmetric}
    for size in (32, 64, 128)
    for is_symmetric in (False, True)
]


def quantized(weight: torch.Tensor, **settings: Any) -> Any:
    return Int4Quantizer(Int4QuantizerConfig(**settings)).quantize(
        Matrix("m", *weight.shape), weight
    )


def drawn(rows: int, columns: int) -> torch.Tensor:
    """Rows of all sizes, some of whose groups are on one side of zero."""
    made = torch.randn(rows, columns) * torch.logspace(-6, 6, rows).unsqueeze(-1)
    made[::3] = made[::3].abs()
    made[1, : columns // 2] = -made[1, : columns // 2].abs() - 5.0
    return made


class TestInt4(QuantizerConformance):
    def make(self) -> Int4Quantizer:
        return Int4Quantizer(Int4QuantizerConfig(group_size=64))


class TestInt4Symmetric(QuantizerConformance):
    def make(self) -> Int4Quantizer:
        return Int4Quantizer(Int4QuantizerConfig(group_size=32, symmetric=True))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("block", [1, 512, 1 << 20])
def test_each_number_is_the_nearest_of_its_groups_sixteen(
    block: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy, "_BLOCK", block)
    weight = drawn(12, 256)
    made = quantized(weight, **settings)
    size = settings["group_size"]
    assert made.scales.shape == (12, 256 // size)
    assert (made.bits, made.group_of, made.activations) == (4, None, "float")
    least = -8 if settings["symmetric"] else 0
    numbers = torch.arange(least, least + 16, dtype=torch.float64)
    for row in range(12):
        for group in range(256 // size):
            some = slice(group * size, (group + 1) * size)
            there = numbers * made.scales[row, group].double()
            if made.offsets is not None:
                there += made.offsets[row, group].double()
            wanted = weight[row, some].double()
            nearest = (wanted.unsqueeze(-1) - there).abs().min(-1).values
            found = (wanted - there[made.codes[row, some].long() - least]).abs()
            step = float(made.scales[row, group])
            assert (found - nearest).max() <= 1e-5 * step
            # The steps span the group and no more: finer ones would not reach its ends.
            span = max(float(wanted.max()), 0.0) - min(float(wanted.min()), 0.0)
            if settings["symmetric"]:
                span = 2 * float(wanted.abs().max())
            assert span <= 15 * step * (1 + 1e-6)
            assert 15 * step <= span * (1 + 2.0**-7)


@pytest.mark.parametrize("is_symmetric", [False, True])
def test_kernels_of_16_bits_can_hold_its_scales(is_symmetric: bool) -> None:
    made = quantized(drawn(24, 256), symmetric=is_symmetric)
    middle = made.scales * 8 + (0 if made.offsets is None else made.offsets)
    for numbers in (made.scales, middle):
        assert torch.equal(numbers, numbers.bfloat16().float())


def test_the_head_and_columns_that_fit_into_no_groups_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, weight = Int4Quantizer(Int4QuantizerConfig()), drawn(4, 128)
    assert ours.quantize(Matrix("lm_head", 4, 128), weight) is None
    assert (
        Int4Quantizer(Int4QuantizerConfig(head=True)).quantize(Matrix("lm_head", 4, 128), weight)
        is not None
    )
    with caplog.at_level(logging.WARNING):
        assert ours.quantize(Matrix("layers.0.mlp.down_proj", 4, 96), drawn(4, 96)) is None
    assert [record.getMessage() for record in caplog.records] == [
        "layers.0.mlp.down_proj not quantized: 96 columns are not a multiple of"
        " [quantizer.int4] group_size, 128"
    ]
