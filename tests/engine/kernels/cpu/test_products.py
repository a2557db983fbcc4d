"""Products of panels: close to float64, and a row's bits are its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import gelu, silu

from gatewayd_engine.kernels.cpu.panels import pack, pack_codes
from gatewayd_engine.kernels.cpu.select import thread_team
from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.model.linears.panel_linear import PanelLinear, panel_linear
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight
from tests.engine.kernels.cpu.row_checks import (
    assert_bits_are_of_the_row,
    assert_it_stays_in_its_row,
)
from tests.engine.kernels.forked import Child

FORMATS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}
SIZES = [(37, 29), (16, 8), (1, 1), (130, 7), (5, 257)]
"""Outputs and inputs."""


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(form: str, outputs: int, inputs: int) -> torch.Tensor:
    """Weights that the format holds, and no smaller one."""
    dtype = FORMATS[form]
    made = numbers(outputs, inputs).to(dtype).float()
    if form == "f16":
        made[0, 0] = 1.0 + 2.0**-10
    return made


def packed(team: ThreadTeam, weight: torch.Tensor | GroupedWeight) -> PanelLinear:
    made = panel_linear(team, weight)
    assert made is not None
    return made


def linear(
    team: ThreadTeam,
    form: str,
    outputs: int,
    inputs: int,
    *,
    has_bias: bool = False,
    activation: str | None = None,
) -> PanelLinear:
    bias = numbers(outputs, seed=1) if has_bias else None
    made = panel_linear(team, weights(form, outputs, inputs), bias, activation)
    assert made is not None
    assert made.panels.form.name == form
    return made


def assert_sums(
    made: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor
) -> None:
    """Compare with float64, within the bound of any order of additions in float32."""
    terms = [x.double() @ weight.double().t(), *(each.double() for each in others)]
    sizes = [x.double().abs() @ weight.double().abs().t(), *(each.abs() for each in others)]
    bound = sum(sizes) * (x.shape[1] + len(others)) * 2.0**-24
    assert made.dtype == torch.float32
    assert ((made - sum(terms)).abs() <= bound).all()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_products_are_those_of_float64(
    team: ThreadTeam, form: str, outputs: int, inputs: int
) -> None:
    plain = linear(team, form, outputs, inputs)
    biased = linear(team, form, outputs, inputs, has_bias=True)
    weight, bias = weights(form, outputs, inputs), numbers(outputs, seed=1)
    for rows in range(41):
        x, old = numbers(rows, inputs, seed=2), numbers(rows, outputs, seed=3)
        assert_sums(plain(x), x, weight)
        assert_sums(biased(x), x, weight, bias)
        for each, others in ((plain, [old]), (biased, [old, bias])):
            onto = old.clone()
            assert each.add_to(onto, x) is None
            assert_sums(onto, x, weight, *others)


def test_rows_that_exceed_the_cache_are_those_of_float64(team: ThreadTeam) -> None:
    made = linear(team, "bf16", 37, 5000)
    x = numbers(40, 5000, seed=2)
    assert_sums(made(x), x, weights("bf16", 37, 5000))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_products_are_those_of_float64(
    team: ThreadTeam, name: str, has_bias: bool, form: str
) -> None:
    size, inputs = 48, 19
    assert not linear(team, form, 2 * size, inputs, has_bias=has_bias).is_gated
    made = linear(team, form, 2 * size, inputs, has_bias=has_bias, activation=name)
    assert made.is_gated
    bias = numbers(2 * size, seed=1) if has_bias else torch.zeros(2 * size)
    for rows in range(1, 41):
        x = numbers(rows, inputs, seed=2)
        sums = x.double() @ weights(form, 2 * size, inputs).double().t() + bias.double()
        expected = ACTIVATIONS[name](sums[:, :size]) * sums[:, size:]
        outputs = made(x)
        assert outputs.shape == (rows, size)
        torch.testing.assert_close(outputs.double(), expected, atol=2e-5, rtol=2e-6)


def test_a_gate_of_other_sizes_or_activations_is_not_fused(team: ThreadTeam) -> None:
    width = 2 * team.processor.lanes
    x = numbers(3, 9, seed=2)
    for outputs, name in ((width + 2, "silu"), (width // 2, "silu"), (width, "relu")):
        made = linear(team, "bf16", outputs, 9, activation=name)
        assert not made.is_gated
        assert_sums(made(x), x, weights("bf16", outputs, 9))


def test_rows_may_be_part_of_wider_ones(team: ThreadTeam) -> None:
    made = linear(team, "bf16", 37, 29)
    wide, out = numbers(21, 50, seed=2), torch.full((21, 60), 7.0)
    x, inside = wide[1::2, 3:32], out[1::2, 5:42]
    assert made(x, out=inside) is inside
    assert torch.equal(inside, made(x.contiguous()))
    inside.fill_(7.0)
    assert (out == 7.0).all()
    made.add_to(inside, x)
    assert torch.equal(inside, made(x) + 7.0)
    inside.fill_(7.0)
    assert (out == 7.0).all()


def test_other_dtypes_and_strides_are_refused(team: ThreadTeam) -> None:
    made = linear(team, "bf16", 37, 29)
    x = numbers(2, 29)
    for dtype in (torch.float64, torch.bfloat16, torch.int32):
        with pytest.raises(ValueError, match=str(dtype)):
            made(x.to(dtype))
        with pytest.raises(ValueError, match=str(dtype)):
            made(x, out=torch.empty(2, 37, dtype=dtype))
        with pytest.raises(ValueError, match=str(dtype)):
            made.add_to(torch.empty(2, 37, dtype=dtype), x)
    with pytest.raises(ValueError, match="not adjacent"):
        made(numbers(29, 2).t())
    with pytest.raises(ValueError, match="not adjacent"):
        made(x, out=torch.empty(37, 2).t())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("gate", [None, "silu", "gelu", "gelu_tanh"])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(
    form: str, gate: str | None
) -> None:
    team = thread_team(3)
    if team is None:
        pytest.skip("no compiled kernels for this processor")
    made = linear(team, form, 26 * team.processor.lanes, 131, has_bias=True, activation=gate)
    assert made.is_gated == (gate is not None)
    x = numbers(40, 131, seed=2)
    assert_bits_are_of_the_row(made, x, team)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@given(rows=st.integers(2, 40), data=st.data())
def test_numbers_that_are_not_finite_stay_in_their_row(
    form: str, number: float, rows: int, data: st.DataObject
) -> None:
    team = thread_team(2)
    if team is None:
        pytest.skip("no compiled kernels for this processor")
    made = linear(team, form, 37, 29)
    x = numbers(rows, 29, seed=2)
    assert_it_stays_in_its_row(made, x, number, data)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_not_finite_reach_their_output_alone(
    team: ThreadTeam, number: float
) -> None:
    weight = weights("bf16", 37, 29)
    x = numbers(9, 29, seed=2)
    expected = packed(team, weight)(x)
    weight[20, 3] = number
    outputs = packed(team, weight)(x)
    others = torch.arange(37) != 20
    torch.testing.assert_close(outputs[:, others], expected[:, others])
    assert not torch.isfinite(outputs[:, 20]).any()


def test_other_shapes_are_refused(team: ThreadTeam) -> None:
    made = linear(team, "bf16", 37, 29)
    x = numbers(2, 29)
    for wrong in (numbers(2, 28), numbers(2, 30), numbers(29), numbers(1, 2, 29)):
        with pytest.raises(ValueError, match="inputs are"):
            made(wrong, out=torch.empty(2, 37))
    for out in (torch.empty(2, 36), torch.empty(2, 38), torch.empty(3, 37), torch.empty(1, 2, 37)):
        with pytest.raises(ValueError, match="outputs"):
            made(x, out=out)
        with pytest.raises(ValueError, match="outputs"):
            made.add_to(out, x)
    size = 2 * team.processor.lanes
    gated = linear(team, "bf16", size, 29, activation="silu")
    with pytest.raises(ValueError, match="outputs"):
        gated(x, out=torch.empty(2, size))


CODES = {
    "s8": (torch.int8, 8),
    "u8": (torch.uint8, 8),
    "s4": (torch.int8, 4),
    "u4": (torch.uint8, 4),
}


def quantized(codes: str, groups: int, factors: str, has_offsets: bool) -> GroupedWeight:
    """A weight of 37 rows whose factors the format holds, and no smaller one."""
    draw = torch.Generator().manual_seed(groups)
    shape = 37, 48
    scales, offsets = torch.randn(2, 37, groups, generator=draw).to(FORMATS[factors]).float()
    scales[0, 0] = {"bf16": 1.0, "f16": 1.0 + 2.0**-10, "f32": 1.0 / 3}[factors]
    shifts = offsets if has_offsets else None
    if codes == "e4m3":
        every = torch.arange(37 * 48).remainder(256).to(torch.uint8)
        every[(every & 127) == 127] = 0  # NaN
        return GroupedWeight(every.view(torch.float8_e4m3fn).view(shape), scales, shifts)
    dtype, bits = CODES[codes]
    least = -(1 << (bits - 1)) if dtype == torch.int8 else 0
    made = torch.randint(least, least + (1 << bits), shape, generator=draw)
    made[0, :2] = torch.tensor([least, least + (1 << bits) - 1])
    return GroupedWeight(made.to(dtype), scales, shifts, bits)


@pytest.mark.parametrize("codes", [*CODES, "e4m3"])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("factors", FORMATS)
@pytest.mark.parametrize("has_offsets", [False, True])
def test_products_of_codes_are_those_of_their_numbers_bit_for_bit(
    team: ThreadTeam, codes: str, groups: int, factors: str, has_offsets: bool
) -> None:
    weight, lanes = quantized(codes, groups, factors, has_offsets), team.processor.lanes
    panels = pack_codes(weight, lanes)
    assert panels is not None
    form = panels.form
    assert (form.codes, form.num_factors, form.factors) == (codes, 1 + has_offsets, factors)
    assert panels.data.shape[1] == form.panel_bytes(48, groups, lanes)
    made = PanelLinear(team, panels)
    expected = PanelLinear(team, pack(dense(weight), lanes))
    for rows in (1, 5, 13):
        x = numbers(rows, 48, seed=2)
        assert torch.equal(made(x), expected(x))


@pytest.mark.parametrize("codes", ["u4", "s8"])
def test_gated_products_of_codes_are_those_of_their_numbers(team: ThreadTeam, codes: str) -> None:
    weight = quantized(codes, 4, "f16", True)
    rows = torch.arange(2 * team.processor.lanes).remainder(37)
    parts = weight.scales[rows], weight.offsets[rows] if weight.offsets is not None else None
    weight = GroupedWeight(weight.codes[rows], *parts, weight.bits)
    bias, x = numbers(len(rows), seed=1), numbers(5, 48, seed=2)
    made = panel_linear(team, weight, bias, "silu")
    expected = panel_linear(team, dense(weight), bias, "silu")
    assert made is not None
    assert expected is not None
    assert made.is_gated
    assert torch.equal(made(x), expected(x))


def test_a_forked_child_computes_products_of_its_parent(team: ThreadTeam) -> None:
    made, x = linear(team, "bf16", 130, 29), numbers(7, 29, seed=2)
    expected = made(x)

    def check() -> None:
        for _ in range(20):
            assert torch.equal(made(x), expected)

    assert Child(check).succeeded()
    assert torch.equal(made(x), expected)
