"""Low-bit matmul: torch reference equals float64, kernel equals the reference."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.quantized.packing import PackedWeight, unpack
from gatewayd_engine.kernels.quantized.scratch import MOST_LINES, DequantizeScratch, splits
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.weights import dense
from tests.engine.kernels import checks
from tests.engine.kernels.weights import KINDS, grouped

DTYPES = [torch.float32, torch.bfloat16]
SIZES = [(3, 70, 192, 3), (17, 24, 160, 5)]
"""Lines, rows, columns and groups; both end within a block, the second has groups within words."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_multiplies_as_its_twin(
    kernels: Kernels, device: torch.device, kind: str
) -> None:
    for dtype, size in zip(DTYPES, SIZES, strict=True):
        checks.grouped_mm(kernels, device, dtype, *size, kind, has_bias=size[0] == 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_group_may_have_any_number_of_columns(
    kernels: Kernels, device: torch.device, dtype: torch.dtype
) -> None:
    checks.grouped_mm(kernels, device, dtype, 1, 24, 200, 1, "offsets")


def test_sums_are_split_where_rows_are_few(kernels: Kernels, device: torch.device) -> None:
    assert splits(checks.packed("offsets", 64, 1024, 8, device)) == 2
    assert splits(checks.packed("offsets", 24, 48, 1, device)) == 1
    checks.grouped_mm(kernels, device, torch.float32, MOST_LINES, 20, 1920, 15, "any order")


def test_groups_that_begin_within_a_word_are_told_apart(
    kernels: Kernels, device: torch.device
) -> None:
    for groups in (15, 3):  # of 16 and 80 columns
        checks.grouped_mm(kernels, device, torch.float32, 2, 20, 240, groups, "offsets")


def test_nothing_is_made_of_no_lines(kernels: Kernels, device: torch.device) -> None:
    weight = checks.packed("signed", 16, 64, 1, device)
    out = torch.empty(0, 16, device=device)
    kernels.grouped_mm(torch.empty(0, 64, device=device), weight, None, _room(weight), out)


def test_a_line_that_is_no_number_keeps_to_itself(kernels: Kernels, device: torch.device) -> None:
    weight = checks.packed("offsets", 33, 320, 5, device)
    x = checks.random(5, 320, dtype=torch.float32, device=device)
    sound, made = torch.empty(2, 5, 33, device=device)
    kernels.grouped_mm(x, weight, None, _room(weight), sound)
    x[2, 7] = torch.nan
    kernels.grouped_mm(x, weight, None, _room(weight), made)
    rest = [0, 1, 3, 4]
    assert torch.equal(made[rest], sound[rest])
    assert made[2].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_makes_numbers_as_its_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, kind: str
) -> None:
    checks.expand(kernels, device, dtype, 70, 192, 3, kind, 0, 70)
    checks.expand(kernels, device, dtype, 140, 80, 5, kind, 64, 70)


@pytest.mark.parametrize("kind", KINDS)
def test_the_twin_is_the_product(kind: str) -> None:
    given = grouped(kind, 40, 384, 3)
    weight = checks.packed(kind, 40, 384, 3, torch.device("cpu"))
    x, bias, out = torch.randn(6, 384), torch.randn(40), torch.empty(6, 40)
    TorchKernels().grouped_mm(x, weight, bias, _room(weight), out)
    exact = x.double() @ dense(given).double().t() + bias
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-4)
    some = torch.empty(384, 7)
    TorchKernels().dequantize_rows(weight, 32, some)
    assert torch.equal(some, unpack(weight)[:, 32:39])


def test_a_room_grows_to_what_its_largest_matrix_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    small, large = (checks.packed("signed", n, 1024, 8, cpu) for n in (64, 300))
    room = DequantizeScratch(cpu, torch.bfloat16)
    for weight in (small, large, small):
        room.reserve(weight)
    assert room.partial.numel() == 2 * MOST_LINES * 300
    assert room.arrived.tolist() == [0] * 5
    assert (room.dense.numel(), room.dense.dtype) == (1024 * 300, torch.bfloat16)
    monkeypatch.setattr("gatewayd_engine.kernels.quantized.scratch._DENSE", 1024 * 150)
    assert DequantizeScratch.rows_at_once(large) == 128
    monkeypatch.setattr("gatewayd_engine.kernels.quantized.scratch._DENSE", 1)
    assert DequantizeScratch.rows_at_once(large) == 64


def _room(weight: PackedWeight) -> DequantizeScratch:
    room = DequantizeScratch(weight.words.device, torch.float32)
    room.reserve(weight)
    return room
