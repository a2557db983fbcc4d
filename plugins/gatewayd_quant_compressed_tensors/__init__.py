"""Reads checkpoints that llm-compressor and its like have written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_compressed_tensors.config import CompressedTensorsConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: CompressedTensorsConfig) -> QuantizerStrategy:
    from gatewayd_quant_compressed_tensors.strategy import CompressedTensors

    return CompressedTensors()


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Offer ``compressed_tensors``."""
    return [
        StrategyInfo(
            name="compressed_tensors",
            config_type=CompressedTensorsConfig,
            build=_build,
            summary="Checkpoints of compressed-tensors: integers and floats of 4 and 8 bits.",
            requires_spec=">=1.19,<2",
        )
    ]
