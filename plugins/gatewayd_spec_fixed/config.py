"""Settings of ``[spec_controller.fixed]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class FixedConfig(StrategyConfig):
    """How many drafts."""

    drafts: int = setting(4, reload="hot", ge=0, le=64, doc="Drafts of a sequence in a step.")
