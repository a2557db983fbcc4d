"""Block-scaled FP8 matmul: torch reference equals float64, kernel equals the reference."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.quantized import scratch
from gatewayd_engine.kernels.quantized.block_scales import GROUP, blocks, numbers
from gatewayd_engine.kernels.quantized.scratch import MOST_LINES, splits
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.weights import dense
from tests.engine.kernels.blocked import E4M3, block_mm, in_blocks, made_blocks

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("n", "rows", "columns", "tall"),
    [
        (0, 40, 256, 128),
        (1, 200, 256, 128),
        (17, 70, 384, 32),  # rows that end within a block, and scales by row
        (MOST_LINES + 1, 70, 256, 128),  # no split
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_multiplies_as_its_twin(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    rows: int,
    columns: int,
    tall: int,
) -> None:
    block_mm(kernels, device, dtype, n, rows, columns, tall, has_bias=n == 17)


def test_tiles_of_many_lines_are_all_there(
    kernels: Kernels, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a band of them, and the last band lower."""
    module = "gatewayd_engine.kernels.quantized.block_fp8_matmul"
    monkeypatch.setattr(f"{module}._BAND", 2)
    monkeypatch.setattr(f"{module}._MULTIPROCESSORS", 8)
    block_mm(kernels, device, torch.float32, 300, 300, 128)


def test_every_tile_that_any_lines_take_is_launched(
    kernels: Kernels, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["gatewayd_engine.kernels.quantized.block_fp8_matmul"]
    launched: list[tuple[int, int, int]] = []
    launch = module._launch

    def noted(x: Any, weight: Any, bias: Any, room: Any, out: Any, tile: Any) -> None:
        launched.append(tile)
        out.zero_()
        launch(x, weight, bias, room, out, tile)
        assert (out - meant).abs().max() <= 1e-5 * meant.abs().max()
        assert not room.arrived.any()

    weight, room = made_blocks(in_blocks(200, 1920), device)
    x = kernels.quantize(torch.randn(3, 1920, device=device), E4M3, GROUP)
    meant, out = torch.empty(2, 3, 200, device=device)
    TorchKernels().block_mm(x, weight, None, room, meant)
    monkeypatch.setattr(module, "_launch", noted)
    kernels.block_mm_tiles(x, weight, None, room, out)
    assert len(set(launched)) == len(launched)
    assert {module._tile(m, weight) for m in range(1, 20_000, 7)} == set(launched)


def test_sums_are_split_where_rows_are_few(kernels: Kernels, device: torch.device) -> None:
    weight, _ = made_blocks(in_blocks(20, 1920), device)
    assert splits(weight) == 3
    block_mm(kernels, device, torch.float32, MOST_LINES, 20, 1920)


def test_a_line_that_is_no_number_keeps_to_itself(kernels: Kernels, device: torch.device) -> None:
    weight, room = made_blocks(in_blocks(40, 256), device)
    x = torch.randn(5, 256, device=device)
    sound, made = torch.empty(2, 5, 40, device=device)
    kernels.block_mm(kernels.quantize(x, E4M3, GROUP), weight, None, room, sound)
    x[2, 7], x[4] = torch.nan, 0.0
    kernels.block_mm(kernels.quantize(x, E4M3, GROUP), weight, None, room, made)
    assert torch.equal(made[[0, 1, 3]], sound[[0, 1, 3]])
    assert made[2].isnan().all()
    assert not made[4].any()


def test_the_twin_is_the_product() -> None:
    given, kernels = in_blocks(200, 384), TorchKernels()
    weight, room = made_blocks(given, CPU)
    x, bias, out = torch.randn(6, 384), torch.randn(200), torch.empty(6, 200)
    rounded = kernels.quantize(x, E4M3, GROUP)
    assert rounded.scales.shape == (6, 3)
    kernels.block_mm(rounded, weight, bias, room, out)
    inputs = torch.unflatten(rounded.codes.double(), 1, (3, GROUP)) * rounded.scales.unsqueeze(-1)
    exact = inputs.flatten(1) @ dense(given).double().t() + bias
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("rows", "tall", "kept"), [(300, 128, 128), (300, 32, 1), (5, 128, 128)])
def test_rows_of_a_block_share_their_scales(rows: int, tall: int, kept: int) -> None:
    given = in_blocks(rows, 256, tall)
    made = blocks(given)
    assert made is not None
    assert (made.rows, made.columns, made.pieces, made.tall) == (rows, 256, 2, kept)
    assert made.nbytes == rows * 256 + 4 * 2 * -(-rows // kept)
    assert torch.equal(numbers(made), dense(given))


def test_what_is_in_other_blocks_is_left_to_others() -> None:
    good = in_blocks(40, 256)
    assert blocks(good) is not None
    assert blocks(good._replace(activations="float")) is None
    assert blocks(good._replace(codes=good.codes.view(torch.float8_e5m2))) is None
    assert blocks(good._replace(offsets=good.scales)) is None
    assert blocks(good._replace(scales=good.scales.repeat(1, 2))) is None
    assert blocks(good._replace(scales=good.scales[:, :1])) is None
    order = (torch.arange(256) // 128).int()
    assert blocks(good._replace(group_of=order)) is None
    assert blocks(good._replace(codes=good.codes[:0], scales=good.scales[:0])) is None


def test_a_room_for_blocks_has_no_place_for_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_LEAST_BLOCKS", 1)
    weight, room = made_blocks(in_blocks(130, 256), CPU)
    assert splits(weight) == 2
    assert room.partial.numel() == 2 * MOST_LINES * 130
    assert room.arrived.tolist() == [0] * 3
    assert room.dense.numel() == 0
