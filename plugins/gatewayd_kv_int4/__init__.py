"""KV codec that stores keys and values in 4 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_kv_int4.config import Int4CodecConfig

if TYPE_CHECKING:
    from gatewayd_hooks.kv_codecs import KvCodecStrategy


def _build(config: Int4CodecConfig) -> KvCodecStrategy:
    from gatewayd_kv_int4.strategy import Int4Codec

    return Int4Codec(config)


@hookimpl
def gatewayd_kv_codecs() -> Sequence[StrategyInfo[KvCodecStrategy]]:
    """Provide ``int4``."""
    return [
        StrategyInfo(
            name="int4",
            config_type=Int4CodecConfig,
            build=_build,
            summary="Stores keys and values in 4 bits, with a scale and offset per group of 32.",
            requires_spec=">=1.18,<2",
        )
    ]
