"""KV codec that stores keys and values as 8-bit floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_kv_fp8.config import Fp8CodecConfig

if TYPE_CHECKING:
    from gatewayd_hooks.kv_codecs import KvCodecStrategy


def _build(config: Fp8CodecConfig) -> KvCodecStrategy:
    from gatewayd_kv_fp8.strategy import Fp8Codec

    return Fp8Codec(config)


@hookimpl
def gatewayd_kv_codecs() -> Sequence[StrategyInfo[KvCodecStrategy]]:
    """Provide ``fp8``."""
    return [
        StrategyInfo(
            name="fp8",
            config_type=Fp8CodecConfig,
            build=_build,
            summary="Stores keys and values as 8-bit floats, with a scale per token and head.",
            requires_spec=">=1.18,<2",
        )
    ]
