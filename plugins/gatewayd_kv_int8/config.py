"""Settings of ``[kv_codec.int8]``."""

from gatewayd_hooks.strategy import StrategyConfig


class Int8Config(StrategyConfig):
    """There is nothing to set."""
