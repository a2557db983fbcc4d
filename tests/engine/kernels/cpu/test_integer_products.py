"""Products with rounded activations: close to float64 of the rounded numbers, the same bits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.kernels.cpu.integer_panels import pack_integers
from gatewayd_engine.kernels.cpu.panel_layout import ROUNDED
from gatewayd_engine.kernels.cpu.panels import Panels
from gatewayd_engine.kernels.cpu.select import thread_team
from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.kernels.llvm.processor import Processor
from gatewayd_engine.model.linears import panel_linear as panel_linear_module
from gatewayd_engine.model.linears import product_check
from gatewayd_engine.model.linears.panel_linear import PanelLinear, panel_linear
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight
from tests.engine.kernels.cpu.row_checks import (
    assert_bits_are_of_the_row,
    assert_it_stays_in_its_row,
)

FORMS = {
    "s8_1f16_int8_32": (8, True, 32, "f16", 1),
    "u8_2bf16_int8_32": (8, False, 64, "bf16", 2),
    "s6_1nested_int8_16": (6, True, 16, "nested", 1),
    "u6_1f32_int8_32": (6, False, 128, "f32", 1),
    "s4_1f16_int8_32": (4, True, 32, "f16", 1),
    "s4_2f16_int8_16": (4, True, 16, "f16", 2),
    "u4_2nested_int8_32": (4, False, 32, "nested", 2),
    "u4_1bf16_int8_32": (4, False, 512, "bf16", 1),
}
"""By format: bits, whether codes are signed, size of a group, storage and number of factors."""
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantized(form: str, outputs: int, inputs: int = 512) -> GroupedWeight:
    """A weight whose codes have all values, and whose factors only this format holds."""
    bits, is_signed, size, stored, count = FORMS[form]
    draw = torch.Generator().manual_seed(bits)
    least = -(1 << (bits - 1)) if is_signed else 0
    codes = torch.randint(least, least + (1 << bits), (outputs, inputs), generator=draw)
    codes[:, :2] = torch.tensor([least, least + (1 << bits) - 1])
    groups = inputs // size
    if stored == "nested":
        step = (torch.rand(count, outputs, inputs // 256, generator=draw) + 0.1) / 7
        times = torch.randint(-100, 101, (count, outputs, groups), generator=draw)
        factors = step.half().float().repeat_interleave(256 // size, 2) * times
    else:
        factors = torch.randn(count, outputs, groups, generator=draw).to(DTYPES[stored]).float()
        factors[0, 0, 0] = {"bf16": 1.0, "f16": 1.0 + 2.0**-10, "f32": 1.0 / 3}[stored]
    return GroupedWeight(
        codes.to(torch.int8 if is_signed else torch.uint8),
        factors[0],
        factors[1] if count == 2 else None,
    )


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Activations as the nearest of 255 numbers for each 32 of them, float64."""
    blocks = torch.unflatten(x, 1, (-1, ROUNDED))
    largest = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127.0 / largest, 0.0)
    # Scales are float32 as in the kernel, which decides where halves are rounded to.
    return ((blocks * inverse).round().double() * (largest * (1.0 / 127)).double()).flatten(1)


def linear(
    team: ThreadTeam,
    weight: GroupedWeight,
    bias: torch.Tensor | None = None,
    gate: str | None = None,
) -> PanelLinear:
    made = panel_linear(team, weight, bias, gate, rounds_activations=True)
    assert made is not None
    return made


def assert_sums(made: torch.Tensor, x: torch.Tensor, weight: GroupedWeight) -> None:
    """Compare with float64, within the bound of sums of spans in float32."""
    numbers_of, codes = rounded(x), weight.codes.double()
    groups = weight.scales.shape[1]
    offsets = torch.zeros_like(weight.scales) if weight.offsets is None else weight.offsets
    spread = [
        each.double().repeat_interleave(codes.shape[1] // groups, 1)
        for each in (weight.scales, offsets)
    ]
    exact = codes * spread[0] + spread[1]
    expected = numbers_of @ exact.t()
    sizes = numbers_of.abs() @ ((codes * spread[0]).abs() + spread[1].abs()).t()
    assert ((made - expected).abs() <= sizes * (3 * codes.shape[1] / 16) * 2.0**-24).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs", [37, 16, 1, 130])
def test_products_are_those_of_rounded_activations(
    team: ThreadTeam, form: str, outputs: int
) -> None:
    weight = quantized(form, outputs)
    made = linear(team, weight)
    assert made.rounds_inputs
    panels = made.panels
    assert panels.form.name == form
    lanes = team.processor.lanes
    assert panels.data.shape[1] == panels.form.panel_bytes(512, panels.groups, lanes)
    for rows in range(20):
        x = numbers(rows, 512, seed=rows)
        assert_sums(made(x), x, weight)


@pytest.mark.parametrize("form", FORMS)
def test_the_largest_sums_are_exact(team: ThreadTeam, form: str) -> None:
    bits, is_signed, *_ = FORMS[form]
    weight = quantized(form, 32)
    most = (1 << (bits - is_signed)) - 1
    least = -most - 1 if is_signed else 0
    codes = torch.full_like(weight.codes, most)
    codes[1::2] = least
    ones = torch.ones_like(weight.scales)
    weight = weight._replace(codes=codes, scales=ones, offsets=None)
    for sign in (1.0, -1.0):
        x = torch.full((3, 512), sign * 127.0)
        expected = torch.where(torch.arange(32) % 2 == 0, most, least) * (sign * 127.0 * 512)
        assert torch.equal(linear(team, weight)(x), expected.expand(3, 32))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gate", [None, "silu"])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(
    form: str, gate: str | None
) -> None:
    team = thread_team(3)
    if team is None:
        pytest.skip("no compiled kernels for this processor")
    outputs = 26 * team.processor.lanes
    made = linear(team, quantized(form, outputs), numbers(outputs, seed=1), gate)
    assert made.is_gated == (gate is not None)
    x = numbers(40, 512, seed=2)
    assert_bits_are_of_the_row(made, x, team)


