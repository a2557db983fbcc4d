"""Quantizer conformance: rejects writes it cannot read, and fits worse than rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from gatewayd_hooks.quantization import Fit, GroupedWeight, Matrix, Site
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_gptq.config import GptqConfig
from gatewayd_quant_gptq.strategy import Gptq
from tests.contract.kit.conftest import fails
from tests.plugins.quantized.format_cases import CASES


class _Case(QuantizerConformance):
    strategy: Any

    def make(self) -> Any:
        return self.strategy

    def announced(self) -> Mapping[str, Any]:
        return CASES["gptq"].announced

    def damages(self) -> list[tuple[Mapping[str, Any], str]]:
        return [({"bits": 3}, "bits")]


class Sound(Gptq):
    def __init__(self) -> None:
        super().__init__(GptqConfig(group_size=64))


def verdict(strategy: Any, among: str = "test_") -> list[str]:
    """The tests that fail, of those whose names have a part."""
    case = type("Case", (_Case,), {"strategy": strategy})()
    tests = [name for name in dir(QuantizerConformance) if name.startswith("test_")]
    return [name for name in tests if among in name and fails(case, name)]


def test_a_sound_one_passes() -> None:
    assert verdict(Sound()) == []


# Each of these breaks one rule of a sound one.


class PacksTheOtherWay(Sound):
    def pack(self, matrix: Matrix, weight: GroupedWeight) -> Mapping[str, torch.Tensor]:
        made = dict(super().pack(matrix, weight))
        words = made["qweight"].contiguous().view(torch.uint8)
        made["qweight"] = (words >> 4 | words << 4).view(torch.int32)
        return made


class ForgetsATensor(Sound):
    def pack(self, matrix: Matrix, weight: GroupedWeight) -> Mapping[str, torch.Tensor]:
        made = super().pack(matrix, weight)
        return {suffix: tensor for suffix, tensor in made.items() if suffix != "qzeros"}


class WideScales(Sound):
    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        made = super().nearest(matrix, weight)
        return made._replace(scales=made.scales * 1.0001)


class SaysNothingOfTheRest(Sound):
    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        return super().announce(packed, [])


class TakesWhatever(Sound):
    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        return super().nearest(matrix, weight.nan_to_num(0.0, 1.0, -1.0))


class Greedy(Sound):
    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        made = super().nearest(matrix, weight)
        weight.zero_()
        return made


class LooksAtNothing(Sound):
    def fit(self, site: Site) -> Fit:
        pairs = zip(site.matrices, site.weights, strict=True)
        return Fit(tuple(self.nearest(*pair) for pair in pairs))


class DividesAnyway(Sound):
    def fit(self, site: Site) -> Fit:
        return super().fit(site)._replace(factors=torch.ones(site.matrices[0].columns))


class WritesIntoTheSite(Sound):
    def fit(self, site: Site) -> Fit:
        made = super().fit(site)
        site.gram.diagonal().add_(1.0)
        return made


class Restless(Sound):
    calls = 0

    def fit(self, site: Site) -> Fit:
        self.calls += 1
        made = super().fit(site)
        weight = made.weights[0]
        assert isinstance(weight, GroupedWeight)
        weight.codes[0, 0] ^= self.calls % 2
        return made


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (PacksTheOtherWay, "can_be_read_back"),
        (ForgetsATensor, "can_be_read_back"),
        (WideScales, "can_be_read_back"),
        (SaysNothingOfTheRest, "distinguishes_packed_from_plain"),
        (TakesWhatever, "not_finite_are_not_written"),
        (Greedy, "can_be_read_back"),
        (LooksAtNothing, "better_than_rounding"),
        (DividesAnyway, "better_than_rounding"),
        (WritesIntoTheSite, "does_not_modify_its_input"),
        (Restless, "fit_is_deterministic"),
    ],
)
def test_a_broken_one_fails(broken: type, caught: str) -> None:
    assert verdict(broken(), caught)
