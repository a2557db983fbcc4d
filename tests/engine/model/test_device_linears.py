"""Low-bit linears on a device by torch's kernels: equal float64, for few rows and many."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.quantized import scratch
from gatewayd_engine.kernels.quantized.base import QuantizedRows
from gatewayd_engine.kernels.quantized.block_scales import GROUP
from gatewayd_engine.kernels.quantized.scratch import MOST_LINES
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.linears import select_gpu
from gatewayd_engine.model.linears.packed_gpu import GroupedLinear
from gatewayd_engine.model.linears.select_cpu import make_cpu_linear
from gatewayd_engine.model.linears.select_gpu import DenseGpuLinear, DeviceLinears
from gatewayd_engine.model.linears.sparse24 import fits_sparse24
from gatewayd_engine.model.linears.w8a8_gpu import BlockLinear, Fp8DeviceLinear, Int8DeviceLinear
from gatewayd_engine.model.parts import FusedParts
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight, Weight
from tests.engine.kernels.blocked import in_blocks
from tests.engine.kernels.weights import KINDS, grouped

LINES = (0, 1, 5, MOST_LINES, MOST_LINES + 1, 70)


def made(weight: Weight, bias: torch.Tensor | None = None) -> LinearOp:
    return DeviceLinears(TorchKernels()).make(weight, bias, torch.float32)


def near(got: torch.Tensor, exact: torch.Tensor) -> None:
    """Equal but for the order of additions, whose errors are of the size of the largest sum."""
    assert got.shape == exact.shape
    largest = exact.abs().amax(1, keepdim=True)
    assert ((got - exact).abs() <= 1e-5 * largest).all()


def check(linear: LinearOp, weight: Weight, bias: torch.Tensor | None) -> None:
    rows, columns = dense(weight).shape
    for lines in LINES:
        x = torch.randn(lines, columns)
        exact = x.double() @ dense(weight).double().t()
        exact = (exact if bias is None else exact + bias).float()
        got = linear(x)
        near(got, exact)
        out = torch.full((lines, rows + 3), torch.nan)
        assert linear(x, out=out[:, :rows]).data_ptr() == out.data_ptr()
        assert torch.equal(out[:, :rows], got)
        assert out[:, rows:].isnan().all()
        onto = torch.ones(lines, rows)
        left = linear.add_to(onto, x)
        assert left is not None
        assert torch.equal(left, got)
        assert torch.equal(onto, torch.ones(lines, rows)), "the next norm adds"


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_multiplied(kind: str, has_bias: bool) -> None:
    weight = grouped(kind, 96, 384, 3)
    bias = torch.randn(96) if has_bias else None
    linear = made(weight, bias)
    assert isinstance(linear, GroupedLinear)
    check(linear, weight, bias)


def test_large_matrices_are_made_numbers_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_DENSE", 384 * 64)
    weight, bias = grouped("any order", 150, 384, 3), torch.randn(150)
    linear = made(weight, bias)
    assert isinstance(linear, GroupedLinear)
    assert linear._room.dense.numel() == 384 * 64
    check(linear, weight, bias)


def test_matrices_of_a_model_share_their_room() -> None:
    linears = DeviceLinears(TorchKernels())
    first, second = (
        linears.make(grouped("signed", rows, 384, 3), None, torch.float32) for rows in (64, 640)
    )
    assert isinstance(first, GroupedLinear)
    assert isinstance(second, GroupedLinear)
    assert first._room is second._room
    assert first.nbytes == 384 * 64 // 2 + 2 * 3 * 64


def eight_bits(kind: str, rows: int, columns: int) -> GroupedWeight:
    if kind == "blocks":
        return in_blocks(rows, columns)
    scales = torch.rand(rows, 1) + 0.5
    if kind == "int8":
        codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
        return GroupedWeight(codes, scales, activations="int8")
    codes = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    return GroupedWeight(codes, scales, activations="e4m3")


def test_of_each_kind_of_blocks_one_has_all_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the model is loaded: of how many lines a request is nobody knows."""
    seen: list[tuple[int, int, bool]] = []
    kernels = TorchKernels()

    def noted(x: Any, weight: Any, bias: Any, room: Any, out: Any) -> None:
        assert len(x.scales) == len(out) == 1
        seen.append((weight.rows, weight.tall, bias is None))

    monkeypatch.setattr(kernels, "block_mm_tiles", noted)
    linears = DeviceLinears(kernels)
    for rows, tall, bias in ((96, 128, None), (96, 128, None), (160, 32, None), (96, 128, 1.0)):
        add = None if bias is None else torch.full((rows,), bias)
        linears.make(in_blocks(rows, 384, tall), add, torch.float32)
    assert seen == [(96, 128, True), (160, 1, True), (96, 128, False)]


