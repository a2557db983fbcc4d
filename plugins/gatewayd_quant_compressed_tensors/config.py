"""Settings of ``[quantizer.compressed_tensors]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class CompressedTensorsConfig(StrategyConfig):
    """No settings: the checkpoint describes its format."""
