"""Settings of ``[logits_processor.bias]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class BiasConfig(StrategyConfig):
    """No settings: biases are request parameters."""
