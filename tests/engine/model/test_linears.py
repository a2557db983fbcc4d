"""Low-bit linears: equal exact integers and float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gatewayd_engine.model.layers import Linear
from gatewayd_engine.model.linears import int8_dot
from gatewayd_engine.model.linears.dequantized import DequantizedLinear
from gatewayd_engine.model.linears.int8 import MOST_COLUMNS, Int8Linear
from gatewayd_engine.model.linears.select_cpu import make_cpu_linear
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight

SHAPES = [(640, 384), (33, 17), (1, 1024), (96, 2)]
ROWS = [0, 1, 2, 7, 64]


@pytest.fixture(params=[int8_dot.PlainSums, int8_dot.PackedSums])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """One kernel after the other, whatever the matrix."""
    chosen: type = request.param
    if chosen is int8_dot.PackedSums and not int8_dot._is_exact():
        pytest.skip("oneDNN saturates on this processor, so it is not used")
    monkeypatch.setattr(int8_dot, "LARGE", 1 if chosen is int8_dot.PackedSums else 1 << 60)
    assert type(int8_dot.sums(torch.zeros(16, 16, dtype=torch.int8))) is chosen
    return chosen


def drawn(rows: int, columns: int) -> GroupedWeight:
    codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    return GroupedWeight(codes, torch.rand(rows, 1) + 0.5, activations="int8")


def expected(x: torch.Tensor, weight: GroupedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of the same codes, summed in 64 bits, exactly."""
    most = x.abs().amax(-1, keepdim=True) * (1 / 127)
    scales = most.clamp_min(torch.finfo(torch.float32).tiny)
    codes = (x / scales).round().long()
    assert (codes.abs() <= 127).all()
    products = codes.double() @ weight.codes.double().t()  # whole numbers far below 2**53
    made = products.float() * scales * weight.scales[:, 0]
    return made if bias is None else made + bias


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_bytes_are_multiplied_exactly(shape: tuple[int, int], has_bias: bool, kernel: type) -> None:
    weight = drawn(*shape)
    bias = torch.randn(shape[0]) if has_bias else None
    linear = make_cpu_linear(weight, bias)
    assert isinstance(linear, Int8Linear)
    for rows in ROWS:
        x = torch.randn(rows, shape[1]) * 10 ** torch.randn(rows, 1)
        made = linear(x)
        assert torch.equal(made, expected(x, weight, bias))
        out = torch.full((rows, shape[0] + 3), float("nan"))
        assert linear(x, out=out[:, 3:]).data_ptr() == out[:, 3:].data_ptr()
        assert torch.equal(out[:, 3:], made)
        onto = torch.ones(rows, shape[0])
        assert linear.add_to(onto, x) is None
        assert torch.equal(onto, made + 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_does_not_depend_on_its_batch(shape: tuple[int, int], kernel: type) -> None:
    linear, x = make_cpu_linear(drawn(*shape)), torch.randn(64, shape[1])
    whole = linear(x)
    for some in (slice(0, 1), slice(3, 5), slice(17, 40), slice(63, 64)):
        assert torch.equal(linear(x[some].clone()), whole[some])


def test_rows_of_zeros_and_rows_that_are_no_numbers_keep_to_themselves(kernel: type) -> None:
    weight = drawn(24, 48)
    x = torch.randn(5, 48)
    sound = Int8Linear(weight)(x)
    x[1], x[3, 7], x[4] = 0.0, float("nan"), 1e-42
    made = Int8Linear(weight)(x)
    assert torch.equal(made[[0, 2]], sound[[0, 2]])
    assert not made[1].any()
    assert made[3].isnan().all()
    assert made[4].isfinite().all()


@pytest.mark.parametrize("excess", [0, 1])
def test_sums_that_might_not_fit_are_made_otherwise(excess: int) -> None:
    columns = MOST_COLUMNS + excess
    codes = torch.full((2, columns), -128, dtype=torch.int8)
    linear = make_cpu_linear(GroupedWeight(codes, torch.ones(2, 1), activations="int8"))
    assert isinstance(linear, DequantizedLinear if excess else Int8Linear)
    made = linear(torch.ones(1, columns))
    torch.testing.assert_close(made, torch.full((1, 2), -128.0 * columns), rtol=1e-4, atol=0)


def test_one_column_is_made_otherwise() -> None:
    codes = torch.tensor([[3], [-5]], dtype=torch.int8)
    linear = make_cpu_linear(GroupedWeight(codes, torch.ones(2, 1), activations="int8"))
    assert torch.equal(linear(torch.tensor([[2.0]])), torch.tensor([[6.0, -10.0]]))


@pytest.mark.skipif(not int8_dot._is_exact(), reason="oneDNN saturates on this processor")
def test_kernels_are_chosen_by_size_and_have_the_same_bits() -> None:
    codes = torch.randint(-128, 128, (2048, 2048), dtype=torch.int8)
    codes[:2] = torch.tensor([[127], [-128]])
    packed, plain = int8_dot.sums(codes), int8_dot.PlainSums(codes)
    assert isinstance(packed, int8_dot.PackedSums)
    assert isinstance(int8_dot.sums(codes[1:]), int8_dot.PlainSums)
    assert packed.nbytes == plain.nbytes == 1 << 22
    for rows in (0, 1, 3, 40):
        x = torch.randint(-127, 128, (rows, 2048)).float()
        x[:2] = torch.tensor([[127.0], [-127.0]])[:rows]
        assert torch.equal(packed(x.clone()), plain(x).float())


def test_sums_of_many_columns_and_processors_that_saturate_have_the_plain_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_exact = int8_dot._is_exact
    monkeypatch.setattr(int8_dot, "LARGE", 1)
    monkeypatch.setattr(int8_dot, "_is_exact", lambda: True)
    assert isinstance(int8_dot.sums(torch.zeros(1, 65793, dtype=torch.int8)), int8_dot.PackedSums)
    assert isinstance(int8_dot.sums(torch.zeros(1, 65794, dtype=torch.int8)), int8_dot.PlainSums)
    monkeypatch.setattr(int8_dot.PackedSums, "__call__", lambda self, x: x.new_zeros(len(x), 16))
    monkeypatch.setattr(int8_dot, "_is_exact", is_exact.__wrapped__)
    assert isinstance(int8_dot.sums(torch.zeros(1, 16, dtype=torch.int8)), int8_dot.PlainSums)


def test_activations_of_16_bits_come_back_as_they_came() -> None:
    weight = drawn(40, 64)
    x = torch.randn(3, 64).bfloat16()
    made = Int8Linear(weight)(x)
    assert torch.equal(made, expected(x.float(), weight, None).bfloat16())
    out = torch.empty(3, 40, dtype=torch.bfloat16)
    assert torch.equal(Int8Linear(weight)(x, out=out), made)


KINDS: dict[str, dict[str, Any]] = {
    "groups": {"scales": torch.rand(40, 4)},
    "offsets": {"offsets": torch.rand(40, 1)},
    "any order": {"group_of": torch.zeros(64, dtype=torch.int32)},
    "unsigned": {"codes": torch.randint(0, 256, (40, 64), dtype=torch.uint8)},
    "floats": {"codes": torch.randn(40, 64).to(torch.float8_e4m3fn)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_product_of_its_own_is_made_dense(kind: str) -> None:
    weight = drawn(40, 64)._replace(**KINDS[kind])
    bias = torch.randn(40)
    linear = make_cpu_linear(weight, bias)
    assert isinstance(linear, DequantizedLinear)
    numbers = torch.empty(40, 64, dtype=torch.float64)
    for row in range(40):
        for column in range(64):
            group = column // (64 // weight.scales.shape[1])
            value = weight.codes[row, column].double() * weight.scales[row, group].double()
            if weight.offsets is not None:
                value += weight.offsets[row, group].double()
            numbers[row, column] = value
    x = torch.randn(5, 64)
    made = linear(x)
    torch.testing.assert_close(made.double(), x.double() @ numbers.t() + bias, rtol=0, atol=2e-2)
    assert torch.equal(linear(x, out=torch.empty(5, 40)), made)
    onto = torch.zeros(5, 40)
    assert linear.add_to(onto, x) is None
    assert torch.equal(onto, made)


def test_zeros_are_multiplied_as_any_number() -> None:
    values = torch.randn(40, 64) * torch.tensor([0.0, 1.0, 0.0, 1.0] * 16)
    linear, x = make_cpu_linear(SparseWeight(values)), torch.randn(5, 64)
    assert isinstance(linear, Linear)
    torch.testing.assert_close(linear(x), x @ values.t(), rtol=0, atol=1e-4)
    assert linear.nbytes == values.nbytes, "zeros take what numbers take"


def test_what_they_take_is_told() -> None:
    weight, bias = drawn(40, 64), torch.randn(40)
    assert make_cpu_linear(weight, bias).nbytes == 40 * 64 + 40 * 4 + 40 * 4
    coarse = weight._replace(offsets=torch.ones(40, 1))
    assert make_cpu_linear(coarse).nbytes == 40 * 64 + 2 * 40 * 4
    floats = make_cpu_linear(torch.randn(40, 64))
    assert isinstance(floats, Linear)
    assert floats.nbytes == 4 * 40 * 64
