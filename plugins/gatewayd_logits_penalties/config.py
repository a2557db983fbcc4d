"""Settings of ``[logits_processor.penalties]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class PenaltiesConfig(StrategyConfig):
    """No settings: penalties are request parameters."""
