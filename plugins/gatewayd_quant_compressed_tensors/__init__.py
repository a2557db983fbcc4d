"""Reads compressed-tensors checkpoints, as written by llm-compressor."""

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
    """Provide ``compressed_tensors``."""
    return [
        StrategyInfo(
            name="compressed_tensors",
            config_type=CompressedTensorsConfig,
            build=_build,
            summary="Reads compressed-tensors checkpoints: 4- and 8-bit integers and floats.",
            requires_spec=">=1.19,<2",
        )
    ]
