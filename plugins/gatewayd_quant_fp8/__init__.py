"""Reads and writes checkpoints of 8-bit floats, and rounds to such while a model is loaded."""

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
    """Offer ``fp8``."""
    return [
        StrategyInfo(
            name="fp8",
            config_type=Fp8QuantizerConfig,
            build=_build,
            summary="Weights of 8-bit floats: a checkpoint's, or rounded while it is loaded.",
            requires_spec=">=1.19,<2",
        )
    ]
