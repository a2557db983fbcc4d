"""Reads and writes FP8 checkpoints, and quantizes to FP8 while a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_fp8.config import Fp8QuantizerConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: Fp8QuantizerConfig) -> QuantizerStrategy:
    from gatewayd_quant_fp8.strategy import Fp8Quantizer

    return Fp8Quantizer(config)


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Provide ``fp8``."""
    return [
        StrategyInfo(
            name="fp8",
            config_type=Fp8QuantizerConfig,
            build=_build,
            summary="FP8 weights: of a checkpoint, or quantized while it is loaded.",
            requires_spec=">=1.19,<2",
        )
    ]
