"""Upstreams with OpenAI's API: vLLM, llama.cpp, SGLang, another gatewayd, clouds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_upstream_openai.config import OpenAiUpstreamConfig

if TYPE_CHECKING:
    from gatewayd_hooks.upstreams import UpstreamStrategy


def _build(config: OpenAiUpstreamConfig) -> UpstreamStrategy:
    from gatewayd_upstream_openai.strategy import OpenAiUpstream

    return OpenAiUpstream(config)


@hookimpl
def gatewayd_upstreams() -> Sequence[StrategyInfo[UpstreamStrategy]]:
    """Provide ``openai``."""
    return [
        StrategyInfo(
            name="openai",
            config_type=OpenAiUpstreamConfig,
            build=_build,
            summary="Relays to servers with OpenAI's API, such as vLLM or another gatewayd.",
            requires_spec=">=1.29,<2",
        )
    ]
