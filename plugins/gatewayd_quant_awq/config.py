"""Settings of ``[quantizer.awq]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class AwqConfig(StrategyConfig):
    """A checkpoint says itself how it is to be read."""
