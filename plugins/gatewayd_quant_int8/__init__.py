"""Quantizes weights to 8 bits while a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_int8.config import Int8QuantizerConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: Int8QuantizerConfig) -> QuantizerStrategy:
    from gatewayd_quant_int8.strategy import Int8Quantizer

    return Int8Quantizer()


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Provide ``int8``."""
    return [
        StrategyInfo(
            name="int8",
            config_type=Int8QuantizerConfig,
            build=_build,
            summary="8-bit weights and activations; weights are rounded while the model is loaded.",
            requires_spec=">=1.11,<2",
        )
    ]
