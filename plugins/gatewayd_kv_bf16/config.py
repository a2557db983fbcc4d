"""Settings of ``[kv_codec.bf16]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Bf16Config(StrategyConfig):
    """No settings."""
