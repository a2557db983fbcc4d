"""Settings of ``[kv_codec.int8]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Int8CodecConfig(StrategyConfig):
    """No settings."""
