"""Settings of ``[kv_codec.bf16]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Bf16Config(StrategyConfig):
    """A codec of sixteen bits has nothing to set."""
