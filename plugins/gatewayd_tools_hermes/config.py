"""Settings of ``[tool_parser.hermes]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig


class HermesConfig(StrategyConfig):
    """No settings."""
