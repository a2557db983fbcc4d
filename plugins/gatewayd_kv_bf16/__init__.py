"""KV codec that stores keys and values as bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_kv_bf16.config import Bf16Config

if TYPE_CHECKING:
    from gatewayd_hooks.kv_codecs import KvCodecStrategy


def _build(config: Bf16Config) -> KvCodecStrategy:
    from gatewayd_kv_bf16.strategy import Bf16

    return Bf16(config)


@hookimpl
def gatewayd_kv_codecs() -> Sequence[StrategyInfo[KvCodecStrategy]]:
    """Provide ``bf16``."""
    return [
        StrategyInfo(
            name="bf16",
            config_type=Bf16Config,
            build=_build,
            summary="Stores keys and values as bfloat16, for models computed in float32.",
            requires_spec=">=1.18,<2",
        )
    ]
