"""Settings of ``[drafter.sam]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class SamSettings(StrategyConfig):
    """How much must repeat."""

    min_match: int = setting(
        2, reload="restart", ge=1, le=64, doc="Tokens at the end that must have stood before."
    )
