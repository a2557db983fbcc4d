"""Sparse attention to positions that a small network predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_kvc_predictor.config import PredictorConfig

if TYPE_CHECKING:
    from gatewayd_hooks.kv_compression import KvCompressionStrategy


def _build(config: PredictorConfig) -> KvCompressionStrategy:
    from gatewayd_kvc_predictor.strategy import Predictor

    return Predictor(config)


@hookimpl
def gatewayd_kv_compressions() -> Sequence[StrategyInfo[KvCompressionStrategy]]:
    """Provide ``predictor``."""
    return [
        StrategyInfo(
            name="predictor",
            config_type=PredictorConfig,
            build=_build,
            summary="Sparse attention to positions predicted by a small network.",
            requires_spec=">=1.12,<2",
        )
    ]
