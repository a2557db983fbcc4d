"""KV codec that stores keys and values as 8-bit integers."""

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
    """Provide ``int8``."""
    return [
        StrategyInfo(
            name="int8",
            config_type=Int8CodecConfig,
            build=_build,
            summary="Stores keys and values as 8-bit integers, with a scale per token and head.",
            requires_spec=">=1.18,<2",
        )
    ]
