"""Reads checkpoints that AutoGPTQ, GPTQModel and their like have written, and writes such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_gptq.config import GptqConfig

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: GptqConfig) -> QuantizerStrategy:
    from gatewayd_quant_gptq.strategy import Gptq

    return Gptq(config)


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Offer ``gptq``."""
    return [
        StrategyInfo(
            name="gptq",
            config_type=GptqConfig,
            build=_build,
            summary="Checkpoints of GPTQ: weights of 4 or 8 bits, read and written.",
            requires_spec=">=1.17,<2",
        )
    ]
