"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_proto_anthropic.config import AnthropicConfig

if TYPE_CHECKING:
    from gatewayd_hooks.protocols import ProtocolStrategy


def _build(config: AnthropicConfig) -> ProtocolStrategy:
    from gatewayd_proto_anthropic.strategy import Anthropic

    return Anthropic()


@hookimpl
def gatewayd_protocols() -> Sequence[StrategyInfo[ProtocolStrategy]]:
    """Provide ``anthropic``."""
    return [
        StrategyInfo(
            name="anthropic",
            config_type=AnthropicConfig,
            build=_build,
            summary="Anthropic's Messages API, with tools, streaming and token counting.",
            requires_spec=">=1.9,<2",
        )
    ]
