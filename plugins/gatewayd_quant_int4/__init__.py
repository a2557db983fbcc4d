"""Quantizes weights to 4 bits while a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_int4.config import Int4QuantizerConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: Int4QuantizerConfig) -> QuantizerStrategy:
    from gatewayd_quant_int4.strategy import Int4Quantizer

    return Int4Quantizer(config)


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Provide ``int4``."""
    return [
        StrategyInfo(
            name="int4",
            config_type=Int4QuantizerConfig,
            build=_build,
            summary="4-bit weights, rounded to nearest while the model is loaded.",
            requires_spec=">=1.10,<2",
        )
    ]
