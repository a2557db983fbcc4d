"""Settings of ``[protocol.anthropic]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class AnthropicConfig(StrategyConfig):
    """No settings: limits are the gateway's."""
