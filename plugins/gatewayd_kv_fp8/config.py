"""Settings of ``[kv_codec.fp8]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Fp8Config(StrategyConfig):
    """A codec of eight bits has nothing to set."""
