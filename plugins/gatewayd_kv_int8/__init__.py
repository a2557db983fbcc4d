"""Keeps keys and values as whole numbers of eight bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_kv_int8.config import Int8CodecConfig

if TYPE_CHECKING:
    from gatewayd_hooks.kv_codecs import KvCodecStrategy


def _build(config: Int8CodecConfig) -> KvCodecStrategy:
    from gatewayd_kv_int8.strategy import Int8Codec

    return Int8Codec(config)


@hookimpl
def gatewayd_kv_codecs() -> Sequence[StrategyInfo[KvCodecStrategy]]:
    """Offer ``int8``."""
    return [
        StrategyInfo(
            name="int8",
            config_type=Int8CodecConfig,
            build=_build,
            summary="Keys and values in eight bits, with a scale for each token and head.",
            requires_spec=">=1.18,<2",
        )
    ]
