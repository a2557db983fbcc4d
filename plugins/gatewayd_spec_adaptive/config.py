"""Settings of ``[spec_controller.adaptive]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class AdaptiveConfig(StrategyConfig):
    """Limits of speculation."""

    max_drafts: int = setting(
        8,
        reload="hot",
        ge=1,
        le=64,
        doc="Maximum number of draft tokens of a sequence in a step, from 1 to 64.",
    )
    margin: float = setting(
        0.03,
        reload="hot",
        ge=0,
        le=1,
        doc="Minimum expected speedup by drafts as a fraction, from 0 to 1.",
    )
