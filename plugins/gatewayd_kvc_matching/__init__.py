"""KV compaction: replaces most keys and values of a long prompt with few fitted ones."""

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
    """Provide ``matching``."""
    return [
        StrategyInfo(
            name="matching",
            config_type=MatchingConfig,
            build=_build,
            summary="Compacts a long prompt's keys and values (attention matching).",
            requires_spec=">=1.14,<2",
        )
    ]
