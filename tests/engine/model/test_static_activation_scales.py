"""Static activation scales: products equal their definition in float64."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.linears.int8 import Int8Linear
from gatewayd_engine.model.linears.select_cpu import make_cpu_linear
from gatewayd_engine.model.linears.select_gpu import DeviceLinears
from gatewayd_engine.model.linears.static_scales import StaticLinear, codes_of, rounded
from gatewayd_engine.model.linears.w8a8_gpu import Fp8DeviceLinear, Int8DeviceLinear
from gatewayd_engine.model.parts import FusedParts
from gatewayd_engine.model.weights import concat_rows, dense, scale_rows, select_rows, validated
from gatewayd_hooks.quantization import GroupedWeight, Matrix, SparseWeight, StaticWeight

ROWS, COLUMNS, SCALE = 48, 64, 0.0123


def bytes_by_row() -> GroupedWeight:
    codes = torch.randint(-127, 128, (ROWS, COLUMNS), dtype=torch.int8)
    return GroupedWeight(codes, torch.rand(ROWS, 1) + 0.5)


def bytes_in_groups() -> GroupedWeight:
    return bytes_by_row()._replace(scales=torch.rand(ROWS, 4) + 0.5)


def floats_by_row() -> GroupedWeight:
    codes = torch.randn(ROWS, COLUMNS).to(torch.float8_e4m3fn)
    return GroupedWeight(codes, torch.rand(ROWS, 1) + 0.5)


WEIGHTS: dict[str, StaticWeight] = {
    "floats": StaticWeight(torch.randn(ROWS, COLUMNS), "e4m3", SCALE),
    "e4m3": StaticWeight(floats_by_row(), "e4m3", SCALE),
    "int8": StaticWeight(bytes_by_row(), "int8", SCALE),
    "int8 of floats": StaticWeight(torch.randn(ROWS, COLUMNS), "int8", SCALE),
    "int8 in groups": StaticWeight(bytes_in_groups(), "int8", SCALE),
}
CPU: dict[str, type] = {"int8": Int8Linear}
DEVICE: dict[str, type] = {"int8": Int8DeviceLinear, "e4m3": Fp8DeviceLinear}


def meant(x: torch.Tensor, weight: StaticWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """Nearest codes, of two the even one, beyond the largest that; then sums in 64 bits."""
    wanted = (x.float() / weight.scale).double()
    if weight.activations == "int8":
        codes = wanted.round().clamp(-128, 127)
    else:
        known = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
        known = known[known.isfinite()]
        near = (wanted.clamp(-448, 448).unsqueeze(-1) - known).abs()
        least = near.amin(-1, keepdim=True)
        even = known.float().to(torch.float8_e4m3fn).view(torch.uint8) % 2 == 0
        codes = known[((near == least) * (1 + even.long())).argmax(-1)]
    made = codes * weight.scale @ dense(weight).double().t()
    return made if bias is None else made + bias


def check(linear: LinearOp, weight: StaticWeight, bias: torch.Tensor | None, off: float) -> None:
    for count in (0, 1, 5, 40):
        x = torch.randn(count, COLUMNS) * torch.logspace(-3, 1, COLUMNS)
        if count:
            x[0, :4] = SCALE * torch.tensor([1.0625, 2.5, -200.0, 600.0])
        exact = meant(x, weight, bias)
        got = linear(x)
        assert ((got - exact).abs() <= off * exact.abs().amax(-1, keepdim=True)).all()
        onto = torch.ones(count, ROWS)
        left = linear.add_to(onto, x)
        assert torch.allclose(onto if left is None else onto + left, got + 1, atol=1e-6, rtol=1e-6)
        out = torch.full((count, ROWS + 3), torch.nan)
        assert torch.equal(linear(x, out=out[:, :ROWS]), got)
        assert torch.equal(out[:, :ROWS], got)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", WEIGHTS)
def test_inputs_are_divided_cut_and_rounded(name: str, has_bias: bool) -> None:
    weight, bias = WEIGHTS[name], torch.randn(ROWS) if has_bias else None
    # Groups of bytes are multiplied in bfloat16 on a CPU, whoever rounds inputs.
    off = 1e-2 if name == "int8 in groups" else 1e-5
    linear = make_cpu_linear(weight, bias)
    assert type(linear) is CPU.get(name, StaticLinear)
    assert linear.rounds_inputs
    check(linear, weight, bias, off)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_device_does_the_same(name: str, has_bias: bool) -> None:
    weight, bias = WEIGHTS[name], torch.randn(ROWS) if has_bias else None
    linear = DeviceLinears(TorchKernels()).make(weight, bias, torch.float32)
    assert type(linear) is DEVICE.get(name, StaticLinear)
    check(linear, weight, bias, 1e-5)


@pytest.mark.parametrize("name", ["int8", "e4m3"])
def test_what_makes_the_input_on_a_device_does_not_round_it(name: str) -> None:
    parts = FusedParts(TorchKernels())
    linear = parts.linear(WEIGHTS[name], None, torch.float32)
    norm: Any = parts.norm(torch.ones(COLUMNS), 1e-6, 0.0, linear)
    made = norm(torch.randn(3, COLUMNS), None)
    assert isinstance(made, torch.Tensor)
    gate: Any = parts.gate("silu", linear)
    assert isinstance(gate(torch.randn(3, 2 * COLUMNS)), torch.Tensor)


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_is_no_number_stays_none_and_keeps_to_itself(name: str) -> None:
    for linear in (
        make_cpu_linear(WEIGHTS[name]),
        DeviceLinears(TorchKernels()).make(WEIGHTS[name], None, torch.float32),
    ):
        x = torch.randn(4, COLUMNS)
        sound = linear(x)
        x[2, 7] = torch.nan
        made = linear(x)
        assert made[2].isnan().all()
        assert torch.allclose(made[[0, 1, 3]], sound[[0, 1, 3]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_many_are_rounded_as_torch_rounds(dtype: torch.dtype) -> None:
    """Every code, every number between two, and those beside it; nothing, too much, no number."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    known = codes[codes.isfinite()].sort().values
    exact = torch.cat([known, (known[1:] + known[:-1]) / 2])
    beside = [torch.nextafter(exact, torch.tensor(to)) for to in (-torch.inf, torch.inf)]
    anything = torch.arange(-(2**31), 2**31, 40_009).to(torch.int32).view(torch.float32)
    x = torch.cat([exact, *beside, anything]).to(dtype)
    assert len(x) > 100_000
    for scale in (1.0, SCALE):
        wanted = codes_of(x, scale, torch.float8_e4m3fn).to(dtype)
        got = rounded(x, scale, torch.float8_e4m3fn)
        assert got.dtype == dtype
        assert torch.equal(got.nan_to_num(nan=1e3), wanted.nan_to_num(nan=1e3))


