"""Products of few bits on a device, with torch's kernels: against 64 bits, for any number of lines."""

from __future__ import annotations

import logging

import pytest
import torch

from gatewayd_engine.kernels import room as rooms
from gatewayd_engine.kernels.room import MOST_LINES
from gatewayd_engine.kernels.twins import TorchKernels
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.linears.device import Apart, DeviceLinears
from gatewayd_engine.model.linears.grouped import GroupedLinear
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight, Weight
from tests.engine.kernels.weights import KINDS, grouped

LINES = (0, 1, 5, MOST_LINES, MOST_LINES + 1, 70)


def made(weight: Weight, bias: torch.Tensor | None = None) -> LinearOp:
    return DeviceLinears(TorchKernels()).make(weight, bias, torch.float32)


def check(linear: LinearOp, weight: Weight, bias: torch.Tensor | None) -> None:
    rows, columns = (weight if isinstance(weight, torch.Tensor) else weight.codes).shape
    for lines in LINES:
        x = torch.randn(lines, columns)
        exact = x.double() @ dense(weight).double().t()
        exact = (exact if bias is None else exact + bias).float()
        got = linear(x)
        torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-4)
        out = torch.full((lines, rows + 3), torch.nan)
        assert linear(x, out=out[:, :rows]).data_ptr() == out.data_ptr()
        assert torch.equal(out[:, :rows], got)
        assert out[:, rows:].isnan().all()
        onto = torch.ones(lines, rows)
        assert torch.equal(linear.add_to(onto, x), got)
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
    monkeypatch.setattr(rooms, "_DENSE", 384 * 64)
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


def test_what_no_kernel_reads_is_made_dense(caplog: pytest.LogCaptureFixture) -> None:
    codes = torch.randint(0, 256, (40, 48), dtype=torch.uint8)
    weight = GroupedWeight(codes, torch.rand(40, 6))
    with caplog.at_level(logging.INFO):
        linear = made(weight)
    assert "made dense" in caplog.text
    assert isinstance(linear, Apart)
    check(linear, weight, None)


def test_floats_stay_floats() -> None:
    weight, bias = torch.randn(40, 48), torch.randn(40)
    check(made(weight, bias), weight, bias)
