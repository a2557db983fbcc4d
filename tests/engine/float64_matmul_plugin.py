"""Third-party quantizer plugin that only multiplies: in float64, or wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gatewayd_hooks.host.catalog import Catalog, Entry
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.multiplying import Form
from gatewayd_hooks.quantization import GroupedWeight, QuantizerResources
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo, setting
from gatewayd_hooks.testing.weights.few_bits import dense
from tests.engine import four_bit_format_plugin

NAMES = ("plain", "broken")


class PlainProduct:
    """``x @ numbers.T + bias``, in float64.

    Args:
        weight: whose numbers are made once.
        bias: shape ``[rows]``.
    """

    is_steady = True
    rounds_inputs = False

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None) -> None:
        self._numbers = dense(weight).double().t()
        self._bias = bias

    @property
    def nbytes(self) -> int:
        """See ``Product``."""
        return self._numbers.nbytes

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``Product``."""
        # One row at a time: many of them are added up in another order than one.
        made = x.new_empty(len(x), self._numbers.shape[1]) if out is None else out
        add = 0.0 if self._bias is None else self._bias
        for row, to in zip(x.double(), made, strict=True):
            to.copy_(row @ self._numbers + add)
        return made


class PlainConfig(StrategyConfig):
    """Which matrices it takes."""

    columns: int = setting(0, reload="restart", doc="Columns of those that it takes; 0 for all.")


class Plain:
    """Multiplies all weights, or those of so many columns.

    Attributes:
        made: its products, by the form of what they multiply.
    """

    def __init__(self, config: PlainConfig) -> None:
        self._columns = config.columns
        self.made: list[Form] = []

    def open(self, resources: QuantizerResources) -> None:
        """See ``QuantizerStrategy``."""

    def close(self) -> None:
        """See ``QuantizerStrategy``."""

    def suits(self, form: Form) -> bool:
        """See ``Multiplies``."""
        return self._columns in (0, form.columns)

    def take(self, form: Form, weight: GroupedWeight, bias: torch.Tensor | None) -> Any:
        """See ``Multiplies``."""
        self.made.append(form)
        return PlainProduct(weight, bias)


class BrokenConfig(StrategyConfig):
    """What goes wrong."""

    way: str = setting("", reload="restart", doc="What goes wrong.")


class BrokenProduct(PlainProduct):
    """A product that goes wrong.

    Args:
        weight, bias: as before.
        way: how.
    """

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None, way: str) -> None:
        super().__init__(weight, bias)
        self._way = way
        self._calls = 0

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``Product``."""
        self._calls += 1
        made = super().__call__(x, out=out)
        match self._way:
            case "shape":
                return made[:, 1:]
            case "type":
                return made.double()
            case "numbers":
                return made.roll(1, 1)
            case "many" if len(x) > 64:
                return made.roll(1, 1)
            case "last line" if len(x) > 64:
                made[-1] = 0.0
            case "call":
                raise ArithmeticError("not with me")
            case "step" if self._calls > 2:  # of few rows, and of many
                raise ArithmeticError("not today")
        return made


class Broken(Plain):
    """Takes everything, and fails in some way.

    Args:
        config: in which.
    """

    def __init__(self, config: BrokenConfig) -> None:
        super().__init__(PlainConfig())
        self._way = config.way

    def open(self, resources: QuantizerResources) -> None:
        """See ``QuantizerStrategy``."""
        if self._way == "open":
            raise ValueError("its library is not here; pip install it")

    def suits(self, form: Form) -> bool:
        """See ``Multiplies``."""
        if self._way == "suits":
            raise KeyError(form.bits)
        return True

    def take(self, form: Form, weight: GroupedWeight, bias: torch.Tensor | None) -> Any:
        """See ``Multiplies``."""
        if self._way == "take":
            raise ArithmeticError("no room")
        if self._way == "declines":
            return None
        return BrokenProduct(weight, bias, self._way)


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[Any]]:
    """Offer both."""
    return [
        StrategyInfo("plain", PlainConfig, Plain, "Multiplies in float64."),
        StrategyInfo("broken", BrokenConfig, Broken, "Multiplies wrongly."),
    ]


def catalog() -> Catalog:
    """What is installed, the stranger's format, and these."""
    ours = [Entry("quantizer", n, "gatewayd-quant-plain", "1.0", __name__) for n in NAMES]
    return Catalog([*ours, *four_bit_format_plugin.catalog().entries])
