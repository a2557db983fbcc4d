"""Settings of ``[tool_parser.mistral]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig


class MistralConfig(StrategyConfig):
    """No settings."""
