"""Upstreams with Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_upstream_anthropic.config import AnthropicUpstreamConfig

if TYPE_CHECKING:
    from gatewayd_hooks.upstreams import UpstreamStrategy


def _build(config: AnthropicUpstreamConfig) -> UpstreamStrategy:
    from gatewayd_upstream_anthropic.strategy import AnthropicUpstream

    return AnthropicUpstream(config)


@hookimpl
def gatewayd_upstreams() -> Sequence[StrategyInfo[UpstreamStrategy]]:
    """Provide ``anthropic``."""
    return [
        StrategyInfo(
            name="anthropic",
            config_type=AnthropicUpstreamConfig,
            build=_build,
            summary="Relays chats to servers with Anthropic's Messages API.",
            requires_spec=">=1.29,<2",
        )
    ]
