"""Reads quantized weights of GGUF files, as llama.cpp writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_gguf.config import GgufConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: GgufConfig) -> QuantizerStrategy:
    from gatewayd_quant_gguf.strategy import Gguf

    return Gguf(config)


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Provide ``gguf``."""
    return [
        StrategyInfo(
            name="gguf",
            config_type=GgufConfig,
            build=_build,
            summary="Reads GGUF files: Q2_K to Q6_K, Q4_0 to Q8_0, IQ4, MXFP4 and floats.",
            requires_spec=">=1.10,<2",
        )
    ]
