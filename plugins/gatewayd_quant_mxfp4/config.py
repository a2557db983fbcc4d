"""Settings of ``[quantizer.mxfp4]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Mxfp4Config(StrategyConfig):
    """No settings: weights stay in codes."""
