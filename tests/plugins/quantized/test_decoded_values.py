"""Decoded values: equal each format's formula and published code's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewayd_engine.model.weights import dense, validated
from gatewayd_hooks.quantization import (
    Announcement,
    GroupedWeight,
    Matrix,
    QuantizerResources,
    Scheme,
    StaticWeight,
    Stored,
)
from gatewayd_quant_awq.strategy import Awq
from gatewayd_quant_compressed_tensors.strategy import CompressedTensors
from gatewayd_quant_fp8.config import Fp8QuantizerConfig
from gatewayd_quant_fp8.strategy import Fp8Quantizer
from gatewayd_quant_gptq.strategy import Gptq
from tests.plugins.quantized.format_cases import CASES, Case
from tests.plugins.quantized.formulas import meant
from tests.plugins.quantized.published import COLUMNS, ROWS, digest, in_type

READERS: dict[str, Any] = {
    "awq": Awq,
    "gptq": Gptq,
    "compressed_tensors": CompressedTensors,
    "fp8": lambda: Fp8Quantizer(Fp8QuantizerConfig()),
}
GOLDEN = json.loads(Path(__file__).with_name("published.json").read_text())
NAME = "model.layers.0.mlp.down_proj"


def scheme_of(case: Case) -> Scheme:
    scheme: Scheme = READERS[case.method]().scheme(Announcement(case.announced, "here"))
    return scheme


def read(case: Case, tensors: dict[str, torch.Tensor], rows: int, columns: int) -> torch.Tensor:
    """The numbers of a matrix, read."""
    matrix = Matrix(NAME, rows, columns)
    return dense(validated(matrix, scheme_of(case).weight(matrix, tensors.__getitem__)))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4, deadline=None)
@given(
    rows=st.integers(1, 5), columns=st.integers(1, 4), tail=st.booleans(), salt=st.text(max_size=4)
)
def test_numbers_are_those_of_the_formula(
    name: str, rows: int, columns: int, tail: bool, salt: str
) -> None:
    case, rows, columns = CASES[name], 8 * rows, 32 * columns
    if tail and case.method != "awq":
        columns += 16 if name == "floats of 4 bits" else 8  # The last group is smaller.
    tensors = case.tensors(rows, columns, repr(salt))
    assert torch.equal(read(case, tensors, rows, columns), meant(case, tensors, rows, columns))


@pytest.mark.parametrize("name", CASES)
def test_forms_are_those_of_the_format(name: str) -> None:
    case, matrix = CASES[name], Matrix(NAME, 40, 96 if name in ("awq", "floats of 4 bits") else 104)
    forms = {s: Stored(*form) for s, form in case.forms(matrix.rows, matrix.columns).items()}
    stored = scheme_of(case).stored(matrix)
    assert stored is not None
    assert forms.keys() == stored.keys()
    for suffix, form in forms.items():
        assert form in stored[suffix]


@pytest.mark.parametrize("name", GOLDEN)
def test_numbers_are_those_of_published_code(name: str) -> None:
    case = CASES[name]
    tensors = case.tensors(ROWS, COLUMNS)
    assert digest(in_type(case, read(case, tensors, ROWS, COLUMNS))) == GOLDEN[name]


@pytest.mark.parametrize("name", ["gptq", "gptq with an order"])
def test_the_greatest_zero_is_one_more_and_no_zero(name: str) -> None:
    """Published code has three ways with it; this is the one of the kernels in use."""
    case = CASES[name]
    tensors = case.tensors(32, 64)
    tensors["qzeros"].fill_(-1)
    assert torch.equal(read(case, tensors, 32, 64), meant(case, tensors, 32, 64))
    assert bool((read(case, tensors, 32, 64) < 0).all())


def test_8_bit_inputs_by_token_are_multiplied_as_bytes() -> None:
    case = CASES["integers"]
    inputs = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
    group = {**case.announced["config_groups"]["group_0"], "input_activations": inputs}
    announced = {**case.announced, "config_groups": {"group_0": group}}
    matrix = Matrix(NAME, 8, 32)
    scheme = CompressedTensors().scheme(Announcement(announced, "here"))
    weight = scheme.weight(matrix, case.tensors(8, 32).__getitem__)
    assert isinstance(weight, GroupedWeight)
    assert weight.activations == "int8"
    assert weight.codes.dtype == torch.int8


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        (None, "float"),
        ({"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}, "e4m3"),
        ({"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}, "float"),
        ({"num_bits": 4, "type": "float", "strategy": "token", "dynamic": True}, "float"),
    ],
)
def test_8_bit_floats_say_what_they_are_multiplied_with(inputs: Any, wanted: str) -> None:
    case = CASES["floats, one scale"]
    group = {**case.announced["config_groups"]["group_0"], "input_activations": inputs}
    announced = {**case.announced, "config_groups": {"group_0": group}}
    scheme = CompressedTensors().scheme(Announcement(announced, "here"))
    weight = scheme.weight(Matrix(NAME, 8, 32), case.tensors(8, 32).__getitem__)
    assert isinstance(weight, GroupedWeight)
    assert weight.activations == wanted


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [("floats, one scale", "float", "e4m3"), ("integers", "int", "int8")],
)
def test_static_inputs_have_the_scale_of_the_file(name: str, kind: str, wanted: str) -> None:
    case, matrix = CASES[name], Matrix(NAME, 8, 32)
    inputs = {"num_bits": 8, "type": kind, "strategy": "tensor", "dynamic": False}
    group = {**case.announced["config_groups"]["group_0"], "input_activations": inputs}
    announced = {**case.announced, "config_groups": {"group_0": group}}
    scheme = CompressedTensors().scheme(Announcement(announced, "here"))
    assert "input_scale" in (scheme.stored(matrix) or {})
    tensors = {**case.tensors(8, 32), "input_scale": torch.tensor([0.25])}
    weight = scheme.weight(matrix, tensors.__getitem__)
    assert isinstance(weight, StaticWeight)
    assert weight[1:] == (wanted, 0.25)
    assert torch.equal(dense(weight), read(case, tensors, 8, 32))
    tensors["input_scale"] = torch.tensor([0.0])
    with pytest.raises(ValueError, match=r"input_scale is 0\.0, and inputs are divided by it"):
        scheme.weight(matrix, tensors.__getitem__)
    zeros = {**inputs, "symmetric": False}
    announced["config_groups"]["group_0"] = {**group, "input_activations": zeros}
    scheme = CompressedTensors().scheme(Announcement(announced, "here"))
    assert isinstance(scheme.weight(matrix, tensors.__getitem__), GroupedWeight)


@pytest.mark.parametrize("name", ["fp8", "fp8 in blocks"])
def test_fp8_is_meant_to_be_multiplied_with_rows_of_fp8(name: str) -> None:
    case = CASES[name]
    weight = scheme_of(case).weight(Matrix(NAME, 64, 96), case.tensors(64, 96).__getitem__)
    assert isinstance(weight, GroupedWeight)
    assert weight.activations == "e4m3"


@pytest.mark.parametrize(
    ("more", "suffix"),
    [({}, "input_scale"), ({"weight_block_size": None}, "activation_scale")],
)
@pytest.mark.parametrize("packed", [False, True])
def test_static_fp8_has_its_scale_under_the_name_of_who_wrote_it(
    more: dict[str, Any], suffix: str, packed: bool
) -> None:
    case, matrix = CASES["fp8"], Matrix(NAME, 64, 96)
    announced = Announcement({**case.announced, **more, "activation_scheme": "static"}, "here")
    reader = Fp8Quantizer(Fp8QuantizerConfig(packed=packed))
    reader.open(QuantizerResources("", "cpu"))
    scheme = reader.scheme(announced)
    assert (scheme.stored(matrix) or {}).keys() == {"weight", scheme.scales, suffix}
    assert suffix not in scheme.optional(matrix)
    tensors = {**case.tensors(64, 96), suffix: torch.tensor(0.25)}
    tensors[scheme.scales] = tensors.pop("weight_scale")
    weight = scheme.weight(matrix, tensors.__getitem__)
    assert isinstance(weight, StaticWeight)
    assert weight[1:] == ("e4m3", 0.25)
    assert isinstance(weight.weight, torch.Tensor) != packed
    tensors[suffix] = torch.tensor(float("nan"))
    with pytest.raises(ValueError, match=suffix):
        scheme.weight(matrix, tensors.__getitem__)
