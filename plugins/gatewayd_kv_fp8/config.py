"""Settings of ``[kv_codec.fp8]``."""

from gatewayd_hooks.strategy import StrategyConfig


class Fp8Config(StrategyConfig):
    """There is nothing to set."""
