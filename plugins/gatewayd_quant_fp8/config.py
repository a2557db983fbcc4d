"""Settings of ``[quantizer.fp8]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Fp8Config(StrategyConfig):
    """A checkpoint says itself how it is to be read."""
