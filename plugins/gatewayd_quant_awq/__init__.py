"""Reads and writes AWQ checkpoints, as AutoAWQ and compatible tools do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_awq.config import AwqConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: AwqConfig) -> QuantizerStrategy:
    from gatewayd_quant_awq.strategy import Awq

    return Awq(config)


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Provide ``awq``."""
    return [
        StrategyInfo(
            name="awq",
            config_type=AwqConfig,
            build=_build,
            summary="Reads and writes AWQ checkpoints: 4-bit weights in gemm packing.",
            requires_spec=">=1.17,<2",
        )
    ]
