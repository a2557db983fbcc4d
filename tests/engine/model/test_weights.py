"""Weight merging and reordering: lossless, bit for bit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.model.weights import concat_rows, dense, select_rows, validated
from gatewayd_hooks.quantization import GroupedWeight, Matrix, SparseWeight, StaticWeight, Weight

COLUMNS = 24


@st.composite
def _weights(draw: st.DrawFn) -> Weight:
    torch.manual_seed(draw(st.integers(0, 1 << 16)))
    count = draw(st.integers(1, 5))
    if draw(st.integers(0, 5)) == 0:
        return torch.randn(count, COLUMNS)
    if draw(st.integers(0, 5)) == 0:
        return SparseWeight(torch.randn(count, COLUMNS) * torch.tensor([0, 1, 1, 0] * 6))
    groups = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 24]))
    is_signed = draw(st.booleans())
    bits = draw(st.sampled_from([4, 7, 8]))
    half = 1 << (bits - 1)
    bounds = (-half, half) if is_signed else (0, 2 * half)
    codes = torch.randint(*bounds, (count, COLUMNS), dtype=torch.int8 if is_signed else torch.uint8)
    group_of = None
    if draw(st.integers(0, 2)) == 0:
        torch.manual_seed(draw(st.integers(0, 1)))
        group_of = torch.randint(0, groups, (COLUMNS,), dtype=torch.int32)
    return GroupedWeight(
        codes,
        torch.randn(count, groups),
        torch.randn(count, groups) if draw(st.booleans()) else None,
        bits,
        group_of,
        draw(st.sampled_from(["float", "int8"])),
    )


def numbers(weight: Weight) -> torch.Tensor:
    """What a weight means, element by element."""
    if isinstance(weight, torch.Tensor):
        return weight
    if isinstance(weight, SparseWeight):
        return weight.values
    if isinstance(weight, StaticWeight):
        return numbers(weight.weight)
    made = torch.empty(weight.codes.shape)
    size = COLUMNS // weight.scales.shape[1]
    for row in range(made.shape[0]):
        for column in range(COLUMNS):
            group = column // size if weight.group_of is None else int(weight.group_of[column])
            made[row, column] = weight.codes[row, column] * weight.scales[row, group]
            if weight.offsets is not None:
                made[row, column] += weight.offsets[row, group]
    return made


@given(several=st.lists(_weights(), min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_joining_and_reordering_keep_every_number(several: list[Weight], seed: int) -> None:
    whole = concat_rows(several)
    meant = torch.cat([numbers(weight) for weight in several])
    assert torch.equal(dense(whole), meant)
    order = torch.randperm(len(meant), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(dense(select_rows(whole, order)), meant[order])


def test_weights_of_one_kind_stay_of_few_bits() -> None:
    coarse = GroupedWeight(torch.zeros(2, 24, dtype=torch.int8), torch.ones(2, 2))
    fine = GroupedWeight(torch.ones(3, 24, dtype=torch.int8), torch.ones(3, 8), torch.ones(3, 8))
    whole = concat_rows([coarse, fine])
    assert isinstance(whole, GroupedWeight)
    assert whole.scales.shape == (5, 8)
    assert isinstance(concat_rows([coarse, fine._replace(activations="int8")]), torch.Tensor)


def codes_of(kind: torch.dtype, bits: int, groups: int, *, has_offsets: bool) -> GroupedWeight:
    """A weight of the largest codes of its kind."""
    most = 2 ** (bits - 1 if kind == torch.int8 else bits) - 1
    codes = torch.full((2, 96), most, dtype=kind)
    codes[0] = 0 if kind == torch.uint8 else -most - 1
    offsets = torch.randn(2, groups) if has_offsets else None
    return GroupedWeight(codes, torch.randn(2, groups), offsets, bits)


Q4_K = codes_of(torch.uint8, 4, 3, has_offsets=True)
Q6_K = codes_of(torch.int8, 8, 6, has_offsets=False)
Q4_0 = codes_of(torch.int8, 4, 3, has_offsets=False)
Q8_0 = codes_of(torch.int8, 8, 3, has_offsets=False)
OF_7_BITS = codes_of(torch.uint8, 7, 1, has_offsets=False)
OF_8_BITS = codes_of(torch.uint8, 8, 1, has_offsets=True)


@pytest.mark.parametrize(
    ("several", "bits", "groups"),
    [
        ((Q4_K, Q4_K, Q6_K), 8, 6),
        ((Q6_K, Q4_K), 8, 6),
        ((Q8_0, Q4_0), 8, 3),
        ((Q8_0, Q4_K, OF_7_BITS), 8, 3),
        ((Q4_K, OF_7_BITS), 7, 3),
        ((Q4_0, Q4_0), 4, 3),
        ((OF_8_BITS, OF_7_BITS), 8, 1),
    ],
)
def test_integer_formats_are_joined_without_floats(
    several: tuple[GroupedWeight, ...], bits: int, groups: int
) -> None:
    whole = concat_rows(several)
    assert isinstance(whole, GroupedWeight)
    assert (whole.bits, whole.scales.shape[1]) == (bits, groups)
    assert torch.equal(dense(whole), torch.cat([dense(weight) for weight in several]))
    matrix = Matrix("m", *whole.codes.shape)
    assert validated(matrix, whole) is whole


@pytest.mark.parametrize(
    "several",
    [
        (Q6_K, OF_8_BITS),  # no byte has a sign and codes of up to 255
        (Q4_K, codes_of(torch.int8, 8, 4, has_offsets=False)),  # 4 groups are not 3 split
        (Q8_0, Q8_0._replace(codes=Q8_0.codes.float().to(torch.float8_e4m3fn))),
        (Q4_K, Q6_K._replace(group_of=torch.arange(96, dtype=torch.int32) % 6)),
        (Q4_K, Q6_K._replace(activations="int8")),
    ],
)
def test_what_has_no_common_format_is_dequantized(several: tuple[GroupedWeight, ...]) -> None:
    whole = concat_rows(several)
    assert isinstance(whole, torch.Tensor)
    assert torch.equal(whole, torch.cat([dense(weight) for weight in several]))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_float_of_8_bits_is_what_torch_says(dtype: torch.dtype) -> None:
    codes = torch.arange(256).to(torch.uint8).view(1, -1).view(dtype)
    codes = codes[codes.float().isfinite()].view(1, -1)
    weight = GroupedWeight(codes, torch.ones(1, 1))
    assert validated(Matrix("m", *codes.shape), weight) is weight
    assert torch.equal(dense(weight), codes.float())
    assert torch.equal(dense(weight).signbit(), codes.float().signbit())


def test_half_of_zeros_stays_known_as_such() -> None:
    sparse = SparseWeight(torch.tensor([[0.0, 1.0, 2.0, 0.0]] * 2))
    assert isinstance(
        concat_rows([sparse, select_rows(sparse, torch.tensor([1, 0]))]), SparseWeight
    )
    assert isinstance(concat_rows([sparse, torch.ones(1, 4)]), torch.Tensor)


SOUND = GroupedWeight(torch.zeros(4, 6, dtype=torch.int8), torch.ones(4, 2))
MATRIX = Matrix("m", 4, 6)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"codes": torch.zeros(6, 4, dtype=torch.int8)}, "codes are int8 [6, 4]"),
        ({"codes": torch.zeros(4, 6, dtype=torch.int32)}, "codes are int32"),
        ({"codes": torch.full((4, 6), 8, dtype=torch.int8), "bits": 4}, "valid 4-bit numbers"),
        ({"codes": torch.full((4, 6), -9, dtype=torch.int8), "bits": 4}, "valid 4-bit numbers"),
        (
            {"codes": torch.full((4, 6), 16, dtype=torch.uint8), "bits": 4},
            "valid 4-bit numbers",
        ),
        (
            {"codes": torch.full((4, 6), torch.nan).to(torch.float8_e4m3fn)},
            "valid 8-bit numbers",
        ),
        (
            {"codes": torch.full((4, 6), -torch.inf).to(torch.float8_e5m2)},
            "valid 8-bit numbers",
        ),
        ({"scales": torch.ones(4, 2, dtype=torch.float64)}, "scales are float64"),
        ({"scales": torch.ones(3, 2)}, "scales are float32 [3, 2]"),
        ({"scales": torch.ones(4)}, "scales are float32 [4]"),
        ({"scales": torch.ones(4, 4)}, "6 columns cannot be in 4 groups"),
        ({"scales": torch.full((4, 2), torch.inf)}, "scales are not finite"),
        ({"offsets": torch.full((4, 2), torch.nan)}, "offsets are not finite"),
        ({"offsets": torch.zeros(4, 3)}, "offsets are float32 [4, 3]"),
        ({"group_of": torch.full((6,), 2, dtype=torch.int32)}, "group_of must give each"),
        ({"group_of": torch.full((6,), -1, dtype=torch.int32)}, "group_of must give each"),
        ({"group_of": torch.zeros(6, dtype=torch.int64)}, "group_of must give each"),
        ({"group_of": torch.zeros(5, dtype=torch.int32)}, "group_of must give each"),
    ],
)
def test_what_is_no_weight_of_its_matrix_is_refused(changes: dict[str, Any], word: str) -> None:
    assert validated(MATRIX, SOUND) is SOUND
    with pytest.raises(ValueError, match=re.escape(word)):
        validated(MATRIX, SOUND._replace(**changes))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (torch.zeros(6, 8), "not floats [4, 8]"),
        (torch.zeros(4, 8, dtype=torch.int8), "not floats [4, 8]"),
        (torch.tensor([[0.0] * 5 + [1.0] * 3] * 4), "more than two of four neighbours"),
    ],
)
def test_what_is_not_half_of_zeros_is_refused(values: torch.Tensor, word: str) -> None:
    sound = SparseWeight(torch.tensor([[0.0, 0.0, 1.0, 1.0] * 2] * 4))
    assert validated(Matrix("m", 4, 8), sound) is sound
    with pytest.raises(ValueError, match=re.escape(word)):
        validated(Matrix("m", 4, 8), SparseWeight(values))
    with pytest.raises(ValueError, match="more than two of four"):
        validated(Matrix("m", 4, 6), SparseWeight(torch.zeros(4, 6)))


def test_floats_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"not floats \[4, 6\]"):
        validated(MATRIX, torch.zeros(6, 4))
