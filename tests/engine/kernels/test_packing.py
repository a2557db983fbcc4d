"""Weight packing: lossless, bit for bit."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.quantized.packing import PackedWeight, pack, unpack
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight
from tests.engine.kernels.weights import KINDS, grouped

SIZES = [(5, 16, 1), (70, 384, 3), (33, 320, 10), (8, 40, 1), (64, 96, 2)]


def packed(weight: GroupedWeight) -> PackedWeight:
    made = pack(weight)
    assert made is not None
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns", "groups"), SIZES)
def test_numbers_come_back(kind: str, rows: int, columns: int, groups: int) -> None:
    weight = grouped(kind, rows, columns, groups)
    made = packed(weight)
    assert (made.rows, made.columns, made.group) == (rows, columns, columns // groups)
    # Symmetric codes have their zero taken before they are multiplied, which is one rounding less.
    exact = torch.equal if kind != "symmetric" else torch.allclose
    assert exact(unpack(made), dense(weight).t())


def test_a_code_is_where_kernels_look_for_it() -> None:
    codes = torch.zeros(3, 300, dtype=torch.uint8)
    codes[1, 128 + 5 * 16 + 7] = 9
    made = packed(GroupedWeight(codes, torch.ones(3, 1), bits=4))
    assert made.words.shape == (3, 3, 16)
    assert made.words[1, 1, 7] == 9 << 4 * 5
    assert made.words.count_nonzero() == 1
    wide = packed(GroupedWeight(codes, torch.ones(3, 1)))
    assert wide.words.shape == (5, 3, 16)
    assert wide.words[(128 + 80) // 64, 1, 7] == 9 << 8 * (80 % 64 // 16)


def test_four_bits_take_half_a_byte() -> None:
    weight = grouped("signed", 256, 1024, 8)
    made = packed(weight)
    assert made.nbytes == 256 * 1024 // 2 + 2 * 256 * 8
    assert packed(grouped("symmetric", 256, 1024, 8)).nbytes == made.nbytes
    # Products of a scale and a zero have more digits than a float16.
    assert packed(grouped("offsets", 256, 1024, 8)).nbytes == made.nbytes + 4 * 256 * 8


def test_places_of_one_group_are_taken_together() -> None:
    for columns, groups, run in [(1024, 8, 8), (1024, 32, 2), (1024, 64, 1), (960, 10, 2)]:
        assert packed(grouped("signed", 4, columns, groups)).run == run
    assert packed(grouped("signed", 4, 1000, 1)).run == 8
    assert packed(grouped("e4m3", 4, 1024, 8)).run == 4


def test_codes_that_do_not_fit_their_bits_are_kept_in_bytes() -> None:
    for codes in (torch.tensor([[0, 16]]).byte(), torch.tensor([[-9, 7]]).char()):
        weight = GroupedWeight(codes, torch.ones(1, 1), bits=4)
        made = packed(weight)
        assert made.bits == 8
        assert torch.equal(unpack(made), dense(weight).t())


def test_what_kernels_cannot_read_is_not_packed() -> None:
    codes = torch.zeros(4, 48, dtype=torch.uint8)
    assert pack(GroupedWeight(codes, torch.ones(4, 6))) is None  # groups of 8 columns
    uneven = torch.tensor([0] * 16 + [1] * 32, dtype=torch.int32)
    assert pack(GroupedWeight(codes, torch.ones(4, 2), group_of=uneven)) is None
    assert pack(GroupedWeight(codes.view(torch.float8_e5m2), torch.ones(4, 1))) is None
    assert pack(GroupedWeight(codes[:0], torch.ones(0, 1))) is None