@pytest.mark.parametrize("form", ["s8_1f16_int8_32", "u4_2nested_int8_32"])
def test_gates_biases_and_sums_are_those_of_plain_products(team: ThreadTeam, form: str) -> None:
    outputs = 4 * team.processor.lanes
    weight, bias, x = quantized(form, outputs), numbers(outputs, seed=1), numbers(7, 512, seed=2)
    plain = linear(team, weight)(x)
    assert torch.equal(linear(team, weight, bias)(x), plain + bias)
    onto = numbers(7, outputs, seed=3)
    expected = onto + plain
    assert linear(team, weight).add_to(onto, x) is None
    assert torch.equal(onto, expected)
    gated = linear(team, weight, bias, "silu")(x)
    gates, ups = (plain + bias).chunk(2, 1)
    torch.testing.assert_close(gated, torch.nn.functional.silu(gates) * ups)


@pytest.mark.parametrize("form", ["s8_1f16_int8_32", "s4_1f16_int8_32", "s6_1nested_int8_16"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@given(rows=st.integers(2, 20), data=st.data())
def test_numbers_that_are_not_finite_stay_in_their_row(
    form: str, number: float, rows: int, data: st.DataObject
) -> None:
    team = thread_team(2)
    if team is None:
        pytest.skip("no compiled kernels for this processor")
    made = linear(team, quantized(form, 37))
    x = numbers(rows, 512, seed=2)
    assert_it_stays_in_its_row(made, x, number, data)


def test_zeros_and_the_smallest_numbers_are_harmless(team: ThreadTeam) -> None:
    made = linear(team, quantized("s8_1f16_int8_32", 37))
    assert torch.equal(made(torch.zeros(2, 512)), torch.zeros(2, 37))
    for size in (1e-45, 1e-39, 2.0**-120):
        assert torch.equal(made(torch.full((1, 512), size)), torch.zeros(1, 37))
    x = numbers(3, 512)
    small = 2.0**-60  # exact
    assert torch.equal(made(x * small), made(x) * small)


@pytest.mark.parametrize(
    "weight",
    [
        GroupedWeight(torch.zeros(8, 48, dtype=torch.int8), torch.ones(8, 1)),
        GroupedWeight(torch.zeros(8, 64, dtype=torch.int8), torch.ones(8, 8)),
        GroupedWeight(torch.zeros(8, 64, dtype=torch.float8_e4m3fn), torch.ones(8, 1)),
    ],
    ids=["48 inputs", "groups of 8", "floats"],
)
def test_other_formats_are_multiplied_with_floats(team: ThreadTeam, weight: GroupedWeight) -> None:
    made = linear(team, weight)
    assert made.panels.form.span == 0
    assert not made.rounds_inputs
    x = numbers(3, weight.codes.shape[1])
    assert torch.equal(made(x), torch.zeros(3, 8))


def test_activations_stay_floats_where_integer_products_are_wrong(
    team: ThreadTeam, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(product_check, "_checked", {})
    weight = quantized("s4_1f16_int8_32", 37)

    def swapped(weight: GroupedWeight, processor: Processor) -> Panels | None:
        made = pack_integers(weight, processor)
        # Pairs of bytes of the wrong inputs, as an instruction of another layout would read them.
        return made and replace(
            made, data=torch.unflatten(made.data, 1, (-1, 2)).flip(2).flatten(1)
        )

    monkeypatch.setattr(panel_linear_module, "pack_integers", swapped)
    for _ in range(2):
        made = linear(team, weight)
        assert not made.rounds_inputs
        x = numbers(3, 512)
        torch.testing.assert_close(made(x), x @ dense(weight).t(), atol=1e-2, rtol=1e-4)
    assert caplog.text.count("s4_1f16_int8_32 weights are wrong") == 1
    monkeypatch.setattr(product_check, "_checked", {})
    monkeypatch.setattr(panel_linear_module, "pack_integers", pack_integers)
    assert linear(team, weight).rounds_inputs


def test_activations_stay_floats_unless_asked(team: ThreadTeam) -> None:
    weight = quantized("s8_1f16_int8_32", 37)
    made = panel_linear(team, weight)
    assert made is not None
    assert not made.rounds_inputs
    x = numbers(5, 512)
    torch.testing.assert_close(made(x), x @ dense(weight).t(), atol=1e-2, rtol=1e-4)
