"""The completion API of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

from gatewayd_proto_llamacpp.config import LlamaCppSettings

if TYPE_CHECKING:
    from gatewayd_hooks.protocols import ProtocolStrategy


def _build(config: LlamaCppSettings) -> ProtocolStrategy:
    from gatewayd_proto_llamacpp.strategy import LlamaCpp

    return LlamaCpp(config)


@hookimpl
def gatewayd_protocols() -> Sequence[StrategyInfo[ProtocolStrategy]]:
    """Offer ``llamacpp``."""
    return [
        StrategyInfo(
            name="llamacpp",
            config_type=LlamaCppSettings,
            build=_build,
            summary="The completion API of llama.cpp's server.",
            requires_spec=">=1.29,<2",
        )
    ]
