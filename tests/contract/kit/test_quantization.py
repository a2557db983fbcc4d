"""Quantizer conformance: rejects wrong rounding and misread formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from gatewayd_hooks.quantization import Announcement, GroupedWeight, Matrix, SparseWeight, Stored
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_int8.strategy import Int8Quantizer
from gatewayd_quant_sparse24.strategy import Sparse24
from tests.contract.kit.conftest import fails
from tests.engine.four_bit_format_plugin import Nibbles


class _Case(QuantizerConformance):
    strategy: Any

    def make(self) -> Any:
        return self.strategy


class _Reading(_Case):
    def announced(self) -> Mapping[str, Any]:
        return {"quant_method": "nibbles", "bits": 4}

    def damages(self) -> list[tuple[Mapping[str, Any], str]]:
        return [({"bits": 3}, "bits"), ({"bits": "4"}, "bits"), ({"group": 8}, "group")]


def verdict(strategy: Any) -> list[str]:
    """The tests that fail."""
    base = _Case if hasattr(strategy, "quantize") else _Reading
    case = type("Case", (base,), {"strategy": strategy})()
    tests = [name for name in dir(QuantizerConformance) if name.startswith("test_")]
    return [name for name in tests if fails(case, name)]


@pytest.mark.parametrize("sound", [Int8Quantizer, Nibbles, Sparse24])
def test_a_sound_one_passes(sound: type) -> None:
    assert verdict(sound()) == []


# Each of these breaks one rule of a sound one.


class TruncatingInt8(Int8Quantizer):
    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        made = super().quantize(matrix, weight)
        return made._replace(codes=weight.div(made.scales).to(torch.int8))


class OneScale(Int8Quantizer):
    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        scales = (weight.abs().max() / 127).expand(matrix.rows, 1).contiguous()
        if not scales.isfinite().all():
            raise ValueError("not finite")
        return GroupedWeight(weight.div(scales).round().to(torch.int8), scales)


class TakesWhatever(Int8Quantizer):
    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        return super().quantize(matrix, weight.nan_to_num(0.0, 1.0, -1.0))


class Greedy(Int8Quantizer):
    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        made = super().quantize(matrix, weight)
        weight.zero_()
        return made


class Restless(Int8Quantizer):
    def __init__(self) -> None:
        self.calls = 0

    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        self.calls += 1
        made = super().quantize(matrix, weight)
        if self.calls % 2:
            made.codes[0, 0] ^= 1
        return made


class OneForZero(Int8Quantizer):
    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        made = super().quantize(matrix, weight)
        made.codes[made.codes == 0] = 1
        return made


class DoubleScales(Int8Quantizer):
    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        made = super().quantize(matrix, weight)
        return made._replace(scales=made.scales.double())


class KeepsThree(Sparse24):
    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> SparseWeight | None:
        made = super().quantize(matrix, weight)
        if made is not None:
            made.values[:, ::4] = weight[:, ::4]
        return made


class RoundsWhatStays(Sparse24):
    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> SparseWeight | None:
        made = super().quantize(matrix, weight)
        return None if made is None else SparseWeight(made.values.bfloat16().float())


class CoarseFloats(Int8Quantizer):
    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> Any:
        made = super().quantize(matrix, weight)
        return made.codes.bitwise_and(-32).float() * made.scales


class Idle:
    def open(self, resources: Any) -> None:
        pass

    def close(self) -> None:
        pass


class TakesAnyBits(Nibbles):
    def scheme(self, announced: Announcement) -> Nibbles:
        return self


class SaysNotWhere(Nibbles):
    def scheme(self, announced: Announcement) -> Nibbles:
        return super().scheme(announced._replace(where="a file"))


class TakesInfinity(Nibbles):
    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> GroupedWeight:
        return super().weight(matrix, lambda suffix: take(suffix).nan_to_num())


class ForgetsAMask(Nibbles):
    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> GroupedWeight:
        packed = take("packed")
        codes = torch.stack((packed, packed >> 4), -1).flatten(1)
        return super().weight(matrix, take)._replace(codes=codes)


class UnpacksHalf(Nibbles):
    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> GroupedWeight:
        return super().weight(matrix, take)._replace(codes=take("packed") & 15)


class NamesOneTwice(Nibbles):
    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        return {"scales": (Stored("F32", (matrix.rows, 1)),)}


class WritesIntoTheFile(Nibbles):
    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> GroupedWeight:
        made = super().weight(matrix, take)
        take("packed").zero_()
        again = super().weight(matrix, take)
        return made._replace(codes=again.codes + self._first(made))

    def _first(self, made: GroupedWeight) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls % 2


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (TruncatingInt8, "rounded_to_the_nearest"),
        (OneScale, "does_not_depend_on_other_rows"),
        (TakesWhatever, "not_finite_are_refused"),
        (Greedy, "does_not_modify_the_weight"),
        (Restless, "is_deterministic"),
        (OneForZero, "zeros_stay_zeros"),
        (DoubleScales, "rounded_to_the_nearest"),
        (KeepsThree, "rounded_to_the_nearest"),
        (RoundsWhatStays, "rounded_to_the_nearest"),
        (CoarseFloats, "rounded_to_the_nearest"),
        (Idle, "reads_checkpoints_quantizes_or_multiplies"),
        (TakesAnyBits, "invalid_announcement"),
        (SaysNotWhere, "invalid_announcement"),
        (TakesInfinity, "scales_that_are_not_finite"),
        (ForgetsAMask, "become_a_weight"),
        (UnpacksHalf, "become_a_weight"),
        (NamesOneTwice, "are_distinct"),
        (WritesIntoTheFile, "become_a_weight"),
    ],
)
def test_a_broken_one_fails(broken: type, caught: str) -> None:
    assert any(caught in name for name in verdict(broken()))
