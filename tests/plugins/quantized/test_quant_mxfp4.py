"""MXFP4: values are those of transformers' reader, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from gatewayd_hooks.quantization import Announcement, GroupedWeight, Matrix, Stored
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_mxfp4.strategy import Mxfp4, Mxfp4Scheme

EXPERT = Matrix("model.layers.1.mlp.experts.3.gate_proj", 24, 64)
ANNOUNCED = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


def scheme(**changes: Any) -> Mxfp4Scheme:
    return Mxfp4().scheme(Announcement({**ANNOUNCED, **changes}, "config.json"))


def numbers(exponents: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    blocks = torch.randint(256, (24, 2, 16), dtype=torch.uint8)
    if exponents is None:
        exponents = torch.randint(1, 255, (24, 2), dtype=torch.uint8)
    return {"blocks": blocks, "scales": exponents}


class TestMxfp4(QuantizerConformance):
    def make(self) -> Mxfp4:
        return Mxfp4()

    def announced(self) -> Mapping[str, Any]:
        return ANNOUNCED

    def damages(self) -> Sequence[tuple[Mapping[str, Any], str]]:
        return [({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert")]


def test_values_are_those_of_transformers() -> None:
    # Imports triton, which tests of kernels have to do first.
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    # Over all exponents whose products are normal numbers of bfloat16, which theirs are.
    stored = numbers(torch.arange(3, 51, dtype=torch.uint8).view(24, 2) * 5)
    weight = scheme().weight(EXPERT, stored.__getitem__)
    assert isinstance(weight, GroupedWeight)
    ours = torch.unflatten(weight.codes.float(), 1, (2, 32)) * weight.scales.unsqueeze(-1)
    theirs = convert_moe_packed_tensors(stored["blocks"][None], stored["scales"][None])
    assert torch.equal(ours.flatten(1), theirs[0].t().float())


def test_the_least_and_the_largest_scale_are_powers_of_two() -> None:
    for exponent in (0, 254):
        stored = numbers(torch.full((24, 2), exponent, dtype=torch.uint8))
        weight = scheme().weight(EXPERT, stored.__getitem__)
        assert isinstance(weight, GroupedWeight)
        assert set(weight.scales.flatten().tolist()) == {2.0 ** (exponent - 128)}


def test_a_scale_that_is_no_number_is_named() -> None:
    exponents = torch.full((24, 2), 127, dtype=torch.uint8)
    exponents[5, 1] = 255
    with pytest.raises(ValueError, match="scales contains a NaN"):
        scheme().weight(EXPERT, numbers(exponents).__getitem__)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("model.layers.0.self_attn.q_proj", []),
        ("model.layers.0.mlp.router", []),
        ("model.embed_tokens", []),
        ("lm_head", []),
        (EXPERT.name, ["model.layers.1.mlp.experts"]),
        (EXPERT.name, ["model.layers.*.mlp"]),
    ],
)
def test_matrices_of_layers_are_in_codes_unless_excluded(name: str, plain: list[str]) -> None:
    assert scheme(modules_to_not_convert=plain).stored(Matrix(name, 24, 64)) is None
    forms = scheme(modules_to_not_convert=["model.layers.10.mlp"]).stored(EXPERT)
    assert forms == {"scales": (Stored("U8", (24, 2)),), "blocks": (Stored("U8", (24, 2, 16)),)}


def test_columns_of_part_of_a_group_are_named() -> None:
    with pytest.raises(ValueError, match=r"experts\.3\.gate_proj.*48 columns.*32"):
        scheme().stored(EXPERT._replace(columns=48))
