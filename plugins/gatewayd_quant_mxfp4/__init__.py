"""Reads MXFP4 checkpoints: the experts of gpt-oss as they are released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_quant_mxfp4.config import Mxfp4Config

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import QuantizerStrategy


def _build(config: Mxfp4Config) -> QuantizerStrategy:
    from gatewayd_quant_mxfp4.strategy import Mxfp4

    return Mxfp4()


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[QuantizerStrategy]]:
    """Provide ``mxfp4``."""
    return [
        StrategyInfo(
            name="mxfp4",
            config_type=Mxfp4Config,
            build=_build,
            summary="Reads MXFP4 checkpoints: experts of 4-bit floats, with a scale for each 32.",
            requires_spec=">=1.10,<2",
        )
    ]
