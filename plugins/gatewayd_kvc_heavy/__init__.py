"""Sparse attention to recent tokens and heavy hitters (H2O)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_kvc_heavy.config import HeavyConfig

if TYPE_CHECKING:
    from gatewayd_hooks.kv_compression import KvCompressionStrategy


def _build(config: HeavyConfig) -> KvCompressionStrategy:
    from gatewayd_kvc_heavy.strategy import Heavy

    return Heavy(config)


@hookimpl
def gatewayd_kv_compressions() -> Sequence[StrategyInfo[KvCompressionStrategy]]:
    """Provide ``heavy``."""
    return [
        StrategyInfo(
            name="heavy",
            config_type=HeavyConfig,
            build=_build,
            summary="Sparse attention to recent tokens and heavy hitters (H2O).",
            requires_spec=">=1.12,<2",
        )
    ]
