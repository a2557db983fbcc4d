"""Settings of ``[spec_controller.adaptive]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class AdaptiveConfig(StrategyConfig):
    """How far it may go."""

    max_drafts: int = setting(
        8, reload="hot", ge=1, le=64, doc="Most drafts of a sequence in a step."
    )
    margin: float = setting(
        0.03, reload="hot", ge=0, le=1, doc="Part by which drafts must be expected to be faster."
    )
