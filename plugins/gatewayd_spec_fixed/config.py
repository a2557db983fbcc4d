"""Settings of ``[spec_controller.fixed]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class FixedConfig(StrategyConfig):
    """Number of drafts."""

    drafts: int = setting(
        4,
        reload="hot",
        ge=0,
        le=64,
        doc="Number of draft tokens of a sequence in a step, from 0 to 64.",
    )
