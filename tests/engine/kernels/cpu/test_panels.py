"""Panels: weights are read back unchanged from the smallest format that holds them."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.kernels.cpu.panel_layout import PanelFormat
from gatewayd_engine.kernels.cpu.panels import (
    BF16,
    F16,
    F32,
    Panels,
    pack,
    pack_codes,
    paired_rows,
    smallest_exact,
)
from tests.engine.kernels.weights import grouped

DTYPES = {F32: torch.float32, BF16: torch.bfloat16, F16: torch.float16}
FORMATS = st.sampled_from([F32, BF16, F16])
LANES = st.sampled_from([4, 8, 16])


def numbered(rows: int, columns: int, form: PanelFormat) -> torch.Tensor:
    """Weights that each format holds, adjacent ones different."""
    weight = torch.arange(rows * columns).remainder(251).view(rows, columns) - 125.0
    assert torch.equal(weight.to(DTYPES[form]).float(), weight)
    return weight


def unpacked(packed: Panels, lanes: int) -> torch.Tensor:
    """Weights by the position of each number: two vectors of a panel, interleaved in bfloat16."""
    form, columns, width = packed.form, packed.inputs, 2 * lanes
    panels = len(packed.data)
    numbers = packed.data.view(DTYPES[form]).view(panels, columns, width)
    weight = torch.empty(panels * width, columns)
    for output in range(panels * width):
        panel, within = divmod(output, width)
        half, lane = divmod(within, lanes)
        place = 2 * lane + half if form is BF16 else within
        weight[output] = numbers[panel, :, place].float()
    return weight


@given(rows=st.integers(1, 70), columns=st.integers(1, 40), form=FORMATS, lanes=LANES)
def test_weights_are_read_back_and_the_rest_is_zero(
    rows: int, columns: int, form: PanelFormat, lanes: int
) -> None:
    weight = numbered(rows, columns, form)
    packed = pack(weight, lanes, form)
    assert (packed.form, packed.groups) == (form, 1)
    assert (packed.outputs, packed.inputs) == (rows, columns)
    assert packed.data.dtype == torch.uint8
    assert packed.data.is_contiguous()
    size = columns * 2 * lanes * DTYPES[form].itemsize
    assert packed.data.shape == (-(-rows // (2 * lanes)), size)
    assert form.panel_bytes(columns, 1, lanes) == size
    made = unpacked(packed, lanes)
    assert torch.equal(made[:rows], weight)
    assert not made[rows:].any()


@given(vectors=st.integers(1, 6), columns=st.integers(1, 40), form=FORMATS, lanes=LANES)
def test_each_panel_holds_gates_and_ups_of_the_same_outputs(
    vectors: int, columns: int, form: PanelFormat, lanes: int
) -> None:
    size = vectors * lanes
    weight = numbered(2 * size, columns, form)
    paired = pack(weight[paired_rows(2 * size, lanes)], lanes, form)
    made = unpacked(paired, lanes).view(vectors, 2, lanes, columns)
    assert torch.equal(made[:, 0].reshape(size, columns), weight[:size])
    assert torch.equal(made[:, 1].reshape(size, columns), weight[size:])


@given(form=FORMATS, transposed=st.booleans())
def test_weights_may_be_part_of_a_larger_tensor(form: PanelFormat, transposed: bool) -> None:
    whole = numbered(40, 40, form)
    weight = whole.t()[3:36, 5:18] if transposed else whole[3:36, 5:18]
    assert torch.equal(unpacked(pack(weight, 8, form), 8)[:33], weight)


@pytest.mark.parametrize(
    ("numbers", "form"),
    [
        ([0.0, -0.0, 1.0, -1.5, 1.5 * 2.0**127, 255.0], BF16),
        ([float("inf"), float("-inf"), 1.0], BF16),
        ([2.0**-133, -(2.0**-126)], BF16),  # denormal, and the smallest normal number
        ([257.0], F16),
        ([65504.0], F16),
        ([2.0**-24, 3 * 2.0**-24], BF16),
        ([1025 * 2.0**-24], F16),
        ([511 * 2.0**-24], F16),  # denormal in float16
        ([1.0 / 3], F32),
        ([65536.0 + 64], F32),  # overflows in float16
        ([2.0**-149], F32),  # denormal, below those of bfloat16
        ([257.0, 2.0**127], F32),  # each in one of the formats alone
    ],
)
def test_the_smallest_format_that_is_exact_is_chosen(
    numbers: list[float], form: PanelFormat
) -> None:
    weight = torch.tensor([numbers])
    assert smallest_exact(weight) is form
    read = unpacked(pack(weight.t(), 8), 8)[: len(numbers)].t()
    assert torch.equal(read.view(torch.int32), weight.view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_numbers_of_sixteen_bits_take_sixteen_bits(dtype: torch.dtype) -> None:
    weight = torch.arange(-(1 << 15), 1 << 15).short().view(dtype).float().view(256, 256)
    weight = weight.nan_to_num(0.0, float("inf"), float("-inf"))
    form = smallest_exact(weight)
    assert DTYPES[form] == dtype
    assert torch.equal(unpacked(pack(weight, 8), 8), weight)


def test_weights_with_nan_are_stored_as_they_are() -> None:
    weight = torch.tensor([[1.0, float("nan"), 2.0]])
    assert smallest_exact(weight) is F32
    read = unpacked(pack(weight, 8), 8)[:1]
    assert torch.equal(read.view(torch.int32), weight.view(torch.int32))


def test_codes_of_groups_that_are_not_adjacent_are_refused() -> None:
    assert pack_codes(grouped("offsets", 32, 32, 4), 8) is not None
    assert pack_codes(grouped("any order", 32, 32, 4), 8) is None


@pytest.mark.parametrize(("kind", "activations"), [("signed bytes", "int8"), ("e4m3", "e4m3")])
def test_codes_whose_inputs_are_rounded_are_refused(
    kind: str, activations: Literal["int8", "e4m3"]
) -> None:
    weight = grouped(kind, 32, 32, 1)
    assert pack_codes(weight, 8) is not None
    assert pack_codes(weight._replace(activations=activations), 8) is None