ROUNDED = {"int8": Int8DeviceLinear, "e4m3": Fp8DeviceLinear, "blocks": BlockLinear}


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kind", ROUNDED)
def test_codes_are_multiplied_with_codes(kind: str, has_bias: bool) -> None:
    weight, kernels = eight_bits(kind, 96, 384), TorchKernels()
    bias = torch.randn(96) if has_bias else None
    linear = made(weight, bias)
    assert type(linear) is ROUNDED[kind]
    scales = 3 if kind == "blocks" else 96
    assert linear.nbytes == 96 * 384 + 4 * scales + (4 * 96 if has_bias else 0)
    for lines in LINES:
        x = torch.randn(lines, 384) * 10 ** torch.randn(lines, 1)
        given = kernels.quantize(x, weight.codes.dtype, GROUP if kind == "blocks" else 0)
        width = 384 // weight.scales.shape[1]
        inputs = given.codes.double() * given.scales.double().repeat_interleave(width, 1)
        exact = inputs @ dense(weight).double().t()
        exact = (exact if bias is None else exact + bias).float()
        got = linear(x)
        near(got, exact)
        # Rounded where it was made, or here.
        assert torch.equal(linear(given), got)
        for out in (torch.empty(lines, 96), torch.full((lines, 99), torch.nan)[:, :96]):
            assert linear(x, out=out) is out
            assert torch.equal(out, got)
        left = linear.add_to(torch.ones(lines, 96), given)
        assert left is not None
        assert torch.equal(left, got)


def test_integers_are_the_cpus_bit_for_bit() -> None:
    weight, bias = eight_bits("int8", 64, 384), torch.randn(64)
    x = torch.randn(9, 384)
    assert torch.equal(made(weight, bias)(x), make_cpu_linear(weight, bias)(x))


@pytest.mark.parametrize("kind", ROUNDED)
def test_a_line_that_is_no_number_is_told(kind: str) -> None:
    x = torch.randn(4, 384)
    linear = made(eight_bits(kind, 64, 384))
    sound = linear(x.clone())
    x[1, 3], x[2] = torch.nan, torch.inf
    got = linear(x)
    assert torch.equal(got[[0, 3]], sound[[0, 3]])
    assert got[1:3].isnan().all()


@pytest.mark.parametrize("kind", ["int8", "e4m3"])
@pytest.mark.parametrize("size", [(100, 384), (96, 100)])
def test_sides_that_no_matrix_unit_takes_are_multiplied_with_floats(
    kind: str, size: tuple[int, int]
) -> None:
    weight = eight_bits(kind, *size)
    linear = made(weight)
    assert isinstance(linear, GroupedLinear)
    check(linear, weight, None)


def test_what_is_meant_for_floats_is_given_floats() -> None:
    for kind in ROUNDED:
        linear = made(eight_bits(kind, 96, 384)._replace(activations="float"))
        assert isinstance(linear, GroupedLinear)


@pytest.mark.parametrize("kind", [*ROUNDED, "float"])
def test_norms_and_gates_give_a_matrix_what_it_takes(kind: str) -> None:
    parts, is_rounded = FusedParts(TorchKernels()), kind in ROUNDED
    weight = eight_bits(kind, 64, 256) if is_rounded else torch.randn(64, 256)
    linear = parts.linear(weight, None, torch.float32)
    x, delta, both = torch.randn(3, 256), torch.randn(3, 256), torch.randn(3, 512)
    scale = torch.rand(256)
    norm, plain = (parts.norm(scale, 1e-5, 1.0, entry) for entry in (linear, None))
    got = norm(x.clone(), delta)
    assert isinstance(got, QuantizedRows) is is_rounded
    assert torch.equal(linear(got), linear(plain(x.clone(), delta)))
    gated = parts.gate("silu", linear)(both)
    assert isinstance(gated, QuantizedRows) is is_rounded
    assert torch.equal(linear(gated), linear(TorchKernels().gated(both, "silu")))


def test_a_gpu_before_hopper_multiplies_blocks_with_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select_gpu, "multiplies_floats", lambda codes: False)
    weight = in_blocks(96, 384)
    linear = made(weight)
    assert isinstance(linear, GroupedLinear)
    check(linear, weight, None)


def test_what_no_kernel_reads_is_made_dense(caplog: pytest.LogCaptureFixture) -> None:
    codes = torch.randint(0, 256, (40, 48), dtype=torch.uint8)
    weight = GroupedWeight(codes, torch.rand(40, 6))
    with caplog.at_level(logging.INFO):
        linear = made(weight)
    assert "is dequantized" in caplog.text
    assert isinstance(linear, DenseGpuLinear)
    check(linear, weight, None)


def test_zeros_are_multiplied_where_no_matrix_unit_leaves_them_out() -> None:
    values = torch.randn(96, 128)
    values[:, ::4] = values[:, 1::4] = 0.0
    linear = made(SparseWeight(values), torch.randn(96))
    assert isinstance(linear, DenseGpuLinear)


@pytest.mark.parametrize(
    ("size", "dtype", "capability", "is_sparse"),
    [
        ((96, 128), torch.bfloat16, 9, True),
        ((96, 128), torch.float16, 8, True),
        ((96, 128), torch.bfloat16, 7, False),
        ((96, 128), torch.float32, 9, False),
        ((80, 128), torch.bfloat16, 9, False),
        ((96, 96), torch.bfloat16, 9, False),
    ],
)
def test_matrix_units_leave_out_zeros_of_matrices_of_whole_tiles(
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int],
    dtype: torch.dtype,
    capability: int,
    is_sparse: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    values: Any = SimpleNamespace(shape=size, dtype=dtype, is_cuda=True, device="cuda")
    assert fits_sparse24(values) is is_sparse
    values.is_cuda = False
    assert not fits_sparse24(values)


def test_floats_stay_floats() -> None:
    weight, bias = torch.randn(40, 48), torch.randn(40)
    check(made(weight, bias), weight, bias)
