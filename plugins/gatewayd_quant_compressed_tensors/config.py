"""Settings of ``[quantizer.compressed_tensors]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class CompressedTensorsConfig(StrategyConfig):
    """A checkpoint says itself how it is to be read."""
