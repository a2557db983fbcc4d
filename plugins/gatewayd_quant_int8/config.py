"""Settings of ``[quantizer.int8]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Int8QuantizerConfig(StrategyConfig):
    """No settings."""