def test_a_steady_one_sums_steadily() -> None:
    linear = make_cpu_linear(WEIGHTS["floats"])
    assert isinstance(linear, StaticLinear)
    assert not linear.is_steady
    linear.is_steady = True
    x = torch.randn(64, COLUMNS)
    whole = linear(x)
    for some in (slice(0, 1), slice(3, 5), slice(17, 40)):
        assert torch.equal(linear(x[some].clone()), whole[some])


def test_joined_ones_have_the_largest_scale(caplog: pytest.LogCaptureFixture) -> None:
    one, other = WEIGHTS["e4m3"], WEIGHTS["e4m3"]._replace(scale=2 * SCALE)
    whole = concat_rows([one, other])
    assert isinstance(whole, StaticWeight)
    assert whole.scale == 2 * SCALE
    assert torch.equal(dense(whole), torch.cat([dense(one), dense(other)]))
    some = select_rows(whole, torch.tensor([5, 60]))
    assert isinstance(some, StaticWeight)
    assert torch.equal(dense(some), dense(whole)[[5, 60]])
    caplog.set_level(logging.INFO)
    mixed = concat_rows([one, floats_by_row()])
    assert not isinstance(mixed, StaticWeight)
    assert "have no common scale" in caplog.text


def test_rows_are_multiplied_whatever_they_are_kept_in() -> None:
    factors = torch.linspace(0.5, 2, ROWS)
    kinds = [
        *(weight.weight for weight in WEIGHTS.values()),
        *WEIGHTS.values(),
        bytes_in_groups()._replace(offsets=torch.randn(ROWS, 4)),
        SparseWeight(torch.randn(ROWS, COLUMNS)),
    ]
    for weight in kinds:
        wanted = dense(weight) * factors.unsqueeze(-1)
        assert torch.allclose(dense(scale_rows(weight, factors)), wanted, rtol=1e-5, atol=1e-5)
        assert torch.allclose(
            dense(scale_rows(weight, torch.tensor(3.0))), dense(weight) * 3, rtol=1e-5
        )


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_scales_that_cannot_be_are_refused(scale: float) -> None:
    weight = WEIGHTS["floats"]._replace(scale=scale)
    with pytest.raises(ValueError, match="the scale of its inputs is"):
        validated(Matrix("m", ROWS, COLUMNS), weight)
