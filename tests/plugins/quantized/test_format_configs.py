"""Quantization configs: read, or refused with the field's location."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatewayd_hooks.quantization import Announcement, Matrix
from gatewayd_quant_compressed_tensors.strategy import CompressedTensors
from tests.plugins.quantized.format_cases import CASES
from tests.plugins.quantized.test_decoded_values import READERS, read

MATRIX = Matrix("model.layers.0.mlp.down_proj", 64, 96)
CODES = ("weight", "weight_packed")
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([-1, 0, 1, 3, 4, 8, 32, 128, "gptq", "group", "block", "re:.*", "Linear"])
    | st.floats()
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def fields(values: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of all fields, those of objects inside too."""
    found = []
    for key, value in values.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += fields(value, (*path, key))
    return found


@pytest.mark.parametrize(
    "name", ["awq", "gptq", "packed with zeros", "floats in blocks", "fp8 in blocks"]
)
# Data takes long to draw on a busy machine, which is no fault.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_stands_in_a_field_is_read_or_refused(name: str, data: st.DataObject) -> None:
    announced = copy.deepcopy(dict(CASES[name].announced))
    *outer, last = data.draw(st.sampled_from(fields(announced)))
    at = announced
    for key in outer:
        at = at[key]
    at[last] = data.draw(VALUES)
    sentence, stored = "", None
    try:
        stored = (
            READERS[CASES[name].method]().scheme(Announcement(announced, "here")).stored(MATRIX)
        )
    except ValueError as error:
        sentence = str(error)
    assert not sentence or sentence.startswith(("here.", f"{MATRIX.name} has 96 columns"))
    for forms in (stored or {}).values():
        assert forms
        assert all(size >= 0 for form in forms for size in form.shape)


@pytest.mark.parametrize("size", [1000, 10**9, sys.maxsize, 10**30])
@pytest.mark.parametrize("name", ["floats in blocks", "fp8 in blocks"])
def test_a_block_beyond_its_matrix_takes_no_memory_of_its_size(name: str, size: int) -> None:
    case = CASES[name]
    announced = copy.deepcopy(dict(case.announced))
    if name == "floats in blocks":
        announced["config_groups"]["group_0"]["weights"]["block_structure"] = [size, size]
    else:
        announced["weight_block_size"] = [size, size]
    tensors = case.tensors(32, 32)
    scheme = READERS[case.method]().scheme(Announcement(announced, "here"))
    weight = scheme.weight(Matrix(MATRIX.name, 32, 32), tensors.__getitem__)
    assert weight.scales.shape == (32, 1)
    whole = read(case, tensors, 32, 32)
    assert torch.equal(weight.codes.float() * weight.scales, whole)


@pytest.mark.parametrize(
    ("targets", "ignored", "packed"),
    [
        (["Linear"], [], True),
        (["Linear"], [MATRIX.name], False),
        (["Linear"], ["re:.*down_proj$"], False),
        (["Linear"], ["re:down_proj"], True),  # patterns begin where names do
        (["Linear"], ["Linear"], False),
        (["re:model\\.layers\\.0\\..*"], [], True),
        (["re:model\\.layers\\.1\\..*"], [], False),
        ([MATRIX.name], [], True),
        (["down_proj"], [], False),
    ],
)
def test_targets_say_what_is_packed(targets: list[str], ignored: list[str], packed: bool) -> None:
    announced = copy.deepcopy(dict(CASES["packed"].announced))
    announced["config_groups"]["group_0"]["targets"] = targets
    announced["ignore"] = ignored
    scheme = CompressedTensors().scheme(Announcement(announced, "here"))
    assert (scheme.stored(MATRIX) is not None) == packed
    assert scheme.stored(Matrix("model.embed_tokens", 64, 96)) is None


def test_the_closest_of_several_groups_counts() -> None:
    announced = copy.deepcopy(dict(CASES["packed"].announced))
    first = announced["config_groups"]["group_0"]
    bytes_ = copy.deepcopy(first)
    bytes_["weights"]["num_bits"], bytes_["targets"] = 8, ["re:.*down_proj"]
    announced["config_groups"]["group_1"] = bytes_
    scheme = CompressedTensors().scheme(Announcement(announced, "here"))
    words = {
        name: (scheme.stored(MATRIX._replace(name=name)) or {})["weight_packed"][0].shape[1]
        for name in (MATRIX.name, "model.layers.0.mlp.up_proj")
    }
    assert list(words.values()) == [24, 12]


def test_groups_of_a_mixed_checkpoint_say_each_how_they_are_stored() -> None:
    announced = copy.deepcopy(dict(CASES["packed"].announced))
    floats = copy.deepcopy(CASES["floats"].announced["config_groups"]["group_0"])
    announced["format"] = "mixed-precision"
    announced["config_groups"]["group_0"]["format"] = "pack-quantized"
    announced["config_groups"]["group_1"] = {
        **floats,
        "format": "float-quantized",
        "targets": ["re:.*down_proj"],
    }
    scheme = CompressedTensors().scheme(Announcement(announced, "here"))
    kinds = [
        next(
            forms[0].dtype for name, forms in (scheme.stored(matrix) or {}).items() if name in CODES
        )
        for matrix in (MATRIX, MATRIX._replace(name="model.layers.0.mlp.up_proj"))
    ]
    assert kinds == ["F8_E4M3", "I32"]


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8"])
@pytest.mark.parametrize(
    "name", ["mlp.gate", "mlp.router", "feed_forward.router", "mlp.shared_expert_gate"]
)
def test_what_weighs_experts_is_stored_as_floats(method: str, name: str) -> None:
    case = next(case for case in CASES.values() if case.method == method)
    scheme = READERS[method]().scheme(Announcement(case.announced, "here"))
    assert scheme.stored(Matrix(f"model.layers.0.{name}", 1, 96)) is None
    assert scheme.stored(Matrix("model.layers.0.mlp.gate_proj", 64, 128)) is not None
