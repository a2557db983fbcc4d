"""Prefix cache over a compressed radix tree of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_prefix_radix.config import RadixConfig

if TYPE_CHECKING:
    from gatewayd_hooks.caching import PrefixCacheStrategy


def _build(config: RadixConfig) -> PrefixCacheStrategy[Any]:
    from gatewayd_prefix_radix.strategy import Radix

    return Radix()


@hookimpl
def gatewayd_prefix_caches() -> Sequence[StrategyInfo[PrefixCacheStrategy[Any]]]:
    """Provide ``radix``."""
    return [
        StrategyInfo(
            name="radix",
            config_type=RadixConfig,
            build=_build,
            summary="Finds cached prefixes in a radix tree of token ids, with token granularity.",
            requires_spec=">=1.2,<2",
        )
    ]
