"""Quantized matmul on GPUs with the kernels of humming-kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_humming.config import HummingConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: HummingConfig) -> QuantizerStrategy:
    from gatewayd_quant_humming.strategy import Humming

    return Humming(config)


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Provide ``humming``."""
    return [
        StrategyInfo(
            name="humming",
            config_type=HummingConfig,
            build=_build,
            summary="Quantized matmul kernels for GPUs: weights of 2 to 8 bits (humming-kernels).",
            requires_spec=">=1.20,<2",
        )
    ]
