"""Unknown config fields: refused where they change values, reported otherwise."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from gatewayd_hooks.quantization import Announcement
from tests.plugins.quantized.format_cases import CASES
from tests.plugins.quantized.test_decoded_values import READERS

TRANSFORM = {"config_groups": {"u": {"type": "hadamard", "apply": [{"targets": ["Linear"]}]}}}


def announced(name: str, path: str, value: Any) -> dict[str, Any]:
    """A case with one more field."""
    found: dict[str, Any] = copy.deepcopy(dict(CASES[name].announced))
    *outer, last = path.split(".")
    at = found
    for key in outer:
        at = at[key]
    at[last] = value
    return found


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("awq", "version", "gemv"),
        ("awq", "extra_config", {"model.layers.0.mlp.down_proj": {"bits": 8}}),
        ("gptq", "checkpoint_format", "gptq_v3"),
        ("gptq", "extra_config", {"model.layers.0.mlp.down_proj": {"bits": 8}}),
        ("gptq", "dynamic", {"+:.*down_proj": {"bits": 8}}),
        ("gptq", "adapter", {"name": "lora", "rank": 64}),
        ("gptq", "rotation", "hadamard"),
        ("fp8", "is_checkpoint_fp8_serialized", False),
        ("fp8", "fmt", "e5m2"),
        ("packed", "transform_config", TRANSFORM),
        ("packed", "sparsity_config", {"format": "sparse-24-bitmask"}),
        ("packed", "config_groups.group_0.weights.dynamic", True),
    ],
)
def test_a_field_that_changes_what_bits_mean_is_refused_by_name(
    name: str, field: str, value: Any
) -> None:
    values = announced(name, field, value)
    with pytest.raises(ValueError, match=rf"^here\.{field} is "):
        READERS[CASES[name].method]().scheme(Announcement(values, "here"))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("awq", "extra_config"),
        ("gptq", "adapter"),
        ("gptq", "rotation"),
        ("packed", "transform_config"),
    ],
)
@pytest.mark.parametrize("value", [None, {}])
def test_it_may_be_there_and_say_nothing(name: str, field: str, value: Any) -> None:
    values = announced(name, field, value)
    assert READERS[CASES[name].method]().scheme(Announcement(values, "here")) is not None


@pytest.mark.parametrize(
    ("name", "path", "where"),
    [
        ("awq", "fused", "here"),
        ("gptq", "fused", "here"),
        ("fp8", "fused", "here"),
        ("packed", "fused", "here"),
        ("packed", "config_groups.group_0.fused", "here.config_groups.group_0"),
        ("packed", "config_groups.group_0.weights.fused", "here.config_groups.group_0.weights"),
    ],
)
def test_a_field_that_nobody_knows_is_told_and_read_over(
    name: str, path: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    READERS[CASES[name].method]().scheme(Announcement(announced(name, path, True), "here"))
    assert f"{where}: unknown fields ignored: fused" in caplog.messages


@pytest.mark.parametrize("name", CASES)
def test_the_cases_have_no_field_that_nobody_knows(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    READERS[CASES[name].method]().scheme(Announcement(CASES[name].announced, "here"))
    assert not caplog.messages
