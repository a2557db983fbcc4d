"""Ollama's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_proto_ollama.config import OllamaConfig

if TYPE_CHECKING:
    from gatewayd_hooks.protocols import ProtocolStrategy


def _build(config: OllamaConfig) -> ProtocolStrategy:
    from gatewayd_proto_ollama.strategy import Ollama

    return Ollama(config)


@hookimpl
def gatewayd_protocols() -> Sequence[StrategyInfo[ProtocolStrategy]]:
    """Provide ``ollama``."""
    return [
        StrategyInfo(
            name="ollama",
            config_type=OllamaConfig,
            build=_build,
            summary="Ollama's API: chat, generate, embed, and models of this machine.",
            requires_spec=">=1.29,<2",
        )
    ]
