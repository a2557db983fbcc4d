"""Settings of ``[quantizer.gptq]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class GptqConfig(StrategyConfig):
    """A checkpoint says itself how it is to be read."""
