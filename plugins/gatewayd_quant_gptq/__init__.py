"""Reads and writes GPTQ checkpoints, as AutoGPTQ, GPTQModel and compatible tools do."""

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
    """Provide ``gptq``."""
    return [
        StrategyInfo(
            name="gptq",
            config_type=GptqConfig,
            build=_build,
            summary="Reads and writes GPTQ checkpoints: 4- or 8-bit weights.",
            requires_spec=">=1.17,<2",
        )
    ]
