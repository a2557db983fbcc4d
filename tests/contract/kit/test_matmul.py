"""Plugin matmul conformance: rejects wrong products, stray writes and false declarations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gatewayd_hooks.multiplying import Form
from gatewayd_hooks.quantization import GroupedWeight
from gatewayd_hooks.testing.quantization import QuantizerConformance
from tests.contract.kit.conftest import fails
from tests.engine.float64_matmul_plugin import Plain, PlainConfig, PlainProduct


class Case(QuantizerConformance):
    strategy: Any

    def make(self) -> Any:
        return self.strategy


def verdict(product: type[PlainProduct], strategy: type[Plain] = Plain) -> list[str]:
    """The tests that fail."""

    class Taking(strategy):  # type: ignore[misc, valid-type]
        def take(self, form: Form, weight: GroupedWeight, bias: torch.Tensor | None) -> Any:
            super().take(form, weight, bias)
            return product(weight, bias)

    case = type("OfOne", (Case,), {"strategy": Taking(PlainConfig())})()
    tests = [name for name in dir(QuantizerConformance) if name.startswith("test_")]
    return [name.removeprefix("test_") for name in tests if fails(case, name)]


NUMBERS = "products_match_those_of_the_dequantized_weight"
AGAIN = "products_are_deterministic_and_batch_invariant_if_declared"
LEFT = "weights_are_not_modified"


def test_a_sound_one_passes() -> None:
    assert verdict(PlainProduct) == []


class Turned(PlainProduct):
    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        made = super().__call__(x).roll(1, 1)
        return made if out is None else out.copy_(made)


class Deaf(PlainProduct):
    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        return super().__call__(x)


class NeverNone(PlainProduct):
    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        assert len(x)
        return super().__call__(x, out=out)


class Unbiased(PlainProduct):
    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None) -> None:
        super().__init__(weight, None)


class Scaling(PlainProduct):
    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        made = super().__call__(x, out=out)
        x.mul_(2)
        return made


class Coarse(PlainProduct):
    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        return super().__call__(x.to(torch.float8_e4m3fn).to(x.dtype), out=out)


class Swayed(PlainProduct):
    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        made = super().__call__(x).mul_(1 + len(x) / 4096)
        return made if out is None else out.copy_(made)


class Frank(Swayed):
    is_steady = False
    rounds_inputs = True


class OneRoom(PlainProduct):
    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        made = super().__call__(x, out=out)
        if out is not None:
            return out
        self.room = getattr(self, "room", made.new_empty(64, made.shape[1]))
        return self.room[: len(x)].copy_(made)


class Weightless(PlainProduct):
    nbytes = 0


@pytest.mark.parametrize(
    ("product", "failing"),
    [
        (Turned, [NUMBERS]),
        (Deaf, [NUMBERS]),
        (NeverNone, [NUMBERS]),
        (Unbiased, [NUMBERS]),
        (Scaling, [AGAIN, NUMBERS]),
        (Coarse, [NUMBERS]),
        (Swayed, [AGAIN, NUMBERS]),
        (OneRoom, [AGAIN]),
        (Weightless, [NUMBERS]),
    ],
)
def test_one_that_breaks_a_rule_is_caught(product: type[PlainProduct], failing: list[str]) -> None:
    assert sorted(verdict(product)) == sorted(failing)


def test_one_that_says_that_rows_depend_on_each_other_may() -> None:
    assert verdict(Frank) == []


def test_one_that_writes_into_a_weight_is_caught() -> None:
    class Greedy(Plain):
        def take(self, form: Form, weight: GroupedWeight, bias: torch.Tensor | None) -> Any:
            made = super().take(form, weight, bias)
            weight.scales.mul_(2)
            return made

    case = type("OfOne", (Case,), {"strategy": Greedy(PlainConfig())})()
    assert fails(case, f"test_{LEFT}")
