"""Prefix cache keyed by chained hashes of token blocks, one for each full page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_prefix_hash.config import HashConfig

if TYPE_CHECKING:
    from gatewayd_hooks.caching import PrefixCacheStrategy


def _build(config: HashConfig) -> PrefixCacheStrategy[Any]:
    from gatewayd_prefix_hash.strategy import HashChain

    return HashChain()


@hookimpl
def gatewayd_prefix_caches() -> Sequence[StrategyInfo[PrefixCacheStrategy[Any]]]:
    """Provide ``hash``."""
    return [
        StrategyInfo(
            name="hash",
            config_type=HashConfig,
            build=_build,
            summary="Finds cached pages by chained, keyed hashes of token blocks.",
        )
    ]
