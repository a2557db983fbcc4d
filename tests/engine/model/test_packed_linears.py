"""Packed linears with bfloat16 activations: equal float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from gatewayd_engine.model.linears.dequantized import DequantizedLinear
from gatewayd_engine.model.linears.groups_of_16 import GroupsOf16Linear
from gatewayd_engine.model.linears.int4 import Int4Linear
from gatewayd_engine.model.linears.int8_as_int4_pairs import Int8AsInt4PairsLinear
from gatewayd_engine.model.linears.packed_cpu import WeightOnlyInt8Linear
from gatewayd_engine.model.linears.select_cpu import make_cpu_linear
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight

# Rows, columns, groups; of bytes there is one.
SHAPES = [(640, 384, 3), (33, 96, 3), (5, 512, 2), (1, 64, 1), (48, 384, 1), (17, 1024, 4)]
ROWS = [0, 1, 2, 7, 64]
HALF_AN_ULP = 2.0**-8
"""Of bfloat16, relative."""


def drawn(
    rows: int, columns: int, groups: int, *, is_signed: bool = False, has_offsets: bool = True
) -> GroupedWeight:
    """Scales, and where steps lie, are numbers of bfloat16: nothing of the weight is rounded."""
    codes = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    scales = (torch.rand(rows, groups) + 0.5).bfloat16().float()
    offsets = torch.randn(rows, groups).bfloat16().float() if has_offsets else None
    if is_signed:
        codes = codes.view(torch.int8) - 8
    elif offsets is not None:
        offsets -= 8 * scales
    return GroupedWeight(codes, scales, offsets, bits=4)


def of_bytes(rows: int, columns: int, groups: int) -> GroupedWeight:
    codes = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    return GroupedWeight(codes, torch.rand(rows, 1) + 0.5)


def in_halves(rows: int, columns: int, groups: int, *, is_signed: bool = False) -> GroupedWeight:
    """Of bytes in groups; where their steps lie is a number of bfloat16, too."""
    codes = torch.randint(0, 256, (rows, columns), dtype=torch.uint8)
    scales = (torch.rand(rows, groups) + 0.5).bfloat16().float()
    middles = torch.randn(rows, groups).bfloat16().float()
    if is_signed:
        return GroupedWeight(codes.view(torch.int8), scales, middles - 8 * scales)
    return GroupedWeight(codes, scales, middles - 136 * scales)


def in_sixteens(
    rows: int, columns: int, groups: int, *, least: int, most: int, times: int = 0
) -> GroupedWeight:
    """Of bytes in many groups; with offsets if what is added is to be so many times a bfloat16."""
    groups = columns // (48 if groups == 1 and columns % 48 == 0 else 16)
    codes = torch.randint(least, most + 1, (rows, columns)).to(torch.int16)
    codes.view(-1)[:2] = torch.tensor([least, most])
    scales = (torch.rand(rows, groups) + 0.5).bfloat16().float()
    kind = torch.int8 if least < 0 else torch.uint8
    offsets = None
    if times:
        zero = 0 if least < 0 else (most + 1) // 2
        middle = 8 if times > 9 else 0
        offsets = times * torch.randn(rows, groups).bfloat16().float() - (zero + middle) * scales
    return GroupedWeight(codes.to(kind), scales, offsets, 4 if least > -9 and most < 16 else 8)


Draw = Callable[[int, int, int], GroupedWeight]
KINDS: dict[str, tuple[Draw, type]] = {
    "nibbles from 0": (drawn, Int4Linear),
    "nibbles from 0 without offsets": (partial(drawn, has_offsets=False), Int4Linear),
    "nibbles around 0": (partial(drawn, is_signed=True, has_offsets=False), Int4Linear),
    "nibbles around 0 with offsets": (partial(drawn, is_signed=True), Int4Linear),
    "bytes": (of_bytes, WeightOnlyInt8Linear),
    "halves from 0": (in_halves, Int8AsInt4PairsLinear),
    "halves around 0": (partial(in_halves, is_signed=True), Int8AsInt4PairsLinear),
    "4 bits in sixteens": (partial(in_sixteens, least=-8, most=7), GroupsOf16Linear),
    "4 bits from 0 in sixteens": (
        partial(in_sixteens, least=0, most=15, times=1),
        GroupsOf16Linear,
    ),
    "nvfp4": (partial(in_sixteens, least=-12, most=12), GroupsOf16Linear),
    "5 bits with offsets": (partial(in_sixteens, least=-16, most=14, times=2), GroupsOf16Linear),
    "6 bits": (partial(in_sixteens, least=-32, most=31), GroupsOf16Linear),
    "7 bits with offsets": (partial(in_sixteens, least=-72, most=63, times=9), GroupsOf16Linear),
    "8 bits in sixteens": (partial(in_sixteens, least=-128, most=127, times=17), GroupsOf16Linear),
    "8 bits from 0": (partial(in_sixteens, least=0, most=255, times=17), GroupsOf16Linear),
}


def check(made: torch.Tensor, x: torch.Tensor, weight: GroupedWeight, bias: Any) -> None:
    """Only inputs and outputs are rounded to bfloat16; sums are of float32."""
    numbers, rounded = dense(weight).double(), x.bfloat16().double()
    wanted = rounded @ numbers.t()
    noise = 1e-6 * (rounded.abs() @ numbers.abs().t())
    low = torch.zeros_like(numbers)
    is_halved = weight.bits == 8 and x.shape[1] // weight.scales.shape[1] % 32 == 0
    if is_halved and weight.offsets is not None:
        # Halves are multiplied apart, and each product is rounded.
        codes = (weight.codes & 15).view(torch.int8) - 8
        low = dense(weight._replace(codes=codes, offsets=None)).double()
    sizes = (rounded @ (numbers - low).t()).abs() + (rounded @ low.t()).abs()
    bound = sizes * HALF_AN_ULP * 1.01 + noise + 1e-30
    found = made.double() - (0 if bias is None else bias.double())
    assert ((found - wanted).abs() <= bound + 1e-6 * made.abs()).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_multiplied_as_their_numbers(shape: tuple[int, int, int], kind: str) -> None:
    draw, product = KINDS[kind]
    weight = draw(*shape)
    for bias in (None, torch.randn(shape[0])):
        linear = make_cpu_linear(weight, bias)
        assert isinstance(linear, product)
        assert linear.rounds_inputs
        for rows in ROWS:
            x = torch.randn(rows, shape[1]) * 10 ** torch.randn(rows, 1)
            made = linear(x)
            assert made.dtype == torch.float32
            check(made, x, weight, bias)
            out = torch.full((rows, shape[0] + 3), float("nan"))
            assert linear(x, out=out[:, 3:]).data_ptr() == out[:, 3:].data_ptr()
            assert torch.equal(out[:, 3:], made)
            onto = torch.zeros(rows, shape[0])
            assert linear.add_to(onto, x) is None
            assert torch.equal(onto, made)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("draw", [drawn, of_bytes, in_halves, KINDS["6 bits"][0]])
def test_a_row_does_not_depend_on_its_batch(shape: tuple[int, int, int], draw: Draw) -> None:
    linear, x = make_cpu_linear(draw(*shape)), torch.randn(64, shape[1])
    whole = linear(x)
    for some in (slice(0, 1), slice(3, 5), slice(17, 40), slice(63, 64)):
        assert torch.equal(linear(x[some].clone()), whole[some])
        assert torch.equal(linear(x[some]), whole[some])


@pytest.mark.parametrize(("draw", "times"), [(drawn, 1), (in_halves, 2)])
def test_columns_in_any_order_are_those_of_their_groups(draw: Draw, times: int) -> None:
    order = torch.randperm(384)
    group_of = (torch.arange(384) // 128).to(torch.int32)[order]
    weight = draw(40, 384, 3)._replace(group_of=group_of)
    linear, x = make_cpu_linear(weight), torch.randn(5, 384)
    check(linear(x), x, weight, None)
    assert linear.nbytes == times * (48 * 384 // 2 + 3 * 48 * 4 + 384 * 8)


def test_sixteens_are_multiplied_in_any_order_and_take_a_byte_for_each_code() -> None:
    order = torch.randperm(96)
    weight = KINDS["6 bits"][0](40, 96, 6)
    weight = weight._replace(group_of=(torch.arange(96) // 16).to(torch.int32)[order])
    linear, x = make_cpu_linear(weight), torch.randn(5, 96)
    check(linear(x), x, weight, None)
    assert linear.nbytes == 48 * 96 + 6 * 48 * 4 + 96 * 8


@pytest.mark.parametrize("draw", [drawn, of_bytes])
def test_activations_of_16_bits_come_back_as_they_came(draw: Draw) -> None:
    linear, x = make_cpu_linear(draw(40, 64, 1)), torch.randn(3, 64).bfloat16()
    made = linear(x)
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, linear(x.float()).bfloat16())
    onto = torch.ones(3, 40, dtype=torch.bfloat16)
    linear.add_to(onto, x)
    torch.testing.assert_close(onto, made + 1)


@pytest.mark.parametrize("draw", [drawn, of_bytes])
def test_rows_that_are_no_numbers_keep_to_themselves(draw: Draw) -> None:
    linear, x = make_cpu_linear(draw(32, 64, 1)), torch.randn(4, 64)
    sound = linear(x)
    x[1], x[2, 7] = 0.0, float("nan")
    made = linear(x)
    assert torch.equal(made[[0, 3]], sound[[0, 3]])
    assert not made[1].any()
    assert made[2].isnan().all()


def test_scales_of_a_checkpoint_lose_a_256th() -> None:
    weight = drawn(64, 384, 3)
    weight = weight._replace(scales=torch.rand(64, 3).half().float(), offsets=None)
    x = torch.randn(9, 384)
    lost = (make_cpu_linear(weight)(x) - DequantizedLinear(weight)(x)).abs()
    assert (lost <= 3 * HALF_AN_ULP * (x.abs() @ dense(weight).abs().t())).all()


OTHERS: dict[str, dict[str, Any]] = {
    "bytes of 40 columns": {
        "codes": torch.zeros(40, 40, dtype=torch.int8),
        "scales": torch.ones(40, 1),
        "offsets": None,
    },
    "inputs of 8 bits": {"activations": "int8"},
    "groups of 8": {"scales": torch.rand(40, 48), "offsets": None},
    "uneven groups": {"group_of": torch.tensor([0] * 32 + [1] * 300 + [2] * 52, dtype=torch.int32)},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_the_kernel_cannot_hold_is_made_dense(kind: str) -> None:
    weight = drawn(40, 384, 3)._replace(**OTHERS[kind])
    linear, x = make_cpu_linear(weight), torch.randn(5, weight.codes.shape[1])
    assert isinstance(linear, DequantizedLinear)
    assert not linear.rounds_inputs
    torch.testing.assert_close(linear(x), x @ dense(weight).t(), rtol=1e-4, atol=1e-3)


def test_what_they_take_is_told() -> None:
    weight, bias = drawn(640, 384, 3), torch.randn(640)
    assert make_cpu_linear(weight, bias).nbytes == 640 * 384 // 2 + 640 * 3 * 2 * 2 + 640 * 4
    assert make_cpu_linear(of_bytes(640, 384, 1), bias).nbytes == 640 * 384 + 640 * (4 + 2 + 4)
    assert make_cpu_linear(drawn(640, 384, 1)).nbytes == make_cpu_linear(weight).nbytes, (
        "128 columns at most"
    )
