"""Lets a few fitted keys and values stand for most of a long prompt's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_kvc_matching.config import MatchingConfig

if TYPE_CHECKING:
    from gatewayd_hooks.kv_compression import KvCompressionStrategy


def _build(config: MatchingConfig) -> KvCompressionStrategy:
    from gatewayd_kvc_matching.strategy import Matching

    return Matching(config)


@hookimpl
def gatewayd_kv_compressions() -> Sequence[StrategyInfo[KvCompressionStrategy]]:
    """Offer ``matching``."""
    return [
        StrategyInfo(
            name="matching",
            config_type=MatchingConfig,
            build=_build,
            summary="Few keys and values, fitted to a long prompt's, take their place.",
            requires_spec=">=1.14,<2",
        )
    ]
