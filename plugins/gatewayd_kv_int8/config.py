"""Settings of ``[kv_codec.int8]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Int8CodecConfig(StrategyConfig):
    """A codec of eight bits has nothing to set."""
