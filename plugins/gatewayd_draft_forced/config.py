"""Settings of ``[drafter.forced]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class ForcedConfig(StrategyConfig):
    """What is forced is for the processors to say."""
